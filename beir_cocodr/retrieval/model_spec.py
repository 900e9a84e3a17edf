"""The encoder in the name of a model."""

from __future__ import annotations

_FUSIONS = ("hybrid", "rrf", "feedback")


def encoder_name(model: str) -> str:
    """M of ``M``, ``hybrid:M``, ``rrf:M`` and ``feedback:M``; "bm25" of ``bm25``; with Lucene's too."""
    bare = model.removeprefix("lucene-")
    kind, _, encoder = bare.partition(":")
    return "bm25" if bare == "bm25" else encoder if kind in _FUSIONS else model
