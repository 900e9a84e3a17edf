"""Embeddings of queries on disk.

Any dense encoder as a source of query embeddings that compare by cosine.

Query embeddings, encoded once and kept below the cache root.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from beir_cocodr.errors import InputError
from beir_cocodr.io import cache_root, json_sha256
from beir_cocodr.models.loading import load_encoder, weights_sha256
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import SearchOptions

Array = npt.NDArray[np.float32]

Rows = npt.NDArray[np.int64]

# What the search multiplies at a time; larger chunks would only take more memory.
CHUNK = 16_384


class Vectors(Protocol):
    """Rows of float32 that are read in chunks, in order."""

    def __len__(self) -> int: ...

    @property
    def dimensions(self) -> int: ...

    def chunks(self, size: int = CHUNK) -> Iterator[Array]: ...


@dataclass(frozen=True)
class QueryEmbeddings:
    """The (Q, d) float32 embeddings of Q queries in an npy file. Only what is asked for is in memory.

    Attributes:
        path: the file.
        count: Q.
        dimensions: d.
    """

    path: Path
    count: int
    dimensions: int

    @classmethod
    def open(cls, path: Path) -> QueryEmbeddings:
        """Read the header of a file.

        Raises:
            InputError: it is no npy file of float32 rows, or its end is missing.
        """
        try:
            stored = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} holds no embeddings ({error}); delete it") from error
        if stored.ndim != 2 or stored.dtype != np.dtype("<f4") or not stored.flags.c_contiguous:
            raise InputError(f"{path} holds {stored.dtype} of shape {stored.shape}, no embeddings; delete it")
        return cls(path, *stored.shape)

    def __len__(self) -> int:
        return self.count

    def chunks(self, size: int = CHUNK) -> Iterator[Array]:
        """Stream the rows in order, at most ``size`` at a time."""
        offset = _opened(self.path).offset
        for start in range(0, self.count, size):
            rows = min(size, self.count - start)
            # Read instead of mapped: mapped pages would count as memory of this process until all are in.
            flat = np.fromfile(
                self.path,
                np.float32,
                rows * self.dimensions,
                offset=offset + 4 * start * self.dimensions,
            )
            yield flat.reshape(rows, self.dimensions)

    def take(self, rows: Rows) -> Array:
        """(n, d) embeddings of the given rows, in their order."""
        return np.ascontiguousarray(_opened(self.path)[rows])

    def select(self, rows: Rows) -> Vectors:
        """The given rows as a stream of their own."""
        return _Selection(self, rows)

    def load(self) -> Array:
        """All (Q, d) of them, in memory."""
        loaded: Array = np.load(self.path, allow_pickle=False)
        return loaded


@dataclass(frozen=True)
class _Selection:
    embeddings: QueryEmbeddings
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dimensions(self) -> int:
        return self.embeddings.dimensions

    def chunks(self, size: int = CHUNK) -> Iterator[Array]:
        for start in range(0, len(self.rows), size):
            yield self.embeddings.take(self.rows[start : start + size])


def _opened(path: Path) -> np.memmap[Any, np.dtype[np.float32]]:
    mapped: np.memmap[Any, np.dtype[np.float32]] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped


class QueryEncoder:
    """Encodes queries as unit vectors: their dot product is the cosine of the encoder's embeddings.

    An encoder that compares by dot product is taken at the direction of its vectors. Of an MRL the means are
    taken: its flattened vectors hold variances and constants besides, whose directions mean nothing.

    Args:
        name: the encoder, as everywhere: an alias, a hub name or a folder.
        batch_size: queries encoded at a time.
        progress: show a bar on stderr.
        options: how it is loaded, texts encoded at a time, and whether bars are shown.

    Raises:
        InputError: there is no such encoder.
    """

    def __init__(self, name: str, options: SearchOptions = SearchOptions()) -> None:
        self.name = name
        self.model = load_encoder(name, options.encoder)
        self.batch_size, self.progress = options.batch_size, options.progress

    @cached_property
    def dimensions(self) -> int:
        """d, as a text shows it: not every module of an encoder declares it."""
        return int(self._encoded(["query"], progress=False).shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that an embedding depends on: weights, modules, tokenizer and text format."""
        tokenizer: Any = self.model.tokenizer
        content = {
            "class": type(self.model).__name__,
            "weights": self._weights,
            "modules": [[type(module).__name__, _config(module)] for module in self.model],
            "vocabulary": sorted(tokenizer.get_vocab().items()),
            "lower_case": getattr(tokenizer, "do_lower_case", None),
            "text_format": self.model.text_format.as_dict(),
        }
        return json_sha256(content)

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """(Q,) texts to (Q, d) float32 of length 1; a zero vector stays zero."""
        return self._encoded(list(texts), self.progress)

    def describe(self) -> dict[str, Any]:
        """What a similarity depends on, for a manifest."""
        return {
            "name": self.name,
            "weights_sha256": self._weights,
            "dimensions": self.dimensions,
            "similarity": "cosine",
            "vectors": "means" if isinstance(self.model, MRL) else "embeddings",
            "query_prompt": self.model.text_format.query_prompt,
            "query_length": self.model.text_format.query_length,
        }

    @cached_property
    def _weights(self) -> str:
        return weights_sha256(self.model)

    def _encoded(self, texts: list[str], progress: bool) -> npt.NDArray[np.float32]:
        options: dict[str, Any] = {"batch_size": self.batch_size, "show_progress_bar": progress}
        if isinstance(self.model, MRL):
            vectors, _ = self.model.encode_distribution(texts, "query", **options)
        else:
            vectors = self.model.encode_queries(texts, convert_to_tensor=True, **options)
        unit: npt.NDArray[np.float32] = F.normalize(vectors.detach().to(torch.float32).cpu(), dim=-1).numpy()
        return unit


def _config(module: Any) -> Any:
    return module.get_config_dict() if hasattr(module, "get_config_dict") else {}


log = logging.getLogger(__name__)

# Part of every key: raise it when encoding changes what comes out.
_FORMAT = "1"

_CHUNK = 20_000

_LEFT_OVER_SECONDS = 86_400

_NAMED = 5


def query_embeddings(encoder: QueryEncoder, queries: Mapping[str, str]) -> QueryEmbeddings:
    """The embeddings of queries, in their order: from the cache, or encoded chunk by chunk into it.

    The key is a hash of the encoder (weights, modules, tokenizer, text format) and of the texts, so that a
    changed model or collection never gets the vectors of another.

    Args:
        encoder: see :class:`QueryEncoder`.
        queries: query id to text, at least one.

    Raises:
        InputError: the file in the cache has another number of queries or dimensions than it must; NaN or
            infinite embeddings; a cache that cannot be written.
    """
    folder = cache_root() / "query_embeddings"
    path = folder / f"{_key(encoder, queries)}.npy"
    if not path.is_file():
        _encode(encoder, queries, path)
    found = QueryEmbeddings.open(path)
    if found.dimensions != encoder.dimensions:
        raise InputError(
            f"{path} holds embeddings of {found.dimensions} dimensions, the encoder {encoder.name!r} gives "
            f"{encoder.dimensions}: delete that file"
        )
    if len(found) != len(queries):
        raise InputError(f"{path} holds {len(found)} embeddings for {len(queries)} queries: delete that file")
    return found


def _key(encoder: QueryEncoder, queries: Mapping[str, str]) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\n{encoder.fingerprint}\n".encode())
    for text in queries.values():
        raw = text.encode()
        # The length says where a text ends: no two lists of queries give the same bytes.
        digest.update(b"%d\n" % len(raw) + raw)
    return digest.hexdigest()[:32]


def _encode(encoder: QueryEncoder, queries: Mapping[str, str], path: Path) -> None:
    ids, texts = list(queries), list(queries.values())
    log.info("encoding %d queries with %s", len(ids), encoder.name)
    temporary = path.with_name(f".{path.stem}.{uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_overs(path.parent)
        with temporary.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), encoder.dimensions)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, len(ids), _CHUNK):
                vectors = encoder.encode(texts[start : start + _CHUNK])
                _check_finite(vectors, ids[start : start + _CHUNK])
                file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path.parent}: {error.strerror}; point BEIR_COCODR_CACHE elsewhere") from error
    finally:
        # Where the folder could not even be made, removing something in it fails once more.
        with suppress(OSError):
            temporary.unlink()


def _check_finite(vectors: npt.NDArray[np.float32], ids: list[str]) -> None:
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        named = ", ".join(repr(ids[row]) for row in wrong[:_NAMED])
        raise InputError(
            f"NaN or infinite embeddings of the queries {named}{more}: look at their texts, and encode in "
            "float32 if the model runs in half precision"
        )


def _remove_left_overs(folder: Path) -> None:
    for left_over in folder.glob(".*.tmp"):
        # An encoding that was killed cannot clean up; one that runs today may still be alive.
        with suppress(FileNotFoundError):
            if time.time() - left_over.stat().st_mtime > _LEFT_OVER_SECONDS:
                left_over.unlink()
