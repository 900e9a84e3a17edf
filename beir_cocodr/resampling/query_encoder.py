"""Any dense encoder as a source of query embeddings that compare by cosine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from beir_cocodr.models.loading import load_encoder, weights_sha256
from beir_cocodr.models.mrl import MRL


class QueryEncoder:
    """Encodes queries as unit vectors: their dot product is the cosine of the encoder's embeddings.

    An encoder that compares by dot product is taken at the direction of its vectors. Of an MRL the means are
    taken: its flattened vectors hold variances and constants besides, whose directions mean nothing.

    Args:
        name: the encoder, as everywhere: an alias, a hub name or a folder.
        batch_size: queries encoded at a time.
        progress: show a bar on stderr.
        **options: passed on to the encoder where not None (query_length, device, ...).

    Raises:
        InputError: there is no such encoder.
    """

    def __init__(self, name: str, batch_size: int = 64, progress: bool = False, **options: Any) -> None:
        self.name = name
        self.model = load_encoder(name, **options)
        self.batch_size, self.progress = batch_size, progress

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
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

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
