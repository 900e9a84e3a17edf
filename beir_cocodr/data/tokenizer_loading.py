"""Loading a tokenizer that has a vocabulary."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer

from beir_cocodr.errors import InputError


def load_tokenizer(name: str) -> Any:
    """Load a tokenizer by a hub name or folder.

    For a model folder without tokenizer files the host makes one that knows special tokens only, and reads
    every text as unknown; that is refused here.

    Raises:
        InputError: there is no tokenizer, or it is such a one.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "unreadable")
        raise InputError(f"the tokenizer of {name!r} cannot be loaded ({reason})") from error
    if len(tokenizer) - len(tokenizer.all_special_ids) < 2:
        raise InputError(
            f"{name!r} has no vocabulary for its tokenizer; save the tokenizer's files beside the model"
        )
    return tokenizer
