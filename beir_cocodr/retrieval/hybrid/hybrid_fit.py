"""The fit of a hybrid encoder to a corpus: BM25's counts, made dense in the best of several ways.

BM25's weights become dense by truncated SVD, by feature hashing, or by both. How well each way
replaces the exact fusion is measured by the overlap of their best ten documents, without labels.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import scipy.sparse as sp
import torch

from beir_cocodr.arrays import (
    Doubles,
    Floats,
    Ints,
    singular_axes,
    spaced_rows,
)
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import gather, rank, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.hybrid_encoder import HybridHead, covariance_root, hash_terms
from beir_cocodr.models.spec import FuseOptions
from beir_cocodr.models.term_weights import K1, B, inverse_document_frequencies
from beir_cocodr.retrieval.hybrid.fusion import z_normalize
from beir_cocodr.retrieval.ranking import overlap
from beir_cocodr.retrieval.store.embeddings import Embeddings
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.vectors.vector_cache import VectorCache

#: Numbers of the lexical part without a budget.
LEXICAL_NUMBERS = 1_024

#: Weight of what the SVD loses, which hashing makes noisy. On most sizes of five collections 0.5
#: kept more of the best ten documents than 1 or 0.25.
HASHED_WEIGHT = 0.5

# Texts that are read at a time.
_CHUNK = 4_096

# Distinct terms that are counted, as a multiple of those that are kept.
_COUNTED = 16

# The fewest words of a crop, and one more than the most.
_CROP_WORDS = (4, 16)

# Documents of two rankings that are compared.
_DEPTH = 10

# Agreement that a smaller vector may lack.
_AS_GOOD = 0.01

log = logging.getLogger(__name__)

#: The terms of some texts at a time, as :meth:`HybridHead.features` returns them.
TermFeatures = list[dict[str, torch.Tensor]]


@dataclass(frozen=True)
class TermCounts:
    """BM25's statistics of a corpus.

    Attributes:
        frequencies: Term to the number of documents with it, most frequent terms first.
        documents: The number of documents, N.
        mean_length: Terms of a document, on average.
        left_out: Distinct terms that ``frequencies`` leaves out.
        left_out_share: Their share of all occurrences of terms.
    """

    frequencies: dict[str, int]
    documents: int
    mean_length: float
    left_out: int
    left_out_share: float

    @classmethod
    def of(
        cls,
        texts: Iterator[str],
        analyze: Analyzer,
        most: int,
    ) -> Self:
        """Count texts in one pass.

        Under ``torchrun`` each process counts its share, and all of them get the sums. In a corpus
        of very many terms, those that occurred once are forgotten now and then.

        Args:
            texts: The texts of a corpus, or this process's share of them.
            analyze: Splits a text into terms.
            most: Terms that are kept.

        Raises:
            InputError: No text has a term.
        """
        tally = _Tally()
        for text in texts:
            tally.add(analyze(text), _COUNTED * most)
        total, *others = gather(tally)
        for other in others:
            total.merge(other)
        return cls._of_tally(total, most)

    @classmethod
    def _of_tally(cls, tally: "_Tally", most: int) -> Self:
        counts = tally.documents_with
        ranked = sorted(counts, key=lambda term: (-counts[term], term))
        kept = ranked[:most]
        if not kept:
            raise InputError(
                "no document has a term that BM25 could find; there is nothing to fuse"
            )
        known = sum(tally.occurrences[term] for term in kept)
        return cls(
            frequencies={term: counts[term] for term in kept},
            documents=tally.documents,
            mean_length=tally.length / tally.documents,
            left_out=len(counts) - len(kept) + tally.forgotten,
            left_out_share=1 - known / tally.terms,
        )

    @property
    def idf(self) -> Doubles:
        """Return the (T,) inverse document frequencies."""
        frequencies = np.array(list(self.frequencies.values()), float)
        return inverse_document_frequencies(frequencies, self.documents)


@dataclass
class _Tally:
    """Counts of some texts.

    Attributes:
        documents_with: Term to the number of documents with it.
        occurrences: Term to how often it occurs.
        documents: The number of texts.
        length: Terms of all texts, where a text without terms counts as one.
        terms: Terms of all texts.
        forgotten: Terms that were forgotten because they had occurred in one document.
        limit: Distinct terms beyond which terms are forgotten.
    """

    documents_with: Counter[str] = field(default_factory=Counter)
    occurrences: Counter[str] = field(default_factory=Counter)
    documents: int = 0
    length: int = 0
    terms: int = 0
    forgotten: int = 0
    limit: int = 0

    def add(self, terms: list[str], most: int) -> None:
        """Count the terms of a text, and forget rare terms beyond ``most`` distinct ones."""
        self.documents += 1
        self.terms += len(terms)
        self.length += max(1, len(terms))
        self.documents_with.update(set(terms))
        self.occurrences.update(terms)
        if len(self.documents_with) > max(most, self.limit):
            self._forget()

    def _forget(self) -> None:
        once = [term for term, count in self.documents_with.items() if count == 1]
        self.forgotten += len(once)
        for term in once:
            del self.documents_with[term]
            del self.occurrences[term]
        # Without a higher limit, all terms would be looked at for each text when few occurred once.
        self.limit = 2 * len(self.documents_with)

    def merge(self, other: "_Tally") -> None:
        """Add the counts of another process."""
        self.documents_with.update(other.documents_with)
        self.occurrences.update(other.occurrences)
        self.documents += other.documents
        self.length += other.length
        self.terms += other.terms
        self.forgotten += other.forgotten


def count_terms(
    documents: Documents,
    text_format: TextFormat,
    options: FuseOptions,
) -> TermCounts:
    """Count the terms of a corpus, whose texts are joined as the encoder's format joins them."""
    share = -(-len(documents) // world_size())
    first = rank() * share
    last = min(first + share, len(documents))

    def texts() -> Iterator[str]:
        for start in range(first, last, _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, last))
            for document in documents.take(rows):
                yield text_format.document(document)

    return TermCounts.of(texts(), Analyzer(options.analyzer), options.max_terms)


@dataclass(frozen=True)
class DenseBM25:
    """A way to make BM25 dense.

    Attributes:
        components: Numbers of the truncated SVD.
        hashed: Numbers of feature hashing.
        hashed_weight: Weight of the hashed part, where there are both.
        agreement: Mean share of the exact fusion's best ten documents that it finds.
    """

    components: int
    hashed: int
    hashed_weight: float = 1.0
    agreement: float = float("nan")

    @property
    def numbers(self) -> int:
        """Return how many numbers it adds to a vector."""
        return self.components + self.hashed

    @property
    def kind(self) -> str:
        """Return "svd", "hash" or "svd+hash"."""
        sizes = {"svd": self.components, "hash": self.hashed}
        return "+".join(name for name, size in sizes.items() if size)


def smallest_as_good(candidates: Sequence[DenseBM25]) -> DenseBM25:
    """Return the candidate of the fewest numbers that agrees as well as any, or nearly so."""
    least = max(candidate.agreement for candidate in candidates) - _AS_GOOD
    good = [candidate for candidate in candidates if candidate.agreement >= least]
    return min(
        good,
        key=lambda candidate: (candidate.numbers, -candidate.agreement),
    )


class Fit:
    """Shared parts of candidates: weights and dense vectors of sampled documents, one SVD."""

    def __init__(
        self,
        dense: COCODR,
        documents: Documents,
        counts: TermCounts,
        options: FuseOptions,
        embeddings: Embeddings | None = None,
    ) -> None:
        """Look at a sample of documents.

        Args:
            dense: The dense encoder.
            documents: The corpus.
            counts: The corpus's counts, see :func:`count_terms`.
            options: Options of the fusion.
            embeddings: The encoder's embeddings of the corpus; without them, the sample is encoded.
        """
        self.dense = dense
        self.counts = counts
        self.options = options
        self.rows = spaced_rows(len(documents), options.sample)
        self.texts = [
            dense.text_format.document(document) for document in documents.take(self.rows)
        ]
        # A head without a lexical part: it knows the vocabulary alone.
        self._vocabulary = self._empty_head(DenseBM25(0, 0))
        self._document_terms = _term_features(self._vocabulary, self.texts)
        self.weights = term_matrix(
            self._vocabulary,
            self._document_terms,
            "document",
        )  # (n, T)
        if embeddings is None:
            cache = VectorCache.of(dense, documents)
            self.vectors: Floats = CorpusEncoder(dense, documents, cache=cache).encode(self.rows)
        else:
            self.vectors = embeddings.rows(self.rows).numpy()
        self._svd: Floats | None = None

    def svd(self, components: int) -> Floats:
        """Return the (T, r) first right singular vectors of the weights, largest first.

        They are computed once, for the largest number of components so far.
        """
        if self._svd is None or self._svd.shape[1] < components:
            self._svd = singular_axes(
                self.weights,
                components,
                self.options.seed,
            )
        return self._svd[:, :components]

    def candidates(self, most: int) -> list[DenseBM25]:
        """Return the candidates that the options allow within ``most`` numbers."""
        rank = min(self.weights.shape)
        full = min(most, rank)
        lexical = self.options.lexical
        both = [
            DenseBM25(size, most - size, HASHED_WEIGHT)
            for size in (most // 2, most * 3 // 4)
            if 1 < size < rank
        ]
        if lexical == "auto":
            quarter = max(1, full // 4)
            half = max(1, full // 2)
            projected = [DenseBM25(size, 0) for size in sorted({quarter, half, full})]
            return [*projected, DenseBM25(0, most), *both]
        if lexical == "hash":
            return [DenseBM25(0, most)]
        if lexical == "svd+hash" and both:
            return both
        if lexical == "svd+hash":
            log.warning(
                "truncated SVD covers all %d dimensions of BM25: nothing is left to hash",
                rank,
            )
        return [DenseBM25(full, 0)]

    def agreements(
        self, candidates: Sequence[DenseBM25], queries: Sequence[str]
    ) -> list[DenseBM25]:
        """Return the candidates with their agreement on crops and on some of the given queries."""
        widest = max(candidate.components for candidate in candidates)
        if widest:
            self.svd(widest)
        spaced = spaced_rows(len(queries), self.options.probes)
        probes = self.crops()
        probes += [queries[row] for row in spaced]
        probe_vectors = self.dense.query_vectors(probes).numpy()
        dense_scores = z_normalize(probe_vectors @ self.vectors.T)
        query_terms = _term_features(self._vocabulary, probes)
        query_counts = term_matrix(self._vocabulary, query_terms, "query")
        exact = self._best(
            dense_scores,
            (query_counts @ self.weights.T).toarray(),
        )
        measured = []
        for candidate in candidates:
            head = self._projected_head(candidate)
            document_vectors = _lexical_vectors(head, self._document_terms, "document")
            query_vectors = _lexical_vectors(head, query_terms, "query")
            best = self._best(dense_scores, query_vectors @ document_vectors.T)
            shares = overlap(best, exact, _DEPTH)
            agreement = round(float(shares.mean()), 4)
            measured.append(replace(candidate, agreement=agreement))
            log.info(
                "%s, %d+%d numbers: agreement %.3f",
                candidate.kind,
                candidate.components,
                candidate.hashed,
                agreement,
            )
        return measured

    def crops(self) -> list[str]:
        """Return a few consecutive words of evenly spaced documents."""
        rng = np.random.default_rng(self.options.seed)
        crops = []
        for row in spaced_rows(len(self.texts), self.options.probes):
            words = self.texts[row].split()
            length = int(rng.integers(*_CROP_WORDS))
            starts = max(1, len(words) - length + 1)
            start = int(rng.integers(0, starts))
            crop = words[start : start + length]
            crops.append(" ".join(crop))
        return [crop for crop in crops if crop] or ["a"]

    def head(self, chosen: DenseBM25) -> HybridHead:
        """Return the whole head of a candidate.

        It has the projection, the means, the covariances, and a scale that makes the numbers of
        both parts of a document alike.
        """
        head = self._projected_head(chosen)
        lexical = _lexical_vectors(head, self._document_terms, "document")
        mean = lexical.mean(axis=0, dtype=np.float64)
        variance = np.square(lexical - mean).mean(dtype=np.float64)
        deviation = float(np.sqrt(variance))
        mean_square = np.square(self.vectors).mean(dtype=np.float64)
        size = float(np.sqrt(mean_square))
        head.mean.copy_(torch.from_numpy(mean))
        head.scale.fill_(size / deviation if deviation else 1.0)
        head.dense_spread.copy_(torch.from_numpy(spread(self.vectors)))
        head.lexical_spread.copy_(torch.from_numpy(spread(lexical)))
        return head

    def _best(self, dense_scores: Doubles, lexical_scores: Floats) -> Ints:
        """Return the (Q, 10) rows of the fusion's best documents, in any order."""
        fused = dense_scores + self.options.bm25_weight * z_normalize(lexical_scores)
        depth = min(_DEPTH, fused.shape[1])
        best: Ints = np.argpartition(-fused, depth - 1, axis=1)[:, :depth]
        return best

    def _projected_head(self, candidate: DenseBM25) -> HybridHead:
        head = self._empty_head(candidate)
        if candidate.components:
            head.projection.copy_(torch.from_numpy(self.svd(candidate.components).copy()))
        if candidate.components and candidate.hashed:
            buckets, signs = hash_terms(
                list(self.counts.frequencies),
                candidate.hashed,
            )
            lost = torch.zeros(candidate.hashed, candidate.components)
            signed = head.projection * signs[:, None]
            lost.index_add_(0, buckets, signed)
            head.hashed_projection.copy_(lost.T)
        return head

    def _empty_head(self, candidate: DenseBM25) -> HybridHead:
        """Return a head that knows the vocabulary and its frequencies, and projects nothing."""
        terms = list(self.counts.frequencies)
        head = HybridHead(
            dimension=int(self.dense.get_embedding_dimension() or 0),
            terms=len(terms),
            components=candidate.components,
            hashed=candidate.hashed,
            hashed_weight=candidate.hashed_weight,
            normalize=self.dense.similarity_fn_name == "cosine",
            analyzer=self.options.analyzer,
            k1=K1,
            b=B,
            mean_length=self.counts.mean_length,
            bm25_weight=self.options.bm25_weight,
            weight_by_length=self.options.weight_by_length,
        )
        head.analysis = head.analysis_of(terms)
        head.set_vocabulary(terms)
        head.idf.copy_(torch.from_numpy(self.counts.idf))
        head.scale.fill_(1.0)
        return head


def _term_features(head: HybridHead, texts: Sequence[str]) -> TermFeatures:
    """Return the terms of (n,) texts, some at a time; all heads of one vocabulary share them."""
    starts = range(0, len(texts), _CHUNK)
    return [head.features(texts[start : start + _CHUNK]) for start in starts]


def term_matrix(
    head: HybridHead,
    features: TermFeatures,
    task: str,
) -> sp.csr_matrix:
    """Return an (n, T) float32 matrix of term weights.

    For documents it has BM25's weight of each term, for queries how often each term occurs.
    """
    parts = []
    for part in features:
        numbers = part["terms"].numpy()
        weights = head.term_weights(part, task).numpy()
        starts = np.append(part["term_starts"].numpy(), len(numbers))
        shape = (len(starts) - 1, head.terms)
        matrix = sp.csr_matrix(
            (weights, numbers, starts),
            shape=shape,
            dtype=np.float32,
        )
        parts.append(matrix)
    return sp.vstack(parts, format="csr")


def _lexical_vectors(
    head: HybridHead,
    features: TermFeatures,
    task: str,
) -> Floats:
    """Return the (n, r + hashed) vectors of :meth:`HybridHead.lexical`."""
    return np.asarray(torch.cat([head.lexical(part, task) for part in features]))


def spread(vectors: Floats) -> Doubles:
    """Return the symmetric (m, m) root S of the covariance of (n, m) vectors, so S S is it.

    The covariance is over n, and in float64.
    """
    covariance = np.cov(vectors, rowvar=False, bias=True, dtype=np.float64)
    width = vectors.shape[1]
    return covariance_root(covariance.reshape(width, -1))
