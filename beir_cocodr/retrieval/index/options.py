"""What kind of FAISS index is built over a corpus, and how it is searched."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Literal, get_args

from beir_cocodr.errors import InputError

#: "flat": all float32 vectors, exact. "hnsw": the same in a graph. "sq8": one byte a dimension, all compared.
#: "ivfpq": product quantisation in inverted lists, the smallest.
Kind = Literal["flat", "hnsw", "ivfpq", "sq8"]
#: "folding" is for MRL alone, see :class:`~beir_cocodr.retrieval.index.folding.Folding`; "centring"
#: subtracts the mean document. Both leave exact rankings as they are.
Transform = Literal["none", "centring", "folding"]
#: Kinds that do not keep the vectors themselves.
QUANTISED: tuple[Kind, ...] = ("ivfpq", "sq8")
# Below this k-means still works but describes its sample rather than the corpus; faiss's own threshold.
_POINTS_PER_CENTROID = 39

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FaissOptions:
    """Settings of a :class:`~beir_cocodr.retrieval.faiss_index.FaissIndex`; those without a number are chosen
    by the size of the corpus, and what was chosen is said.

    Args:
        kind: "flat", "hnsw", "ivfpq" or "sq8".
        transform: "none", "centring", or "folding" for MRL's vectors.
        hnsw_m: links of a document in the graph, M.
        ef_construction: candidates held while the graph is built.
        ef_search: candidates held in a search, at least ``top_k``.
        reduction: build the graph of "hnsw" by distances in which the nearest documents are the best, see
            :class:`~beir_cocodr.retrieval.index.layout.Layout`. Off, its links are by inner product: where
            documents differ in length, as MRL's do before folding, it then finds next to nothing.
        nlist: inverted lists; 4 √N by default, fewer where that leaves less than 39 training vectors a list.
        nprobe: lists read in a search; a sixteenth of them by default, at least 8.
        pq_m: codes of a vector, bytes where ``pq_bits`` is 8; one for eight dimensions by default.
        pq_bits: of a code, 1..16; 8 by default, fewer where there are not 2^8 training vectors.
        over_fetch: kinds that quantise find this many times ``top_k`` candidates and score those again.
        train_size: the most vectors that k-means sees, a seeded sample; "ivfpq" only.
        recall_queries: the most queries that recall is measured with when an index is built; 0 for none.
        seed: of all samples and of k-means.

    Raises:
        InputError: an unknown kind or transform, or a number that is too small.
    """

    kind: Kind = "flat"
    transform: Transform = "none"
    hnsw_m: int = 32
    ef_construction: int = 200
    ef_search: int = 128
    reduction: bool = True
    nlist: int | None = None
    nprobe: int | None = None
    pq_m: int | None = None
    pq_bits: int | None = None
    over_fetch: int = 4
    train_size: int = 100_000
    recall_queries: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("kind", get_args(Kind)), ("transform", get_args(Transform))):
            if getattr(self, name) not in choices:
                raise InputError(f"{name} is {getattr(self, name)!r}; there are {', '.join(choices)}")
        for name, least in {
            "hnsw_m": 2,
            "ef_construction": 1,
            "ef_search": 1,
            "nlist": 1,
            "nprobe": 1,
            "pq_m": 1,
            "pq_bits": 1,
            "over_fetch": 1,
            "train_size": 1,
            "recall_queries": 0,
            "seed": 0,
        }.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}, it must be at least {least}")
        if self.pq_bits is not None and self.pq_bits > 16:
            raise InputError(f"pq_bits is {self.pq_bits}, a code has at most 16")

    def fitted(self, count: int, width: int) -> FaissOptions:
        """A copy in which all numbers are there, for ``count`` vectors of ``width`` dimensions.

        Raises:
            InputError: more lists, or more codes, than training vectors; more code bytes than dimensions.
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
                "sq8 or hnsw suits a corpus of this size better",
                training,
                2**bits,
            )
        return chosen
