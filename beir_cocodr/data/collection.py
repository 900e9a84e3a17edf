"""A collection: documents, queries and judgements of a split."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.corpus_cache import converted_corpus
from beir_cocodr.data.files.duplicates import refuse_duplicates
from beir_cocodr.data.files.strict_report import StrictReport
from beir_cocodr.data.labels import join_labels
from beir_cocodr.data.resolve import resolve_source
from beir_cocodr.data.source import Labels

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collection:
    """A loaded collection. ``(c.documents, c.queries, c.qrels)`` is the triple that BEIR works on, what its
    ``GenericDataLoader(folder).load(split)`` returns.

    Attributes:
        name: as the user gave it.
        documents: the corpus, memory-mapped.
        queries: query id -> text: the judged queries of the split in the order of the queries file, all
            queries if there are no judgements, {} for a lone corpus.
        qrels: query id -> {document id: grade}, for those queries; {} when absent.
        split: the split of the judgements, None where there are none.
        counts: what was accepted and counted, by kind (the kinds of `Defect`); only what occurred.
    """

    name: str
    documents: Documents
    queries: dict[str, str] = field(repr=False)
    qrels: dict[str, dict[str, int]] = field(repr=False)
    split: str | None
    counts: dict[str, int] = field(default_factory=dict)


def load_collection(dataset: str | Path, split: str = "test", *, labels: Labels = "required") -> Collection:
    """Load a collection; the first time its corpus is converted to Arrow, from then on it is mapped.

    Accepted and counted, among others: null or absent titles, title-only and empty documents, duplicate
    texts, CRLF, judgements of unknown queries (left out) and of unknown documents (kept, as in trec_eval),
    query ids equal to document ids.

    Args:
        dataset: a BEIR folder, a lone corpus file, ``irds:ID``, ``apidocs/DOMAIN`` or a BEIR short name; the
            first that fits, in this order.
        split: the split of the judgements.
        labels: "required" refuses a collection without queries or without the split; "optional" takes what is
            there; "none" does not look at queries and judgements.

    Raises:
        InputError: for a collection that cannot be found, broken JSON, bytes that are not UTF-8, missing or
            duplicate ids, white space in ids, grades that are not integers, an empty corpus, a missing split.
    """
    source = resolve_source(dataset, split)
    report = StrictReport(source.name)
    source.missing(report, labels)
    corpus = converted_corpus(source)
    documents = corpus.documents
    report.counts.update(corpus.counts)
    if labels == "none":
        return _said(Collection(source.name, documents, {}, {}, None, dict(report.counts)))

    def known(ids: Sequence[str]) -> npt.NDArray[np.bool_]:
        return documents.rows(ids) >= 0

    joined = join_labels(source, labels, known, report)
    refuse_duplicates(joined.duplicate_queries, str(source.queries_file), report)
    equal_ids = int(np.count_nonzero(known(list(joined.queries))))
    report.counts.update(Counter({"query ids equal to document ids": equal_ids} if equal_ids else {}))
    return _said(
        Collection(source.name, documents, joined.queries, joined.qrels, source.split, dict(report.counts))
    )


def _said(collection: Collection) -> Collection:
    """Whatever was accepted and counted is said as well."""
    for kind, count in collection.counts.items():
        log.info("%s: %s: %d", collection.name, kind, count)
    return collection
