"""Filters that take likely false negatives out of mined candidates."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.errors import InputError

_CHUNK = 20_000


@dataclass(frozen=True)
class NegativeFilters:
    """What a candidate must not be to stay a negative. All are off by default, as in COCO-DR and ANCE.

    They apply in the order below, each to what the earlier ones left. The two on scores are those of
    sentence-transformers' ``mine_hard_negatives``, except that with several positives the margin is taken
    from the best scored one; the host takes the worst scored, and one positive that the model cannot find
    then removes every candidate of its query.

    Args:
        relative_margin: m in [0, 1); with p the score of the best scored positive, a candidate scoring above
            p − m·|p| is removed. That is p·(1 − m) for a positive p.
        max_score: a candidate that scores above it is removed.
        duplicates: a candidate whose text (title and text, as the encoder reads them) is that of a positive
            or of a better scored candidate that is left is removed.

    Source: sentence-transformers, ``mine_hard_negatives``; the relative margin is NV-Retriever's (Moreira et
    al., 2024, "TopK-PercPos"; 0.05 there).
    """

    relative_margin: float | None = None
    max_score: float | None = None
    duplicates: bool = False

    def __post_init__(self) -> None:
        if self.relative_margin is not None and not 0 <= self.relative_margin < 1:
            raise InputError(
                f"relative_margin must be at least 0 and below 1, or none, not {self.relative_margin}"
            )
        if self.max_score is not None and not math.isfinite(self.max_score):
            raise InputError(f"max_score must be a finite number, or none, not {self.max_score}")

    @property
    def active(self) -> dict[str, Any]:
        """The filters that are on, by name, with their values, in the order they apply."""
        return {
            name: value for name, value in asdict(self).items() if value is not None and value is not False
        }

    def apply(
        self,
        scores: npt.NDArray[np.float32],
        positive_scores: npt.NDArray[np.float32],
        texts: npt.NDArray[np.uint64],
        positive_texts: npt.NDArray[np.uint64],
    ) -> tuple[npt.NDArray[np.bool_], dict[str, int]]:
        """Filter the candidates of one query, best first and without its positives.

        Args:
            scores: (n,) of the candidates.
            positive_scores: (p,) of the query's positives, p > 0; only looked at for ``relative_margin``.
            texts, positive_texts: (n,) and (p,) of :func:`text_keys`; only looked at for ``duplicates``.

        Returns:
            (n,) which candidates are left, and how many each active filter removed.
        """
        left = np.ones(len(scores), dtype=bool)
        removed = dict.fromkeys(self.active, 0)

        def drop(name: str, wrong: npt.NDArray[np.bool_]) -> None:
            removed[name] = int((left & wrong).sum())
            left[wrong] = False

        if self.relative_margin is not None:
            best = float(positive_scores.max())
            drop("relative_margin", scores > best - abs(best) * self.relative_margin)
        if self.max_score is not None:
            drop("max_score", scores > self.max_score)
        if self.duplicates:
            drop("duplicates", np.isin(texts, positive_texts) | _repeats(texts, left))
        return left, removed


def text_keys(documents: Documents, text_format: TextFormat) -> npt.NDArray[np.uint64]:
    """(N,) 64-bit hashes of the documents' texts; equal texts have equal keys.

    Two different texts share a key with a probability of 2e-6 in a corpus of 9 million.
    """
    keys = np.empty(len(documents), np.uint64)
    row = 0
    for chunk in documents.chunks(_CHUNK):
        for document in chunk:
            text = text_format.document(document).encode()
            keys[row] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
            row += 1
    return keys


def _repeats(texts: npt.NDArray[np.uint64], left: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """(n,) which texts stand before among those ``left``."""
    places = np.flatnonzero(left)
    _, first = np.unique(texts[places], return_index=True)
    repeats = left.copy()
    repeats[places[first]] = False
    return repeats
