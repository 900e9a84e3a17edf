"""A session on a page: a corpus searched by several models side by side, judged and compared."""

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from beir_cocodr.data.analyzers import Snippet, mark_words
from beir_cocodr.data.asked_queries import SESSION_FILE, AskedQueries
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.files.file_folder import ABOVE
from beir_cocodr.data.judgement_log import Asked, JudgementLog, typed_id
from beir_cocodr.errors import InputError, check_names, first_line, quoted
from beir_cocodr.evaluation.annotation import annotation_candidates
from beir_cocodr.io import output_folder, real_path
from beir_cocodr.models.spec import BM25, FUSIONS, ModelSpec, SearchOptions, described
from beir_cocodr.records import Json, Record
from beir_cocodr.retrieval.ranking import Results
from beir_cocodr.retrieval.searcher import Hit, Searcher
from beir_cocodr.same_run import check_same_run
from beir_cocodr.serve.corpus_watch import CorpusWatch
from beir_cocodr.serve.file_places import FilePlaces
from beir_cocodr.serve.learned_columns import LearnedColumns
from beir_cocodr.serve.session_comparison import SessionComparison
from beir_cocodr.serve.shown_verdict import ShownVerdict

log = logging.getLogger(__name__)

#: The folder of the verdict and its report.
VERDICT_FOLDER = "verdict"

#: Not relevant, partly relevant, relevant.
GRADES = (0, 1, 2)

_MOST_CHARACTERS = 2_000

#: Typed queries whose results are remembered.
_REMEMBERED = 200

#: Pairs that are proposed at a time.
_PROPOSED = 10

#: Queries that are proposed at a time.
_PROPOSED_QUERIES = 5

#: Files that were left out and are listed; the others are counted.
_LISTED = 200

#: What the page takes of a hit.
_OF_A_HIT = ("rank", "id", "title", "section", "score", "dense", "lexical", "place", "file")


@dataclass(frozen=True)
class SessionRecord(Record):
    """session.json: the dataset whose judgements a folder holds."""

    dataset: str


@dataclass
class AnswerColumn:
    """A model on the page, and its progress.

    Attributes:
        name: the model's name.
        about: what the model compares, in a word or two.
        state: "waiting", "loading", "encoding", "ready" or "failed".
        done: texts that were encoded since it began to load.
        total: texts that are encoded in all; None where that is unknown.
        seconds_left: seconds until it is ready; None where that is unknown.
        remark: the reason if it failed.
        searcher: searches with the model, once it is ready.
    """

    name: str
    about: str
    state: str = "waiting"
    done: int = 0
    total: int | None = None
    seconds_left: float | None = None
    remark: str = ""
    searcher: Searcher | None = None

    def describe(self) -> Json:
        """Return the column for the page."""
        return {name: value for name, value in vars(self).items() if name != "searcher"}


class _Stopped(Exception):
    """The session ends while something is encoded."""


class Session:
    """A corpus, models side by side, judgements, and the verdict on the models.

    Args:
        dataset: as for :func:`~beir_cocodr.data.collection.load_collection`; it needs neither
            queries nor labels.
        models: names of models, at least one; two or more are compared.
        folder: folder for the log, qrels and the verdict. Its judgements are resumed if they are of
            the same dataset.
        options: how models search.
        samples: crops and generated queries of the verdict.
        keep_queries: keep the queries that are asked in the folder; ten or more of them count as
            real queries in the verdict, which is renewed as :meth:`search` says.

    Raises:
        InputError: the dataset does not exist, a model cannot be searched with, or the folder is of
            another dataset.
    """

    def __init__(
        self,
        dataset: str,
        models: Sequence[str],
        folder: Path,
        options: SearchOptions = SearchOptions(),
        samples: int = 300,
        *,
        keep_queries: bool = False,
    ) -> None:
        """Open the log, and read the dataset."""
        check_names("model", models)
        for name in models:
            ModelSpec.parse(name).check()
        record = _check_folder(dataset, folder)
        self.dataset = dataset
        self.folder = folder
        self.options = options
        self.samples = samples
        self.columns = {name: AnswerColumn(name, _about(name)) for name in models}
        self._searcher = Searcher(dataset, BM25, options)
        record.write(output_folder(folder) / SESSION_FILE)
        self.judged = JudgementLog(folder)
        self.asked = AskedQueries(folder) if keep_queries else None
        self.comparison = SessionComparison(
            dataset, options, samples, self.judged, self.asked, self._searcher.kept
        )
        self.remark = ""
        self.working = False
        self.corpus_version = 1
        self.corpus_remark = ""
        self._is_outdated = False
        self._watch = CorpusWatch(self._searcher.source)
        self.places = FilePlaces(self._searcher)
        self.learned = LearnedColumns(folder)
        self._searching = threading.Lock()
        self._reporting = threading.Lock()
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._results: dict[str, dict[str, Results]] = {}  # query to model to results
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._watching = threading.Thread(
            target=self._watch.run, args=(self._take_in_changes, self._stopping), daemon=True
        )

    def start(self) -> None:
        """Load the models in a thread; BM25 is ready when this returns."""
        column = self.columns.get(BM25)
        if column is not None:
            self._searcher.prepare()
            column.searcher = self._searcher
            column.state = "ready"
        self._thread.start()
        self._watching.start()

    def stop(self, patience: float = 5.0) -> bool:
        """End the work, remove temporary files, and return whether the work ended in time.

        Args:
            patience: seconds to wait.
        """
        self._stopping.set()
        self._changed.set()
        self._thread.join(patience)
        self.comparison.remove_files()
        return not self._thread.is_alive()

    @property
    def verdict(self) -> ShownVerdict | None:
        """Return the latest verdict; None before the first one."""
        return self.comparison.verdict

    def state(self, query: str = "") -> Json:
        """Return the progress of models and verdict, and the grades of a typed query."""
        with self.judged.lock:
            self.judged.refresh()
            grades = self.judged.grades
            judgements: Json = {
                "version": self.judged.version,
                "judged": {"queries": len(grades), "documents": sum(map(len, grades.values()))},
                "can_undo": self.judged.can_undo,
                "grades": dict(grades.get(typed_id(query), {})),
            }
        return {
            **judgements,
            "dataset": self.dataset,
            "documents": len(self._searcher.documents),
            "corpus_version": self.corpus_version,
            "corpus_remark": self.corpus_remark,
            "models": [column.describe() for column in self.columns.values()],
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "working": self.working,
            "remark": self.remark,
            "log": str(self.judged.file),
            "kept": None if self.asked is None else str(self.asked.file),
            "places": self.places.describe(),
            "left_out": self._left_out(),
            "proposed": self._proposed_queries(),
            "learned": self.learned.describe(),
        }

    def _left_out(self) -> Json:
        """Return the number of files that were not read, and the first with their reasons."""
        entries = self._searcher.documents.facts.left_out
        return {"count": len(entries), "files": [asdict(entry) for entry in entries[:_LISTED]]}

    def _proposed_queries(self) -> list[str]:
        """Return queries to ask for someone to whom nothing comes to mind."""
        judged = self.judged.grades
        drawn = self.comparison.drawn
        texts = [
            pair.query
            for (id, _), pair in drawn.items()
            if id not in judged and not self.comparison.was_typed(pair)
        ]
        return list(dict.fromkeys(texts))[:_PROPOSED_QUERIES]

    def search(self, model: str, query: str, kind: str = "", folder: str = "") -> Json:
        """Return a model's ten best documents for a typed query, None until the model is ready.

        Where queries are kept, the models are compared anew at the tenth one, and whenever the
        number of queries has doubled since.

        Args:
            model: the model's name.
            query: the query.
            kind: answer from files of this suffix alone; "" for all.
            folder: answer from files below this folder alone; "" for all.

        Raises:
            InputError: the model is not on the page, or the query is empty or too long.
        """
        column = self.columns.get(model)
        if column is None:
            raise InputError(f"{model} is not one of the models {', '.join(self.columns)}")
        _check_query(query)
        if self.asked is not None:
            self.asked.add(query)
            if self.comparison.has_asked_many():
                self._changed.set()
        if column.searcher is None:
            return {"model": column.describe(), "hits": None}
        with self._searching:
            if kind or folder:
                hits = column.searcher.search_within(query, self.places.within(kind, folder))
            else:
                hits = column.searcher.search(query)
                self._remember(query, model, hits)
        return {"model": column.describe(), "hits": [_shown_hit(hit) for hit in hits]}

    def _remember(self, query: str, model: str, hits: Sequence[Hit]) -> None:
        """Keep the results of the latest queries, from which pairs are proposed."""
        results = {typed_id(query): [(hit.id, hit.score) for hit in hits]}
        by_model = self._results.pop(query, {})
        self._results[query] = {**by_model, model: results}
        while len(self._results) > _REMEMBERED:
            del self._results[next(iter(self._results))]

    def document(self, id: str, query: str = "") -> Json:
        """Return a document with marks at the query's words, for a passage the file around it.

        Raises:
            InputError: the corpus has no such document.
        """
        searcher = self._searcher
        full_text = searcher.full_text(id)  # checks the id
        file = searcher.file_of(id)
        document = searcher.documents[id]
        title = document["title"]
        section = ""
        if file:
            title, _, section = title.partition(ABOVE)
        start = max(full_text.find(document["text"]), 0)
        end = start + len(document["text"])
        texts = {
            "before": full_text[:start],
            "text": full_text[start:end],
            "after": full_text[end:],
        }
        marked = {
            name: list(mark_words(text, query, searcher.analyzer).parts())
            for name, text in texts.items()
        }
        names = {"id": id, "title": title, "section": section, "place": file or id, "file": file}
        return {**names, **marked}

    def file(self, id: str) -> Path:
        """Return the file that a document was read from.

        Raises:
            InputError: the corpus has no such document, or it does not consist of files.
        """
        path = self._searcher.path_of(id)
        if path is None:
            raise InputError(f"{self.dataset} does not consist of files that can be opened")
        return path

    def judge(
        self, document: str, grade: int | None, query: str, query_id: str | None = None
    ) -> None:
        """Write a judgement to the log, for a drawn pair with its probabilities.

        Args:
            document: id of the document.
            grade: one of :data:`GRADES`; None takes a judgement back.
            query: the text that was typed.
            query_id: id of the collection's query, for a pair that was drawn.

        Raises:
            InputError: the grade, the document or the pair does not exist.
        """
        if query_id is None:
            _check_query(query)
        if grade is not None and (grade not in GRADES or isinstance(grade, bool)):
            grades = ", ".join(map(str, GRADES))
            raise InputError(
                f"grade {grade!r} is unknown; give one of {grades}, or null to take a judgement "
                "back"
            )
        if document not in self._searcher.documents:
            raise InputError(
                f"{self.dataset} has no document {quoted(document)}; give the id of a hit"
            )
        if query_id is None:
            self.judged.judge(Asked(query, None), document, grade)
        else:
            self._judge_drawn(document, grade, query_id)
        self._changed.set()

    def _judge_drawn(self, document: str, grade: int | None, query_id: str) -> None:
        drawn = self.comparison.drawn
        pair = drawn.get((query_id, document))
        if pair is None:
            raise InputError(
                f"query {query_id!r} and document {document!r} were not drawn; judge a pair that "
                "was asked for"
            )
        self.judged.judge(
            Asked(pair.query, query_id),
            document,
            grade,
            query_probability=pair.query_probability,
            document_probability=pair.document_probability,
            drawn=sum(id == query_id for id, _ in drawn),
        )

    def undo(self, version: int) -> None:
        """Take back the last judgement, if none came after that version of the log."""
        self.judged.undo(version)
        self._changed.set()

    def learn(self) -> None:
        """Let the models' document vectors learn from the judgements, where that helps."""
        queries = load_collection(self.dataset, labels="optional").queries
        with self._searching:
            self.learned.learn(self._ready_searchers(), self.judged.file, queries)

    def forget(self) -> None:
        """Let all models search as they did before they learned."""
        with self._searching:
            self.learned.forget(self._ready_searchers())

    def _ready_models(self) -> list[str]:
        return [column.name for column in self.columns.values() if column.searcher is not None]

    def _ready_searchers(self) -> list[Searcher]:
        return [column.searcher for column in self.columns.values() if column.searcher is not None]

    def wanted(self, query: str = "") -> list[Json]:
        """Return the pairs that are most worth judging.

        First come documents of typed queries, the present one first, that the two models to be
        distinguished place most differently. Pairs that were drawn from the collection's own
        queries follow.
        """
        self.judged.refresh()
        with self._searching, self.judged.lock:
            pairs = dict.fromkeys([*self._typed_pairs(query), *self.comparison.pairs()])
        proposed: list[Json] = []
        for asked, document in list(pairs)[:_PROPOSED]:
            proposed.append(
                {
                    "query": asked.text,
                    "query_id": asked.query_id,
                    "document": self.document(document, asked.text),
                }
            )
        return proposed

    def _typed_pairs(self, query: str) -> Iterator[tuple[Asked, str]]:
        """Yield pairs of remembered queries, which two models or more have answered.

        Pairs that distinguish the two models of the open question come first.
        """
        preferred: list[str] = []
        verdict = self.verdict
        if verdict is not None:
            preferred = [verdict.best, *verdict.open]
        for text in [query, *reversed(self._results)]:
            by_model = self._results.get(text, {})
            if len(by_model) < 2:
                continue
            names = dict.fromkeys(name for name in (*preferred, *self.columns) if name in by_model)
            grades = self.judged.grades
            for first, second in itertools.combinations(names, 2):
                results = by_model[first], by_model[second]
                for pair in annotation_candidates(*results, grades, _PROPOSED):
                    yield Asked(text), pair.document_id

    @property
    def report_file(self) -> Path:
        """Return the file of the page about the verdict."""
        return self.folder / VERDICT_FOLDER / "report.html"

    def report(self) -> None:
        """Write the verdict, and a page about it, to the folder of the session."""
        from beir_cocodr.report.html.page import write_report

        with self._reporting:
            self.comparison.write(self._ready_models(), self.report_file.parent)
            write_report(self.report_file.parent, overwrite=True)

    def describe(self) -> str:
        """Return how much is judged, and the place of the judgements."""
        with self.judged.lock:
            self.judged.refresh()
            queries = len(self.judged.grades)
            documents = sum(map(len, self.judged.grades.values()))
        if not documents:
            return f"Nothing was judged; judgements would be written to {self.folder}."
        judgements = "1 judgement" if documents == 1 else f"{documents} judgements"
        counts = (
            f"{judgements} of 1 query" if queries == 1 else f"{judgements} of {queries} queries"
        )
        return f"{self.judged.file} contains {counts}; the qrels are beside it."

    def compared(self) -> list[str]:
        """Return the arguments by which ``compare`` reaches the same verdict."""
        settings = self.options.describe()
        defaults = SearchOptions().describe()
        words = list(self.columns)
        for name, value in settings.items():
            if value == defaults.get(name):
                continue
            words.append(described(SearchOptions, name, "flag") or "--" + name.replace("_", "-"))
            if value is not True:
                words.append(str(value))
        if self.asked is not None and self.asked.queries:
            words += ["--asked", str(self.folder)]
        return [*words, "--judgements", str(self.judged.file)]

    def _work(self) -> None:
        """Load the models, then compare them whenever something was judged or much was asked."""
        self.places.count()
        with suppress(_Stopped):
            for column in self.columns.values():
                if column.searcher is None:
                    self._load(column)
            self._changed.set()
            while self._changed.wait() and not self._stopping.is_set():
                self._changed.clear()
                self._reload_outdated()
                self.working = True
                self.remark = self.comparison.update(self._ready_models())
                self.working = False

    def _take_in_changes(self) -> None:
        """Read the files that have changed; BM25 answers from them at once, encoders soon."""
        before = len(self._searcher.documents)
        try:
            searcher = self._searcher.renewed()
            searcher.prepare()
        except InputError as error:
            self.corpus_remark = f"The files have changed and cannot be read: {error}"
            return
        places = FilePlaces(searcher)
        places.count()
        with self._searching:
            self._searcher = searcher
            self.comparison.kept = searcher.kept
            self.places = places
            self._results.clear()
            column = self.columns.get(BM25)
            if column is not None:
                column.searcher = searcher
        now = len(searcher.documents)
        self.corpus_remark = f"The files have changed: {now:,} texts now, {before:,} before."
        self.corpus_version += 1
        self._is_outdated = True
        self._changed.set()

    def _reload_outdated(self) -> None:
        """Let encoders take in what has changed; until then they answer from what was there."""
        if not self._is_outdated:
            return
        self._is_outdated = False
        self.comparison.renew()
        self.learned.renew()
        for column in self.columns.values():
            if column.name != BM25:
                column.done = 0
                self._load(column)

    def _load(self, column: AnswerColumn) -> None:
        """Make a searcher that shares the corpus with the others."""

        def watch(count: int) -> None:
            if self._stopping.is_set():
                raise _Stopped
            column.state = "encoding"
            column.done = min(column.done + count, len(self._searcher.documents))
            column.total = searcher.texts_to_encode()
            column.seconds_left = searcher.seconds_left()

        column.state = "loading"
        try:
            searcher = self._searcher.beside(column.name, watch)
            if searcher.dense is not None:
                searcher.dense.prepare()
            # Some models are fitted to the vectors that are in use.
            with self._searching:
                self.learned.recall(searcher)
            searcher.prepare()
        except _Stopped:
            raise
        except Exception as error:
            column.state = "failed"
            column.remark = first_line(error)
            log.warning("%s: %s", column.name, error, exc_info=not isinstance(error, InputError))
            return
        column.searcher = searcher
        column.state = "ready"


def _check_folder(dataset: str, folder: Path) -> SessionRecord:
    """Check that a folder may hold the judgements of a dataset, and return its record.

    Raises:
        InputError: its files would be read as the dataset's, or it is of another dataset.
    """
    files = Path(dataset.partition("?")[0])
    corpus = real_path(files)
    target = real_path(folder)
    if corpus in (target, *target.parents):
        parts = target.parts[len(corpus.parts) :]
        # Nothing whose name begins with a dot is read as a file of the corpus.
        if not files.is_dir() or not any(part.startswith(".") for part in parts):
            raise InputError(
                f"{folder} lies in {files}, so its judgements would be read as files of the "
                "corpus; choose another --output"
            )
    record = SessionRecord(str(corpus) if files.exists() else dataset)
    if (folder / SESSION_FILE).is_file():
        former = SessionRecord.read(folder / SESSION_FILE)
        check_same_run(folder, vars(former), vars(record))
    return record


def _shown_hit(hit: Hit) -> Json:
    """Return a hit for the page, with marks in its snippet."""
    content: Json = {name: getattr(hit, name) for name in _OF_A_HIT}
    content["snippet"] = list(Snippet(hit.snippet, hit.matches).parts())
    return content


def _about(name: str) -> str:
    """Return what a model compares, in a word or two."""
    kind = ModelSpec.parse(name).kind
    if kind == BM25:
        return "words"
    if kind == "dense":
        return "meaning"
    return "words and meaning" if kind in FUSIONS else kind


def _check_query(query: str) -> None:
    if not query.strip():
        raise InputError("the query is empty; type some words")
    if len(query) > _MOST_CHARACTERS:
        raise InputError(f"the query has {len(query)} characters; shorten it to {_MOST_CHARACTERS}")
