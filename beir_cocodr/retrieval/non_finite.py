"""The error of embeddings that give NaN or infinite scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from beir_cocodr.errors import InputError

Names = Callable[[list[int]], Sequence[str]]

_NAMED = 5


class NonFiniteScores(InputError):
    """Embeddings that give NaN or infinite scores; no ranking of them means anything.

    Args:
        documents: the documents at fault, rows or ids; empty when it is the query vectors alone.
        queries: the queries at fault, rows or ids; empty when it is the document vectors alone. Where both
            are named, each vector is finite and their products overflow.
    """

    def __init__(self, documents: Sequence[int | str], queries: Sequence[int | str]) -> None:
        self.documents, self.queries = list(documents), list(queries)
        at_fault = filter(None, (_listed("document", self.documents), _listed("query", self.queries)))
        super().__init__(
            f"NaN or infinite scores from the embeddings of {' with '.join(at_fault)}: look at their texts, "
            "and encode in float32 if the model runs in half precision"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is otherwise made anew from its message when it comes back from another process.
        return NonFiniteScores, (self.documents, self.queries)

    def named(self, documents: Names, queries: Names) -> NonFiniteScores:
        """The same error with ids in place of rows."""
        rows = [int(row) for row in self.documents], [int(row) for row in self.queries]
        return NonFiniteScores(documents(rows[0]), queries(rows[1]))


def _listed(kind: str, names: Sequence[int | str]) -> str:
    shown = ", ".join(repr(name) if isinstance(name, str) else f"row {name}" for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{kind} {shown}{more}" if names else ""
