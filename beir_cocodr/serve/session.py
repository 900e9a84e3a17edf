"""What a person does with a corpus and several models: searches side by side, judges, and sees the
verdict move.
"""

import logging
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beir_cocodr.data.analyzers import Snippet, mark_words
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.file_folder import ABOVE
from beir_cocodr.data.judgements import (
    AnnotationCandidate,
    Asked,
    JudgementLog,
    load_judgements,
    typed_id,
)
from beir_cocodr.errors import InputError, check_names, first_line
from beir_cocodr.evaluation.annotation import LABELS_FILE, annotation_candidates
from beir_cocodr.evaluation.few_labels import FEWEST
from beir_cocodr.io import output_folder
from beir_cocodr.models.spec import BM25, FUSIONS, ModelSpec, SearchOptions, described
from beir_cocodr.records import Json, Record
from beir_cocodr.retrieval.ranking import Results
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.searcher import Searcher
from beir_cocodr.same_run import check_same_run

if TYPE_CHECKING:
    from beir_cocodr.evaluation.label_free.evidence import Gatherer
    from beir_cocodr.evaluation.results import ComparisonRecord

log = logging.getLogger(__name__)

#: In the folder of a session: whose it is.
SESSION_FILE = "session.json"

#: The folder of the verdict and its report.
VERDICT_FOLDER = "verdict"

#: Not relevant, partly relevant, relevant.
GRADES = (0, 1, 2)

_MOST_CHARACTERS = 2_000

# Typed queries whose results are remembered, and pairs that are proposed at a time.
_REMEMBERED, _PROPOSED = 200, 10


@dataclass(frozen=True)
class SessionRecord(Record):
    """session.json: the dataset whose judgements a folder holds."""

    dataset: str


@dataclass
class AnswerColumn:
    """A model on the page, and how far it is.

    Attributes:
        state: "waiting", "loading", "encoding", "ready" or "failed".
        done: texts encoded since it began to load.
        remark: why it failed.
    """

    name: str
    about: str
    state: str = "waiting"
    done: int = 0
    remark: str = ""
    searcher: Searcher | None = None

    def describe(self) -> Json:
        return {name: value for name, value in vars(self).items() if name != "searcher"}


class _Stopped(Exception):
    """The person ends the session while something is encoded."""


class Session:
    """A corpus, models side by side, what is judged, and the verdict on them. An InputError: no
    such dataset, models that cannot be, or a folder of another dataset.

    Args:
        dataset: as for :func:`~beir_cocodr.data.collection.load_collection`; needs neither queries
            nor labels.
        models: names, at least one; two or more are compared.
        folder: for the log, qrels and the verdict; goes on with what it holds, if that is of the
            same dataset.
        options: how models search.
        samples: crops and generated queries of the verdict.
    """

    def __init__(
        self,
        dataset: str,
        models: Sequence[str],
        folder: Path,
        options: SearchOptions = SearchOptions(),
        samples: int = 300,
    ) -> None:
        check_names("model", models)
        for name in models:
            ModelSpec.parse(name).check()
        self.dataset, self.folder, self.options, self.samples = dataset, folder, options, samples
        place = Path(dataset.partition("?")[0])
        below = folder.resolve().parts[len(place.resolve().parts) :] if place.is_dir() else ()
        inside = place.resolve() in (folder.resolve(), *folder.resolve().parents)
        if inside and not any(part.startswith(".") for part in below):
            raise InputError(
                f"{folder} lies in {place}, and what is judged would be read as its files; choose another --output"
            )
        record = SessionRecord(str(place.resolve()) if place.exists() else dataset)
        if (folder / SESSION_FILE).is_file():
            former = SessionRecord.read(folder / SESSION_FILE)
            check_same_run(folder, vars(former), vars(record))
        self.columns = {name: AnswerColumn(name, _about(name)) for name in models}
        self._searcher = Searcher(dataset, BM25, options)
        record.write(output_folder(folder) / SESSION_FILE)
        self.judged = JudgementLog(folder)
        self.verdict: dict[str, Any] | None = None
        self.remark, self.working = "", False
        self._searching, self._comparing = threading.Lock(), threading.Lock()
        self._changed, self._stopping = threading.Event(), threading.Event()
        self._found: dict[str, dict[str, Results]] = {}
        self._drawn: dict[tuple[str, str], AnnotationCandidate] = {}
        self._gatherer: Gatherer | None = None
        self._place = tempfile.TemporaryDirectory(prefix="beir-cocodr-", ignore_cleanup_errors=True)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        """Make the models ready, in a thread of its own; BM25 is when this returns."""
        for column in self.columns.values():
            if column.name == BM25:
                self._searcher.prepare()
                column.searcher, column.state = self._searcher, "ready"
        self._thread.start()

    def stop(self, patience: float = 5.0) -> bool:
        """End what is under way; whether it ended within so many seconds. Temporary files are
        removed in any case.
        """
        self._stopping.set()
        self._changed.set()
        self._thread.join(patience)
        self._place.cleanup()
        return not self._thread.is_alive()

    def state(self, query: str = "") -> Json:
        """How far models and verdict are, and the grades of a typed query."""
        with self.judged.lock:
            self.judged.refresh()
            grades = self.judged.grades
            found: Json = {
                "version": self.judged.version,
                "judged": {"queries": len(grades), "documents": sum(map(len, grades.values()))},
                "can_undo": self.judged.can_undo,
                "grades": dict(grades.get(typed_id(query), {})),
            }
        return found | {
            "dataset": self.dataset,
            "documents": len(self._searcher.documents),
            "models": [column.describe() for column in self.columns.values()],
            "verdict": self.verdict,
            "working": self.working,
            "remark": self.remark,
            "log": str(self.judged.file),
        }

    def search(self, model: str, query: str) -> Json:
        """The ten best documents of a model for a typed query, or how far the model is."""
        column = self.columns.get(model)
        if column is None:
            raise InputError(f"{model} is none of the models {', '.join(self.columns)}")
        _check_query(query)
        if column.searcher is None:
            return {"model": column.describe(), "hits": None}
        with self._searching:
            hits = column.searcher.search(query)
            results = {typed_id(query): [(hit.id, hit.score) for hit in hits]}
            self._found[query] = self._found.pop(query, {}) | {model: results}
            while len(self._found) > _REMEMBERED:
                del self._found[next(iter(self._found))]
        names, shown = ("rank", "id", "title", "section", "score", "dense", "lexical", "place"), []
        for hit in hits:
            parts = list(Snippet(hit.snippet, hit.matches).parts())
            shown.append({name: getattr(hit, name) for name in names} | {"snippet": parts})
        return {"model": column.describe(), "hits": shown}

    def document(self, id: str, query: str = "") -> Json:
        """A document in full: of a passage the file around it, with the words that match."""
        searcher = self._searcher
        whole = searcher.full_text(id)  # checks the id
        document = searcher.documents[id]
        title, _, section = (
            document["title"].partition(ABOVE)
            if searcher.file_of(id)
            else (document["title"], "", "")
        )
        start = max(whole.find(document["text"]), 0)
        end = start + len(document["text"])
        texts = {"before": whole[:start], "text": whole[start:end], "after": whole[end:]}
        parts = {
            name: list(mark_words(text, query, searcher.analyzer).parts())
            for name, text in texts.items()
        }
        return {
            "id": id,
            "title": title,
            "section": section,
            "place": searcher.file_of(id) or id,
            **parts,
        }

    def judge(
        self, document: str, grade: int | None, query: str, query_id: str | None = None
    ) -> None:
        """Write a judgement to the log; of a pair that was drawn, with its probabilities."""
        if query_id is None:
            _check_query(query)
        if grade is not None and (grade not in GRADES or isinstance(grade, bool)):
            raise InputError(
                f"grade {grade!r}: there are {', '.join(map(str, GRADES))}, and null to take back"
            )
        if document not in self._searcher.documents:
            raise InputError(f"{self.dataset} has no document {document!r}; give the id of a hit")
        drawn: dict[str, object] = {}
        if query_id is not None:
            pair = self._drawn.get((query_id, document))
            if pair is None:
                raise InputError(f"{query_id!r} and {document!r} are no pair that was asked for")
            query = pair.query
            drawn = {
                name: getattr(pair, name) for name in ("query_probability", "document_probability")
            }
            drawn["drawn"] = sum(id == query_id for id, _ in self._drawn)
        self.judged.judge(Asked(query, query_id), document, grade, **drawn)
        self._changed.set()

    def undo(self, version: int) -> None:
        """Take back the last judgement, if none came after that version of the log."""
        self.judged.undo(version)
        self._changed.set()

    def wanted(self, query: str = "") -> list[Json]:
        """The pairs most worth judging: documents of typed queries, this one first, that the two
        models place most differently which are to be told apart; then pairs that were drawn from
        the collection's own queries.
        """
        self.judged.refresh()
        pairs, verdict = list[tuple[Asked, str]](), self.verdict or {"best": None, "open": []}
        with self._searching, self.judged.lock:
            grades = self.judged.grades
            for text in [query, *reversed(self._found)]:
                found = self._found.get(text, {})
                ranked = [
                    found[name]
                    for name in (verdict["best"], *verdict["open"], *self.columns)
                    if name in found
                ]
                if len(found) > 1:
                    proposed = annotation_candidates(ranked[0], ranked[1], grades, _PROPOSED)
                    pairs += ((Asked(text), pair.document_id) for pair in proposed)
            for (id, document), pair in self._drawn.items():
                if document not in grades.get(id, {}):
                    pairs.append((Asked(pair.query, id), document))
        return [
            {
                "query": asked.text,
                "query_id": asked.query_id,
                "document": self.document(document, asked.text),
            }
            for asked, document in list(dict.fromkeys(pairs))[:_PROPOSED]
        ]

    @property
    def report_file(self) -> Path:
        return self.folder / VERDICT_FOLDER / "report.html"

    def report(self) -> None:
        """Write the verdict and a page about it to the folder of the session."""
        from beir_cocodr.report.html.page import write_report

        self._compare(self.report_file.parent)
        write_report(self.report_file.parent, overwrite=True)

    def describe(self) -> str:
        """What is judged, and where it stands."""
        judged: Any = self.state()["judged"]
        if not judged["documents"]:
            return f"Nothing was judged; {self.folder} waits for it."
        counts = f"{judged['documents']} judgements of {judged['queries']} queries"
        return f"{counts} are in {self.judged.file}, and as qrels beside it."

    def compared(self) -> list[str]:
        """What ``compare`` takes after the dataset to find the same verdict: the models, and
        options that are set.
        """
        settings, usual = self.options.describe(), SearchOptions().describe()
        changed = [name for name in settings if settings[name] != usual.get(name)]
        flags = [
            (described(SearchOptions, name, "flag") or "--" + name.replace("_", "-"))
            for name in changed
        ]
        given = [(flag, settings[name]) for flag, name in zip(flags, changed, strict=True)]
        words = [
            word
            for flag, value in given
            for word in ((flag,) if value is True else (flag, str(value)))
        ]
        return [*self.columns, *words, "--judgements", str(self.judged.file)]

    def _work(self) -> None:
        """Make models ready, then find the verdict whenever something was judged."""
        with suppress(_Stopped):
            for column in self.columns.values():
                if column.searcher is None:
                    self._load(column)
            self._changed.set()
            while self._changed.wait() and not self._stopping.is_set():
                self._changed.clear()
                self.working = True
                try:
                    self._prepare_verdict(Path(self._place.name))
                    self._compare()
                    self.remark = ""
                except InputError as error:
                    self.remark = str(error)
                except Exception as error:
                    log.exception("no verdict")
                    self.remark = first_line(error)
                self.working = False

    def _load(self, column: AnswerColumn) -> None:
        """A searcher beside the others."""

        def watch(count: int) -> None:
            if self._stopping.is_set():
                raise _Stopped
            column.state, column.done = (
                "encoding",
                min(column.done + count, len(self._searcher.documents)),
            )

        column.state = "loading"
        try:
            searcher = self._searcher.beside(column.name, watch)
            searcher.prepare()
            column.searcher, column.state = searcher, "ready"
        except _Stopped:
            raise
        except Exception as error:
            column.state, column.remark = "failed", first_line(error)
            log.warning("%s: %s", column.name, error, exc_info=not isinstance(error, InputError))

    def _prepare_verdict(self, place: Path) -> None:
        """The searches that do not depend on judgements, with encoders of their own, as pages
        search meanwhile.
        """
        from beir_cocodr.evaluation.label_free.evidence import (
            Gatherer,
        )  # scipy takes seconds, and answers do not wait
        from beir_cocodr.evaluation.runs import identical_ids

        ready = [column.name for column in self.columns.values() if column.searcher is not None]
        if self._gatherer is None and len(ready) > 1:
            documents, drop = (
                load_collection(self.dataset, labels="none").documents,
                identical_ids(self.dataset),
            )
            options, kept = self.options, self._searcher.kept
            place = Path(tempfile.mkdtemp(dir=place))  # where it fails, it is tried again
            self._gatherer = Gatherer(
                Resources(documents, place, options, kept),
                ready,
                samples=self.samples,
                drop_identical_ids=drop == "drop",
            )

    def _compare(self, output: Path | None = None) -> None:
        from beir_cocodr.evaluation.compare import (
            CompareOptions,
            ComparisonTask,
            compare_collection,
        )

        if (gatherer := self._gatherer) is None:
            raise InputError("a verdict needs two models that are ready")
        with self._comparing:
            version, judged = self.judged.version, bool(self.judged.grades)
            if output is not None and (table := output / LABELS_FILE).is_file():
                found = load_judgements(table).qrels
                if {
                    (id, document) for id, grades in found.items() for document in grades
                } <= self.judged.pairs:
                    table.unlink()  # all of it is in the log
            options = CompareOptions(
                labels=False,
                samples=self.samples,
                overwrite=True,
                judgements=self.judged.file if judged else None,
            )
            record = compare_collection(
                {name: gatherer.resources.spec(name) for name in gatherer.models},
                load_collection(self.dataset, labels="optional"),
                ComparisonTask.of(options=options),
                output,
                self.options,
                gatherer=gatherer,
            )
            drawn = [
                pair for pair in record.labels_wanted.pairs if pair.query_probability is not None
            ]
            self._drawn = self._drawn | {(pair.query_id, pair.document_id): pair for pair in drawn}
            self.verdict = {"version": version, **_figures(record)}


def _figures(record: "ComparisonRecord") -> Json:
    """What the page shows of a comparison."""
    few, best = record.few_labels, record.best
    open_pairs = [{best.model, other} for other in best.indistinguishable]
    gains = (
        {}
        if few is None
        else {(a, b): gain for a, found in few.pairs.items() for b, gain in found.items()}
    )
    more = [gain.more for pair, gain in gains.items() if set(pair) in open_pairs]
    shown = ("a", "b", "verdict", "estimate", "interval", "reason")
    return {
        "headline": best.reason,
        "best": best.model,
        "open": best.indistinguishable,
        "queries": 0 if few is None else few.queries,
        "fewest": FEWEST,
        "more": None
        if None in more or few is None
        else max(map(int, filter(None, more)), default=0),
        "pairs": [{name: getattr(pair, name) for name in shown} for pair in record.estimated],
        "sentences": [] if few is None else list(few.describe()),
        "trust": list(dict.fromkeys(pair.trust for pair in record.estimated)),
    }


def _about(name: str) -> str:
    """What a model goes by."""
    kind = ModelSpec.parse(name).kind
    return {BM25: "words", "dense": "meaning"}.get(
        kind, "words and meaning" if kind in FUSIONS else kind
    )


def _check_query(query: str) -> None:
    if not query.strip():
        raise InputError("the query is empty; give it words")
    if len(query) > _MOST_CHARACTERS:
        raise InputError(
            f"the query has {len(query)} characters, and at most {_MOST_CHARACTERS} are searched for"
        )
