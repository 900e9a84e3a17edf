"""Architectures by name."""

from __future__ import annotations

from collections.abc import Sequence

from beir_cocodr.errors import InputError
from beir_cocodr.resampling.regimes.architecture import Architecture

NAMES = (
    "bm25",
    "dense",
    "dense-hard",
    "dense-distilled",
    "splade",
    "late-interaction",
    "cross-encoder",
)


def find_architectures(names: Sequence[str]) -> list[Architecture]:
    """The architectures of these names; "all" stands for every one.

    Raises:
        InputError: a name that is unknown or given twice.
    """
    names = [*NAMES] if list(names) == ["all"] else list(names)
    for name in names:
        if name not in NAMES:
            raise InputError(f"unknown architecture {name!r}; there are all, {', '.join(NAMES)}")
        if names.count(name) > 1:
            raise InputError(f"architecture {name!r} is named twice; name each once")
    return [_make(name) for name in names]


def _make(name: str) -> Architecture:
    # Imported where they are asked for: BM25 alone needs no torch.
    if name == "bm25":
        from beir_cocodr.resampling.regimes.tuned_bm25 import TunedBM25

        return TunedBM25()
    if name.startswith("dense"):
        from beir_cocodr.resampling.regimes.dense import DenseArchitecture

        return DenseArchitecture(name)
    if name == "splade":
        from beir_cocodr.resampling.regimes.splade import Splade

        return Splade()
    if name == "late-interaction":
        from beir_cocodr.resampling.regimes.late_interaction import LateInteraction

        return LateInteraction()
    from beir_cocodr.resampling.regimes.cross_encoder import CrossEncoderReranker

    return CrossEncoderReranker()
