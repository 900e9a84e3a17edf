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
    parser.add_argument("--split", default="test")
    parser.add_argument(
        "--k",
        type=int,
        nargs="+",
        default=[1, 10, 100],
        help="The cutoffs of the measures.",
    )
    parser.add_argument(
        "--store",
        type=Path,
        help="Keep the embeddings of the corpus in this folder.",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=128,
    )
    parser.add_argument("--device")
    options = parser.parse_args()

    corpus, queries, qrels = load(options.dataset, options.split)
    model = load_encoder(options.model, EncoderOptions(device=options.device))
    retriever = evaluator(
        model,
        options.k,
        store=options.store,
        batch_size=options.batch_size,
    )
    results = retriever.retrieve(corpus, queries)
    ndcg, maps, recall, precision = retriever.evaluate(qrels, results, retriever.k_values)
    mrr = retriever.evaluate_custom(
        qrels,
        results,
        retriever.k_values,
        metric="mrr",
    )
    print(json.dumps(ndcg | maps | recall | precision | mrr, indent=2))


if __name__ == "__main__":
    main()
