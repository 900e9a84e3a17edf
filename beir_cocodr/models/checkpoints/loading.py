"""Encoders from what a user calls a model, and hashes of what an encoder is."""

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
from beir_cocodr.errors import InputError, check_options_type, kind_of
from beir_cocodr.io import Keywords, json_sha256
from beir_cocodr.models.checkpoints.hub import find_file, reachable
from beir_cocodr.models.checkpoints.hub import model_source as model_source
from beir_cocodr.models.checkpoints.integrity import CROSS_ENCODER, check_loaded, loading
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.hybrid_encoder import HYBRID_CLASS, HybridEncoder
from beir_cocodr.models.mrl import HEAD_CLASS, MRL
from beir_cocodr.models.spec import ENDPOINT_PREFIX, EncoderOptions, ModelSpec, check_device
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
            package saved), ``endpoint:URL#MODEL``, or a loaded model: a ``COCODR`` is returned as
            it is, and of any other ``SentenceTransformer`` the modules are shared.
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
    check_options_type(options, EncoderOptions)
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
    if name.startswith(ENDPOINT_PREFIX):
        from beir_cocodr.models.endpoint_encoder import EndpointEncoder

        return EndpointEncoder(name, **options.overrides())
    source = model_source(name)
    hub = _hub_options(source)
    return _class_of(source, hub)(source, **options.overrides(), **hub)


def is_plain(name: str) -> bool:
    """Return true if a named encoder has no head of its own, which MRL and hybrid encoders have.

    One behind an endpoint has none, and its server is not asked.
    """
    if name.startswith(ENDPOINT_PREFIX):
        return True
    source = model_source(name)
    return _class_of(source, _hub_options(source)) is COCODR


def _hub_options(source: str) -> Keywords:
    if Path(source).is_dir():
        return {}
    return reachable(source, {})


def _class_of(source: str, hub: Keywords) -> type[COCODR]:
    """Return the class of a saved encoder, by the names of its modules."""
    modules_file = find_file(source, "modules.json", hub)
    if modules_file is None or not Path(modules_file).is_file():
        return COCODR
    # Bytes: a damaged file is named when the model is loaded.
    module_names = Path(modules_file).read_bytes()
    for head, kind in _KINDS.items():
        if head.encode() in module_names:
            return kind
    return COCODR


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
    """Load a cross-encoder that gives one score for a pair of texts.

    Args:
        name: a hub name or folder.
        device: runs the model.

    Returns:
        The model, and the function of :func:`~beir_cocodr.data.text.read_literally` for its
        tokenizer.

    Raises:
        InputError: If the model cannot be loaded whole, has no trained classifier, or gives several
            scores.
    """
    from sentence_transformers import CrossEncoder

    with loading(name, CROSS_ENCODER, "cross-encoder"):
        model = CrossEncoder(name, device=device)
        if model.num_labels != 1:
            raise InputError(
                f"cross-encoder {name!r} gives {model.num_labels} numbers per pair; it must give "
                "one score"
            )
        check_loaded(model, model.tokenizer, name, "cross-encoder")
        literally = read_literally(model.tokenizer, model.prompts.values())
        if not np.isfinite(model.predict([("a", "b")], show_progress_bar=False)).all():
            raise InputError(f"cross-encoder {name!r} gives scores that are NaN or infinite")
    return model, literally


def weights_sha256(model: Any) -> str:
    """Return a hash of all weights by name, which tells apart two models under one path."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        values = weight.detach().cpu().contiguous().flatten()
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


# Lengths are part of the text format, which every key has besides the fingerprint.
_LENGTHS = ("query_length", "document_length", "max_seq_length")


def fingerprint(model: Any) -> dict[str, str]:
    """Return hashes of all that the vectors of an encoder depend on besides its text format.

    Two encoders may share their weights and differ in pooling or in the number of attention heads,
    which the architecture covers. Device, name and path are not part of it; lengths and prompts
    belong to the text format.

    Returns:
        "weights", "tokenizer" and "architecture", sha256 in hexadecimal.

    Raises:
        InputError: If the model is no ``SentenceTransformer`` and cannot be hashed.
    """
    if not all(hasattr(model, name) for name in ("state_dict", "named_children", "tokenizer")):
        raise InputError(
            f"{type(model).__name__} has no weights and tokenizer that tell it apart from others; "
            "load the encoder with load_encoder"
        )
    modules = [_module_settings(module) for _, module in model.named_children()]
    return {
        "weights": weights_sha256(model),
        "tokenizer": tokenizer_sha256(model.tokenizer),
        "architecture": json_sha256(modules),
    }


def tokenizer_sha256(tokenizer: Any) -> str:
    """Return a hash of how a tokenizer reads any text, without truncation and padding."""
    rules = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(rules, "to_str"):
        return _rules_sha256(rules.to_str())
    vocabulary = []
    if hasattr(tokenizer, "get_vocab"):
        vocabulary = sorted(tokenizer.get_vocab().items())
    return json_sha256([type(tokenizer).__name__, vocabulary])


# A search asks several times as it starts, and reading 30,000 words takes a third of a second.
@lru_cache(maxsize=4)
def _rules_sha256(rules: str) -> str:
    content = json.loads(rules)
    # The host sets these two anew for every batch.
    content.pop("truncation", None)
    content.pop("padding", None)
    return json_sha256(content)


def _module_settings(module: Any) -> list[object]:
    """Return the class of a module, its settings, and its configuration."""
    settings = {}
    if hasattr(module, "get_config_dict"):
        settings = module.get_config_dict()
    known_settings = {
        name: value
        for name, value in settings.items()
        if name not in _LENGTHS and value is not None
    }
    config: Any = getattr(module, "config", None)
    # Only the differences from the defaults: another version of the host may have more settings.
    content = {}
    if hasattr(config, "to_diff_dict"):
        content = config.to_diff_dict()
    known_content = {
        name: value
        for name, value in content.items()
        if name not in INCIDENTAL and not name.startswith("_")
    }
    return [type(module).__name__, known_settings, known_content]
