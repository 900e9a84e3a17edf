"""Fusion over millions of documents: time a query and memory, in one pass for a block of queries
and query by query.

Vectors are random, in a store in fp16; the postings of BM25 are those of pieces of the installed
packages' documentation, repeated, in files that are mapped. The rival reads the corpus for every
query and normalises all scores of it, as fusion did before 2026-11-22. Each size is a process of
its own. Memory is what a process holds beyond files that it maps, at most, less what it held
before, which includes the 8 bytes a document of a corpus's tie ranks. Writes
benchmarks/results/fusion.json. Run as:

    OMP_NUM_THREADS=2 python benchmarks/fusion.py --work DIR [--documents 1250000 5000000]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from fuse_scale import SOURCES, texts
from machine import machine

from beir_cocodr import load_collection
from beir_cocodr.io import write_text
from beir_cocodr.records import versions
from beir_cocodr.retrieval.bm25 import BM25, Postings
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.retrieval.fusion import Hybrid, weighted_mean, z_normalize
from beir_cocodr.retrieval.ranking import best_rows
from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodedBy, StoreRecord
from beir_cocodr.retrieval.store.shard import pack
from beir_cocodr.retrieval.store.store import EmbeddingStore

RESULTS = Path(__file__).parent / "results" / "fusion.json"
WIDTH, TOP_K, SEED, WORDS = 64, 100, 0, 6


class Rows:
    """Documents that are no more than their number; the later of equal ones comes first."""

    def __init__(self, count: int) -> None:
        self.ranks = np.arange(count)[::-1].copy()  # as a corpus holds them

    def __len__(self) -> int:
        return len(self.ranks)

    def tie_ranks(self) -> np.ndarray:
        return self.ranks


def repeated_bm25(work: Path, documents: int, pieces: int) -> tuple[BM25, list[str]]:
    """BM25 of pieces of text that are repeated until there are enough documents; the pieces."""
    corpus = work / "corpus.jsonl"
    found = list(texts(pieces))
    with corpus.open("w") as file:
        file.writelines(
            json.dumps({"_id": str(i), "text": text}) + "\n" for i, text in enumerate(found)
        )
    bm25 = BM25(load_collection(str(corpus), labels="none").documents)
    bm25.prepare()
    held, times = bm25.postings, documents // pieces
    rows, weights = (
        np.lib.format.open_memmap(
            work / f"{name}.npy", "w+", found_there.dtype, (len(found_there) * times,)
        )
        for name, found_there in (("rows", held.rows), ("weights", held.weights))
    )
    shifts = (np.arange(times) * pieces).astype(held.rows.dtype)[:, None]
    for first, last in zip(held.starts[:-1].tolist(), held.starts[1:].tolist(), strict=True):
        there = slice(first * times, last * times)
        rows[there] = (held.rows[first:last] + shifts).ravel()
        weights[there] = np.tile(held.weights[first:last], times)
    bm25._postings = Postings(
        held.vocabulary, documents, held.starts * times, rows, weights, held.most
    )
    bm25.documents = Rows(documents)  # type: ignore[assignment]
    return bm25, found


def given_store(folder: Path, documents: int) -> EmbeddingStore:
    rng = np.random.default_rng(SEED)
    identity = {"similarity": "dot", "precision": "fp16", "shard_size": SHARD_SIZE}
    store = EmbeddingStore(folder, StoreRecord(identity, EncodedBy(None), documents, WIDTH))
    folder.mkdir()
    store.write_record()
    for shard in store.shards:
        shard.write(pack(rng.standard_normal((len(shard), WIDTH), dtype=np.float32), "fp16"))
    return store


class Memory:
    """The most that this process held meanwhile, beyond mapped files, in MiB, looked at every 20
    milliseconds.
    """

    def __enter__(self) -> Memory:
        self.most, self._before, self._done = 0.0, self.held(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, self.held() - self._before)

    @staticmethod
    def held() -> float:
        [line] = [
            line
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("RssAnon")
        ]
        return int(line.split()[1]) / 1024


def query_by_query(hybrid: Hybrid, asked: dict[str, str], vectors: torch.Tensor) -> np.ndarray:
    """(Q, k) scores, as they were computed before."""
    ties, found = hybrid.dense.documents.tie_ranks(), []
    for vector, text in zip(vectors, asked.values(), strict=True):
        dense = np.concatenate(
            [(vector[None] @ chunk.T).numpy() for chunk in hybrid.dense.embeddings.chunks()], axis=1
        )
        lexical = z_normalize(hybrid.bm25.scores(text)[None])
        fused = weighted_mean(z_normalize(dense), lexical, hybrid.bm25_weight).astype(np.float32)[0]
        found.append(fused[best_rows(fused, ties, TOP_K)])
    return np.stack(found)


def run(documents: int, queries: int, rival: int, pieces: int, work: Path) -> dict[str, Any]:
    """Seconds a query and memory of both."""
    bm25, found = repeated_bm25(work, documents, pieces)
    store = given_store(work / "store", documents)
    model: Any = SimpleNamespace(similarity_fn_name="dot")
    hybrid = Hybrid(Dense(model, bm25.documents, work, given=store), bm25)
    rng = np.random.default_rng(SEED + 1)
    picked = [found[i].split() for i in rng.integers(pieces, size=queries).tolist()]
    asked = {str(i): " ".join(words[:WORDS]) for i, words in enumerate(picked)}
    vectors = torch.from_numpy(rng.standard_normal((queries, WIDTH), dtype=np.float32))

    def timed(work: Callable[[], Any], count: int) -> tuple[dict[str, float], Any]:
        with Memory() as memory:
            wall, processor = time.perf_counter(), time.process_time()
            done = work()
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
        per_query = {
            "seconds_a_query": wall / count,
            "processor_seconds_a_query": processor / count,
        }
        return per_query | {"memory_mib": round(memory.most)}, done

    first = dict(list(asked.items())[:rival])
    moments, _ = timed(lambda: hybrid.dense.moments, 1)
    ours, ranking = timed(lambda: hybrid.rank(asked, vectors, TOP_K), queries)
    one, _ = timed(lambda: hybrid.rank({"0": asked["0"]}, vectors[:1], TOP_K), 1)
    before, scores = timed(lambda: query_by_query(hybrid, first, vectors[:rival]), rival)
    far = float(np.abs(scores - ranking.scores[:rival]).max())
    return {
        "documents": documents,
        "moments": moments,
        "block": ours,
        "one_query": one,
        "query_by_query": before,
        "times_as_fast": before["processor_seconds_a_query"] / ours["processor_seconds_a_query"],
        "largest_difference": far,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="+", default=[1_250_000, 5_000_000])
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument(
        "--rival-queries", type=int, default=4, help="For the rival, which takes longer."
    )
    parser.add_argument("--pieces", type=int, default=25_000, help="Of text, that are repeated.")
    parser.add_argument(
        "--work", type=Path, required=True, help="Folder for vectors and postings, for a while."
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--child", action="store_true", help="Measure one size in this process and print it."
    )
    given = parser.parse_args()
    if given.child:
        print(
            json.dumps(
                run(
                    given.documents[0], given.queries, given.rival_queries, given.pieces, given.work
                )
            )
        )
        return
    runs = []
    for count in given.documents:
        work = Path(tempfile.mkdtemp(dir=given.work))
        sizes = (
            f"--documents={count} --queries={given.queries} --rival-queries={given.rival_queries}"
        )
        command = [
            sys.executable,
            __file__,
            "--child",
            *sizes.split(),
            f"--pieces={given.pieces}",
            f"--work={work}",
        ]
        environment = os.environ | {"BEIR_COCODR_CACHE": str(work / "cache")}
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(runs[-1]), flush=True)
        shutil.rmtree(work)
    content = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine() | {"threads": torch.get_num_threads()},
        "versions": versions(),
        "seed": SEED,
        "sizes": {
            "dimensions": WIDTH,
            "queries": given.queries,
            "top_k": TOP_K,
            "words": WORDS,
            "sources": SOURCES,
        },
        "runs": runs,
    }
    write_text(given.output, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
