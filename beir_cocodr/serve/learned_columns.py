"""What the models on a page have learned from judgements, beside the session that taught them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from beir_cocodr.data.judgements import load_judgements
from beir_cocodr.errors import InputError
from beir_cocodr.records import Json

if TYPE_CHECKING:
    from beir_cocodr.evaluation.judged_vectors import LearnedVectors, Learning
    from beir_cocodr.retrieval.searcher import Searcher
    from beir_cocodr.retrieval.vectors.dense import Dense

#: The folder in that of a session, with a folder for each encoder.
LEARNED_FOLDER = "learned"


class LearnedColumns:
    """Learned vectors of the encoders of a page, kept in the folder of a session.

    Models that share an encoder learn together. The verdict on the models knows nothing of it: it
    searches with the vectors as the encoders made them.

    Args:
        folder: The folder of the session.
    """

    def __init__(self, folder: Path) -> None:
        """Begin with what an earlier session left; it is applied as models become ready."""
        self.folder = folder / LEARNED_FOLDER
        #: Key of an encoder and the corpus to the model's name and what was learned.
        self.results: dict[str, tuple[str, Learning]] = {}

    def learn(
        self,
        searchers: Iterable[Searcher],
        judged: Path,
        queries: Mapping[str, str],
    ) -> None:
        """Let the encoders of some searchers learn from all judgements.

        Args:
            searchers: The searchers that are ready.
            judged: The log of judgements.
            queries: The collection's own queries, id to text.

        Raises:
            InputError: No model has vectors, or too few queries are judged.
        """
        if not judged.is_file():
            raise InputError("nothing is judged yet; judge results of ten queries first")
        # Importing torch takes seconds, which a page with BM25 alone must not wait for.
        from beir_cocodr.evaluation.judged_vectors import LearnedVectors, forget

        encoders = self._encoders(searchers)
        if not encoders:
            raise InputError(
                "no model on the page is ready and has document vectors that could learn; wait, "
                "or add a model such as minilm"
            )
        learned: dict[str, LearnedVectors] = {}
        searched = {name: dense.embeddings for name, dense in encoders.items()}
        try:
            for name, dense in encoders.items():
                judgements = load_judgements(judged).of(queries, dense.documents)
                forget(dense)
                learned[name] = LearnedVectors.learn(dense, judgements)
            for name, dense in encoders.items():
                learned[name].save(self._folder_of(dense))
        except BaseException:
            # What was learned before stays in use.
            for name, dense in encoders.items():
                dense.embeddings = searched[name]
            raise
        self.results.clear()
        for name, dense in encoders.items():
            self._use(learned[name], name, dense)

    def forget(self, searchers: Iterable[Searcher]) -> None:
        """Let all encoders search as they did before they learned, and remove what they learned."""
        from beir_cocodr.evaluation.judged_vectors import forget

        for dense in self._encoders(searchers).values():
            forget(dense)
        self.results.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def recall(self, searcher: Searcher) -> None:
        """Apply what the encoder of a searcher learned in an earlier session, if it still fits.

        What was learned for another state of the corpus is not used: one click learns again.
        """
        if not self.folder.is_dir():
            return
        from beir_cocodr.evaluation.judged_vectors import LearnedVectors

        for name, dense in self._encoders([searcher]).items():
            with suppress(InputError):
                self._use(LearnedVectors.load(self._folder_of(dense)), name, dense)

    def describe(self) -> list[Json]:
        """Return what each encoder learned, for the page."""
        described = []
        for name, record in self.results.values():
            described.append({"model": name, "text": record.describe(), "kept": record.kept})
        return described

    def _use(self, learned: LearnedVectors, name: str, dense: Dense) -> None:
        learned.apply(dense)
        self.results.setdefault(learned.record.key, (name, learned.record))

    def _encoders(self, searchers: Iterable[Searcher]) -> dict[str, Dense]:
        """Return the different encoders, each by the first model that searches with it."""
        encoders: dict[str, Dense] = {}
        for searcher in searchers:
            dense = searcher.dense
            if dense is not None and all(dense is not other for other in encoders.values()):
                encoders[searcher.model] = dense
        return encoders

    def _folder_of(self, dense: Dense) -> Path:
        from beir_cocodr.evaluation.judged_vectors import key_of

        return self.folder / key_of(dense)[:16]
