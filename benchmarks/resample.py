"""Claim: the nearest training queries are found many times as fast as by a loop, in little memory.

Random unit vectors replace the embeddings of queries. They are in a file, as resampling has them.
Ours finds the neighbours of every test query: by matrix product, which screens by bytes where the
processor multiplies them, by products in float32 alone, and by FAISS. The rival, a double loop in
numpy over test queries and blocks of training queries, does a tenth of the test queries, and its
time is multiplied by ten. ReSTrain at three sizes of the paper follows. Each measurement runs in a
process of its own, so that its peak memory is its own. Memory is what is needed beyond libraries
and test queries; the loop holds all training queries in it.

The script prints seconds, memory, ratios and the growth with size, and writes
``benchmarks/results/resample.json``:

    python benchmarks/resample.py [--train-queries 500000] [--test-queries 7000] [--k 100]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness.measure import (
    MIB,
    peak_memory,
    run_child,
    say,
    seconds,
    thread_environment,
    vector_instructions,
)
from harness.script import option_parser, origin, write_results

#: Shares of the training queries, for the growth with size.
SHARES = (0.125, 0.25, 0.5, 1.0)
#: The sizes of the paper's training sets, as shares of its 500,000 training queries.
SIZES = {
    "14k": 0.028,
    "45k": 0.09,
    "200k": 0.4,
}
#: Measurements that are compared with the double loop.
OURS = ("exact", "float32", "faiss")
#: The loop does one of so many test queries.
LOOP_PART = 10
BLOCK = 50_000
#: Options that describe a measurement.
NAMES = ("train_queries", "test_queries", "dimensions", "k", "threads", "repeats")


def write_vectors(
    path: Path,
    count: int,
    dimensions: int,
    seed: int,
) -> None:
    """Write random unit vectors block by block."""
    random = np.random.default_rng(seed)
    header = {
        "descr": "<f4",
        "fortran_order": False,
        "shape": (count, dimensions),
    }
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, count, BLOCK):
            rows = min(BLOCK, count - start)
            block = random.standard_normal((rows, dimensions), dtype=np.float32)
            block = block / np.linalg.norm(
                block,
                axis=1,
                keepdims=True,
            )
            file.write(block.tobytes())


def write_store(
    folder: Path,
    vectors: Path,
    count: int,
) -> None:
    """Write the first vectors as the store in which query embeddings are kept."""
    from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodedBy, StoreRecord
    from beir_cocodr.retrieval.store.shard import pack
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    rows = np.load(vectors, mmap_mode="r")
    identity = {
        "similarity": "cosine",
        "precision": "fp32",
        "shard_size": SHARD_SIZE,
    }
    record = StoreRecord(
        identity,
        EncodedBy(None),
        count,
        rows.shape[1],
    )
    folder.mkdir()
    store = EmbeddingStore(folder, record)
    store.write_record()
    for shard in store.shards:
        shard.write(pack(rows[shard.start : shard.stop], "fp32"))


def prepare_nearest(options: argparse.Namespace, method: str) -> Callable[[], Any]:
    """Return the call that finds the neighbours by one of our methods."""
    from beir_cocodr.resampling.similarity import nearest
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    store = EmbeddingStore.found(options.folder / f"train-{options.train_queries}")
    test = np.load(options.folder / "test.npy")
    return lambda: (
        nearest(
            store,
            test,
            options.k,
            method,
        ).rows
    )


def prepare_float32(options: argparse.Namespace) -> Callable[[], Any]:
    """Return the call that finds the neighbours without a screen by bytes."""
    from beir_cocodr.retrieval.vectors import products

    products.multiplies_bytes = lambda: False
    return prepare_nearest(options, "exact")


def prepare_faiss(options: argparse.Namespace) -> Callable[[], Any]:
    """Return the call that finds the neighbours by FAISS."""
    import faiss

    faiss.omp_set_num_threads(options.threads)
    return prepare_nearest(options, "faiss")


def prepare_restrain(options: argparse.Namespace) -> Callable[[], Any]:
    """Return the call that makes ReSTrain's sets of three sizes."""
    from beir_cocodr.resampling import RestrainOptions
    from beir_cocodr.resampling.restrain import ranks_for_targets, restrain
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    store = EmbeddingStore.found(options.folder / f"train-{options.train_queries}")
    test = np.load(options.folder / "test.npy")
    sizes = tuple(round(share * options.train_queries) for share in SIZES.values())
    settings = RestrainOptions(sizes=sizes)

    def run() -> Any:
        ranks, depth = ranks_for_targets(store, test, settings)
        sets = restrain(ranks, depth, settings).sets
        return np.array([[one.k, len(one.interpolation), len(one.extrapolation)] for one in sets])

    return run


def prepare_loop(options: argparse.Namespace) -> Callable[[], Any]:
    """Return the call that finds the neighbours of a tenth of the test queries by a loop."""
    count = max(1, options.test_queries // LOOP_PART)
    test = np.load(options.folder / "test.npy")[:count]

    def run() -> Any:
        train = np.load(options.folder / "train.npy")[: options.train_queries]
        neighbours = np.empty((len(test), options.k), np.int64)
        for row, query in enumerate(test):
            neighbours[row] = _nearest_by_loop(train, query, options.k)
        return neighbours

    return run


def _nearest_by_loop(
    train: np.ndarray,
    query: np.ndarray,
    k: int,
) -> np.ndarray:
    """Return the rows of the k training queries nearest to a query."""
    rows = np.empty(0, np.int64)
    scores = np.empty(0, np.float32)
    for start in range(0, len(train), BLOCK):
        product = train[start : start + BLOCK] @ query
        candidates = np.argpartition(-product, min(k, len(product)) - 1)[:k]
        rows = np.concatenate([rows, candidates + start])
        scores = np.concatenate([scores, product[candidates]])
    return rows[np.argsort(-scores, kind="stable")[:k]]


@dataclass(frozen=True)
class Measurement:
    """One thing that is measured.

    Attributes:
        description: What it is.
        prepare: Makes the call that is timed.
    """

    description: str
    prepare: Callable[[argparse.Namespace], Callable[[], Any]]


MEASUREMENTS = {
    "exact": Measurement(
        "nearest, by matrix product", lambda options: prepare_nearest(options, "exact")
    ),
    "float32": Measurement("nearest, by matrix product in float32 alone", prepare_float32),
    "faiss": Measurement("nearest, by FAISS", prepare_faiss),
    "restrain": Measurement(f"ReSTrain at {', '.join(SIZES)} of 500k", prepare_restrain),
    "loop": Measurement(
        f"a double loop in numpy, over 1/{LOOP_PART} of the test queries", prepare_loop
    ),
}


def run_measurement(options: argparse.Namespace) -> None:
    """Measure one thing and print it; its result goes to a file."""
    import torch

    torch.set_num_threads(options.threads)
    call = MEASUREMENTS[options.measurement].prepare(options)
    baseline = peak_memory()
    times = []
    results = []

    def keep() -> None:
        results[:] = [call()]

    for _ in range(options.repeats):
        times.append(seconds(keep))
    np.save(options.folder / f"result-{options.measurement}.npy", results[0])
    say(
        {
            "seconds": times,
            "peak_mib": (peak_memory() - baseline) / MIB,
        }
    )


def ask(
    name: str,
    options: argparse.Namespace,
    folder: Path,
    changes: dict[str, int],
) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    values = {key: getattr(options, key) for key in NAMES} | {"folder": folder} | changes
    environment = thread_environment(options.threads)
    answer: dict[str, Any] = run_child(
        __file__,
        {
            "measurement": name,
            **values,
        },
        environment,
    )
    answer["median_seconds"] = statistics.median(answer["seconds"])
    print(f"{name} {changes or ''}: {answer['median_seconds']:.2f} s", file=sys.stderr)
    return answer


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all measurements, and compare their results."""
    with tempfile.TemporaryDirectory(dir=options.work) as name:
        folder = Path(name)
        write_vectors(
            folder / "train.npy",
            options.train_queries,
            options.dimensions,
            0,
        )
        write_vectors(
            folder / "test.npy",
            options.test_queries,
            options.dimensions,
            1,
        )
        sizes = [round(share * options.train_queries) for share in SHARES]
        for size in sizes:
            write_store(folder / f"train-{size}", folder / "train.npy", size)
        measurements = {}
        for name, measurement in MEASUREMENTS.items():
            changes = {"repeats": 1} if name == "loop" else {}
            answer = ask(
                name,
                options,
                folder,
                changes,
            )
            measurements[name] = {
                "what": measurement.description,
                **answer,
            }
        results = {name: np.load(folder / f"result-{name}.npy") for name in MEASUREMENTS}
        growth = []
        for size in sizes:
            answer = ask(
                "exact",
                options,
                folder,
                {"train_queries": size},
            )
            growth.append(
                {
                    "train_queries": size,
                    **answer,
                }
            )
    columns = ("k", "interpolation", "extrapolation")
    restrain = [dict(zip(columns, row, strict=True)) for row in results["restrain"].tolist()]
    return {
        "sizes": {key: getattr(options, key) for key in NAMES if key != "repeats"},
        "measurements": measurements,
        **compare_with_loop(measurements, results, options.test_queries),
        "restrain": restrain,
        "growth": growth,
    }


def compare_with_loop(
    measurements: dict[str, Any],
    results: dict[str, np.ndarray],
    queries: int,
) -> dict[str, Any]:
    """Return how many times as fast ours is as the loop, and the share of equal neighbours."""
    loop = results["loop"]
    loop_seconds = measurements["loop"]["median_seconds"] * queries / len(loop)
    speedups = {}
    common = {}
    for name in OURS:
        speedups[name] = loop_seconds / measurements[name]["median_seconds"]
        common[name] = share_in_common(results[name], loop)
    return {
        "loop_seconds_for_all": loop_seconds,
        "loop_to_ours": speedups,
        "neighbours_in_common_with_loop": common,
    }


def share_in_common(ours: np.ndarray, loop: np.ndarray) -> float:
    """Return the mean share of the loop's neighbours that ours has too."""
    shares = []
    for our_row, loop_row in zip(ours, loop, strict=False):
        shares.append(len(np.intersect1d(our_row, loop_row)) / len(loop_row))
    return float(np.mean(shares))


def describe(results: dict[str, Any]) -> str:
    """Return the lines that the script prints."""
    lines = []
    for name, figures in results["measurements"].items():
        cost = f"{figures['median_seconds']:8.2f} s, {figures['peak_mib']:6.0f} MiB"
        lines.append(f"{name:9} {cost}  ({figures['what']})")
    lines.append(f"the loop over all test queries: {results['loop_seconds_for_all']:.1f} s")
    for name, ratio in results["loop_to_ours"].items():
        common = results["neighbours_in_common_with_loop"][name]
        lines.append(f"loop / {name:6} {ratio:.1f}, {common:.4%} of neighbours in common")
    for figures in results["growth"]:
        cost = f"{figures['median_seconds']:7.2f} s, {figures['peak_mib']:6.0f} MiB"
        lines.append(f"{figures['train_queries']:9,} training queries: {cost}")
    for row in results["restrain"]:
        sets = f"{row['interpolation']:,} and {row['extrapolation']:,} training queries"
        lines.append(f"ReSTrain: k = {row['k']}, {sets}")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "resample")
    parser.add_argument(
        "--train-queries",
        type=int,
        default=500_000,
    )
    parser.add_argument(
        "--test-queries",
        type=int,
        default=7_000,
    )
    parser.add_argument(
        "--dimensions",
        type=int,
        default=384,
    )
    parser.add_argument(
        "--k",
        type=int,
        default=100,
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
    )
    parser.add_argument(
        "--work",
        type=Path,
        help="Write the vectors here. Default: the system's folder.",
    )
    parser.add_argument(
        "--measurement",
        choices=list(MEASUREMENTS),
        help=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help=argparse.SUPPRESS,
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.measurement:
        run_measurement(options)
        return
    results = origin("faiss-cpu", instructions=vector_instructions()) | measure(options)
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
