"""BM25 with parameters tuned on training queries."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path

import numpy as np

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.files import write_text
from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.retrieval.bm25 import BM25

log = logging.getLogger(__name__)

#: What `load_retriever` knows a tuned BM25 by.
BM25_FILE = "bm25.json"
#: The usual parameters stand first, and stay where no others are better.
K1, B = (0.9, 0.6, 1.2, 1.6), (0.4, 0.2, 0.6, 0.8)
_MEASURE = "nDCG@10"
_DEPTH = 10
_MOST_QUERIES = 500


class TunedBM25:
    """BM25, k1 and b from a grid of 16 by nDCG@10 over at most 500 evenly spaced training queries.

    Source: Zhan et al., 2022, section 5.1.2 (grid search on the training data).
    """

    name = "bm25"
    seeded = False

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        file = output / BM25_FILE
        if file.is_file():
            return output
        collection = load_collection(dataset, "train")
        ids = list(collection.qrels)
        chosen = [ids[int(i)] for i in np.linspace(0, len(ids) - 1, min(_MOST_QUERIES, len(ids)))]
        qrels = {query: collection.qrels[query] for query in chosen}
        queries = {query: collection.queries[query] for query in chosen}
        [measure] = parse_measures(_MEASURE)
        grid = []
        for k1, b in itertools.product(K1, B):
            found = BM25(collection.documents, k1=k1, b=b).search(queries, _DEPTH)
            scores = score_queries([measure], qrels, found.results(collection.documents))
            grid.append({"k1": k1, "b": b, _MEASURE: float(scores[_MEASURE].mean())})
        best = max(grid, key=lambda point: point[_MEASURE])  # the first among equals
        log.info("BM25 on %s: k1 %g, b %g", dataset, best["k1"], best["b"])
        record = {"k1": best["k1"], "b": best["b"], "queries": len(queries), "grid": grid}
        write_text(file, json.dumps(record, indent=2) + "\n")
        return output
