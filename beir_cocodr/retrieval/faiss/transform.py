"""Settings of a FAISS index, and how vectors are changed before they enter it.

The vectors of an MRL are folded and centred, which makes them small, so that quantisation loses
less of them. The dimensions are then laid out as each kind of index needs them.
"""

import logging
import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from beir_cocodr.arrays import Array, Doubles, Floats
from beir_cocodr.errors import SEED_MAX, InputError
from beir_cocodr.models.spec import Options, option

logger = logging.getLogger(__name__)

#: "flat" keeps all float32 vectors and is exact. "hnsw" keeps them in a graph. "sq8" keeps one byte
#: a dimension and compares all. "ivfpq" is product quantisation in inverted lists, the smallest.
Kind = Literal["flat", "hnsw", "ivfpq", "sq8"]

#: "folding" is for MRL only, see :class:`~beir_cocodr.models.folding.Folding`. "centring" subtracts
#: the mean document. Both leave exact rankings unchanged.
Transform = Literal["none", "centring", "folding"]

#: Kinds that do not keep the vectors themselves.
QUANTISED: tuple[Kind, ...] = ("ivfpq", "sq8")

# FAISS's own threshold. With fewer, k-means works but describes its sample rather than the corpus.
_POINTS_PER_CENTROID = 39

# Dimensions that one code of product quantisation covers by default.
_DIMENSIONS_PER_CODE = 8

# Numbers that a vector unit of the processor takes at a time.
_LANES = 8


@dataclass(frozen=True)
class FaissOptions(Options):
    """Settings of a :class:`~beir_cocodr.retrieval.faiss.index.FaissIndex`.

    Numbers that are None are chosen by the size of the corpus and logged, see :meth:`fitted`.

    Args:
        kind: "flat", "hnsw", "ivfpq" or "sq8".
        transform: "none", "centring", or "folding" for the vectors of an MRL.
        hnsw_m: M, the links of a document in the graph.
        ef_construction: candidates held while the graph is built.
        ef_search: candidates held during a search, at least ``top_k``.
        reduction: build the graph of "hnsw" from distances in which the nearest documents are the
            best, see :class:`Layout`. Without it the links follow inner products, which finds next
            to nothing where documents differ in length, as those of an MRL do before folding.
        nlist: inverted lists. Default: 4 √N, or fewer if a list would get less than 39 training
            vectors.
        nprobe: lists read in a search. Default: a sixteenth of them, at least 8.
        pq_m: codes of a vector; each is a byte if ``pq_bits`` is 8. Default: one for eight
            dimensions.
        pq_bits: bits of a code, 1 to 16. Default: 8, or fewer if there are less than 2^8 training
            vectors.
        over_fetch: "sq8" and "ivfpq" find this many times ``top_k`` candidates and score them
            again.
        train_size: the most vectors that k-means sees, a seeded sample ("ivfpq" only).
        recall_queries: the most queries that recall is measured with when an index is built; 0
            measures none.
        seed: seed of all samples and of k-means.

    Raises:
        InputError: If a kind or transform is unknown, or a number is out of its range.
    """

    kind: Kind = option("flat")
    transform: Transform = option("none")
    hnsw_m: int = option(32, min=2, max=4_096)
    ef_construction: int = option(200, min=1)
    ef_search: int = option(128, min=1)
    reduction: bool = option(True)
    nlist: int | None = option(None, min=1)
    nprobe: int | None = option(None, min=1)
    pq_m: int | None = option(None, min=1)
    pq_bits: int | None = option(None, min=1, max=16)
    over_fetch: int = option(4, min=1)
    train_size: int = option(100_000, min=1)
    recall_queries: int = option(100, min=0)
    seed: int = option(0, min=0, max=SEED_MAX)

    def fitted(self, count: int, width: int) -> "FaissOptions":
        """Return a copy in which every number is chosen.

        Args:
            count: the number of vectors.
            width: their dimensions.

        Raises:
            InputError: If there are more lists or codes than training vectors, or more codes than
                dimensions.
        """
        if self.kind != "ivfpq":
            return self
        training = min(count, self.train_size)
        nlist = self.nlist or _default_lists(count, training)
        bits = self.pq_bits or _default_bits(training)
        codebook = 2**bits
        self._check_centroids("nlist", nlist, training)
        self._check_centroids("pq_bits", codebook, training)
        codes = self.pq_m or math.ceil(width / _DIMENSIONS_PER_CODE)
        if codes > width:
            raise InputError(
                f"pq_m {codes} is more than the {width} dimensions that it divides; lower it"
            )
        nprobe = self.nprobe or max(8, nlist // 16)
        nprobe = min(nprobe, nlist)
        logger.info(
            "ivfpq over %d vectors: %d lists, %d of them read, %d codes of %d bits, %d training "
            "vectors",
            count,
            nlist,
            nprobe,
            codes,
            bits,
            training,
        )
        if training < _POINTS_PER_CENTROID * codebook:
            logger.warning(
                "%d training vectors are few for %d codes: quantisation will describe the corpus "
                "badly; kind sq8 or hnsw suits a corpus of this size better",
                training,
                codebook,
            )
        return replace(
            self,
            nlist=nlist,
            nprobe=nprobe,
            pq_m=codes,
            pq_bits=bits,
        )

    def _check_centroids(self, name: str, centroids: int, training: int) -> None:
        if centroids > training:
            raise InputError(
                f"{name} {getattr(self, name)} needs {centroids} centroids from {training} "
                f"training vectors; lower it, or leave {name} out to have it chosen"
            )


def _default_lists(count: int, training: int) -> int:
    """Return 4 √N, or fewer where a list would get too few training vectors."""
    wanted = round(4 * math.sqrt(count))
    return max(1, min(wanted, training // _POINTS_PER_CENTROID))


def _default_bits(training: int) -> int:
    """Return 8, or fewer where there are less than 2^8 training vectors."""
    most = training.bit_length() - 1
    return max(1, min(8, most))


@dataclass(frozen=True)
class Layout:
    """The layout of a corpus's vectors in an index, wider where its kind needs it.

    A graph finds neighbours by distance, which ranks differently from inner products: a long
    document would be near to everything. With M the length of the longest document, one more
    dimension √(M² − |d|²), 0 for queries, makes |q − d|² = |q|² + M² − 2 q·d. The nearest documents
    are then the best ones.

    Product quantisation needs a width that its codes divide, and zeros fill it up. They also fill a
    flat index up to a multiple of 8: the odd width 2k + 1 of an MRL takes 7% longer to multiply
    than the next even one.

    Args:
        dimensions: w, the width of the vectors of the corpus.
        width: the width of the index.
        longest: M², if the last column turns distances into inner products; else None.

    References:
        Bachrach et al., Speeding Up the Xbox Recommender System Using a Euclidean Transformation
        for Inner-Product Spaces, 2014, section 3.
    """

    dimensions: int
    width: int
    longest: float | None = None

    @classmethod
    def of(
        cls,
        options: FaissOptions,
        dimensions: int,
        longest: float | None,
    ) -> "Layout":
        """Return the layout for fitted options; ``longest`` adds the dimension of distances."""
        divisor = 1
        if options.kind == "ivfpq" and options.pq_m is not None:
            divisor = options.pq_m
        if options.kind == "flat":
            divisor = _LANES
        width = -(-dimensions // divisor) * divisor
        if longest is not None:
            width += 1
        return cls(dimensions, width, longest)

    def documents(self, vectors: Doubles) -> Floats:
        """Lay out (n, w) document vectors as (n, width) float32."""
        placed = self.queries(vectors)
        if self.longest is not None:
            squares = (vectors**2).sum(axis=1)
            missing = (self.longest - squares).clip(min=0)
            placed[:, -1] = np.sqrt(missing)
        return placed

    def queries(self, vectors: Doubles) -> Floats:
        """Lay out (n, w) query vectors as (n, width) float32."""
        placed = np.zeros((len(vectors), self.width), dtype=np.float32)
        placed[:, : self.dimensions] = vectors
        return placed


def documents_as_queries(documents: Array) -> Doubles:
    """Return the query vectors that have the distributions of MRL documents.

    The vector of a document determines its variances and means, and a query vector is made of the
    same numbers. Such queries are used where there are none: one encoder with shared projections
    places both.

    Args:
        documents: (n, w) document vectors of an MRL. w is 2k + 1 for the exact divergence and
            2k + 2 for the paper's formula.

    Returns:
        (n, w) query vectors.

    Raises:
        InputError: If the vectors are not those of an MRL's documents.

    References:
        MRL, Eq. 13 and 14.
    """
    wide = documents.astype(np.float64)
    k = (wide.shape[1] - 1) // 2
    negated = wide[:, -2 * k : -k]  # −1/σ²
    if not k or not (negated < 0).all():
        raise InputError(
            "the vectors are not documents of an MRL, whose variances give negative numbers; use "
            "another transform than folding"
        )
    variance = -1 / negated
    doubled_ratio = wide[:, -k:]  # 2μ/σ²
    mean = doubled_ratio * variance / 2
    one = np.ones((len(wide), 1))
    if wide.shape[1] % 2:
        second_moment = variance + mean**2
        return np.concatenate([one, second_moment, mean], axis=1)
    product = -1 / wide[:, 1:2]
    return np.concatenate([one, product, mean**2, mean], axis=1)
