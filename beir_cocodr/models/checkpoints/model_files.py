"""The settings in a model's folder, checked before a host reads them.

Hosts pass over settings of wrong types and over files that are missing, and load another model than
the folder's. Here that is an error that names the file and the fault.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import transformers
from sentence_transformers.util import SimilarityFunction

from beir_cocodr.errors import InputError, explained
from beir_cocodr.io import parse_json
from beir_cocodr.models.checkpoints.named_code import check_named_code, is_module
from beir_cocodr.provenance import RECORD_FILE, checksums_of, modules_of

# Settings by name to the types that a value may have, or the texts that it may be.
_Types = Mapping[str, tuple[type | str, ...]]

# The settings that are checked, by file. A file may be missing, and may have other settings.
_FILES: Mapping[str, _Types] = {
    "config.json": {
        "model_type": (str,),
        "architectures": (list,),
    },
    "config_sentence_transformers.json": {
        "prompts": (dict,),
        "default_prompt_name": (str,),
        "similarity_fn_name": (str,),
        "model_type": (str,),
    },
    "sentence_bert_config.json": {
        "max_seq_length": (int,),
        "query_length": (int,),
        "document_length": (int,),
        "do_lower_case": (bool,),
    },
    "tokenizer.json": {
        "model": (dict,),
        "added_tokens": (list,),
    },
    "tokenizer_config.json": {
        "tokenizer_class": (str,),
        "do_lower_case": (bool,),
    },
    "special_tokens_map.json": {},
    "added_tokens.json": {},
    "vocab.json": {},
    "generation_config.json": {
        "bos_token_id": (int, list),
        "eos_token_id": (int, list),
        "pad_token_id": (int, list),
        "decoder_start_token_id": (int, list),
    },
    "model.safetensors.index.json": {
        "weight_map": (dict,),
    },
    "pytorch_model.bin.index.json": {
        "weight_map": (dict,),
    },
    "text_format.json": {
        "title_separator": (str,),
        "chunk_pooling": ("first", "mean", "first+mean"),
    },
}

# The setting that may not be missing from its file.
_REQUIRED = ("text_format.json", "title_separator")

_VECTOR_NAMES: _Types = {
    "module_input_name": (str,),
    "module_output_name": (str,),
}

# The settings in the config.json of a module, by the module's class.
_MODULES: Mapping[str, _Types] = {
    "Pooling": {
        "embedding_dimension": (int,),
        "word_embedding_dimension": (int,),
        "include_prompt": (bool,),
    },
    "Normalize": _VECTOR_NAMES,
    "Dense": {
        "in_features": (int,),
        "out_features": (int,),
        "bias": (bool,),
        **_VECTOR_NAMES,
    },
    "MRLHead": {
        "hidden_size": (int,),
        "k": (int,),
        "beta": (int, float),
        "pooling": ("cls", "mean"),
        "normalize_mean": (bool,),
        "formula": ("exact", "paper"),
        "variance_floor": (int, float),
    },
}

# Vectors that modules write, by their names in the features.
_VECTORS = ("sentence_embedding", "token_embeddings")

# Modules of this package; its own encoders hand their classes over, and no host imports them.
_PACKAGE = "beir_cocodr."

# Files in which a router names its modules.
_ROUTERS = ("router_config.json", "config.json")

# Settings that are sizes, and more than any model has: a host would fill all memory, or never end,
# before it compares shapes. The first pattern that a name has counts.
_MOST = {
    re.compile("layers|heads|experts|groups"): 10_000,
    re.compile("size|dim|positions|embeddings|labels|channels|classes"): 10_000_000,
}

# Settings that are the tokens that texts are cut to.
_LENGTHS = ("max_seq_length", "query_length", "document_length")

_ACTIVATIONS = ("activation_function", "activation_fn")

#: The end of a message about a damaged model.
DAMAGED = "the model is damaged, save or download it again"


def check_files(folder: Path, known: Collection[str] = ()) -> None:
    """Check that a model's settings are JSON of the right types, and name no code of their own.

    Args:
        folder: The model's folder.
        known: Classes of modules that the caller has, beside those of sentence-transformers.

    Raises:
        InputError: A file has a fault; nothing that it names was imported or called.
    """
    _check_readable(folder)
    file = folder / "modules.json"
    modules = []
    if os.path.lexists(file):
        modules = _read(file, list)
    check_named_code(folder)
    kinds = {"": ""}
    for module in modules:
        _check_is_module(file, module)
        _check_module(
            folder=folder,
            file=file,
            path=module["path"],
            kind=module["type"],
            known=known,
        )
        kinds[module["path"]] = module["type"].rpartition(".")[2]
    _check_complete(folder, modules)
    for path, kind in kinds.items():
        for name in _FILES:
            settings_file = folder / path / name
            # Hosts pass over what is no file, such as a broken link.
            if os.path.lexists(settings_file):
                is_module_config = kind in _MODULES and name == "config.json"
                types = _MODULES[kind] if is_module_config else _FILES[name]
                _check_settings(settings_file, types)
    _check_record(folder)


def _check_readable(folder: Path) -> None:
    """Check that the files of a model may be read: hosts take the others for missing."""
    with explained(f"{folder} cannot be read", "give yourself the permission", PermissionError):
        paths = list(folder.iterdir())
    for path in paths:
        with explained(f"{path} cannot be read", "give yourself the permission", PermissionError):
            if path.is_file():
                path.open("rb").close()
            elif path.name[:1].isdigit() and path.is_dir():
                list(path.iterdir())


def _check_is_module(file: Path, module: Any) -> None:
    """Check that an entry of ``modules.json`` has a path and a type."""
    if isinstance(module, dict):
        values = (module.get("path"), module.get("type"))
        if all(isinstance(value, str) for value in values):
            return
    raise InputError(f"{file}: {module!r} is not a module with a path and a type; {DAMAGED}")


def _check_module(
    folder: Path,
    file: Path,
    path: str,
    kind: str,
    known: Collection[str],
) -> None:
    """Check a module that a file names, and those that it names as a router.

    Args:
        folder: The model's folder.
        file: The file that names the module.
        path: The module's folder, below the model's.
        kind: The module's class.
        known: Classes that the caller has.
    """
    if not (is_module(kind) or kind in known or kind.startswith(_PACKAGE)):
        raise InputError(
            f"{file} names {kind!r}, which is not a module of sentence-transformers; the code of "
            "a model is never run, take another model"
        )
    inner = PurePosixPath(path)
    if inner.is_absolute() or ".." in inner.parts:
        raise InputError(f"{file} leads out of the folder, to {path!r}; {DAMAGED}")
    check_named_code(folder / path)
    for name in _ROUTERS:
        router = folder / path / name
        if not os.path.lexists(router):
            continue
        types = _read(router, dict).get("types")
        if not isinstance(types, dict):
            continue
        for part, part_kind in types.items():
            if inner / part == inner:
                raise InputError(f"{router} names itself as its module; {DAMAGED}")
            _check_module(
                folder=folder,
                file=router,
                path=str(inner / part),
                kind=str(part_kind),
                known=known,
            )


def _check_complete(folder: Path, modules: Sequence[Mapping[str, Any]]) -> None:
    """Check that no module was lost: the others may form a model with other vectors."""
    if not modules:
        return
    file = folder / "modules.json"
    numbers = [module.get("idx", row) for row, module in enumerate(modules)]
    if numbers != list(range(len(modules))):
        raise InputError(
            f"{file}: the numbers of the modules (idx) show that one is missing; {DAMAGED}"
        )
    paths = {str(PurePosixPath(module["path"])) for module in modules}
    for config in sorted(folder.glob("[0-9]*_*/config.json")):
        name = config.parent.name
        if name not in paths:
            raise InputError(
                f"{file} does not name the module in {config.parent}; add it, or move {name} away"
            )
    for module in modules:
        config = folder / module["path"] / "config.json"
        if module["type"].endswith(".Normalize") and config.is_file():
            _check_normalize(config)


def _check_normalize(config: Path) -> None:
    """Check that a Normalize module writes the vectors that it reads."""
    names = _read(config, dict)
    read = names.get("module_input_name", "sentence_embedding")
    written = names.get("module_output_name", read)
    if read not in _VECTORS or written != read:
        raise InputError(
            f"{config} names vectors that no module makes, or writes its result to other vectors "
            f"than it reads; {DAMAGED}"
        )


def _check_record(folder: Path) -> None:
    """Check modules, weights and vocabularies against the record of a model that was trained here.

    Reading the weights for it warms the system's cache for the host that reads them next.
    """
    try:
        record = parse_json((folder / RECORD_FILE).read_text(encoding="utf-8"))
        modules = dict(record.get("modules") or {})
        checksums = dict(record.get("checksums") or {})
    except (OSError, ValueError, TypeError, AttributeError):
        # There is no record, or it is not ours; what reads it for its content refuses it.
        return
    _compare(folder, "modules", modules, modules_of(folder))
    # A host that loads from the hub downloads the weights only after this check.
    is_downloaded = folder.parent.name == "snapshots"
    with explained(f"{folder} cannot be read", "make its files readable", OSError):
        present = checksums_of(folder)
    expected = [name for name in checksums if name in present or not is_downloaded]
    _compare(folder, "checksums", {name: checksums[name] for name in expected}, present)


def _compare(
    folder: Path,
    field: str,
    recorded: Mapping[str, object],
    present: Mapping[str, str],
) -> None:
    """Compare files by their hashes in the record and now, by name.

    Args:
        folder: The model's folder.
        field: The field of the record that has the hashes.
        recorded: The hashes in the record.
        present: The hashes now.

    Raises:
        InputError: A file is missing or has changed.
    """
    for name, checksum in recorded.items():
        if present.get(name) != checksum:
            change = "was changed" if name in present else "is missing"
            raise InputError(
                f"{folder / name} {change} since the model was written, by {RECORD_FILE}; restore "
                f"it, or take its line out of {field} there if the change is meant"
            )


def _read(file: Path, kind: type) -> Any:
    """Read a JSON file whose content is of a type."""
    with explained(f"{file} cannot be read as JSON", DAMAGED, OSError, ValueError):
        content = parse_json(file.read_text(encoding="utf-8"))
    if type(content) is not kind:
        raise InputError(
            f"{file} holds a {type(content).__name__}, not a {kind.__name__}; {DAMAGED}"
        )
    return content


def _check_settings(file: Path, types: _Types) -> None:
    """Check the settings of a file."""
    content = _read(file, dict)
    if content.get("quantization_config") is not None:
        raise InputError(
            f"{file} says that the weights are quantized (quantization_config), and they would be "
            "read as if they were not; take the model as it was before"
        )
    _check_types(file, content, types)
    for name, prompt in dict(content.get("prompts") or {}).items():
        if not isinstance(prompt, str | None):
            raise InputError(f"{file}: prompt {name!r} is {prompt!r:.80}, not a text; {DAMAGED}")
    similarity = content.get("similarity_fn_name")
    if similarity is not None and similarity not in SimilarityFunction.possible_values():
        raise InputError(
            f"{file}: similarity_fn_name {similarity!r} is unknown, and would become cosine; "
            f"{DAMAGED}"
        )
    for name in _ACTIVATIONS:
        function = str(content.get(name))
        if "." in function and not function.startswith("torch."):
            raise InputError(
                f"{file} names a function outside torch, {function!r}, which is never run; take "
                "another model"
            )
    _check_lengths(file, content)
    if file.name == "config.json":
        _check_architecture(file, content)
        _check_sizes(file, content)
    if file.name == "tokenizer_config.json":
        _check_whole(file, "model_max_length", content.get("model_max_length"))


def _check_types(
    file: Path,
    content: Mapping[str, object],
    types: _Types,
) -> None:
    """Check the types of settings; those that are missing are checked in complete files alone."""
    expected = dict(types)
    for name in content:
        if name.startswith("pooling_mode_"):
            expected[name] = (bool,)
    for name, allowed in expected.items():
        value = content.get(name)
        if value is None and (file.name, name) != _REQUIRED:
            continue
        if type(value) not in allowed and value not in allowed:
            words = [kind if isinstance(kind, str) else kind.__name__ for kind in allowed]
            wanted = " or ".join(words)
            raise InputError(f"{file}: {name} is {value!r:.80}, not a {wanted}; {DAMAGED}")


def _check_architecture(file: Path, config: Mapping[str, Any]) -> None:
    """Check that the weights are those of the architecture that will compute with them.

    Two architectures may have tensors of the same names and shapes, and compute different things.
    """
    model_type = config.get("model_type")
    if "model_type" not in config:
        return
    for name in config.get("architectures") or []:
        host_class = getattr(transformers, str(name), None)
        host_config = getattr(host_class, "config_class", None)
        made_for = getattr(host_config, "model_type", None)
        if made_for is not None and made_for != model_type:
            raise InputError(
                f"{file}: the weights are those of a {name}, which is a {made_for}, and model_type "
                f"is {model_type!r}; {DAMAGED}"
            )


def _check_sizes(file: Path, config: Mapping[str, object]) -> None:
    """Check that no size is beyond that of any model."""
    for name, value in config.items():
        most = next((most for sizes, most in _MOST.items() if sizes.search(name)), None)
        if most is not None and type(value) is int and value > most:
            raise InputError(f"{file}: {name} is {value}, more than any model has; {DAMAGED}")


def _check_lengths(file: Path, content: Mapping[str, object]) -> None:
    for name in _LENGTHS:
        length = content.get(name)
        if isinstance(length, int) and length < 1:
            raise InputError(f"{file}: {name} is {length}, which leaves no text; {DAMAGED}")


def _check_whole(file: Path, name: str, value: object) -> None:
    """Check that a number of tokens is whole; hosts write a very large one as a float, too."""
    if value is None or type(value) is int or (type(value) is float and value.is_integer()):
        return
    raise InputError(f"{file}: {name} is {value!r:.80}, not a whole number; {DAMAGED}")
