"""A fusion of your own, judged beside the others: the larger of the two z-normalised scores.

A fusion is a class with a row of FUSIONS, which says what it is and what its kind is in the
calibration of verdicts. After that its name works everywhere:

python examples/custom_fusion.py --dataset apidocs/numpy --output runs/largest
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from beir_cocodr import CompareOptions, compare
from beir_cocodr.arrays import Floats
from beir_cocodr.models.spec import FUSIONS, HYBRID, Fusion
from beir_cocodr.records import Json
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion import z_normalize
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.vectors.dense import Dense

#: Who described the fusion (CombMAX).
CITATION = """@inproceedings{fox1994combination,
  title = {Combination of Multiple Searches},
  author = {Fox, Edward A. and Shaw, Joseph A.},
  booktitle = {Proceedings of TREC-2},
  year = {1994},
}"""


class LargerScore:
    """The larger of the z-normalised scores of a dense encoder and of BM25."""

    def __init__(self, dense: Dense, bm25: BM25) -> None:
        """Take dense search and BM25 over one corpus."""
        self.dense = dense
        self.bm25 = bm25

    def prepare(self) -> None:
        """Encode the corpus and build BM25's index."""
        self.dense.prepare()
        self.bm25.prepare()

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for queries, id to text."""
        texts = list(queries.values())
        vectors = self.dense.encode_queries(texts)
        dense = (vectors @ self.dense.embeddings.load().T).numpy()  # (Q, N)
        lexical = np.stack([self.bm25.scores(text) for text in texts])  # (Q, N)
        scores: Floats = np.maximum(z_normalize(dense), z_normalize(lexical)).astype(np.float32)
        ties = self.dense.documents.tie_ranks()
        rows = np.arange(scores.shape[1])
        return Ranking.of_best(queries, ((rows, row) for row in scores), ties, top_k)

    def describe(self) -> Json:
        """Describe the fusion for the record of a search."""
        dense = self.dense.describe()
        return {
            "model": "the larger z-normalised score",
            "similarity": dense["similarity"],
            "text_format": dense["text_format"],
            "dense": dense,
            "bm25": self.bm25.describe(),
        }


def register() -> None:
    """Add the row."""
    FUSIONS["largest"] = Fusion(
        build=f"{__name__}:{LargerScore.__name__}",
        help="the larger of the z-normalised scores of M and BM25",
        lucene=False,
        calibration_kind=HYBRID,
        citation=CITATION,
    )


def main() -> None:
    """Compare models without labels, and print what is said about each pair."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", default="apidocs/numpy", help="a collection")
    parser.add_argument("--model", default="minilm", help="a dense encoder")
    parser.add_argument("--samples", type=int, default=300, help="crops, and generated queries")
    parser.add_argument("--output", type=Path, required=True, help="folder for comparison.json")
    options = parser.parse_args()
    register()
    record = compare(
        ["bm25", options.model, f"largest:{options.model}"],
        options.dataset,
        output=options.output,
        options=CompareOptions(labels=False, samples=options.samples),
    )
    for pair in record.estimated:
        print(f"{pair.b} against {pair.a}: {pair.verdict}; {pair.reason}")
        for estimate in pair.estimates:
            print(f"  {estimate.estimator}: {estimate.difference} {estimate.remark}")


if __name__ == "__main__":
    main()
