"""BM25 and a dense encoder together: fusion of scores, of ranks, and feedback into the query."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch

from beir_cocodr.arrays import (
    Array,
    Doubles,
    Floats,
    Ints,
)
from beir_cocodr.models.spec import BM25_WEIGHT
from beir_cocodr.records import Json
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import (
    RRF_CONSTANT,
    Lexical,
    Parts,
    Ranking,
    blocks,
    reciprocal_ranks,
)
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.retrieval.vectors.selection import HostBest, ranks_of, scores_of

# Elements of a (queries, documents) block of scores: about 300 MB with the copies that normalising
# needs.
_BLOCK_ELEMENTS = 2**23

# Documents whose BM25 scores for one query are held together to take their moments.
_MOMENT_DOCUMENTS = 2**20

# The most queries of one pass over the corpus.
_QUERIES = 256

# Documents whose terms RM3 keeps counted for later queries, in some kilobytes each.
_COUNTED_DOCUMENTS = 20_000

# No sum of numbers up to this overflows float32.
_SAFE = 1e38

# Documents of each ranking that reciprocal rank fusion takes.
_RRF_DEPTH = 1000

#: (Q,) means and deviations of scores.
ScoreMoments = tuple[Doubles, Doubles]


def z_normalize(scores: Array) -> Doubles:
    """Return (Q, N) scores with zero mean and unit deviation over the documents of each query.

    Constant scores become 0.
    """
    means = scores.mean(axis=1, keepdims=True, dtype=np.float64)
    centred = scores - means
    deviation = centred.std(axis=1, keepdims=True)
    normalized: Doubles = np.divide(
        centred,
        deviation,
        out=np.zeros_like(centred),
        where=deviation > 0,
    )
    return normalized


def weighted_mean(
    dense: Array,
    lexical: Array,
    bm25_weight: float,
) -> Array:
    """Return the fusion of z-normalised scores of any shape: (dense + w * lexical) / (1 + w)."""
    total = dense + bm25_weight * lexical
    fused: Array = total / (1 + bm25_weight)
    return fused


def _inverse(deviation: Doubles) -> Doubles:
    """Return the inverse of each deviation, and 0 where that is 0."""
    inverse: Doubles = np.divide(
        1,
        deviation,
        out=np.zeros_like(deviation),
        where=deviation > 0,
    )
    return inverse


class HeldScores:
    """BM25's scores of all documents, (Q, N) float32, held in memory."""

    def __init__(self, scores: Floats) -> None:
        """Take the scores."""
        self.scores = scores

    def moments(self) -> ScoreMoments:
        """Return the (Q,) means and deviations over all documents."""
        means = self.scores.mean(axis=1, dtype=np.float64)
        deviations = self.scores.std(axis=1, dtype=np.float64)
        return means, deviations

    def block(self, first: int, last: int) -> Floats:
        """Return the (Q, n) scores of consecutive documents."""
        return self.scores[:, first:last]

    def of_rows(self, query: int, rows: Ints) -> Floats:
        """Return the (m,) scores of some documents for a query, by its number."""
        scores: Floats = self.scores[query, rows]
        return scores


class TermScores:
    """BM25's scores for queries of weighted terms, computed block by block when they are used."""

    def __init__(self, bm25: BM25, weights: Sequence[Mapping[int, float]]) -> None:
        """Take the queries.

        Args:
            bm25: The index.
            weights: (Q,) queries, each a mapping from term to weight.
        """
        self.bm25 = bm25
        self.weights = weights

    def moments(self) -> ScoreMoments:
        """Return the (Q,) means and deviations over all documents, summed up over parts."""
        size = len(self.bm25.documents)
        edges = [*range(0, size, _MOMENT_DOCUMENTS), size]
        parts = list(pairwise(edges))
        of_queries = [
            [self._part_moments(terms, first, last) for first, last in parts]
            for terms in self.weights
        ]
        moments = np.array(of_queries)  # (Q, parts, 2)
        means = moments[..., 0]
        deviations = moments[..., 1]
        shares = np.diff(edges) / size
        # Around the first part's mean, so that nothing is lost where all means are alike.
        from_first = means - means[:, :1]
        mean = means[:, 0] + from_first @ shares
        from_mean = means - mean[:, None]
        squares = deviations**2 + from_mean**2
        return mean, np.sqrt(squares @ shares)

    def _part_moments(
        self,
        terms: Mapping[int, float],
        first: int,
        last: int,
    ) -> tuple[float, float]:
        scores = self.bm25.term_scores(terms, first, last)
        [mean], [deviation] = HeldScores(scores[None]).moments()
        return mean, deviation

    def block(self, first: int, last: int) -> Floats:
        """Return the (Q, n) scores of consecutive documents."""
        return np.stack([self.bm25.term_scores(terms, first, last) for terms in self.weights])

    def of_rows(self, query: int, rows: Ints) -> Floats:
        """Return the (m,) scores of some documents for a query, by its number."""
        return self.bm25.term_scores_of(self.weights[query], rows)


#: BM25's (Q, N) scores, which are used in blocks of documents.
LexicalScores = HeldScores | TermScores


class _Fusion:
    """The base of the fusions of a dense encoder with BM25."""

    def __init__(self, dense: Dense, bm25: Lexical) -> None:
        self.dense = dense
        self.bm25 = bm25

    def prepare(self) -> None:
        """Encode the corpus and build BM25's index; a second call costs nothing."""
        self.dense.prepare()
        self.bm25.prepare()

    def describe(self) -> Json:
        """Describe both parts for the record of a search."""
        dense = self.dense.describe()
        return {
            "similarity": dense["similarity"],
            "text_format": dense["text_format"],
            "dense": dense,
            "bm25": self.bm25.describe(),
        }


class Hybrid(_Fusion):
    """Weighted mean of the z-normalised scores of a dense encoder and of BM25 over all documents.

    The fused score is (z_dense + w z_BM25) / (1 + w) with w = ``bm25_weight``.
    """

    def __init__(
        self,
        dense: Dense,
        bm25: Lexical,
        bm25_weight: float = BM25_WEIGHT,
    ) -> None:
        """Fuse two searches of one corpus.

        Args:
            dense: Dense search.
            bm25: BM25, here or elsewhere.
            bm25_weight: Weight w of BM25, against 1 of the encoder (default 0.5).
        """
        super().__init__(dense, bm25)
        self._bm25_weight = bm25_weight

    @property
    def bm25_weight(self) -> float:
        """BM25's weight, against 1 of the encoder."""
        return self._bm25_weight

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for queries, id to text."""
        vectors = self.dense.encode_queries(list(queries.values()))
        return self.rank(queries, vectors, top_k)

    def rank(
        self,
        queries: dict[str, str],
        vectors: torch.Tensor,
        top_k: int,
    ) -> Ranking:
        """Rank for queries that are encoded already, as (Q, d) vectors."""
        self._check_finite(list(queries), vectors)
        first = 0
        all_scores = []
        all_rows = []
        for ids, texts in blocks(queries, self._queries_of_a_pass()):
            last = first + len(ids)
            fused = self.fused(texts, vectors[first:last])
            scores, rows = self._best(fused, len(ids), top_k)
            all_scores.append(scores)
            all_rows.append(rows)
            first = last
        return Ranking(
            list(queries),
            np.concatenate(all_scores),
            np.concatenate(all_rows),
        )

    def _check_finite(self, ids: list[str], vectors: torch.Tensor) -> None:
        """Raise an error that names documents or queries if a product may overflow float32."""
        largest = float(vectors.abs().max()) * self.dense.moments.largest
        is_safe = largest * vectors.shape[1] < _SAFE
        if not is_safe:
            self.dense.search_embeddings(ids, vectors, 1)

    def _queries_of_a_pass(self) -> int:
        if isinstance(self.bm25, BM25):
            return _QUERIES
        # All scores of another BM25 are held at once.
        fitting = 8 * _BLOCK_ELEMENTS // len(self.dense.documents)
        return max(1, min(_QUERIES, fitting))

    def fused(self, texts: list[str], vectors: torch.Tensor) -> Iterator[Floats]:
        """Yield (Q, n) float32 scores of consecutive documents, in one pass over the corpus.

        Args:
            texts: (Q,) queries.
            vectors: (Q, d) their embeddings.
        """
        return self._mixed(vectors, self.lexical(texts, vectors))

    def list_scores(
        self,
        texts: list[str],
        vectors: torch.Tensor,
        lists: Sequence[Ints],
    ) -> list[Floats]:
        """Return the scores of some documents, which alone are read once the moments are known.

        The whole corpus is read only by what :meth:`lexical` needs of it, once for many queries.

        Args:
            texts: (Q,) queries.
            vectors: (Q, d) their embeddings.
            lists: (m,) rows of documents for each query.

        Returns:
            (m,) float32 scores for each query.
        """
        size = self._queries_of_a_pass()
        scores: list[Floats] = []
        for first in range(0, len(texts), size):
            block = slice(first, first + size)
            scores += self._list_scores(texts[block], vectors[block], lists[block])
        return scores

    def _list_scores(
        self,
        texts: list[str],
        vectors: torch.Tensor,
        lists: Sequence[Ints],
    ) -> list[Floats]:
        """Return :meth:`list_scores` of the queries of one pass."""
        lexical = self.lexical(texts, vectors)
        lexical_mean, lexical_deviation = lexical.moments()
        lexical_factor = _inverse(lexical_deviation)
        dense_mean, dense_deviation = self.dense.moments.of_scores(vectors.numpy())
        dense_factor = _inverse(dense_deviation)
        queries = vectors.double().numpy()
        scores: list[Floats] = []
        for number, rows in enumerate(lists):
            documents = self.dense.embeddings.rows(rows).double().numpy()
            dense_scores = documents @ queries[number]
            lexical_scores = lexical.of_rows(number, rows)
            fused = weighted_mean(
                (dense_scores - dense_mean[number]) * dense_factor[number],
                (lexical_scores - lexical_mean[number]) * lexical_factor[number],
                self.bm25_weight,
            )
            scores.append(fused.astype(np.float32))
        return scores

    def lexical(self, texts: list[str], vectors: torch.Tensor) -> LexicalScores:
        """Return BM25's scores for (Q,) queries, whose embeddings are (Q, d) ``vectors``."""
        if isinstance(self.bm25, BM25):
            return TermScores(self.bm25, self.bm25.term_counts(texts))
        scores = [self.bm25.scores(text) for text in texts]
        return HeldScores(np.stack(scores))

    def _mixed(self, vectors: torch.Tensor, lexical: LexicalScores) -> Iterator[Floats]:
        """Yield the weighted mean of two z-scores: multiples of both scores, less a constant."""
        weight = self.bm25_weight
        dense_mean, dense_deviation = self.dense.moments.of_scores(vectors.numpy())
        lexical_mean, lexical_deviation = lexical.moments()
        dense_factor = _inverse(dense_deviation)[:, None] / (1 + weight)
        lexical_factor = _inverse(lexical_deviation)[:, None] / (1 + weight)
        constant = dense_mean[:, None] * dense_factor
        constant += weight * lexical_mean[:, None] * lexical_factor
        size = max(1, _BLOCK_ELEMENTS // 2 // len(vectors))
        first = 0
        for chunk in self.dense.embeddings.chunks():
            for part in torch.split(chunk, size):
                last = first + len(part)
                scores = lexical.block(first, last) * (weight * lexical_factor)
                scores += (vectors @ part.T).numpy() * dense_factor
                scores -= constant
                first = last
                yield scores.astype(np.float32)

    def _best(
        self,
        pieces: Iterator[Floats],
        count: int,
        top_k: int,
    ) -> tuple[Floats, Ints]:
        """Return the (Q, k) scores and rows of the best documents.

        Args:
            pieces: (Q, n) scores of consecutive documents, as :meth:`fused` yields them.
            count: The number of queries, Q.
            top_k: Documents wanted.
        """
        ties = self.dense.documents.tie_ranks()
        best = HostBest(count, top_k)
        for piece in pieces:
            last = best.seen + piece.shape[1]
            ranks = np.array(ties[best.seen : last], np.int64)
            best.add(
                slice(0, count),
                torch.from_numpy(piece),
                torch.from_numpy(ranks),
            )
            best.seen = last
        keys = best.result()
        rows = _rows_at(ranks_of(keys).numpy(), ties)
        return scores_of(keys).numpy(), rows

    def parts(
        self,
        query: str,
        rows: Ints,
        scores: Floats,
    ) -> Parts:
        """Return what the encoder and BM25 add to (k,) scores of the documents in ``rows``."""
        vectors = self.dense.encode_queries([query])
        size = len(self.dense.documents)
        weight = self.bm25_weight
        chunks = self.dense.embeddings.chunks()
        dense_scores = np.concatenate(
            [(vectors @ chunk.T).numpy() for chunk in chunks],
            axis=1,
        )
        lexical_scores = self.lexical([query], vectors).block(0, size)
        dense = z_normalize(dense_scores)[0, rows]
        lexical = z_normalize(lexical_scores)[0, rows]
        return Parts(dense / (1 + weight), weight * lexical / (1 + weight))

    def describe(self) -> Json:
        """Describe the fusion for the record of a search."""
        return {
            "model": "weighted mean of z-normalised scores",
            "bm25_weight": self.bm25_weight,
            **super().describe(),
        }


def _rows_at(ranks: Ints, ties: Array) -> Ints:
    """Return the rows that have (Q, k) tie ranks, without inverting all (N,) ``ties``."""
    is_wanted = np.zeros(len(ties), bool)
    is_wanted[ranks] = True
    rows = np.flatnonzero(is_wanted[ties])
    by_rank = rows[ties[rows].argsort()]
    at_ranks: Ints = by_rank[ties[by_rank].searchsorted(ranks)]
    return at_ranks


class RM3(Hybrid):
    """The fusion, with BM25's query expanded by terms of the fusion's best documents.

    P(t|R) = Σ_d P(t|d) P(d|q) over the best ``documents`` d, where P(t|d) is the share of t in the
    terms of d, and P(d|q) is proportional to exp(fused score). Its best ``terms`` and the terms of
    the query, each summing to 1, are mixed by ``weight`` of the expansion. BM25's scores for the
    mixture are then fused with the encoder's, by the same ``bm25_weight``.

    References:
        Lavrenko and Croft, 2001; Abdul-Jaleel et al., 2004 (RM3), here with a fusion for the first
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
        """Fuse two searches of one corpus.

        Args:
            dense: Dense search.
            bm25: BM25, whose terms are looked at.
            bm25_weight: Weight of BM25, against 1 of the encoder.
            documents: Best documents that the query is expanded from.
            terms: Terms of the expansion.
            weight: Weight of the expansion, against the rest of 1 of the query's terms.
        """
        super().__init__(dense, bm25, bm25_weight)
        self.documents = documents
        self.terms = terms
        self.weight = weight
        # Term counts by row of the documents that were looked at.
        self._counts: dict[int, Counter[int]] = {}

    def lexical(self, texts: list[str], vectors: torch.Tensor) -> LexicalScores:
        """Return BM25's scores for the expanded queries."""
        counts = self.bm25.term_counts(texts)
        first_search = self._mixed(vectors, TermScores(self.bm25, counts))
        scores, rows = self._best(first_search, len(texts), self.documents)
        expanded = []
        for query, best_rows, best_scores in zip(counts, rows, scores, strict=True):
            expanded.append(self._expand(query, best_rows, best_scores))
        return TermScores(self.bm25, expanded)

    def _expand(
        self,
        query: Counter[int],
        rows: Ints,
        scores: Floats,
    ) -> dict[int, float]:
        """Return the weights of a query's terms and of those of its best documents.

        A query without known terms gets those of the documents alone.
        """
        relevance = self._relevance_model(rows, scores)
        # Among terms of equal weight, those with smaller numbers, which occur first in the corpus.
        ordered = sorted(
            relevance.items(),
            key=lambda item: (-item[1], item[0]),
        )
        expansion = dict(ordered[: self.terms])
        mixed: defaultdict[int, float] = defaultdict(float)
        _add_shares(mixed, query, 1 - self.weight)
        _add_shares(mixed, expansion, self.weight)
        return mixed

    def _relevance_model(self, rows: Ints, scores: Floats) -> dict[int, float]:
        """Return P(t|R) of the terms of the best documents."""
        differences = scores - scores.max()
        likelihoods = np.exp(differences.astype(np.float64))
        shares = likelihoods / likelihoods.sum()
        self._count_terms(rows.tolist())
        model: defaultdict[int, float] = defaultdict(float)
        for row, share in zip(rows.tolist(), shares, strict=True):
            counts = self._counts[row]
            length = counts.total()
            for term, count in counts.items():
                model[term] += share * count / length
        return model

    def _count_terms(self, rows: list[int]) -> None:
        new = [row for row in rows if row not in self._counts]
        if not new:
            return
        if len(self._counts) + len(new) > _COUNTED_DOCUMENTS:
            self._counts.clear()
            new = rows
        text_format = self.bm25.text_format
        documents = self.dense.documents.take(new)
        texts = [text_format.document(document) for document in documents]
        counts = self.bm25.term_counts(texts)
        self._counts.update(zip(new, counts, strict=True))

    def describe(self) -> Json:
        """Describe the fusion for the record of a search."""
        return {
            **super().describe(),
            "model": "RM3 fused by z-normalised scores",
            "weight": self.weight,
            "documents": self.documents,
            "terms": self.terms,
        }


def _add_shares(
    mixed: defaultdict[int, float],
    terms: Mapping[int, float],
    weight: float,
) -> None:
    """Add terms to a mixture, whose weights sum to ``weight`` there."""
    total = sum(terms.values())
    for term, value in terms.items():
        mixed[term] += weight * value / total


class ReciprocalRank(_Fusion):
    """Reciprocal rank fusion of the best 1,000 documents of a dense encoder and of BM25.

    A document's score is the sum of 1 / (60 + rank) over both rankings.

    References:
        Cormack et al., 2009.
    """

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for queries, id to text."""
        dense_rows, lexical_rows = self._rankings(queries)
        ranked = zip(dense_rows, lexical_rows, strict=True)
        fused = (_fuse_ranks(dense, lexical) for dense, lexical in ranked)
        return Ranking.of_best(
            queries,
            fused,
            self.dense.documents.tie_ranks(),
            top_k,
        )

    def parts(
        self,
        query: str,
        rows: Ints,
        scores: Floats,
    ) -> Parts:
        """Return what the rank in each list adds; 0 if a document is not in it."""
        added = []
        for [ranked] in self._rankings({"": query}):
            candidates, values = reciprocal_ranks([ranked[ranked >= 0]])
            narrow = values.astype(np.float32).tolist()
            of_row = dict(zip(candidates.tolist(), narrow, strict=True))
            of_ranked = [of_row.get(row, 0.0) for row in rows.tolist()]
            added.append(np.array(of_ranked))
        return Parts(*added)

    def _rankings(self, queries: dict[str, str]) -> list[Ints]:
        """Return the (Q, k) rows of dense search and of BM25."""
        return [part.search(queries, _RRF_DEPTH).rows for part in (self.dense, self.bm25)]

    def describe(self) -> Json:
        """Describe the fusion for the record of a search."""
        return {
            "model": "reciprocal rank fusion",
            "constant": RRF_CONSTANT,
            "depth": _RRF_DEPTH,
            **super().describe(),
        }


def _fuse_ranks(dense: Ints, lexical: Ints) -> tuple[Ints, Floats]:
    """Return the rows of two rankings of a query, and their fused float32 scores."""
    lists = [dense[dense >= 0], lexical[lexical >= 0]]
    candidates, scores = reciprocal_ranks(lists)
    return candidates, scores.astype(np.float32)


class Feedback(Hybrid):
    """Dense search with the query moved towards the fusion's best documents.

    q' = normalise(q + ``weight`` * mean of the embeddings of the best ``documents``).
    """

    def __init__(
        self,
        dense: Dense,
        bm25: Lexical,
        weight: float = 0.5,
        documents: int = 3,
        bm25_weight: float = BM25_WEIGHT,
    ) -> None:
        """Take two searches of one corpus.

        Args:
            dense: Dense search.
            bm25: BM25, here or elsewhere.
            weight: Weight of the documents' mean, against 1 of the query.
            documents: Best documents of the fusion that are averaged.
            bm25_weight: Weight of BM25 in the fusion.
        """
        super().__init__(dense, bm25, bm25_weight)
        self.weight = weight
        self.documents = documents

    def move(self, queries: dict[str, str]) -> torch.Tensor:
        """Return the moved queries, (Q, d)."""
        vectors = self.dense.encode_queries(list(queries.values()))
        best = self.rank(queries, vectors, self.documents).rows  # (Q, documents)
        documents = self.dense.embeddings.rows(best.ravel()).numpy()
        mean = documents.reshape(*best.shape, -1).mean(axis=1)
        moved = vectors + self.weight * torch.from_numpy(mean)
        return torch.nn.functional.normalize(moved, dim=-1)

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for queries, id to text."""
        return self.dense.search_embeddings(
            list(queries),
            self.move(queries),
            top_k,
        )

    def parts(
        self,
        query: str,
        rows: Ints,
        scores: Floats,
    ) -> Parts:
        """Return all of a score as dense: BM25 moves the query and adds nothing."""
        return Parts(dense=scores)

    def describe(self) -> Json:
        """Describe the feedback for the record of a search."""
        return {
            "model": "hybrid feedback",
            "weight": self.weight,
            "documents": self.documents,
            "bm25_weight": self.bm25_weight,
            **_Fusion.describe(self),
        }


class FusedFeedback(Feedback):
    """The fusion of BM25 with the moved query of :class:`Feedback`, which distillation learns."""

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for queries, id to text."""
        return self.rank(queries, self.move(queries), top_k)
