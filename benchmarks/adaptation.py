"""What can be had without labels: dense, BM25, their fusions, feedback, and one vector in place of
two.

Every method searches labelled collections with the same dense encoder at its own length; the labels
judge and nothing else. Then the same on top of training: MiniLM fine-tuned on a labelled source,
over seeds, of which the first is judged everywhere and in every method. Stores, trained models and
what was measured of each collection are kept in --work, where an interrupted run goes on. Processor
time is that of one thread. Run as:

    OMP_NUM_THREADS=1 python benchmarks/adaptation.py --work DIR --prose FOLDER ... --domains
    apidocs/scipy ...
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
import torch
from machine import PAGE, ROOT, machine, write_table
from scipy import stats

from beir_cocodr import FuseOptions, HybridEncoder, finetune, load_collection
from beir_cocodr.evaluation.measures import holm, parse_measures, score_queries
from beir_cocodr.io import write_text
from beir_cocodr.models.hybrid_encoder import HybridHead
from beir_cocodr.models.loading import fingerprint, load_encoder, model_source
from beir_cocodr.provenance import TrainingRecord
from beir_cocodr.records import versions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.retrieval.fusion import RM3, Feedback, Hybrid, HybridFeedback
from beir_cocodr.retrieval.hybrid_fit import (
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
from beir_cocodr.training.options import FinetuneOptions

RESULTS = Path(__file__).parent / "results" / "adaptation.json"
START, END = "<!-- adaptation table -->", "<!-- end of adaptation -->"
SHORT = "<!-- short table -->", "<!-- end of short -->"

#: What stands in the README's table, under the names that commands take.
USES = {
    "bm25": "`bm25`",
    "dense": "`minilm`",
    "feedback": "`feedback:minilm`",
    "fusion, w 0.5": "`hybrid:minilm`",
    "RM3 fusion": "`rm3:minilm`",
    "hybrid auto": "`fuse`: one vector",
}
MEASURES = parse_measures("nDCG@10 R@100")
NDCG, RECALL = map(str, MEASURES)
TOP = 100

#: Training on top: a short one, as of the quickstart.
SOURCE = "apidocs/stdlib+pandas+torch"
TRAINING = FinetuneOptions(max_steps=20, batch_size=16, negatives=0)

#: Ways to make BM25 dense, beside what is chosen; of a corpus with fewer dimensions, truncated SVD
#: with all of them.
KINDS = {
    "svd 256": DenseBM25(256, 0),
    "svd 512": DenseBM25(512, 0),
    "svd 1024": DenseBM25(1024, 0),
    "hash 1024": DenseBM25(0, 1024),
    "svd 512 + hash 512, 1": DenseBM25(512, 512),
    "svd 512 + hash 512": DenseBM25(512, 512, HASHED_WEIGHT),
    "svd 768 + hash 256": DenseBM25(768, 256, HASHED_WEIGHT),
}

#: What is measured of the seeds after the first.
FEW = ("dense", "fusion, w 0.5", "feedback", "hybrid auto")

#: What stands in the results and not in the table of the documentation.
DETAILS = (
    "hybrid auto, fp16",
    "hybrid auto, w by length",
    "hybrid svd 1024",
    "hybrid svd 512 + hash 512, 1",
)


class Study:
    """One collection and one dense encoder.

    Args:
        name: of the collection.
        model: name or folder of the dense encoder.
        dense: folder of its store.
        scratch: folder of everything else.
        few: measure only :data:`FEW`.
    """

    def __init__(self, name: str, model: str, dense: Path, scratch: Path, few: bool) -> None:
        self.collection = load_collection(name, "test")
        self.documents = self.collection.documents
        self.name, self.model, self.store, self.scratch, self.few = name, model, dense, scratch, few
        self.judged = {query: self.collection.queries[query] for query in self.collection.qrels}
        self.encoder = load_encoder(model)
        self.width = int(self.encoder.get_embedding_dimension() or 0)
        self.dense = Dense(self.encoder, self.documents, scratch, given=EmbeddingStore.open(dense))
        self.queries = self.dense.encode_queries(list(self.judged.values()))
        self.known = dict(zip(self.judged.values(), self.queries, strict=True))
        self.bm25 = BM25(self.documents)
        self.rows: dict[str, dict[str, Any]] = {}
        self.scores: dict[str, np.ndarray] = {}

    def run(self) -> dict[str, Any]:
        base = 2 * self.width
        self.measure("dense", self.dense, self.dense, base)
        self.measure("bm25", self.bm25, self.dense, None)
        for weight in (1.0, 0.5):
            self.measure(
                f"fusion, w {weight:g}", Hybrid(self.dense, self.bm25, weight), self.dense, base
            )
        self.measure("RM3 fusion", RM3(self.dense, self.bm25), self.dense, base)
        self.measure("feedback", Feedback(self.dense, self.bm25), self.dense, base)
        self.hybrids()
        return {
            "documents": len(self.documents),
            "queries": len(self.judged),
            "methods": self.rows,
            "per_query": {label: found.round(4).tolist() for label, found in self.scores.items()},
        }

    def hybrids(self) -> None:
        """One fit for all kinds; what is chosen is also rounded, with feedback and with
        other weights.
        """
        options, began = FuseOptions(), time.process_time()
        counts = count_terms(self.documents, self.encoder.text_format, options)
        fit = Fit(self.encoder, self.documents, counts, options, self.dense.embeddings)
        rank = min(fit.weights.shape)
        kinds = {
            label: one if one.components < rank else DenseBM25(rank, 0)
            for label, one in ({} if self.few else KINDS).items()
        }
        allowed = fit.candidates(LEXICAL_NUMBERS)
        tried = fit.agreements(
            list(dict.fromkeys([*allowed, *kinds.values()])), collection_queries(self.name)
        )
        found = dict(zip(dict.fromkeys([*allowed, *kinds.values()]), tried, strict=True))
        chosen = smallest_as_good([found[one] for one in allowed])
        head = fit.head(chosen)
        seconds = time.process_time() - began
        self.hybrid = HybridEncoder(model_source(self.model), head=head)
        self.thorough(head, chosen, {"seconds_to_fit": round(seconds, 1), "kind": chosen.kind})
        for label, one in kinds.items():
            self.alone(
                f"hybrid {label}",
                fit.head(one),
                {"numbers": one.numbers, "agreement": found[one].agreement},
            )

    def thorough(self, head: HybridHead, chosen: DenseBM25, details: dict[str, Any]) -> None:
        details |= {"numbers": chosen.numbers, "agreement": chosen.agreement}
        alone, store = self.alone("hybrid auto", head, details)
        size = self.rows["hybrid auto"]["bytes_per_document"]
        if not self.few:
            for label, attributes in (
                ("w 0.3", {"bm25_weight": 0.3}),
                ("w by length", {"weight_by_length": True}),
            ):
                for name, value in attributes.items():
                    before = getattr(head, name)
                    setattr(head, name, value)
                    self.measure(f"hybrid auto, {label}", alone, alone, size)
                    setattr(head, name, before)
            for precision, rounded in self.rounded(store):
                given = Dense(self.hybrid, self.documents, self.scratch, given=rounded)
                packed = bytes_per_vector(rounded.dimensions, rounded.record.precision)
                self.measure(f"hybrid auto, {precision}", given, given, packed)
            self.measure("hybrid auto, own feedback", HybridFeedback(alone), alone, size)
            self.measure(
                "hybrid auto, exact feedback", HybridFeedback(alone, self.bm25), alone, size
            )

    def alone(
        self, label: str, head: HybridHead, details: dict[str, Any]
    ) -> tuple[Dense, EmbeddingStore]:
        """A hybrid encoder with this head, over a store of its own."""
        self.hybrid[-1] = head
        fused = TrainingRecord("fuse", base_sha256=fingerprint(self.encoder)["weights"])
        folder = self.scratch / label
        store = add_lexical(self.store, self.hybrid, fused, self.model, self.documents, folder)
        dense = Dense(self.hybrid, self.documents, self.scratch, given=store)
        self.measure(label, dense, dense, bytes_per_vector(store.dimensions, "fp16"), details)
        return dense, store

    def rounded(self, store: EmbeddingStore) -> Iterator[tuple[str, EmbeddingStore]]:
        """The same vectors in fp16 and int8."""
        for precision in ("fp16", "int8"):
            identity = store.record.identity | {"precision": precision}
            record = type(store.record)(
                identity, store.record.model, len(self.documents), store.dimensions
            )
            written = EmbeddingStore(self.scratch / precision, record)
            written.folder.mkdir()
            written.write_record()
            store.table.copy_to(written.folder)
            for number, shard in enumerate(store.shards):
                written.write(number, shard.read().numpy(), self.documents)
            yield precision, EmbeddingStore.open(written.folder)

    def measure(
        self,
        label: str,
        retriever: Ranker,
        dense: Dense,
        size: int | None,
        details: dict[str, Any] | None = None,
    ) -> None:
        """Search, and judge. The dense parts of queries are encoded once, but for the few that the
        clock is held to.
        """
        if self.few and label not in FEW:
            return
        retriever.prepare()
        dense.known_queries.clear()
        few = dict(list(self.judged.items())[:16])
        retriever.search(dict(list(few.items())[:1]), TOP)  # what is made at first is made
        dense.known_queries.clear()
        began = time.process_time()
        retriever.search(few, TOP)
        seconds = time.process_time() - began
        dense.known_queries = dict(self.known)
        if isinstance(dense.model, HybridEncoder):
            head, texts = dense.model.head, list(self.known)
            given = {
                "sentence_embedding": torch.stack(list(self.known.values())),
                **head.features(texts, "query"),
            }
            dense.known_queries = dict(
                zip(texts, head(given, "query")["sentence_embedding"], strict=True)
            )
        ranking = retriever.search(self.judged, TOP)
        scores = score_queries(MEASURES, self.collection.qrels, ranking.results(self.documents))
        self.scores[label] = scores[NDCG]
        row = {name: round(float(values.mean()), 4) for name, values in scores.items()}
        row |= {
            "bytes_per_document": size,
            "query_ms": round(1000 * seconds / len(few), 2),
            **(details or {}),
        }
        self.rows[label] = row
        print(
            f"{Path(self.name).name:12} {Path(self.model).name:10} {label:40} {json.dumps(row)[:120]}",
            flush=True,
        )


def cell(work: Path, label: str, model: str, name: str, few: bool) -> dict[str, Any]:
    """What was measured of one encoder on one collection, now or before."""
    path = work / "cells" / f"{label}.{Path(name).name}.json"
    if not path.is_file():
        store = work / "stores" / label / Path(name).name
        encode(name, model, store, EncodeOptions(backend="fp32" if model == "minilm" else "bf16"))
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            began = time.process_time()
            found = Study(name, model, store, Path(scratch), few).run()
            found["processor_seconds"] = round(time.process_time() - began, 1)
        path.parent.mkdir(exist_ok=True)
        write_text(path, json.dumps(found))
    content: dict[str, Any] = json.loads(path.read_text())
    return content


Cells = dict[str, dict[str, Any]]


def summarize(base: Cells, trained: list[Cells], prose: list[str]) -> dict[str, Any]:
    """Means over collections, paired tests of each collection, and whether the aims are met.

    Args:
        base: collection to what was measured of the untrained encoder.
        trained: the same of each seed; the first has all collections of the others.
        prose: the collections that the aims are stated for.
    """
    tests = {}
    for name, found in base.items():
        scores = {label: np.array(values) for label, values in found["per_query"].items()}
        hybrids = [label for label in scores if label.startswith("hybrid auto")]
        families = {
            "against dense": [("dense", label) for label in scores if label != "dense"],
            "against the exact fusion, w 0.5": [("fusion, w 0.5", label) for label in hybrids],
        }
        if seeds := [run[name]["per_query"] for run in trained if name in run]:
            for label in FEW:
                scores[f"{label}, trained"] = np.mean([seed[label] for seed in seeds], axis=0)
            families["trained against untrained"] = [(label, f"{label}, trained") for label in FEW]
        tests[name] = {family: paired_tests(scores, pairs) for family, pairs in families.items()}
    first, last = (trained[0], trained[-1]) if trained else ({}, {})
    dense, hybrid = (
        mean({name: base[name] for name in prose}, label) for label in ("dense", "hybrid auto")
    )
    return {
        "means": {
            label: {m: mean(base, label, m) for m in (NDCG, RECALL)} for label in methods(base)
        },
        "after training": {
            "collections": list(first),
            "means": {
                label: {
                    "untrained": mean({n: base[n] for n in first}, label),
                    "trained": mean(first, label),
                }
                for label in (methods(first) if first else ())
            },
        },
        "over seeds": {
            "collections": list(last),
            "means": {
                label: {
                    "untrained": mean({n: base[n] for n in last}, label),
                    "trained": [mean({n: run[n] for n in last}, label) for run in trained],
                }
                for label in (FEW if last else ())
            },
        },
        "aims": {
            "hybrid over dense on prose": round(hybrid / dense - 1, 4),
            "hybrid less the exact fusion": {
                name: round(
                    mean({name: one}, "hybrid auto") - mean({name: one}, "fusion, w 0.5"), 4
                )
                for name, one in base.items()
            },
        },
        "tests": tests,
    }


def paired_tests(
    scores: dict[str, np.ndarray], pairs: list[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Paired t-tests of b against a over queries, corrected after Holm over all pairs."""
    found = [
        stats.ttest_rel(scores[b], scores[a]).pvalue if (scores[a] != scores[b]).any() else 1.0
        for a, b in pairs
    ]
    return [
        {
            "a": a,
            "b": b,
            "difference": round(float((scores[b] - scores[a]).mean()), 4),
            "p_holm": round(float(p), 5),
        }
        for (a, b), p in zip(pairs, holm(found), strict=True)
    ]


def methods(cells: Cells) -> list[str]:
    return list(next(iter(cells.values()))["methods"])


def mean(cells: Cells, label: str, measure: str = NDCG) -> float:
    """Of a method over collections."""
    return round(float(np.mean([found["methods"][label][measure] for found in cells.values()])), 4)


def markdown(content: dict[str, Any]) -> str:
    """Means over the prose collections, over the others, and over all."""
    base, after = content["encoders"]["base"], content["after training"]["means"]
    prose = {name: base[name] for name in content["prose"]}
    others = {name: found for name, found in base.items() if name not in prose}
    columns = ["method", "prose", "documentation", "all", "R@100", "bytes", "ms"]
    columns += ["untrained", "fine-tuned"] if after else []
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for label in (label for label in methods(base) if label not in DETAILS):
        rows = [found["methods"][label] for found in base.values()]
        size = max(row["bytes_per_document"] or 0 for row in rows)
        cells = [f"{mean(part, label):.3f}" for part in (prose, others, base)] + [
            f"{mean(base, label, RECALL):.3f}"
        ]
        cells += [f"{size:,}" if size else "", f"{np.mean([row['query_ms'] for row in rows]):.0f}"]
        if after:
            cells += [
                f"{after[label][name]:.3f}" if label in after else ""
                for name in ("untrained", "trained")
            ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def short_table(content: dict[str, Any]) -> str:
    """The README's table: the methods under the names that commands take, and how often each beats
    dense search.
    """
    base, tests = content["encoders"]["base"], content["tests"].values()
    prose = {name: base[name] for name in content["prose"]}
    others = {name: found for name, found in base.items() if name not in prose}
    lines = [
        "| model | prose | documentation | all | R@100 | better than `minilm` on |",
        f"|{' --- |' * 6}",
    ]
    for label, name in USES.items():
        cells = [f"{mean(part, label):.3f}" for part in (prose, others, base)] + [
            f"{mean(base, label, RECALL):.3f}"
        ]
        against = [test for one in tests for test in one["against dense"] if test["b"] == label]
        better = sum(test["p_holm"] < 0.05 and test["difference"] > 0 for test in against)
        cells.append(f"{better} of {len(against)}" if against else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--prose",
        nargs="+",
        required=True,
        help="Labelled collections that the aims are stated for.",
    )
    parser.add_argument(
        "--domains", nargs="+", default=["apidocs/numpy", "apidocs/sklearn", "apidocs/scipy"]
    )
    parser.add_argument(
        "--seeds", type=int, nargs="*", default=[13, 42, 97], help="Of the training on top."
    )
    parser.add_argument(
        "--trained-on", nargs="+", help="Collections that training is judged on; default: all."
    )
    parser.add_argument(
        "--seeds-on", nargs="+", help="Those that seeds after the first are; default: the same."
    )
    parser.add_argument(
        "--model",
        default="minilm",
        help="The dense encoder, of a --work and an --output of its own.",
    )
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="Folder that keeps stores, models and measurements.",
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    names = [*given.prose, *given.domains]
    base = {Path(name).name: cell(given.work, "base", given.model, name, False) for name in names}
    trained: list[Cells] = []
    for seed in given.seeds:
        folder = given.work / "trained" / f"seed-{seed}"
        finetune(SOURCE, given.model, folder, TRAINING.with_overrides(seed=seed), resume=True)
        chosen = given.trained_on or names
        chosen = (given.seeds_on or chosen) if trained else chosen
        label, few = folder.name, bool(trained)
        trained.append(
            {Path(name).name: cell(given.work, label, str(folder), name, few) for name in chosen}
        )
    summary = summarize(base, trained, [Path(name).name for name in given.prose])
    encoders = {
        "base": base,
        **{f"seed-{seed}": run for seed, run in zip(given.seeds, trained, strict=True)},
    }
    content = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine() | {"threads": torch.get_num_threads()},
        "versions": versions(),
        "model": Path(given.model).name,
        "source": SOURCE,
        "training": asdict(TRAINING),
        "prose": [Path(name).name for name in given.prose],
        "encoders": {
            label: {
                name: {k: v for k, v in found.items() if k != "per_query"}
                for name, found in run.items()
            }
            for label, run in encoders.items()
        },
        **summary,
    }
    write_text(given.output, json.dumps(content, indent=1) + "\n")
    if given.output == RESULTS:
        write_table(PAGE, START, END, markdown(content))
        write_table(ROOT / "README.md", *SHORT, short_table(content))
    print(markdown(content))
    print(json.dumps({name: summary[name] for name in ("aims", "over seeds")}, indent=1))


if __name__ == "__main__":
    main()
