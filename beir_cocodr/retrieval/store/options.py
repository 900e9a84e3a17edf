"""Settings of an embedding store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.corpus_encoder import Backend
from beir_cocodr.retrieval.store.precision import Precision

#: Documents of a shard where nothing else is said: one tile of search, 48 MiB of 768 float32 dimensions.
SHARD_SIZE = 16_384


@dataclass(frozen=True)
class EncodeOptions:
    """How a corpus is encoded and kept.

    Args:
        shard_size: documents of a shard, all that a process which is killed loses; an existing store's own by
            default, else 16,384.
        precision: on disk, see :data:`~beir_cocodr.retrieval.store.precision.Precision` (default "fp32").
        backend: what the encoder computes in, "fp32" (as it was loaded, default) or "bf16" (autocast).
        token_budget: tokens of a batch, padding included; see
            :class:`~beir_cocodr.retrieval.corpus_encoder.CorpusEncoder`.

    Raises:
        InputError: a size below 1 or an unknown name.
    """

    shard_size: int | None = None
    precision: Precision = "fp32"
    backend: Backend = "fp32"
    token_budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("shard_size", "token_budget"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name.replace('_', ' ')} is {value}; give at least 1")
        for name, kind in (("precision", Precision), ("backend", Backend)):
            if getattr(self, name) not in get_args(kind):
                raise InputError(
                    f"unknown {name} {getattr(self, name)!r}; there are {', '.join(get_args(kind))}"
                )
