"""Claim: writing a store is as fast as the host's encoding to memory, with the same embeddings.

One model in one process encodes the same texts in turns: sentence-transformers' ``encode_document``
in batches of 32, its default, which sorts texts by characters; ours by token budget, with shards
written and synced to disk; ours in batches of 32 texts as they come, which shows what budget and
sorting are worth; and ours in bfloat16. Ours includes everything that is done for each document:
reading, tokenising, checking for NaN, and writing. What is done once for a store, mainly
hashing the weights, is reported apart. Then follows nDCG@10 of every backend and precision.

The script prints documents a second, the aims and nDCG@10, and writes
``benchmarks/results/encode.json``:

    python benchmarks/encode.py [--documents 1024] [--repeats 3] [--model minilm] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.measure import check_bound, describe_target, paired_ratio, timed
from harness.script import option_parser, origin, write_results
from harness.texts import CORPORA

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.measures import interval, parse_measures, score_queries
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.retrieval.store.encode import encode_documents, encode_shard, prepare_store
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store_search import search_store
from beir_cocodr.retrieval.vectors import corpus_encoder
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder

#: The least that our documents a second may be of the host's.
LEAST_RATIO = 1.0
#: The most that an embedding of ours may differ from the host's.
MOST_DIFFERENCE = 1e-4
BATCH = 32
RIVALS = {
    "host": "sentence-transformers' encode_document, nothing written",
    "ours": "by token budget, shards written",
    "unsorted": f"in batches of {BATCH} texts as they come, shards written",
    "bf16": "by token budget in bfloat16, shards written",
}
#: Backends and precisions whose nDCG@10 is compared with the first.
KINDS = [
    ("fp32", "fp32"),
    ("fp32", "fp16"),
    ("fp32", "bf16"),
    ("fp32", "int8"),
    ("bf16", "fp32"),
]


@dataclass(frozen=True)
class Run:
    """One encoding of all texts.

    Attributes:
        seconds: Seconds of encoding and writing.
        preparation: Seconds of what is done once for a store.
        tokens: Tokens that the model saw, with padding.
        vectors: (N, d) embeddings.
    """

    seconds: float
    preparation: float
    tokens: int
    vectors: np.ndarray


class Encoders:
    """Everything that encodes the same documents with the same model."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.model: Any = load_encoder(options.model, EncoderOptions(device=options.device))
        corpus = write_sample(options.documents, folder / "corpus.jsonl")
        self.documents = load_collection(corpus, labels="none").documents
        document_text = self.model.text_format.document
        self.texts = [document_text(document) for document in self.documents.values()]
        self.folder = folder
        self.options = options
        self.tokens = 0
        self.model[0].register_forward_pre_hook(self._count, with_kwargs=True)

    def run(self, rival: str) -> Run:
        """Encode all texts once."""
        self.tokens = 0
        if rival != "host":
            return self._run_store(rival)
        vectors, timing = timed(
            lambda: self.model.encode_document(
                self.texts,
                batch_size=BATCH,
                show_progress_bar=False,
            )
        )
        return Run(
            timing.wall,
            0.0,
            self.tokens,
            vectors,
        )

    def _run_store(self, rival: str) -> Run:
        settings: Any = {"backend": "bf16" if rival == "bf16" else "fp32"}
        store_options = EncodeOptions(self.options.shard_size, **settings)
        by_budget = corpus_encoder.token_batches
        if rival == "unsorted":
            corpus_encoder.token_batches = batches_in_order
        try:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                return self._write_store(Path(folder), store_options)
        finally:
            corpus_encoder.token_batches = by_budget

    def _write_store(self, folder: Path, options: EncodeOptions) -> Run:
        budget = self.options.token_budget
        started = time.perf_counter()
        encoder = CorpusEncoder(
            self.model,
            self.documents,
            budget,
            options.backend,
        )
        devices = [str(self.model.device)]
        prepared = prepare_store(
            encoder,
            None,
            folder,
            options,
            devices,
        )
        store = prepared.store
        self.tokens = 0  # The preparation encodes a sample, which does not count.
        ready = time.perf_counter()
        for number in prepared.missing:
            encode_shard(store, encoder, number)
        ended = time.perf_counter()
        vectors = np.concatenate([chunk.numpy() for chunk in store.chunks()])
        return Run(
            ended - ready,
            ready - started,
            self.tokens,
            vectors,
        )

    def _count(
        self,
        module: Any,
        arguments: tuple[Any, ...],
        settings: dict[str, Any],
    ) -> None:
        self.tokens += int(arguments[0]["input_ids"].numel())


def write_sample(count: int, path: Path) -> Path:
    """Write documents of several corpora, each cut after 4 to 300 words, log-uniformly."""
    documents = []
    for name in CORPORA:
        documents += load_collection(name, labels="none").documents.items()
    if len(documents) < count:
        raise SystemExit(f"--documents {count}: there are only {len(documents)}; ask for fewer")
    random = np.random.default_rng(0)
    rows = random.permutation(len(documents))[:count]
    lengths = np.exp(random.uniform(np.log(4), np.log(300), count)).astype(int)
    with path.open("w") as file:
        for row, length in zip(rows, lengths, strict=True):
            document_id, document = documents[row]
            words = f"{document['title']} {document['text']}".split()
            line = {
                "_id": f"{row}-{document_id}",
                "text": " ".join(words[:length]),
            }
            file.write(json.dumps(line) + "\n")
    return path


def batches_in_order(lengths: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Make batches of one size without sorting the corpus, to replace ``token_batches``."""
    rows = np.arange(len(lengths))
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        yield batch[np.argsort(-lengths[batch], kind="stable")]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let all rivals take turns."""
    with tempfile.TemporaryDirectory() as folder:
        encoders = Encoders(options, Path(folder))
        runs: dict[str, list[Run]] = {rival: [] for rival in RIVALS}
        differences = dict.fromkeys(RIVALS, 0.0)
        names = list(RIVALS)
        for repeat in range(options.repeats + 1):
            first = repeat % len(names)  # The first place changes with every round.
            latest = {rival: encoders.run(rival) for rival in names[first:] + names[:first]}
            for rival, difference in differences_from_host(encoders.model, latest).items():
                differences[rival] = max(difference, differences[rival])
            if repeat > 0:  # The first round is a warm-up.
                for rival, run in latest.items():
                    runs[rival].append(run)
            times = [f"{rival} {run.seconds:.1f} s" for rival, run in latest.items()]
            print(f"round {repeat} of {options.repeats}: {', '.join(times)}", file=sys.stderr)
        texts = describe_texts(encoders)
    rivals = {}
    for rival in RIVALS:
        rivals[rival] = summarize(
            rival,
            runs[rival],
            options.documents,
            differences[rival],
        )
    return {
        "texts": texts,
        "rivals": rivals,
        "targets": targets(rivals),
    }


def differences_from_host(model: Any, runs: dict[str, Run]) -> dict[str, float]:
    """Return the largest difference of every rival's embeddings from the host's."""
    expected = runs["host"].vectors
    if model.similarity_fn_name == "cosine":
        expected = expected / np.linalg.norm(
            expected,
            axis=1,
            keepdims=True,
        )
    differences = {}
    for rival, run in runs.items():
        if rival != "host":
            differences[rival] = float(np.abs(run.vectors - expected).max())
    return differences


def describe_texts(encoders: Encoders) -> dict[str, Any]:
    """Count the tokens of the texts."""
    longest = encoders.model.text_format.document_length
    tokens = encoders.model.tokenizer(
        encoders.texts,
        truncation=True,
        max_length=longest,
    )
    lengths = np.array([len(ids) for ids in tokens["input_ids"]])
    quartiles = np.percentile(lengths, [0, 25, 50, 75, 100]).tolist()
    return {
        "tokens": int(lengths.sum()),
        "length_quartiles": quartiles,
    }


def summarize(
    rival: str,
    runs: list[Run],
    documents: int,
    difference: float,
) -> dict[str, Any]:
    """Summarise the runs of one rival."""
    times = [run.seconds for run in runs]
    median = statistics.median(times)
    return {
        "what": RIVALS[rival],
        "median_seconds": median,
        "seconds": times,
        "documents_per_second": documents / median,
        "tokens_with_padding": runs[0].tokens,
        "preparation_seconds": statistics.median(run.preparation for run in runs),
        "largest_difference_from_host": difference,
    }


def targets(rivals: dict[str, Any]) -> dict[str, Any]:
    """Compare throughputs, which are the inverse of times, and check the aims."""

    def throughput(above: str, below: str) -> dict[str, Any]:
        return paired_ratio(rivals[below]["seconds"], rivals[above]["seconds"])

    to_host = throughput("ours", "host")
    difference = rivals["ours"]["largest_difference_from_host"]
    return {
        "throughput ours / host": to_host | check_bound(to_host["median"], at_least=LEAST_RATIO),
        "throughput ours / unsorted": throughput("ours", "unsorted"),
        "throughput bf16 / ours": throughput("bf16", "ours"),
        "difference ours, host": {
            "value": difference,
            **check_bound(difference, at_most=MOST_DIFFERENCE),
        },
    }


def measure_quality(options: argparse.Namespace) -> dict[str, Any]:
    """Measure nDCG@10 of exact search by each backend and precision on one collection."""
    collection = load_collection(options.dataset)
    model: Any = load_encoder(options.model, EncoderOptions(device=options.device))
    queries = list(collection.queries)
    vectors = model.encode_queries(
        list(collection.queries.values()),
        convert_to_tensor=True,
        show_progress_bar=False,
    )
    measures = parse_measures("nDCG@10")
    scores: dict[str, np.ndarray] = {}
    for backend, precision in KINDS:
        settings: Any = {
            "backend": backend,
            "precision": precision,
        }
        with tempfile.TemporaryDirectory() as folder:
            store = encode_documents(
                model,
                collection.documents,
                folder,
                EncodeOptions(**settings),
            )
            ranking = search_store(
                store,
                queries,
                vectors,
                10,
            )
            results = ranking.results(collection.documents)
        name = f"backend {backend}, precision {precision}"
        [scores[name]] = score_queries(measures, collection.qrels, results).values()
        print(f"{name}: nDCG@10 {scores[name].mean():.4f}", file=sys.stderr)
    exact = scores["backend fp32, precision fp32"]
    means = {}
    for name, values in scores.items():
        loss = exact - values
        means[name] = {
            "mean": float(values.mean()),
            "loss": float(loss.mean()),
            "loss_interval": interval(loss),
        }
    return {
        "dataset": options.dataset,
        "documents": len(collection.documents),
        "queries": len(queries),
        "nDCG@10": means,
    }


def describe(results: dict[str, Any]) -> str:
    """Return the lines that the script prints."""
    lines = []
    for rival, figures in results["rivals"].items():
        speed = f"{figures['documents_per_second']:7.1f} documents/s"
        tokens = f"{figures['tokens_with_padding']} tokens with padding"
        difference = f"differs by {figures['largest_difference_from_host']:.1e}"
        lines.append(f"{rival:9} {speed}, {tokens}, {difference}  ({figures['what']})")
    for name, target in results["targets"].items():
        if "median" in target:
            lines.append(describe_target(name, target["median"], target))
    for name, figures in results["quality"]["nDCG@10"].items():
        lines.append(f"{name}: nDCG@10 {figures['mean']:.4f}, loss {figures['loss']:+.4f}")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "encode")
    parser.add_argument(
        "--documents",
        type=int,
        default=1024,
        help="Texts to encode.",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="Timed rounds after a warm-up.",
    )
    parser.add_argument("--model", default="minilm")
    parser.add_argument(
        "--dataset",
        default="apidocs/scipy",
        help="Measure nDCG@10 on this dataset.",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--shard-size",
        type=int,
        default=256,
        help="Documents of a shard.",
    )
    parser.add_argument(
        "--token-budget",
        type=int,
        help="Tokens of a batch, by device if left out.",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    names = ("documents", "repeats", "model", "device", "shard_size", "token_budget", "threads")
    sizes = {name: getattr(options, name) for name in names}
    results = origin() | {
        "sizes": sizes
        | {
            "batch_size": BATCH,
            "corpora": CORPORA,
        }
    }
    results |= measure(options)
    results["quality"] = measure_quality(options)
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
