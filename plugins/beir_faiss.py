"""BEIR's FAISS searches, with BEIR's names, in working order.

In BEIR 2.2 they cannot be instantiated. Apart from that, they rank by distance as if it were a
score, take "no document" for the last one, fail on ``title: None``, and one builds no index at all.
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


class _WorkingSearch:
    """The parts that BEIR's FAISS searches lack.

    They search with fewer documents than are asked for, and their scores are larger for nearer
    documents, whatever the metric of the index. Constructors, ``index``, ``save`` and ``load`` are
    BEIR's.
    """

    model: Any
    batch_size: int
    faiss_index: Any
    rev_mapping: dict[int, str]

    def index(self, corpus: Corpus, score_function: str | None = None) -> None:
        """Index a corpus that may have titles of None."""
        super().index(beir_corpus(corpus), score_function)  # type: ignore[misc]

    def search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,
        **kwargs: object,
    ) -> dict[str, dict[str, float]]:
        """Index the corpus if that is not done, and search it.

        Args:
            corpus: A corpus that `ExactSearch` takes.
            queries: Query id to text.
            top_k: Documents of each query; an index may find fewer.
            score_function: The similarity, as `ExactSearch` takes it.
            **kwargs: Options of BEIR's index, such as ``rerank`` and ``binary_k`` of
                `BinaryFaissSearch`.

        Returns:
            Query id to {document id: score}, best first.
        """
        unit = ExactSearch(self.model).similarity(score_function) == "cosine"
        if not self.faiss_index:
            self.index(corpus, "cos_sim" if unit else "dot")
        texts = query_texts(queries)
        count = self.faiss_index.index.ntotal
        vectors = self.model.encode_queries(
            list(texts.values()),
            batch_size=self.batch_size,
            show_progress_bar=True,
            normalize_embeddings=unit,
        )
        float_vectors = np.asarray(vectors, np.float32)
        scores, rows = self._search_index(float_vectors, min(top_k, count), count, **kwargs)
        # FAISS gives the largest number where there is no document.
        is_result = np.abs(scores) < np.finfo(np.float32).max
        self.results = {}
        for i, query in enumerate(texts):
            result_rows = rows[i][is_result[i]].tolist()
            ids = [self.rev_mapping[row] for row in result_rows]
            values = scores[i][is_result[i]].tolist()
            self.results[query] = dict(zip(ids, values, strict=True))
        return self.results

    def _search_index(
        self,
        vectors: Floats,
        top_k: int,
        count: int,
        **kwargs: object,
    ) -> tuple[Floats, Ints]:
        """Return (Q, k) scores, larger for nearer documents, and rows."""
        scores, rows = self.faiss_index.search(vectors, top_k, **kwargs)
        is_distance = self.faiss_index.index.metric_type == faiss.METRIC_L2
        return -scores if is_distance else scores, rows

    def encode(self, *args: object, **kwargs: object) -> None:
        """Refuse: the index has its own files."""
        raise InputError(
            "a FAISS search keeps its index with save and load; use ExactSearch to encode to files"
        )

    def search_from_files(self, *args: object, **kwargs: object) -> dict[str, dict[str, float]]:
        """Refuse: the index has its own files."""
        raise InputError(
            "a FAISS search keeps its index with save and load; use ExactSearch to search files"
        )


class FlatIPFaissSearch(_WorkingSearch, faiss_search.FlatIPFaissSearch):  # type: ignore[misc]
    """Exact search."""


class PQFaissSearch(_WorkingSearch, faiss_search.PQFaissSearch):  # type: ignore[misc]
    """Product quantisation."""


class SQFaissSearch(_WorkingSearch, faiss_search.SQFaissSearch):  # type: ignore[misc]
    """Scalar quantisation."""


class PCAFaissSearch(_WorkingSearch, faiss_search.PCAFaissSearch):  # type: ignore[misc]
    """Principal components before another index."""


class HNSWFaissSearch(_WorkingSearch, faiss_search.HNSWFaissSearch):  # type: ignore[misc]
    """A graph of neighbours."""


class _TrainedHNSW(FaissHNSWIndex):  # type: ignore[misc]
    @classmethod
    def build(
        cls,
        passage_ids: Any,
        passage_embeddings: Any,
        index: Any,
        buffer_size: int = 50_000,
    ) -> Any:
        index.train(np.pad(passage_embeddings, ((0, 0), (0, 1))))
        return super().build(passage_ids, passage_embeddings, index, buffer_size)


class HNSWSQFaissSearch(_WorkingSearch, faiss_search.HNSWSQFaissSearch):  # type: ignore[misc]
    """A graph of neighbours over scalar quantised vectors, by inner product.

    BEIR gives its index one number more than the vectors have, and never fills it.
    """

    def index(self, corpus: Corpus, score_function: str | None = None) -> None:
        """Index a corpus."""
        rows, vectors = self._index(beir_corpus(corpus), score_function)
        kind = getattr(faiss.ScalarQuantizer, self.qname)
        index = faiss.IndexHNSWSQ(
            self.dim_size + 1, kind, self.hnsw_store_n, faiss.METRIC_INNER_PRODUCT
        )
        index.hnsw.efSearch = self.hnsw_ef_search
        index.hnsw.efConstruction = self.hnsw_ef_construction
        self.faiss_index = _TrainedHNSW.build(rows, vectors, index)

    def load(
        self,
        input_dir: str,
        prefix: str = "my-index",
        ext: str = "hnsw-sq",
    ) -> None:
        """Load an index that ``save`` wrote."""
        file, rows = self._load(input_dir, prefix, ext)
        self.faiss_index = FaissHNSWIndex(faiss.read_index(file), rows)


class BinaryFaissSearch(_WorkingSearch, faiss_search.BinaryFaissSearch):  # type: ignore[misc]
    """Search by the signs of the numbers, compared by Hamming distance.

    The best documents are ranked by the query's own numbers. The model may give bits, as BEIR's
    ``BinarySentenceBERT`` does, or the numbers whose signs they are.
    """

    def index(self, corpus: Corpus, score_function: str | None = None) -> None:
        """Index a corpus."""
        rows, vectors = self._index(beir_corpus(corpus), score_function)
        bits = vectors
        if vectors.dtype != np.uint8:
            bits = np.packbits(vectors > 0, axis=1)
        self.faiss_index = FaissBinaryIndex.build(
            rows, bits, faiss.IndexBinaryFlat(8 * bits.shape[1])
        )

    def _search_index(
        self,
        vectors: Floats,
        top_k: int,
        count: int,
        **kwargs: Any,
    ) -> tuple[Floats, Ints]:
        reranked = kwargs.setdefault("rerank", True)
        kwargs["binary_k"] = min(kwargs.get("binary_k", 1_000), count)
        scores, rows = self.faiss_index.search(vectors, top_k, **kwargs)
        return scores if reranked else -scores.astype(np.float32), rows
