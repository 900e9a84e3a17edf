"""Time and peak memory of finding, for every test query, its nearest training queries, and of
ReSTrain.

Random unit vectors stand for the embeddings of queries; they lie in a file, as resampling has them.
Ours does all of it: by matrix product, which looks by bytes first where the processor multiplies
them, by products in float32 alone, and by FAISS. The rival, a plain double loop in numpy (over test
queries, and for each of them over blocks of training queries), does a tenth of the test queries,
and its time is multiplied by ten. Each measurement runs in a process of its own, so that its peak
memory is its own. Memory is what is needed beyond libraries and test queries; the rival holds all
training queries in it.

    python benchmarks/resample.py [--train-queries 500000] [--test-queries 7000] [--k 100]
    [--repeats 3]

Writes benchmarks/results/resample.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine, peak_memory

RESULTS = Path(__file__).parent / "results" / "resample.json"
#: Of the training queries, for the growth with size.
SHARES = (0.125, 0.25, 0.5, 1.0)
#: The sizes of the paper's training sets, as shares of its 500,000 training queries.
SIZES = {"14k": 0.028, "45k": 0.09, "200k": 0.4}
#: What is compared with the double loop.
OURS = ("exact", "float32", "faiss")
PART = 10
BLOCK = 50_000
MIB = 1024 * 1024


def write_vectors(path: Path, count: int, dimensions: int, seed: int) -> None:
    """Random unit vectors, written in blocks."""
    random = np.random.default_rng(seed)
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, dimensions)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, count, BLOCK):
            block = random.standard_normal(
                (min(BLOCK, count - start), dimensions), dtype=np.float32
            )
            file.write((block / np.linalg.norm(block, axis=1, keepdims=True)).tobytes())


def write_store(folder: Path, vectors: Path, count: int) -> None:
    """The first of the vectors as the store that query embeddings are kept in."""
    from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodedBy, StoreRecord
    from beir_cocodr.retrieval.store.shard import pack
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    rows = np.load(vectors, mmap_mode="r")
    identity = {"similarity": "cosine", "precision": "fp32", "shard_size": SHARD_SIZE}
    record = StoreRecord(identity, EncodedBy(None), count, rows.shape[1])
    folder.mkdir()
    store = EmbeddingStore(folder, record)
    store.write_record()
    for shard in store.shards:
        shard.write(pack(rows[shard.start : shard.stop], "fp32"))


def prepare_ours(method: str, options: argparse.Namespace) -> Callable[[], Any]:
    from beir_cocodr.resampling.similarity import nearest
    from beir_cocodr.retrieval import products
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    if method == "float32":
        products.multiplies_bytes = lambda: False
        method = "exact"
    if method == "faiss":
        import faiss

        faiss.omp_set_num_threads(options.threads)
    stored = EmbeddingStore.found(options.folder / f"train-{options.train_queries}")
    test = np.load(options.folder / "test.npy")
    return lambda: nearest(stored, test, options.k, method).rows


def prepare_restrain(options: argparse.Namespace) -> Callable[[], Any]:
    from beir_cocodr.resampling import RestrainOptions
    from beir_cocodr.resampling.restrain import ranks_for_targets, restrain
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    stored = EmbeddingStore.found(options.folder / f"train-{options.train_queries}")
    test = np.load(options.folder / "test.npy")
    sizes = tuple(round(share * options.train_queries) for share in SIZES.values())

    def run() -> Any:
        ranks, depth = ranks_for_targets(stored, test, RestrainOptions(sizes=sizes))
        found = restrain(ranks, depth, RestrainOptions(sizes=sizes))
        return np.array(
            [[one.k, len(one.interpolation), len(one.extrapolation)] for one in found.sets]
        )

    return run


def prepare_loop(options: argparse.Namespace) -> Callable[[], Any]:
    test = np.load(options.folder / "test.npy")[: max(1, options.test_queries // PART)]

    def run() -> Any:
        train = np.load(options.folder / "train.npy")[: options.train_queries]
        found = np.empty((len(test), options.k), np.int64)
        for row, query in enumerate(test):
            best, scores = np.empty(0, np.int64), np.empty(0, np.float32)
            for start in range(0, len(train), BLOCK):
                product = train[start : start + BLOCK] @ query
                candidates = np.argpartition(-product, min(options.k, len(product)) - 1)[
                    : options.k
                ]
                best = np.concatenate([best, candidates + start])
                scores = np.concatenate([scores, product[candidates]])
            found[row] = best[np.argsort(-scores, kind="stable")[: options.k]]
        return found

    return run


#: Measurement to (what it is, how it is made ready).
MEASUREMENTS: dict[str, tuple[str, Callable[[argparse.Namespace], Callable[[], Any]]]] = {
    "exact": ("nearest, by matrix product", lambda options: prepare_ours("exact", options)),
    "float32": (
        "nearest, by matrix product in float32 alone",
        lambda options: prepare_ours("float32", options),
    ),
    "faiss": ("nearest, by FAISS", lambda options: prepare_ours("faiss", options)),
    "restrain": (f"ReSTrain at {', '.join(SIZES)} of 500k", prepare_restrain),
    "loop": (f"a double loop in numpy, over 1/{PART} of the test queries", prepare_loop),
}


def worker(options: argparse.Namespace) -> None:
    """Measure one thing and print it; what it found goes to a file."""
    import torch

    torch.set_num_threads(options.threads)
    run = MEASUREMENTS[options.worker][1](options)
    baseline = peak_memory()
    seconds = []
    for _ in range(options.repeats):
        started = time.perf_counter()
        found = run()
        seconds.append(time.perf_counter() - started)
    np.save(options.folder / f"found-{options.worker}.npy", found)
    peak = (peak_memory() - baseline) / MIB
    print(json.dumps({"seconds": seconds, "peak_mib": peak}))


def ask(name: str, options: argparse.Namespace, folder: Path, **changes: Any) -> dict[str, Any]:
    """One measurement in a process of its own."""
    settings = {
        "train_queries": options.train_queries,
        "test_queries": options.test_queries,
        "dimensions": options.dimensions,
        "k": options.k,
        "threads": options.threads,
        "repeats": options.repeats,
        "folder": folder,
    } | changes
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    done = subprocess.run(
        [sys.executable, __file__, "--worker", name, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | dict.fromkeys(threads, str(options.threads)),
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    answer["median_seconds"] = statistics.median(answer["seconds"])
    print(f"{name} {changes or ''}: {answer['median_seconds']:.2f} s", file=sys.stderr)
    return answer


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folder = Path(name)
        write_vectors(folder / "train.npy", options.train_queries, options.dimensions, 0)
        write_vectors(folder / "test.npy", options.test_queries, options.dimensions, 1)
        sizes = [round(share * options.train_queries) for share in SHARES]
        for size in sizes:
            write_store(folder / f"train-{size}", folder / "train.npy", size)
        rivals = {}
        for measurement, (what, _) in MEASUREMENTS.items():
            repeats = {"repeats": 1} if measurement == "loop" else {}
            rivals[measurement] = {"what": what} | ask(measurement, options, folder, **repeats)
        found = {name: np.load(folder / f"found-{name}.npy") for name in MEASUREMENTS}
        growth = [
            {"train_queries": size, **ask("exact", options, folder, train_queries=size)}
            for size in sizes
        ]
    loop = found["loop"]
    whole = rivals["loop"]["median_seconds"] * options.test_queries / len(loop)
    return {
        "sizes": {
            key: getattr(options, key)
            for key in ("train_queries", "test_queries", "dimensions", "k", "threads")
        },
        "measurements": rivals,
        "loop_seconds_for_all": whole,
        "loop_to_ours": {name: whole / rivals[name]["median_seconds"] for name in OURS},
        "neighbours_in_common_with_loop": {
            name: float(
                np.mean(
                    [
                        len(np.intersect1d(a, b)) / len(b)
                        for a, b in zip(found[name], loop, strict=False)
                    ]
                )
            )
            for name in OURS
        },
        "restrain": [
            dict(zip(("k", "interpolation", "extrapolation"), row, strict=True))
            for row in found["restrain"].tolist()
        ],
        "growth": growth,
    }


def instructions() -> str:
    import torch

    from beir_cocodr.retrieval.products import multiplies_bytes

    return torch.backends.cpu.get_cpu_capability() + (" with VNNI" if multiplies_bytes() else "")


def show(report: dict[str, Any]) -> None:
    for name, found in report["measurements"].items():
        print(
            f"{name:9} {found['median_seconds']:8.2f} s, {found['peak_mib']:6.0f} MiB  ({found['what']})"
        )
    print(f"the loop over all test queries: {report['loop_seconds_for_all']:.1f} s")
    for name, ratio in report["loop_to_ours"].items():
        common = report["neighbours_in_common_with_loop"][name]
        print(f"loop / {name:6} {ratio:.1f}, {common:.4%} of neighbours in common")
    for found in report["growth"]:
        print(
            f"{found['train_queries']:9,} training queries: {found['median_seconds']:7.2f} s, "
            f"{found['peak_mib']:6.0f} MiB"
        )
    for row in report["restrain"]:
        print(
            "ReSTrain: k = {k}, {interpolation:,} and {extrapolation:,} training queries".format(
                **row
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--train-queries", type=int, default=500_000)
    parser.add_argument("--test-queries", type=int, default=7_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--scratch", type=Path, help="where the vectors go for a while; default: the system's"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--worker", choices=MEASUREMENTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    # A worker measures its memory: it imports no more than its measurement needs.
    from beir_cocodr.io import write_text
    from beir_cocodr.records import versions

    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine() | {"instructions": instructions()},
        "versions": {"python": platform.python_version(), "faiss-cpu": version("faiss-cpu")}
        | versions(),
        **measure(options),
    }
    show(report)
    write_text(options.output, json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
