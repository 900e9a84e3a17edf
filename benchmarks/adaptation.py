"""Claim: BM25 fused with a dense encoder, also as one vector, beats the encoder without labels.

All methods search labelled collections with the same dense encoder at its own length. Labels judge
and nothing else. Then the same is measured on top of training: MiniLM is fine-tuned on a labelled
source over seeds. The first seed is measured on every collection and by every method, later seeds
by a few methods. Stores, trained models and the figures of each collection are kept in ``--work``,
so that an interrupted run continues. Processor time is that of one thread.

The script writes ``benchmarks/results/adaptation.json``, or what ``--results`` names. In the first
case it also puts its tables into ``docs/results.md`` and the README. It prints the table and the
aims:

    OMP_NUM_THREADS=1 python benchmarks/adaptation.py --work DIR --prose FOLDER ... --domains
    apidocs/scipy ...
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from adaptation_tables import (
    FEW,
    MARKS,
    MEASURES,
    NDCG,
    SHORT_MARKS,
    Cells,
    markdown,
    short_table,
    summarize,
)
from harness.measure import timed
from harness.page import PAGE
from harness.script import (
    ROOT,
    SEEDS,
    add_work,
    option_parser,
    origin,
    read_json,
    results_file,
    write_results,
)

from beir_cocodr import FuseOptions, HybridEncoder, finetune, load_collection
from beir_cocodr.evaluation.measures import score_queries
from beir_cocodr.io import write_text
from beir_cocodr.models.checkpoints.loading import load_encoder, model_source
from beir_cocodr.models.hybrid_encoder import HybridHead, terms_by_row
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion import RM3, Feedback, Hybrid
from beir_cocodr.retrieval.hybrid.hybrid_feedback import HybridFeedback
from beir_cocodr.retrieval.hybrid.hybrid_fit import (
    HASHED_WEIGHT,
    LEXICAL_NUMBERS,
    DenseBM25,
    Fit,
    count_terms,
    smallest_as_good,
)
from beir_cocodr.retrieval.ranking import Ranker
from beir_cocodr.retrieval.store.encode import collection_queries, encode
from beir_cocodr.retrieval.store.passes import add_lexical
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.shard import bytes_per_vector
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.training.options import FinetuneOptions

TOP_K = 100
#: Queries whose search is timed.
TIMED_QUERIES = 16

#: Training on top, as short as the quickstart's.
SOURCE = "apidocs/stdlib+pandas+torch"
TRAINING = FinetuneOptions(
    max_steps=20,
    batch_size=16,
    negatives=0,
)

#: Ways to make BM25 dense, beside the way that is chosen.
KINDS = {
    "svd 256": DenseBM25(256, 0),
    "svd 512": DenseBM25(512, 0),
    "svd 1024": DenseBM25(1024, 0),
    "hash 1024": DenseBM25(0, 1024),
    "svd 512 + hash 512, 1": DenseBM25(512, 512),
    "svd 512 + hash 512": DenseBM25(512, 512, HASHED_WEIGHT),
    "svd 768 + hash 256": DenseBM25(768, 256, HASHED_WEIGHT),
}


@dataclass(frozen=True)
class Subject:
    """The subject of a measurement.

    Attributes:
        dataset: The collection's name or folder.
        model: The dense encoder's name or folder.
        store: The folder of its store.
        only_few: Measure only :data:`FEW`.
    """

    dataset: str
    model: str
    store: Path
    only_few: bool = False


class Study:
    """All methods with one dense encoder on one collection."""

    def __init__(self, subject: Subject, scratch: Path) -> None:
        self.subject = subject
        self.scratch = scratch
        self.collection = load_collection(subject.dataset, "test")
        self.documents = self.collection.documents
        self.queries = {query: self.collection.queries[query] for query in self.collection.qrels}
        self.encoder = load_encoder(subject.model)
        self.dense = self._dense(self.encoder, EmbeddingStore.open(subject.store))
        texts = list(self.queries.values())
        vectors = self.dense.encode_queries(texts)
        self.vectors = dict(zip(texts, vectors, strict=True))
        self.bm25 = BM25(self.documents)
        self.rows: dict[str, dict[str, Any]] = {}
        self.scores: dict[str, np.ndarray] = {}

    def run(self) -> dict[str, Any]:
        """Measure all methods."""
        dense = self.dense
        width = int(self.encoder.get_embedding_dimension() or 0)
        size = bytes_per_vector(width, "fp16")
        self.measure(
            "dense",
            dense,
            dense,
            {"bytes_per_document": size},
        )
        self.measure(
            "bm25",
            self.bm25,
            dense,
            {"bytes_per_document": None},
        )
        fusions: dict[str, Ranker] = {
            "fusion, w 1": Hybrid(dense, self.bm25, 1.0),
            "fusion, w 0.5": Hybrid(dense, self.bm25, 0.5),
            "RM3 fusion": RM3(dense, self.bm25),
            "feedback": Feedback(dense, self.bm25),
        }
        for label, fusion in fusions.items():
            self.measure(
                label,
                fusion,
                dense,
                {"bytes_per_document": size},
            )
        self.measure_hybrids()
        return {
            "documents": len(self.documents),
            "queries": len(self.queries),
            "methods": self.rows,
            "per_query": {label: one.round(4).tolist() for label, one in self.scores.items()},
        }

    def measure_hybrids(self) -> None:
        """Fit hybrid encoders of all kinds at once, and measure the chosen kind thoroughly."""
        started = time.process_time()
        options = FuseOptions()
        counts = count_terms(self.documents, self.encoder.text_format, options)
        fit = Fit(
            self.encoder,
            self.documents,
            counts,
            options,
            self.dense.embeddings,
        )
        rank = min(fit.weights.shape)
        kinds = {}
        for label, kind in KINDS.items():
            if not self.subject.only_few:
                # A corpus with fewer dimensions gets truncated SVD with all of them.
                kinds[label] = kind if kind.components < rank else DenseBM25(rank, 0)
        allowed = fit.candidates(LEXICAL_NUMBERS)
        candidates = list(dict.fromkeys([*allowed, *kinds.values()]))
        queries = collection_queries(self.subject.dataset)
        measured = dict(zip(candidates, fit.agreements(candidates, queries), strict=True))
        chosen = smallest_as_good([measured[candidate] for candidate in allowed])
        head = fit.head(chosen)
        seconds = round(time.process_time() - started, 1)
        self.hybrid = HybridEncoder(model_source(self.subject.model), head=head)
        details = {
            "seconds_to_fit": seconds,
            "kind": chosen.kind,
            **_describe(chosen),
        }
        self.measure_chosen(head, details)
        for label, kind in kinds.items():
            self.measure_hybrid(f"hybrid {label}", fit.head(kind), _describe(measured[kind]))

    def measure_chosen(self, head: HybridHead, details: dict[str, Any]) -> None:
        """Measure the chosen hybrid encoder: also rounded, reweighted and with feedback."""
        dense, store = self.measure_hybrid("hybrid auto", head, details)
        if self.subject.only_few:
            return
        size = {"bytes_per_document": self.rows["hybrid auto"]["bytes_per_document"]}
        weight = head.bm25_weight
        head.bm25_weight = 0.3
        self.measure(
            "hybrid auto, w 0.3",
            dense,
            dense,
            size,
        )
        head.bm25_weight = weight
        by_length = head.weight_by_length
        head.weight_by_length = True
        self.measure(
            "hybrid auto, w by length",
            dense,
            dense,
            size,
        )
        head.weight_by_length = by_length
        for precision, rounded in self.round_store(store):
            rounded_dense = self._dense(self.hybrid, rounded)
            packed = bytes_per_vector(rounded.dimensions, rounded.record.precision)
            details = {"bytes_per_document": packed}
            self.measure(
                f"hybrid auto, {precision}",
                rounded_dense,
                rounded_dense,
                details,
            )
        self.measure(
            "hybrid auto, own feedback",
            HybridFeedback(dense),
            dense,
            size,
        )
        exact = HybridFeedback(dense, self.bm25)
        self.measure(
            "hybrid auto, exact feedback",
            exact,
            dense,
            size,
        )

    def measure_hybrid(
        self,
        label: str,
        head: HybridHead,
        details: dict[str, Any],
    ) -> tuple[Dense, EmbeddingStore]:
        """Measure a hybrid encoder with this head over a store of its own."""
        self.hybrid[-1] = head
        store = add_lexical(
            self.subject.store,
            self.hybrid,
            self.subject.model,
            self.documents,
            self.scratch / label,
        )
        dense = self._dense(self.hybrid, store)
        size = bytes_per_vector(store.dimensions, "fp16")
        self.measure(
            label,
            dense,
            dense,
            {
                "bytes_per_document": size,
                **details,
            },
        )
        return dense, store

    def round_store(self, store: EmbeddingStore) -> Iterator[tuple[str, EmbeddingStore]]:
        """Write the same vectors in fp16 and int8."""
        for precision in ("fp16", "int8"):
            identity = store.record.identity | {"precision": precision}
            record = type(store.record)(
                identity,
                store.record.model,
                len(self.documents),
                store.dimensions,
            )
            rounded = EmbeddingStore(self.scratch / precision, record)
            rounded.folder.mkdir()
            rounded.write_record()
            store.table.copy_to(rounded.folder)
            for number, shard in enumerate(store.shards):
                rounded.write(number, shard.read().numpy(), self.documents)
            yield precision, EmbeddingStore.open(rounded.folder)

    def measure(
        self,
        label: str,
        ranker: Ranker,
        dense: Dense,
        details: Mapping[str, Any],
    ) -> None:
        """Time a search of a few queries, search all, and judge.

        The dense parts of queries are encoded once, except in the search that is timed.
        """
        if self.subject.only_few and label not in FEW:
            return
        ranker.prepare()
        few = dict(list(self.queries.items())[:TIMED_QUERIES])
        first = dict(list(few.items())[:1])
        dense.known_queries.clear()
        ranker.search(first, TOP_K)  # a warm-up
        dense.known_queries.clear()
        _, timing = timed(lambda: ranker.search(few, TOP_K))
        dense.known_queries = self.query_vectors(dense)
        ranking = ranker.search(self.queries, TOP_K)
        results = ranking.results(self.documents)
        scores = score_queries(MEASURES, self.collection.qrels, results)
        self.scores[label] = scores[NDCG]
        row = {name: round(float(values.mean()), 4) for name, values in scores.items()}
        milliseconds = round(1000 * timing.processor / len(few), 2)
        self.rows[label] = row | {
            "query_ms": milliseconds,
            **details,
        }
        dataset = Path(self.subject.dataset).name
        model = Path(self.subject.model).name
        print(f"{dataset:12} {model:10} {label:40} {json.dumps(row)}", flush=True)

    def query_vectors(self, dense: Dense) -> dict[str, torch.Tensor]:
        """Return the vector of every query; a hybrid encoder's is made from its dense part."""
        if not isinstance(dense.model, HybridEncoder):
            return dict(self.vectors)
        head = dense.model.head
        texts = list(self.vectors)
        features = {
            "sentence_embedding": torch.stack(list(self.vectors.values())),
            **terms_by_row(head.features(texts)),
        }
        vectors = head(features, "query")["sentence_embedding"]
        return dict(zip(texts, vectors, strict=True))

    def _dense(self, model: Any, store: EmbeddingStore) -> Dense:
        return Dense(
            model,
            self.documents,
            self.scratch,
            given=store,
        )


def _describe(kind: DenseBM25) -> dict[str, Any]:
    return {
        "numbers": kind.numbers,
        "agreement": kind.agreement,
    }


def measure_cell(
    work: Path,
    label: str,
    model: str,
    dataset: str,
    only_few: bool,
) -> Any:
    """Return the figures of one encoder on one collection, from the folder if it has them."""
    name = Path(dataset).name
    path = work / "cells" / f"{label}.{name}.json"
    if not path.is_file():
        store = work / "stores" / label / name
        encode(
            dataset,
            model,
            store,
            EncodeOptions(backend="fp32" if model == "minilm" else "bf16"),
        )
        subject = Subject(
            dataset,
            model,
            store,
            only_few,
        )
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            figures, timing = timed(lambda: Study(subject, Path(scratch)).run())
        figures["processor_seconds"] = round(timing.processor, 1)
        path.parent.mkdir(exist_ok=True)
        write_text(path, json.dumps(figures))
    return read_json(path)


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "adaptation")
    add_work(parser)
    parser.add_argument(
        "--prose",
        nargs="+",
        required=True,
        help="The labelled collections for which the aims are stated.",
    )
    parser.add_argument(
        "--domains",
        nargs="+",
        default=["apidocs/numpy", "apidocs/sklearn", "apidocs/scipy"],
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="*",
        default=list(SEEDS),
        help="Seeds of the training on top.",
    )
    parser.add_argument(
        "--trained-on",
        nargs="+",
        help="Measure the training on top on these collections. Default: all.",
    )
    parser.add_argument(
        "--seeds-on",
        nargs="+",
        help="Measure seeds after the first on these collections. Default: the same.",
    )
    parser.add_argument(
        "--model",
        default="minilm",
        help="The dense encoder; another needs its own --work and --results.",
    )
    return parser.parse_args()


def measure_trained(options: argparse.Namespace, datasets: list[str]) -> list[Cells]:
    """Fine-tune with every seed, and measure."""
    runs: list[Cells] = []
    for seed in options.seeds:
        folder = options.work / "trained" / f"seed-{seed}"
        finetune(
            options.model,
            SOURCE,
            output=folder,
            options=TRAINING.with_overrides(seed=seed),
            resume=True,
        )
        is_first = not runs
        chosen = options.trained_on or datasets
        if not is_first and options.seeds_on:
            chosen = options.seeds_on
        cells = {}
        for dataset in chosen:
            cell = measure_cell(
                options.work,
                folder.name,
                str(folder),
                dataset,
                not is_first,
            )
            cells[Path(dataset).name] = cell
        runs.append(cells)
    return runs


def main() -> None:
    options = parse_options()
    datasets = [*options.prose, *options.domains]
    base = {}
    for dataset in datasets:
        cell = measure_cell(
            options.work,
            "base",
            options.model,
            dataset,
            False,
        )
        base[Path(dataset).name] = cell
    trained = measure_trained(options, datasets)
    prose = [Path(dataset).name for dataset in options.prose]
    runs = {"base": base}
    for seed, cells in zip(options.seeds, trained, strict=True):
        runs[f"seed-{seed}"] = cells
    encoders: dict[str, Cells] = {}
    for label, cells in runs.items():
        encoders[label] = {}
        for name, figures in cells.items():
            kept = {key: value for key, value in figures.items() if key != "per_query"}
            encoders[label][name] = kept
    results = origin(threads=torch.get_num_threads()) | {
        "model": Path(options.model).name,
        "source": SOURCE,
        "training": asdict(TRAINING),
        "prose": prose,
        "encoders": encoders,
        **summarize(base, trained, prose),
    }
    write_results(options.results, results)
    if options.results == results_file("adaptation"):
        MARKS.write(PAGE, markdown(results))
        SHORT_MARKS.write(ROOT / "README.md", short_table(results))
    print(markdown(results))
    print(
        json.dumps(
            {
                "aims": results["aims"],
                "over seeds": results["over seeds"],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
