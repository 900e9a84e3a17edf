"""Claim: the memory that a store needs does not grow with the corpus, and verifying it is free.

Texts are random and short, and the encoder is tiny and random, so that the store itself is
measured. Each step runs in a process of its own, by the package's own functions: the corpus is
converted, encoded, and searched. Two peaks are reported: what a process had allocated (RssAnon,
read every 20 ms), and the same with the pages of mapped files that happened to be in memory
(VmHWM), which the system takes back when it needs them.

With ``--verification`` the script measures how much longer a search takes when the files of a store
are compared with their checksums. Random float32 vectors are searched exactly with and without
verifying, in turns, in one process. On a busy machine the processor seconds say more than the
clock's.

The script prints the peaks or the ratios with their aims, and writes
``benchmarks/results/store.json``; either way of running it keeps the other's part. Linux only:

    python benchmarks/store.py [--sizes 10000 100000 1000000] [--processes 1]
    python benchmarks/store.py --verification [--documents 1000000] [--dimensions 384]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness.measure import (
    AllocatedMemory,
    check_bound,
    describe_target,
    process_status,
    run_child,
    say,
    seconds,
    thread_environment,
    timed,
)
from harness.script import add_integers, machine, option_parser, origin, read_json, write_results

#: The most that allocated memory may grow from the smallest corpus to the largest.
MOST_GROWTH_MIB = 64
#: The most that verification may add to the seconds of a search.
MOST_VERIFICATION = 0.05
QUERIES = 200
VOCABULARY = 2_000
TEXT_WORDS = (4, 12)
TOP_K = 100
STEPS = ("convert", "encode", "search")
#: Options that describe how a corpus is encoded and searched.
SHARED = ("shard_size", "token_budget", "processes", "threads")


def write_model(folder: Path) -> None:
    """Save a BERT of one layer and 32 dimensions with random weights, whose words are numbers."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names += [f"w{number}" for number in range(VOCABULARY)]
    tokenizer = BertTokenizer(vocab={name: row for row, name in enumerate(names)})
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(names),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_collection(folder: Path, documents: int) -> None:
    """Write a BEIR folder without judgements."""
    random = np.random.default_rng(documents)
    folder.mkdir()
    for name, count in (("corpus", documents), ("queries", QUERIES)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for row in range(count):
                words = random.integers(0, VOCABULARY, random.integers(*TEXT_WORDS))
                text = " ".join(f"w{word}" for word in words.tolist())
                file.write(
                    json.dumps(
                        {
                            "_id": f"{name[0]}{row}",
                            "text": text,
                        }
                    )
                    + "\n"
                )


def run_step(
    step: str,
    size: int,
    options: argparse.Namespace,
) -> None:
    """Do one step in this process, and print its seconds and peaks."""
    call = prepare_step(step, size, options)
    with AllocatedMemory() as memory:
        taken = seconds(call)
    say(
        {
            "seconds": taken,
            "peak_allocated_mib": memory.peak_mib,
            "peak_with_mapped_files_mib": process_status("VmHWM") / 1024,
        }
    )


def prepare_step(
    step: str,
    size: int,
    options: argparse.Namespace,
) -> Callable[[], Any]:
    """Return the call that does one step."""
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.evaluation.store_run import StoreSearchOptions, search
    from beir_cocodr.models.spec import EncoderOptions
    from beir_cocodr.retrieval.store.encode import encode
    from beir_cocodr.retrieval.store.record import EncodeOptions
    from beir_cocodr.retrieval.vectors.pool import Workers

    data = options.folder / f"data-{size}"
    store = options.folder / f"store-{size}"
    cpu = EncoderOptions(device="cpu")
    if step == "convert":
        return lambda: load_collection(data, labels="none")
    if step == "encode":
        settings = EncodeOptions(options.shard_size, token_budget=options.token_budget)
        return lambda: encode(
            str(data),
            str(options.folder / "model"),
            store,
            settings,
            workers=Workers(processes=options.processes, threads=options.threads),
            progress=True,
            encoder=cpu,
        )
    return lambda: search(
        store,
        str(data),
        options.folder / f"{size}.run",
        StoreSearchOptions(
            top_k=TOP_K, processes=options.processes, device="cpu", threads=options.threads
        ),
    )


def measure_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all steps over all sizes."""
    sizes: dict[str, Any] = {}
    shared = {name: getattr(options, name) for name in SHARED}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_model(folder / "model")
        environment = thread_environment(options.threads)
        environment["BEIR_COCODR_CACHE"] = str(folder / "cache")
        for size in options.sizes:
            write_collection(folder / f"data-{size}", size)
            figures: dict[str, Any] = {}
            for step in STEPS:
                values = {
                    "step": step,
                    "sizes": size,
                    "folder": folder,
                    **shared,
                }
                figures[step] = run_child(__file__, values, environment)
                print(f"{size} documents, {step}: {figures[step]}", file=sys.stderr)
            files = (folder / f"store-{size}").iterdir()
            figures["store_mib"] = sum(file.stat().st_size for file in files) / 2**20
            sizes[str(size)] = figures
    return {
        "corpora": sizes,
        "targets": targets(sizes),
    }


def targets(sizes: dict[str, Any]) -> dict[str, Any]:
    """Check how much memory grows from the smallest corpus to the largest."""
    corpora = list(sizes.values())
    growths = {}
    for step in ("encode", "search"):
        smallest = corpora[0][step]["peak_allocated_mib"]
        growth = corpora[-1][step]["peak_allocated_mib"] - smallest
        bound = check_bound(growth, at_most=MOST_GROWTH_MIB)
        growths[f"growth of {step}, MiB"] = {
            "value": growth,
            **bound,
        }
    return growths


def write_vectors(
    folder: Path,
    documents: int,
    dimensions: int,
) -> None:
    """Write a complete store of random vectors."""
    from beir_cocodr.data.documents import open_corpus, write_arrow
    from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodedBy, StoreRecord
    from beir_cocodr.retrieval.store.shard import pack
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    folder.mkdir()
    rows = ((0, f"d{row}", "", f"text {row}") for row in range(documents))
    write_arrow(folder / "corpus.arrow", rows)
    identity = {
        "similarity": "dot",
        "precision": "fp32",
        "shard_size": SHARD_SIZE,
    }
    store = EmbeddingStore(
        folder,
        StoreRecord(
            identity,
            EncodedBy(None),
            documents,
            dimensions,
        ),
    )
    store.write_record()
    random = np.random.default_rng(0)
    for shard in store.shards:
        vectors = random.standard_normal((len(shard), dimensions), np.float32)
        shard.write(pack(vectors, "fp32"))
    store.table.write(open_corpus(folder / "corpus.arrow"))


def time_searches(options: argparse.Namespace) -> None:
    """Search a store in turns with and without verifying, and print the seconds of each pair.

    A process verifies a file once. What it verified is therefore forgotten before each search.
    """
    import torch

    from beir_cocodr import checksums
    from beir_cocodr.retrieval.store.store import EmbeddingStore
    from beir_cocodr.retrieval.store.store_search import search_store
    from beir_cocodr.retrieval.vectors.pool import Workers

    torch.set_num_threads(options.threads)
    [count] = options.queries
    width = read_json(options.folder / "store.json")["dimensions"]
    vectors = np.random.default_rng(1).standard_normal((count, 384), np.float32)
    queries = torch.from_numpy(vectors)[:, :width]
    ids = [str(row) for row in range(count)]

    def search(verify: bool) -> None:
        store = EmbeddingStore.open(options.folder, verify)
        ranking = search_store(
            store,
            ids,
            queries,
            TOP_K,
            workers=Workers(threads=options.threads),
        )
        store.ids(ranking.rows.ravel())

    pairs = []
    for repeat in range(-1, options.repeats):
        figures = {}
        order = (True, False) if repeat % 2 else (False, True)
        for verify in order:
            checksums._verified.clear()
            _, timing = timed(lambda verify=verify: search(verify))
            figures["verify" if verify else "plain"] = {
                "seconds": timing.wall,
                "processor_seconds": timing.processor,
            }
        if repeat >= 0:  # The first pair is a warm-up.
            pairs.append(figures)
    say({"pairs": pairs})


def measure_verification(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the median of what a search that verifies takes, over the search next to it."""
    names = ("documents", "dimensions", "repeats", "threads")
    results: dict[str, Any] = {name: getattr(options, name) for name in names}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name) / "store"
        write_vectors(folder, options.documents, options.dimensions)
        for count in options.queries:
            load_before = os.getloadavg()
            values = {
                "step": "time",
                "queries": count,
                "folder": folder,
                "threads": options.threads,
                "repeats": options.repeats,
            }
            pairs = run_child(__file__, values)["pairs"]
            figures = compare_pairs(pairs)
            figures |= {
                "load_before": load_before,
                "load_after": os.getloadavg(),
            }
            print(f"{count} queries: {figures}", file=sys.stderr)
            results[f"{count} queries"] = figures | {"pairs": pairs}
    return {
        "machine": machine(),
        "top_k": TOP_K,
    } | results


def compare_pairs(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median ratios of both kinds of seconds, and whether they meet the aim."""
    at_most = 1 + MOST_VERIFICATION
    figures: dict[str, Any] = {"at_most": at_most}
    for unit in ("seconds", "processor_seconds"):
        ratios = [pair["verify"][unit] / pair["plain"][unit] for pair in pairs]
        median = float(np.median(ratios))
        figures[f"ratio_of_{unit}"] = median
        figures[f"ratio_of_{unit}_met"] = median <= at_most
    return figures


def describe(results: dict[str, Any]) -> str:
    """Return the lines that the script prints."""
    lines = []
    for size, figures in results["corpora"].items():
        for step in STEPS:
            allocated = f"{figures[step]['peak_allocated_mib']:5.0f} MiB allocated"
            mapped = f"{figures[step]['peak_with_mapped_files_mib']:5.0f} MiB with mapped files"
            taken = f"{figures[step]['seconds']:7.1f} s"
            lines.append(f"{int(size):9,} documents, {step:7} {taken}, peak {allocated}, {mapped}")
    for name, target in results["targets"].items():
        lines.append(describe_target(name, target["value"], target))
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "store")
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[10_000, 100_000, 1_000_000],
    )
    parser.add_argument(
        "--queries",
        type=int,
        nargs="+",
        default=[100, 1_000],
    )
    integers = {
        "--shard-size": (8_192, "Documents of a shard, below any size."),
        "--token-budget": (16_384, "Tokens of a batch."),
        "--processes": (1, "Processes that encode and search."),
        "--threads": (2, "Threads of a process."),
        "--documents": (1_000_000, "Documents of the verification."),
        "--dimensions": (384, "Dimensions of the verification, at most 384."),
        "--repeats": (7, "Pairs of searches of the verification."),
    }
    add_integers(parser, integers)
    parser.add_argument(
        "--folder",
        type=Path,
        help="Write the stores here. Default: the system's folder.",
    )
    parser.add_argument(
        "--verification",
        action="store_true",
        help="Measure the cost of verifying checksums.",
    )
    parser.add_argument(
        "--step",
        choices=[*STEPS, "time"],
        help=argparse.SUPPRESS,
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.step == "time":
        time_searches(options)
        return
    if options.step:
        run_step(options.step, options.sizes[0], options)
        return
    results = read_json(options.results) if options.results.is_file() else {}
    if options.verification:
        verification = measure_verification(options)
        results["verification"] = {"date": origin()["date"]} | verification
    else:
        shared = {name: getattr(options, name) for name in SHARED}
        sizes = shared | {
            "queries": QUERIES,
            "top_k": TOP_K,
            "dimensions": 32,
        }
        results |= origin() | {"sizes": sizes} | measure_memory(options)
        print(describe(results))
    write_results(options.results, results)


if __name__ == "__main__":
    main()
