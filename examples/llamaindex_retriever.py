"""LlamaIndex: any model of this package as a retriever of a query engine.

python examples/llamaindex_retriever.py --dataset apidocs/numpy --model bm25 "sort an array"
"""

from __future__ import annotations

import argparse

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from beir_cocodr import Searcher


class SearcherRetriever(BaseRetriever):
    """A retriever of LlamaIndex that queries a searcher."""

    def __init__(self, searcher: Searcher, top_k: int = 5) -> None:
        """Take the searcher, which contains corpus and model, and the number of documents."""
        self.searcher = searcher
        self.top_k = top_k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the best documents for a query, best first."""
        nodes = []
        for hit in self.searcher.search(query_bundle.query_str, top_k=self.top_k):
            metadata = {"title": hit.title, "place": hit.place}
            node = TextNode(id_=hit.id, text=hit.text, metadata=metadata)
            nodes.append(NodeWithScore(node=node, score=hit.score))
        return nodes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("query", help="what to search for")
    parser.add_argument("--dataset", default="apidocs/numpy", help="a corpus")
    parser.add_argument("--model", default="bm25", help="a model, such as hybrid:minilm")
    options = parser.parse_args()
    retriever = SearcherRetriever(Searcher(options.dataset, options.model))
    for result in retriever.retrieve(options.query):
        print(result.node.node_id, result.node.metadata["title"])


if __name__ == "__main__":
    main()
