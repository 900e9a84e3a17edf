"""The encoders that a study may use, by name; one whose weights are absent is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collecting.encoders import Encoder, Transformer, Variants


@dataclass(frozen=True)
class EncoderRow:
    """An encoder that can be had.

    Attributes:
        build: Makes it from the folder of its weights.
        derives: True if defects are derived from its vectors.
    """

    build: Callable[[Path], Encoder]
    derives: bool = True


def _minilm(folder: Path) -> Encoder:
    variants = Variants(layers=(4, 5), first_token=True, prefix=True)
    return Transformer("minilm", "minilm", variants)


def _mpnet(folder: Path) -> Encoder:
    return Transformer("mpnet", str(folder / "all-mpnet-base-v2"), Variants(first_token=True))


#: Encoders by name.
ENCODERS = {
    "minilm": EncoderRow(_minilm),
    "mpnet": EncoderRow(_mpnet),
}


def load_encoder(name: str, folder: Path) -> Encoder:
    """Load an encoder by its name.

    Args:
        name: A name of :data:`ENCODERS`.
        folder: The folder of weights.
    """
    return ENCODERS[name].build(folder)
