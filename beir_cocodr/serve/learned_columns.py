"""What the models on a page have learned from judgements, beside the session that taught them."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from beir_cocodr.data.judgements import load_judgements
from beir_cocodr.errors import InputError
from beir_cocodr.io import draft_folder
from beir_cocodr.records import Json

if TYPE_CHECKING:
    from beir_cocodr.evaluation.judged_vectors import LearnedVectors
    from beir_cocodr.retrieval.searcher import Searcher
    from beir_cocodr.retrieval.vectors.dense import Dense

log = logging.getLogger(__name__)

#: The folder in that of a session, with a folder for each encoder.
LEARNED_FOLDER = "learned"


_OF_ANOTHER_CORPUS = (
    "What was learned belongs to the corpus as it was before a change and is not in use; learn "
    "again from the judgements"
)


@dataclass(frozen=True)
class ShownLearning:
    """What an encoder has learned, for the page.

    Attributes:
        model: Name of the first model that searches with the encoder.
        text: What it learned, or why that is not in use.
        kept: True if its vectors have moved.
        used: False if there is something that it learned and that cannot be used.
    """

    model: str
    text: str
    kept: bool
    used: bool


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
        #: Key of an encoder to what it learned.
        self._shown: dict[str, ShownLearning] = {}

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
                learned[name] = LearnedVectors.learn(dense, judgements).named(name)
            with draft_folder(self.folder, replace=True) as draft:
                if self.folder.is_dir():  # other encoders keep what they learned
                    shutil.copytree(self.folder, draft, dirs_exist_ok=True)
                for name, dense in encoders.items():
                    learned[name].save(draft / _folder_name(dense))
        except BaseException:
            # What was learned before stays in use, and on the disk.
            for name, dense in encoders.items():
                dense.embeddings = searched[name]
            raise
        self._shown.clear()
        for name, dense in encoders.items():
            self._use(learned[name], name, dense)

    def forget(self, searchers: Iterable[Searcher]) -> None:
        """Let all encoders search as they did before they learned, and remove what they learned."""
        from beir_cocodr.evaluation.judged_vectors import forget

        for dense in self._encoders(searchers).values():
            forget(dense)
        self._shown.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def recall(self, searcher: Searcher) -> None:
        """Apply what the encoder of a searcher learned before, if it still fits.

        What was learned for another state of the corpus, or is damaged, is not used: the page and
        the log say so, and one click learns again.
        """
        if not self.folder.is_dir():
            return
        from beir_cocodr.evaluation.judged_vectors import LearnedVectors, has_moved, key_of

        for name, dense in self._encoders([searcher]).items():
            folder = self.folder / _folder_name(dense)
            # Other models of the encoder may have recalled it.
            if not folder.is_dir() or has_moved(dense):
                continue
            try:
                learned = LearnedVectors.load(folder)
            except InputError as error:
                self._report_unused(f"What was learned is not in use: {error}", name, dense)
                continue
            if learned.record.key == key_of(dense):
                self._use(learned, name, dense)
            else:
                self._report_unused(_OF_ANOTHER_CORPUS, name, dense)

    def renew(self) -> None:
        """Begin anew with a corpus that has changed: searchers over it recall what they can."""
        self._shown.clear()

    def describe(self) -> list[Json]:
        """Return what each encoder learned, for the page."""
        return [asdict(learning) for learning in list(self._shown.values())]

    def _use(self, learned: LearnedVectors, name: str, dense: Dense) -> None:
        learned.apply(dense)
        record = learned.record
        self._show(dense, ShownLearning(name, record.describe(), record.kept, used=True))

    def _report_unused(self, reason: str, name: str, dense: Dense) -> None:
        if self._show(dense, ShownLearning(name, reason, kept=False, used=False)):
            log.warning("%s: %s", name, reason)

    def _show(self, dense: Dense, learning: ShownLearning) -> bool:
        """Show what an encoder learned, and return whether this is its first model to say so."""
        from beir_cocodr.evaluation.judged_vectors import encoder_key_of

        return self._shown.setdefault(encoder_key_of(dense), learning) is learning

    def _encoders(self, searchers: Iterable[Searcher]) -> dict[str, Dense]:
        """Return the different encoders, each by the first model that searches with it."""
        encoders: dict[str, Dense] = {}
        for searcher in searchers:
            dense = searcher.dense
            if dense is not None and all(dense is not other for other in encoders.values()):
                encoders[searcher.model] = dense
        return encoders


def _folder_name(dense: Dense) -> str:
    """Return the name of the folder of what an encoder learned."""
    from beir_cocodr.evaluation.judged_vectors import encoder_key_of

    return encoder_key_of(dense)[:16]
