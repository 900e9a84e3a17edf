"""Compose and compare retrieval pipelines in PyTerrier: BM25, an encoder, and their sum.

python examples/pyterrier_pipeline.py --dataset apidocs/numpy --model minilm
"""

from __future__ import annotations

import argparse

import pandas as pd
import pyterrier as pt
from beir_cocodr.plugins.pyterrier import Retriever

from beir_cocodr import load_collection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset", default="apidocs/numpy", help="BEIR folder or name, irds:ID, apidocs/DOMAIN"
    )
    parser.add_argument("--model", default="minilm", help="a folder or hub name, or minilm")
    parser.add_argument(
        "--num-results", type=int, default=100, help="documents a query of each retriever"
    )
    given = parser.parse_args()

    collection = load_collection(given.dataset)
    topics = pd.DataFrame(collection.queries.items(), columns=["qid", "query"])
    grades = [
        (qid, docno, grade)
        for qid, found in collection.qrels.items()
        for docno, grade in found.items()
    ]
    qrels = pd.DataFrame(grades, columns=["qid", "docno", "label"])

    bm25 = Retriever(given.dataset, "bm25", given.num_results, text=True)
    dense = Retriever(given.dataset, given.model, given.num_results)
    pipelines = {
        "BM25": bm25,
        "encoder": dense,
        "weighted mean of z-scores": Retriever(
            given.dataset, f"hybrid:{given.model}", given.num_results
        ),
        "sum of PyTerrier": 0.01 * bm25 + dense,
    }
    measures = ["ndcg_cut_10", "recip_rank", "recall_100"]
    print(
        pt.Experiment(list(pipelines.values()), topics, qrels, measures, list(pipelines)).to_string(
            index=False
        )
    )


if __name__ == "__main__":
    main()
