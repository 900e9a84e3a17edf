"""What pre-training's input costs, beside what a GPU would take: spans drawn, tokenised and masked,
pairs a second.

The rows of COCO's training set (two spans of a document of the packages' documentation, whole, and
cut into passages of 56 words, as MS MARCO's are) are read as the trainer reads them, without loader
workers and with some: pairs a second by the clock, and processor seconds a pair, which depend less
on what else the machine does. Beside them the tokens of a corpus, counted once and then read from
the cache. A GPU's appetite is a guess, as none was measured: the operations of a step with gradient
caching, over what benchmarks/reproduce/throughputs.json assumes that a GPU sustains. Writes
benchmarks/results/input.json. Run as:

    OMP_NUM_THREADS=1 python benchmarks/input.py [--batches 20] [--workers 0 1 2]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from gradient_cache import CORPORA
from machine import ROOT, machine
from torch.utils.data import DataLoader, RandomSampler

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.documents import open_corpus, write_arrow
from beir_cocodr.io import write_text
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.records import versions
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.pretrain_data import DocumentViews, token_counts

RESULTS = Path(__file__).parent / "results" / "input.json"
BATCH, SEED, WORDS = 256, 42, 56

#: BERT-base: weights of its layers and of the Condenser head's two, multiplied for each token of a
#: span of at most 32; and of the vocabulary, for the 15% that are masked, by two heads.
WEIGHTS, VOCABULARY, TOKENS, MASKED = 99e6, 23.4e6, 32, 0.15
#: Of each weight and token: forward for the cache, forward again, and backward, an addition beside
#: each product.
OPERATIONS = 2 + 2 + 4


def spent() -> float:
    """Processor seconds of this process and of those it waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def passages(folder: Path) -> Collection:
    """Pieces of the documents, as long as MS MARCO's passages are on average."""
    texts = (
        document["text"].split()
        for name in CORPORA
        for document in load_collection(name).documents.values()
    )
    cut = (
        " ".join(words[i : i + WORDS])
        for words in texts
        for i in range(0, len(words) - WORDS // 2, WORDS)
    )
    write_arrow(folder / "passages.arrow", ((0, f"p{i}", "", text) for i, text in enumerate(cut)))
    return replace(
        load_collection(CORPORA[0], labels="none"), documents=open_corpus(folder / "passages.arrow")
    )


def read(views: DocumentViews, workers: int, batches: int) -> dict[str, float]:
    """Some batches after the first, which starts the workers."""
    rows = views.dataset()
    sampler = RandomSampler(rows, replacement=True, num_samples=(batches + 1) * BATCH)
    loader = DataLoader(
        rows, BATCH, sampler=sampler, collate_fn=views.collator(), num_workers=workers
    )
    began, reading = spent(), iter(loader)
    next(reading)
    clock = time.perf_counter()
    for _ in reading:
        pass
    wall = time.perf_counter() - clock
    del reading  # ends the workers, so that their processor seconds are known
    pairs = batches * BATCH
    return {
        "pairs_per_second": round(pairs / wall, 1),
        "cpu_ms_per_pair": round(1000 * (spent() - began) / pairs, 3),
    }


def counting(views: DocumentViews) -> dict[str, float]:
    """Tokens of the corpora, the first time and from the cache."""
    tokens = np.concatenate(
        [token_counts(one.documents, views.model)[:, 0] for one in views.collections]
    )
    found: dict[str, float] = {"tokens_per_document": round(float(tokens.mean()), 1)}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["BEIR_COCODR_CACHE"] = cache
        for when in ("first", "again"):
            began = spent()
            for collection in views.collections:
                token_counts(collection.documents, views.model)
            found[f"{when}_cpu_seconds"] = round(spent() - began, 3)
        del os.environ["BEIR_COCODR_CACHE"]
    return {"documents": int(views.bounds[-1]), **found}


def appetite() -> dict[str, Any]:
    """Pairs a second of COCO that one GPU trains on, by the assumed operations a second."""
    gpu = json.loads((ROOT / "benchmarks" / "reproduce" / "throughputs.json").read_text())["gpu"]
    pair = 2 * TOKENS * OPERATIONS * (WEIGHTS + 2 * MASKED * VOCABULARY)
    return {
        "device": gpu["device"],
        "measured": gpu["measured"],
        "gflop_per_pair": round(pair / 1e9, 1),
        "pairs_per_second": round(gpu["sustained_tflops"] * 1e12 / pair),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=20, help=f"of {BATCH} pairs")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    model = load_encoder("minilm", EncoderOptions(device="cpu"))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    wanted, parts = appetite(), {}
    with tempfile.TemporaryDirectory() as folder:
        texts = {"documents": [load_collection(name, labels="none") for name in CORPORA]}
        texts["passages"] = [passages(Path(folder))]
        for name, collections in texts.items():
            views = DocumentViews(collections, model, PretrainOptions(seed=SEED))
            found = {str(workers): read(views, workers, given.batches) for workers in given.workers}
            slowest = max(one["cpu_ms_per_pair"] for one in found.values())
            cores = round(wanted["pairs_per_second"] * slowest / 1000, 1)
            parts[name] = {"counting": counting(views), "workers": found, "cores_per_gpu": cores}
            print(name, json.dumps(parts[name]))
    content = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "settings": {
            "batch": BATCH,
            "batches": given.batches,
            "seed": SEED,
            "passage_words": WORDS,
        },
        "texts": parts,
        "gpu": wanted,
    }
    write_text(given.output, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
