"""Claim: 64 cores feed eight GPUs with COCO's pairs: spans drawn, tokenised and masked.

The rows of COCO's training set are two spans of a document. They are read as the trainer reads
them, without loader workers and with some, from the documentation of packages: whole documents, and
passages of 56 words, as MS MARCO's are on average. Two ways take turns: with the places of tokens
that are kept since the corpus was tokenised once, and with documents tokenised again each time.
The script measures pairs a second by the clock, and processor seconds a pair, which depend less on
what else the machine does. Then it measures tokenising a corpus once and reading what is kept. The
appetite of a GPU is the operations of a step with gradient caching, over what the GPU measured in
``benchmarks/results/gpu.json`` sustained. Without that file it is a guess, by what
``benchmarks/reproduce/throughputs.json`` assumes.

The script prints the figures of both kinds of texts, and writes ``benchmarks/results/input.json``:

Then it draws batches without repeated texts for fine-tuning, by our sampler and by the host's, in
processor seconds a batch: from queries with up to 160 relevant documents, as NFCorpus has, and from
queries with one, as MS MARCO has. The keys of all texts are at hand. ``--sampler`` measures this
alone.

Last, it samples rows whose keys it has to make, in processor milliseconds a row: an epoch of
passages with generated queries, by keys that are kept of their texts and, as formerly, by reading
the texts of each row; and some batches of pairs for fine-tuning with hard negatives.
``--query-context`` measures this alone. ``--triplets`` measures alone how many triplets of
fine-tuning a core draws and tokenises, beside the triplets that a GPU takes by ``gpu.json``:

    OMP_NUM_THREADS=1 python benchmarks/input.py [--batches 20] [--workers 0 1 2] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from harness.measure import processor_seconds
from harness.script import option_parser, origin, read_json, write_results
from harness.texts import CORPORA, write_corpus
from reproduce.costs import throughputs
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler
from sentence_transformers.sentence_transformer.data_collator import (
    SentenceTransformerDataCollator,
)
from torch.utils.data import DataLoader, RandomSampler

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.documents import open_corpus, write_arrow
from beir_cocodr.data.text import MOST_CHARACTERS, TextFormat
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.training.batches import BatchKeys, WholeEpochs
from beir_cocodr.training.finetuning.pairs import TrainingPairs
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.pretraining.context_keys import query_counts
from beir_cocodr.training.pretraining.context_views import ContextViews
from beir_cocodr.training.pretraining.document_views import DocumentViews, token_counts
from beir_cocodr.training.pretraining.views import BARE_TOKENS

BATCH = 256
SEED = 42
#: The machine that is to be fed.
CORES = 64
GPUS = 8
#: Words of a passage.
WORDS = 56
#: Documents from which a hard negative is drawn.
DEPTH = 30
#: Pairs of fine-tuning that are sampled.
PAIRS = 10_240

#: Weights of BERT-base's layers and of the Condenser head's two, multiplied for every token.
WEIGHTS = 99e6
#: Weights of the vocabulary, multiplied for every masked token by each of two heads.
VOCABULARY = 23.4e6
#: The most tokens of a span, and the share of them that is masked.
TOKENS = 32
MASKED = 0.15
#: Operations of each weight and token: forward for the cache, forward again, and backward. A
#: product and an addition count as two.
OPERATIONS = 2 + 2 + 4

#: Tokens of a triplet's query, its relevant document and its hard negative.
TRIPLET_TOKENS = (64, 128, 128)
#: Weights of BERT-base's layers, and operations of each weight and token without a cache.
ENCODER_WEIGHTS = 85e6
PLAIN_OPERATIONS = 2 + 4


class TokenisingViews(DocumentViews):
    """Views that tokenise documents each time they draw from them, a batch at a time."""

    def _documents(self, rows: Sequence[int]) -> list[dict[str, str]]:
        documents = super()._documents(rows)
        texts = [self.model.text_format.document(document) for document in documents]
        read = [text[:MOST_CHARACTERS] for text in texts]
        tokens = self.model.tokenizer(read, return_offsets_mapping=True, **BARE_TOKENS)
        self.drawn = dict(zip(rows, tokens["offset_mapping"], strict=True))
        return documents

    def _places(self, row: int) -> Any:
        return self.drawn[row]


#: A way of reading to its views.
WAYS = {
    "kept": DocumentViews,
    "tokenised_again": TokenisingViews,
}


def load_passages(folder: Path) -> Collection:
    """Cut the documents of all corpora into passages."""
    rows = ((0, f"p{number}", "", text) for number, text in enumerate(_cut_passages()))
    write_arrow(folder / "passages.arrow", rows)
    collection = load_collection(CORPORA[0], labels="none")
    return replace(collection, documents=open_corpus(folder / "passages.arrow"))


def _cut_passages() -> Iterator[str]:
    for name in CORPORA:
        for document in load_collection(name).documents.values():
            words = document["text"].split()
            for start in range(0, len(words) - WORDS // 2, WORDS):
                yield " ".join(words[start : start + WORDS])


def read_batches(
    views: DocumentViews,
    workers: int,
    batches: int,
) -> dict[str, float]:
    """Read some batches after the first, which starts the workers."""
    rows = views.dataset()
    sampler = RandomSampler(
        rows,
        replacement=True,
        num_samples=(batches + 1) * BATCH,
    )
    loader = DataLoader(
        rows,
        BATCH,
        sampler=sampler,
        collate_fn=views.collator(),
        num_workers=workers,
    )
    before = processor_seconds()
    iterator = iter(loader)
    next(iterator)
    started = time.perf_counter()
    for _ in iterator:
        pass
    wall = time.perf_counter() - started
    del iterator  # This ends the workers, so that their processor seconds are known.
    pairs = batches * BATCH
    return {
        "pairs_per_second": round(pairs / wall, 1),
        "cpu_ms_per_pair": round(1000 * (processor_seconds() - before) / pairs, 3),
    }


def read_in_turns(
    views: dict[str, DocumentViews],
    options: argparse.Namespace,
) -> dict[str, dict[str, Any]]:
    """Read by all ways in turns, and return the medians for each number of workers."""
    figures: dict[str, dict[str, Any]] = {way: {} for way in views}
    for workers in options.workers:
        turns: dict[str, list[dict[str, float]]] = {way: [] for way in views}
        for _ in range(options.turns):
            for way, of_way in views.items():
                turns[way].append(read_batches(of_way, workers, options.batches))
        for way, measured in turns.items():
            figures[way][str(workers)] = {
                name: round(float(np.median([turn[name] for turn in measured])), 3)
                for name in measured[0]
            }
    return figures


def count_tokens(views: DocumentViews) -> dict[str, float]:
    """Count the tokens of the corpora, the first time and from the cache."""
    counts = [token_counts(one.documents, views.model)[:, 0] for one in views.collections]
    figures: dict[str, float] = {
        "documents": int(views.bounds[-1]),
        "tokens_per_document": round(float(np.concatenate(counts).mean()), 1),
    }
    with tempfile.TemporaryDirectory() as cache:
        os.environ["BEIR_COCODR_CACHE"] = cache
        for turn in ("first", "again"):
            before = processor_seconds()
            for collection in views.collections:
                token_counts(collection.documents, views.model)
            figures[f"{turn}_cpu_seconds"] = round(processor_seconds() - before, 3)
        del os.environ["BEIR_COCODR_CACHE"]
    return figures


def estimate_gpu() -> dict[str, Any]:
    """Estimate the pairs a second on which one GPU trains, by its operations a second."""
    gpu = throughputs()["gpu"]
    weights = WEIGHTS + 2 * MASKED * VOCABULARY
    operations = 2 * TOKENS * OPERATIONS * weights
    return {
        "device": gpu["device"],
        "measured": gpu["measured"],
        "gflop_per_pair": round(operations / 1e9, 1),
        "pairs_per_second": round(gpu["sustained_tflops"] * 1e12 / operations),
    }


def measure(
    collections: list[Collection],
    gpu: dict[str, Any],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Measure one kind of texts."""
    model = load_encoder("minilm", EncoderOptions(device="cpu"))
    pretrain = PretrainOptions(seed=SEED)
    views = {way: kind(collections, model, pretrain) for way, kind in WAYS.items()}
    figures = read_in_turns(views, options)
    slowest = {way: _slowest(by_workers) for way, by_workers in figures.items()}
    return {
        "counting": count_tokens(views["kept"]),
        "workers": figures["kept"],
        "tokenised_again": figures["tokenised_again"],
        "pairs_per_second_and_core": {way: round(1000 / ms) for way, ms in slowest.items()},
        "cores_per_gpu": round(gpu["pairs_per_second"] * slowest["kept"] / 1000, 1),
    }


def _slowest(by_workers: dict[str, dict[str, float]]) -> float:
    return max(figures["cpu_ms_per_pair"] for figures in by_workers.values())


@dataclass(frozen=True)
class Sampled:
    """Pairs from which batches are drawn.

    Attributes:
        queries: Queries.
        most: The most pairs of a query; their logarithm is uniform from 0 to that of this number.
        documents: Documents.
        batch: Pairs of a batch.
    """

    queries: int
    most: int
    documents: int
    batch: int

    def keys(self) -> BatchKeys:
        """Return the keys of all pairs, each with a hard negative."""
        rng = np.random.default_rng(SEED)
        counts = np.exp(rng.uniform(0, np.log(self.most), self.queries)).round().astype(int)
        shared = [
            frozenset([-1 - query, *rng.integers(self.documents, size=count).tolist()])
            for query, count in enumerate(counts)
        ]
        groups = np.repeat(np.arange(self.queries), counts).tolist()
        negatives = rng.integers(self.documents, size=len(groups)).tolist()
        return BatchKeys(len(groups), lambda pair: [negatives[pair]], groups, shared.__getitem__)


SAMPLED = {
    "1 to 160 relevant documents": Sampled(queries=2_600, most=160, documents=3_600, batch=16),
    "1 relevant document": Sampled(queries=100_000, most=1, documents=1_000_000, batch=256),
}


def measure_sampler(batches: int, turns: int) -> dict[str, Any]:
    """Return the median processor milliseconds of a batch, by our sampler and by the host's."""
    figures = {}
    for name, sampled in SAMPLED.items():
        keys = sampled.keys()
        milliseconds: dict[str, list[float]] = {"ours": [], "host": []}
        for _ in range(turns):
            drawn = {}
            for way, kind in (("ours", WholeEpochs), ("host", NoDuplicatesBatchSampler)):
                sampler = kind(
                    keys,
                    batch_size=sampled.batch,
                    drop_last=True,
                    generator=torch.Generator(),
                    seed=SEED,
                )
                before = processor_seconds()
                # Ours makes batches ahead, in a thread; all of them are counted.
                made = sampler._batches() if way == "ours" else iter(sampler)
                drawn[way] = list(islice(made, batches))
                milliseconds[way].append(1000 * (processor_seconds() - before) / batches)
            if drawn["ours"] != drawn["host"]:
                raise RuntimeError("the samplers draw different batches")
        ours, host = (round(median(milliseconds[way]), 2) for way in ("ours", "host"))
        figures[name] = {
            "cpu_ms_per_batch": ours,
            "host_cpu_ms_per_batch": host,
            "host_to_ours": round(host / ours, 1),
        }
    return figures


class ReadingViews(ContextViews):
    """Views that read the texts of each row also for its keys."""

    @cached_property
    def batch_keys(self) -> BatchKeys:
        """Return documents and texts."""
        return BatchKeys(len(self), lambda row: [f"\0{self.document[row]}", *self.texts(row)])


def draw_batches(
    keys: BatchKeys,
    epoch: int,
    most: int | None = None,
) -> tuple[list[list[int]], float]:
    """Draw batches of an epoch; return them, and the processor milliseconds of a row."""
    sampler = WholeEpochs(
        keys,
        batch_size=BATCH,
        drop_last=True,
        generator=torch.Generator(),
        seed=SEED,
    )
    sampler.set_epoch(epoch)
    before = processor_seconds()
    drawn = list(islice(sampler._batches(), most))
    return drawn, 1000 * (processor_seconds() - before) / (BATCH * len(drawn))


def generate_context(folder: Path, passages: int) -> Path:
    """Write passages with five queries each, and return their folder."""
    corpus = folder / "corpus"
    corpus.mkdir()
    write_corpus(corpus / "corpus.jsonl", islice(_cut_passages(), passages))
    queries = folder / "queries"
    generate_queries(str(corpus), "lexical", queries)
    return queries


def measure_query_context(passages: int, turns: int) -> dict[str, Any]:
    """Measure the sampler of query-as-context, and that of fine-tuning on the same queries."""
    model = load_encoder("minilm", EncoderOptions(device="cpu"))
    options = PretrainOptions.of(objective="qc", batch_size=BATCH, seed=SEED)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BEIR_COCODR_CACHE"] = f"{folder}/cache"
        queries = generate_context(Path(folder), passages)
        views = ContextViews([str(queries)], model, options)
        reading = ReadingViews([str(queries)], model, options)
        before = processor_seconds()
        kept = views.batch_keys
        making = processor_seconds() - before
        assert kept is not None
        milliseconds: dict[str, list[float]] = {"kept": [], "read": [], "fine-tuning": []}
        for epoch in range(turns):
            views.clock.epoch = reading.clock.epoch = epoch
            drawn, of_row = draw_batches(kept, epoch)
            milliseconds["kept"].append(of_row)
            expected, of_row = draw_batches(reading.batch_keys, epoch)
            milliseconds["read"].append(of_row)
            if drawn != expected:
                raise RuntimeError("the two ways draw different batches")
            milliseconds["fine-tuning"].append(draw_pairs(queries, model.text_format))
        del os.environ["BEIR_COCODR_CACHE"]
    texts = len(views) + int(query_counts(views.passages).sum())
    medians = {way: float(np.median(of_way)) for way, of_way in milliseconds.items()}
    return origin() | {
        "settings": {"passages": passages, "batch": BATCH, "turns": turns, "seed": SEED},
        "passages": len(views),
        "texts": texts,
        "microseconds_a_text_once": round(1e6 * making / texts, 2),
        "cpu_ms_per_row": round(medians["kept"], 4),
        "former_cpu_ms_per_row": round(medians["read"], 4),
        "former_to_now": round(medians["read"] / medians["kept"], 1),
        "rows_per_second": round(1000 / medians["kept"]),
        "finetuning_cpu_ms_per_row": round(medians["fine-tuning"], 4),
    }


def pairs_with_negatives(folder: Path, text_format: TextFormat) -> TrainingPairs:
    """Return pairs of generated queries and their passages, with hard negatives at random."""
    collection = load_collection(str(folder), "train")
    rng = np.random.default_rng(SEED)
    pool = {
        query: rng.integers(len(collection.documents), size=DEPTH) for query in collection.queries
    }
    options = FinetuneOptions(batch_size=BATCH, seed=SEED)
    return TrainingPairs(collection, text_format, options, pool)


def draw_pairs(folder: Path, text_format: TextFormat) -> float:
    """Return the processor milliseconds in which a pair with a hard negative is sampled.

    Each text is read once in a training, and none was before.
    """
    pairs = pairs_with_negatives(folder, text_format)
    return draw_batches(pairs.batch_keys(), epoch=0, most=PAIRS // BATCH)[1]


def read_triplets(pairs: TrainingPairs, model: COCODR, batches: int) -> float:
    """Return the processor milliseconds in which a triplet is drawn and tokenised."""
    rows = pairs.dataset()
    collator = SentenceTransformerDataCollator(
        preprocess_fn=model.preprocess,
        router_mapping=dict(pairs.column_tasks),
    )
    sampler = RandomSampler(rows, replacement=True, num_samples=batches * BATCH)
    loader = DataLoader(rows, BATCH, sampler=sampler, collate_fn=collator)
    before = processor_seconds()
    read = sum(len(batch["label"]) for batch in loader)
    return 1000 * (processor_seconds() - before) / read


def measure_triplets(batches: int, turns: int) -> dict[str, Any]:
    """Measure the input of fine-tuning with a hard negative, of 64 query and 128 document tokens.

    A GPU's appetite is that of BERT-base without a language-model head, in bfloat16.
    """
    lengths = EncoderOptions(
        query_length=TRIPLET_TOKENS[0],
        document_length=TRIPLET_TOKENS[1],
        device="cpu",
    )
    model = load_encoder("minilm", lengths)
    with tempfile.TemporaryDirectory() as folder:
        queries = generate_context(Path(folder), passages=2_000)
        pairs = pairs_with_negatives(queries, model.text_format)
        milliseconds = [read_triplets(pairs, model, batches) for _ in range(turns)]
    gpu = throughputs()["gpu"]
    operations = sum(TRIPLET_TOKENS) * PLAIN_OPERATIONS * ENCODER_WEIGHTS
    appetite = gpu["sustained_tflops"] * 1e12 / operations
    taken = median(milliseconds)
    return origin() | {
        "settings": {"batch": BATCH, "batches": batches, "turns": turns, "seed": SEED},
        "cpu_ms_per_triplet": round(taken, 3),
        "triplets_per_second_and_core": round(1000 / taken),
        "gpu": gpu["device"],
        "triplets_per_second_and_gpu": round(appetite),
        "cores_per_gpu": round(appetite * taken / 1000, 1),
    }


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "input")
    parser.add_argument(
        "--batches",
        type=int,
        default=20,
        help=f"Batches of {BATCH} pairs.",
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[0, 1, 2],
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=3,
        help="Rounds of both ways. Default: 3.",
    )
    parser.add_argument(
        "--sampler",
        action="store_true",
        help="Measure the sampler of batches alone, and keep what the results file has besides.",
    )
    parser.add_argument(
        "--query-context",
        action="store_true",
        help="Measure the sampler of query-as-context alone, and keep what the file has besides.",
    )
    parser.add_argument(
        "--triplets",
        action="store_true",
        help="Measure the triplets of fine-tuning alone, and keep what the file has besides.",
    )
    parser.add_argument(
        "--passages",
        type=int,
        default=10_000,
        help="Passages of query-as-context. Default: 10,000.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if options.query_context:
        context = measure_query_context(options.passages, options.turns)
        print("query_context", json.dumps(context))
        results = read_json(options.results) | {"query_context": context}
        write_results(options.results, results)
        return
    triplets = measure_triplets(options.batches, options.turns)
    print("triplets", json.dumps(triplets))
    if options.triplets:
        results = read_json(options.results) | {"triplets": triplets}
        write_results(options.results, results)
        return
    sampler = measure_sampler(options.batches, options.turns)
    print("sampler", json.dumps(sampler))
    if options.sampler:
        results = read_json(options.results) | {"sampler": sampler}
        write_results(options.results, results)
        return
    context = measure_query_context(options.passages, options.turns)
    print("query_context", json.dumps(context))
    gpu = estimate_gpu()
    documents = [load_collection(name, labels="none") for name in CORPORA]
    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        kinds = {
            "documents": documents,
            "passages": [load_passages(Path(folder))],
        }
        for name, collections in kinds.items():
            texts[name] = measure(collections, gpu, options)
            print(name, json.dumps(texts[name]))
    results = origin() | {
        "settings": {
            "batch": BATCH,
            "batches": options.batches,
            "turns": options.turns,
            "seed": SEED,
            "passage_words": WORDS,
        },
        "texts": texts,
        "sampler": sampler,
        "query_context": context,
        "triplets": triplets,
        "gpu": gpu,
        "pairs_per_second_and_core_needed": round(GPUS * gpu["pairs_per_second"] / CORES),
    }
    write_results(options.results, results)


if __name__ == "__main__":
    main()
