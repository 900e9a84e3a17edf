"""Haystack: any model of this package as a component of a pipeline.

python examples/haystack_retriever.py --dataset apidocs/numpy --model bm25 "sort an array"
"""

from __future__ import annotations

import argparse
from typing import Any

from haystack import Document, Pipeline, component

from beir_cocodr import Searcher


@component
class SearcherRetriever:
    """A component of Haystack that queries a searcher."""

    def __init__(self, dataset: str, model: str = "bm25", top_k: int = 5) -> None:
        """Load the corpus and the model; a saved pipeline stores the arguments."""
        self.dataset = dataset
        self.model = model
        self.searcher = Searcher(dataset, model)
        self.top_k = top_k

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, Any]:
        """Return the best documents for a query, best first."""
        documents = []
        for hit in self.searcher.search(query, top_k=top_k or self.top_k):
            meta = {"title": hit.title, "place": hit.place}
            documents.append(Document(id=hit.id, content=hit.text, score=hit.score, meta=meta))
        return {"documents": documents}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("query", help="what to search for")
    parser.add_argument("--dataset", default="apidocs/numpy", help="a corpus")
    parser.add_argument("--model", default="bm25", help="a model, such as hybrid:minilm")
    options = parser.parse_args()
    pipeline = Pipeline()
    pipeline.add_component("retriever", SearcherRetriever(options.dataset, options.model))
    answer = pipeline.run({"retriever": {"query": options.query}})
    for document in answer["retriever"]["documents"]:
        print(document.id, document.meta["title"])


if __name__ == "__main__":
    main()
