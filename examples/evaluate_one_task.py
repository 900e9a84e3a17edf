"""Evaluate a dense encoder on one collection with BEIR's own measures.

python examples/evaluate_one_task.py --dataset scifact --model OpenMatch/cocodr-base-msmarco
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from beir_cocodr.plugins.beir import evaluator, load, load_encoder

from beir_cocodr.models.spec import EncoderOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset", default="apidocs/numpy", help="BEIR folder or name, irds:ID, apidocs/DOMAIN"
    )
    parser.add_argument("--model", default="minilm", help="a folder or hub name, or minilm")
    parser.add_argument("--split", default="test")
    parser.add_argument(
        "--k", type=int, nargs="+", default=[1, 10, 100], help="cutoffs of the measures"
    )
    parser.add_argument(
        "--store", type=Path, help="folder that keeps the corpus embeddings for the next time"
    )
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--device")
    given = parser.parse_args()

    corpus, queries, qrels = load(given.dataset, given.split)
    model = load_encoder(given.model, EncoderOptions(device=given.device))
    retriever = evaluator(model, given.k, store=given.store, batch_size=given.batch_size)
    results = retriever.retrieve(corpus, queries)
    ndcg, maps, recall, precision = retriever.evaluate(qrels, results, retriever.k_values)
    mrr = retriever.evaluate_custom(qrels, results, retriever.k_values, metric="mrr")
    print(json.dumps(ndcg | maps | recall | precision | mrr, indent=2))


if __name__ == "__main__":
    main()
