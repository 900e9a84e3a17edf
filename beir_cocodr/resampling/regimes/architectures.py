"""Retrieval architectures: what they share, and those of this package's own encoders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from beir_cocodr import load_object
from beir_cocodr.errors import InputError
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.architecture_rows import ARCHITECTURES
from beir_cocodr.resampling.regimes.host_architectures import budgeted
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import DistillOptions, FinetuneOptions


class Architecture(Protocol):
    """Trains models that :func:`~beir_cocodr.resampling.regimes.rankers.load_ranker` takes.

    Attributes:
        name: The name of its row, as on the command line.
        seeded: False if seeds make no difference, so that one is enough.
    """

    name: str
    seeded: bool

    def train(
        self,
        dataset: str,
        output: Path,
        recipe: Recipe,
        seed: int,
        shared: Path,
    ) -> Path:
        """Train on the split "train" of a collection and save the model.

        Args:
            dataset: a BEIR folder.
            output: folder for the model; an interrupted one is resumed or begun anew.
            recipe: of the training.
            seed: of all that is drawn.
            shared: folder for what does not depend on training queries and serves other sets too.

        Returns:
            What ``load_ranker`` takes.
        """
        ...


class DenseArchitecture:
    """An encoder trained by ``finetune`` or ``distill``, from the recipe's start.

    Args:
        name: "dense" is the paper's base setting: other documents of the batch are the negatives,
            with cross-entropy. "dense-hard" adds BM25's or mined negatives, and "dense-distilled"
            is LambdaRank on a teacher's lists.

    Source: Zhan et al., 2022, sections 5.1.2 and 5.2.2; teacher and hard negatives there are
    ColBERT and STAR/ADORE.
    """

    seeded = True

    def __init__(self, name: str) -> None:
        """Name the architecture."""
        self.name = name

    def train(
        self,
        dataset: str,
        output: Path,
        recipe: Recipe,
        seed: int,
        shared: Path,
    ) -> Path:
        """Train on the split "train" of a collection, see :class:`Architecture`."""
        if self.name == "dense-distilled":
            self._distill(dataset, output, recipe, seed)
        else:
            self._finetune(dataset, output, recipe, seed)
        return output

    def _distill(
        self,
        dataset: str,
        output: Path,
        recipe: Recipe,
        seed: int,
    ) -> None:
        # For equal budgets, there is no search for the student's own hard negatives.
        options = budgeted(
            DistillOptions,
            recipe,
            seed,
            positives=1,
            m_bm25=recipe.list_size - 1,
            m_hard=0,
        )
        distill(
            recipe.start,
            dataset,
            teacher=recipe.teacher,
            output=output,
            options=options,
            resume=True,
        )

    def _finetune(
        self,
        dataset: str,
        output: Path,
        recipe: Recipe,
        seed: int,
    ) -> None:
        is_hard = self.name == "dense-hard"
        options = budgeted(
            FinetuneOptions,
            recipe,
            seed,
            stages=2 if is_hard and recipe.hard_negatives == "mined" else 1,
            negatives=recipe.negatives if is_hard else 0,
            negative_depth=recipe.negative_depth,
        )
        finetune(
            recipe.start,
            dataset,
            output=output,
            options=options,
            resume=True,
        )


def load_architecture(name: str) -> Architecture:
    """Return the architecture of a row of :data:`ARCHITECTURES`, built."""
    architecture: Architecture = load_object(ARCHITECTURES[name].build)(name)
    return architecture


def find_architectures(names: Sequence[str]) -> list[Architecture]:
    """Return the architectures of these names, all of them for "all".

    Raises:
        InputError: A name is unknown or occurs twice.
    """
    names = [*ARCHITECTURES] if list(names) == ["all"] else list(names)
    for name in names:
        if name not in ARCHITECTURES:
            raise InputError(
                f"unknown architecture {name!r}; choose all, or one of {', '.join(ARCHITECTURES)}"
            )
        if names.count(name) > 1:
            raise InputError(f"architecture {name!r} is named twice; name each once")
    return [load_architecture(name) for name in names]
