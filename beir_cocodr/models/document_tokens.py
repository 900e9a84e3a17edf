"""The tokens of documents, which are kept so that no document is tokenised twice.

To make batches of documents of similar length, all documents are tokenised before the first is
encoded. The host would tokenise each batch again, while the device waits.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from beir_cocodr.arrays import Ints
from beir_cocodr.io import Keywords

# Features of plain texts. A host that adds others has to make them itself.
_KNOWN = {"input_ids", "attention_mask", "token_type_ids", "modality", "prompt_length"}

_DIGEST_BYTES = 16


class DocumentTokens:
    """The tokens of documents, by their texts.

    Args:
        tokenizer: The tokenizer that made them.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Begin without documents."""
        self._pads_left = getattr(tokenizer, "padding_side", "right") == "left"
        self._padding = getattr(tokenizer, "pad_token_id", None) or 0
        self._tokens: dict[bytes, Any] = {}

    def add(self, texts: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """Add (n,) texts without prompt, and the tokens that the encoder reads of each."""
        for text, of_text in zip(texts, tokens, strict=True):
            self._tokens[_digest(text)] = np.array(of_text, dtype=np.int32)

    def features(
        self,
        texts: Sequence[Any],
        of_first: Callable[[], Keywords],
    ) -> Keywords | None:
        """Return the features of (b,) texts as the host makes them.

        Args:
            texts: Texts of documents without prompt.
            of_first: Returns the host's features of the first text alone. They show whether the
                host makes features of other kinds, or reads other tokens.

        Returns:
            The features; None if a text is unknown, or if only the host can make them.
        """
        tokens = []
        for text in texts:
            of_text = self._tokens.get(_digest(text)) if isinstance(text, str) else None
            if of_text is None:
                return None
            tokens.append(of_text)
        first = dict(of_first())
        if not _are_plain(first, tokens[0]):
            return None
        shape = len(tokens), max(map(len, tokens))
        input_ids = np.full(shape, self._padding, np.int64)
        mask = np.zeros(shape, np.int64)
        for row, of_text in enumerate(tokens):
            start = shape[1] - len(of_text) if self._pads_left else 0
            columns = slice(start, start + len(of_text))
            input_ids[row, columns] = of_text
            mask[row, columns] = 1
        first["input_ids"] = torch.from_numpy(input_ids)
        first["attention_mask"] = torch.from_numpy(mask)
        if "token_type_ids" in first:
            first["token_type_ids"] = torch.zeros(shape, dtype=torch.int64)
        return first


def _are_plain(features: Keywords, tokens: Ints) -> bool:
    """Say whether the host's features of a single text are its tokens and nothing else."""
    if not {"input_ids", "attention_mask"} <= features.keys() <= _KNOWN:
        return False
    types = features.get("token_type_ids")
    return (
        features["input_ids"].tolist() == [tokens.tolist()]
        and bool(features["attention_mask"].all())
        and (types is None or not bool(types.any()))
    )


def _digest(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
