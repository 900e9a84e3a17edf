"""All defects of a collection at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from beir_cocodr.data.files.corpus_hashes import CorpusHashes
from beir_cocodr.data.files.defects import Defect, Severity
from beir_cocodr.data.files.duplicates import report_duplicates
from beir_cocodr.data.labels import join_labels
from beir_cocodr.data.resolve import resolve_source
from beir_cocodr.data.source import Labels

__all__ = ["Defect", "summarize", "validate"]


def validate(dataset: str | Path, split: str = "test", *, labels: Labels | None = None) -> list[Defect]:
    """Report every defect of a collection, with file, line and id.

    Errors are exactly what `load_collection` refuses with the same arguments: both read through the same
    readers. Warnings are what it accepts; next to those it counts, they name queries whose text is a
    document's, and every query is looked at, judged or not. Of the corpus, 32 bytes a document are kept.

    Args:
        dataset: as for `load_collection`.
        split: the split whose judgements are read; without "required" labels it may be absent.
        labels: as for `load_collection`; the default is "required", and "none" for a lone corpus file.

    Raises:
        InputError: if there is no such collection at all.
    """
    source = resolve_source(dataset, split)
    if labels is None:
        labels = "none" if Path(dataset).is_file() else "required"
    defects = _Collected()
    source.missing(defects, labels)
    corpus = CorpusHashes(source, defects)
    if labels != "none":
        joined = join_labels(source, labels, corpus.known, defects)
        report_duplicates(joined.duplicate_queries, str(source.queries_file), defects)
        corpus.report_queries(defects)
    return defects.list


def summarize(defects: Iterable[Defect]) -> dict[str, int]:
    """How often each kind of defect occurs: errors first, then by falling count."""
    counts: dict[tuple[Severity, str], int] = {}
    for defect in defects:
        key = (defect.severity, defect.kind)
        counts[key] = counts.get(key, 0) + defect.times
    order = sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
    return {kind: count for (_, kind), count in order}


class _Collected:
    """A `Report` that keeps everything."""

    def __init__(self) -> None:
        self.list: list[Defect] = []

    def __call__(
        self,
        severity: Severity,
        kind: str,
        file: str,
        line: int | None,
        id: str | None,
        message: str,
        times: int = 1,
    ) -> None:
        self.list.append(Defect(severity, kind, file, line, id, message, times))
