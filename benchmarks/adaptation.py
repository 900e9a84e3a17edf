"""What can be had without labels: dense, BM25, their fusions, feedback, and one vector in place of two.

Every method searches labelled collections with the same dense encoder at its own length; the labels judge and nothing
else. Stores of the dense encoder are kept in ``--work``, where an interrupted run goes on. Run as:

    python benchmarks/adaptation.py --work DIR COLLECTION ...
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

from beir_cocodr import FuseOptions, SearchOptions, fuse, load_collection
from beir_cocodr.data.collection import Collection
from beir_cocodr.evaluation.measures import compare, parse_measures, score_queries
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions, SmoothOptions
from beir_cocodr.provenance import TrainingRecord, read_record
from beir_cocodr.records import versions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.fusion import HybridFeedback
from beir_cocodr.retrieval.ranking import Retriever
from beir_cocodr.retrieval.retrievers import Retrievers
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.passes import pass_over
from beir_cocodr.retrieval.store.shard import bytes_per_vector
from beir_cocodr.retrieval.store.store import EmbeddingStore

MEASURES = parse_measures("nDCG@10 R@100")
TOP = 100

#: Name to how a hybrid encoder is fitted, beside its default.
KINDS: dict[str, dict[str, Any]] = {
    "auto": {},
    "svd 256": {"lexical": "svd", "numbers": 256},
    "svd 512": {"lexical": "svd", "numbers": 512},
    "svd 1024": {"lexical": "svd", "numbers": 1024},
    "hash 1024": {"lexical": "hash", "numbers": 1024},
    "svd+hash 1024": {"lexical": "svd+hash", "numbers": 1024},
    "svd 1024, w 0.3": {"lexical": "svd", "numbers": 1024, "bm25_weight": 0.3},
    "svd 1024, w by length": {"lexical": "svd", "numbers": 1024, "weight_by_length": True},
}


class Study:
    """One collection and one dense encoder.

    Args:
        name: of the collection.
        encoder: name or folder of the dense encoder.
        work: folder of stores.
        scratch: folder of everything else.
    """

    def __init__(self, name: str, encoder: str, work: Path, scratch: Path) -> None:
        self.collection: Collection = load_collection(name, "test")
        self.name, self.encoder, self.scratch = name, encoder, scratch
        label = f"{Path(name).name if Path(name).exists() else name.replace('/', '-')}"
        self.dense = work / label / "dense"
        encode(name, encoder, self.dense)
        self.width = EmbeddingStore.open(self.dense).dimensions
        self.scores: dict[str, dict[str, np.ndarray]] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.bm25 = BM25(self.collection.documents)

    def run(self) -> None:
        plain = SearchOptions(stores=(self.dense,))
        base = 2 * self.width
        self.measure("dense", self.get(self.encoder, plain), base)
        self.measure("bm25", self.bm25, None)
        for weight in (1.0, 0.5):
            options = SearchOptions(stores=(self.dense,), bm25_weight=weight)
            self.measure(f"fusion, w {weight:g}", self.get(f"hybrid:{self.encoder}", options), base)
        self.measure("RM3 fusion", self.get(f"rm3:{self.encoder}", plain), base)
        self.measure("feedback", self.get(f"feedback:{self.encoder}", plain), base)
        for label, settings in KINDS.items():
            self.hybrid(label, dict(settings))

    def hybrid(self, label: str, settings: dict[str, Any]) -> None:
        """A hybrid encoder, alone; the 1,024 components and what is chosen also rounded, smoothed and with feedback."""
        numbers = settings.pop("numbers", None)
        size = None if numbers is None else 2 * (self.width + numbers)
        folder = self.scratch / label
        record = fuse(
            self.name, self.encoder, folder, FuseOptions(bytes_per_document=size, **settings), stores=[self.dense]
        )
        stores = {"": self.scratch / f"{label}.store"}
        pass_over(self.name, str(folder), stores[""], self.dense, None, SmoothOptions(), EncoderOptions())
        thorough = label in ("auto", "svd 1024", "svd 1024, w 0.3")
        if thorough:
            stores[", smoothed"] = self.scratch / f"{label}.smooth"
            pass_over(self.name, str(folder), stores[", smoothed"], None, stores[""], SmoothOptions(), EncoderOptions())
        if label == "auto":
            stores |= dict(self.rounded(label, stores[""]))
        for name, store in stores.items():
            precision = EmbeddingStore.open(store).record.precision
            packed = bytes_per_vector(
                EmbeddingStore.open(store).dimensions, "fp16" if precision == "fp32" else precision
            )
            options = SearchOptions(stores=(store,))
            alone = self.get(str(folder), options)
            self.measure(f"hybrid {label}{name}", alone, packed, record)
            if thorough and not name.startswith(", in"):
                self.measure(f"hybrid {label}{name}, own feedback", self.get(f"feedback:{folder}", options), packed)
                self.measure(f"hybrid {label}{name}, exact feedback", HybridFeedback(alone, self.bm25), packed)

    def rounded(self, label: str, store: Path) -> Iterator[tuple[str, Path]]:
        """The same vectors in fp16 and int8."""
        for precision in ("fp16", "int8"):
            folder = self.scratch / f"{label}.{precision}"
            dense = self.scratch / f"dense.{precision}"
            given, documents = EmbeddingStore.open(store), self.collection.documents
            identity = given.record.identity | {"precision": precision}
            record = type(given.record)(identity, given.record.model, len(documents), given.dimensions)
            written = EmbeddingStore(folder, record)
            folder.mkdir()
            written.write_record()
            written.table.write(documents)
            for number, shard in enumerate(given.shards):
                written.write(number, shard.read().numpy(), documents)
            assert not dense.exists()
            yield f", in {precision}", folder

    def get(self, name: str, options: SearchOptions) -> Any:
        return Retrievers(self.collection.documents, self.scratch, options).get(name)

    def measure(self, label: str, retriever: Retriever, size: int | None, record: TrainingRecord | None = None) -> None:
        judged = {query: self.collection.queries[query] for query in self.collection.qrels}
        retriever.prepare()
        retriever.search(dict(list(judged.items())[:2]), TOP)  # what is made at first is made
        began = time.perf_counter()
        ranking = retriever.search(judged, TOP)
        seconds = time.perf_counter() - began
        found = ranking.results(self.collection.documents)
        self.scores[label] = score_queries(MEASURES, self.collection.qrels, found)
        row: dict[str, Any] = {name: round(float(values.mean()), 4) for name, values in self.scores[label].items()}
        row |= {"bytes_per_document": size, "query_ms": round(1000 * seconds / len(judged), 2)}
        if record is not None:
            row |= {"seconds_to_fit": record.seconds, **{name: record.details[name] for name in ("kind", "agreement")}}
            row["candidates"] = record.details["candidates"]
        self.rows[label] = row
        print(f"{self.name:40} {label:45} {json.dumps(row)[:110]}", flush=True)

    def result(self) -> dict[str, Any]:
        first = str(MEASURES[0])
        pairs = {
            "against dense": [("dense", label) for label in self.scores if label != "dense"],
            "against the exact fusion, w 0.5": [
                ("fusion, w 0.5", label) for label in self.scores if label.startswith("hybrid")
            ],
        }
        scores = {label: {first: found[first]} for label, found in self.scores.items()}
        return {
            "documents": len(self.collection.documents),
            "queries": len(self.collection.qrels),
            "methods": self.rows,
            "tests": [asdict(test) for test in compare(scores, pairs)],
            "per_query": {
                label: [round(float(value), 4) for value in found[first]] for label, found in self.scores.items()
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", help="Labelled collections.")
    parser.add_argument("--model", default="minilm", help="The dense encoder.")
    parser.add_argument("--work", type=Path, required=True, help="Folder that keeps stores.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "adaptation.json")
    given = parser.parse_args()
    load_encoder(given.model)
    found: dict[str, Any] = {}
    content: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "model": given.model,
        "trained": read_record(given.model) is not None,
        "collections": found,
    }
    for name in given.collections:
        with tempfile.TemporaryDirectory() as scratch:
            study = Study(name, given.model, given.work, Path(scratch))
            study.run()
            found[Path(name).name if Path(name).exists() else name] = study.result()
        labels = [label for label in study.rows if all(label in one["methods"] for one in found.values())]
        content["means"] = {
            label: round(float(np.mean([one["methods"][label][str(MEASURES[0])] for one in found.values()])), 4)
            for label in labels
        }
        given.output.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content["means"], indent=1))


if __name__ == "__main__":
    main()
