"""One shard of a store: a safetensors file with the vectors of consecutive documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.store.files import placed
from beir_cocodr.retrieval.store.precision import Arrays, unpack

# A single entry, because safetensors does not promise an order among several.
_ENTRY = "shard"
_TYPES = {"F32": np.float32, "F16": np.float16, "I8": np.int8}


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` of the corpus, in a file that says whose they are.

    Args:
        path: the file.
        key: of the store.
        start, stop: corpus rows, ``stop`` excluded.
    """

    path: Path
    key: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def write(self, arrays: Arrays) -> None:
        """Put the arrays of :func:`~beir_cocodr.retrieval.store.precision.pack` in place, in one step."""
        with placed(self.path) as temporary:
            save_file(arrays, temporary, metadata={_ENTRY: json.dumps(self._label)})

    def read(self) -> torch.Tensor:
        """(n, w) float32.

        Raises:
            InputError: the file is missing, broken, or a shard of something else.
        """
        with self._opened() as file:
            return unpack({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118

    def mapped(self) -> Arrays:
        """The arrays as they lie in the file, memory-mapped: of a few rows only a few pages are read.

        Raises:
            InputError: as :meth:`read`.
        """
        with self._opened():
            pass
        with self.path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        return {
            name: np.memmap(
                self.path,
                _TYPES[part["dtype"]],
                "r",
                8 + size + part["data_offsets"][0],
                tuple(part["shape"]),
            )
            for name, part in header.items()
            if name != "__metadata__"
        }

    def fault(self) -> str | None:
        """What keeps this file from being the shard; None where nothing does. Reads no vectors."""
        if not self.path.exists():
            return "missing"
        try:
            with self._opened():
                return None
        except InputError as error:
            return str(error)

    @property
    def _label(self) -> dict[str, Any]:
        label = asdict(self)
        del label["path"]
        return label

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with safe_open(self.path, framework="numpy") as file:
                label = json.loads((file.metadata() or {}).get(_ENTRY, "null"))
                count = file.get_slice("vectors").get_shape()[0]
                if label != self._label or count != len(self):
                    raise InputError(f"{self.path} is a shard of something else; delete it and encode again")
                yield file
        except (OSError, ValueError, SafetensorError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.path} is no shard ({error}); delete it and encode again") from error
