"""A hybrid encoder of a large corpus: processor time and peak memory of fusing, and of folding all
documents in.

Documents are pieces of the installed packages' documentation, each with a word of its own, so that
the vocabulary has to be pruned. The dense vectors are given (random unit vectors in fp16), as
MiniLM would take hours for them. Each size is a process of its own, as peak memory never falls.
Writes benchmarks/results/fuse_scale.json. Run as:

    OMP_NUM_THREADS=1 python benchmarks/fuse_scale.py --work DIR --documents 100000 400000
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine

from beir_cocodr import fuse, load_collection, load_encoder
from beir_cocodr.data.documents import Documents
from beir_cocodr.io import write_text
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.records import versions
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.store.encode import encoded_by, identity_of
from beir_cocodr.retrieval.store.passes import pass_over
from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodeOptions, StoreRecord
from beir_cocodr.retrieval.store.store import EmbeddingStore

RESULTS = Path(__file__).parent / "results" / "fuse_scale.json"
SOURCES = "apidocs/stdlib+numpy+pandas+scipy+sklearn+torch"


def texts(count: int) -> Iterator[str]:
    """Pieces of 20 to 80 words, and a word of its own each."""
    words = [
        document["text"].split()
        for document in load_collection(SOURCES, labels="none").documents.values()
    ]
    rng = np.random.default_rng(0)
    for number in range(count):
        source = words[int(rng.integers(len(words)))]
        length = int(rng.integers(20, 81))
        start = int(rng.integers(max(1, len(source) - length)))
        yield f"{' '.join(source[start : start + length])} id{number}"


def given_store(folder: Path, documents: Documents) -> None:
    """A store in which every vector is random."""
    model, options, rng = (
        load_encoder("minilm"),
        EncodeOptions(precision="fp16"),
        np.random.default_rng(1),
    )
    identity = identity_of(CorpusEncoder(model, documents), options, SHARD_SIZE)
    width = int(model.get_embedding_dimension() or 0)
    folder.mkdir()
    store = EmbeddingStore(
        folder, StoreRecord(identity, encoded_by("minilm"), len(documents), width)
    )
    store.write_record()
    store.table.write(documents)
    for number, shard in enumerate(store.shards):
        vectors = rng.standard_normal((len(shard), width), dtype=np.float32)
        store.write(number, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), documents)


def run(count: int, work: Path) -> dict[str, Any]:
    """Processor seconds and peak memory of each step, from texts in a file on."""
    work.mkdir(parents=True, exist_ok=True)
    corpus = work / "corpus.jsonl"
    steps: dict[str, Any] = {}

    def step(name: str, began: float) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        steps[name] = {
            "processor_seconds": round(time.process_time() - began, 1),
            "peak_mib": peak >> 20,
        }
        print(count, name, steps[name], flush=True)

    with corpus.open("w") as file:
        file.writelines(
            json.dumps({"_id": str(i), "text": text}) + "\n" for i, text in enumerate(texts(count))
        )
    began = time.process_time()
    documents = load_collection(str(corpus), labels="none").documents
    step("read", began)
    given_store(work / "dense", documents)
    began = time.process_time()
    record = fuse("minilm", str(corpus), output=work / "model", stores=[work / "dense"])
    step("fuse", began)
    began = time.process_time()
    names = str(corpus), str(work / "model"), work / "store", work / "dense"
    found = pass_over(*names, EncoderOptions())
    step("fold in", began)
    kept = ("kind", "numbers", "agreement", "terms", "terms_left_out", "unknown_share", "fitted_on")
    details = {name: record.details[name] for name in kept}
    sizes = {"store_bytes": found["bytes"], "projection_bytes": record.details["projection_bytes"]}
    return {"documents": count, "steps": steps, **details, **sizes, "refit": found["refit"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument(
        "--work", type=Path, required=True, help="Folder for corpora and stores, which are removed."
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--child", action="store_true", help="Measure one size in this process and print it."
    )
    given = parser.parse_args()
    if given.child:
        print(json.dumps(run(given.documents[0], given.work)))
        return
    runs = []
    for count in given.documents:
        work = given.work / f"scale-{count}"
        shutil.rmtree(work, ignore_errors=True)
        command = [
            sys.executable,
            __file__,
            "--child",
            "--documents",
            str(count),
            "--work",
            str(work),
        ]
        environment = os.environ | {"BEIR_COCODR_CACHE": str(work / "cache")}
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        shutil.rmtree(work)
    threads = {"threads": torch.get_num_threads()}
    content = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine() | threads,
        "versions": versions(),
    }
    write_text(given.output, json.dumps(content | {"runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
