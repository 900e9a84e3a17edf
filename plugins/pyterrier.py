"""PyTerrier: every model of this package as a transformer over data frames, without Terrier itself.

The frames are PyTerrier's: queries have qid and query, results also docno, score and a rank that
begins at 0::

    import pyterrier as pt
    from beir_cocodr.plugins.pyterrier import Retriever

    bm25 = Retriever("apidocs/numpy", "bm25", num_results=100)
    hybrid = Retriever("apidocs/numpy", "hybrid:minilm", num_results=100)
    pt.Experiment([bm25, hybrid], topics, qrels, ["ndcg_cut_10"])
"""

import weakref
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError, check_count
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.resolve import resolve_model
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.temporary import TemporaryFolder

__all__ = ["Retriever"]

# Former names, and what does their work.
_FORMER = {
    "Reranker": (
        "search with Retriever(dataset, 'rerank:CROSS-ENCODER@bm25'), or rerank by an encoder with "
        "pyterrier_dr.SBertBiEncoder"
    ),
    "StoreReader": "search with Retriever(dataset, model, options=SearchOptions(stores=(STORE,)))",
}


def __getattr__(name: str) -> Any:
    """Refuse former names by what does their work."""
    if name in _FORMER:
        raise InputError(f"beir_cocodr.plugins.pyterrier has no {name} any more; {_FORMER[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# The ranking of no queries.
_NO_RANKING = Ranking(
    [],
    np.zeros((0, 0), np.float32),
    np.zeros((0, 0), np.int64),
)


class Retriever(pt.Transformer):
    """A transformer from queries to results, by any model over any collection.

    Args:
        dataset: A collection, or what ``load_collection`` takes. It needs neither queries nor
            labels.
        model: A model's name, or a model as ``evaluate`` takes it.
        num_results: Documents of a query.
        options: How encoders are loaded and search, stores among them.
        text: Add the columns title and text, which rerankers read.

    Raises:
        InputError: The collection or the model cannot be loaded, or a store belongs to no encoder.
    """

    def __init__(
        self,
        dataset: Any,
        model: Any = "bm25",
        num_results: int = 1000,
        options: SearchOptions = SearchOptions(),
        text: bool = False,
    ) -> None:
        """Load the collection and the model."""
        check_count("num_results", num_results)
        spec = resolve_model(model, argument="model")
        check_device(options.encoder.device, [spec])
        collection = load_collection(dataset, labels="none")
        self.documents = collection.documents
        self.name = f"Retriever({collection.name}, {spec.name})"
        self.num_results = num_results
        self.text = text
        folder = TemporaryFolder()
        weakref.finalize(self, folder.remove)
        resources = Resources(self.documents, folder.path, options)
        self._ranker = resources.ranker(spec)
        resources.check_stores_used()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the results of a frame of queries, best first; PyTerrier calls it.

        Args:
            inp: Queries; other columns are copied to the results.
        """
        pt.validate.query_frame(inp, extra_columns=["query"])
        queries = {str(number): text for number, text in enumerate(inp["query"])}
        ranking = _NO_RANKING
        if queries:
            ranking = self._ranker.search(queries, self.num_results)
        is_document = ranking.rows >= 0
        rows = ranking.rows[is_document]
        query_numbers, ranks = np.nonzero(is_document)
        query_columns = inp[pt.model.query_columns(inp)]
        results: pd.DataFrame = query_columns.iloc[query_numbers].reset_index(drop=True)
        results = results.assign(
            docno=np.array(self.documents.ids(rows), dtype=object),
            score=ranking.scores[is_document],
            rank=ranks,
        )
        if self.text:
            documents = self.documents.take(rows)
            results["title"] = [document["title"] for document in documents]
            results["text"] = [document["text"] for document in documents]
        return results
