"""Values that are computed from the embeddings of a search, and follow them when they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class embeddings_property(Generic[T]):
    """A property that is kept as long as the embeddings of a search are the same object.

    It is used like ``cached_property``, in a search that has ``embeddings`` or in a class whose
    ``dense`` is one. Whoever gives a search other embeddings, such as vectors that have learned,
    need not know what was computed from the former ones.

    Args:
        compute: The method that computes the value.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        """Take the method, with its documentation."""
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Note the name under which an object keeps the embeddings and the value."""
        self._kept_as = f"{name} of embeddings"

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        """Return the value, computed now if it is not that of the present embeddings."""
        if instance is None:
            return self
        search: Any = getattr(instance, "dense", instance)
        embeddings = search.embeddings
        attributes = vars(instance)
        former, value = attributes.get(self._kept_as, (None, None))
        if former is embeddings:
            kept: T = value
            return kept
        # The former value and the new one together may not fit into memory.
        del former, value
        attributes.pop(self._kept_as, None)
        computed = self._compute(instance)
        attributes[self._kept_as] = embeddings, computed
        return computed
