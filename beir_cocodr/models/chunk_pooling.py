"""Whole documents as one vector: a document that is cut is read in pieces, which are averaged.

The first piece is what the encoder reads anyway, so a document that fits costs nothing more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import quantize_embeddings
from torch import Tensor

from beir_cocodr.errors import InputError, Limits
from beir_cocodr.io import Keywords

FIRST = "first"
MEAN = "mean"
FIRST_AND_MEAN = "first+mean"

#: Ways to make one vector of a document that is longer than the encoder's limit.
CHUNK_POOLINGS = (FIRST, MEAN, FIRST_AND_MEAN)

# Tokens by which a piece may begin earlier, to begin with a word.
_BACK = 16

_FULL_PRECISION = "float32"
_PRECISIONS = Limits(choices=(_FULL_PRECISION, "int8", "uint8", "binary", "ubinary"))

# What the host returns unless it is asked for the vectors of tokens, or for everything.
_ONE_VECTOR = "sentence_embedding"


@dataclass(frozen=True)
class DocumentPieces:
    """The pieces of (n,) texts, one after the other.

    Attributes:
        texts: The pieces; the first of each text is the whole text, which the encoder cuts.
        tokens: How many tokens each piece has.
        counts: How many pieces each text has.
    """

    texts: list[str]
    tokens: list[int]
    counts: list[int]

    @classmethod
    def of(
        cls, texts: Sequence[str], tokenizer: Any, length: int, prompt: str = ""
    ) -> "DocumentPieces":
        """Cut texts into pieces.

        Args:
            texts: (n,) texts without prompt.
            tokenizer: The encoder's tokenizer, which has to know where tokens lie in a text.
            length: Tokens that the encoder reads, with special tokens and prompt.
            prompt: What is put before every piece.

        Raises:
            InputError: The tokenizer does not know where tokens lie, or the prompt is too long.
        """
        if not getattr(tokenizer, "is_fast", False):
            raise InputError(
                "chunk pooling needs a tokenizer that knows where its tokens lie in a text, and "
                f"{type(tokenizer).__name__} does not; leave --chunk-pooling out"
            )
        before = tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]
        step = length - tokenizer.num_special_tokens_to_add() - len(before)
        if step < 1:
            raise InputError(
                f"a length of {length} tokens leaves no room for a text beside the prompt; raise "
                "--document-length"
            )
        pieces: list[str] = []
        tokens: list[int] = []
        counts: list[int] = []
        for text in texts:
            ranges = _piece_ranges(text, tokenizer, step)
            pieces.append(text)
            for start, end, _ in ranges[1:]:
                pieces.append(text[start:end])
            tokens += [count for _, _, count in ranges]
            counts.append(len(ranges))
        return cls(pieces, tokens, counts)

    def pool(self, vectors: Tensor, way: str) -> Tensor:
        """Return one vector of each text, (n, d), from the (P, d) vectors of all pieces.

        The mean weights pieces by their tokens. "first+mean" is the mean of both.
        """
        weights = torch.tensor(self.tokens, dtype=vectors.dtype, device=vectors.device)
        counts = torch.tensor(self.counts, device=vectors.device)
        text_rows = torch.arange(len(counts), device=vectors.device)
        rows = torch.repeat_interleave(text_rows, counts)
        sums = vectors.new_zeros(len(counts), vectors.shape[1])
        sums.index_add_(0, rows, vectors * weights[:, None])
        totals = vectors.new_zeros(len(counts))
        totals.index_add_(0, rows, weights)
        mean = sums / totals[:, None]
        if way == MEAN:
            return mean
        first_rows = counts.cumsum(0) - counts
        first = vectors[first_rows]
        return (first + mean) / 2


@dataclass(frozen=True)
class VectorForm:
    """The form in which vectors of documents are returned, which pieces must not have.

    The attributes are the arguments of the host's ``encode_document`` with the same names.
    """

    precision: str | None = _FULL_PRECISION
    convert_to_numpy: bool = True
    convert_to_tensor: bool = False
    normalize_embeddings: bool = False
    truncate_dim: int | None = None

    @classmethod
    def split(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple["VectorForm", Keywords]:
        """Return the form that arguments ask for, and the other arguments by name.

        Args:
            args: Arguments of the host's ``encode_document`` after the texts.
            kwargs: Its arguments by name.

        Raises:
            InputError: The precision is unknown, or another output than one vector is asked for.
        """
        names = list(signature(SentenceTransformer.encode_document).parameters)[2:]
        others = dict(zip(names, args, strict=False)) | dict(kwargs)
        output = others.pop("output_value", _ONE_VECTOR)
        if output != _ONE_VECTOR:
            raise InputError(
                f"output_value {output} has no meaning for a vector that is pooled from pieces of "
                "a document; leave it out, or load the encoder with chunk_pooling first"
            )
        of_form = [field.name for field in fields(cls) if field.name in others]
        form = cls(**{name: others.pop(name) for name in of_form})
        if form.precision is not None:
            _PRECISIONS.check("precision", form.precision)
        return form, others

    def of(self, vectors: Tensor, truncate_dim: int | None = None) -> Any:
        """Return (n, d) vectors in this form, by the steps of the host in their order.

        Args:
            vectors: The vectors.
            truncate_dim: Numbers of a vector that are kept where the form does not say it.
                Default: all.

        Raises:
            ValueError: There is one vector, and int8 or uint8 needs several to find its range.
        """
        kept = truncate_dim if self.truncate_dim is None else self.truncate_dim
        vectors = vectors[:, :kept]
        if self.normalize_embeddings:
            vectors = F.normalize(vectors, dim=-1)
        if self.precision not in (None, _FULL_PRECISION):
            precision: Any = self.precision
            vectors = torch.as_tensor(quantize_embeddings(vectors, precision=precision))
        if self.convert_to_tensor:
            return vectors
        return vectors.cpu().numpy() if self.convert_to_numpy else list(vectors)


def _piece_ranges(text: str, tokenizer: Any, step: int) -> list[tuple[int, int, int]]:
    """Return where the pieces of a text begin and end, and how many tokens they have."""
    encoded = tokenizer(
        text,
        add_special_tokens=False,
        return_offsets_mapping=True,
        truncation=False,
        verbose=False,
    )
    places = encoded["offset_mapping"]
    if len(places) <= step:
        return [(0, len(text), max(1, len(places)))]
    ranges = []
    begin = 0
    while begin < len(places):
        end = min(begin + step, len(places))
        first_character = places[begin][0]
        last_character = places[end - 1][1]
        ranges.append((first_character, last_character, end - begin))
        if end == len(places):
            break
        begin = _word_start(text, places, end, begin + 1)
    return ranges


def _word_start(
    text: str,
    places: Sequence[tuple[int, int]],
    token: int,
    least: int,
) -> int:
    """Return the token at which the word of a token begins, no further back than is allowed."""
    first = max(least, token - _BACK)
    for candidate in range(token, first - 1, -1):
        start = places[candidate][0]
        character_before = text[start - 1 : start]
        if character_before.isspace():
            return candidate
    return token
