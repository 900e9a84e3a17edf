"""Documents a second while a store is written, against sentence-transformers' own encode.

One model in one process encodes the same texts by turns: sentence-transformers' ``encode_document``
in batches of 32 (its default, sorted by characters), ours by token budget with shards written and
synced to disk, ours in batches of 32 texts as they come (what budget and sorting are worth), and
ours in bfloat16. Ours counts all that is done for each document: reading, tokenising twice,
checking for NaN, writing. What is done once for a store, hashing the weights above all, is given
apart. Then nDCG@10 of every backend and precision.

    python benchmarks/encode.py [--documents 1024] [--repeats 3] [--model minilm] [--device cpu]

Writes benchmarks/results/encode.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

from beir_cocodr.models.spec import EncoderOptions

RESULTS = Path(__file__).parent / "results" / "encode.json"
#: The least that ours may have of the host's documents a second, and the most that embeddings may
#: differ.
LEAST_RATIO, MOST_DIFFERENCE = 1.0, 1e-4
CORPORA = ("apidocs/torch", "apidocs/scipy", "apidocs/pandas", "apidocs/numpy", "apidocs/sklearn")
BATCH = 32
WHAT = {
    "host": "sentence-transformers' encode_document, nothing written",
    "ours": "by token budget, shards written",
    "unsorted": f"in batches of {BATCH} texts as they come, shards written",
    "bf16": "by token budget in bfloat16, shards written",
}


class Rivals:
    """Everything that encodes the same documents with the same model."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        from beir_cocodr.data.collection import load_collection
        from beir_cocodr.models.loading import load_encoder

        self.model: Any = load_encoder(options.model, EncoderOptions(device=options.device))
        self.documents = load_collection(sample(options, folder), labels="none").documents
        self.texts = [
            self.model.text_format.document(document) for document in self.documents.values()
        ]
        self.folder, self.options = folder, options
        self.tokens = 0
        self.model[0].register_forward_pre_hook(self._count, with_kwargs=True)

    def run(self, rival: str) -> dict[str, Any]:
        """Encode once; seconds, tokens with padding, seconds of preparation, and (N, d) vectors."""
        self.tokens, prepared = 0, 0.0
        if rival == "host":
            started = time.perf_counter()
            vectors = self.model.encode_document(
                self.texts, batch_size=BATCH, show_progress_bar=False
            )
            seconds = time.perf_counter() - started
        else:
            prepared, seconds, vectors = self._store(rival)
        return {
            "seconds": seconds,
            "tokens": self.tokens,
            "preparation": prepared,
            "vectors": vectors,
        }

    def _store(self, rival: str) -> tuple[float, float, np.ndarray]:
        from beir_cocodr.retrieval import corpus_encoder
        from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
        from beir_cocodr.retrieval.store.encode import encode_shard, prepare_store
        from beir_cocodr.retrieval.store.record import EncodeOptions

        settings: Any = {"backend": "bf16" if rival == "bf16" else "fp32"}
        store_options = EncodeOptions(self.options.shard_size, **settings)
        by_budget = corpus_encoder.token_batches
        if rival == "unsorted":
            corpus_encoder.token_batches = in_order
        try:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                started = time.perf_counter()
                encoder = CorpusEncoder(
                    self.model, self.documents, self.options.token_budget, settings["backend"]
                )
                device = str(self.model.device)
                store, missing, _ = prepare_store(
                    encoder, None, Path(folder), store_options, [device]
                )
                self.tokens = 0  # the timed sample does not count
                begun = time.perf_counter()
                for number in missing:
                    encode_shard(store, encoder, number)
                ended = time.perf_counter()
                vectors = np.concatenate([chunk.numpy() for chunk in store.chunks()])
        finally:
            corpus_encoder.token_batches = by_budget
        return begun - started, ended - begun, vectors

    def _count(self, module: Any, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
        self.tokens += int(arguments[0]["input_ids"].numel())


def sample(options: argparse.Namespace, folder: Path) -> Path:
    """A corpus file of documents of several corpora, cut after 4 to 300 words, log-uniform."""
    from beir_cocodr.data.collection import load_collection

    every = [
        document
        for name in CORPORA
        for document in load_collection(name, labels="none").documents.items()
    ]
    random = np.random.default_rng(0)
    drawn = random.permutation(len(every))[: options.documents]
    words = np.exp(random.uniform(np.log(4), np.log(300), len(drawn))).astype(int)
    if len(drawn) < options.documents:
        raise SystemExit(f"there are only {len(every)} documents, not {options.documents}")
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        for row, most in zip(drawn, words, strict=True):
            id, document = every[row]
            text = " ".join(f"{document['title']} {document['text']}".split()[:most])
            file.write(json.dumps({"_id": f"{row}-{id}", "text": text}) + "\n")
    return path


def in_order(lengths: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Batches of one size without sorting, in place of ``token_batches``."""
    rows = np.arange(len(lengths))
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        yield batch[np.argsort(-lengths[batch], kind="stable")]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        rivals = Rivals(options, Path(folder))
        runs: dict[str, list[dict[str, Any]]] = {rival: [] for rival in WHAT}
        differences: dict[str, float] = {}
        names = list(WHAT)
        for repeat in range(options.repeats + 1):
            first = repeat % len(names)  # whoever comes first changes with every round
            found = {rival: rivals.run(rival) for rival in names[first:] + names[:first]}
            expected = found["host"]["vectors"]
            if rivals.model.similarity_fn_name == "cosine":
                expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
            for rival, run in found.items():
                difference = float(np.abs(run.pop("vectors") - expected).max())
                differences[rival] = (
                    max(difference, differences.get(rival, 0.0)) if rival != "host" else 0.0
                )
                if repeat:  # the first round warms up
                    runs[rival].append(run)
            print(
                f"round {repeat} of {options.repeats}: "
                + ", ".join(f"{rival} {run['seconds']:.1f} s" for rival, run in found.items()),
                file=sys.stderr,
            )
        limit = rivals.model.text_format.document_length
        tokens = rivals.model.tokenizer(rivals.texts, truncation=True, max_length=limit)[
            "input_ids"
        ]
        lengths = np.array([len(ids) for ids in tokens])
        report = {
            "texts": {
                "tokens": int(lengths.sum()),
                "length_quartiles": np.percentile(lengths, [0, 25, 50, 75, 100]).tolist(),
            },
            "rivals": {
                rival: summary(rival, runs[rival], options, differences[rival]) for rival in WHAT
            },
        }
    report["targets"] = targets(report["rivals"], runs)
    return report


def summary(
    rival: str, runs: list[dict[str, Any]], options: argparse.Namespace, difference: float
) -> dict[str, Any]:
    median = statistics.median(run["seconds"] for run in runs)
    return {
        "what": WHAT[rival],
        "median_seconds": median,
        "seconds": [run["seconds"] for run in runs],
        "documents_per_second": options.documents / median,
        "tokens_with_padding": runs[0]["tokens"],
        "preparation_seconds": statistics.median(run["preparation"] for run in runs),
        "largest_difference_from_host": difference,
    }


def targets(rivals: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    def ratio(above: str, below: str) -> dict[str, Any]:
        rounds = [
            b["seconds"] / a["seconds"] for a, b in zip(runs[above], runs[below], strict=True)
        ]
        return {
            "median": rivals[below]["median_seconds"] / rivals[above]["median_seconds"],
            "rounds": rounds,
        }

    throughput, difference = ratio("ours", "host"), rivals["ours"]["largest_difference_from_host"]
    return {
        "throughput ours / host": throughput
        | {"at_least": LEAST_RATIO, "met": throughput["median"] >= LEAST_RATIO},
        "throughput ours / unsorted": ratio("ours", "unsorted"),
        "throughput bf16 / ours": ratio("bf16", "ours"),
        "difference ours, host": {
            "value": difference,
            "at_most": MOST_DIFFERENCE,
            "met": difference <= MOST_DIFFERENCE,
        },
    }


def quality(options: argparse.Namespace) -> dict[str, Any]:
    """nDCG@10 of exact search by each backend and precision on one collection."""
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.evaluation.measures import interval, parse_measures, score_queries
    from beir_cocodr.models.loading import load_encoder
    from beir_cocodr.retrieval.store.encode import encode_documents
    from beir_cocodr.retrieval.store.record import EncodeOptions
    from beir_cocodr.retrieval.store.store_search import search_store

    collection = load_collection(options.dataset)
    model = load_encoder(options.model, EncoderOptions(device=options.device))
    ids = list(collection.queries)
    vectors = model.encode_queries(
        list(collection.queries.values()), convert_to_tensor=True, show_progress_bar=False
    )
    kinds = [
        ("fp32", "fp32"),
        ("fp32", "fp16"),
        ("fp32", "bf16"),
        ("fp32", "int8"),
        ("bf16", "fp32"),
    ]
    scores: dict[str, np.ndarray] = {}
    for backend, precision in kinds:
        with tempfile.TemporaryDirectory() as folder:
            settings: Any = {"backend": backend, "precision": precision}
            store = encode_documents(model, collection.documents, folder, EncodeOptions(**settings))
            found = search_store(store, ids, vectors, 10).results(collection.documents)
        name = f"backend {backend}, precision {precision}"
        scores[name] = next(
            iter(score_queries(parse_measures("nDCG@10"), collection.qrels, found).values())
        )
        print(f"{name}: nDCG@10 {scores[name].mean():.4f}", file=sys.stderr)
    exact = scores["backend fp32, precision fp32"]
    return {
        "dataset": options.dataset,
        "documents": len(collection.documents),
        "queries": len(ids),
        "nDCG@10": {
            name: {
                "mean": float(values.mean()),
                "loss": float((exact - values).mean()),
                "loss_interval": interval(exact - values),
            }
            for name, values in scores.items()
        },
    }


def show(report: dict[str, Any]) -> None:
    verdicts: dict[bool, Callable[[dict[str, Any]], str]] = {
        True: lambda target: (
            f", at least {target['at_least']}: {'met' if target['met'] else 'MISSED'}"
        ),
        False: lambda target: "",
    }
    for rival, found in report["rivals"].items():
        speed, difference = found["documents_per_second"], found["largest_difference_from_host"]
        print(
            f"{rival:9} {speed:7.1f} documents/s, {found['tokens_with_padding']} tokens with padding, "
            f"differs by {difference:.1e}  ({found['what']})"
        )
    for name, target in report["targets"].items():
        if "median" in target:
            spread = f"{min(target['rounds']):.2f} to {max(target['rounds']):.2f}"
            print(f"{name}: {target['median']:.2f} ({spread}){verdicts['met' in target](target)}")
    for name, found in report["quality"]["nDCG@10"].items():
        print(f"{name}: nDCG@10 {found['mean']:.4f}, loss {found['loss']:+.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=1024)
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed rounds, after one that warms up"
    )
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--dataset", default="apidocs/scipy", help="of the quality")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shard-size", type=int, default=256, help="so that several are written")
    parser.add_argument("--token-budget", type=int, help="default: the device's own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    import torch

    from beir_cocodr.io import write_text
    from beir_cocodr.records import versions

    torch.set_num_threads(options.threads)
    names = ("documents", "repeats", "model", "device", "shard_size", "token_budget", "threads")
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version()} | versions(),
        "sizes": {name: getattr(options, name) for name in names}
        | {"batch_size": BATCH, "corpora": CORPORA},
        **measure(options),
        "quality": quality(options),
    }
    show(report)
    write_text(options.output, json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
