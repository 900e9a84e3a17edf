"""How many tokens of text fit into a training sequence."""

from __future__ import annotations

from typing import Any

from beir_cocodr.errors import InputError


def text_room(model: Any, max_length: int) -> int:
    """Tokens of a document that fit into ``max_length`` beside special tokens and prompt, at least 1.

    Raises:
        InputError: the encoder cannot read sequences of that length.
    """
    tokenizer = model.tokenizer
    positions = getattr(model.transformers_model.config, "max_position_embeddings", None)
    limit = min(positions or max_length, tokenizer.model_max_length)
    if max_length > limit:
        raise InputError(
            f"max_length {max_length} is more than the {limit} tokens that this encoder can read"
        )
    prompt = tokenizer(model.text_format.document_prompt, add_special_tokens=False)["input_ids"]
    return max(1, max_length - int(tokenizer.num_special_tokens_to_add()) - len(prompt))
