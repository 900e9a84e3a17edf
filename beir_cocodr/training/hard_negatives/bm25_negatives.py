"""Relevant documents of queries, and BM25's hard negatives: its best other documents."""

import hashlib
import json
import logging
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from beir_cocodr import io as files
from beir_cocodr.arrays import Ints
from beir_cocodr.checksums import is_kept
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import hashed_documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import gather
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.bm25 import BM25, QueryBlock
from beir_cocodr.retrieval.vectors.pool import share_over_ranks

log = logging.getLogger(__name__)

# Queries of a file of BM25's negatives.
_QUERIES = 1_000

# Seconds that a document takes of the search for one query.
_SECONDS_A_DOCUMENT = 1e-9


def _rows_of_relevant(collection: Collection) -> list[Ints]:
    """Return the corpus rows of grade above 0 for each query; -1 for an unknown document."""
    relevant: list[list[str]] = []
    for query in collection.queries:
        grades = collection.qrels.get(query, {})
        of_query = [document for document, grade in grades.items() if grade > 0]
        relevant.append(of_query)
    documents = list(chain.from_iterable(relevant))
    rows = collection.documents.rows(documents)
    lengths = [len(of_query) for of_query in relevant]
    ends = np.cumsum(lengths)
    return np.split(rows, ends[:-1])


def relevant_rows(collection: Collection) -> dict[str, Ints]:
    """Return query id to its corpus rows of grade above 0, for queries that have some.

    Raises:
        InputError: No query has any.
    """
    relevant_of: dict[str, Ints] = {}
    rows_of_queries = _rows_of_relevant(collection)
    for query, rows in zip(collection.queries, rows_of_queries, strict=False):
        known = rows[rows >= 0]
        if len(known):
            relevant_of[query] = known
    if not relevant_of:
        raise InputError(
            f"{collection.name}: no query of split {collection.split} has a relevant document; "
            "choose another split, or check the ids of its judgements"
        )
    return relevant_of


def check_negatives(name: str, count: int, collection: Collection) -> None:
    """Check that a corpus has as many documents as an option asks for of a query.

    Raises:
        InputError: It has fewer, and documents would be repeated for hours.
    """
    documents = len(collection.documents)
    if count > documents:
        raise InputError(
            f"{name} {count} exceeds the {documents} documents of {collection.name}; lower it"
        )


def bm25_negatives(
    collection: Collection, text_format: TextFormat, depth: int = 30, seed: int = 42
) -> dict[str, Ints]:
    """Return query id to the corpus rows that BM25 ranks best, without relevant ones.

    All processes of a run call this and share the work, also with their other cores. The result is
    kept in the cache by what it depends on, block by block, so neither a resumed run nor a second
    stage searches again. Memory holds 4 bytes a document in each process beside the index, which is
    mapped from the disk.

    Args:
        collection: a corpus with queries and judgements.
        text_format: how BM25 reads documents.
        depth: most rows of a query.
        seed: draws the documents of queries for which BM25 finds none; these are counted.

    Returns:
        Query id to (1..depth,) int64 corpus rows, best first.

    Raises:
        InputError: Every document is relevant to a query.
    """
    positives = _rows_of_relevant(collection)
    depth = min(depth, len(collection.documents))
    with hashed_documents(collection.documents) as documents:
        bm25 = BM25(documents, text_format)
        index = bm25.keep(files.cache_folder("bm25"))
        texts = list(collection.queries.values())
        search = _BlockedSearch(index, depth, bm25, texts, positives)
        blocks = [np.load(file) for file in search.files()]
        rows = np.concatenate(blocks).astype(np.int64)
    rng = np.random.default_rng(seed)
    pools: dict[str, Ints] = {}
    drawn = 0
    for query, positive, best in zip(collection.queries, positives, rows, strict=True):
        pool = best[best >= 0]
        if not len(pool):
            pool = _random_others(len(collection.documents), positive, depth, rng)
            drawn += 1
        if not len(pool):
            raise InputError(
                f"every document is relevant to query {query!r}, so it has no negative; "
                "leave it out, or add documents"
            )
        pools[query] = pool
    if drawn:
        log.info(
            "BM25 finds no negative for %d of %d queries; their negatives are random",
            drawn,
            len(pools),
        )
    return pools


def _random_others(
    size: int,
    positive: Ints,
    depth: int,
    rng: np.random.Generator,
) -> Ints:
    """Draw up to ``depth`` of ``size`` corpus rows that are not relevant."""
    enough = min(size, depth + len(positive))
    drawn = rng.choice(size, enough, replace=False)
    others: Ints = np.setdiff1d(drawn, positive)
    return others[:depth]


@dataclass
class _BlockedSearch:
    """BM25's best documents for queries in files of (1,000, depth) int32 rows, padded with -1.

    Attributes:
        index: the folder of the index.
        depth: documents of a query.
        bm25: the index.
        texts: the queries.
        positives: corpus rows that are left out, for each query.
    """

    index: Path
    depth: int
    bm25: BM25
    texts: list[str]
    positives: list[Ints]

    def __post_init__(self) -> None:
        settings = f"{self.index.name} {self.depth} {_QUERIES}"
        digest = hashlib.sha256(settings.encode())
        for text, rows in zip(self.texts, self.positives, strict=True):
            identity = json.dumps([text, sorted(rows.tolist())])
            digest.update(identity.encode())
        name = digest.hexdigest()[:32]
        self.folder = self.index.parent / f"negatives-{name}"

    @property
    def blocks(self) -> int:
        """Return the number of files."""
        return -(-len(self.texts) // _QUERIES)

    def file(self, number: int) -> Path:
        """Return the place of a block."""
        return self.folder / f"block-{number:05}.npy"

    def files(self) -> list[Path]:
        """Return all files in the order of the queries; missing ones are searched for."""
        missing_here = [n for n in range(self.blocks) if not is_kept(self.file(n))]
        missing_somewhere = chain(*gather(missing_here))
        missing = sorted(set(missing_somewhere))
        if not missing:
            log.info("BM25's negatives are read from %s", self.folder)
        with files.filling_cache(self.index.parent):
            self.folder.mkdir(exist_ok=True)
            blocks = [self._block(number) for number in missing]
            queries = min(_QUERIES, len(self.texts))
            seconds = queries * len(self.bm25.documents) * _SECONDS_A_DOCUMENT
            start = partial(QueryBlock.start, self.index)
            share_over_ranks(
                tasks=blocks,
                start=start,
                is_done=lambda block: is_kept(block.file),
                seconds=seconds,
                desc="BM25 negatives",
            )
        return [self.file(number) for number in range(self.blocks)]

    def _block(self, number: int) -> QueryBlock:
        first = number * _QUERIES
        part = slice(first, first + _QUERIES)
        return QueryBlock(
            self.file(number),
            terms=self.bm25.terms(self.texts[part]),
            excluded=self.positives[part],
            depth=self.depth,
        )
