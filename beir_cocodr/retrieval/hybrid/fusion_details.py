"""The record of a fusion in training.json: the ways to make BM25 dense that were tried."""

from dataclasses import dataclass

from beir_cocodr.records import Record


@dataclass(frozen=True)
class TriedFusion:
    """One way to make BM25 dense.

    Attributes:
        kind: "svd", "hash" or "svd+hash".
        components: numbers of the truncated SVD.
        hashed: numbers of hashed terms.
        hashed_weight: weight of the hashed terms.
        agreement: mean share of the exact fusion's best ten documents among its own best ten.
    """

    kind: str
    components: int
    hashed: int
    hashed_weight: float
    agreement: float

    @property
    def numbers(self) -> int:
        """Return the numbers that it adds to a vector."""
        return self.components + self.hashed


@dataclass(frozen=True)
class FusionDetails(Record):
    """Details of a fusion.

    Attributes:
        kind: the way that was taken.
        numbers: numbers that it adds to a vector.
        agreement: its agreement, see :class:`TriedFusion`.
        candidates: the ways that were tried.
        terms: terms of the vocabulary that were kept.
        terms_left_out: rarer terms that were left out.
        unknown_share: their share of all occurrences.
        fitted_on: documents that the lexical part was fitted on.
        bytes_per_document: precision to bytes of a document's vector.
        projection_bytes: bytes of the projection of terms.
    """

    kind: str
    numbers: int
    agreement: float
    candidates: list[TriedFusion]
    terms: int
    terms_left_out: int
    unknown_share: float
    fitted_on: int
    bytes_per_document: dict[str, int]
    projection_bytes: int
