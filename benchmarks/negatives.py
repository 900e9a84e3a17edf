"""Claim: BM25's negatives of many queries over a large corpus take a tenth of the time.

Documents are pieces of the documentation of installed packages. Queries are its summary lines and,
if more are wanted, pieces of eight words. Negatives are drawn as fine-tuning draws them, with one
core and with all. The rival is the former way: bm25s's index, and its scores of all documents for
one query after another, on some of the queries. A teacher's scores of many pairs are measured too.
Times are processor seconds, as a busy machine changes the clock's; with all cores they are the
clock's, the median of five runs. Each part is a process of its own, as peak memory never falls.

The script prints every part and the summary, and writes ``benchmarks/results/negatives.json``:

    OMP_NUM_THREADS=1 python benchmarks/negatives.py --work DIR
    OMP_NUM_THREADS=1 python benchmarks/negatives.py --work DIR --documents 20000 --queries 500
    --pairs 100000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from harness.measure import MIB, peak_memory_of_any, processor_seconds, run_child, say
from harness.script import (
    add_integers,
    add_work,
    option_parser,
    origin,
    read_json,
    write_results,
)
from harness.texts import SOURCES, cut_pieces

from beir_cocodr import load_collection
from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import open_corpus, write_arrow
from beir_cocodr.data.text import TextFormat
from beir_cocodr.io import write_text
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.vectors import pool

#: Negatives of a query.
DEPTH = 30
#: Queries that the rival searches.
RIVAL_QUERIES = 200
#: Runs with all cores.
REPEATS = 5
#: Documents of a teacher's list.
LIST_SIZE = 10

#: MS MARCO's passages and training queries, and the cores that its time is stated for.
MSMARCO = {
    "documents": 8_841_823,
    "queries": 502_939,
    "cores": 16,
}

_CORPUS = "corpus.arrow"
_QUERIES = "queries.json"


def write_corpus(
    work: Path,
    documents: int,
    queries: int,
) -> None:
    """Write documents and queries to the working folder."""
    source = load_collection(SOURCES, "train")
    words = [document["text"].split() for document in source.documents.values()]
    pieces = cut_pieces(
        words,
        documents,
        (20, 80),
        seed=0,
    )
    write_arrow(work / _CORPUS, ((0, f"d{row}", "", text) for row, text in enumerate(pieces)))
    texts = list(source.queries.values())
    missing = max(0, queries - len(texts))
    texts += cut_pieces(
        words,
        missing,
        (8, 8),
        seed=1,
    )
    write_text(work / _QUERIES, json.dumps(texts[:queries]))


def read_corpus(work: Path) -> Collection:
    """Return the collection, with one relevant document a query, drawn at random."""
    documents = open_corpus(work / _CORPUS)
    texts = json.loads((work / _QUERIES).read_text())
    queries = {f"q{number}": text for number, text in enumerate(texts)}
    rows = np.random.default_rng(2).integers(len(documents), size=len(queries))
    qrels = {}
    for query, document in zip(queries, documents.ids(rows), strict=True):
        qrels[query] = {document: 1}
    source = load_collection(SOURCES, "train")
    return replace(
        source,
        documents=documents,
        queries=queries,
        qrels=qrels,
    )


def measure_before(work: Path) -> dict[str, Any]:
    """Measure the former way: an index in memory, and scores of all documents for each query."""
    collection = read_corpus(work)
    tokenizer = BM25(load_collection(SOURCES, "train").documents)._tokenizer
    started = processor_seconds()
    index = bm25s.BM25(
        k1=0.9,
        b=0.4,
    )
    index.index(_tokenize_all(collection, tokenizer), show_progress=False)
    indexing = processor_seconds() - started
    ties = collection.documents.tie_ranks()
    step = max(1, len(collection.queries) // RIVAL_QUERIES)
    queries = list(collection.queries.items())[::step]
    negatives = {}
    started = processor_seconds()
    for query, text in queries:
        positives = collection.documents.rows(collection.qrels[query])
        [terms] = tokenizer.tokenize(
            [text],
            update_vocab=False,
            show_progress=False,
        )
        scores = index.get_scores(terms)
        rows = np.flatnonzero(scores > 0)
        depth = DEPTH + len(positives)
        [best] = Ranking.of_best(
            [query],
            [(rows, scores[rows])],
            ties,
            depth,
        ).rows
        is_negative = (best >= 0) & ~np.isin(best, positives)
        negatives[query] = best[is_negative][:DEPTH].tolist()
    searching = (processor_seconds() - started) / len(queries)
    write_text(work / "before.json", json.dumps(negatives))
    return {
        "index_seconds": round(indexing, 3),
        "query_ms": round(1000 * searching, 3),
        "queries": len(queries),
    }


def _tokenize_all(collection: Collection, tokenizer: Any) -> tuple[list[list[int]], Any]:
    """Return the terms of every document, and the vocabulary, as bm25s takes them."""
    document_text = TextFormat().document
    ids: list[list[int]] = []
    for chunk in collection.documents.chunks(10_000):
        texts = [document_text(document) for document in chunk]
        ids += tokenizer.tokenize(
            texts,
            update_vocab=True,
            show_progress=False,
        )
    return ids, tokenizer.get_vocab_dict()


def measure_now(work: Path, cores: int) -> dict[str, Any]:
    """Measure the index, the negatives, and a second call, which reads them from the cache."""
    # Imported here: every process that this one starts would import it again.
    from beir_cocodr.training.hard_negatives.bm25_negatives import bm25_negatives

    pool.available_cores = lambda: cores
    collection = read_corpus(work)
    cache = work / f"cache-{cores}"
    os.environ["BEIR_COCODR_CACHE"] = str(cache)
    index_folder = cache / "bm25"
    index_folder.mkdir(
        parents=True,
        exist_ok=True,
    )

    _, indexing, index_wall = _spent(lambda: BM25(collection.documents).keep(index_folder))
    pools, searching, search_wall = _spent(lambda: bm25_negatives(collection, TextFormat(), DEPTH))
    _, again, _ = _spent(lambda: bm25_negatives(collection, TextFormat(), DEPTH))
    expected = read_json(work / "before.json")
    same = [pools[query].tolist() == rows for query, rows in expected.items() if rows]
    files = [file for file in cache.rglob("*") if file.is_file()]
    figures = {
        "index_wall": round(index_wall, 3),
        "queries": len(pools),
        "search_wall": round(search_wall, 3),
        "again_seconds": round(again, 2),
        "same_as_before": f"{sum(same)} of {len(same)}",
        "cache_mib": sum(file.stat().st_size for file in files) // MIB,
    }
    if cores == 1:  # With several, the seconds of the other processes are not known here.
        figures["index_seconds"] = round(indexing, 3)
        figures["query_ms"] = round(1000 * searching / len(pools), 3)
    return figures


def _spent(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a result, the processor seconds with those of children, and the clock's seconds."""
    wall = time.perf_counter()
    processor = processor_seconds()
    result = call()
    return result, processor_seconds() - processor, time.perf_counter() - wall


class FreeTeacher:
    """A teacher whose scores cost nothing, so that keeping them is what is measured."""

    def score(
        self,
        query_id: str,
        query: str,
        rows: np.ndarray,
    ) -> np.ndarray:
        return rows.astype(np.float32)


def measure_teacher(work: Path, pairs: int) -> dict[str, Any]:
    """Measure keeping a teacher's scores: most at once, then a small round, then all read back."""
    from beir_cocodr.training.distillation.teacher_scores import TeacherScores

    documents = open_corpus(work / _CORPUS)
    rng = np.random.default_rng(3)
    queries = {f"q{number}": "" for number in range(pairs // LIST_SIZE)}
    firsts = rng.integers(len(documents) - LIST_SIZE, size=(len(queries), 1))
    lists = np.sort(firsts, axis=0) + np.arange(LIST_SIZE)
    numbers = np.arange(len(queries))
    last = min(2_000, len(queries) // 2)
    folder = work / "teacher"
    scores = TeacherScores(
        FreeTeacher(),
        queries,
        documents,
        folder,
    )
    _, asking, _ = _spent(lambda: scores.score(numbers[:-last], lists[:-last]))
    _, one_more, _ = _spent(lambda: scores.score(numbers[-last:], lists[-last:]))
    kept, reading, _ = _spent(
        lambda: TeacherScores(
            FreeTeacher(),
            queries,
            documents,
            folder,
        ).score(numbers, lists)
    )
    assert np.array_equal(kept, lists.astype(np.float32))
    return {
        "pairs": lists.size,
        "files": len(list(folder.glob("*.npy"))),
        "asked_and_merged_seconds": round(asking, 1),
        "round_more_seconds": round(one_more, 2),
        "read_and_merged_seconds": round(reading, 1),
    }


def run_part(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Do one part in this process."""
    work = options.work
    if part == "corpus":
        write_corpus(work, options.documents, options.queries)
        return {}
    if part == "before":
        return measure_before(work)
    if part == "teacher":
        return measure_teacher(work, options.pairs)
    return measure_now(work, 1 if part == "one" else pool.available_cores())


PARTS = ("corpus", "before", "one", "all", "teacher")


def run_parts(options: argparse.Namespace) -> dict[str, Any]:
    """Run every part in a process of its own; of the runs with all cores, keep the median."""
    names = ("documents", "queries", "pairs")
    sizes = {name: getattr(options, name) for name in names}
    parts: dict[str, Any] = {}
    for part in PARTS:
        runs = []
        for _ in range(REPEATS if part == "all" else 1):
            for cache in options.work.glob("cache-*"):
                shutil.rmtree(cache)
            runs.append(
                run_child(
                    __file__,
                    {
                        "part": part,
                        "work": options.work,
                        **sizes,
                    },
                )
            )
            print(part, runs[-1], flush=True)
        parts[part] = runs[0]
        if part == "all":
            runs.sort(key=wall_seconds)
            walls = [round(wall_seconds(run), 3) for run in runs]
            parts[part] = runs[REPEATS // 2] | {"walls": walls}
    del parts["corpus"]
    return parts


def wall_seconds(part: dict[str, Any]) -> float:
    """Return the clock's seconds of index and queries."""
    return float(part["index_wall"] + part["search_wall"])


def summarize(
    parts: dict[str, Any],
    documents: int,
    queries: int,
) -> dict[str, Any]:
    """Return how many times as fast we are, and what MS MARCO takes in proportion."""
    before = parts["before"]
    one = parts["one"]
    all_cores = parts["all"]
    before_search = queries * before["query_ms"] / 1000
    before_total = before["index_seconds"] + before_search
    one_total = one["index_seconds"] + queries * one["query_ms"] / 1000
    share = MSMARCO["documents"] / documents
    index = one["index_seconds"] * share
    search = one["query_ms"] / 1000 * share * MSMARCO["queries"]
    hours = round((index + search) / MSMARCO["cores"] / 3600, 2)
    return {
        "query_speedup_one_core": round(before["query_ms"] / one["query_ms"], 2),
        "index_speedup_one_core": round(before["index_seconds"] / one["index_seconds"], 2),
        "whole_speedup_one_core": round(before_total / one_total, 2),
        "query_speedup_all_cores": round(before_search / all_cores["search_wall"], 2),
        "whole_speedup_all_cores": round(before_total / wall_seconds(all_cores), 2),
        "whole_speedup_16_cores": round(MSMARCO["cores"] * before_total / one_total, 1),
        "msmarco": {
            **MSMARCO,
            "hours": hours,
        },
    }


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "negatives")
    add_work(parser)
    integers = {
        "--documents": (1_000_000, "Documents of the corpus."),
        "--queries": (10_000, "Queries that need negatives."),
        "--pairs": (5_000_000, "Pairs that the teacher scores."),
    }
    add_integers(parser, integers)
    parser.add_argument(
        "--part",
        choices=PARTS,
        help="Do one part here, and print it.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    options.work.mkdir(
        parents=True,
        exist_ok=True,
    )
    if options.part:
        figures = run_part(options.part, options)
        say(figures | {"peak_mib": peak_memory_of_any() // MIB})
        return
    parts = run_parts(options)
    shutil.rmtree(options.work)
    summary = summarize(parts, options.documents, options.queries)
    results = origin() | {
        "settings": {
            "documents": options.documents,
            "queries": options.queries,
            "depth": DEPTH,
            "seeds": [0, 1, 2, 3],
        },
        "parts": parts,
        "summary": summary,
    }
    write_results(options.results, results)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
