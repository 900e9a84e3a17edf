"""Claim: fusing an encoder with BM25 over a million documents takes minutes and little memory.

Documents are pieces of the documentation of installed packages. Each has a word of its own, so that
the vocabulary must be pruned. The dense vectors are random unit vectors in fp16, as MiniLM would
take hours for them. Two steps are measured: fusing, and folding all documents into a store of the
fused encoder. Each size is a process of its own, as peak memory never falls.

The script prints processor seconds and peak memory of each step, and writes
``benchmarks/results/fuse_scale.json``:

    OMP_NUM_THREADS=1 python benchmarks/fuse_scale.py --work DIR --documents 100000 400000
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.measure import MIB, peak_memory, run_child, say, timed
from harness.script import add_work, option_parser, origin, write_results
from harness.texts import pieces_with_ids, write_corpus

from beir_cocodr import fuse, load_collection, load_encoder
from beir_cocodr.data.documents import Documents
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.retrieval.store.encode import encoded_by, identity_of
from beir_cocodr.retrieval.store.passes import pass_over
from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodeOptions, StoreRecord
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder

#: Details of the fused encoder that are reported.
DETAILS = (
    "kind",
    "numbers",
    "agreement",
    "terms",
    "terms_left_out",
    "unknown_share",
    "fitted_on",
    "projection_bytes",
)


def write_random_store(folder: Path, documents: Documents) -> None:
    """Write a store of the dense encoder in which every vector is random."""
    model = load_encoder("minilm")
    rng = np.random.default_rng(1)
    options = EncodeOptions(precision="fp16")
    identity = identity_of(CorpusEncoder(model, documents), options, SHARD_SIZE)
    width = int(model.get_embedding_dimension() or 0)
    folder.mkdir()
    record = StoreRecord(
        identity,
        encoded_by("minilm"),
        len(documents),
        width,
    )
    store = EmbeddingStore(folder, record)
    store.write_record()
    store.table.write(documents)
    for number, shard in enumerate(store.shards):
        vectors = rng.standard_normal((len(shard), width), dtype=np.float32)
        vectors = vectors / np.linalg.norm(
            vectors,
            axis=1,
            keepdims=True,
        )
        store.write(number, vectors, documents)


def measure(count: int, work: Path) -> dict[str, Any]:
    """Measure all steps over one number of documents, in this process."""
    work.mkdir(
        parents=True,
        exist_ok=True,
    )
    corpus = work / "corpus.jsonl"
    dense = work / "dense"
    steps: dict[str, Any] = {}

    def run_step(name: str, call: Callable[[], Any]) -> Any:
        result, timing = timed(call)
        steps[name] = {
            "processor_seconds": round(timing.processor, 1),
            "peak_mib": peak_memory() // MIB,
        }
        print(
            count,
            name,
            steps[name],
            flush=True,
        )
        return result

    write_corpus(corpus, pieces_with_ids(count))
    collection = run_step("read", lambda: load_collection(str(corpus), labels="none"))
    write_random_store(dense, collection.documents)
    record = run_step(
        "fuse",
        lambda: fuse(
            "minilm",
            str(corpus),
            output=work / "model",
            stores=[dense],
        ),
    )
    store = run_step(
        "fold in",
        lambda: pass_over(
            str(corpus),
            str(work / "model"),
            work / "store",
            dense,
            EncoderOptions(),
        ),
    )
    details = {name: record.details[name] for name in DETAILS}
    sizes = {
        "store_bytes": store["bytes"],
        "refit": store["refit"],
    }
    return {
        "documents": count,
        "steps": steps,
        **details,
        **sizes,
    }


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "fuse_scale")
    add_work(parser)
    parser.add_argument(
        "--documents",
        type=int,
        nargs="+",
        default=[100_000, 1_000_000],
    )
    parser.add_argument(
        "--child",
        action="store_true",
        help=argparse.SUPPRESS,
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.child:
        say(measure(options.documents[0], options.work))
        return
    runs = []
    for count in options.documents:
        work = options.work / f"scale-{count}"
        shutil.rmtree(work, ignore_errors=True)
        environment = os.environ | {"BEIR_COCODR_CACHE": str(work / "cache")}
        values = {
            "child": True,
            "documents": count,
            "work": work,
        }
        runs.append(run_child(__file__, values, environment))
        print(runs[-1]["steps"])
        shutil.rmtree(work)
    write_results(options.results, origin(threads=torch.get_num_threads()) | {"runs": runs})


if __name__ == "__main__":
    main()
