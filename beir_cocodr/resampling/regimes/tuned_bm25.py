"""BM25 with parameters that are chosen on training queries."""

import logging
from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.data.collection import load_collection
from beir_cocodr.distributed import on_main
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.records import Record
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.retrieval.bm25 import BM25

log = logging.getLogger(__name__)

#: The file by which a folder is known as a tuned BM25.
BM25_FILE = "bm25.json"

#: The grid. The usual parameters come first, and stay if no others are better.
K1 = (0.9, 0.6, 1.2, 1.6)
B = (0.4, 0.2, 0.6, 0.8)

_MEASURE = "nDCG@10"
_DEPTH = 10
_MOST_QUERIES = 500


@dataclass(frozen=True)
class BM25Parameters(Record):
    """The chosen parameters, over how many queries they were chosen, and all scores."""

    k1: float
    b: float
    queries: int
    grid: list[dict[str, float]]


class TunedBM25:
    """An architecture: BM25 with k1 and b from a grid of 16.

    They have the best nDCG@10 over at most 500 evenly spaced training queries.

    Source: Zhan et al., 2022, section 5.1.2 (grid search on the training data).
    """

    seeded = False

    def __init__(self, name: str) -> None:
        """Take the name of its row."""
        self.name = name

    def train(
        self,
        dataset: str,
        output: Path,
        recipe: Recipe,
        seed: int,
        shared: Path,
    ) -> Path:
        """Choose the parameters on the split "train" of a collection, unless they are chosen."""
        if not on_main((output / BM25_FILE).is_file):
            on_main(lambda: self._choose(dataset, output))
        return output

    def _choose(self, dataset: str, output: Path) -> None:
        collection = load_collection(dataset, "train")
        chosen = spaced(collection.qrels, _MOST_QUERIES)
        qrels = {query: collection.qrels[query] for query in chosen}
        queries = {query: collection.queries[query] for query in chosen}
        [measure] = parse_measures(_MEASURE)
        grid = []
        for bm25 in BM25(collection.documents).grid(K1, B):
            ranking = bm25.search(queries, _DEPTH)
            results = ranking.results(collection.documents)
            scores = score_queries([measure], qrels, results)[_MEASURE]
            grid.append({"k1": bm25.k1, "b": bm25.b, _MEASURE: float(scores.mean())})
        best = max(grid, key=lambda point: point[_MEASURE])  # the first among equals
        log.info("BM25 on %s: k1 %g, b %g", dataset, best["k1"], best["b"])
        parameters = BM25Parameters(best["k1"], best["b"], len(queries), grid)
        parameters.write(output / BM25_FILE)
