"""Search: exact dense, BM25, and their fusions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beir_cocodr.retrieval.exact import ExactSearch

_HOMES = {"ExactSearch": "beir_cocodr.retrieval.exact"}

__all__ = ["ExactSearch"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
