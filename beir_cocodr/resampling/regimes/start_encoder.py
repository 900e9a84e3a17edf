"""The transformer of any dense encoder, for architectures that put something else on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import set_seed

from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.resampling.regimes.recipe import Recipe


def save_start(recipe: Recipe, seed: int, folder: Path) -> TextFormat:
    """Save transformer and tokenizer of the recipe's start as a bare folder.

    Pooling, similarity and prompts of the start are the dense encoder's and stay behind.

    Args:
        recipe: with start and lengths.
        seed: of layers that the start lacks.
        folder: for the transformer.

    Returns:
        Separator and lengths in force.

    Raises:
        InputError: there is no such start.
    """
    set_seed(seed)
    model = load_encoder(recipe.start, **recipe.encoder)
    transformer: Any = model.transformers_model
    transformer.save_pretrained(str(folder))
    model.tokenizer.save_pretrained(str(folder))
    found = model.text_format
    return TextFormat(
        title_separator=found.title_separator,
        query_length=found.query_length,
        document_length=found.document_length,
    )
