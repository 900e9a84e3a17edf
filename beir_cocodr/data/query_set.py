"""The queries of a collection, without what looking up its documents takes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np

from beir_cocodr.data.files.corpus_cache import converted_corpus
from beir_cocodr.data.files.duplicates import refuse_duplicates
from beir_cocodr.data.files.file_source import FileSource
from beir_cocodr.data.files.strict_report import StrictReport
from beir_cocodr.data.labels import join_labels
from beir_cocodr.data.resolve import resolve_source
from beir_cocodr.errors import InputError

log = logging.getLogger(__name__)


class QuerySet(NamedTuple):
    """Query id to text, and the content hash of the corpus that they are asked of."""

    queries: dict[str, str]
    corpus_hash: str


def load_queries(dataset: str | Path, split: str = "test") -> QuerySet:
    """The queries that :func:`load_collection` gives: the judged ones of a split, in the order of the file.

    A collection without any judgements gives all its queries. No index of document ids is made.

    Raises:
        InputError: the collection cannot be found or read, it has no queries, or judgements of other splits
            only.
    """
    source = resolve_source(dataset, split)
    report = StrictReport(source.name)
    source.missing(report, "optional")
    if source.judgements_file is None and isinstance(source, FileSource) and source.splits():
        source.missing(report, "required")  # a split that is misspelt must not become all queries
    corpus = converted_corpus(source).documents
    joined = join_labels(source, "optional", lambda ids: np.ones(len(ids), dtype=bool), report)
    refuse_duplicates(joined.duplicate_queries, str(source.queries_file), report)
    if not joined.queries:
        raise InputError(f"{source.name} has no queries of split {split!r} to search for")
    if source.judgements_file is None:
        log.info("%s has no judgements: all %d queries are taken", source.name, len(joined.queries))
    return QuerySet(joined.queries, corpus.content_hash)
