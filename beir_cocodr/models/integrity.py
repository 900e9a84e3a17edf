"""Whether a model is whole: its files before a host loads them, and its weights, vocabulary and
numbers after.

Hosts give random weights for tensors that files lack, and go on. Here that is an InputError, but
for :data:`PARTS`.
"""

import logging
import os
import pickle
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import RLock
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from sentence_transformers.util import SimilarityFunction
from transformers import PreTrainedModel

from beir_cocodr.data.text import check_vocabulary
from beir_cocodr.errors import InputError, explained, first_line, listed, no_room
from beir_cocodr.io import parse_json
from beir_cocodr.models.named_code import check_named_code, is_module
from beir_cocodr.models.spec import suggestion
from beir_cocodr.provenance import RECORD_FILE, modules_of

log = logging.getLogger(__name__)

#: What a checkpoint may hold beside the layers of its encoder, by the names of the tensors.
PARTS = {
    "pooler": r"(^|\.)pooler\.",
    "language-model head": (
        r"^(cls|lm_head|lm_predictions|mask_predictions|predictions|vocab_transform|vocab_layer_norm|vocab_projector|"
        r"generator_predictions|generator_lm_head|discriminator_predictions|head)\.|^decoder\.(weight|bias)$"
    ),
    "classifier": r"^(classifier|pre_classifier|classification_head|score|sequence_summary|logits_proj|head)\.",
    "Condenser head": r"^c_head\.",
    "projection": r"^linear\.",
    "position numbers": r"(^|\.)position_ids$",
}


@dataclass(frozen=True)
class Task:
    """Which of :data:`PARTS` a task can do without: ``absent`` ones may be missing, and are then
    left out of the model; ``spare`` ones may lie in the files without being read; ``new`` ones may
    be missing, and are then drawn at random, because they are trained next. What it ``needs``, and
    the ``way_out`` without, are words for a message.
    """

    needs: str
    way_out: str = "save or download it again, or name another"
    absent: tuple[str, ...] = ()
    spare: tuple[str, ...] = ("pooler", "language-model head", "Condenser head", "position numbers")
    new: tuple[str, ...] = ()


ENCODER = Task("all layers of its encoder", absent=("pooler",))
CROSS_ENCODER = Task(
    "a trained classifier over query and document",
    "name a cross-encoder, such as cross-encoder/ms-marco-MiniLM-L6-v2",
)
GENERATOR = Task(
    "the weights of its decoder and its output layer",
    "name 'lexical', or a language model that was trained to write",
)
SPARSE = Task("a masked language model with its head", absent=("pooler",))
LATE_INTERACTION = Task(
    "all layers of its encoder", absent=("pooler",), spare=(*ENCODER.spare, "projection")
)
NEW_CLASSIFIER = Task("all layers of its encoder", new=("pooler", "classifier"))
NEW_HEAD = Task("all layers of its encoder", new=("language-model head",))
MAYBE_HEAD = Task("all layers of its encoder", absent=("language-model head",))

#: The settings of a model that are read here, and the types of values; every file is otherwise any
#: JSON object.
_FILES: Mapping[str, Mapping[str, tuple[type | str, ...]]] = {
    "config.json": {"model_type": (str,), "architectures": (list,)},
    "config_sentence_transformers.json": {
        "prompts": (dict,), "default_prompt_name": (str,), "similarity_fn_name": (str,), "model_type": (str,),
    },
    "sentence_bert_config.json": {
        "max_seq_length": (int,), "query_length": (int,), "document_length": (int,), "do_lower_case": (bool,),
    },
    "tokenizer.json": {"model": (dict,), "added_tokens": (list,)},
    "tokenizer_config.json": {"tokenizer_class": (str,), "do_lower_case": (bool,)},
    "special_tokens_map.json": {},
    "added_tokens.json": {},
    "vocab.json": {},
    "generation_config.json": dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"), (int, list)
    ),
    "model.safetensors.index.json": {"weight_map": (dict,)},
    "pytorch_model.bin.index.json": {"weight_map": (dict,)},
    "text_format.json": {"title_separator": (str,)},
}  # fmt: skip

_NAMES = {"module_input_name": (str,), "module_output_name": (str,)}

#: The settings of modules, in their own folders, by the class: types, or the texts that they may
#: be.
_MODULES: Mapping[str, Mapping[str, tuple[type | str, ...]]] = {
    "Pooling": {"embedding_dimension": (int,), "word_embedding_dimension": (int,), "include_prompt": (bool,)},
    "Normalize": _NAMES,
    "Dense": {"in_features": (int,), "out_features": (int,), "bias": (bool,), **_NAMES},
    "MRLHead": {
        "hidden_size": (int,), "k": (int,), "beta": (int, float), "pooling": ("cls", "mean"), "normalize_mean": (bool,),
        "formula": ("exact", "paper"), "variance_floor": (int, float),
    },
}  # fmt: skip

# Modules of this package; its own encoders hand their classes over, and no host imports them.
_PACKAGE = "beir_cocodr."

# Files in which a router names its modules.
_ROUTERS = ("router_config.json", "config.json")

_MOST = 10_000_000
_DAMAGED = "the model is damaged, save or download it again"


def check_files(folder: Path, known: Collection[str] = ()) -> None:
    """Check that a model folder's settings are JSON of the right types, and name no code of their
    own; ``known`` are classes of modules that the caller has, beside those of
    sentence-transformers. An InputError names file and fault.
    """
    modules = (
        _read(folder / "modules.json", list) if os.path.lexists(folder / "modules.json") else []
    )
    kinds = {"": ""}
    check_named_code(folder)
    for module in modules:
        if not isinstance(module, dict) or not all(
            isinstance(module.get(name), str) for name in ("path", "type")
        ):
            raise InputError(
                f"{folder / 'modules.json'}: {module!r} is no module with a path and a type; {_DAMAGED}"
            )
        _check_module(folder, folder / "modules.json", module["path"], module["type"], known)
        kinds[module["path"]] = module["type"].rpartition(".")[2]
    _check_modules(folder, modules)
    for place, kind in kinds.items():
        for name, settings in _FILES.items():
            if os.path.lexists(
                file := folder / place / name
            ):  # hosts pass over what is no file, and go on without it
                own = kind in _MODULES and name == "config.json"
                _check_settings(
                    file, _MODULES[kind] if own else settings, required=name == "text_format.json"
                )
    _check_record(folder)


def _check_module(folder: Path, file: Path, place: str, kind: str, known: Collection[str]) -> None:
    """Check the class of a module that a file names, and the settings in the module's folder."""
    if not (is_module(kind) or kind in known or kind.startswith(_PACKAGE)):
        raise InputError(
            f"{file} names {kind!r}, which is no module of sentence-transformers; the code of a "
            "model is never run, take another model"
        )
    path = PurePosixPath(place)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"{file} leads out of the folder, to {place!r}; {_DAMAGED}")
    check_named_code(folder / place)
    for name in _ROUTERS:
        router = folder / place / name
        if os.path.lexists(router):
            types = _read(router, dict).get("types")
            for part, part_kind in types.items() if isinstance(types, dict) else ():
                if path / part == path:
                    raise InputError(f"{router} names itself as its module; {_DAMAGED}")
                _check_module(folder, router, str(path / part), str(part_kind), known)


def _check_modules(folder: Path, modules: Sequence[Mapping[str, Any]]) -> None:
    """A module that is lost may leave a model that works, and gives other vectors."""
    file = folder / "modules.json"
    if modules and [module.get("idx", row) for row, module in enumerate(modules)] != list(
        range(len(modules))
    ):
        raise InputError(
            f"{file}: a module is missing, by the numbers of the others (idx); {_DAMAGED}"
        )
    listed = {str(PurePosixPath(module["path"])) for module in modules}
    for config in sorted(folder.glob("[0-9]*_*/config.json")) if modules else ():
        if (name := config.parent.name) not in listed:
            raise InputError(
                f"{file} does not name the module in {config.parent}; add it, or move {name} away"
            )
    for module in modules:
        config = folder / module["path"] / "config.json"
        if module["type"].endswith(".Normalize") and config.is_file():
            names = _read(config, dict)
            read = names.get("module_input_name", "sentence_embedding")
            if read not in ("sentence_embedding", "token_embeddings") or read != names.get(
                "module_output_name", read
            ):
                raise InputError(
                    f"{config} scales other vectors than it reads, or what no module makes; {_DAMAGED}"
                )


def _check_record(folder: Path) -> None:
    """A folder that was trained here records its modules."""
    try:
        recorded = parse_json((folder / RECORD_FILE).read_text(encoding="utf-8"))
        recorded = dict(recorded.get("modules") or {})
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
    ):  # none, or not ours; what reads it for itself refuses it
        return
    found = modules_of(folder)
    for name, checksum in recorded.items():
        if found.get(name) != checksum:
            raise InputError(
                f"{folder / name} {'was changed' if name in found else 'is missing'} since the model was trained, by "
                f"{RECORD_FILE}; restore it, or take its line out of modules there if the change is meant"
            )


def _read(file: Path, kind: type) -> Any:
    with explained(f"{file} is no JSON file that can be read", _DAMAGED, OSError, ValueError):
        content = parse_json(file.read_text(encoding="utf-8"))
    if type(content) is not kind:
        raise InputError(
            f"{file} holds a {type(content).__name__}, not a {kind.__name__}; {_DAMAGED}"
        )
    return content


def _check_settings(
    file: Path, types: Mapping[str, tuple[type | str, ...]], required: bool
) -> None:
    content = _read(file, dict)
    if content.get("quantization_config") is not None:
        raise InputError(
            f"{file} says that the weights are quantized (quantization_config), and they would be read as if they were "
            "not; take the model as it was before"
        )
    types = {**types, **{name: (bool,) for name in content if name.startswith("pooling_mode_")}}
    for name, kinds in types.items():
        value = content.get(name)
        if type(value) not in kinds and value not in kinds and (required or value is not None):
            wanted = " or ".join(kind if isinstance(kind, str) else kind.__name__ for kind in kinds)
            raise InputError(f"{file}: {name} is {value!r:.80}, not a {wanted}; {_DAMAGED}")
    for name, prompt in dict(content.get("prompts") or {}).items():
        if not isinstance(prompt, str | None):
            raise InputError(f"{file}: prompt {name!r} is {prompt!r:.80}, not a text; {_DAMAGED}")
    if (similarity := content.get("similarity_fn_name")) not in (
        None,
        *SimilarityFunction.possible_values(),
    ):
        raise InputError(
            f"{file}: similarity_fn_name {similarity!r} is unknown, and would become cosine; {_DAMAGED}"
        )
    if file.name == "config.json":
        _check_architecture(file, content)
        for (
            name,
            value,
        ) in content.items():  # else the host fills all memory before it compares shapes
            if (
                type(value) is int
                and value > _MOST
                and re.search("size|layers|heads|dim|positions|embeddings", name)
            ):
                raise InputError(f"{file}: {name} is {value}, more than any model has; {_DAMAGED}")


def _check_architecture(file: Path, config: Mapping[str, Any]) -> None:
    """Two architectures may have tensors of the same names and shapes, and compute different
    things.
    """
    for name in config.get("architectures") or []:
        made_for = getattr(
            getattr(getattr(transformers, str(name), None), "config_class", None),
            "model_type",
            None,
        )
        if made_for not in (None, config.get("model_type")) and "model_type" in config:
            raise InputError(
                f"{file}: the weights are of a {name}, which is a {made_for}, and model_type is "
                f"{config['model_type']!r}; {_DAMAGED}"
            )


_LOCK = RLock()


@contextmanager
def loading(
    name: str,
    task: Task = ENCODER,
    noun: str = "model",
    trusted: bool = False,
    known: Collection[str] = (),
    hub: Mapping[str, Any] = {},
) -> Iterator[None]:
    """Inside, hosts load models whole or not at all.

    Every ``from_pretrained`` of transformers reports what it did with each tensor, also where
    sentence-transformers calls it; the report is checked at once. Whatever a host raises becomes
    one line: an InputError where a file is damaged or missing, tensors are missing, left over or of
    another shape. ``noun`` is what the model is to the user; ``trusted``, whether the caller has
    chosen to run code that it brings along; ``known``, see :func:`check_files`; ``hub``, the
    host's arguments that say where on the hub the model is.
    """
    if not name.strip():
        raise InputError(f"the name of the {noun} is empty; give a folder or a hub name")
    original = PreTrainedModel.__dict__["from_pretrained"]

    def reported(cls: type, /, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        # Mismatches are raised below, with the names of the tensors.
        kwargs |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        model, info = original.__func__(cls, *args, **kwargs)
        _check_report(f"{noun} {name!r}", model, info, task)
        return (model, info) if output_loading_info else model

    reports = logging.getLogger("transformers.modeling_utils")
    with _LOCK:
        PreTrainedModel.from_pretrained = classmethod(reported)
        reports.addFilter(_no_table)
        try:
            folder = None if trusted else _settings_folder(name, hub)
            if folder is not None:
                check_files(folder, known)
            yield
        except InputError:
            raise
        except Exception as error:  # the hosts raise of everything, from AttributeError to pickle's
            if no_room(error) is not None:  # a download that does not fit is no fault of the model
                raise
            hint = (suggestion(name) if task is ENCODER else "") or f"; {task.way_out}"
            raise InputError(
                f"{noun} {name!r} cannot be loaded: {_reason(name, error)}{hint}"
            ) from error
        finally:
            reports.removeFilter(_no_table)
            PreTrainedModel.from_pretrained = original
    if pickled := _pickled(name):
        log.info(
            "%s %s: weights of %s, read as tensors alone (torch.load, weights_only)",
            noun,
            name,
            pickled,
        )


def _no_table(record: logging.LogRecord) -> bool:
    """The host's table of tensors; the same is checked, and logged in one line."""
    return "LOAD REPORT" not in str(record.msg)


def _reason(name: str, error: BaseException) -> str:
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        return f"its {_pickled(name) or 'weights'} cannot be read as tensors alone, and nothing else of it is ever run"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = " ".join(lines) if lines and lines[0].endswith(":") else first_line(error)
    known = isinstance(error, OSError | ValueError)
    return shown[:400] if known else f"{type(error).__name__}: {shown[:400]}"


def _pickled(name: str) -> str | None:
    """The published weights that are pickles, where there are no others beside them."""
    folder = local_folder(name) or Path("/dev/null")
    found = [*folder.glob("pytorch_model*.bin"), *folder.glob("*_*/pytorch_model*.bin")]
    pickled = [
        str(file.relative_to(folder)) for file in found if not [*file.parent.glob("*.safetensors")]
    ]
    return ", ".join(sorted(pickled)) or None


def local_folder(name: str) -> Path | None:
    """Where a model's files lie, as far as they are here already."""
    try:
        if Path(name).is_dir():
            return Path(name)
        cached = try_to_load_from_cache(name, "config.json")
    except (HFValidationError, OSError):  # no name of a model, or too long for one
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def _settings_folder(name: str, hub: Mapping[str, Any]) -> Path | None:
    """Return the folder of a model's settings; those on the hub are downloaded first.

    A host that downloads a model reads its settings at once: they are checked before that, in the
    version that the host is about to read.
    """
    if Path(name).is_dir():
        return Path(name)
    if not hub.get("local_files_only"):
        with suppress(Exception):  # no such model, or no network: the host reports it
            return _download_settings(name, hub)
    return local_folder(name)


def _download_settings(name: str, hub: Mapping[str, Any]) -> Path | None:
    token = hub.get("token")
    model = HfApi(token=token).model_info(name, revision=hub.get("revision"), timeout=10)
    folder = None
    for sibling in model.siblings or ():
        file = PurePosixPath(sibling.rfilename)
        if file.suffix == ".json":
            cache = hub.get("cache_folder")
            path = hf_hub_download(
                name, str(file), revision=model.sha, token=token, cache_dir=cache
            )
            folder = Path(path).parents[len(file.parts) - 1]
    return folder


def _check_report(model_name: str, model: Any, info: Mapping[str, Any], task: Task) -> None:
    missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    faults = [
        ("missing", tensor) for tensor in missing if not _parts([tensor], (*task.absent, *task.new))
    ]
    faults += [("left over", tensor) for tensor in unexpected if not _parts([tensor], task.spare)]
    faults += [
        ("of another shape", f"{tensor} {tuple(there)} for {tuple(wanted)}")
        for tensor, there, wanted in sorted(info["mismatched_keys"])
    ]
    if faults:
        kinds = {
            kind: [tensor for other, tensor in faults if other == kind] for kind in dict(faults)
        }
        shown = "; ".join(f"{kind}: {listed(tensors, 3)}" for kind, tensors in kinds.items())
        raise InputError(
            f"{model_name} is not whole, it needs {task.needs} ({shown}); {task.way_out}"
        )
    if left := _parts(unexpected, task.spare):
        log.info("%s: its %s is not read", model_name, " and ".join(left))
    if new := _parts(missing, task.new):
        log.info("%s: its %s is new, drawn at random, to be trained", model_name, " and ".join(new))
    if absent := _parts(missing, tuple(part for part in task.absent if part not in task.new)):
        log.info("%s: it has no %s, and needs none", model_name, " and ".join(absent))
    if "pooler" in task.absent:
        for tensor in filter(re.compile(PARTS["pooler"]).search, missing):
            # Else random numbers would be saved with the model, and tell it apart from itself.
            model.get_submodule(tensor.rpartition("pooler.")[0].rstrip(".")).pooler = None


def _parts(tensors: Sequence[str], parts: Sequence[str]) -> list[str]:
    return [part for part in parts if any(re.search(PARTS[part], tensor) for tensor in tensors)]


def check_loaded(model: Any, tokenizer: Any, name: str, noun: str = "model") -> None:
    """Check for NaN or infinite weights, no vocabulary, and token ids without an embedding: an
    InputError.
    """
    tensors = (
        (key, tensor) for key, tensor in model.state_dict().items() if tensor.is_floating_point()
    )
    # The extremes are NaN or infinite where any number is, and are found in one pass.
    wrong = [
        key
        for key, tensor in tensors
        if tensor.numel() and not all(map(torch.isfinite, tensor.aminmax()))
    ]
    if wrong:
        raise InputError(
            f"{noun} {name!r} has weights that are NaN or infinite ({listed(wrong, 3)}), as after training with too "
            "high a learning rate; take an earlier one"
        )
    check_vocabulary(tokenizer, name)
    if (room := positions(model)) and (
        longest := getattr(model, "max_seq_length", None) or 0
    ) > room:
        # The host takes RoBERTa's table for that many tokens, whose first positions mean padding.
        if longest > getattr(model[0].config, "max_position_embeddings", 0):
            raise InputError(
                f"{noun} {name!r} is set to read {longest} tokens, and has {room} positions; {_DAMAGED}"
            )
        log.info("%s %s: reads %d tokens, as it has no more positions", noun, name, room)
        model.max_seq_length = room
    backbone = getattr(model, "transformers_model", model)
    embedding = (
        backbone.get_input_embeddings() if hasattr(backbone, "get_input_embeddings") else None
    )
    if embedding is not None and hasattr(tokenizer, "get_vocab"):
        token, last = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
        if last >= len(embedding.weight):
            raise InputError(
                f"the tokenizer of {noun} {name!r} numbers {token!r} {last}, and there are {len(embedding.weight)} "
                "embeddings; the tokenizer is another model's, or tokens were added and never trained"
            )


def positions(model: Any) -> int | None:
    """The most tokens that a model with a table of positions can read; None for other models."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and its like begin to count behind the padding.
            return module.num_embeddings - (
                0 if module.padding_idx is None else module.padding_idx + 1
            )
    return None
