"""BM25's negatives of many queries over a large corpus, and a teacher's scores of many pairs: their
time and memory.

Documents are pieces of the installed packages' documentation, queries its summary lines and, where
more are wanted, pieces of eight words. Negatives are made as fine-tuning makes them, with one core
and with all; beside them the way before, bm25s's index and its scores of all documents for one
query after another, on some of the queries. Times are processor seconds, as a machine that does
other things changes the clock's; with all cores they are the clock's, the median of five. Each part
is a process of its own, as peak memory never falls. Writes benchmarks/results/negatives.json. Run
as:

    OMP_NUM_THREADS=1 python benchmarks/negatives.py --work DIR OMP_NUM_THREADS=1 python
    benchmarks/negatives.py --work DIR --documents 20000 --queries 500 --pairs 100000  # small
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from machine import machine

from beir_cocodr import load_collection
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import open_corpus, write_arrow
from beir_cocodr.data.text import TextFormat
from beir_cocodr.io import write_text
from beir_cocodr.records import versions
from beir_cocodr.retrieval import pool
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import Ranking

RESULTS = Path(__file__).parent / "results" / "negatives.json"
SOURCES = "apidocs/stdlib+numpy+pandas+scipy+sklearn+torch"
DEPTH, BEFORE, REPEATS = 30, 200, 5

#: MS MARCO's passages and training queries, and the machine that the issue asks about.
MSMARCO = {"documents": 8_841_823, "queries": 502_939, "cores": 16}


def pieces(words: list[list[str]], count: int, least: int, most: int, seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        source, length = words[int(rng.integers(len(words)))], int(rng.integers(least, most + 1))
        start = int(rng.integers(max(1, len(source) - length)))
        yield " ".join(source[start : start + length])


def write_corpus(work: Path, documents: int, queries: int) -> None:
    source = load_collection(SOURCES, "train")
    words = [document["text"].split() for document in source.documents.values()]
    rows = ((0, f"d{i}", "", text) for i, text in enumerate(pieces(words, documents, 20, 80, 0)))
    write_arrow(work / "corpus.arrow", rows)
    texts = [
        *source.queries.values(),
        *pieces(words, max(0, queries - len(source.queries)), 8, 8, 1),
    ][:queries]
    write_text(work / "queries.json", json.dumps(texts))


def corpus(work: Path) -> Collection:
    """With one relevant document a query, drawn at random."""
    documents, texts = (
        open_corpus(work / "corpus.arrow"),
        json.loads((work / "queries.json").read_text()),
    )
    queries = {f"q{i}": text for i, text in enumerate(texts)}
    rows = np.random.default_rng(2).integers(len(documents), size=len(queries))
    qrels = {query: {id: 1} for query, id in zip(queries, documents.ids(rows), strict=True)}
    small = load_collection(SOURCES, "train")
    return replace(small, documents=documents, queries=queries, qrels=qrels)


def spent() -> float:
    """Processor seconds of this process and of those it waited for."""
    own, children = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in (own, children))


def peak() -> int:
    return (
        max(
            resource.getrusage(who).ru_maxrss
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        >> 10
    )


def before(work: Path) -> dict[str, Any]:
    """As it was: the index in memory, and for each query the scores of all documents."""
    given, reader = corpus(work), BM25(load_collection(SOURCES, "train").documents)._tokenizer
    ids, began = [], spent()
    for chunk in given.documents.chunks(10_000):
        ids += reader.tokenize(
            [TextFormat().document(d) for d in chunk], update_vocab=True, show_progress=False
        )
    index = bm25s.BM25(k1=0.9, b=0.4)
    index.index((ids, reader.get_vocab_dict()), show_progress=False)
    del ids
    indexing, ties = spent() - began, given.documents.tie_ranks()
    some = list(given.queries.items())[:: max(1, len(given.queries) // BEFORE)]
    found, began = {}, spent()
    for query, text in some:
        positive = given.documents.rows(given.qrels[query])
        [terms] = reader.tokenize([text], update_vocab=False, show_progress=False)
        scores = index.get_scores(terms)
        matching = [(rows := np.flatnonzero(scores > 0), scores[rows])]
        [rows] = Ranking.of_best([query], matching, ties, DEPTH + len(positive)).rows
        found[query] = rows[(rows >= 0) & ~np.isin(rows, positive)][:DEPTH].tolist()
    searching = (spent() - began) / len(some)
    write_text(work / "before.json", json.dumps(found))
    return {
        "index_seconds": round(indexing, 1),
        "query_ms": round(1000 * searching, 3),
        "queries": len(some),
    }


def now(work: Path, cores: int) -> dict[str, Any]:
    """The index, and then the negatives; a second call, which finds them; and whether they are
    those of before.
    """
    # Not above: what stands there is imported anew by every process that this one starts.
    from beir_cocodr.training.negatives import bm25_negatives

    pool.available_cores = lambda: cores
    given, cache = corpus(work), work / f"cache-{cores}"
    os.environ["BEIR_COCODR_CACHE"] = str(cache)
    clock, began = time.perf_counter(), spent()
    BM25(given.documents).keep(cache_of(cache))
    found: dict[str, Any] = {"index_seconds": round(spent() - began, 1)}
    found["index_wall"], indexed, middle = (
        round(time.perf_counter() - clock, 1),
        time.perf_counter(),
        spent(),
    )
    pools = bm25_negatives(given, TextFormat(), DEPTH)
    found |= {"query_ms": round(1000 * (spent() - middle) / len(pools), 3)}
    found |= {"queries": len(pools), "search_wall": round(time.perf_counter() - indexed, 1)}
    again = spent()
    bm25_negatives(given, TextFormat(), DEPTH)
    found["again_seconds"] = round(spent() - again, 2)
    wanted = json.loads((work / "before.json").read_text())
    same = [pools[query].tolist() == rows for query, rows in wanted.items() if rows]
    found |= {"same_as_before": f"{sum(same)} of {len(same)}"}
    if cores > 1:  # those of the other processes are not known here
        found = {
            name: value
            for name, value in found.items()
            if name not in ("index_seconds", "query_ms")
        }
    found["cache_mib"] = (
        sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) >> 20
    )
    return found


def cache_of(root: Path) -> Path:
    folder = root / "bm25"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Cheap:
    """A teacher whose scores cost nothing, so that what is measured is their keeping."""

    def score(self, query_id: str, query: str, rows: np.ndarray) -> np.ndarray:
        return rows.astype(np.float32)


def teacher(work: Path, pairs: int) -> dict[str, Any]:
    """Lists of ten documents: most at once, then a round of 20,000 pairs more; and all read back
    from the disk.
    """
    from beir_cocodr.training.distill_lists import TeacherScores

    documents, rng = open_corpus(work / "corpus.arrow"), np.random.default_rng(3)
    queries = {f"q{i}": "" for i in range(pairs // 10)}
    lists = np.sort(rng.integers(len(documents) - 10, size=(len(queries), 1)), axis=0) + np.arange(
        10
    )
    numbers, last = np.arange(len(queries)), min(2_000, len(queries) // 2)
    scores = TeacherScores(Cheap(), queries, documents, work / "teacher")
    began = spent()
    scores.score(numbers[:-last], lists[:-last])
    first, middle = spent() - began, spent()
    scores.score(numbers[-last:], lists[-last:])
    more, middle = spent() - middle, spent()
    found = TeacherScores(Cheap(), queries, documents, work / "teacher").score(numbers, lists)
    assert np.array_equal(found, lists.astype(np.float32))
    read = spent() - middle
    files = len(list((work / "teacher").glob("*.npy")))
    return {"pairs": lists.size, "files": files, "asked_and_merged_seconds": round(first, 1),
            "round_more_seconds": round(more, 2), "read_and_merged_seconds": round(read, 1)}  # fmt: skip


PARTS = {
    "before": before,
    "one": lambda work: now(work, 1),
    "all": lambda work: now(work, pool.available_cores()),
}


def wall(part: dict[str, Any]) -> float:
    return float(part["index_wall"] + part["search_wall"])


def summary(parts: dict[str, Any], documents: int, queries: int) -> dict[str, Any]:
    """How much faster, by one core and by all of this machine, and what MS MARCO takes on 16
    cores.
    """
    old, one, both = parts["before"], parts["one"], parts["all"]
    share = MSMARCO["documents"] / documents
    index = one["index_seconds"] * share
    search = one["query_ms"] / 1000 * share * MSMARCO["queries"]
    whole = [part["index_seconds"] + queries * part["query_ms"] / 1000 for part in (old, one)]
    return {
        "query_speedup_one_core": round(old["query_ms"] / one["query_ms"], 2),
        "index_speedup_one_core": round(old["index_seconds"] / one["index_seconds"], 2),
        "whole_speedup_one_core": round(whole[0] / whole[1], 2),
        "query_speedup_all_cores": round(queries * old["query_ms"] / 1000 / both["search_wall"], 2),
        "whole_speedup_all_cores": round(whole[0] / wall(both), 2),
        "whole_speedup_16_cores": round(MSMARCO["cores"] * whole[0] / whole[1], 1),
        "msmarco": {**MSMARCO, "hours": round((index + search) / MSMARCO["cores"] / 3600, 2)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="Folder for the corpus and caches; removed at the end.",
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--part", choices=[*PARTS, "corpus", "teacher"], help="Do one part here and print it."
    )
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.part == "corpus":
        write_corpus(given.work, given.documents, given.queries)
    elif given.part:
        made = (
            teacher(given.work, given.pairs)
            if given.part == "teacher"
            else PARTS[given.part](given.work)
        )
        print(json.dumps(made | {"peak_mib": peak()}))
    if given.part:
        return
    sizes = [f"--{name}={getattr(given, name)}" for name in ("documents", "queries", "pairs")]
    parts: dict[str, Any] = {}
    for part in ("corpus", *PARTS, "teacher"):
        command, found = (
            [sys.executable, __file__, "--work", str(given.work), "--part", part, *sizes],
            [],
        )
        for _ in range(REPEATS if part == "all" else 1):
            for cache in given.work.glob("cache-*"):
                shutil.rmtree(cache)
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found.append(json.loads(done.stdout.splitlines()[-1]) if part != "corpus" else {})
            print(part, found[-1], flush=True)
        if part == "all":
            found.sort(key=wall)
            found[REPEATS // 2]["walls"] = [round(wall(one), 1) for one in found]
        if part != "corpus":
            parts[part] = found[len(found) // 2]
    shutil.rmtree(given.work)
    settings = {
        "documents": given.documents,
        "queries": given.queries,
        "depth": DEPTH,
        "seeds": [0, 1, 2, 3],
    }
    content: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
    }
    content |= {
        "settings": settings,
        "parts": parts,
        "summary": summary(parts, given.documents, given.queries),
    }
    write_text(given.output, json.dumps(content, indent=1) + "\n")
    print(json.dumps(content["summary"]))


if __name__ == "__main__":
    main()
