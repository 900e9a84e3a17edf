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
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dataset",
        default="apidocs/numpy",
        help="A BEIR folder or name, irds:ID, or apidocs/DOMAIN.",
    )
    parser.add_argument(
        "--model",
        default="minilm",
        help="A folder, a hub name, or minilm.",
    )
    parser.add_argument(
        "--num-results",
        type=int,
        default=100,
        help="Documents of a ranking.",
    )
    options = parser.parse_args()

    collection = load_collection(options.dataset)
    topics = pd.DataFrame(collection.queries.items(), columns=["qid", "query"])
    judgements = []
    for query, grades in collection.qrels.items():
        judgements += [(query, document, grade) for document, grade in grades.items()]
    qrels = pd.DataFrame(judgements, columns=["qid", "docno", "label"])

    count = options.num_results
    bm25 = Retriever(
        options.dataset,
        "bm25",
        count,
        text=True,
    )
    dense = Retriever(options.dataset, options.model, count)
    hybrid = Retriever(options.dataset, f"hybrid:{options.model}", count)
    pipelines = {
        "BM25": bm25,
        "encoder": dense,
        "weighted mean of z-scores": hybrid,
        "sum of PyTerrier": 0.01 * bm25 + dense,
    }
    measures = ["ndcg_cut_10", "recip_rank", "recall_100"]
    systems = list(pipelines.values())
    table = pt.Experiment(
        systems,
        topics,
        qrels,
        measures,
        list(pipelines),
    )
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
