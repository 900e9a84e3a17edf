"""What a retrieval architecture has to offer to be judged in both regimes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from beir_cocodr.resampling.regimes.recipe import Recipe


class Architecture(Protocol):
    """Trains models of one kind; what it saves, `load_retriever` ranks with.

    Attributes:
        name: as on the command line.
        seeded: whether two seeds give two models.
    """

    name: str
    seeded: bool

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        """Train on the split "train" of a collection and save the model.

        Args:
            dataset: a BEIR folder.
            output: folder for the model; an interrupted one is taken up or begun anew.
            recipe: see :class:`Recipe`.
            seed: of everything that is drawn.
            shared: folder for what does not depend on training queries and serves other sets as well.

        Returns:
            What `load_retriever` takes.
        """
        ...
