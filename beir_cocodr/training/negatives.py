"""Hard negatives: a model's or BM25's best documents, no known positives; filters take likely false
negatives out.
"""

import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap

from beir_cocodr import io as files
from beir_cocodr.arrays import Bools, Floats, Ints
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import Documents, hashed_documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import gather, on_main, rank, wait_for_all, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.progress import Bar
from beir_cocodr.records import Json
from beir_cocodr.retrieval.bm25 import BM25, QueryBlock
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.retrieval.pool import share_over_ranks
from beir_cocodr.training.options import FinetuneOptions

log = logging.getLogger(__name__)
# Documents hashed, queries encoded, and queries searched at a time; each block of these reads the
# corpus once.
_CHUNK, _BATCH, _QUERY_BLOCK = 20_000, 64, 10_000


def text_keys(documents: Documents, text_format: TextFormat) -> npt.NDArray[np.uint64]:
    """(N,) 64-bit hashes of the documents' texts; two texts of 9 million share one with a
    probability of 2e-6.
    """
    keys = np.empty(len(documents), np.uint64)
    row = 0
    for chunk in documents.chunks(_CHUNK):
        for document in chunk:
            text = text_format.document(document).encode()
            keys[row] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
            row += 1
    return keys


#: The folder of a finished mining.
MINED = "mined"
_RECORD, _ROWS, _EMBEDDINGS, _CORPUS = "mined.json", "rows.npy", "query_embeddings.npy", "corpus"


class MiningCounts(TypedDict):
    """Counts of queries and candidates in mining; by filter, how many it removed, and which share
    of those left.
    """

    queries: int
    queries_without_positive: int  # not mined
    candidates: int
    positives: int  # candidates dropped because they are relevant
    removed: dict[str, int]
    removal_rates: dict[str, float]
    queries_without_negative: int


@dataclass(frozen=True)
class MinedNegatives:
    """Negatives of queries, with the query embeddings that found them; both arrays are
    memory-mapped.

    Attributes:
        queries: (Q,) ids of the queries that have a relevant document in the corpus, in collection
            order.
        rows: (Q, keep) int64 corpus rows, best first, -1 where a query has fewer.
        embeddings: (Q, d) float32 of the queries; normalised where the model compares by cosine.
        counts: see :class:`MiningCounts`.
    """

    queries: list[str]
    rows: Ints
    embeddings: Floats
    counts: MiningCounts

    def pools(self) -> dict[str, Ints]:
        """Query id to its (1..keep,) corpus rows, best first, for queries that have a negative."""
        pools = {
            query: np.array(row[row >= 0])
            for query, row in zip(self.queries, self.rows, strict=True)
        }
        return {query: pool for query, pool in pools.items() if len(pool)}


def mine_negatives(
    collection: Collection,
    model: COCODR,
    folder: Path,
    options: FinetuneOptions,
    episode: int = 0,
    key: Mapping[str, object] | None = None,
    progress: bool = False,
) -> MinedNegatives:
    """Search the corpus with the model itself, and draw negatives from the best documents of each
    query. All processes of a run call this: each encodes its share of a large corpus and searches
    for its share of the queries.

    Of the top ``mining_depth`` documents all that are relevant to the query (grade above 0) are
    dropped, then what the filters remove, and ``mining_keep`` of the rest are drawn at random by
    (seed, episode, place of the query). Memory holds a shard of the encoded corpus, a block of
    queries, and some 30 bytes a document for ids, ties and texts.

    Args:
        collection: with queries and qrels.
        model: the encoder as trained so far.
        folder: the result is kept in its subfolder ``mined``, which appears when it is complete;
            until then the store of a large corpus stands beside it, and with a ``key`` a killed run
            goes on with its shards.
        options: depth, number, seed and filters.
        key: identifies weights, corpus, queries and judgements. A finished result in ``folder``
            with the same key and options is loaded instead, any other is mined anew and replaced.
            None never loads.

    Raises:
        InputError: no query with a relevant document, or no query keeps a negative.
        NonFiniteScores: the model gives NaN or infinite scores.

    Source: COCO-DR, section 4.2, after ANCE (Xiong et al., 2021): depth 200, 30 kept. The published
    loader knows one positive a query, so that others can become its negatives; here none can.
    """
    identity: Json = {
        "key": None if key is None else dict(key),
        "depth": options.mining_depth,
        "keep": options.mining_keep,
        "seed": options.seed,
        "episode": episode,
        "filters": options.active,
        "text_format": model.text_format.as_dict(),
        "similarity": model.similarity_fn_name,
    }
    finished = files.output_folder(folder) / MINED
    on_main(lambda: files.remove_unfinished(folder))  # of a run that was killed
    if on_main(lambda: key is not None and _saved(finished, identity) is not None):
        log.info(
            "%s, episode %d: negatives mined before are taken from %s",
            collection.name,
            episode,
            finished,
        )
        return _read(finished)[1]
    with ExitStack() as stack:
        draft = on_main(lambda: stack.enter_context(files.draft_folder(finished, replace=True)))
        corpus = draft.with_name("corpus")
        if key is not None:  # what was encoded outlives a kill
            named = files.json_sha256({**identity, "device": model.device.type})
            corpus = finished.with_name(f"{_CORPUS}-{named[:16]}")
        on_main(lambda: _remove_stores(finished.parent, corpus))
        dense = Dense(model, collection.documents, corpus, _BATCH, progress, shared=True)
        mining = _Mining(collection, dense, options, episode)
        counts = mining.run(draft, progress)
        record = {"identity": identity, "counts": counts, "queries": list(mining.positives)}
        on_main(
            lambda: files.write_text(draft / _RECORD, json.dumps(record, ensure_ascii=False) + "\n")
        )
        on_main(lambda: _remove_stores(finished.parent))
    wait_for_all()  # until the first has put it in its place
    log.info("%s, episode %d: %s", collection.name, episode, _format_counts(counts))
    return _read(finished)[1]


def _remove_stores(folder: Path, kept: Path | None = None) -> None:
    for store in folder.glob(f"{_CORPUS}-*"):
        if store != kept:
            shutil.rmtree(store)


@dataclass
class _Mining:
    """One search of all queries and the draw from what it finds."""

    collection: Collection
    dense: Dense
    options: FinetuneOptions
    episode: int

    def __post_init__(self) -> None:
        self.positives = relevant_rows(self.collection)
        self.counts: Counter[str] = Counter()
        self.texts = np.zeros(0, np.uint64)

    def run(self, folder: Path, progress: bool) -> MiningCounts:
        """Write rows and query embeddings to ``folder``; returns the counts."""
        self.dense.prepare()
        if self.options.duplicates:
            self.texts = text_keys(self.collection.documents, self.dense.model.text_format)
        ids, device = list(self.positives), self.dense.model.device
        kinds = [
            (folder / _ROWS, np.int64, self.options.mining_keep),
            (folder / _EMBEDDINGS, np.float32, self.dense.embeddings.dimensions),
        ]

        def make() -> None:
            for file, kind, width in kinds:
                open_memmap(file, mode="w+", dtype=kind, shape=(len(ids), width)).flush()

        on_main(make)
        rows, embeddings = (open_memmap(file, mode="r+") for file, _, _ in kinds)
        size = min(_QUERY_BLOCK, -(-len(ids) // world_size()))
        starts = range(0, len(ids), size)[rank() :: world_size()]
        for start in Bar(
            starts, "Hard negatives", unit=" blocks", disable=rank() > 0 or not progress
        ):
            block = slice(start, start + size)
            vectors = self.dense.encode_queries([self.collection.queries[id] for id in ids[block]])
            embeddings[block] = vectors.numpy()
            asked = vectors.to(device) if device.type == "cuda" else vectors
            found = self.dense.search_embeddings(ids[block], asked, self.options.mining_depth)
            for place, (id, scores, best) in enumerate(
                zip(ids[block], found.scores, found.rows, strict=True), start
            ):
                rows[place] = self._drawn(
                    self._negatives(id, scores, best, embeddings[place]), place
                )
        rows.flush()
        embeddings.flush()
        self.counts = sum(gather(self.counts), Counter())
        return on_main(self._checked_counts)

    def _negatives(self, id: str, scores: Floats, rows: Ints, vector: Floats) -> Ints:
        """The rows of one query's candidates, best first, that are not relevant and that no filter
        removes.
        """
        options, positives, texts = self.options, self.positives[id], self.texts
        left = np.ones(len(rows), dtype=bool)

        def drop(name: str, wrong: Bools) -> None:
            self.counts[name] += int((left & wrong).sum())
            left[wrong] = False

        self.counts["candidates"] += len(rows)
        drop("positives", np.isin(rows, positives))
        if options.relative_margin is not None:
            best = float((self.dense.embeddings.rows(positives).numpy() @ vector).max())
            drop("relative_margin", scores > best - abs(best) * options.relative_margin)
        if options.max_score is not None:
            drop("max_score", scores > options.max_score)
        if options.duplicates:
            drop("duplicates", np.isin(texts[rows], texts[positives]))
            places = np.flatnonzero(left)
            _, first = np.unique(texts[rows[places]], return_index=True)
            drop("duplicates", ~np.isin(np.arange(len(rows)), places[first]))
        return rows[left]

    def _drawn(self, negatives: Ints, place: int) -> Ints:
        """(keep,) of the negatives, in their order, padded with -1."""
        keep = self.options.mining_keep
        if len(negatives) > keep:
            rng = np.random.default_rng((self.options.seed, self.episode, place))
            negatives = negatives[np.sort(rng.choice(len(negatives), keep, replace=False))]
        self.counts["queries_without_negative"] += not len(negatives)
        return np.pad(negatives, (0, keep - len(negatives)), constant_values=-1)

    def _checked_counts(self) -> MiningCounts:
        active, found = self.options.active, self.counts
        counts: MiningCounts = {
            "queries": len(self.positives),
            "queries_without_positive": len(self.collection.queries) - len(self.positives),
            "candidates": found["candidates"],
            "positives": found["positives"],
            "removed": {name: found[name] for name in active},
            "removal_rates": {
                n: found[n] / max(1, found["candidates"] - found["positives"]) for n in active
            },
            "queries_without_negative": found["queries_without_negative"],
        }
        if found["queries_without_negative"] == len(self.positives):
            on = ", ".join(f"{name} {value}" for name, value in active.items())
            way = f"loosen the filters ({on}) or raise" if on else "raise"
            raise InputError(
                f"{self.collection.name}: no query keeps a negative ({_format_counts(counts)}); {way} the depth, "
                f"which is {self.options.mining_depth}"
            )
        return counts


def relevant_rows(collection: Collection) -> dict[str, Ints]:
    """Query id to its corpus rows of grade above 0, where there are some; an InputError where no
    query has any.
    """
    found = {}
    for query in collection.queries:
        relevant = [
            document for document, grade in collection.qrels.get(query, {}).items() if grade > 0
        ]
        rows = collection.documents.rows(relevant)
        if (rows >= 0).any():
            found[query] = rows[rows >= 0]
    if not found:
        raise InputError(
            f"{collection.name}: no query of split {collection.split} has a relevant document"
        )
    return found


def _format_counts(counts: MiningCounts) -> str:
    removed = "".join(
        f", {name} removed {count} ({counts['removal_rates'][name]:.1%})"
        for name, count in counts["removed"].items()
    )
    return (
        f"{counts['queries']} queries, {counts['queries_without_positive']} left out without a relevant "
        f"document; {counts['candidates']} candidates, {counts['positives']} relevant ones dropped{removed}; "
        f"{counts['queries_without_negative']} queries without a negative"
    )


def _saved(folder: Path, identity: Json) -> MinedNegatives | None:
    """What is in ``folder`` if it is whole and was made for ``identity``."""
    if not folder.exists():
        return None
    try:
        found, mined = _read(folder)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read (%s); negatives are mined anew", folder, error)
        return None
    now = json.loads(json.dumps(identity))  # as it looks when read back
    if changed := [name for name in now if found.get(name) != now[name]]:
        log.info("%s was mined with other %s; negatives are mined anew", folder, ", ".join(changed))
        return None
    return mined


def _read(folder: Path) -> tuple[Json, MinedNegatives]:
    """The identity of a finished mining and its result; whatever is wrong with it raises."""
    record = files.parse_json((folder / _RECORD).read_text(encoding="utf-8"))
    rows, embeddings = (np.load(folder / file, mmap_mode="r") for file in (_ROWS, _EMBEDDINGS))
    if not len(rows) == len(embeddings) == len(record["queries"]):
        raise ValueError("its files are of different lengths")
    return record["identity"], MinedNegatives(record["queries"], rows, embeddings, record["counts"])


def check_negatives(name: str, count: int, collection: Collection) -> None:
    """Check that a corpus has as many documents as an option asks for of a query: else they repeat,
    for hours.
    """
    if count > len(collection.documents):
        raise InputError(
            f"{name} {count} is more than the {len(collection.documents)} documents of {collection.name}"
        )


# Queries of a file of BM25's negatives; and how long a document takes of a query's search, in
# seconds.
_QUERIES, _SECONDS = 1_000, 1e-9


def bm25_negatives(
    collection: Collection, text_format: TextFormat, depth: int = 30, seed: int = 42
) -> dict[str, Ints]:
    """Query id to its best (1..depth,) int64 corpus rows by BM25, best first, all known positives
    removed; an InputError where every document is relevant. Where BM25 finds none, documents are
    drawn by ``seed``, and counted.

    All processes of a run call this, and share the work, also with their other cores. It is kept in
    the cache by what it depends on, block by block: neither a run that goes on nor a second stage
    searches again. Memory holds 4 bytes a document in each process beside the index, which is
    mapped from the disk.
    """
    queries, size = collection.queries, len(collection.documents)
    relevant = [
        [d for d, grade in collection.qrels.get(query, {}).items() if grade > 0]
        for query in queries
    ]
    positives = np.split(
        collection.documents.rows(chain(*relevant)), np.cumsum([*map(len, relevant)])[:-1]
    )
    with hashed_documents(collection.documents) as documents:
        bm25 = BM25(documents, text_format)
        searching = _Searching(
            bm25.keep(files.cache_folder("bm25")), depth, bm25, list(queries.values()), positives
        )
        found = np.concatenate([np.load(file) for file in searching.files()])
    rng = np.random.default_rng(seed)
    pools, drawn = {}, 0
    for query, positive, rows in zip(queries, positives, found.astype(np.int64), strict=True):
        pool = rows[rows >= 0]
        if not len(pool):
            others = np.setdiff1d(
                rng.choice(size, min(size, depth + len(positive)), replace=False), positive
            )
            if not len(others):
                raise InputError(
                    f"every document is relevant to query {query!r}, so it has no negative"
                )
            pool, drawn = others[:depth], drawn + 1
        pools[query] = pool
    if drawn:
        log.info(
            "BM25 found no negative for %d of %d queries; theirs are random", drawn, len(pools)
        )
    return pools


@dataclass
class _Searching:
    """BM25's best documents for queries, without their positives, in files of (1,000, depth) int32
    rows, -1 behind.

    Args:
        index: the folder of the index.
        bm25, texts, positives: the index, and of each query its text and relevant rows.
    """

    index: Path
    depth: int
    bm25: BM25
    texts: list[str]
    positives: list[Ints]

    def __post_init__(self) -> None:
        digest = hashlib.sha256(f"{self.index.name} {self.depth} {_QUERIES}".encode())
        for text, rows in zip(self.texts, self.positives, strict=True):
            digest.update(json.dumps([text, sorted(rows.tolist())]).encode())
        self.folder = self.index.parent / f"negatives-{digest.hexdigest()[:32]}"

    @property
    def blocks(self) -> int:
        return -(-len(self.texts) // _QUERIES)

    def file(self, number: int) -> Path:
        return self.folder / f"block-{number:05}.npy"

    def files(self) -> list[Path]:
        """All of them, in the order of the queries, made if need be."""
        here = [number for number in range(self.blocks) if not self.file(number).is_file()]
        missing = sorted(set(chain(*gather(here))))
        if not missing:
            log.info("BM25's negatives are taken from %s", self.folder)
        with files.filling_cache(self.index.parent):
            self.folder.mkdir(exist_ok=True)
            asked = [
                QueryBlock(self.file(number), *self._block(number), self.depth)
                for number in missing
            ]
            seconds = min(_QUERIES, len(self.texts)) * len(self.bm25.documents) * _SECONDS
            start = partial(QueryBlock.start, self.index)
            share_over_ranks(
                asked, start, lambda block: block.file.is_file(), seconds, "BM25 negatives"
            )
        return [self.file(number) for number in range(self.blocks)]

    def _block(self, number: int) -> tuple[list[list[int]], list[Ints]]:
        block = slice(number * _QUERIES, (number + 1) * _QUERIES)
        return self.bm25.terms(self.texts[block]), self.positives[block]
