"""Search: exact dense, BM25, and their fusions."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beir_cocodr.retrieval.exact import ExactSearch

__all__ = ["ExactSearch"]


def __getattr__(name: str) -> Any:
    if name != "ExactSearch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from beir_cocodr.retrieval.exact import ExactSearch  # not before, as it imports torch

    return ExactSearch
