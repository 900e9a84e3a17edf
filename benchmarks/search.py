"""Search time and peak memory: ours against BEIR's exact search, FAISS flat and the bare matrix
product.

The encoder is not what is measured: every rival gets the same random embeddings, made beforehand.
Each runs in a process of its own, so that its peak memory is its own, and the processes take turns,
so that whatever else the machine does falls on all of them. Memory is what a search needs beyond
libraries and embeddings; FAISS's index, a copy of the embeddings, counts in its memory, and the
time to fill it is given apart.

    python benchmarks/search.py [--documents 100000] [--queries 1000] [--top-k 1000] [--repeats 7]

Writes benchmarks/results/search.json.
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
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
from machine import machine, peak_memory

RESULTS = Path(__file__).parent / "results" / "search.json"
#: Pairs whose times are divided, with the least and the most that the ratio may be.
RATIOS = {
    ("beir", "ours_dictionaries"): (2.0, None),
    ("ours_arrays", "faiss"): (None, 1.05),
    ("ours_arrays", "product"): (None, 1.08),
    ("ours_arrays", "product_in_place"): (None, None),
    ("ours_arrays", "product_one_dnn"): (None, None),
    ("faiss", "product"): (None, None),
}
CHUNK = 50_000
MIB = 1024 * 1024


class Embeddings(NamedTuple):
    queries: np.ndarray  # (Q, d)
    documents: np.ndarray  # (N, d)


class Prepared(NamedTuple):
    """What is timed, how its return value becomes (Q, k) scores and rows, and what was made
    beforehand.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], tuple[np.ndarray, np.ndarray]] | None
    preparation_seconds: float


class Stub:
    """A BEIR model that looks its embeddings up: texts are row numbers."""

    def __init__(self, embeddings: Embeddings) -> None:
        import torch

        self.queries = torch.from_numpy(embeddings.queries)
        self.documents = torch.from_numpy(embeddings.documents)

    def encode_queries(self, queries: list[str], **kwargs: Any) -> Any:
        return self.queries

    def encode_corpus(self, corpus: list[dict[str, str]], **kwargs: Any) -> Any:
        start, last = int(corpus[0]["text"]), int(corpus[-1]["text"])
        # Texts are equally long, so BEIR's sorting by length leaves them in order: a slice, without
        # a copy.
        assert last - start == len(corpus) - 1
        return self.documents[start : last + 1]


def prepare_dictionaries(search_class: Any, embeddings: Embeddings, top_k: int) -> Prepared:
    search = search_class(Stub(embeddings), corpus_chunk_size=CHUNK, show_progress_bar=False)
    width = len(str(len(embeddings.documents)))
    corpus = {
        f"d{row}": {"title": "", "text": f"{row:0{width}}"}
        for row in range(len(embeddings.documents))
    }
    queries = {f"q{row}": str(row) for row in range(len(embeddings.queries))}

    def arrays(results: dict[str, dict[str, float]]) -> tuple[np.ndarray, np.ndarray]:
        ranked = [sorted(found.items(), key=lambda hit: -hit[1]) for found in results.values()]
        scores = np.array([[score for _, score in hits] for hits in ranked], dtype=np.float32)
        return scores, np.array([[int(document[1:]) for document, _ in hits] for hits in ranked])

    return Prepared(lambda: search.search(corpus, queries, top_k, "dot"), arrays, 0.0)


def prepare_arrays(search_chunks: Any, embeddings: Embeddings, top_k: int) -> Prepared:
    tie_ranks = np.random.default_rng(1).permutation(len(embeddings.documents))

    def run() -> Any:
        starts = range(0, len(embeddings.documents), CHUNK)
        chunks = (embeddings.documents[start : start + CHUNK] for start in starts)
        return search_chunks(embeddings.queries, chunks, top_k, tie_ranks)

    return Prepared(run, lambda found: (found[0].numpy(), found[1].numpy()), 0.0)


def prepare_faiss(faiss: Any, embeddings: Embeddings, top_k: int) -> Prepared:
    faiss.omp_set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    index = faiss.IndexFlatIP(embeddings.documents.shape[1])
    started = time.perf_counter()
    index.add(embeddings.documents)
    added = time.perf_counter() - started
    return Prepared(lambda: index.search(embeddings.queries, top_k), lambda found: found, added)


def prepare_product(torch: Any, embeddings: Embeddings, top_k: int) -> Prepared:
    stub = Stub(embeddings)
    return Prepared(lambda: torch.mm(stub.queries, stub.documents.T), None, 0.0)


def prepare_tiles(torch: Any, embeddings: Embeddings, top_k: int) -> Prepared:
    stub = Stub(embeddings)
    tiles = torch.tensor_split(stub.documents, max(1, len(stub.documents) // (CHUNK // 2)))
    room = torch.empty(len(stub.queries) * max(map(len, tiles)))

    def run() -> None:
        for tile in tiles:
            size = len(stub.queries), len(tile)
            torch.mm(stub.queries, tile.T, out=room[: size[0] * size[1]].view(size))

    return Prepared(run, None, 0.0)


def prepare_one_dnn(torch: Any, embeddings: Embeddings, top_k: int) -> Prepared:
    stub, product = Stub(embeddings), torch.ops.mkldnn._linear_pointwise

    def run() -> None:
        for panel in torch.split(stub.documents, 4_096):
            product(stub.queries, panel, None, "none", [], "")

    return Prepared(run, None, 0.0)


#: Rival to (what is timed, how it is made ready, what of its library is needed).
RIVALS: dict[str, tuple[str, Callable[[Any, Embeddings, int], Prepared], str]] = {
    "beir": (
        "dictionaries",
        prepare_dictionaries,
        "beir.retrieval.search.dense:DenseRetrievalExactSearch",
    ),
    "ours_dictionaries": (
        "dictionaries",
        prepare_dictionaries,
        "beir_cocodr.retrieval.exact:ExactSearch",
    ),
    "ours_arrays": ("arrays", prepare_arrays, "beir_cocodr.retrieval.topk:search_chunks"),
    "faiss": ("arrays, IndexFlatIP", prepare_faiss, "faiss"),
    "product": ("torch.mm, nothing selected", prepare_product, "torch"),
    "product_in_place": ("torch.mm, tile by tile into the same memory", prepare_tiles, "torch"),
    "product_one_dnn": ("oneDNN's product, nothing selected", prepare_one_dnn, "torch"),
}


def worker(rival: str, options: argparse.Namespace) -> None:
    """Serve one rival: "run" on stdin answers {"seconds"}, "save FILE" answers {"peak_mib",
    ...}.
    """
    import torch

    torch.set_num_threads(options.threads)
    _, prepare, needed = RIVALS[rival]
    library = resolve_name(needed)  # imported before memory is measured
    random = np.random.default_rng(0)
    embeddings = Embeddings(
        random.standard_normal((options.queries, options.dimensions), dtype=np.float32),
        random.standard_normal((options.documents, options.dimensions), dtype=np.float32),
    )
    baseline = peak_memory()
    prepared = prepare(library, embeddings, options.top_k)
    for line in sys.stdin:
        command, _, path = line.strip().partition(" ")
        if command == "run":
            found = None  # two results at once would count twice in the peak
            started = time.perf_counter(), time.process_time()
            found = prepared.run()
            taken = time.perf_counter() - started[0], time.process_time() - started[1]
            peak = peak_memory()
            print(
                json.dumps(dict(zip(("seconds", "processor_seconds"), taken, strict=True))),
                flush=True,
            )
        elif command == "save":
            if prepared.arrays is not None:
                scores, rows = prepared.arrays(found)
                np.savez(path, scores=scores, rows=rows)
            extra = {
                "peak_mib": (peak - baseline) / MIB,
                "preparation_seconds": prepared.preparation_seconds,
            }
            print(json.dumps(extra), flush=True)


class Process:
    """A worker at the other end of a pipe."""

    def __init__(self, rival: str, arguments: list[str], threads: int) -> None:
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", rival, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Threads that wait sleep: otherwise they would count as at work, and keep the others
            # from it.
            env=os.environ | dict.fromkeys(names, str(threads)) | {"OMP_WAIT_POLICY": "passive"},
        )

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(command, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker died with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.communicate()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    names = ("documents", "queries", "dimensions", "top_k", "threads")
    sizes = {name: getattr(options, name) for name in names}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
    processes = {rival: Process(rival, arguments, options.threads) for rival in RIVALS}
    seconds: dict[str, list[dict[str, float]]] = {rival: [] for rival in RIVALS}
    for repeat in range(options.repeats + 1):
        for rival, process in processes.items():
            time.sleep(0.3)  # the thread pool of the one before goes to sleep
            taken = process.ask("run")
            if repeat:  # the first round warms up
                seconds[rival].append(taken)
        print(f"round {repeat} of {options.repeats}", file=sys.stderr)
    rivals, found = collect(processes, seconds)
    return {
        "sizes": sizes | {"repeats": options.repeats, "corpus_chunk": CHUNK},
        "rivals": rivals,
        "ratios": {f"{above} / {below}": ratio(rivals, above, below) for above, below in RATIOS},
        "agreement_with_beir": {name: agreement(found[name], found["beir"]) for name in found},
    }


def collect(
    processes: dict[str, Process], seconds: dict[str, list[dict[str, float]]]
) -> tuple[dict[str, Any], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """What is to be said of every rival, and the scores and rows it found; ends the processes."""
    rivals, found = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for rival, process in processes.items():
            path = Path(folder) / f"{rival}.npz"
            extra = process.ask(f"save {path}")
            process.close()
            times, busy = (
                [one[kind] for one in seconds[rival]] for kind in ("seconds", "processor_seconds")
            )
            rivals[rival] = {
                "what": RIVALS[rival][0],
                "best_seconds": min(times),
                "median_seconds": statistics.median(times),
                "processor_seconds": statistics.median(busy),
                "seconds": times,
                **extra,
            }
            if path.exists():
                with np.load(path) as arrays:
                    found[rival] = (arrays["scores"], arrays["rows"])
    return rivals, found


def ratio(rivals: dict[str, Any], above: str, below: str) -> dict[str, Any]:
    """Of best and of median times, and of processor times, which others on the machine leave as
    they are; and whether all are within the limits.
    """
    least, most = RATIOS[above, below]
    times = {kind: f"{kind}_seconds" for kind in ("best", "median", "processor")}
    found = {kind: rivals[above][key] / rivals[below][key] for kind, key in times.items()}
    low, high = min(found.values()), max(found.values())
    met = (least is None or low >= least) and (most is None or high <= most)
    return found | {"at_least": least, "at_most": most, "met": met}


def agreement(
    one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]
) -> dict[str, float]:
    """Largest difference of sorted scores, and the share of retrieved documents in common."""
    shared = [len(np.intersect1d(a, b)) / len(b) for a, b in zip(one[1], other[1], strict=True)]
    return {
        "largest_score_difference": float(np.abs(one[0] - other[0]).max()),
        "documents_in_common": float(np.mean(shared)),
    }


def show(report: dict[str, Any]) -> None:
    for name, rival in report["rivals"].items():
        times = f"best {rival['best_seconds']:.3f} s, median {rival['median_seconds']:.3f} s"
        print(f"{name:18} {times}, {rival['peak_mib']:5.0f} MiB  ({rival['what']})")
    for name, values in report["ratios"].items():
        limits = [f"{side} {values[side]}" for side in ("at_least", "at_most") if values[side]]
        verdict = f"  {limits[0]}: {'met' if values['met'] else 'MISSED'}" if limits else ""
        print(
            f"{name:25} {', '.join(f'{kind} {values[kind]:.2f}' for kind in ('best', 'median', 'processor'))}{verdict}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--dimensions", type=int, default=768)
    parser.add_argument("--top-k", type=int, default=1_000)
    parser.add_argument(
        "--repeats", type=int, default=7, help="timed rounds, after one that warms up"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of every rival")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--worker", choices=RIVALS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options)
        return
    # A worker measures its memory: it imports no more than its rival needs.
    import torch

    from beir_cocodr.io import write_text
    from beir_cocodr.records import versions

    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine() | {"instructions": torch.backends.cpu.get_cpu_capability()},
        "versions": {"python": platform.python_version(), "faiss-cpu": version("faiss-cpu")}
        | versions(),
        **measure(options),
    }
    show(report)
    write_text(options.output, json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
