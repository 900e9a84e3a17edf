"""All defects of a collection at once, with 32 bytes remembered of each document."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
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
    """Report every defect of a collection, with file, line and id. An InputError if there is no
    such collection at all.

    Errors are exactly what stops `load_collection` with the same arguments: both read through the
    same readers. Warnings are what it accepts; next to those it counts, they name queries whose
    text is a document's, and every query is looked at, judged or not. Of the corpus, 32 bytes a
    document are kept.

    Args:
        dataset: as for `load_collection`.
        split: the split whose judgements are read; "test" where none is named.
        labels: as for `load_collection`; the default is "required" where a split is named or there
            are judgements, and "optional" for the rest: no labels are no defect.

    Example:
        >>> from beir_cocodr.data.validation import validate
        >>> validate("apidocs/numpy")
        []
    """
    source = resolve_source(dataset, split or "test")
    if labels is None:
        labels = "optional" if split is None and not source.splits() else "required"
    defects: list[Defect] = []
    source.missing(defects.append, labels)
    corpus = _CorpusHashes(source, defects.append)
    if labels != "none":
        join_labels(source, labels, corpus.known, defects.append, report_duplicates)
        corpus.report_queries(defects.append)
    return defects


def summarize(defects: Iterable[Defect]) -> dict[str, int]:
    """How often each kind of defect occurs: errors first, then by falling count."""
    counts: Counter[tuple[Severity, str]] = Counter()
    for defect in defects:
        counts[defect.severity, defect.kind] += defect.times
    order = sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
    return {kind: count for (_, kind), count in order}


class _CorpusHashes:
    """Reads a corpus once, reports its defects, and keeps 32 bytes of each document for later
    checks.

    Ids are compared themselves where hashes meet. Texts are not: that two different ones of ten
    million share a 64-bit hash has a chance of about three in a million, and costs a warning too
    many.
    """

    def __init__(self, source: Source, report: Report) -> None:
        self._source = source
        ids, contents, text_hashes, lines = Repeats(), Repeats(), array("q"), array("q")
        for line, id, title, text in source.documents(report):
            ids.add((id,))
            lines.append(line)
            text_hashes.append(hash(text.strip() or title.strip()))
            if title or text:
                contents.add((hash((title, text)),))
        again = ids.find(lambda: ((line, id, id) for line, id, _, _ in source.documents(ignore)))
        report_duplicates(again, source.documents_file, report)
        again = contents.find(
            lambda: (
                (line, id, hash((title, text)))
                for line, id, title, text in source.documents(ignore)
            )
        )
        for line, id, first in again:
            report(
                warning(
                    "duplicate texts",
                    source.documents_file,
                    f"title and text are line {first}'s",
                    line,
                    id,
                )
            )
        self._ids = np.sort(ids.hashes())
        texts = np.asarray(text_hashes, dtype=np.int64)
        order = np.argsort(texts, kind="stable")
        self._texts = texts[order]
        self._lines = np.asarray(lines, dtype=np.int64)[order]

    def known(self, ids: Sequence[str]) -> Bools:
        """Which of the given ids are documents, bool (M,)."""
        hashes = hashes_of(ids)
        if not len(self._ids):
            return np.zeros(len(ids), dtype=bool)
        places = np.minimum(np.searchsorted(self._ids, hashes), len(self._ids) - 1)
        return cast("Bools", self._ids[places] == hashes)

    def report_queries(self, report: Report) -> None:
        """Report the warnings "query ids equal to document ids" and "query texts equal to document
        texts".
        """
        file = str(self._source.queries_file)
        for line, id, text in self._source.queries(ignore):
            if self.known([id])[0]:
                message = f"a document has the id {id!r} too; say with a policy whether it may be retrieved"
                report(warning("query ids equal to document ids", file, message, line, id))
            wanted = np.int64(hash(text.strip()))
            place = int(self._texts.searchsorted(wanted))
            if text.strip() and place < len(self._texts) and self._texts[place] == wanted:
                message = f"the document on line {self._lines[place]} has the same text; retrieving it is trivial"
                report(warning("query texts equal to document texts", file, message, line, id))
