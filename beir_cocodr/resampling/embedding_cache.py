"""Query embeddings, encoded once and kept below the cache root."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.cache_root import cache_root
from beir_cocodr.errors import InputError
from beir_cocodr.resampling.query_embeddings import QueryEmbeddings
from beir_cocodr.resampling.query_encoder import QueryEncoder

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
                _refuse_non_finite(vectors, ids[start : start + _CHUNK])
                file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path.parent}: {error.strerror}; point BEIR_COCODR_CACHE elsewhere") from error
    finally:
        # Where the folder could not even be made, removing something in it fails once more.
        with suppress(OSError):
            temporary.unlink()


def _refuse_non_finite(vectors: npt.NDArray[np.float32], ids: list[str]) -> None:
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
