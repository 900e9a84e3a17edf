"""Claim: document vectors are not sharpened by queries that the documents' own sentences give.

Queries are generated for every document of cut collections without a model, two salient sentences
("claims") and two draws of terms ("keywords") of each passage, at most four of a document. The
vector of a document moves towards the mean of its queries, v + w q, and is normalised again. All
queries take part, or one kind, or only contrastive ones: those that find their own document before
its ten nearest neighbours. Labels measure nDCG@10 by the vectors alone and fused with BM25. Vectors
of documents and real queries are those that ``benchmarks/collect.py`` left in ``--work``; generated
queries are encoded here, once.

The script prints its table, and writes ``benchmarks/results/sharpening.json``:

    OMP_NUM_THREADS=1 python benchmarks/sharpening.py --work DIR
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from collecting.parents import Parent, folder_name, read_parents
from harness.page import markdown_table
from harness.script import add_work, option_parser, origin, write_results
from thumbs import MODEL, Labelled, read

from beir_cocodr.arrays import Bools, Floats, Ints, unit_rows
from beir_cocodr.evaluation.judged_vectors import paired_interval
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions

COLLECTIONS = ("time", "cisi", "scifact", "cranfield")
KINDS = ("claims", "keywords")
#: Queries of a document at most, its neighbours, and the weights of the queries' mean.
MOST = 4
NEIGHBOURS = 10
WEIGHTS = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class GeneratedQueries:
    """Queries that were generated for documents.

    Attributes:
        rows: (S,) row of the document of each query.
        kinds: (S,) its kind.
        vectors: (S, d).
    """

    rows: Ints
    kinds: np.ndarray
    vectors: Floats

    def sharpened(self, documents: Floats, chosen: Bools, weight: float) -> Floats:
        """Return (N, d) document vectors moved towards the mean of their chosen queries."""
        total = np.zeros_like(documents)
        np.add.at(total, self.rows[chosen], self.vectors[chosen])
        counts = np.bincount(self.rows[chosen], minlength=len(documents))
        return unit_rows(documents + weight * total / np.maximum(counts, 1)[:, None])

    def contrastive(self, documents: Floats) -> Bools:
        """Return which queries are closer to their document than to its nearest neighbours."""
        likeness = documents @ documents.T
        np.fill_diagonal(likeness, -np.inf)
        neighbours = np.argsort(-likeness, axis=1)[:, :NEIGHBOURS]
        own = (self.vectors * documents[self.rows]).sum(axis=1)
        others = [
            float((documents[neighbours[row]] @ vector).max())
            for row, vector in zip(self.rows, self.vectors, strict=True)
        ]
        return np.asarray(own > np.array(others))


def generated(parent: Parent, work: Path) -> GeneratedQueries:
    """Generate and encode the queries of a collection, or read those of before."""
    folder = work / "sharpening" / folder_name(parent.name)
    options = GenerationOptions(query_kinds=",".join(KINDS), per_passage=MOST)
    generate_queries(str(parent.folder), "lexical", folder, options)
    documents = parent.load().documents
    of_document: dict[str, list[dict[str, Any]]] = {}
    for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines():
        query = json.loads(line)
        of_document.setdefault(query["metadata"]["document"], []).append(query)
    queries = [query for one in of_document.values() for query in one[:MOST]]
    rows = documents.rows([query["metadata"]["document"] for query in queries])
    kinds = np.array([query["metadata"]["kind"] for query in queries])
    file = folder / f"{MODEL}.npy"
    if not file.is_file():
        from beir_cocodr.models.checkpoints.loading import load_encoder

        texts = [query["text"] for query in queries]
        np.save(file, load_encoder(MODEL).query_vectors(texts, 64).numpy())
    return GeneratedQueries(rows, kinds, np.load(file))


def measure(labelled: Labelled, queries: GeneratedQueries) -> dict[str, Any]:
    """Return the differences of every choice of queries and every weight."""
    documents = labelled.candidates.vectors
    everything = np.arange(len(labelled.candidates.queries))
    before = labelled.measure(everything, documents)
    choices = {
        "all": np.ones(len(queries.rows), bool),
        "contrastive": queries.contrastive(documents),
        **{kind: queries.kinds == kind for kind in KINDS},
    }
    measured: dict[str, Any] = {}
    for use, values in before.items():
        measured[use] = {"before": round(float(values.mean()), 4)}
    for name, chosen in choices.items():
        for weight in WEIGHTS:
            after = labelled.measure(everything, queries.sharpened(documents, chosen, weight))
            for use in before:
                differences = after[use] - before[use]
                low, high = paired_interval(differences)
                measured[use][f"{name}, {weight}"] = {
                    "difference": round(float(differences.mean()), 4),
                    "interval": [round(low, 4), round(high, 4)],
                }
    return measured | {
        "queries": len(queries.rows),
        "contrastive": int(choices["contrastive"].sum()),
    }


def describe(collections: Mapping[str, Any]) -> str:
    """Return the table that the script prints: differences by the vectors alone."""
    rows = []
    first = next(iter(collections.values()))["dense"]
    for choice in first:
        if choice == "before":
            cells = [f"{one['dense'][choice]:.3f}" for one in collections.values()]
        else:
            cells = []
            for one in collections.values():
                low, high = one["dense"][choice]["interval"]
                mark = "*" if low > 0 or high < 0 else ""
                cells.append(f"{one['dense'][choice]['difference']:+.3f}{mark}")
        rows.append([choice, *cells])
    return markdown_table(["queries, weight", *collections], rows)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = option_parser(__doc__, "sharpening")
    add_work(parser)
    return parser.parse_args()


def main() -> None:
    """Measure all collections."""
    options = parse_options()
    started = time.process_time()
    parents = {parent.name: parent for parent in read_parents(options.work)}
    missing = [name for name in COLLECTIONS if name not in parents]
    if missing:
        raise SystemExit(f"{options.work} lacks {', '.join(missing)}; run collect.py for them")
    collections = {}
    for name in COLLECTIONS:
        parent = parents[name]
        queries = generated(parent, options.work)
        collections[name] = measure(read(parent, options.work), queries)
    results = origin() | {
        "settings": {"model": MODEL, "kinds": KINDS, "per_document": MOST},
        "processor_seconds": round(time.process_time() - started, 1),
        "collections": collections,
    }
    write_results(options.results, results)
    print(describe(collections))


if __name__ == "__main__":
    main()
