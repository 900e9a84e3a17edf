"""Qdrant: a folder that ``hand-over --to qdrant`` wrote, uploaded as a collection and searched.

A collection is a retriever: ``compare`` and ``evaluate`` take it as a model::

    from qdrant_client import QdrantClient
    from beir_cocodr.plugins.qdrant import QdrantCollection

    collection = QdrantCollection("handed/", QdrantClient("http://localhost:6333"))
    collection.upload()
    collection.search({"q": "a question"}, top_k=10)
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
from qdrant_client import QdrantClient, models

from beir_cocodr import checksums
from beir_cocodr.arrays import Doubles, Floats
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.errors import InputError
from beir_cocodr.io import Json
from beir_cocodr.models.checkpoints.loading import fingerprint, load_encoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.progress import Bar
from beir_cocodr.retrieval.handover.hand_over import RECORD_FILE, HandOverRecord
from beir_cocodr.retrieval.handover.parquet_files import (
    COLLECTION_FILE,
    COVARIANCE_FILE,
    MEAN_FILE,
    SAMPLE_FILE,
    TERMS_FILE,
)

__all__ = ["QdrantCollection"]

_AGAIN = "hand over again"

# Points of a request.
_BATCH = 256

# Queries of a request.
_QUERIES = 32


class QdrantCollection:
    """A collection of Qdrant with the documents of a handed-over folder.

    Args:
        folder: The folder.
        client: A client of the server, or ``QdrantClient(":memory:")``.
        options: How the encoder of the queries is loaded.
        candidates: Documents of each search that a fusion takes. With all documents of the corpus
            the ranking is that of the whole fusion.
        exact: Compare a query with all vectors instead of searching the server's index.

    Raises:
        InputError: The folder is damaged, was written for another engine, or its encoder is no
            longer the same.

    The fusion is that of :class:`~beir_cocodr.retrieval.hybrid.fusion.Hybrid`, less what is the
    same for all documents of a query. The covariances of BM25's terms come from 20,000 documents;
    in a corpus of no more the two fusions are equal.
    """

    def __init__(
        self,
        folder: str | Path,
        client: QdrantClient,
        options: EncoderOptions = EncoderOptions(),
        candidates: int = 1_000,
        *,
        exact: bool = False,
    ) -> None:
        """Load the encoder; nothing is sent."""
        self.folder = Path(folder)
        self.client = client
        self.candidates = candidates
        self.exact = exact
        self.record = HandOverRecord.read(self.folder / RECORD_FILE)
        if self.record.engine != "qdrant":
            raise InputError(
                f"{folder} was written for {self.record.engine}; run hand-over --to qdrant"
            )
        self.encoder = load_encoder(self.record.encoder, options)
        if fingerprint(self.encoder) != self.record.fingerprint:
            raise InputError(
                f"{folder}: {self.record.encoder} is no longer the model that made the vectors; "
                f"{_AGAIN}"
            )

    @property
    def name(self) -> str:
        """Return the name of the collection on the server."""
        return self.record.collection

    def upload(self, replace: bool = False) -> int:
        """Create the collection and upload all documents, and return their number.

        Args:
            replace: Delete a collection of this name first.

        Raises:
            InputError: There is a collection of this name, or a file is missing or damaged.
        """
        if self.client.collection_exists(self.name):
            if not replace:
                raise InputError(
                    f"Qdrant has a collection {self.name!r} already; replace it by "
                    "upload(replace=True), or hand over under another --collection"
                )
            self.client.delete_collection(self.name)
        settings = self._read_json(COLLECTION_FILE)
        self.client.create_collection(
            self.name,
            vectors_config={
                name: models.VectorParams(**parameters)
                for name, parameters in settings["vectors"].items()
            },
            sparse_vectors_config={
                name: models.SparseVectorParams(**parameters)
                for name, parameters in settings.get("sparse_vectors", {}).items()
            },
        )
        with Bar(total=self.record.documents, desc="Uploading", unit=" documents") as bar:
            for batch in self._batches():
                self.client.upsert(self.name, points=_points(batch), wait=True)
                bar.update(batch.num_rows)
        return self.record.documents

    def _read_json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def _checked(self, name: str) -> Path:
        path = self.folder / name
        checksums.verify(path, _AGAIN)
        return path

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if not self.record.files:
            raise InputError(
                f"{self.folder} has no vectors, as it was written with --no-vectors; {_AGAIN}"
            )
        for name in self.record.files:
            with pq.ParquetFile(self._checked(name)) as file:
                yield from file.iter_batches(_BATCH)

    def search(self, queries: dict[str, str], top_k: int) -> dict[str, dict[str, float]]:
        """Return query id to {document id: score} for query id to text."""
        ids = list(queries)
        results: dict[str, dict[str, float]] = {}
        for first in range(0, len(ids), _QUERIES):
            block = ids[first : first + _QUERIES]
            requests = self._requests([queries[id] for id in block], top_k)
            answers = self.client.query_batch_points(self.name, requests=requests)
            for id, answer in zip(block, answers, strict=True):
                results[id] = {
                    str((point.payload or {})["id"]): point.score for point in answer.points
                }
        return results

    def _requests(self, texts: Sequence[str], top_k: int) -> list[models.QueryRequest]:
        vectors = self.encoder.query_vectors(list(texts)).numpy()
        search = models.SearchParams(exact=self.exact)
        if self.record.bm25_weight is None:
            return [
                models.QueryRequest(
                    query=vector.tolist(),
                    using="dense",
                    limit=top_k,
                    params=search,
                    with_payload=["id"],
                )
                for vector in vectors
            ]
        return [
            self._fusion_request(text, vector, top_k, search)
            for text, vector in zip(texts, vectors, strict=True)
        ]

    def _fusion_request(
        self, text: str, vector: Floats, top_k: int, search: models.SearchParams
    ) -> models.QueryRequest:
        """Return a request that ranks by the sum of the scores of the two searches."""
        weight = self.record.bm25_weight or 0.0
        limit = max(top_k, self.candidates)
        mean, deviation = self._moments_of(vector)
        scaled = vector / (deviation * (1 + weight)) if deviation else np.zeros_like(vector)
        sparse = self._sparse_query(text, weight / (1 + weight))
        prefetch = [
            models.Prefetch(query=scaled.tolist(), using="dense", limit=limit, params=search)
        ]
        terms: list[Any] = ["$score[0]"]
        if sparse.indices:
            prefetch.append(models.Prefetch(query=sparse, using="bm25", limit=limit))
            terms.append("$score[1]")
        # A document that only one search returned has an average score in the other.
        average = mean / (deviation * (1 + weight)) if deviation else 0.0
        formula = models.FormulaQuery(
            formula=models.SumExpression(sum=terms),
            defaults={"$score[0]": average, "$score[1]": 0.0},
        )
        return models.QueryRequest(
            prefetch=prefetch, query=formula, limit=top_k, with_payload=["id"]
        )

    def _moments_of(self, vector: Floats) -> tuple[float, float]:
        """Return the mean and the deviation of a query's dense scores over the corpus."""
        wide = vector.astype(np.float64)
        mean = float(wide @ self._mean)
        variance = float(wide @ self._covariance @ wide)
        return mean, math.sqrt(max(variance, 0.0))

    def _sparse_query(self, text: str, share: float) -> models.SparseVector:
        """Return a query's term counts, times ``share`` over the deviation of its BM25 scores."""
        numbers, _ = self._terms
        counts: Counter[int] = Counter()
        for term in self._analyzer(text):
            if term in numbers:
                counts[numbers[term]] += 1
        variance = self._lexical_variance(counts)
        if variance <= 0:
            return models.SparseVector(indices=[], values=[])
        factor = share / math.sqrt(variance)
        values = [factor * count for count in counts.values()]
        return models.SparseVector(indices=list(counts), values=values)

    def _lexical_variance(self, counts: Mapping[int, int]) -> float:
        """Return the variance of a query's BM25 scores over the corpus.

        Args:
            counts: Number of a term to how often the query has it.
        """
        if not counts:
            return 0.0
        _, deviations = self._terms
        numbers = list(counts)
        weights = np.array(list(counts.values()), np.float64)
        sampled = self._sample[:, numbers].toarray().astype(np.float64)  # (S, terms)
        covariance = np.atleast_2d(np.cov(sampled, rowvar=False, bias=True))
        np.fill_diagonal(covariance, deviations[numbers] ** 2)
        return float(weights @ covariance @ weights)

    @cached_property
    def _sample(self) -> sp.csc_matrix:
        return sp.load_npz(self._checked(SAMPLE_FILE))

    @cached_property
    def _analyzer(self) -> Analyzer:
        return Analyzer(self.record.analyzer or "english")

    @cached_property
    def _mean(self) -> Doubles:
        mean: Doubles = np.load(self._checked(MEAN_FILE))
        return mean

    @cached_property
    def _covariance(self) -> Doubles:
        covariance: Doubles = np.load(self._checked(COVARIANCE_FILE))
        return covariance

    @cached_property
    def _terms(self) -> tuple[dict[str, int], Doubles]:
        """Return the number of each term, and the deviations by number."""
        table = pq.read_table(self._checked(TERMS_FILE))
        numbers = {term: number for number, term in enumerate(table["term"].to_pylist())}
        return numbers, table["deviation"].to_numpy()

    def describe(self) -> Json:
        """Return what the rankings depend on, for records."""
        return {
            "model": "Qdrant",
            "encoder": self.record.encoder,
            "corpus": self.record.corpus,
            "bm25_weight": self.record.bm25_weight,
            "candidates": self.candidates,
        }


def _points(batch: pa.RecordBatch) -> list[models.PointStruct]:
    """Return the points of some rows of a file."""
    points = []
    for row in batch.to_pylist():
        vector: dict[str, Any] = {"dense": row["vector"]}
        if row.get("term_numbers"):
            vector["bm25"] = models.SparseVector(
                indices=row["term_numbers"], values=row["term_weights"]
            )
        payload = {name: row[name] for name in ("id", "title", "text")}
        points.append(models.PointStruct(id=row["number"], vector=vector, payload=payload))
    return points
