"""PyTerrier: this package's retrievers, rerankers and stores as transformers over data frames,
without Terrier itself.

Their frames are PyTerrier's: queries have qid and query, results docno, score and rank from 0
beside::

    import pyterrier as pt
    from beir_cocodr.plugins.pyterrier import Reranker, Retriever, StoreReader

    bm25 = Retriever("apidocs/numpy", "bm25", num_results=100, text=True) pt.Experiment([bm25, bm25
    >> Reranker("minilm"), StoreReader("STORE")], topics, qrels, ["ndcg_cut_10"])
"""

import tempfile
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyterrier as pt

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError, check_count
from beir_cocodr.evaluation.store_run import query_encoder
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.loading import load_cross_encoder, load_encoder
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.store.store_search import search_store

__all__ = ["Reranker", "Retriever", "StoreReader"]

_Text = TypeVar("_Text", str, tuple[str, str])


class Retriever(pt.Transformer):
    """Searches a collection, which needs neither queries nor labels, with any model name: queries
    to results; with ``text`` these have the columns title and text, which rerankers read.
    """

    def __init__(
        self,
        dataset: str | Path,
        model: str = "bm25",
        num_results: int = 1000,
        options: SearchOptions = SearchOptions(),
        text: bool = False,
    ) -> None:
        check_count("num_results", num_results)
        check_device(options.encoder.device, [model])
        self.name, self.num_results, self.text = f"Retriever({dataset}, {model})", num_results, text
        self.documents = load_collection(dataset, labels="none").documents
        place = tempfile.TemporaryDirectory(prefix="beir-cocodr-", ignore_cleanup_errors=True)
        weakref.finalize(self, place.cleanup)
        retrievers = Resources(self.documents, Path(place.name), options)
        self._retriever = retrievers.ranker(model)
        retrievers.check_stores_used()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"])
        queries = {str(place): text for place, text in enumerate(inp["query"])}
        ranking = self._retriever.search(queries, self.num_results) if queries else _NOTHING
        rows = ranking.rows[ranking.rows >= 0]
        found = _found(inp, ranking, self.documents.ids(rows))
        if self.text:
            texts = self.documents.take(rows)
            found["title"] = [document["title"] for document in texts]
            found["text"] = [document["text"] for document in texts]
        return found


class Reranker(pt.Transformer):
    """Scores given documents anew: results with text, and perhaps title, to results.

    Args:
        model: what an encoder is loaded by, a loaded one, or with ``cross_encoder`` the name of a
            cross-encoder, which reads title and text with a space between.
        options: how an encoder is loaded, and the device of either.
        batch_size: texts, or pairs of them, at a time.
    """

    def __init__(
        self,
        model: str | Path | COCODR,
        cross_encoder: bool = False,
        options: SearchOptions = SearchOptions(),
        batch_size: int = 64,
    ) -> None:
        self.name, self.batch_size = (
            f"Reranker({model if isinstance(model, (str, Path)) else type(model)})",
            batch_size,
        )
        self._cross, self._encoder = None, model if isinstance(model, COCODR) else None
        if cross_encoder:
            self._cross = load_cross_encoder(str(model), options.encoder.device)
        elif self._encoder is None:
            self._encoder = load_encoder(str(model), options.encoder)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.result_frame(inp, extra_columns=["query", "text"])
        titles = inp["title"].fillna("") if "title" in inp.columns else [""] * len(inp)
        pairs = list(zip(titles, inp["text"].fillna(""), strict=True))
        if not pairs:
            return _scored(inp, np.zeros(0, np.float32))
        if self._cross is not None:
            model, literally = self._cross
            read = (literally(f"{title} {text}".strip()) for title, text in pairs)
            both = list(zip(map(literally, inp["query"]), read, strict=True))
            return _scored(
                inp, model.predict(both, batch_size=self.batch_size, show_progress_bar=False)
            )
        assert self._encoder is not None
        how: dict[str, Any] = {
            "batch_size": self.batch_size,
            "show_progress_bar": False,
            "convert_to_tensor": True,
        }
        (texts, query_of), (documents, document_of) = _unique(inp["query"].tolist()), _unique(pairs)
        queries = self._encoder.encode_queries(texts, **how)
        vectors = self._encoder.encode_corpus(
            [{"title": title, "text": text} for title, text in documents], **how
        )
        scores = self._encoder.similarity_pairwise(queries[query_of], vectors[document_of])
        return _scored(inp, scores.float().cpu().numpy())


class StoreReader(pt.Transformer):
    """Reads a complete store of ``encode``: searches it for queries, exactly, or scores given
    documents by its vectors. ``model`` is where its encoder is now, by default where it was then.
    An InputError where that is not found or is another, or a document is not in the store.
    """

    def __init__(
        self,
        store: str | Path,
        model: str | None = None,
        num_results: int = 1000,
        device: str | None = None,
    ) -> None:
        check_count("num_results", num_results)
        self.name, self.num_results = f"StoreReader({store})", num_results
        self.store = EmbeddingStore.open(store)
        self.encoder = query_encoder(self.store, model, device)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        with pt.validate.any(inp) as mode:
            mode.result_frame(extra_columns=["query"])
            mode.query_frame(extra_columns=["query"])
        given = "docno" in inp.columns
        if not len(inp):
            return _scored(inp, np.zeros(0, np.float32)) if given else _found(inp, _NOTHING, [])
        texts, query_of = _unique(inp["query"].tolist())
        vectors = self.encoder.encode_queries(
            texts, show_progress_bar=False, convert_to_tensor=True
        )
        if not given:
            ids = [str(number) for number in range(len(inp))]
            ranking = search_store(self.store, ids, vectors[query_of], self.num_results)
            return _found(inp, ranking, self.store.ids(ranking.rows[ranking.rows >= 0]))
        rows = np.array([self._rows.get(docno, -1) for docno in inp["docno"]])
        if (rows < 0).any():
            unknown = inp["docno"].iloc[int(np.argmax(rows < 0))]
            raise InputError(
                f"{self.store.folder} has no document {unknown!r}: search what the store was made of"
            )
        queries, offsets = self.store.queries(vectors)
        scores = (queries[query_of].double() * self.store.rows(rows).double()).sum(dim=1).numpy()
        return _scored(
            inp, (scores + (0 if offsets is None else offsets.numpy()[query_of])).astype(np.float32)
        )

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {id: row for row, id in enumerate(self.store.ids(np.arange(len(self.store))))}


#: Of no queries.
_NOTHING = Ranking([], np.zeros((0, 0), np.float32), np.zeros((0, 0), np.int64))


def _found(inp: pd.DataFrame, ranking: Ranking, ids: list[str]) -> pd.DataFrame:
    """Results of the queries of a frame, whose other columns stay."""
    kept: pd.DataFrame = inp[pt.model.query_columns(inp)]
    is_found = ranking.rows >= 0
    places, ranks = np.nonzero(is_found)
    found = kept.iloc[places].reset_index(drop=True)
    return found.assign(
        docno=np.array(ids, dtype=object), score=ranking.scores[is_found], rank=ranks
    )


def _scored(inp: pd.DataFrame, scores: npt.NDArray[np.float32]) -> pd.DataFrame:
    """Results with other scores, best first in each query, ties by descending id as in
    trec_eval.
    """
    columns = [name for name in inp.columns if name not in ("score", "rank")]
    places = (
        pd.Series(range(len(inp)), index=inp.index).groupby(inp["qid"], sort=False).transform("min")
    )
    frame = inp[columns].assign(score=scores, place=places)
    frame = frame.sort_values(
        ["place", "score", "docno"], ascending=[True, False, False], ignore_index=True
    )
    return frame.assign(rank=frame.groupby("place").cumcount()).drop(columns="place")


def _unique(values: Sequence[_Text]) -> tuple[list[_Text], list[int]]:
    """Different values in the order of their first places, and of each value its place among
    them.
    """
    places: dict[_Text, int] = {}
    place_of = [places.setdefault(value, len(places)) for value in values]
    return list(places), place_of
