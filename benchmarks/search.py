"""Claim: exact search is twice as fast as BEIR's, as fast as FAISS flat, in less memory.

The encoder is not measured: every rival gets the same random embeddings, made beforehand. Each
rival runs in a process of its own, so that its peak memory is its own, and the processes take
turns, so that whatever else the machine does affects all of them. Memory is what a search needs
beyond libraries and embeddings. FAISS's index, a copy of the embeddings, counts in its memory, and
the time to fill it is reported apart.

The script prints seconds, memory and ratios with their aims, and writes
``benchmarks/results/search.json``:

    python benchmarks/search.py [--documents 100000] [--queries 1000] [--top-k 1000] [--repeats 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from harness.measure import (
    MIB,
    Timing,
    Worker,
    peak_memory,
    say,
    seconds,
    thread_environment,
    timed,
)
from harness.script import option_parser, origin, write_results

#: Pairs whose times are divided, to the least and the most that the ratio may be.
RATIOS = {
    ("beir", "ours_dictionaries"): (2.0, None),
    ("ours_arrays", "faiss"): (None, 1.05),
    ("ours_arrays", "product"): (None, 1.08),
    ("ours_arrays", "product_in_place"): (None, None),
    ("ours_arrays", "product_one_dnn"): (None, None),
    ("faiss", "product"): (None, None),
}
CHUNK = 50_000

#: (Q, k) scores and rows.
Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Embeddings:
    """The vectors that every rival searches.

    Attributes:
        queries: (Q, d) vectors.
        documents: (N, d) vectors.
    """

    queries: np.ndarray
    documents: np.ndarray


@dataclass(frozen=True)
class Prepared:
    """A rival that is ready to run.

    Attributes:
        run: What is timed.
        arrays: Turns its result into arrays; None if it selects nothing.
        preparation_seconds: Seconds that were needed beforehand.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], Arrays] | None = None
    preparation_seconds: float = 0.0


class LookupModel:
    """A BEIR model that looks embeddings up; texts are row numbers."""

    def __init__(self, embeddings: Embeddings) -> None:
        import torch

        self.queries = torch.from_numpy(embeddings.queries)
        self.documents = torch.from_numpy(embeddings.documents)

    def encode_queries(self, queries: list[str], **kwargs: Any) -> Any:
        return self.queries

    def encode_corpus(self, corpus: list[dict[str, str]], **kwargs: Any) -> Any:
        first = int(corpus[0]["text"])
        last = int(corpus[-1]["text"])
        # Texts are equally long, so that BEIR's sorting by length keeps their order, and a slice
        # without a copy is enough.
        assert last - first == len(corpus) - 1
        return self.documents[first : last + 1]


def prepare_dictionaries(
    search_class: Any,
    embeddings: Embeddings,
    top_k: int,
) -> Prepared:
    """Prepare a search that takes and returns dictionaries, as BEIR's does."""
    model = LookupModel(embeddings)
    search = search_class(
        model,
        corpus_chunk_size=CHUNK,
        show_progress_bar=False,
    )
    count = len(embeddings.documents)
    width = len(str(count))
    corpus = {
        f"d{row}": {
            "title": "",
            "text": f"{row:0{width}}",
        }
        for row in range(count)
    }
    queries = {f"q{row}": str(row) for row in range(len(embeddings.queries))}
    return Prepared(
        lambda: search.search(
            corpus,
            queries,
            top_k,
            "dot",
        ),
        _arrays_of_results,
    )


def _arrays_of_results(results: dict[str, dict[str, float]]) -> Arrays:
    scores = []
    rows = []
    for scores_of_query in results.values():
        ranking = sorted(scores_of_query.items(), key=lambda hit: -hit[1])
        scores.append([score for _, score in ranking])
        rows.append([int(document[1:]) for document, _ in ranking])
    return np.array(scores, dtype=np.float32), np.array(rows)


def prepare_arrays(
    search_chunks: Any,
    embeddings: Embeddings,
    top_k: int,
) -> Prepared:
    """Prepare our search of chunks, which returns tensors."""
    documents = embeddings.documents
    tie_ranks = np.random.default_rng(1).permutation(len(documents))

    def run() -> Any:
        starts = range(0, len(documents), CHUNK)
        chunks = (documents[start : start + CHUNK] for start in starts)
        return search_chunks(
            embeddings.queries,
            chunks,
            top_k,
            tie_ranks,
        )

    return Prepared(run, lambda result: (result[0].numpy(), result[1].numpy()))


def prepare_faiss(
    faiss: Any,
    embeddings: Embeddings,
    top_k: int,
) -> Prepared:
    """Prepare FAISS's flat index."""
    faiss.omp_set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    index = faiss.IndexFlatIP(embeddings.documents.shape[1])
    added = seconds(lambda: index.add(embeddings.documents))
    return Prepared(lambda: index.search(embeddings.queries, top_k), lambda arrays: arrays, added)


def prepare_product(
    torch: Any,
    embeddings: Embeddings,
    top_k: int,
) -> Prepared:
    """Prepare torch's product, with nothing selected."""
    model = LookupModel(embeddings)
    return Prepared(lambda: torch.mm(model.queries, model.documents.T))


def prepare_tiles(
    torch: Any,
    embeddings: Embeddings,
    top_k: int,
) -> Prepared:
    """Prepare torch's product tile by tile into the same memory."""
    model = LookupModel(embeddings)
    tiles = torch.tensor_split(model.documents, max(1, len(model.documents) // (CHUNK // 2)))
    memory = torch.empty(len(model.queries) * max(map(len, tiles)))

    def run() -> None:
        for tile in tiles:
            shape = (len(model.queries), len(tile))
            product = memory[: shape[0] * shape[1]].view(shape)
            torch.mm(model.queries, tile.T, out=product)

    return Prepared(run)


def prepare_one_dnn(
    torch: Any,
    embeddings: Embeddings,
    top_k: int,
) -> Prepared:
    """Prepare oneDNN's product, with nothing selected."""
    model = LookupModel(embeddings)
    product = torch.ops.mkldnn._linear_pointwise

    def run() -> None:
        for panel in torch.split(model.documents, 4_096):
            product(
                model.queries,
                panel,
                None,
                "none",
                [],
                "",
            )

    return Prepared(run)


@dataclass(frozen=True)
class Rival:
    """One way to search.

    Attributes:
        description: What is timed.
        prepare: Makes it ready.
        library: What it needs, as ``module:object``.
    """

    description: str
    prepare: Callable[[Any, Embeddings, int], Prepared]
    library: str


RIVALS = {
    "beir": Rival(
        "dictionaries",
        prepare_dictionaries,
        "beir.retrieval.search.dense:DenseRetrievalExactSearch",
    ),
    "ours_dictionaries": Rival(
        "dictionaries", prepare_dictionaries, "beir_cocodr.retrieval.exact:ExactSearch"
    ),
    "ours_arrays": Rival(
        "arrays", prepare_arrays, "beir_cocodr.retrieval.vectors.topk:search_chunks"
    ),
    "faiss": Rival("arrays, IndexFlatIP", prepare_faiss, "faiss"),
    "product": Rival("torch.mm, nothing selected", prepare_product, "torch"),
    "product_in_place": Rival(
        "torch.mm, tile by tile into the same memory", prepare_tiles, "torch"
    ),
    "product_one_dnn": Rival("oneDNN's product, nothing selected", prepare_one_dnn, "torch"),
}


def serve(name: str, options: argparse.Namespace) -> None:
    """Serve one rival: "run" answers its seconds, "save FILE" its memory."""
    import torch

    torch.set_num_threads(options.threads)
    rival = RIVALS[name]
    library = resolve_name(rival.library)  # imported before memory is measured
    random = np.random.default_rng(0)
    queries = random.standard_normal((options.queries, options.dimensions), dtype=np.float32)
    documents = random.standard_normal((options.documents, options.dimensions), dtype=np.float32)
    embeddings = Embeddings(queries, documents)
    baseline = peak_memory()
    prepared = rival.prepare(library, embeddings, options.top_k)
    peak = baseline
    result = None
    for line in sys.stdin:
        command, _, path = line.strip().partition(" ")
        if command == "run":
            result = None  # Two results at once would count twice in the peak.
            result, timing = timed(prepared.run)
            peak = peak_memory()
            say(
                {
                    "seconds": timing.wall,
                    "processor_seconds": timing.processor,
                }
            )
        elif command == "save":
            if prepared.arrays is not None:
                scores, rows = prepared.arrays(result)
                np.savez(
                    path,
                    scores=scores,
                    rows=rows,
                )
            say(
                {
                    "peak_mib": (peak - baseline) / MIB,
                    "preparation_seconds": prepared.preparation_seconds,
                }
            )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let all rivals take turns, and compare what they return."""
    names = ("documents", "queries", "dimensions", "top_k", "threads")
    sizes = {name: getattr(options, name) for name in names}
    # A thread that waits sleeps: otherwise it would count as busy and keep others from working.
    environment = thread_environment(options.threads) | {"OMP_WAIT_POLICY": "passive"}
    workers = {
        name: Worker(
            __file__,
            {
                "worker": name,
                **sizes,
            },
            environment,
        )
        for name in RIVALS
    }
    timings: dict[str, list[Timing]] = {name: [] for name in RIVALS}
    for repeat in range(options.repeats + 1):
        for name, worker in workers.items():
            time.sleep(0.3)  # The thread pool of the rival before goes to sleep.
            answer = worker.ask("run")
            if repeat > 0:  # The first round is a warm-up.
                timings[name].append(Timing(answer["seconds"], answer["processor_seconds"]))
        print(f"round {repeat} of {options.repeats}", file=sys.stderr)
    rivals, arrays = collect(workers, timings)
    beir = arrays["beir"]
    return {
        "sizes": sizes
        | {
            "repeats": options.repeats,
            "corpus_chunk": CHUNK,
        },
        "rivals": rivals,
        "ratios": {f"{above} / {below}": ratio(rivals, above, below) for above, below in RATIOS},
        "agreement_with_beir": {name: agreement(one, beir) for name, one in arrays.items()},
    }


def collect(
    workers: dict[str, Worker], timings: dict[str, list[Timing]]
) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """End the processes, and return the figures and the arrays of every rival."""
    rivals = {}
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, worker in workers.items():
            path = Path(folder) / f"{name}.npz"
            memory = worker.ask(f"save {path}")
            worker.close()
            times = [timing.wall for timing in timings[name]]
            rivals[name] = {
                "what": RIVALS[name].description,
                "best_seconds": min(times),
                "median_seconds": statistics.median(times),
                "processor_seconds": statistics.median(one.processor for one in timings[name]),
                "seconds": times,
                **memory,
            }
            if path.exists():
                with np.load(path) as saved:
                    arrays[name] = (saved["scores"], saved["rows"])
    return rivals, arrays


def ratio(
    rivals: dict[str, Any],
    above: str,
    below: str,
) -> dict[str, Any]:
    """Divide best, median and processor times, and check that all are within the limits."""
    least, most = RATIOS[above, below]
    ratios = {}
    for kind in ("best", "median", "processor"):
        key = f"{kind}_seconds"
        ratios[kind] = rivals[above][key] / rivals[below][key]
    is_met = True
    if least is not None:
        is_met = min(ratios.values()) >= least
    if most is not None:
        is_met = is_met and max(ratios.values()) <= most
    return ratios | {
        "at_least": least,
        "at_most": most,
        "met": is_met,
    }


def agreement(ours: Arrays, theirs: Arrays) -> dict[str, float]:
    """Return the largest difference of sorted scores, and the share of documents in common."""
    shares = []
    for our_rows, their_rows in zip(ours[1], theirs[1], strict=True):
        common = np.intersect1d(our_rows, their_rows)
        shares.append(len(common) / len(their_rows))
    return {
        "largest_score_difference": float(np.abs(ours[0] - theirs[0]).max()),
        "documents_in_common": float(np.mean(shares)),
    }


def describe(results: dict[str, Any]) -> str:
    """Return the lines that the script prints."""
    lines = []
    for name, rival in results["rivals"].items():
        times = f"best {rival['best_seconds']:.3f} s, median {rival['median_seconds']:.3f} s"
        lines.append(f"{name:18} {times}, {rival['peak_mib']:5.0f} MiB  ({rival['what']})")
    for name, ratios in results["ratios"].items():
        values = [f"{kind} {ratios[kind]:.2f}" for kind in ("best", "median", "processor")]
        lines.append(f"{name:25} {', '.join(values)}{_verdict(ratios)}")
    return "\n".join(lines)


def _verdict(ratios: dict[str, Any]) -> str:
    verdict = "met" if ratios["met"] else "MISSED"
    if ratios["at_least"] is not None:
        return f"  at least {ratios['at_least']}: {verdict}"
    if ratios["at_most"] is not None:
        return f"  at most {ratios['at_most']}: {verdict}"
    return ""


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "search")
    parser.add_argument(
        "--documents",
        type=int,
        default=100_000,
    )
    parser.add_argument(
        "--queries",
        type=int,
        default=1_000,
    )
    parser.add_argument(
        "--dimensions",
        type=int,
        default=768,
    )
    parser.add_argument(
        "--top-k",
        type=int,
        default=1_000,
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=7,
        help="Timed rounds after a warm-up.",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="Threads of every rival.",
    )
    parser.add_argument(
        "--worker",
        choices=list(RIVALS),
        help=argparse.SUPPRESS,
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.worker:
        serve(options.worker, options)
        return
    # A worker measures its memory, and therefore imports no more than its rival needs.
    import torch

    instructions = torch.backends.cpu.get_cpu_capability()
    results = origin("faiss-cpu", instructions=instructions) | measure(options)
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
