"""The list of all defects of a collection, made with 32 bytes of memory for each document."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from beir_cocodr.arrays import Bools
from beir_cocodr.data.collection import join_labels, resolve_source
from beir_cocodr.data.defects import (
    Defect,
    Repeats,
    Report,
    Severity,
    ignore,
    report_duplicates,
    warning,
)
from beir_cocodr.data.documents import hashes_of
from beir_cocodr.data.sources import Labels, Source

__all__ = ["Defect", "summarize", "validate"]


def validate(
    dataset: str | Path, split: str | None = None, *, labels: Labels | None = None
) -> list[Defect]:
    """List every defect of a collection, with file, line and id.

    Errors are exactly what stops
    :func:`~beir_cocodr.data.collection.load_collection` with the same arguments, because both read
    with the same readers. Warnings are what it accepts. Beyond those that it counts, they name
    queries whose text is that of a document, and every query is checked, judged or not.

    Args:
        dataset: as for ``load_collection``.
        split: the split whose judgements are read. Default: "test".
        labels: as for ``load_collection``. Default: "required" if a split is named or there are
            judgements, otherwise "optional", because a collection without labels is not defective.

    Raises:
        InputError: If there is no such collection.

    Example:
        >>> from beir_cocodr.data.validation import validate
        >>> validate("apidocs/numpy")
        []
    """
    source = resolve_source(dataset, "test" if split is None else split)
    if labels is None:
        labels = "required"
        if split is None and not source.splits():
            labels = "optional"
    defects: list[Defect] = []
    source.missing(defects.append, labels)
    corpus = _CorpusHashes(source, defects.append)
    if labels != "none":
        join_labels(
            source=source,
            labels=labels,
            known=corpus.known,
            report=defects.append,
            report_duplicates=report_duplicates,
        )
        corpus.report_queries(defects.append)
    return defects


def summarize(defects: Iterable[Defect]) -> dict[str, int]:
    """Count each kind of defect, errors first, then by falling count."""
    counts: Counter[tuple[Severity, str]] = Counter()
    for defect in defects:
        counts[defect.severity, defect.kind] += defect.times

    def sort_key(item: tuple[tuple[Severity, str], int]) -> tuple[Severity, int, str]:
        (severity, kind), count = item
        return severity, -count, kind

    order = sorted(counts.items(), key=sort_key)
    return {kind: count for (_, kind), count in order}


class _CorpusHashes:
    """Hashes of a corpus, 32 bytes for each document, for checks after it was read.

    Ids with equal hashes are compared themselves. Texts are not: two different texts among ten
    million share a 64-bit hash with a probability of about three in a million, which costs one
    wrong warning.
    """

    def __init__(self, source: Source, report: Report) -> None:
        self._source = source
        ids = Repeats()
        contents = Repeats()
        text_hashes = array("q")
        lines = array("q")
        for line, id, title, text in source.documents(report):
            ids.add((id,))
            lines.append(line)
            searched = text.strip() or title.strip()
            text_hashes.append(hash(searched))
            if title or text:
                content = hash((title, text))
                contents.add((content,))
        repeated_ids = ids.find(self._ids_again)
        report_duplicates(repeated_ids, source.documents_file, report)
        for line, id, first_line in contents.find(self._contents_again):
            message = f"title and text are those of line {first_line}"
            report(warning("duplicate texts", source.documents_file, message, line, id))
        self._ids = np.sort(ids.hashes())
        texts = np.asarray(text_hashes, dtype=np.int64)
        order = np.argsort(texts, kind="stable")
        self._texts = texts[order]
        self._lines = np.asarray(lines, dtype=np.int64)[order]

    def _ids_again(self) -> Iterator[tuple[int, str, str]]:
        for line, id, _, _ in self._source.documents(ignore):
            yield line, id, id

    def _contents_again(self) -> Iterator[tuple[int, str, int]]:
        for line, id, title, text in self._source.documents(ignore):
            yield line, id, hash((title, text))

    def known(self, ids: Sequence[str]) -> Bools:
        """Return which of the given ids are documents, bool (M,)."""
        hashes = hashes_of(ids)
        if not len(self._ids):
            return np.zeros(len(ids), dtype=bool)
        last = len(self._ids) - 1
        positions = np.searchsorted(self._ids, hashes).clip(max=last)
        return cast("Bools", self._ids[positions] == hashes)

    def report_queries(self, report: Report) -> None:
        """Report queries whose id or text is that of a document, as warnings."""
        file = str(self._source.queries_file)
        for line, id, text in self._source.queries(ignore):
            if self.known([id])[0]:
                message = (
                    f"a document has the id {id!r} too; say with --identical-ids whether it may be "
                    "retrieved"
                )
                report(warning("query ids equal to document ids", file, message, line, id))
            document_line = self._line_with_text(text.strip())
            if document_line is not None:
                message = (
                    f"the document on line {document_line} has the same text; retrieving it is "
                    "trivial"
                )
                report(warning("query texts equal to document texts", file, message, line, id))

    def _line_with_text(self, text: str) -> int | None:
        """Return the line of the first document with a text, None if there is none."""
        if not text:
            return None
        wanted = np.int64(hash(text))
        position = int(self._texts.searchsorted(wanted))
        if position < len(self._texts) and self._texts[position] == wanted:
            return int(self._lines[position])
        return None
