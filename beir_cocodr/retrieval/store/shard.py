"""One shard of a store: vectors in safetensors, float32, float16, bfloat16, or int8 with scales."""

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

# Names of the arrays of a shard.
_VECTORS = "vectors"
_SCALES = "scales"
_PRIORS = "priors"

# The largest code of int8.
_LEVELS = 127

# The metadata of a file; a single entry, because safetensors does not promise an order of several.
_ENTRY = "shard"

_TYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "I8": np.int8,
}

#: What a user does about a broken file of a store.
ENCODE_AGAIN = "encode again, which replaces what is broken"

_DELETE = "delete it and encode again"


class OutOfRange(Exception):
    """Vectors have numbers that a precision cannot hold."""

    def __init__(self, rows: list[int]) -> None:
        """Take the rows of the vectors, among those to be packed."""
        super().__init__(rows)
        self.rows = rows


def pack(
    vectors: Floats,
    precision: Precision,
    prior: bool = False,
) -> Arrays:
    """Return finite (n, w) vectors as the arrays of a shard.

    int8 is symmetric with one float32 scale for each vector, its largest absolute number over 127:
    a vector depends on no other, so that shards can be written before the corpus was seen.

    Args:
        vectors: (n, w) float32.
        precision: Of ``vectors`` in the result.
        prior: Keep the first number of each vector in float32, in ``priors`` (n,), and pack the
            rest. It is for MRL, whose γ is far larger than all else; fp32 ignores it.

    Returns:
        ``vectors`` (n, w), or (n, w - 1) with ``priors``; int8 has ``scales`` (n,) as well.

    Raises:
        OutOfRange: A number is beyond ±65,504 for fp16 or bf16.
    """
    if precision == "fp32":
        return {_VECTORS: np.ascontiguousarray(vectors)}
    arrays: Arrays = {}
    if prior:
        arrays[_PRIORS] = np.ascontiguousarray(vectors[:, 0])
        vectors = vectors[:, 1:]
    if precision == "int8":
        return arrays | _int8(vectors)
    if precision == "bf16":
        vectors = torch.from_numpy(np.ascontiguousarray(vectors)).bfloat16().float().numpy()
    # Overflow raises the error below, with the rows.
    with np.errstate(over="ignore"):
        halves = vectors.astype(np.float16)
    overflowing = non_finite_rows(halves)
    if len(overflowing):
        raise OutOfRange(overflowing.tolist())
    return arrays | {_VECTORS: halves}


def _int8(vectors: Floats) -> Arrays:
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    scales = largest / np.float32(_LEVELS)
    divisors = np.where(scales > 0, scales, np.float32(1))
    codes = np.rint(vectors / divisors[:, None]).clip(-_LEVELS, _LEVELS)
    return {
        _VECTORS: codes.astype(np.int8),
        _SCALES: scales.astype(np.float32),
    }


def unpack(arrays: Mapping[str, Array]) -> torch.Tensor:
    """Return the (n, w) float32 vectors of the arrays of :func:`pack`, in new memory."""
    packed = arrays[_VECTORS]
    priors = arrays.get(_PRIORS)
    first = 0 if priors is None else 1
    # PyTorch's own memory is aligned alike in every process, and the last bits of products may
    # depend on it.
    vectors = torch.empty(
        len(packed),
        packed.shape[1] + first,
        dtype=torch.float32,
    )
    target = vectors.numpy()
    if priors is not None:
        target[:, 0] = priors
    target[:, first:] = packed
    if _SCALES in arrays:
        target[:, first:] *= arrays[_SCALES][:, None]
    return vectors


def bytes_per_vector(
    width: int,
    precision: Precision,
    prior: bool = False,
) -> int:
    """Return the bytes that a vector of ``width`` numbers takes on disk."""
    arrays = pack(np.zeros((1, width), np.float32), precision, prior)
    return sum(array.nbytes for array in arrays.values())


def _arrays_of(content: npt.NDArray[np.uint8]) -> Arrays:
    """Return the arrays in the bytes of a safetensors file, without a copy."""
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:start].tobytes())
    header.pop("__metadata__")
    arrays = {}
    for name, part in header.items():
        begin, end = part["data_offsets"]
        array_bytes = content[start + begin : start + end]
        flat = array_bytes.view(_TYPES[part["dtype"]])
        arrays[name] = flat.reshape(part["shape"])
    return arrays


@dataclass(frozen=True)
class Shard:
    """Rows of a corpus in a file.

    Attributes:
        path: The file.
        key: Key of the store, which the file repeats.
        start: The first row.
        stop: One after the last row.
        verify: Compare the file with its checksum before it is read.
    """

    path: Path
    key: str
    start: int
    stop: int
    verify: bool = True

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.stop - self.start

    def write(self, arrays: Arrays) -> None:
        """Write the arrays of :func:`pack` in one step."""
        with checksums.checked_path(self.path) as temporary:
            save_file(
                arrays,
                temporary,
                metadata={_ENTRY: json.dumps(self._label)},
            )

    def read(self) -> torch.Tensor:
        """Return the (n, w) float32 vectors.

        Raises:
            InputError: The file is missing, broken, or a shard of something else.
        """
        with self._opened(thorough=False):
            if self.verify:
                content = checksums.read(self.path, ENCODE_AGAIN)
            else:
                content = np.fromfile(self.path, np.uint8)
            return unpack(_arrays_of(content))

    def mapped(self) -> Arrays:
        """Return the arrays, memory-mapped: for a few rows only a few pages are read.

        Raises:
            InputError: As for :meth:`read`.
        """
        with self._opened():
            return _arrays_of(np.memmap(self.path, np.uint8, "r"))

    def fault(self, thorough: bool = False) -> str | None:
        """Return what keeps the file from being the shard: "missing", a message, or None.

        Args:
            thorough: Read the vectors.
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
        return {
            "key": self.key,
            "start": self.start,
            "stop": self.stop,
        }

    @contextmanager
    def _opened(self, thorough: bool = True) -> Iterator[None]:
        """Turn errors inside, and a file that is not this shard, into InputErrors."""
        if self.verify and thorough:
            checksums.verify(self.path, ENCODE_AGAIN)
        kinds = (
            OSError,
            ValueError,
            KeyError,
            SafetensorError,
        )
        with (
            explained(f"{self.path} is not a shard", _DELETE, *kinds),
            safe_open(self.path, framework="numpy") as file,
        ):
            label = json.loads((file.metadata() or {}).get(_ENTRY, "null"))
            count = file.get_slice(_VECTORS).get_shape()[0]
            if label != self._label or count != len(self):
                raise InputError(f"{self.path} is a shard of something else; {_DELETE}")
            yield
