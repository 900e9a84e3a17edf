"""Evaluate with BEIR: a first search of any kind, a FAISS index of the encoder, and reranking.

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


def parse_options() -> argparse.Namespace:
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
        "--first",
        default="bm25",
        help="Rerank what this model finds, such as hybrid:minilm.",
    )
    parser.add_argument(
        "--model",
        default="minilm",
        help="The encoder: a folder, a hub name, or minilm.",
    )
    parser.add_argument(
        "--cross-encoder", help="Also rerank by this cross-encoder, a folder or hub name."
    )
    parser.add_argument(
        "--top-k",
        type=int,
        default=100,
        help="Rerank so many documents.",
    )
    parser.add_argument("--device")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    corpus, queries, qrels = load(options.dataset)
    model = load_encoder(options.model, EncoderOptions(device=options.device))
    similarity = score_function(model)
    k_values = [1, 10, 100]
    first = EvaluateRetrieval(ModelSearch(options.first), k_values)
    candidates = first.retrieve(corpus, queries)
    index = HNSWFaissSearch(
        model,
        batch_size=64,
        hnsw_store_n=32,
    )
    by_index = EvaluateRetrieval(index, k_values, similarity).retrieve(corpus, queries)
    exact = EvaluateRetrieval(ExactSearch(model), k_values, similarity)
    reranked = exact.rerank(
        corpus,
        queries,
        candidates,
        options.top_k,
    )
    results = {
        options.first: candidates,
        "HNSW": by_index,
        f"{options.first}, reranked": reranked,
    }
    if options.cross_encoder:
        reranker = Rerank(options.cross_encoder)
        label = f"{options.first}, reranked by {options.cross_encoder}"
        results[label] = reranker.rerank(
            corpus,
            queries,
            candidates,
            options.top_k,
        )
    ndcg = {}
    for label, ranking in results.items():
        ndcg[label], *_ = first.evaluate(qrels, ranking, k_values)
    print(json.dumps(ndcg, indent=2))


if __name__ == "__main__":
    main()
