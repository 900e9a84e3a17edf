"""A BEIR evaluation in three stages: a first search of any kind, a FAISS index of the encoder, and
reranking.

python examples/beir_rerank.py --dataset apidocs/numpy --first bm25 --model minilm --top-k 20
"""

from __future__ import annotations

import argparse
import json

from beir_cocodr.plugins.beir import (
    EvaluateRetrieval,
    ExactSearch,
    ModelSearch,
    Rerank,
    load,
    load_encoder,
    score_function,
)
from beir_cocodr.plugins.beir_faiss import HNSWFaissSearch

from beir_cocodr.models.spec import EncoderOptions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dataset", default="apidocs/numpy", help="BEIR folder or name, irds:ID, apidocs/DOMAIN"
    )
    parser.add_argument(
        "--first", default="bm25", help="model that finds what is reranked, such as hybrid:minilm"
    )
    parser.add_argument(
        "--model", default="minilm", help="encoder: a folder or hub name, or minilm"
    )
    parser.add_argument(
        "--cross-encoder", help="folder or hub name; reranks after the encoder does"
    )
    parser.add_argument("--top-k", type=int, default=100, help="documents that are reranked")
    parser.add_argument("--device")
    given = parser.parse_args()

    corpus, queries, qrels = load(given.dataset)
    model = load_encoder(given.model, EncoderOptions(device=given.device))
    by, k_values = score_function(model), [1, 10, 100]
    first = EvaluateRetrieval(ModelSearch(given.first), k_values)
    results = {given.first: first.retrieve(corpus, queries)}
    index = EvaluateRetrieval(HNSWFaissSearch(model, batch_size=64, hnsw_store_n=32), k_values, by)
    results["HNSW"] = index.retrieve(corpus, queries)
    exact = EvaluateRetrieval(ExactSearch(model), k_values, by)
    results[f"{given.first}, reranked"] = exact.rerank(
        corpus, queries, results[given.first], given.top_k
    )
    if given.cross_encoder:
        reranked = Rerank(given.cross_encoder).rerank(
            corpus, queries, results[given.first], given.top_k
        )
        results[f"{given.first}, reranked by {given.cross_encoder}"] = reranked
    print(
        json.dumps(
            {name: first.evaluate(qrels, found, k_values)[0] for name, found in results.items()},
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
