"""How long texts are for a tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from beir_cocodr.data.words import count_units

Count = Callable[[Sequence[str]], list[int]]
"""The lengths of texts in tokens, what the tokenizer adds to every text included."""

#: The name of the tokenizer that needs no model: words, as :func:`count_units` counts them.
WORDS = "words"


@dataclass(frozen=True)
class TokenCounter:
    """A way to count, and a hash over whatever it depends on."""

    count: Count
    sha256: str


def word_counter() -> TokenCounter:
    """Counts words, without a model."""
    return TokenCounter(lambda texts: [count_units(text) for text in texts], WORDS)


def token_counter(tokenizer: Any) -> TokenCounter:
    """Counts the tokens of a ``transformers`` tokenizer, special tokens included."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = repr(sorted(tokenizer.get_vocab().items())) if backend is None else backend.to_str()

    def count(texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        encoded = tokenizer(
            list(texts), verbose=False, return_attention_mask=False, return_token_type_ids=False
        )
        return [len(ids) for ids in encoded["input_ids"]]

    return TokenCounter(count, hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest())


def named_counter(name: str) -> TokenCounter:
    """Counts by a name: ``words``, ``minilm``, a folder with a tokenizer, or a name on the hub.

    Raises:
        InputError: there is no such tokenizer, or it has no vocabulary.
    """
    if name == WORDS:
        return word_counter()
    # Imported here because counting words must not cost the seconds that transformers takes.
    from beir_cocodr.data.tokenizer_loading import load_tokenizer
    from beir_cocodr.models.loading import model_source

    return token_counter(load_tokenizer(model_source(name)))
