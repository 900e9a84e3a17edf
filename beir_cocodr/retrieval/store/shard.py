"""One shard of a store: vectors in safetensors, float32, float16, bfloat16, or int8 with a scale
each.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from beir_cocodr import checksums
from beir_cocodr.arrays import Array, Floats, non_finite_rows
from beir_cocodr.errors import InputError, explained
from beir_cocodr.records import Json
from beir_cocodr.retrieval.store.record import Precision

Arrays = dict[str, Array]
_VECTORS, _SCALES, _PRIORS = "vectors", "scales", "priors"
_LEVELS = 127


class OutOfRange(Exception):
    """Vectors, by the ``rows`` that they are of those given, with numbers that a precision cannot
    hold.
    """

    def __init__(self, rows: list[int]) -> None:
        super().__init__(rows)
        self.rows = rows


def pack(vectors: Floats, precision: Precision, prior: bool = False) -> Arrays:
    """Finite (n, w) vectors to the arrays of a shard. An OutOfRange: fp16 or bf16, and a number
    beyond ±65,504.

    int8 is symmetric with one float32 scale for each vector, its largest absolute number over 127:
    a vector depends on no other, so that shards can be written before the corpus has been seen.

    Args:
        vectors: (n, w) float32.
        precision: of ``vectors`` in the result.
        prior: the first number of each vector stays float32, in ``priors`` (n,), and the rest is
            packed without it. For MRL, whose γ is far larger than all else; not with fp32, where
            nothing is lost.

    Returns:
        ``vectors`` (n, w), or (n, w − 1) with ``priors``; int8 has ``scales`` (n,) as well.
    """
    arrays: Arrays = {}
    if prior and precision != "fp32":
        arrays[_PRIORS] = np.ascontiguousarray(vectors[:, 0])
        vectors = vectors[:, 1:]
    if precision == "fp32":
        return {_VECTORS: np.ascontiguousarray(vectors)}
    if precision == "int8":
        scales = np.abs(vectors).max(axis=1, initial=0.0) / np.float32(_LEVELS)
        divisors = np.where(scales > 0, scales, np.float32(1))[:, None]
        codes = np.rint(vectors / divisors).clip(-_LEVELS, _LEVELS).astype(np.int8)
        return arrays | {_VECTORS: codes, _SCALES: scales.astype(np.float32)}
    if precision == "bf16":
        vectors = torch.from_numpy(np.ascontiguousarray(vectors)).bfloat16().float().numpy()
    with np.errstate(over="ignore"):  # said below, with the rows
        halves = vectors.astype(np.float16)
    if len(wrong := non_finite_rows(halves)):
        raise OutOfRange(wrong.tolist())
    return arrays | {_VECTORS: halves}


def unpack(arrays: Mapping[str, Array]) -> torch.Tensor:
    """The arrays of :func:`pack` to (n, w) float32, in memory of their own."""
    stored, priors = arrays[_VECTORS], arrays.get(_PRIORS)
    first = 0 if priors is None else 1
    # PyTorch's own memory is aligned alike in every process, and the last bits of products may
    # depend on it.
    vectors = torch.empty(len(stored), stored.shape[1] + first, dtype=torch.float32)
    target = vectors.numpy()
    if priors is not None:
        target[:, 0] = priors
    target[:, first:] = stored
    if _SCALES in arrays:
        target[:, first:] *= arrays[_SCALES][:, None]
    return vectors


def bytes_per_vector(width: int, precision: Precision, prior: bool = False) -> int:
    """What a vector of ``width`` numbers takes on disk."""
    return sum(
        array.nbytes for array in pack(np.zeros((1, width), np.float32), precision, prior).values()
    )


# A single entry, because safetensors does not promise an order among several.
_ENTRY = "shard"

# What to do about a broken file of a store.
ENCODE_AGAIN = "encode again, which makes what is broken anew"
_TYPES = {"F32": np.float32, "F16": np.float16, "I8": np.int8}


def _arrays(content: npt.NDArray[np.uint8]) -> Arrays:
    """The arrays in the bytes of a safetensors file, none copied."""
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:start].tobytes())
    header.pop("__metadata__")
    return {
        name: content[slice(*(start + offset for offset in part["data_offsets"]))]
        .view(_TYPES[part["dtype"]])
        .reshape(part["shape"])
        for name, part in header.items()
    }


@dataclass(frozen=True)
class Shard:
    """Rows ``start`` to ``stop`` (excluded) of the corpus, in a file that says whose they are, by
    the store's ``key``; ``verify`` compares the file with its checksum before it is read.
    """

    path: Path
    key: str
    start: int
    stop: int
    verify: bool = True

    def __len__(self) -> int:
        return self.stop - self.start

    def write(self, arrays: Arrays) -> None:
        """Put the arrays of :func:`pack` in place, in one step."""
        with checksums.checked_path(self.path) as temporary:
            save_file(arrays, temporary, metadata={_ENTRY: json.dumps(self._label)})

    def read(self) -> torch.Tensor:
        """(n, w) float32; an InputError where the file is missing, broken, or a shard of something
        else.
        """
        with self._opened(thorough=False):
            read = (
                checksums.read(self.path, ENCODE_AGAIN)
                if self.verify
                else np.fromfile(self.path, np.uint8)
            )
            return unpack(_arrays(read))

    def mapped(self) -> Arrays:
        """The arrays, memory-mapped: of a few rows only a few pages are read; errors as
        :meth:`read`.
        """
        with self._opened():
            return _arrays(np.memmap(self.path, np.uint8, "r"))

    def fault(self, thorough: bool = False) -> str | None:
        """What keeps this file from being the shard, "missing" or a message, else None. Reads
        vectors if thorough.
        """
        if not self.path.exists():
            return "missing"
        try:
            with self._opened(thorough):
                return None
        except InputError as error:
            return str(error)

    @property
    def _label(self) -> Json:
        return {"key": self.key, "start": self.start, "stop": self.stop}

    @contextmanager
    def _opened(self, thorough: bool = True) -> Iterator[None]:
        """Errors inside, and a file that is not this shard, are InputErrors."""
        if self.verify and thorough:
            checksums.verify(self.path, ENCODE_AGAIN)
        way_out, kinds = (
            "delete it and encode again",
            (OSError, ValueError, KeyError, SafetensorError),
        )
        with (
            explained(f"{self.path} is no shard", way_out, *kinds),
            safe_open(self.path, framework="numpy") as file,
        ):
            label = json.loads((file.metadata() or {}).get(_ENTRY, "null"))
            count = file.get_slice("vectors").get_shape()[0]
            if label != self._label or count != len(self):
                raise InputError(f"{self.path} is a shard of something else; {way_out}")
            yield
