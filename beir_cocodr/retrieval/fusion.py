"""BM25 and a dense encoder together: fusion of scores, of ranks, and feedback into the query."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.models.spec import BM25_WEIGHT
from beir_cocodr.records import Json
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.retrieval.ranking import (
    RRF_CONSTANT,
    Lexical,
    Parts,
    Ranking,
    blocks,
    reciprocal_ranks,
)
from beir_cocodr.retrieval.selection import HostBest, ranks_of, scores_of
from beir_cocodr.retrieval.store.store import MappedEmbeddings

#: Elements of a (queries, documents) score block: about 300 MB with the copies that normalising
#: needs.
_BLOCK_ELEMENTS = 2**23
#: Documents whose scores by BM25 are there together, one query's, for their moments.
_MOMENT_DOCUMENTS = 2**20
#: Queries that one pass over the corpus is for, at most.
_QUERIES = 256
# No sum of numbers up to this leaves float32.
_SAFE = 1e38
_RRF_DEPTH = 1000


def z_normalize(scores: np.ndarray) -> np.ndarray:
    """(Q, N) scores to zero mean and unit deviation over the documents of each query; constants to
    0.
    """
    centred = scores - scores.mean(axis=1, keepdims=True, dtype=np.float64)
    deviation = centred.std(axis=1, keepdims=True)
    normal: np.ndarray = np.divide(
        centred, deviation, out=np.zeros_like(centred), where=deviation > 0
    )
    return normal


def weighted_mean(dense: np.ndarray, lexical: np.ndarray, bm25_weight: float) -> np.ndarray:
    """The fusion of z-normalised scores of any shape: (dense + w · lexical) / (1 + w)."""
    fused: np.ndarray = (dense + bm25_weight * lexical) / (1 + bm25_weight)
    return fused


class HeldScores:
    """Scores of BM25 that are there, (Q, N) float32."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """(Q,) means and deviations over all documents."""
        return self.scores.mean(axis=1, dtype=np.float64), self.scores.std(axis=1, dtype=np.float64)

    def block(self, first: int, last: int) -> np.ndarray:
        """(Q, n) scores of consecutive documents."""
        return self.scores[:, first:last]


class TermScores:
    """Those of (Q,) queries of weighted terms, computed where they are looked at."""

    def __init__(self, bm25: BM25, weights: Sequence[Mapping[int, float]]) -> None:
        self.bm25, self.weights = bm25, weights

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        size = len(self.bm25.documents)
        parts = [
            (first, min(first + _MOMENT_DOCUMENTS, size))
            for first in range(0, size, _MOMENT_DOCUMENTS)
        ]
        found = np.array(
            [[self._of_part(terms, *part) for part in parts] for terms in self.weights]
        )
        means, deviations = found[..., 0], found[..., 1]  # (Q, parts)
        share = np.array([last - first for first, last in parts]) / size
        mean = means[:, 0] + (means - means[:, :1]) @ share
        return mean, np.sqrt((deviations**2 + (means - mean[:, None]) ** 2) @ share)

    def _of_part(self, terms: Mapping[int, float], first: int, last: int) -> tuple[float, float]:
        [mean], [deviation] = HeldScores(self.bm25.term_scores(terms, first, last)[None]).moments()
        return mean, deviation

    def block(self, first: int, last: int) -> np.ndarray:
        return np.stack([self.bm25.term_scores(terms, first, last) for terms in self.weights])


#: (Q, N) scores of BM25, of which a block of documents is looked at.
LexicalScores = HeldScores | TermScores


def _inverse(deviation: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return found


class _Fusion:
    """What the fusions of a dense encoder with BM25 share."""

    def __init__(self, dense: Dense, bm25: Lexical) -> None:
        self.dense, self.bm25 = dense, bm25

    def prepare(self) -> None:
        self.dense.prepare()
        self.bm25.prepare()

    def describe(self) -> Json:
        dense = self.dense.describe()
        same = {name: dense[name] for name in ("similarity", "text_format")}
        return {**same, "dense": dense, "bm25": self.bm25.describe()}


class Hybrid(_Fusion):
    """Weighted mean of the z-normalised scores of a dense encoder and of BM25 over all documents;
    ``bm25_weight`` is w, of BM25 against 1 of the encoder (default 0.5).
    """

    def __init__(self, dense: Dense, bm25: Lexical, bm25_weight: float = BM25_WEIGHT) -> None:
        super().__init__(dense, bm25)
        self.bm25_weight = bm25_weight

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        return self.rank(queries, self.dense.encode_queries(list(queries.values())), top_k)

    def fused(self, texts: list[str], vectors: torch.Tensor) -> Iterator[np.ndarray]:
        """(Q, n) float32 scores of queries and consecutive documents, in one pass over the
        corpus.
        """
        return self._mixed(vectors, self.lexical(texts, vectors))

    def lexical(self, texts: list[str], vectors: torch.Tensor) -> LexicalScores:
        """BM25's scores for queries, of which the encoder's vectors are (Q, d)."""
        if isinstance(self.bm25, BM25):
            return TermScores(self.bm25, self.bm25.term_counts(texts))
        return HeldScores(np.stack([self.bm25.scores(text) for text in texts]))

    def _mixed(self, vectors: torch.Tensor, lexical: LexicalScores) -> Iterator[np.ndarray]:
        mean, deviation = self.dense.moments.of_scores(vectors.numpy())
        (added, scale), w = lexical.moments(), self.bm25_weight
        # The weighted mean of two z-scores is a sum of multiples of the scores and a constant.
        own, of_bm25 = (_inverse(part)[:, None] / (1 + w) for part in (deviation, scale))
        constant = mean[:, None] * own + w * added[:, None] * of_bm25
        first = 0
        for chunk in self.dense.embeddings.chunks():
            for part in torch.split(chunk, max(1, _BLOCK_ELEMENTS // 2 // len(vectors))):
                scores = lexical.block(first, first + len(part)) * (w * of_bm25)
                scores += (vectors @ part.T).numpy() * own
                scores -= constant
                first += len(part)
                yield scores.astype(np.float32)

    def parts(self, query: str, rows: np.ndarray, scores: np.ndarray) -> Parts:
        """What the encoder and BM25 add to the weighted mean."""
        vectors, size = self.dense.encode_queries([query]), len(self.dense.documents)
        dense, weight = self._dense_scores(vectors), self.bm25_weight
        own, lexical = (
            z_normalize(part)[0, rows]
            for part in (dense, self.lexical([query], vectors).block(0, size))
        )
        return Parts(own / (1 + weight), weight * lexical / (1 + weight))

    def _dense_scores(self, vectors: torch.Tensor) -> np.ndarray:
        """(Q, N) scores of all documents for (Q, d) queries."""
        return np.concatenate(
            [(vectors @ chunk.T).numpy() for chunk in self.dense.embeddings.chunks()], axis=1
        )

    def rank(self, queries: dict[str, str], vectors: torch.Tensor, top_k: int) -> Ranking:
        """Rank for queries whose embeddings, (Q, d), are already there."""
        if not float(vectors.abs().max()) * self.dense.moments.largest * vectors.shape[1] < _SAFE:
            self.dense.search_embeddings(
                list(queries), vectors, 1
            )  # fails, naming the documents or queries
        start, found = 0, []
        for ids, texts in blocks(queries, self._queries_a_pass()):
            block = vectors[start : start + len(ids)]
            start += len(ids)
            found.append(self._best(self.fused(texts, block), len(ids), top_k))
        scores, rows = (np.concatenate(part) for part in zip(*found, strict=True))
        return Ranking(list(queries), scores, rows)

    def _queries_a_pass(self) -> int:
        held = not isinstance(self.bm25, BM25)
        return max(
            1, min(_QUERIES, 8 * _BLOCK_ELEMENTS // len(self.dense.documents) if held else _QUERIES)
        )

    def _best(
        self, pieces: Iterator[np.ndarray], count: int, top_k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(Q, k) scores and rows of the best of all documents for ``count`` queries, from
        :meth:`fused`.
        """
        ties = self.dense.documents.tie_ranks()
        best = HostBest(count, top_k)
        for piece in pieces:
            ranks = np.array(ties[best.seen : best.seen + piece.shape[1]], np.int64)
            best.add(slice(0, count), torch.from_numpy(piece), torch.from_numpy(ranks))
            best.seen += piece.shape[1]
        ranks, wanted = ranks_of(keys := best.result()).numpy(), np.zeros(len(ties), bool)
        wanted[ranks] = True
        rows = np.flatnonzero(wanted[ties])
        rows = rows[ties[rows].argsort()]  # by ascending rank
        return scores_of(keys).numpy(), rows[ties[rows].searchsorted(ranks)]

    def describe(self) -> Json:
        return {
            "model": "weighted mean of z-normalised scores",
            "bm25_weight": self.bm25_weight,
            **super().describe(),
        }


class RM3(Hybrid):
    """The fusion, with BM25's query expanded by terms of the fusion's best documents.

    P(t|R) = Σ_d P(t|d) P(d|q) over the best ``documents`` d (10), where P(t|d) is t's share of the
    terms of d, and P(d|q) is proportional to exp(fused score). Its best ``terms`` (20) and the
    terms of the query, each summing to 1, are mixed by ``weight`` of the expansion (0.5); BM25's
    scores for that are then fused with the encoder's, by the same ``bm25_weight``.

    Source: Lavrenko and Croft, 2001; Abdul-Jaleel et al., 2004 (RM3), with a fusion for the first
    search.
    """

    bm25: BM25

    def __init__(
        self,
        dense: Dense,
        bm25: BM25,
        bm25_weight: float = BM25_WEIGHT,
        documents: int = 10,
        terms: int = 20,
        weight: float = 0.5,
    ) -> None:
        super().__init__(dense, bm25, bm25_weight)
        self.documents, self.terms, self.weight = documents, terms, weight
        self._counts: dict[int, Counter[int]] = {}  # of documents that were looked at

    def lexical(self, texts: list[str], vectors: torch.Tensor) -> LexicalScores:
        counts = self.bm25.term_counts(texts)
        first = self._mixed(vectors, TermScores(self.bm25, counts))
        scores, rows = self._best(first, len(texts), self.documents)
        expanded = [self._expand(*query) for query in zip(counts, rows, scores, strict=True)]
        return TermScores(self.bm25, expanded)

    def _expand(
        self, query: Counter[int], rows: np.ndarray, scores: np.ndarray
    ) -> dict[int, float]:
        """Weights of the terms of a query and of its best documents; nothing for a query of unknown
        terms.
        """
        shares = np.exp((scores - scores.max()).astype(np.float64))
        if new := [row for row in rows.tolist() if row not in self._counts]:
            found = [
                self.bm25.text_format.document(document)
                for document in self.dense.documents.take(new)
            ]
            self._counts.update(zip(new, self.bm25.term_counts(found), strict=True))
        model: defaultdict[int, float] = defaultdict(float)
        for row, share in zip(rows.tolist(), shares / shares.sum(), strict=True):
            counts = self._counts[row]
            for term, count in counts.items():
                model[term] += share * count / counts.total()
        # Of equal terms those with smaller numbers, which stand first in the corpus.
        best = dict(sorted(model.items(), key=lambda item: (-item[1], item[0]))[: self.terms])
        mixed: defaultdict[int, float] = defaultdict(float)
        for terms, weight in ((query, 1 - self.weight), (best, self.weight)):
            total = sum(terms.values())
            for term, value in terms.items():
                mixed[term] += weight * value / total
        return mixed

    def describe(self) -> Json:
        sizes = {"weight": self.weight, "documents": self.documents, "terms": self.terms}
        return {**super().describe(), "model": "RM3 fused by z-normalised scores", **sizes}


class ReciprocalRank(_Fusion):
    """Reciprocal rank fusion of the best 1,000 of BM25 and of a dense encoder: sum of 1 / (60 +
    rank).

    Source: Cormack et al., 2009.
    """

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        lists = self._lists(queries)
        found = (
            reciprocal_ranks([row[row >= 0] for row in rows]) for rows in zip(*lists, strict=True)
        )
        fused = ((rows, scores.astype(np.float32)) for rows, scores in found)
        return Ranking.of_best(queries, fused, self.dense.documents.tie_ranks(), top_k)

    def parts(self, query: str, rows: np.ndarray, scores: np.ndarray) -> Parts:
        """What the place in each list adds; 0 where a document is not in it."""
        found = [reciprocal_ranks([part[0][part[0] >= 0]]) for part in self._lists({"": query})]
        added = [
            dict(zip(part.tolist(), values.astype(np.float32).tolist(), strict=True))
            for part, values in found
        ]
        return Parts(
            *(np.array([values.get(row, 0.0) for row in rows.tolist()]) for values in added)
        )

    def _lists(self, queries: dict[str, str]) -> list[np.ndarray]:
        return [part.search(queries, _RRF_DEPTH).rows for part in (self.dense, self.bm25)]

    def describe(self) -> Json:
        sizes = {"constant": RRF_CONSTANT, "depth": _RRF_DEPTH}
        return {"model": "reciprocal rank fusion", **sizes, **super().describe()}


class Feedback(Hybrid):
    """Dense search with the query moved towards the best documents of the fusion by
    ``bm25_weight``.

    q' = normalise(q + ``weight`` (0.5) * mean of the embeddings of the fusion's best ``documents``
    (3)).
    """

    def __init__(
        self,
        dense: Dense,
        bm25: Lexical,
        weight: float = 0.5,
        documents: int = 3,
        bm25_weight: float = BM25_WEIGHT,
    ) -> None:
        super().__init__(dense, bm25, bm25_weight)
        self.weight, self.documents = weight, documents

    def move(self, queries: dict[str, str]) -> torch.Tensor:
        """The moved queries, (Q, d)."""
        vectors = self.dense.encode_queries(list(queries.values()))
        best = self.rank(queries, vectors, self.documents).rows  # (Q, documents)
        found = self.documents_at(best.ravel()).reshape(*best.shape, -1)
        mean = torch.from_numpy(found.mean(axis=1))
        return torch.nn.functional.normalize(vectors + self.weight * mean, dim=-1)

    def documents_at(self, rows: np.ndarray) -> np.ndarray:
        """(n, d) embeddings that queries are moved towards."""
        found: np.ndarray = self.dense.embeddings.rows(rows).numpy()
        return found

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        return self.dense.search_embeddings(list(queries), self.move(queries), top_k)

    def parts(self, query: str, rows: np.ndarray, scores: np.ndarray) -> Parts:
        """All of a score is dense: BM25 moved the query, and adds nothing."""
        return Parts(dense=scores)

    def describe(self) -> Json:
        sizes = {
            "weight": self.weight,
            "documents": self.documents,
            "bm25_weight": self.bm25_weight,
        }
        return {"model": "hybrid feedback", **sizes, **_Fusion.describe(self)}


class FusedFeedback(Feedback):
    """The fusion of BM25 with the encoder's moved query of :class:`Feedback`: what distillation
    learns from.
    """

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        return self.rank(queries, self.move(queries), top_k)


class HybridFeedback:
    """Feedback of a hybrid encoder: its dense part is moved towards the best documents, and
    searched with again.

    Both searches are in the same index. The best documents are the first search's, or those of the
    exact fusion where ``bm25`` is given. BM25's part of the query stays as it is; ``weight``,
    ``documents``: as for :class:`Feedback`.
    """

    def __init__(
        self, dense: Dense, bm25: Lexical | None = None, weight: float = 0.5, documents: int = 3
    ) -> None:
        assert isinstance(dense.model, HybridEncoder)
        self.dense, self.model, self.bm25 = dense, dense.model, bm25
        self.weight, self.documents = weight, documents
        self._exact: Hybrid | None = None

    def prepare(self) -> None:
        self.dense.prepare()
        if self.bm25 is not None:
            self.bm25.prepare()

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        return self.dense.search_embeddings(list(queries), self.move(queries), top_k)

    def parts(self, query: str, rows: np.ndarray, scores: np.ndarray) -> Parts:
        """Those of the moved query."""
        return self.dense.parts(query, rows, scores, self.move({"": query}))

    def move(self, queries: dict[str, str]) -> torch.Tensor:
        """The moved queries, (Q, d), for the embeddings that are searched."""
        width = self.model.head.dimension
        parts = self.model.encode_query_parts(list(queries.values()), self.dense.batch_size)
        best = self._best(queries, parts)  # (Q, documents), -1 where there are fewer
        found = self.dense.embeddings.rows(best.clip(min=0).ravel())[:, :width].reshape(
            *best.shape, width
        )
        there = torch.from_numpy(best >= 0)[..., None]
        mean = (found * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)
        moved = torch.nn.functional.normalize(parts[:, :width] + self.weight * mean, dim=-1)
        return self.model.join(torch.cat([moved, parts[:, width:]], dim=-1))

    def _best(self, queries: dict[str, str], parts: torch.Tensor) -> np.ndarray:
        if self.bm25 is None:
            vectors = self.model.join(parts)
            return self.dense.search_embeddings(list(queries), vectors, self.documents).rows
        head = self.model.head
        if self._exact is None:
            part = MappedEmbeddings(
                self.dense.embeddings, lambda found: found[:, : head.dimension], head.dimension
            )
            alone = Dense(self.model, self.dense.documents, self.dense.folder, given=part)
            self._exact = Hybrid(alone, self.bm25, head.bm25_weight)
        return self._exact.rank(
            queries, parts[:, : head.dimension].contiguous(), self.documents
        ).rows

    def describe(self) -> Json:
        given = None if self.bm25 is None else self.bm25.describe()
        sizes = {"weight": self.weight, "documents": self.documents, "bm25": given}
        return {**self.dense.describe(), "model": "feedback of a hybrid encoder", **sizes}
