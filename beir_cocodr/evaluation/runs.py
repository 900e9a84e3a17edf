"""TREC run files: written, read as they stand, and read in rank order."""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from heapq import heappush, heappushpop
from pathlib import Path

from beir_cocodr.data.defects import raise_errors
from beir_cocodr.data.readers import numbered_lines
from beir_cocodr.errors import InputError
from beir_cocodr.io import atomic_writer, json_sha256
from beir_cocodr.models.spec import RUN, ModelSpec
from beir_cocodr.retrieval.ranking import Hits, Results

POLICIES = ("auto", "keep", "drop")


def identical_ids(dataset: str, policy: str = "auto") -> str:
    """Whether a document whose id equals the query's is kept or dropped: "keep" or "drop". "auto"
    drops on ArguAna and Quora, where the query itself stands in the corpus; elsewhere equal ids are
    an accident of numbering.
    """
    if policy not in POLICIES:
        raise InputError(
            f"unknown policy for identical ids {policy!r}; there are {', '.join(POLICIES)}"
        )
    if policy != "auto":
        return policy
    parts = re.split(r"[/:\\]|, ", dataset.lower())
    return "drop" if any(part in ("arguana", "quora") for part in parts) else "keep"


def write_run(path: Path, results: Results | Iterator[tuple[str, Hits]], tag: str) -> None:
    """Write ``query Q0 document rank score tag`` lines, ranks from 1; results may come as a stream.

    Scores are written so that reading them back gives the same float32, and with it the same ties.
    """
    with atomic_writer(path) as file:
        for query, found in results.items() if isinstance(results, dict) else results:
            for rank, (document, score) in enumerate(found, 1):
                file.write(f"{query} Q0 {document} {rank} {score!r} {tag}\n")


# Characters of a name, which may have endings, and bytes more than characters.
_LONGEST = 60


def file_names(
    labels: Iterable[str], specs: Mapping[str, ModelSpec] | None = None
) -> dict[str, str]:
    """Return a unique file name for each label.

    Of a path the last part is taken, without the marks that file systems refuse.

    Args:
        labels: labels of models, or names of datasets.
        specs: label to the model behind it, where it is parsed already.
    """
    names: dict[str, str] = {}
    for label in labels:
        spec = None if specs is None else specs[label]
        if spec is None or spec.name != label:
            spec = ModelSpec.parse(label)
        stem = spec.prefix + spec.encoder.rstrip("/").rsplit("/", 1)[-1]
        stem = re.sub(r"[^\w.+-]+", "-", stem).strip("-.")[:_LONGEST] or "model"
        name = stem
        number = 2
        while name in names.values():
            name = f"{stem}-{number}"
            number += 1
        names[label] = name
    return names


def identity_of_model(spec: ModelSpec) -> str:
    """Return what tells a model from others of its label: its name, or a hash of an object."""
    if spec.loaded is None:
        return spec.name
    if spec.kind == RUN:
        return f"run {json_sha256(spec.loaded)}"
    if hasattr(spec.loaded, "state_dict"):
        from beir_cocodr.models.loading import weights_sha256  # loads torch

        return f"{spec.name} {weights_sha256(spec.loaded)}"
    return f"{spec.name} {type(spec.loaded).__qualname__}"


def run_results(spec: ModelSpec) -> Results:
    """Return the results of a run, which is a TREC file or {query id: {document id: score}}."""
    return ranked_run(Path(spec.name)) if spec.loaded is None else ranked(spec.loaded)


#: Query id to {document id: score}, in the order of the file.
Run = dict[str, dict[str, float]]


def read_trec_run(path: Path, table: bool = False) -> Run:
    """Read ``query Q0 document rank score tag`` lines, plain or ``.gz``, in the order of the file;
    ranks do not count. An InputError: no such file, a line with other columns, an id with a control
    character, a score that is no finite number, a document that a query has twice, or no line at
    all.

    With ``table`` a line may also hold a query, a document and a score.
    """
    run: Run = {}
    for place, query, document, score in _hits(path, table):
        found = run.setdefault(query, {})
        if document in found:
            raise InputError(
                f"{place}: document {document!r} stands twice for query {query!r}; leave one out"
            )
        found[document] = score
    if not run:
        raise InputError(f"{path} is empty; a run without results cannot be scored")
    return run


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _hits(path: Path, table: bool = False) -> Iterator[tuple[str, str, str, float]]:
    """Place, query, document and score of every line."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a TREC run such as evaluate and search write")
    for number, line in numbered_lines(path, raise_errors):
        place, columns = (
            f"{path}:{number}",
            line.split("\t") if table and line.count("\t") == 2 else line.split(),
        )
        if len(columns) != 6 and not (table and len(columns) == 3):
            wanted = "a TREC run has six, query Q0 document rank score tag"
            wanted += "; a table of scores has three, query, document and score" if table else ""
            raise InputError(f"{place}: {len(columns)} columns; {wanted}")
        query, document, text = (
            (columns[0], columns[2], columns[4]) if len(columns) == 6 else columns
        )
        if _CONTROL.search(query + document):  # C readers of runs end an id there
            raise InputError(
                f"{place}: id {query!r} or {document!r} has a control character; search again"
            )
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise InputError(
                f"{place}: the score {text!r} is not a finite number; search again, or correct it"
            )
        yield place, query, document, score


def ranked_run(path: Path) -> Results:
    """Documents by descending score, ties by descending id as in trec_eval; errors as in
    :func:`read_trec_run`.
    """
    return ranked(read_trec_run(path))


def ranked(run: Mapping[str, Mapping[str, float]]) -> Results:
    """Return the documents of each query by descending score, ties by descending id."""
    return {
        query: sorted(scores.items(), key=lambda hit: (hit[1], hit[0]), reverse=True)
        for query, scores in run.items()
    }


def run_tops(path: Path, depth: int, queries: Container[str] | None = None) -> dict[str, list[str]]:
    """Query id to its ``depth`` best documents, in the order of :func:`ranked_run` and with its
    errors, without holding the whole TREC run; only of the ``queries`` that matter.
    """
    found: dict[str, list[tuple[float, str]]] = {}
    for _, query, document, score in _hits(path):
        if queries is None or query in queries:
            hits = found.setdefault(query, [])
            (heappush if len(hits) < depth else heappushpop)(hits, (score, document))
    tops = {
        query: [document for _, document in sorted(hits, reverse=True)]
        for query, hits in found.items()
    }
    for query, documents in tops.items():
        if len(set(documents)) < len(documents):
            twice = next(document for document in documents if documents.count(document) > 1)
            raise InputError(
                f"{path}: document {twice!r} stands twice for query {query!r}; leave one out"
            )
    return tops
