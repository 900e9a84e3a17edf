"""Names of code in a model's settings, and the only ones that a host may import or call.

The settings of a model are JSON files that anyone may have written. Hosts import some names that
they hold, and call them. All such names, and the rule for each, are in this module:

- modules (``modules.json``, the ``types`` of a router): module classes of sentence-transformers;
- activations of cross-encoders and dense layers: classes of layers in ``torch.nn``;
- tokenizers and processors (``tokenizer_class`` and others): those of transformers, by the form of
  their names, and word tokenizers of sentence-transformers;
- methods of a backbone (``modality_config``): ``forward`` and ``get_*_features``;
- kernels of attention and of experts: those that transformers has itself, none of the hub;
- code that a model brings along (``auto_map``) or a library for its adapter: none.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.modules import Module
from sentence_transformers.sentence_transformer.modules.tokenizer import WordTokenizer
from sentence_transformers.util import import_from_string

from beir_cocodr.errors import InputError
from beir_cocodr.io import parse_json

_HOST = "sentence_transformers."

#: Classes of other packages that sentence-transformers replaces by its own without an import.
_REPLACED = ("pylate.models.Dense.Dense",)

# Files of a tokenizer that hold no names of code, and may be large.
_DATA = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")

_METHOD = re.compile(r"forward|get_[a-z]+_features")
# The names of kernels on the hub have a slash.
_KERNEL = re.compile(r"[\w|]+")
_TOKENIZER = re.compile(r"\w*(Tokenizer|Backend)\w*")
_PROCESSOR = re.compile(r"\w*(Processor|Extractor|Tokenizer)\w*")


def _is_activation(name: object) -> bool:
    """Return whether a name is a layer of torch.nn, or a key of transformers' own table."""
    if not isinstance(name, str):
        return name is None
    last = name.rpartition(".")[2]
    if last == name:
        return True
    layer = getattr(torch.nn, last, None)
    if not isinstance(layer, type) or not issubclass(layer, torch.nn.Module):
        return False
    return name in (f"torch.nn.{last}", f"{layer.__module__}.{last}")


def _host_class(name: str) -> object:
    try:
        if name.startswith(_HOST):
            return import_from_string(name)
        return None
    except ImportError:
        return None


def _is_host_class(name: str, base: type) -> bool:
    """Return whether sentence-transformers defines a class of this name below ``base``."""
    host_class = _host_class(name)
    if not isinstance(host_class, type) or not issubclass(host_class, base):
        return False
    return host_class.__module__.startswith(_HOST)


def is_module(name: object) -> bool:
    """Return whether a name in ``modules.json`` or in a router is a module of the host."""
    if not isinstance(name, str):
        return False
    return name in _REPLACED or _is_host_class(name, Module)


def _is_tokenizer(name: object) -> bool:
    if not isinstance(name, str):
        return name is None
    if "." in name:
        return _is_host_class(name, WordTokenizer)
    return _TOKENIZER.fullmatch(name) is not None


def _is_processor(name: object) -> bool:
    return name is None or _PROCESSOR.fullmatch(str(name)) is not None


def _are_methods(modalities: object) -> bool:
    if not isinstance(modalities, Mapping):
        return modalities is None
    for settings in modalities.values():
        method: object = "forward"
        if isinstance(settings, dict):
            method = settings.get("method")
        if not isinstance(method, str) or not _METHOD.fullmatch(method):
            return False
    return True


def _are_kernels(kernels: object) -> bool:
    names = kernels.values() if isinstance(kernels, Mapping) else [kernels]
    written = [str(name) for name in names if name is not None]
    return all(_KERNEL.fullmatch(name) for name in written)


def _is_absent(value: object) -> bool:
    return value is None


# Keys, at any depth of a file: the check of the value, and which values are allowed.
_RULES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "activation_fn": (_is_activation, "a layer of torch.nn"),
    "activation_function": (_is_activation, "a layer of torch.nn"),
    "sbert_ce_default_activation_function": (_is_activation, "a layer of torch.nn"),
    "tokenizer_class": (_is_tokenizer, "a tokenizer of the hosts"),
    "processor_class": (_is_processor, "a processor of transformers"),
    "image_processor_type": (_is_processor, "a processor of transformers"),
    "feature_extractor_type": (_is_processor, "a processor of transformers"),
    "video_processor_type": (_is_processor, "a processor of transformers"),
    "modality_config": (_are_methods, "a mapping to forward or get_*_features"),
    "attn_implementation": (_are_kernels, "an attention of transformers itself"),
    "_attn_implementation": (_are_kernels, "an attention of transformers itself"),
    "experts_implementation": (_are_kernels, "an implementation of transformers itself"),
    "_experts_implementation": (_are_kernels, "an implementation of transformers itself"),
    "auto_map": (_is_absent, "absent, as the code of a model is never run"),
    "auto_mapping": (_is_absent, "absent, as the code of an adapter is never run"),
}


def check_named_code(folder: Path) -> None:
    """Check the names of code in all settings of a folder, apart from those of its modules.

    Raises:
        InputError: a file names code that is not allowed; nothing was imported or called.
    """
    for file in sorted(folder.glob("*.json")):
        if file.name in _DATA:
            continue
        try:
            content = parse_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # the host that needs the file reports it
            continue
        for key, value in _items(content):
            is_allowed, wanted = _RULES.get(key, (None, ""))
            if is_allowed is not None and not is_allowed(value):
                raise InputError(
                    f"{file}: {key} is {value!r:.200}, not {wanted}; what a model names is not "
                    "run; take another model"
                )


def _items(content: object) -> Iterator[tuple[str, Any]]:
    """Iterate over the keys and values of all objects in parsed JSON, at any depth."""
    remaining = [content]
    while remaining:
        part = remaining.pop()
        if isinstance(part, dict):
            yield from part.items()
            remaining.extend(part.values())
        elif isinstance(part, list):
            remaining.extend(part)
