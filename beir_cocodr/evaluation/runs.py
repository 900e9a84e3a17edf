"""TREC run files: written, read in the order of the file, and read in rank order."""

import logging
import math
import os
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappush, heappushpop
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Bools
from beir_cocodr.data.defects import raise_errors
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.readers import numbered_lines
from beir_cocodr.errors import InputError
from beir_cocodr.io import atomic_writer, file_sha256, json_sha256
from beir_cocodr.models.spec import HTTP, RUN, ModelSpec
from beir_cocodr.records import Json
from beir_cocodr.retrieval.http_settings import HttpSettings
from beir_cocodr.retrieval.ranking import Hits, Ranking, Results

log = logging.getLogger(__name__)

POLICIES = ("auto", "keep", "drop")


def identical_ids(dataset: str, policy: str = "auto") -> str:
    """Return "keep" or "drop" for documents whose id is the query's.

    Args:
        dataset: the name of the collection.
        policy: "keep", "drop", or "auto", which drops them on ArguAna and Quora, where the query
            itself is in the corpus; elsewhere equal ids are an accident of numbering.

    Raises:
        InputError: If the policy is unknown.
    """
    if policy not in POLICIES:
        raise InputError(
            f"unknown policy for identical ids {policy!r}; choose one of {', '.join(POLICIES)}"
        )
    if policy != "auto":
        return policy
    parts = re.split(r"[/:\\]|, ", dataset.lower())
    if any(part in ("arguana", "quora") for part in parts):
        return "drop"
    return "keep"


def write_run(
    path: Path,
    results: Results | Iterator[tuple[str, Hits]],
    tag: str,
) -> None:
    """Write ``query Q0 document rank score tag`` lines, ranks from 1.

    Scores are written so that the same float32, and the same ties, are read back.

    Args:
        path: the file.
        results: query id to hits, or a stream of both.
        tag: the name of the run.
    """
    rows = results.items() if isinstance(results, dict) else results
    with atomic_writer(path) as file:
        for query, hits in rows:
            for rank, (document, score) in enumerate(hits, 1):
                file.write(f"{query} Q0 {document} {rank} {score!r} {tag}\n")


# Characters of a file name without its ending; a character may be several bytes.
_LONGEST = 60


def file_names(
    labels: Iterable[str], specs: Mapping[str, ModelSpec] | None = None
) -> dict[str, str]:
    """Return a unique file name for each label.

    A path gives its last part, without the marks that file systems refuse.

    Args:
        labels: labels of models, or names of datasets.
        specs: label to the model behind it, where it is parsed already.
    """
    names: dict[str, str] = {}
    for label in labels:
        spec = None
        if specs is not None:
            spec = specs[label]
        if spec is None or spec.name != label:
            spec = ModelSpec.parse(label)
        last_part = spec.encoder.rstrip("/").rsplit("/", 1)[-1]
        stem = re.sub(r"[^\w.+-]+", "-", spec.prefix + last_part)
        stem = stem.strip("-.")[:_LONGEST] or "model"
        name = stem
        number = 2
        while name in names.values():
            name = f"{stem}-{number}"
            number += 1
        names[label] = name
    return names


def identity_of_model(spec: ModelSpec) -> str:
    """Return what tells a model from others of its label: its name, or a hash of an object."""
    if spec.kind == RUN and spec.loaded is None:
        return f"run {file_sha256(Path(spec.encoder))}"
    if spec.kind == HTTP:
        return f"{spec.name} {json_sha256(HttpSettings.load(spec.name).describe())}"
    if spec.loaded is None:
        return spec.name
    if spec.kind == RUN:
        return f"run {json_sha256(spec.loaded)}"
    if hasattr(spec.loaded, "state_dict"):
        from beir_cocodr.models.checkpoints.loading import weights_sha256  # loads torch

        return f"{spec.name} {weights_sha256(spec.loaded)}"
    return f"{spec.name} {type(spec.loaded).__qualname__}"


def run_results(spec: ModelSpec) -> Results:
    """Return the results of a run, which is a TREC file or {query id: {document id: score}}."""
    if spec.loaded is None:
        return ranked_run(Path(spec.encoder))
    return ranked(spec.loaded)


def warn_of_unanswered(specs: Iterable[ModelSpec], judged: Iterable[str]) -> None:
    """Warn of runs that lack judged queries, which count as queries without results.

    Args:
        specs: models; only the runs among them are looked at.
        judged: ids of the judged queries.
    """
    queries = list(judged)
    for spec in specs:
        if spec.kind == RUN:
            warn_of_lacking(
                spec.name,
                run_results(spec),
                queries,
                "they count as 0; leave their judgements out if the system was not asked",
            )


def warn_of_lacking(
    name: str, results: Container[str], judged: Collection[str], effect: str
) -> None:
    """Warn of judged queries without results, and say what becomes of them."""
    lacking = [query for query in judged if query not in results]
    if lacking:
        log.warning(
            "%s has no results for %d of %d judged queries, such as %r: %s",
            name,
            len(lacking),
            len(judged),
            lacking[0],
            effect,
        )


class RunRanker:
    """A run as the ranker of the queries that it answers.

    Args:
        spec: the run.
        documents: the corpus; documents of the run that it lacks are left out and counted.
    """

    def __init__(self, spec: ModelSpec, documents: Documents) -> None:
        """Read the run."""
        self.name = spec.name
        self.documents = documents
        self.results = run_results(spec)
        self._described: Json = {}

    def prepare(self) -> None:
        """Do nothing: the run is complete."""

    def answers(self, queries: Iterable[str]) -> Bools:
        """Return (Q,) True for the queries that the run answers."""
        return np.array([query in self.results for query in queries], bool)

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Return what the run has for query ids, and nothing for those that it lacks."""
        candidates = []
        unknown: dict[str, None] = {}
        for query in queries:
            hits = dict(self.results.get(query, ()))
            rows = self.documents.rows(hits)
            scores = np.array(list(hits.values()), np.float32)
            is_known = rows >= 0
            candidates.append((rows[is_known], scores[is_known]))
            for id, row in zip(hits, rows, strict=True):
                if row < 0:
                    unknown[id] = None
        lacking = int((~self.answers(queries)).sum())
        if unknown:
            log.warning(
                "%s: %d of its documents are not in the corpus, such as %r; they are left out",
                self.name,
                len(unknown),
                next(iter(unknown)),
            )
        if lacking:
            log.warning(
                "%s does not answer %d of %d queries, which are left out of its agreement with "
                "others",
                self.name,
                lacking,
                len(queries),
            )
        self._described = {
            "queries_without_results": lacking,
            "documents_not_in_the_corpus": len(unknown),
        }
        return Ranking.of_best(queries, candidates, self.documents.tie_ranks(), top_k)

    def describe(self) -> Json:
        """Return what the last search missed."""
        return {"model": RUN, **self._described}


#: Query id to {document id: score}, in the order of the file.
Run = dict[str, dict[str, float]]


@dataclass(frozen=True)
class _Line:
    """One line of a run, with its file and number."""

    line_name: str
    query: str
    document: str
    score: float


def read_trec_run(path: Path, table: bool = False) -> Run:
    """Read ``query Q0 document rank score tag`` lines, plain or ``.gz``; ranks do not count.

    Args:
        path: the file.
        table: a line may also hold a query, a document and a score, separated by tabs.

    Returns:
        Query id to {document id: score}, in the order of the file.

    Raises:
        InputError: If there is no such file or no line, a line has other columns, an id has a
            control character, a score is no finite number, or a query has a document twice.
    """
    run: Run = {}
    for line in _lines(path, table):
        scores = run.setdefault(line.query, {})
        if line.document in scores:
            raise InputError(
                f"{line.line_name}: document {line.document!r} occurs twice for query "
                f"{line.query!r}; leave one out"
            )
        scores[line.document] = line.score
    if not run:
        raise InputError(f"{path} is empty; a run without results cannot be scored")
    return run


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _lines(path: Path, table: bool = False) -> Iterator[_Line]:
    """Stream the lines of a run."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a TREC run such as evaluate and search write")
    for number, text in numbered_lines(path, raise_errors):
        yield _parse_line(f"{path}:{number}", text, table)
    if not _ends_with_line(path):
        log.warning(
            "%s does not end with a line break; if the file was cut, results are missing: search "
            "again, or add the line break",
            path,
        )


def _ends_with_line(path: Path) -> bool:
    """Return whether a file ends with a line break; a ``.gz`` is taken to do so."""
    if path.suffix == ".gz" or not path.stat().st_size:
        return True
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() in (b"\n", b"\r")


def _parse_line(
    line_name: str,
    text: str,
    table: bool,
) -> _Line:
    columns = text.split("\t") if table and text.count("\t") == 2 else text.split()
    if len(columns) == 6:
        query, _, document, _, number, _ = columns
    elif table and len(columns) == 3:
        query, document, number = columns
    else:
        forms = "a TREC run has six, query Q0 document rank score tag"
        if table:
            forms += "; a table of scores has three, query, document and score"
        raise InputError(f"{line_name}: {len(columns)} columns; {forms}")
    if _CONTROL.search(query + document):  # C readers of runs end an id there
        raise InputError(
            f"{line_name}: id {query!r} or {document!r} has a control character; search again"
        )
    try:
        score = float(number)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(
            f"{line_name}: the score {number!r} is not a finite number; search again, or correct it"
        )
    return _Line(line_name, query, document, score)


def ranked_run(path: Path) -> Results:
    """Read a run in rank order, see :func:`ranked` and :func:`read_trec_run`."""
    return ranked(read_trec_run(path))


def ranked(run: Mapping[str, Mapping[str, float]]) -> Results:
    """Return the documents of each query by descending score, ties by descending id.

    This is the order of trec_eval.
    """
    return {
        query: sorted(
            scores.items(),
            key=lambda hit: (hit[1], hit[0]),
            reverse=True,
        )
        for query, scores in run.items()
    }


def run_tops(
    path: Path,
    depth: int,
    queries: Container[str] | None = None,
) -> dict[str, list[str]]:
    """Read the best documents of each query in rank order, without holding the whole run.

    Args:
        path: the file.
        depth: documents of a query.
        queries: the queries to keep; None keeps all.

    Raises:
        InputError: As for :func:`read_trec_run`.
    """
    best: dict[str, list[tuple[float, str]]] = {}
    for line in _lines(path):
        if queries is not None and line.query not in queries:
            continue
        heap = best.setdefault(line.query, [])
        hit = (line.score, line.document)
        if len(heap) < depth:
            heappush(heap, hit)
        else:
            heappushpop(heap, hit)
    tops = {}
    for query, heap in best.items():
        documents = [document for _, document in sorted(heap, reverse=True)]
        for document in documents:
            if documents.count(document) > 1:
                raise InputError(
                    f"{path}: document {document!r} occurs twice for query {query!r}; leave one out"
                )
        tops[query] = documents
    return tops
