"""Loading a language model that can write queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from beir_cocodr.data.tokenizer_loading import load_tokenizer
from beir_cocodr.errors import InputError

Kind = Literal["seq2seq", "causal"]


@dataclass(frozen=True)
class GeneratorModel:
    """A language model in evaluation mode, its tokenizer, and which of the two kinds it is."""

    model: Any
    tokenizer: Any
    kind: Kind


def load_generator_model(name: str, device: str | None = None) -> GeneratorModel:
    """Load an encoder-decoder or a causal language model; in bfloat16 on a GPU, in float32 elsewhere.

    Args:
        name: a hub name or a folder.
        device: default: a GPU if there is one.

    Raises:
        InputError: there is no such model or device, it has no decoder or no tokenizer, or the
            decoder's weights are missing.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    try:
        kind = _kind(name, AutoConfig.from_pretrained(name))
        loader = AutoModelForSeq2SeqLM if kind == "seq2seq" else AutoModelForCausalLM
        tokenizer = load_tokenizer(name)
        model, info = loader.from_pretrained(name, dtype=dtype, output_loading_info=True)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "unreadable")
        raise InputError(
            f"generator {name!r} is neither 'lexical' nor a language model that can be loaded now ({reason})"
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"generator {name!r} lacks the weights of its decoder or its output layer "
            f"({len(missing)}, such as {missing[0]}); name a model that was trained to write"
        )
    try:
        model = model.eval().to(place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used; choose another --device") from error
    return GeneratorModel(model, _ready(tokenizer, kind), kind)


def _kind(name: str, config: Any) -> Kind:
    if config.is_encoder_decoder:
        return "seq2seq"
    known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # The host counts BERT and its like among the causal models, for the few that were trained as decoders.
    encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if known and not (encoder and not getattr(config, "is_decoder", False)):
        return "causal"
    raise InputError(
        f"generator {name!r} is a {config.model_type} without a decoder, which cannot write; name an "
        "encoder-decoder such as a doc2query T5, a causal language model, or 'lexical'"
    )


def _ready(tokenizer: Any, kind: Kind) -> Any:
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if kind == "causal":
        tokenizer.padding_side = "left"  # what is written has to follow the prompt at once
    return tokenizer
