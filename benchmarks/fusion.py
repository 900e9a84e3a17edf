"""Claim: fusing scores in one pass for a block of queries takes less time and less memory.

Vectors are random, in a store in fp16. The postings of BM25 are those of pieces of the
documentation of installed packages, repeated, in files that are mapped. The rival reads the corpus
for every query and normalises all its scores, as fusion did before 2026-11-22. Each size is a
process of its own. Memory is the most that a process holds beyond mapped files, less what it held
before, which includes the 8 bytes a document that the order of equal scores takes.

The script prints seconds a query and memory of both ways, and writes
``benchmarks/results/fusion.json``:

    OMP_NUM_THREADS=2 python benchmarks/fusion.py --work DIR [--documents 1250000 5000000]
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from harness.measure import AllocatedMemory, run_child, say, timed
from harness.script import add_work, option_parser, origin, write_results
from harness.texts import SOURCES, pieces_with_ids, write_corpus

from beir_cocodr import load_collection
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion import Hybrid, weighted_mean, z_normalize
from beir_cocodr.retrieval.postings import Postings
from beir_cocodr.retrieval.ranking import best_rows
from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodedBy, StoreRecord
from beir_cocodr.retrieval.store.shard import pack
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.dense import Dense

WIDTH = 64
TOP_K = 100
SEED = 0
#: Words of a query.
WORDS = 6
#: Options that a process of one size gets.
NAMES = ("queries", "rival_queries", "pieces")


class NumberedDocuments:
    """Documents that are no more than their number; of two equal ones, the later comes first."""

    def __init__(self, count: int) -> None:
        self.ranks = np.arange(count)[::-1].copy()  # in memory, as a corpus holds them

    def __len__(self) -> int:
        return len(self.ranks)

    def tie_ranks(self) -> np.ndarray:
        return self.ranks


def repeat_bm25(
    work: Path,
    documents: int,
    pieces: int,
) -> tuple[BM25, list[str]]:
    """Make BM25 of pieces that are repeated until there are enough documents.

    Returns:
        BM25, and the texts of the pieces.
    """
    corpus = work / "corpus.jsonl"
    texts = list(pieces_with_ids(pieces))
    write_corpus(corpus, texts)
    bm25 = BM25(load_collection(str(corpus), labels="none").documents)
    bm25.prepare()
    bm25._postings = repeat_postings(
        bm25.postings,
        work,
        documents,
        pieces,
    )
    bm25.documents = NumberedDocuments(documents)  # type: ignore[assignment]
    return bm25, texts


def repeat_postings(
    postings: Postings,
    work: Path,
    documents: int,
    pieces: int,
) -> Postings:
    """Repeat postings of a corpus in files that are mapped."""
    times = documents // pieces
    arrays = {}
    for name in ("rows", "weights"):
        values = getattr(postings, name)
        shape = (len(values) * times,)
        path = work / f"{name}.npy"
        arrays[name] = np.lib.format.open_memmap(
            path,
            "w+",
            values.dtype,
            shape,
        )
    shifts = (np.arange(times) * pieces).astype(postings.rows.dtype)[:, None]
    starts = postings.starts.tolist()
    for first, last in pairwise(starts):
        of_term = slice(first * times, last * times)
        arrays["rows"][of_term] = (postings.rows[first:last] + shifts).ravel()
        arrays["weights"][of_term] = np.tile(postings.weights[first:last], times)
    return Postings(
        postings.vocabulary,
        documents,
        postings.starts * times,
        arrays["rows"],
        arrays["weights"],
        postings.most,
    )


def write_random_store(folder: Path, documents: int) -> EmbeddingStore:
    """Write a store of random vectors."""
    rng = np.random.default_rng(SEED)
    identity = {
        "similarity": "dot",
        "precision": "fp16",
        "shard_size": SHARD_SIZE,
    }
    store = EmbeddingStore(
        folder,
        StoreRecord(
            identity,
            EncodedBy(None),
            documents,
            WIDTH,
        ),
    )
    folder.mkdir()
    store.write_record()
    for shard in store.shards:
        vectors = rng.standard_normal((len(shard), WIDTH), dtype=np.float32)
        shard.write(pack(vectors, "fp16"))
    return store


def search_query_by_query(
    hybrid: Hybrid,
    queries: dict[str, str],
    vectors: torch.Tensor,
) -> np.ndarray:
    """Return (Q, k) scores as fusion computed them before: with a pass for every query."""
    ties = hybrid.dense.documents.tie_ranks()
    scores = []
    for vector, text in zip(vectors, queries.values(), strict=True):
        chunks = hybrid.dense.embeddings.chunks()
        dense = np.concatenate([(vector[None] @ chunk.T).numpy() for chunk in chunks], axis=1)
        lexical = z_normalize(hybrid.bm25.scores(text)[None])
        [fused] = weighted_mean(z_normalize(dense), lexical, hybrid.bm25_weight)
        fused = fused.astype(np.float32)
        scores.append(fused[best_rows(fused, ties, TOP_K)])
    return np.stack(scores)


def measure_cost(call: Callable[[], Any], queries: int) -> tuple[dict[str, float], Any]:
    """Return the seconds a query and the memory of a call, and its result."""
    with AllocatedMemory() as memory:
        result, timing = timed(call)
    cost = {
        "seconds_a_query": timing.wall / queries,
        "processor_seconds_a_query": timing.processor / queries,
        "memory_mib": round(memory.peak_mib - memory.before_mib),
    }
    return cost, result


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both ways over one number of documents, in this process."""
    [documents] = options.documents
    bm25, texts = repeat_bm25(options.work, documents, options.pieces)
    store = write_random_store(options.work / "store", documents)
    model: Any = SimpleNamespace(similarity_fn_name="dot")
    hybrid = Hybrid(
        Dense(
            model,
            bm25.documents,
            options.work,
            given=store,
        ),
        bm25,
    )
    rng = np.random.default_rng(SEED + 1)
    queries = {}
    for number, row in enumerate(rng.integers(options.pieces, size=options.queries).tolist()):
        queries[str(number)] = " ".join(texts[row].split()[:WORDS])
    shape = (options.queries, WIDTH)
    vectors = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
    few = options.rival_queries
    few_queries = dict(list(queries.items())[:few])
    first_query = {"0": queries["0"]}

    moments, _ = measure_cost(lambda: hybrid.dense.moments, 1)
    block, ranking = measure_cost(lambda: hybrid.rank(queries, vectors, TOP_K), len(queries))
    one, _ = measure_cost(lambda: hybrid.rank(first_query, vectors[:1], TOP_K), 1)
    before, scores = measure_cost(
        lambda: search_query_by_query(hybrid, few_queries, vectors[:few]), few
    )
    ratio = before["processor_seconds_a_query"] / block["processor_seconds_a_query"]
    return {
        "documents": documents,
        "moments": moments,
        "block": block,
        "one_query": one,
        "query_by_query": before,
        "times_as_fast": ratio,
        "largest_difference": float(np.abs(scores - ranking.scores[:few]).max()),
    }


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "fusion")
    add_work(parser)
    parser.add_argument(
        "--documents",
        type=int,
        nargs="+",
        default=[1_250_000, 5_000_000],
    )
    parser.add_argument(
        "--queries",
        type=int,
        default=64,
    )
    parser.add_argument(
        "--rival-queries",
        type=int,
        default=4,
        help="Queries for the rival, which takes longer.",
    )
    parser.add_argument(
        "--pieces",
        type=int,
        default=25_000,
        help="Pieces of text to repeat.",
    )
    parser.add_argument(
        "--child",
        action="store_true",
        help=argparse.SUPPRESS,
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.child:
        say(measure(options))
        return
    runs = []
    for count in options.documents:
        work = Path(tempfile.mkdtemp(dir=options.work))
        values = {name: getattr(options, name) for name in NAMES}
        environment = os.environ | {"BEIR_COCODR_CACHE": str(work / "cache")}
        child = {
            "child": True,
            "documents": count,
            "work": work,
            **values,
        }
        runs.append(run_child(__file__, child, environment))
        print(runs[-1], flush=True)
        shutil.rmtree(work)
    results = origin(threads=torch.get_num_threads()) | {
        "seed": SEED,
        "sizes": {
            "dimensions": WIDTH,
            "queries": options.queries,
            "top_k": TOP_K,
            "words": WORDS,
            "sources": SOURCES,
        },
        "runs": runs,
    }
    write_results(options.results, results)


if __name__ == "__main__":
    main()
