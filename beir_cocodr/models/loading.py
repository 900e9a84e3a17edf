"""The one place that turns a model's name into an encoder, and an encoder into hashes of what it
is.
"""

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from beir_cocodr.data.text import read_literally
from beir_cocodr.errors import InputError, kind_of
from beir_cocodr.io import json_sha256
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.hub import find_file, reachable
from beir_cocodr.models.hub import model_source as model_source
from beir_cocodr.models.hybrid_encoder import HYBRID_CLASS, HybridEncoder
from beir_cocodr.models.integrity import CROSS_ENCODER, check_loaded, loading
from beir_cocodr.models.mrl import HEAD_CLASS, MRL
from beir_cocodr.models.spec import EncoderOptions, ModelSpec, check_device
from beir_cocodr.provenance import INCIDENTAL

# The class of a saved model's head to the model's; all others are plain.
_KINDS: dict[str, type[COCODR]] = {HEAD_CLASS: MRL, HYBRID_CLASS: HybridEncoder}

# The methods by which a sentence-transformers model encodes.
_ENCODING_METHODS = ("encode", "encode_query", "encode_document")


def load_encoder(
    model: str | Path | ModelSpec | SentenceTransformer, options: EncoderOptions = EncoderOptions()
) -> COCODR:
    """Load a dense encoder.

    Args:
        model: an alias such as "minilm", a hub name, a folder (also of what the commands of this
            package saved), or a loaded model: a ``COCODR`` is returned as it is, and of any other
            ``SentenceTransformer`` the modules are shared.
        options: how it is loaded; they take precedence over the model's own settings.

    Returns:
        The encoder: a ``COCODR``, or its subclass ``MRL`` or ``HybridEncoder``.

    Raises:
        InputError: If the model cannot be found or read, compares by another similarity than cosine
            or dot product, or is an object that is no ``SentenceTransformer``.

    Example:
        >>> from beir_cocodr import load_encoder
        >>> model = load_encoder("minilm")
        >>> queries = model.encode_query(["how do I sort an array?"])
        >>> texts = ["Draw a histogram.", "Return a sorted copy of an array."]
        >>> int(model.similarity(queries, model.encode_document(texts)).argmax())
        1
    """
    check_device(options.device)
    if isinstance(model, ModelSpec):
        model = model.encoder if model.loaded is None else model.loaded
    if isinstance(model, str | Path):
        encoder = _load_by_name(str(model), options)
    else:
        encoder = _adopt(model, options)
    if encoder.similarity_fn_name not in ("cosine", "dot"):
        name = repr(str(model)) if isinstance(model, str | Path) else kind_of(model)
        raise InputError(
            f"model {name} compares by {encoder.similarity_fn_name}; training and search need "
            "cosine or dot product: save it with another similarity_fn_name"
        )
    return encoder


def _load_by_name(name: str, options: EncoderOptions) -> COCODR:
    source = model_source(name)
    place = {} if Path(source).is_dir() else reachable(source, {})
    modules_file = find_file(source, "modules.json", place)
    module_names = b""
    if modules_file is not None and Path(modules_file).is_file():
        module_names = Path(modules_file).read_bytes()
    kind = next((kind for head, kind in _KINDS.items() if head.encode() in module_names), COCODR)
    return kind(source, **options.overrides(), **place)


def _adopt(model: object, options: EncoderOptions) -> COCODR:
    """Return a loaded model as an encoder of this package, with the same modules."""
    if not isinstance(model, SentenceTransformer):
        raise InputError(
            f"model is {kind_of(model)}; give a name, a folder or a loaded SentenceTransformer"
        )
    settings = options.describe()
    if settings:
        raise InputError(
            f"{', '.join(settings)} apply to models that are loaded by name, and model is "
            f"{kind_of(model)}; set them on the model"
        )
    if isinstance(model, COCODR):
        return model
    classes = {f"{type(module).__module__}.{type(module).__qualname__}" for module in model}
    kind = next((kind for head, kind in _KINDS.items() if head in classes), COCODR)
    return kind(
        modules=list(model),
        device=str(model.device),
        prompts=dict(model.prompts),
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
    )


def encodes_as_host(model: object) -> bool:
    """Return true for a ``SentenceTransformer`` that encodes by the host's own methods.

    Such a model is searched with in batches of documents of equal length; any other object is asked
    by its own methods.
    """
    if isinstance(model, COCODR):
        return True
    if not isinstance(model, SentenceTransformer):
        return False
    return all(
        getattr(type(model), name) is getattr(SentenceTransformer, name)
        for name in _ENCODING_METHODS
    )


def load_cross_encoder(name: str, device: str | None = None) -> tuple[Any, Callable[[str], str]]:
    """Load a cross-encoder that gives one score a pair, and what :func:`read_literally` makes of
    its tokenizer; an InputError: it cannot be loaded whole, has no trained classifier, or several
    scores.
    """
    from sentence_transformers import CrossEncoder

    with loading(name, CROSS_ENCODER, "cross-encoder"):
        model = CrossEncoder(name, device=device)
        if model.num_labels != 1:
            raise InputError(
                f"cross-encoder {name!r} gives {model.num_labels} numbers a pair; it has to give one score"
            )
        check_loaded(model, model.tokenizer, name, "cross-encoder")
        literally = read_literally(model.tokenizer, model.prompts.values())
        if not np.isfinite(model.predict([("a", "b")], show_progress_bar=False)).all():
            raise InputError(f"cross-encoder {name!r} gives scores that are NaN or infinite")
    return model, literally


def weights_sha256(model: Any) -> str:
    """A hash over all weights by name, which tells two models under one path apart."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


# Lengths stand in the text format, which every key has beside the fingerprint.
_LENGTHS = ("query_length", "document_length", "max_seq_length")


def fingerprint(model: Any) -> dict[str, str]:
    """``weights``, ``tokenizer`` and ``architecture`` of an encoder, sha256 in hexadecimal: all its
    vectors depend on.

    Two encoders may share their weights and differ in pooling or in the number of attention heads:
    those are the third hash. Device, name and path count in none, and lengths and prompts are left
    to the text format. An InputError: the model is no ``SentenceTransformer``, so that there is
    nothing to hash.
    """
    if not all(hasattr(model, name) for name in ("state_dict", "named_children", "tokenizer")):
        raise InputError(
            f"{type(model).__name__} has no weights and tokenizer that could be told apart from others'; "
            "load the encoder with load_encoder"
        )
    return {
        "weights": weights_sha256(model),
        "tokenizer": tokenizer_sha256(model.tokenizer),
        "architecture": json_sha256([_module(module) for _, module in model.named_children()]),
    }


def tokenizer_sha256(tokenizer: Any) -> str:
    """A hash over how a tokenizer reads any text, whatever it is cut or padded to."""
    rules = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(rules, "to_str"):
        return _rules_sha256(rules.to_str())
    vocabulary = sorted(tokenizer.get_vocab().items()) if hasattr(tokenizer, "get_vocab") else []
    return json_sha256([type(tokenizer).__name__, vocabulary])


@lru_cache(maxsize=4)
def _rules_sha256(rules: str) -> str:
    """A search asks several times as it starts, and a vocabulary of 30,000 words takes a third of a
    second to read.
    """
    # The host sets these two anew for every batch.
    return json_sha256(
        {k: part for k, part in json.loads(rules).items() if k not in ("truncation", "padding")}
    )


def _module(module: Any) -> list[Any]:
    settings = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
    config: Any = getattr(module, "config", None)
    # Only what differs from the defaults of its kind: another version of the host may know more
    # settings.
    content = config.to_diff_dict() if hasattr(config, "to_diff_dict") else {}
    return [
        type(module).__name__,
        {
            name: value
            for name, value in settings.items()
            if name not in _LENGTHS and value is not None
        },
        {k: v for k, v in content.items() if k not in INCIDENTAL and not k.startswith("_")},
    ]
