"""Hard negatives that a model mines itself: its best documents that are not relevant.

Filters remove what is likely to be a false negative.
"""

import hashlib
import json
import logging
import math
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap

from beir_cocodr import io as files
from beir_cocodr.arrays import Bools, Floats, Ints
from beir_cocodr.checksums import add_checksums, is_sound
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import gather, on_main, rank, wait_for_all, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.progress import Bar
from beir_cocodr.records import Json
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.same_run import differences
from beir_cocodr.training.hard_negatives.bm25_negatives import relevant_rows
from beir_cocodr.training.options import MiningOptions

log = logging.getLogger(__name__)

# Documents hashed at a time, queries encoded at a time, and queries searched at a time. Each block
# of the last reads the corpus once.
_CHUNK = 20_000
_BATCH = 64
_QUERY_BLOCK = 10_000

#: The folder of a finished mining.
MINED = "mined"
_RECORD = "mined.json"
_ROWS = "rows.npy"
_EMBEDDINGS = "query_embeddings.npy"
_FILES = (_RECORD, _ROWS, _EMBEDDINGS)
_CORPUS = "corpus"


def text_keys(documents: Documents, text_format: TextFormat) -> npt.NDArray[np.uint64]:
    """Return (N,) 64-bit hashes of the documents' texts.

    Two texts of 9 million share one with a probability of 2e-6.
    """
    keys = np.empty(len(documents), np.uint64)
    row = 0
    for chunk in documents.chunks(_CHUNK):
        for document in chunk:
            text = text_format.document(document).encode()
            digest = hashlib.blake2b(text, digest_size=8).digest()
            keys[row] = int.from_bytes(digest, "little")
            row += 1
    return keys


class MiningCounts(TypedDict):
    """Counts of queries and candidates in mining.

    Attributes:
        queries: queries that were mined for.
        queries_without_positive: queries that were not, as no document is relevant to them.
        candidates: documents found.
        positives: candidates dropped because they are relevant.
        removed: filter to the candidates that it removed.
        removal_rates: filter to its share of the candidates that are not relevant.
        queries_without_negative: queries that keep none.
    """

    queries: int
    queries_without_positive: int
    candidates: int
    positives: int
    removed: dict[str, int]
    removal_rates: dict[str, float]
    queries_without_negative: int


@dataclass(frozen=True)
class MinedNegatives:
    """Negatives of queries, with the query embeddings that found them; both are memory-mapped.

    Attributes:
        queries: (Q,) ids of the queries with a relevant document in the corpus, in the order of
            the collection.
        rows: (Q, keep) int64 corpus rows, best first, -1 where a query has fewer.
        embeddings: (Q, d) float32 embeddings of the queries; normalised where the model compares
            by cosine.
        counts: see :class:`MiningCounts`.
    """

    queries: list[str]
    rows: Ints
    embeddings: Floats
    counts: MiningCounts

    def pools(self) -> dict[str, Ints]:
        """Return query id to its (1..keep,) rows, best first, for queries with a negative."""
        pools: dict[str, Ints] = {}
        for query, rows in zip(self.queries, self.rows, strict=True):
            pool = np.array(rows[rows >= 0])
            if len(pool):
                pools[query] = pool
        return pools


@dataclass(frozen=True)
class MiningDraw:
    """The random numbers of a mining.

    Attributes:
        seed: the seed of the training.
        episode: the episode, which has draws of its own.
    """

    seed: int = 42
    episode: int = 0


def mine_negatives(
    collection: Collection,
    model: COCODR,
    folder: Path,
    options: MiningOptions,
    draw: MiningDraw = MiningDraw(),
    key: Mapping[str, object] | None = None,
    progress: bool = False,
) -> MinedNegatives:
    """Search the corpus with the model itself, and draw negatives from each query's best documents.

    All processes of a run call this: each encodes its share of a large corpus and searches for its
    share of the queries. Of a query's best ``depth`` documents, all relevant ones (grade above 0)
    are dropped, then those that a filter removes; ``keep`` of the rest are drawn at random by seed,
    episode and place of the query. Memory holds a shard of the encoded corpus, a block of queries,
    and some 30 bytes a document for ids, ties and texts.

    Args:
        collection: a corpus with queries and judgements.
        model: the encoder as trained so far.
        folder: the result is kept in its subfolder ``mined``, which appears when it is complete.
            Until then the store of a large corpus lies beside it, and with a ``key`` a killed run
            is resumed with its shards.
        options: depth, number and filters.
        draw: seed and episode.
        key: identifies weights, corpus, queries and judgements. A finished result in ``folder``
            with the same key and options is loaded, and any other is mined anew and replaced. None
            never loads.
        progress: show bars on stderr.

    Raises:
        InputError: No query has a relevant document, or no query keeps a negative.
        NonFiniteScores: The model gives NaN or infinite scores.

    References:
        COCO-DR, section 4.2, after ANCE (Xiong et al., 2021): depth 200, 30 kept. The published
        loader knows one positive a query, so that others can become its negatives; here none can.
    """
    identity = _identity(model, options, draw, key)
    finished = files.output_folder(folder) / MINED
    on_main(lambda: files.remove_unfinished(folder))  # left by a killed run
    is_finished = on_main(lambda: key is not None and _saved(finished, identity) is not None)
    if is_finished:
        log.info(
            "%s, episode %d: negatives mined before are read from %s",
            collection.name,
            draw.episode,
            finished,
        )
        return _read(finished)[1]
    with ExitStack() as stack:
        drafting = files.draft_folder(finished, replace=True)
        draft = on_main(lambda: stack.enter_context(drafting))
        corpus = draft.with_name(_CORPUS)
        if key is not None:  # what was encoded outlives a kill
            identity_of_store = {**identity, "device": model.device.type}
            digest = files.json_sha256(identity_of_store)
            corpus = finished.with_name(f"{_CORPUS}-{digest[:16]}")
        on_main(lambda: _remove_stores(finished.parent, corpus))
        dense = Dense(
            model=model,
            documents=collection.documents,
            folder=corpus,
            batch_size=_BATCH,
            progress=progress,
            shared=True,
        )
        mining = _Mining(collection, dense, options, draw)
        counts = mining.run(draft, progress)
        record = {
            "identity": identity,
            "counts": counts,
            "queries": list(mining.positives),
        }
        text = json.dumps(record, ensure_ascii=False) + "\n"
        on_main(lambda: _write_record(draft, text))
        on_main(lambda: _remove_stores(finished.parent))
    wait_for_all()  # until the first process has put the folder in its place
    log.info("%s, episode %d: %s", collection.name, draw.episode, _format_counts(counts))
    _, mined = _read(finished)
    return mined


def _identity(
    model: COCODR,
    options: MiningOptions,
    draw: MiningDraw,
    key: Mapping[str, object] | None,
) -> Json:
    """Return what the negatives depend on; see :func:`mine_negatives`."""
    return {
        "key": None if key is None else dict(key),
        "depth": options.depth,
        "keep": options.keep,
        "seed": draw.seed,
        "episode": draw.episode,
        "filters": options.active,
        "text_format": model.text_format.as_dict(),
        "similarity": model.similarity_fn_name,
    }


def _write_record(draft: Path, text: str) -> None:
    files.write_text(draft / _RECORD, text)
    add_checksums(draft, _FILES)


def _remove_stores(folder: Path, kept: Path | None = None) -> None:
    for store in folder.glob(f"{_CORPUS}-*"):
        if store != kept:
            shutil.rmtree(store)


@dataclass
class _Mining:
    """One search for all queries, and the draw from what it finds."""

    collection: Collection
    dense: Dense
    options: MiningOptions
    draw: MiningDraw

    def __post_init__(self) -> None:
        self.positives = relevant_rows(self.collection)
        self.counts: Counter[str] = Counter()
        self.texts = np.zeros(0, np.uint64)

    def run(self, folder: Path, progress: bool) -> MiningCounts:
        """Write rows and query embeddings to ``folder``, and return the counts."""
        self.dense.prepare()
        if self.options.duplicates:
            self.texts = text_keys(self.collection.documents, self.dense.model.text_format)
        ids = list(self.positives)
        on_main(lambda: self._make_files(folder, len(ids)))
        rows = open_memmap(folder / _ROWS, mode="r+")
        embeddings = open_memmap(folder / _EMBEDDINGS, mode="r+")
        queries_of_process = math.ceil(len(ids) / world_size())
        size = min(_QUERY_BLOCK, queries_of_process)
        starts = range(0, len(ids), size)
        bar = Bar(
            starts[rank() :: world_size()],
            "Hard negatives",
            unit=" blocks",
            disable=rank() > 0 or not progress,
        )
        for start in bar:
            block = slice(start, start + size)
            self._mine_block(ids, block, rows, embeddings)
        rows.flush()
        embeddings.flush()
        self.counts = sum(gather(self.counts), Counter())
        return on_main(self._checked_counts)

    def _make_files(self, folder: Path, queries: int) -> None:
        """Make the files that all processes write to."""
        rows = open_memmap(
            folder / _ROWS,
            mode="w+",
            dtype=np.int64,
            shape=(queries, self.options.keep),
        )
        rows.flush()
        embeddings = open_memmap(
            folder / _EMBEDDINGS,
            mode="w+",
            dtype=np.float32,
            shape=(queries, self.dense.embeddings.dimensions),
        )
        embeddings.flush()

    def _mine_block(
        self,
        ids: list[str],
        block: slice,
        rows: Ints,
        embeddings: Floats,
    ) -> None:
        """Encode a block of queries, search for them, and write both results."""
        device = self.dense.model.device
        block_ids = ids[block]
        texts = [self.collection.queries[id] for id in block_ids]
        vectors = self.dense.encode_queries(texts)
        embeddings[block] = vectors.numpy()
        queries = vectors
        if device.type == "cuda":
            queries = vectors.to(device)
        ranking = self.dense.search_embeddings(block_ids, queries, self.options.depth)
        ranked = zip(block_ids, ranking.scores, ranking.rows, strict=True)
        for number, (id, scores, best) in enumerate(ranked, block.start):
            negatives = self._negatives(id, scores, best, embeddings[number])
            rows[number] = self._drawn(negatives, number)

    def _negatives(
        self,
        id: str,
        scores: Floats,
        rows: Ints,
        vector: Floats,
    ) -> Ints:
        """Return the rows of a query's candidates that are not relevant or filtered, best first."""
        options = self.options
        positives = self.positives[id]
        left = np.ones(len(rows), dtype=bool)

        def drop(name: str, wrong: Bools) -> None:
            dropped = left & wrong
            self.counts[name] += int(dropped.sum())
            left[wrong] = False

        self.counts["candidates"] += len(rows)
        drop("positives", np.isin(rows, positives))
        if options.relative_margin is not None:
            positive_vectors = self.dense.embeddings.rows(positives).numpy()
            best = float((positive_vectors @ vector).max())
            most = best - abs(best) * options.relative_margin
            drop("relative_margin", scores > most)
        if options.max_score is not None:
            drop("max_score", scores > options.max_score)
        if options.duplicates:
            texts = self.texts
            drop("duplicates", np.isin(texts[rows], texts[positives], kind="sort"))
            places = np.flatnonzero(left)
            _, first = np.unique(texts[rows[places]], return_index=True)
            is_first = np.zeros(len(rows), bool)
            is_first[places[first]] = True
            drop("duplicates", ~is_first)
        return rows[left]

    def _drawn(self, negatives: Ints, number: int) -> Ints:
        """Return (keep,) of the negatives, in their order, padded with -1."""
        keep = self.options.keep
        if len(negatives) > keep:
            seed = (self.draw.seed, self.draw.episode, number)
            rng = np.random.default_rng(seed)
            places = rng.choice(len(negatives), keep, replace=False)
            negatives = negatives[np.sort(places)]
        if not len(negatives):
            self.counts["queries_without_negative"] += 1
        missing = keep - len(negatives)
        return np.pad(negatives, (0, missing), constant_values=-1)

    def _checked_counts(self) -> MiningCounts:
        """Return the counts; an InputError if no query keeps a negative."""
        tally = self.counts
        filters = self.options.active
        others = max(1, tally["candidates"] - tally["positives"])
        counts: MiningCounts = {
            "queries": len(self.positives),
            "queries_without_positive": len(self.collection.queries) - len(self.positives),
            "candidates": tally["candidates"],
            "positives": tally["positives"],
            "removed": {name: tally[name] for name in filters},
            "removal_rates": {name: tally[name] / others for name in filters},
            "queries_without_negative": tally["queries_without_negative"],
        }
        if tally["queries_without_negative"] == len(self.positives):
            listed = ", ".join(f"{name} {value}" for name, value in filters.items())
            way_out = "raise"
            if listed:
                way_out = f"loosen the filters ({listed}) or raise"
            raise InputError(
                f"{self.collection.name}: no query keeps a negative ({_format_counts(counts)}); "
                f"{way_out} the depth (mining_depth), which is {self.options.depth}"
            )
        return counts


def _format_counts(counts: MiningCounts) -> str:
    removed = "".join(
        f", {name} removed {count} ({counts['removal_rates'][name]:.1%})"
        for name, count in counts["removed"].items()
    )
    return (
        f"{counts['queries']} queries, {counts['queries_without_positive']} left out without a "
        f"relevant document; {counts['candidates']} candidates, {counts['positives']} relevant "
        f"ones dropped{removed}; {counts['queries_without_negative']} queries without a negative"
    )


def _saved(folder: Path, identity: Json) -> MinedNegatives | None:
    """Return what is in ``folder`` if it is complete and was made for ``identity``."""
    paths = [folder / name for name in _FILES]
    if not folder.exists() or not is_sound(*paths):
        return None
    try:
        before, mined = _read(folder)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read (%s); negatives are mined again", folder, error)
        return None
    changed = differences(before, identity)
    if changed:
        names = ", ".join(changed)
        log.info("%s was mined with different %s; negatives are mined again", folder, names)
        return None
    return mined


def _read(folder: Path) -> tuple[Json, MinedNegatives]:
    """Return the identity of a finished mining and its result; whatever is wrong with it raises."""
    record = files.parse_json((folder / _RECORD).read_text(encoding="utf-8"))
    queries = record["queries"]
    rows = np.load(folder / _ROWS, mmap_mode="r")
    embeddings = np.load(folder / _EMBEDDINGS, mmap_mode="r")
    if not len(rows) == len(embeddings) == len(queries):
        raise ValueError("its files have different lengths")
    mined = MinedNegatives(queries, rows, embeddings, record["counts"])
    return record["identity"], mined
