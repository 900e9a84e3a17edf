"""What kind of FAISS index is built, and what is done to vectors before it sees them and undone in
its scores: MRL's are folded and centred, which makes them small, so that less of them is lost;
dimensions are laid out for each kind.
"""

import logging
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from beir_cocodr.arrays import Array, Doubles, Floats
from beir_cocodr.errors import SEED_MAX, InputError
from beir_cocodr.models.spec import Options, option

logger = logging.getLogger(__name__)

#: "flat": all float32 vectors, exact. "hnsw": the same in a graph. "sq8": one byte a dimension, all
#: compared. "ivfpq": product quantisation in inverted lists, the smallest.
Kind = Literal["flat", "hnsw", "ivfpq", "sq8"]

#: "folding" is for MRL alone, see :class:`~beir_cocodr.models.folding.Folding`; "centring"
#: subtracts the mean document. Both leave exact rankings as they are.
Transform = Literal["none", "centring", "folding"]

#: Kinds that do not keep the vectors themselves.
QUANTISED: tuple[Kind, ...] = ("ivfpq", "sq8")

# Below this k-means still works but describes its sample rather than the corpus; faiss's own
# threshold.
_POINTS_PER_CENTROID = 39


@dataclass(frozen=True)
class FaissOptions(Options):
    """Settings of a :class:`~beir_cocodr.retrieval.faiss.index.FaissIndex`; those without a number
    are chosen by the size of the corpus, and is logged. An InputError: an unknown kind or
    transform, or a number that is too small.

    Args:
        kind: "flat", "hnsw", "ivfpq" or "sq8".
        transform: "none", "centring", or "folding" for MRL's vectors.
        hnsw_m: links of a document in the graph, M.
        ef_construction: candidates held while the graph is built.
        ef_search: candidates held in a search, at least ``top_k``.
        reduction: build the graph of "hnsw" by distances in which the nearest documents are the
            best, see :class:`~beir_cocodr.retrieval.faiss.transform.Layout`. Off, its links are by
            inner product: where documents differ in length, as MRL's do before folding, it then
            finds next to nothing.
        nlist: inverted lists; 4 √N by default, fewer where that leaves less than 39 training
            vectors a list.
        nprobe: lists read in a search; a sixteenth of them by default, at least 8.
        pq_m: codes of a vector, bytes where ``pq_bits`` is 8; one for eight dimensions by default.
        pq_bits: of a code, 1..16; 8 by default, fewer where there are not 2^8 training vectors.
        over_fetch: kinds that quantise find this many times ``top_k`` candidates and score those
            again.
        train_size: the most vectors that k-means sees, a seeded sample; "ivfpq" only.
        recall_queries: the most queries that recall is measured with when an index is built; 0 for
            none.
        seed: of all samples and of k-means.
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
        """A copy with all numbers, for ``count`` vectors of ``width`` dimensions; an InputError
        where there are more lists, or more codes, than training vectors, or more code bytes than
        dimensions.
        """
        if self.kind != "ivfpq":
            return self
        training = min(count, self.train_size)
        nlist = self.nlist or max(1, min(round(4 * count**0.5), training // _POINTS_PER_CENTROID))
        bits = self.pq_bits or max(1, min(8, training.bit_length() - 1))
        for name, centroids in {"nlist": nlist, "pq_bits": 2**bits}.items():
            if centroids > training:
                raise InputError(
                    f"{name} {getattr(self, name)} makes {centroids} centroids of {training} training "
                    f"vectors: lower it, or leave {name} out to have it chosen"
                )
        pq_m = self.pq_m or -(-width // 8)
        if pq_m > width:
            raise InputError(f"pq_m {pq_m} is more than the {width} dimensions it divides")
        nprobe = self.nprobe or max(8, nlist // 16)
        chosen = replace(self, nlist=nlist, nprobe=min(nprobe, nlist), pq_m=pq_m, pq_bits=bits)
        logger.info(
            "ivfpq over %d vectors: %d lists, %d of them read, %d codes of %d bits (training vectors: %d)",
            count, nlist, chosen.nprobe, pq_m, bits, training,
        )  # fmt: skip
        if training < _POINTS_PER_CENTROID * 2**bits:
            logger.warning(
                "%d training vectors are few for %d codes: quantisation will describe the corpus badly; kind "
                "sq8 or hnsw suits a corpus of this size better", training, 2**bits,
            )  # fmt: skip
        return chosen


# Numbers that a vector unit takes at a time.
_LANES = 8


@dataclass(frozen=True)
class Layout:
    """The vectors of an index: those of the corpus, made wider where its kind needs it.

    A graph finds neighbours by distance, and the inner product is none: a document that is long is
    near to everything. One more dimension √(M² − |d|²), M the longest document's length, and 0 for
    queries, makes |q − d|² = |q|² + M² − 2 q·d, so that the nearest documents are the best ones.

    Product quantisation needs a width that its codes divide: zeros fill it up. So they do in a flat
    index, up to a multiple of 8: MRL's odd width 2k + 1 takes 7% longer to multiply than the even
    one above it.

    Args:
        dimensions: w, of the vectors given.
        width: of the index.
        longest: M², where the last column is to make distances of inner products.

    Source: Bachrach et al., Speeding Up the Xbox Recommender System Using a Euclidean
    Transformation for Inner-Product
        Spaces (2014), section 3 for the additional dimension.
    """

    dimensions: int
    width: int
    longest: float | None = None

    @classmethod
    def of(cls, options: FaissOptions, dimensions: int, longest: float | None) -> "Layout":
        """For fitted options; ``longest`` where there is to be one more dimension."""
        divisor = {"ivfpq": options.pq_m, "flat": _LANES}.get(options.kind) or 1
        return cls(dimensions, -(-dimensions // divisor) * divisor + (longest is not None), longest)

    def documents(self, vectors: Doubles) -> Floats:
        """(n, w) to (n, width) float32."""
        placed = self.queries(vectors)
        if self.longest is not None:
            placed[:, -1] = np.sqrt((self.longest - (vectors**2).sum(axis=1)).clip(min=0))
        return placed

    def queries(self, vectors: Doubles) -> Floats:
        """(n, w) to (n, width) float32."""
        placed = np.zeros((len(vectors), self.width), dtype=np.float32)
        placed[:, : self.dimensions] = vectors
        return placed


def documents_as_queries(documents: Array) -> Doubles:
    """The queries that have the distributions of the given MRL documents: (n, w) to (n, w); an
    InputError for others.

    A document's variances and means can be read from its vector, and queries are made of the same.
    They stand in for queries where there are none: one encoder with shared projections places both.

    Source: MRL, Eq. 13 and 14; widths 2k + 1 are of the exact divergence, 2k + 2 of the paper's
    formula.
    """
    wide = documents.astype(np.float64)
    k = (wide.shape[1] - 1) // 2
    if not k or not (wide[:, -2 * k : -k] < 0).all():
        raise InputError(
            "these vectors are no documents of MRL, whose variances make negative numbers"
        )
    variance = -1 / wide[:, -2 * k : -k]
    mean = wide[:, -k:] * variance / 2
    one = np.ones((len(wide), 1))
    if wide.shape[1] % 2:
        return np.concatenate([one, variance + mean**2, mean], axis=1)
    return np.concatenate([one, -1 / wide[:, 1:2], mean**2, mean], axis=1)
