"""BEIR's FAISS searches, with BEIR's names, made whole.

In BEIR 2.2 they cannot be instantiated; made so, they rank by distance as if it were a score, take
"no document" for the last one, fail on ``title: None``, and one builds no index at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import faiss
import numpy as np
from beir.retrieval.search.dense import faiss_search
from beir.retrieval.search.dense.faiss_index import FaissBinaryIndex, FaissHNSWIndex
from beir_cocodr.plugins.beir import beir_corpus

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.exact import Corpus, ExactSearch, query_texts


class _Whole:
    """What BEIR's FAISS searches lack: searching with fewer documents than are asked for, and
    scores that are larger where documents are nearer, whatever the metric of the index.

    Their constructors, ``index``, ``save`` and ``load`` are BEIR's.
    """

    model: Any
    batch_size: int
    faiss_index: Any
    rev_mapping: dict[int, str]

    def index(self, corpus: Corpus, score_function: str | None = None) -> None:
        super().index(beir_corpus(corpus), score_function)  # type: ignore[misc]

    def search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Index the corpus if that is not done, and search it.

        Args:
            corpus, queries, score_function: as for `ExactSearch`.
            top_k: documents wanted; an index may find fewer.
            **kwargs: of BEIR's index, such as ``rerank`` and ``binary_k`` of `BinaryFaissSearch`.
        """
        unit = ExactSearch(self.model).similarity(score_function) == "cosine"
        if not self.faiss_index:
            self.index(corpus, "cos_sim" if unit else "dot")
        texts, count = query_texts(queries), self.faiss_index.index.ntotal
        vectors = self.model.encode_queries(
            list(texts.values()),
            batch_size=self.batch_size,
            show_progress_bar=True,
            normalize_embeddings=unit,
        )
        scores, rows = self._found(
            np.asarray(vectors, np.float32), min(top_k, count), count, **kwargs
        )
        there = np.abs(scores) < np.finfo(np.float32).max  # FAISS's score of no document
        self.results = {
            query: {
                self.rev_mapping[row]: score
                for row, score in zip(r[t].tolist(), s[t].tolist(), strict=True)
            }
            for query, r, s, t in zip(texts, rows, scores, there, strict=True)
        }
        return self.results

    def _found(self, vectors: Floats, top_k: int, count: int, **kwargs: Any) -> tuple[Floats, Ints]:
        scores, rows = self.faiss_index.search(vectors, top_k, **kwargs)
        return (-scores if self.faiss_index.index.metric_type == faiss.METRIC_L2 else scores), rows

    def encode(self, *args: Any, **kwargs: Any) -> None:
        raise InputError(
            "a FAISS search keeps its index by save and load; ExactSearch encodes to files"
        )

    def search_from_files(self, *args: Any, **kwargs: Any) -> dict[str, dict[str, float]]:
        raise InputError(
            "a FAISS search keeps its index by save and load; ExactSearch searches files"
        )


class FlatIPFaissSearch(_Whole, faiss_search.FlatIPFaissSearch):  # type: ignore[misc]
    """Exact search."""


class PQFaissSearch(_Whole, faiss_search.PQFaissSearch):  # type: ignore[misc]
    """Product quantisation."""


class SQFaissSearch(_Whole, faiss_search.SQFaissSearch):  # type: ignore[misc]
    """Scalar quantisation."""


class PCAFaissSearch(_Whole, faiss_search.PCAFaissSearch):  # type: ignore[misc]
    """Principal components before another index."""


class HNSWFaissSearch(_Whole, faiss_search.HNSWFaissSearch):  # type: ignore[misc]
    """A graph of neighbours."""


class _TrainedHNSW(FaissHNSWIndex):  # type: ignore[misc]
    @classmethod
    def build(
        cls, passage_ids: Any, passage_embeddings: Any, index: Any, buffer_size: int = 50_000
    ) -> Any:
        index.train(np.pad(passage_embeddings, ((0, 0), (0, 1))))
        return super().build(passage_ids, passage_embeddings, index, buffer_size)


class HNSWSQFaissSearch(_Whole, faiss_search.HNSWSQFaissSearch):  # type: ignore[misc]
    """A graph of neighbours over scalar quantised vectors, by inner product.

    BEIR gives its index one number more than the vectors have, and never fills it.
    """

    def index(self, corpus: Corpus, score_function: str | None = None) -> None:
        rows, vectors = self._index(beir_corpus(corpus), score_function)
        kind = getattr(faiss.ScalarQuantizer, self.qname)
        index = faiss.IndexHNSWSQ(
            self.dim_size + 1, kind, self.hnsw_store_n, faiss.METRIC_INNER_PRODUCT
        )
        index.hnsw.efSearch, index.hnsw.efConstruction = (
            self.hnsw_ef_search,
            self.hnsw_ef_construction,
        )
        self.faiss_index = _TrainedHNSW.build(rows, vectors, index)

    def load(self, input_dir: str, prefix: str = "my-index", ext: str = "hnsw-sq") -> None:
        file, rows = self._load(input_dir, prefix, ext)
        self.faiss_index = FaissHNSWIndex(faiss.read_index(file), rows)


class BinaryFaissSearch(_Whole, faiss_search.BinaryFaissSearch):  # type: ignore[misc]
    """Signs of the numbers, compared by Hamming distance, the best of them by the query's own
    numbers.

    The model may give bits, as BEIR's ``BinarySentenceBERT`` does, or the numbers that they are
    made of.
    """

    def index(self, corpus: Corpus, score_function: str | None = None) -> None:
        rows, vectors = self._index(beir_corpus(corpus), score_function)
        bits = vectors if vectors.dtype == np.uint8 else np.packbits(vectors > 0, axis=1)
        self.faiss_index = FaissBinaryIndex.build(
            rows, bits, faiss.IndexBinaryFlat(8 * bits.shape[1])
        )

    def _found(self, vectors: Floats, top_k: int, count: int, **kwargs: Any) -> tuple[Floats, Ints]:
        reranked = kwargs.setdefault("rerank", True)
        kwargs["binary_k"] = min(kwargs.get("binary_k", 1_000), count)
        scores, rows = self.faiss_index.search(vectors, top_k, **kwargs)
        return (scores if reranked else -scores.astype(np.float32)), rows
