"""Peak memory of encoding and searching corpora of growing size: it should not grow with them.

Random short texts and a tiny random encoder, so that what is measured is the store. Each step runs
in a process of its own, by the package's own functions: the corpus is converted, then encoded, then
searched. Two peaks are given: what a process had allocated (RssAnon, looked at every 20 ms), and
that with the pages of mapped files that happened to be in memory (VmHWM), which the system takes
back when it needs them.

    python benchmarks/store.py [--sizes 10000 100000 1000000] [--processes 1]

With ``--verification`` it measures instead what a search costs more when the files of a store are
compared with their checksums: random float32 vectors are searched exactly with and without
verifying, in turns, in one process. On a busy machine the processor's seconds say more than those
that passed.

    python benchmarks/store.py --verification [--documents 1000000] [--dimensions 384] [--repeats 7]

Writes benchmarks/results/store.json, of which either leaves the other's part. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

RESULTS = Path(__file__).parent / "results" / "store.json"
#: The most that allocated memory may grow from the smallest corpus to the largest.
MOST_GROWTH_MIB = 64
QUERIES, WORDS, TEXT_WORDS, TOP_K = 200, 2_000, (4, 12), 100
STEPS = ("convert", "encode", "search")
#: The most that verification may add to a search.
MOST_VERIFICATION = 0.05


def write_model(folder: Path) -> None:
    """A BERT of one layer and 32 dimensions with random weights, whose words are numbers."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    names = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"w{number}" for number in range(WORDS)),
    ]
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
    """A BEIR folder without judgements."""
    random = np.random.default_rng(documents)
    folder.mkdir()
    for name, count in (("corpus", documents), ("queries", QUERIES)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for row in range(count):
                words = random.integers(0, WORDS, random.integers(*TEXT_WORDS))
                text = " ".join(f"w{word}" for word in words.tolist())
                file.write(json.dumps({"_id": f"{name[0]}{row}", "text": text}) + "\n")


class Peak:
    """Watches what this process has allocated."""

    def __init__(self) -> None:
        self.kib = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.kib = max(self.kib, status("RssAnon"))
            time.sleep(0.02)


def status(name: str) -> int:
    """A number of /proc/self/status, in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise SystemExit(f"the system does not say {name}; this benchmark needs Linux")


def worker(step: str, folder: Path, size: int, options: argparse.Namespace) -> None:
    """Do one step and print its seconds and peaks."""
    data, store = folder / f"data-{size}", folder / f"store-{size}"
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.evaluation.store_run import search
    from beir_cocodr.retrieval.store.encode import encode
    from beir_cocodr.retrieval.store.record import EncodeOptions

    peak, started = Peak(), time.perf_counter()
    if step == "convert":
        load_collection(data, labels="none")
    elif step == "encode":
        settings = EncodeOptions(options.shard_size, token_budget=options.token_budget)
        encode(
            str(data),
            str(folder / "model"),
            store,
            settings,
            options.processes,
            "cpu",
            options.threads,
            True,
        )
    else:
        run = folder / f"{size}.run"
        search(
            store,
            str(data),
            run,
            TOP_K,
            processes=options.processes,
            device="cpu",
            threads=options.threads,
        )
    seconds = time.perf_counter() - started
    peaks = {
        "peak_allocated_mib": peak.kib / 1024,
        "peak_with_mapped_files_mib": status("VmHWM") / 1024,
    }
    print(json.dumps({"seconds": seconds, **peaks}))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_model(folder / "model")
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, str(options.threads))
        environment |= {"BEIR_COCODR_CACHE": str(folder / "cache")}
        for size in options.sizes:
            write_collection(folder / f"data-{size}", size)
            found: dict[str, Any] = {}
            for step in STEPS:
                arguments = [
                    f"--{key.replace('_', '-')}={value}" for key, value in shared(options).items()
                ]
                command = [
                    sys.executable,
                    __file__,
                    *arguments,
                    "--worker",
                    step,
                    str(folder),
                    str(size),
                ]
                done = subprocess.run(
                    command, stdout=subprocess.PIPE, text=True, check=True, env=environment
                )
                found[step] = json.loads(done.stdout)
                print(f"{size} documents, {step}: {found[step]}", file=sys.stderr)
            files = list((folder / f"store-{size}").iterdir())
            found["store_mib"] = sum(file.stat().st_size for file in files) / 2**20
            sizes[str(size)] = found
    return {"corpora": sizes, "targets": targets(sizes)}


def write_vectors(folder: Path, documents: int, dimensions: int) -> None:
    """A complete store of random vectors."""
    from beir_cocodr.data.documents import open_corpus, write_arrow
    from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodedBy, StoreRecord
    from beir_cocodr.retrieval.store.shard import pack
    from beir_cocodr.retrieval.store.store import EmbeddingStore

    folder.mkdir()
    write_arrow(
        folder / "corpus.arrow", ((0, f"d{row}", "", f"text {row}") for row in range(documents))
    )
    identity = {"similarity": "dot", "precision": "fp32", "shard_size": SHARD_SIZE}
    store = EmbeddingStore(folder, StoreRecord(identity, EncodedBy(None), documents, dimensions))
    store.write_record()
    random = np.random.default_rng(0)
    for shard in store.shards:
        shard.write(pack(random.standard_normal((len(shard), dimensions), np.float32), "fp32"))
    store.table.write(open_corpus(folder / "corpus.arrow"))


def timed_searches(folder: Path, queries: int, threads: int, repeats: int) -> None:
    """Open a store and search it, in turns with and without verifying, and print the seconds of
    each pair.

    What a process verified it does not verify again, so that is forgotten before each.
    """
    import torch

    from beir_cocodr import checksums
    from beir_cocodr.retrieval.store.store import EmbeddingStore
    from beir_cocodr.retrieval.store.store_search import search_store

    torch.set_num_threads(threads)
    vectors = torch.from_numpy(np.random.default_rng(1).standard_normal((queries, 384), np.float32))
    width = json.loads((folder / "store.json").read_text())["dimensions"]

    def seconds(verify: bool) -> dict[str, float]:
        checksums._verified.clear()
        started, used = time.perf_counter(), time.process_time()
        store = EmbeddingStore.open(folder, verify)
        ranking = search_store(
            store, [str(row) for row in range(queries)], vectors[:, :width], TOP_K, threads=threads
        )
        store.ids(ranking.rows.ravel())
        return {
            "seconds": time.perf_counter() - started,
            "processor_seconds": time.process_time() - used,
        }

    pairs = []
    for repeat in range(-1, repeats):  # the first warms up
        pair = {
            verify: seconds(verify) for verify in ((True, False) if repeat % 2 else (False, True))
        }
        if repeat >= 0:
            pairs.append({"verify": pair[True], "plain": pair[False]})
    print(json.dumps(pairs))


def measure_verification(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of every search, and the median of what each that verifies took over the one next to
    it.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name) / "store"
        write_vectors(folder, options.documents, options.dimensions)
        for queries in options.queries:
            command = [
                sys.executable,
                __file__,
                f"--threads={options.threads}",
                f"--repeats={options.repeats}",
            ]
            before = os.getloadavg()
            command += ["--timed", str(folder), str(queries)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            pairs = json.loads(done.stdout)
            medians = {
                f"ratio_of_{unit}": float(
                    np.median([pair["verify"][unit] / pair["plain"][unit] for pair in pairs])
                )
                for unit in ("seconds", "processor_seconds")
            }
            met = {f"{name}_met": value <= 1 + MOST_VERIFICATION for name, value in medians.items()}
            load = {"load_before": before, "load_after": os.getloadavg()}
            found[f"{queries} queries"] = {
                **medians,
                "at_most": 1 + MOST_VERIFICATION,
                **met,
                **load,
                "pairs": pairs,
            }
            print(f"{queries} queries: {medians}, {met}, {load}", file=sys.stderr)
    sizes = {
        name: getattr(options, name) for name in ("documents", "dimensions", "repeats", "threads")
    }
    return {"machine": machine(), **sizes, "top_k": TOP_K, **found}


def shared(options: argparse.Namespace) -> dict[str, Any]:
    return {
        name: getattr(options, name)
        for name in ("shard_size", "token_budget", "processes", "threads")
    }


def targets(sizes: dict[str, Any]) -> dict[str, Any]:
    first, *_, last = sizes.values()
    found = {}
    for step in ("encode", "search"):
        growth = last[step]["peak_allocated_mib"] - first[step]["peak_allocated_mib"]
        found[f"growth of {step}, MiB"] = {
            "value": growth,
            "at_most": MOST_GROWTH_MIB,
            "met": growth <= MOST_GROWTH_MIB,
        }
    return found


def show(report: dict[str, Any]) -> None:
    for size, found in report["corpora"].items():
        for step in STEPS:
            allocated, mapped = (
                found[step][f"peak_{kind}_mib"] for kind in ("allocated", "with_mapped_files")
            )
            print(
                f"{int(size):9,} documents, {step:7} {found[step]['seconds']:7.1f} s, "
                f"peak {allocated:5.0f} MiB allocated, {mapped:5.0f} MiB with mapped files"
            )
    for name, target in report["targets"].items():
        verdict = "met" if target["met"] else "MISSED"
        print(f"{name}: {target['value']:.0f}, at most {target['at_most']}: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--shard-size", type=int, default=8_192, help="below the smallest corpus")
    parser.add_argument("--token-budget", type=int, default=16_384)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, help="with room for the stores; default: the system's temporary one"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--worker", nargs=3, metavar=("STEP", "FOLDER", "SIZE"), help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--verification", action="store_true", help="measure what verifying checksums costs"
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dimensions", type=int, default=384, help="at most 384")
    parser.add_argument("--queries", type=int, nargs="+", default=[100, 1_000])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--timed", nargs=2, metavar=("FOLDER", "QUERIES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.timed:
        timed_searches(
            Path(options.timed[0]), int(options.timed[1]), options.threads, options.repeats
        )
        return
    if options.worker:
        step, folder, size = options.worker
        worker(step, Path(folder), int(size), options)
        return
    from beir_cocodr.io import write_text
    from beir_cocodr.records import versions

    before = json.loads(options.output.read_text()) if options.output.is_file() else {}
    if options.verification:
        before["verification"] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds")
        } | measure_verification(options)
        write_text(options.output, json.dumps(before, indent=2) + "\n")
        return
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version()} | versions(),
        "sizes": shared(options) | {"queries": QUERIES, "top_k": TOP_K, "dimensions": 32},
        **measure(options),
        **({"verification": before["verification"]} if "verification" in before else {}),
    }
    show(report)
    write_text(options.output, json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
