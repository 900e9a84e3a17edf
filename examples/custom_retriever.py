"""A retriever of your own, beside BM25: character n-grams, which tolerate misspelt words.

python examples/custom_retriever.py --dataset apidocs/numpy --output runs/ngrams
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from beir_cocodr import SearchOptions, evaluate
from beir_cocodr.data.documents import Documents
from beir_cocodr.models.spec import RETRIEVERS, Standalone
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranking, best_rows


class CharacterNgrams:
    """Cosine of tf-idf vectors over runs of three to five characters."""

    def __init__(self, documents: Documents, options: SearchOptions) -> None:
        """Take the corpus and the options of the search."""
        self.documents, self.text_format = documents, options.encoder.text_format
        self.vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5))
        self.vectors: Any = None

    def prepare(self) -> None:
        """Index the corpus, once."""
        if self.vectors is None:
            texts = (self.text_format.document(document) for document in self.documents.values())
            self.vectors = self.vectorizer.fit_transform(texts)  # (N, n-grams)

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for queries, id to text."""
        self.prepare()
        scores = (
            (self.vectorizer.transform(queries.values()) @ self.vectors.T)
            .toarray()
            .astype(np.float32)
        )
        ties = self.documents.tie_ranks()  # equal scores go to the larger id, as in trec_eval
        rows = np.stack([best_rows(row, ties, top_k) for row in scores])  # (Q, k)
        return Ranking(list(queries), np.take_along_axis(scores, rows, axis=1), rows)

    def describe(self) -> Json:
        """Return what results depend on, for records."""
        return {"model": "tf-idf of character n-grams", "similarity": "cosine", "lengths": [3, 5]}


def main() -> None:
    """Evaluate the retriever beside BM25."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="apidocs/numpy", help="a collection with labels")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for runs and results.json"
    )
    given = parser.parse_args()

    RETRIEVERS["ngrams"] = Standalone(f"{__name__}:{CharacterNgrams.__name__}", "character n-grams")
    record = evaluate(["bm25", "ngrams"], given.dataset, output=given.output)
    for name, result in record.models.items():
        print(name, result.measures)


if __name__ == "__main__":
    main()
