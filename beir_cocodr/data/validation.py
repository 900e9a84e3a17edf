"""All defects of a collection at once, with 32 bytes remembered of each document."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.collection import join_labels, resolve_source
from beir_cocodr.data.defects import Defect, DuplicateIds, Report, Severity, ignore, report_duplicates
from beir_cocodr.data.documents import hashes_of
from beir_cocodr.data.sources import Labels, Source

Hashes = npt.NDArray[np.int64]


class CorpusHashes:
    """Reads a corpus once and keeps 32 bytes of each document, so that later checks can ask for it.

    Ids are compared themselves where hashes meet. Texts are not: that two different ones of ten million share a 64-bit
    hash has a chance of about three in a million, and costs a warning too many.

    Args:
        source: where to read.
        report: gets the defects of the corpus, among them the error "duplicate ids" and the warning "duplicate texts".
    """

    def __init__(self, source: Source, report: Report) -> None:
        self._source = source
        ids = DuplicateIds()
        id_hashes, text_hashes, contents, lines = array("q"), array("q"), array("q"), array("q")
        for line, id, title, text in source.documents(report):
            ids.add((id,))
            id_hashes.append(hash(id))
            lines.append(line)
            text_hashes.append(hash(_searchable(title, text)))
            if title or text:
                contents.append(hash((title, text)))
        duplicates = ids.find(lambda: ((line, id) for line, id, _, _ in source.documents(ignore)))
        report_duplicates(duplicates, source.documents_file, report)
        self._report_duplicate_texts(_sorted(contents), report)
        self._ids = _sorted(id_hashes)
        texts = np.asarray(text_hashes, dtype=np.int64)
        order = np.argsort(texts, kind="stable")
        self._texts = texts[order]
        self._lines = np.asarray(lines, dtype=np.int64)[order]

    def known(self, ids: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which of the given ids are documents, bool (M,)."""
        return _contained(hashes_of(ids), self._ids)

    def report_queries(self, report: Report) -> None:
        """Report the warnings "query ids equal to document ids" and "query texts equal to document texts"."""
        file = str(self._source.queries_file)
        for line, id, text in self._source.queries(ignore):
            if self.known([id])[0]:
                message = f"a document has the id {id!r} too; say with a policy whether it may be retrieved"
                report("warning", "query ids equal to document ids", file, line, id, message)
            wanted = np.int64(hash(text.strip()))
            place = int(self._texts.searchsorted(wanted))
            if text.strip() and place < len(self._texts) and self._texts[place] == wanted:
                message = f"the document on line {self._lines[place]} has the same text; retrieving it is trivial"
                report("warning", "query texts equal to document texts", file, line, id, message)

    def _report_duplicate_texts(self, contents: Hashes, report: Report) -> None:
        suspects = set(contents[1:][contents[1:] == contents[:-1]].tolist())
        if not suspects:
            return
        first_lines: dict[int, int] = {}
        for line, id, title, text in self._source.documents(ignore):
            content = hash((title, text))
            if content in suspects:
                first_line = first_lines.setdefault(content, line)
                if first_line != line:
                    message = f"the same title and text as on line {first_line}"
                    report("warning", "duplicate texts", self._source.documents_file, line, id, message)


def _searchable(title: str, text: str) -> str:
    return text.strip() or title.strip()


def _sorted(values: Sequence[int]) -> Hashes:
    return np.sort(np.asarray(values, dtype=np.int64))


def _contained(values: Hashes, ordered: Hashes) -> npt.NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(values), dtype=bool)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return cast("npt.NDArray[np.bool_]", ordered[places] == values)


__all__ = ["Defect", "summarize", "validate"]


def validate(dataset: str | Path, split: str = "test", *, labels: Labels | None = None) -> list[Defect]:
    """Report every defect of a collection, with file, line and id.

    Errors are exactly what `load_collection` refuses with the same arguments: both read through the same readers.
    Warnings are what it accepts; next to those it counts, they name queries whose text is a document's, and every query
    is looked at, judged or not. Of the corpus, 32 bytes a document are kept.

    Args:
        dataset: as for `load_collection`.
        split: the split whose judgements are read; without "required" labels it may be absent.
        labels: as for `load_collection`; the default is "required", and "none" for a lone corpus file.

    Raises:
        InputError: if there is no such collection at all.

    Example:
        >>> from beir_cocodr.data.validation import validate
        >>> validate("apidocs/numpy")
        []
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
        self, severity: Severity, kind: str, file: str, line: int | None, id: str | None, message: str, times: int = 1
    ) -> None:
        self.list.append(Defect(severity, kind, file, line, id, message, times))
