"""The encoders that trainings start from."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from transformers import set_seed

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.sources import Labels
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.loading import load_encoder, model_source
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import ENDPOINT_PREFIX, EncoderOptions, ModelSpec
from beir_cocodr.retrieval.vectors.dense import EmbeddingPool


@dataclass(frozen=True)
class Start:
    """An encoder to start from.

    Attributes:
        name: its name in records.
        source: the folder or hub name that its weights come from, where language-model heads may
            be, too.
        model: the encoder; training changes it.
        pool: the embeddings that the stages of an adaptation share; None outside of one.
    """

    name: str
    source: str
    model: Any
    pool: EmbeddingPool | None = None


#: What a training takes as its model: a name, a folder, or a loaded encoder.
ModelLike = str | Path | ModelSpec | SentenceTransformer | Start


def load_start(model: ModelLike, encoder: EncoderOptions, seed: int) -> Start:
    """Load the encoder that a training starts from; a loaded one is copied, so that it stays as is.

    Args:
        model: a name, a folder, or a loaded encoder.
        encoder: how an encoder is loaded by name.
        seed: a checkpoint may lack layers, which are then drawn at random by it.

    Raises:
        InputError: The model cannot be found or read, or is of another type.
    """
    set_seed(seed)
    if isinstance(model, Start):
        return replace(model, model=deepcopy(model.model))
    if isinstance(model, ModelSpec):
        model = model.name if model.loaded is None else model.loaded
    if isinstance(model, str | Path):
        name = str(model)
        if name.startswith(ENDPOINT_PREFIX):
            raise InputError(
                f"{name!r} has no weights here that could be trained; name a model that is loaded"
            )
        return Start(name, model_source(name), load_encoder(name, encoder))
    copy = deepcopy(load_encoder(model, replace(encoder, device=None)))
    if encoder.device is not None:
        copy.to(encoder.device)
    source = str(getattr(copy.transformers_model, "name_or_path", "") or type(model).__name__)
    return Start(source, source, copy)


def untrained(model: ModelLike, encoder: EncoderOptions) -> COCODR:
    """Return an encoder that is used as it is; a loaded one is not copied."""
    if isinstance(model, Start):
        loaded: COCODR = model.model
        return loaded
    if isinstance(model, str | Path):
        return load_encoder(model, encoder)
    return load_encoder(model)


class SharedEncoders:
    """Encoders that are loaded once and started from several times.

    Args:
        options: how they are loaded.
        seed: the seed of layers that a checkpoint lacks.
        pool: embeddings that are shared along with them.
    """

    def __init__(
        self, options: EncoderOptions, seed: int, pool: EmbeddingPool | None = None
    ) -> None:
        """Start without any."""
        self.options = options
        self.seed = seed
        self.pool = pool
        self._starts: dict[str, Start] = {}

    def get(self, model: ModelLike) -> Start:
        """Return an encoder, loaded at the first call; training starts from copies of it."""
        if not isinstance(model, str | Path):
            start = self._load(model)
            return self._starts.setdefault(start.name, start)
        name = str(model)
        if name not in self._starts:
            self._starts[name] = self._load(name)
        return self._starts[name]

    def _load(self, model: ModelLike) -> Start:
        return replace(load_start(model, self.options, self.seed), pool=self.pool)


def load_collections(
    datasets: Any, split: str = "test", labels: Labels = "required"
) -> list[Collection]:
    """Load one dataset, or each of a list of them.

    Raises:
        InputError: The list is empty, or a dataset cannot be loaded.
    """
    several: Sequence[object] = datasets if isinstance(datasets, list) else [datasets]
    if not several:
        raise InputError("dataset is an empty list; name at least one")
    return [load_collection(dataset, split, labels=labels) for dataset in several]
