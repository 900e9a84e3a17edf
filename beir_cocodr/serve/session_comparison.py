"""The comparison of the models on a page, renewed as people judge and ask."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from beir_cocodr.data.asked_queries import AskedQueries, without_texts_of
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.judgement_log import Asked, JudgementLog, typed_id
from beir_cocodr.data.judgements import AnnotationCandidate, load_judgements
from beir_cocodr.errors import InputError, first_line
from beir_cocodr.evaluation.annotation import LABELS_FILE
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.serve.shown_verdict import ShownVerdict
from beir_cocodr.temporary import TemporaryFolder

if TYPE_CHECKING:
    from beir_cocodr.evaluation.compare import CompareOptions
    from beir_cocodr.evaluation.label_free.gatherer import Gatherer

log = logging.getLogger(__name__)


class SessionComparison:
    """The verdict on the models of a session, and the searches that it rests on.

    The searches that do not depend on judgements are done once and kept. They are done again when
    the corpus has changed, or when many more queries were asked.

    Args:
        dataset: the dataset of the session.
        options: how models search.
        samples: crops and generated queries.
        judged: the judgements of the session.
        asked: the queries that were asked, if they are kept.
        kept: the folder where indexes of hosted models are kept.

    Attributes:
        kept: the same, of the present corpus.
        verdict: the latest verdict; None before the first one.
        drawn: query and document to each pair that was drawn to be judged.
    """

    def __init__(
        self,
        dataset: str,
        options: SearchOptions,
        samples: int,
        judged: JudgementLog,
        asked: AskedQueries | None,
        kept: Path,
    ) -> None:
        """Search nothing yet."""
        self.dataset = dataset
        self.options = options
        self.samples = samples
        self.judged = judged
        self.asked = asked
        self.verdict: ShownVerdict | None = None
        self.drawn: dict[tuple[str, str], AnnotationCandidate] = {}
        self.kept = kept
        self._temporary = TemporaryFolder()
        self._gatherer: Gatherer | None = None
        self._own: dict[str, str] = {}  # the collection's own queries, once they are read
        self._matched = 0  # asked queries when the searches were begun; crops are as long as these
        self._preparing = threading.Lock()
        self._comparing = threading.Lock()

    def renew(self) -> None:
        """Forget the searches and the drawn pairs, because the corpus has changed."""
        self._gatherer = None
        self.drawn = {}

    def update(self, models: Sequence[str]) -> str:
        """Compare the models that are ready, and return what went wrong, "" if nothing did."""
        try:
            self._compare(self.prepare(models, self._temporary.path))
        except InputError as error:
            return str(error)
        except Exception as error:
            log.exception("there is no verdict")
            return first_line(error)
        return ""

    def write(self, models: Sequence[str], output: Path) -> None:
        """Compare the models with all queries that were asked, and write the record to a folder."""
        self._compare(self.prepare(models, self._temporary.path, all_asked=True), output)

    def pairs(self) -> Iterator[tuple[Asked, str]]:
        """Yield the drawn pairs that nobody has judged."""
        for (id, document), pair in self.drawn.items():
            is_judged = document in self.judged.grades.get(id, {})
            if not is_judged and not self.was_typed(pair):
                yield Asked(pair.query, id), document

    def was_typed(self, pair: AnnotationCandidate) -> bool:
        """Return whether someone typed the query of a drawn pair and judged documents for it.

        Those judgements count as the query's, and so it needs no further ones.
        """
        grades = self.judged.grades
        return pair.query_id not in grades and typed_id(pair.query) in grades

    def remove_files(self) -> None:
        """Remove the temporary files of the searches."""
        self._temporary.remove()

    def has_asked_many(self) -> bool:
        """Return whether enough queries were asked that the models are compared with them.

        That is so once ten were asked, as fewer do not count, and again whenever their number has
        doubled since the searches were begun. A comparison takes a while, and so it is not done for
        each query.
        """
        from beir_cocodr.evaluation.label_free.estimators import FEWEST_QUERIES

        if self._matched < FEWEST_QUERIES:
            return self._asked_count() >= FEWEST_QUERIES
        return self._asked_count() >= 2 * self._matched

    def _asked_count(self) -> int:
        """Return how many queries were asked that are none of the collection's own."""
        if self.asked is None or not self.asked.queries:
            return 0
        asked = dict(self.asked.queries)  # searches in other threads add to it
        return len(without_texts_of(self._own, asked))

    def prepare(
        self,
        models: Sequence[str],
        folder: Path,
        *,
        all_asked: bool = False,
    ) -> Gatherer | None:
        """Return the searches that do not depend on judgements, and do them if needed.

        They are done where there are none yet, and again where many more queries were asked.
        Encoders are loaded again for them, because the page searches at the same time.

        Args:
            models: names of the models that are ready; fewer than two are not compared.
            folder: a folder for temporary files.
            all_asked: do them again for a single further query.

        Returns:
            The searches; None if there are fewer than two models.
        """
        # Importing scipy takes seconds, for which answers must not wait.
        from beir_cocodr.evaluation.compare import with_asked
        from beir_cocodr.evaluation.label_free.gatherer import Gatherer
        from beir_cocodr.evaluation.runs import identical_ids

        with self._preparing:
            asked = self._asked_count()
            if self.has_asked_many() or (all_asked and asked != self._matched):
                self._gatherer = None
            if self._gatherer is not None:
                return self._gatherer
            # Set before anything can fail, so that not every further query tries again.
            self._matched = asked
            if len(models) < 2:
                return None
            collection = load_collection(self.dataset, labels="optional")
            self._own = collection.queries
            self._matched = self._asked_count()  # without the collection's, which are known now
            if self._matched:
                collection = with_asked(collection, self._compare_options())
            # A folder of its own, so that the next attempt does not meet the files of a failed one.
            own_folder = Path(mkdtemp(dir=folder))
            self._gatherer = Gatherer(
                Resources(collection.documents, own_folder, self.options, self.kept),
                models,
                samples=self.samples,
                drop_identical_ids=identical_ids(self.dataset) == "drop",
                collection=collection,
            )
            return self._gatherer

    def _compare_options(self) -> CompareOptions:
        """Return the options by which ``compare`` reaches the same verdict."""
        from beir_cocodr.evaluation.compare import CompareOptions

        return CompareOptions(
            labels=False,
            samples=self.samples,
            overwrite=True,
            judgements=self.judged.file if self.judged.grades else None,
            asked=self.asked.file if self.asked is not None and self.asked.queries else None,
        )

    def _compare(self, gatherer: Gatherer | None, output: Path | None = None) -> None:
        """Compare the prepared models, and write the record to a folder if one is given."""
        from beir_cocodr.evaluation.compare import ComparisonTask, compare_collection

        if gatherer is None:
            raise InputError("a verdict needs two models that are ready")
        with self._comparing:
            version = self.judged.version
            if output is not None:
                self._remove_logged_table(output / LABELS_FILE)
            record = compare_collection(
                {name: gatherer.resources.spec(name) for name in gatherer.models},
                load_collection(self.dataset, labels="optional"),
                ComparisonTask.of(options=self._compare_options()),
                output,
                self.options,
                gatherer=gatherer,
            )
            drawn = dict(self.drawn)  # other threads read the one that is replaced
            for pair in record.labels_wanted.pairs:
                if pair.query_probability is not None:
                    drawn[pair.query_id, pair.document_id] = pair
            self.drawn = drawn
            self.verdict = ShownVerdict.of(record, version)

    def _remove_logged_table(self, table: Path) -> None:
        """Remove an old table of pairs to label if the log has all of its judgements."""
        if not table.is_file():
            return
        qrels = load_judgements(table).qrels
        pairs = {(query, document) for query, grades in qrels.items() for document in grades}
        if pairs <= self.judged.pairs:
            table.unlink()
