"""Encoders made of a bare transformer, whose pooling its files do not say."""

import logging
from typing import Any

from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from beir_cocodr.errors import InputError, explained
from beir_cocodr.io import Keywords
from beir_cocodr.models.checkpoints.hub import places_in
from beir_cocodr.models.checkpoints.known_checkpoints import (
    POOLINGS,
    KnownCheckpoint,
    known_checkpoint,
)
from beir_cocodr.models.spec import suggestion

log = logging.getLogger(__name__)

# Who says how a checkpoint's tokens are pooled, if the table of known ones does not.
_USER = "the user"
_NOBODY = "nobody"


def bare_encoder(name: str, pooling: str | None, kwargs: Keywords) -> Keywords:
    """Return the constructor arguments of pooling and dot product around a transformer.

    Args:
        name: A folder or a hub name.
        pooling: "cls", "mean", or None for what is known of the checkpoint.
        kwargs: Arguments of the host's constructor.

    Raises:
        InputError: There is no transformer of this name, or the pooling is none of ours.
    """
    kwargs = dict(kwargs)
    checkpoint = _checkpoint(name, pooling)
    shared = places_in(kwargs)
    shared.pop("cache_folder", None)
    if "trust_remote_code" in kwargs:
        shared["trust_remote_code"] = kwargs["trust_remote_code"]
    settings: Keywords = {
        "query_length": checkpoint.query_length,
        "document_length": checkpoint.document_length,
    }
    for part in ("model_kwargs", "processor_kwargs", "config_kwargs"):
        settings[part] = shared | (kwargs.pop(part, None) or {})
    problem = (
        f"model {name!r} is neither a folder with a transformer nor a hub name that can be loaded "
        "now"
    )
    way_out = suggestion(name).removeprefix("; ")
    way_out = way_out or "name a folder, or minilm, which needs no hub"
    with explained(problem, way_out, OSError, ValueError):
        transformer = Transformer(name, cache_dir=kwargs.get("cache_folder"), **settings)
    _say_pooling(name, checkpoint)
    prompts = {"query": checkpoint.query_prompt, "document": checkpoint.document_prompt}
    pooled = Pooling(
        transformer.get_embedding_dimension(),
        checkpoint.pooling,
        include_prompt=not any(prompts.values()),
    )
    if checkpoint.fills_queries:
        _fill_queries(transformer, checkpoint.query_length)
    known_prompts = {task: prompt for task, prompt in prompts.items() if prompt}
    return kwargs | {
        "modules": [transformer, pooled],
        "similarity_fn_name": kwargs.pop("similarity_fn_name", None) or "dot",
        "prompts": known_prompts | (kwargs.get("prompts") or {}),
    }


def _checkpoint(name: str, pooling: str | None) -> KnownCheckpoint:
    """Return how a bare transformer encodes, by the user, by the table, or by default."""
    if pooling is None:
        return known_checkpoint(name) or KnownCheckpoint(_NOBODY)
    if pooling not in POOLINGS:
        raise InputError(f"pooling is {pooling!r}; give {' or '.join(POOLINGS)}")
    return KnownCheckpoint(_USER, pooling)


def _say_pooling(name: str, checkpoint: KnownCheckpoint) -> None:
    """Say how the tokens of a loaded transformer are pooled, and warn if nobody says it."""
    if checkpoint.source == _USER:
        return
    if checkpoint.source == _NOBODY:
        log.warning(
            "model %s does not say how its tokens are pooled (it has no modules.json): its [CLS] "
            "vector is used, with dot product; if its authors average tokens, set pooling to mean",
            name,
        )
        return
    log.info("model %s: pooled by %s, as in %s", name, checkpoint.pooling, checkpoint.source)


def _fill_queries(transformer: Transformer, length: int) -> None:
    """Fill queries with [MASK] to a length, and end no text with [SEP]."""
    tokenizer: Any = transformer.tokenizer
    rules = tokenizer.backend_tokenizer
    first = (tokenizer.cls_token, tokenizer.cls_token_id)
    rules.post_processor = TemplateProcessing(
        single=f"{tokenizer.cls_token} $A", special_tokens=[first]
    )
    # BERT's own class would add [SEP] again when it is loaded.
    transformer.processor = PreTrainedTokenizerFast(
        tokenizer_object=rules,
        model_max_length=tokenizer.model_max_length,
        **tokenizer.special_tokens_map,
    )
    transformer.query_expansion = {"strategy": "fixed", "attend": True, "length": length}
