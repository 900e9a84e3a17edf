"""Encoders of the study: one pass over texts gives the vectors of several variants.

The first variant of an encoder is the encoder itself, under the name "". Others are known defects
of it: an earlier layer, or another way to pool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from beir_cocodr.io import atomic_path
from collecting.mpnet_attention import fuse_attention

Floats = npt.NDArray[np.float32]

QUERY = "query"
DOCUMENT = "document"

# Texts of a file of vectors, which a killed run makes anew.
_SHARD = 256
_BATCH = 16

# The name of the variant "" in files.
_ITSELF = "itself"

#: The query's prompt that no encoder here was trained with.
WRONG_PREFIX = "Represent this document for classification: "


class Encoder(Protocol):
    """Anything that makes vectors of texts.

    Attributes:
        name: Its name in the study.
        similarity: "cosine" or "dot".
    """

    name: str
    similarity: str

    def encode(self, texts: Sequence[str], role: str) -> dict[str, Floats]:
        """Return variant to (N, d) vectors; a role is :data:`QUERY` or :data:`DOCUMENT`."""
        ...


@dataclass(frozen=True)
class Variants:
    """What one pass of a transformer gives.

    Attributes:
        cuts: Encode only texts that are cut to these numbers of tokens.
        layers: Earlier layers whose states are averaged, too.
        first_token: Also take the first token instead of the mean.
        prefix: Also encode queries with a wrong prompt.
    """

    cuts: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    first_token: bool = False
    prefix: bool = False


class Transformer:
    """A sentence-transformers model that averages tokens, loaded as the package loads it.

    MPNet's attention is computed in one fused step, which transformers does not do by itself.

    Attributes:
        model: The model.
    """

    similarity = "cosine"

    def __init__(self, name: str, model: str, variants: Variants) -> None:
        """Load an encoder.

        Args:
            name: Its name in the study.
            model: Its name or folder.
            variants: What it gives.
        """
        from beir_cocodr.models.checkpoints.loading import load_encoder

        self.name = name
        self.variants = variants
        self.model: Any = load_encoder(model)
        self._transformer = self.model[0].auto_model.eval()
        fuse_attention(self._transformer)
        self._query_prompt = self.model.text_format.query_prompt
        self._document_prompt = self.model.text_format.document_prompt

    def use_bfloat16(self) -> None:
        """Hold weights and states in bfloat16; vectors are pooled in float32 all the same."""
        import torch

        self._transformer.to(torch.bfloat16)

    def encode(self, texts: Sequence[str], role: str) -> dict[str, Floats]:
        """Return variant to (N, d) unit vectors."""
        prompt = self._query_prompt if role == QUERY else self._document_prompt
        prompted = [prompt + text for text in texts]
        if self.variants.cuts:
            return self._cut(prompted)
        vectors = self._states(prompted)
        if self.variants.prefix:
            vectors["prefix"] = vectors[""]
            if role == QUERY:
                wrong = [WRONG_PREFIX + text for text in texts]
                vectors["prefix"] = self._states(wrong)[""]
        return vectors

    def _cut(self, texts: list[str]) -> dict[str, Floats]:
        """Return the vectors of texts that are cut to numbers of tokens."""
        vectors = {}
        for tokens in self.variants.cuts:
            vectors[f"tokens-{tokens}"] = self._states(texts, tokens)[""]
        return vectors

    def _states(self, texts: list[str], tokens: int | None = None) -> dict[str, Floats]:
        import torch

        numbers = self.model.tokenizer(
            texts,
            truncation=True,
            max_length=tokens or self.model.max_seq_length,
            split_special_tokens=True,
        )["input_ids"]
        order = sorted(range(len(texts)), key=lambda row: -len(numbers[row]))
        parts: dict[str, list[Floats]] = {}
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            ids = {"input_ids": [numbers[row] for row in rows]}
            batch = self.model.tokenizer.pad(ids, return_tensors="pt")
            with torch.inference_mode():
                pooled = self._pooled(batch)
            for name, values in pooled.items():
                parts.setdefault(name, []).append(values)
        back = np.argsort(order)
        return {name: np.concatenate(values)[back] for name, values in parts.items()}

    def _pooled(self, batch: Any) -> dict[str, Floats]:
        """Return variant to the (n, d) unit vectors of a batch."""
        import torch

        output = self._transformer(**batch, output_hidden_states=True)
        states = [state.float() for state in output.hidden_states]
        mask = batch["attention_mask"][..., None]
        averaged = {"": states[-1]}
        for layer in self.variants.layers:
            averaged[f"layers-{layer}"] = states[layer]
        pooled = {}
        for name, state in averaged.items():
            pooled[name] = (state * mask).sum(1) / mask.sum(1)
        if self.variants.first_token:
            pooled["first-token"] = states[-1][:, 0]
        vectors = {}
        for name, values in pooled.items():
            vectors[name] = torch.nn.functional.normalize(values, dim=1).numpy()
        return vectors


@dataclass(frozen=True)
class VectorFolder:
    """The vectors of a collection's texts by one encoder, in files of some texts each.

    Attributes:
        folder: The folder.
        encoder: The encoder.
    """

    folder: Path
    encoder: Encoder

    def vectors(self, label: str, texts: Sequence[str], role: str) -> dict[str, Floats]:
        """Return variant to (N, d) vectors, encoding what has no file yet.

        Args:
            label: The name of the texts, for their files.
            texts: The texts.
            role: :data:`QUERY` or :data:`DOCUMENT`.
        """
        parts: dict[str, list[Floats]] = {}
        for start in range(0, len(texts), _SHARD):
            shard = list(texts[start : start + _SHARD])
            vectors = self._shard(f"{label}-{start:06}", shard, role)
            for name, values in vectors.items():
                parts.setdefault(name, []).append(values.astype(np.float32))
        return {name: np.concatenate(values) for name, values in parts.items()}

    def _shard(self, stem: str, texts: list[str], role: str) -> dict[str, Floats]:
        digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
        file = self.folder / f"{stem}-{digest}.npz"
        if not file.is_file():
            self._write(file, self.encoder.encode(texts, role))
        with np.load(file) as content:
            return {name.removeprefix(_ITSELF): content[name] for name in content.files}

    def _write(self, file: Path, vectors: dict[str, Floats]) -> None:
        self.folder.mkdir(
            parents=True,
            exist_ok=True,
        )
        arrays: dict[str, Any] = {name or _ITSELF: values for name, values in vectors.items()}
        with atomic_path(file) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **arrays)
