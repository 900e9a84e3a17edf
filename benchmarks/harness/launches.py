"""Kernel launches, counted on any device as the operations that torch dispatches."""

from __future__ import annotations

from typing import Any

# Private to torch, which documents it only in its notes on extending Python. A test of launches
# fails when it moves.
from torch.utils._python_dispatch import TorchDispatchMode

#: Operations that reserve memory or read what is known without a device.
_NO_KERNEL = ("empty", "new_empty", "_local_scalar_dense", "promote_types")


class Launches(TorchDispatchMode):
    """A block whose operations are counted, except for views and reservations of memory.

    On a GPU, nearly each of them launches one kernel.

    Attributes:
        names: The operations in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not _is_view(func) and not str(func).split(".")[1].startswith(_NO_KERNEL):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def _is_view(func: Any) -> bool:
    """Say whether an operation returns its input's memory without writing to it."""
    aliases = [value.alias_info for value in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)
