"""LangChain: any model of this package as a retriever of a chain.

python examples/langchain_retriever.py --dataset apidocs/numpy --model bm25 "sort an array"
"""

from __future__ import annotations

import argparse
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from beir_cocodr import Searcher


class SearcherRetriever(BaseRetriever):
    """A retriever of LangChain that queries a searcher.

    Attributes:
        searcher: The searcher, which contains the corpus and the model.
        top_k: The number of documents.
    """

    searcher: Any
    top_k: int = 5

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        """Return the best documents for a query, best first."""
        documents = []
        for hit in self.searcher.search(query, top_k=self.top_k):
            metadata = {"title": hit.title, "place": hit.place, "score": hit.score}
            documents.append(Document(page_content=hit.text, metadata=metadata, id=hit.id))
        return documents


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("query", help="what to search for")
    parser.add_argument("--dataset", default="apidocs/numpy", help="a corpus")
    parser.add_argument("--model", default="bm25", help="a model, such as hybrid:minilm")
    options = parser.parse_args()
    retriever = SearcherRetriever(searcher=Searcher(options.dataset, options.model))
    for document in retriever.invoke(options.query):
        print(document.id, document.metadata["title"])


if __name__ == "__main__":
    main()
