"""The check that a model is complete: its weights, its vocabulary and its numbers.

Hosts draw weights at random for tensors that files lack, and continue. Here that is an InputError,
except for :data:`PARTS` that a task can do without. The settings of a model are checked before in
:mod:`beir_cocodr.models.checkpoints.model_files`.
"""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from beir_cocodr.data.text import check_vocabulary
from beir_cocodr.errors import InputError, first_line, listed, no_room
from beir_cocodr.models.checkpoints.hub import local_folder, settings_folder
from beir_cocodr.models.checkpoints.model_files import DAMAGED, check_files
from beir_cocodr.models.checkpoints.number_types import check_number_types
from beir_cocodr.models.spec import suggestion

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

#: The parts that a checkpoint may have beside the layers of its encoder, by the names of tensors.
PARTS = {
    "pooler": r"(^|\.)pooler\.",
    "language-model head": (
        r"^(cls|lm_head|lm_predictions|mask_predictions|predictions|vocab_transform|"
        r"vocab_layer_norm|vocab_projector|generator_predictions|generator_lm_head|"
        r"discriminator_predictions|head)\.|^decoder\.(weight|bias)$"
    ),
    "classifier": (
        r"^(classifier|pre_classifier|classification_head|score|sequence_summary|logits_proj|"
        r"head)\."
    ),
    "Condenser head": r"^c_head\.",
    "projection": r"^linear\.",
    "embeddingHead and norm": r"^(embeddingHead|norm)\.",
    "position numbers": r"(^|\.)position_ids$",
}

# Tensors that a message names for each kind of fault, and characters of a host's message.
_NAMED_TENSORS = 3
_LONGEST_REASON = 400

# One process loads one model at a time, as hosts are changed for as long.
_LOCK = RLock()


@dataclass(frozen=True)
class Task:
    """A task's needs of a checkpoint, and the :data:`PARTS` that it can do without.

    Attributes:
        needs: What it needs, for a message.
        way_out: What to do without, for a message.
        absent: Parts that may be missing, and are then left out of the model.
        spare: Parts that may be in the files without being read.
        new: Parts that may be missing, and are then drawn at random, as they are trained next.
    """

    needs: str
    way_out: str = "save or download it again, or name another"
    absent: tuple[str, ...] = ()
    spare: tuple[str, ...] = ("pooler", "language-model head", "Condenser head", "position numbers")
    new: tuple[str, ...] = ()


ENCODER = Task(
    "all layers of its encoder",
    absent=("pooler",),
)
# Encoders as ANCE and COCO-DR train them, whose class has a classifier that is never used.
RELEASED = Task(
    "all layers of its encoder",
    absent=("pooler",),
    spare=(*ENCODER.spare, "classifier", "embeddingHead and norm"),
)
CROSS_ENCODER = Task(
    "a trained classifier over query and document",
    "name a cross-encoder, such as cross-encoder/ms-marco-MiniLM-L6-v2",
)
GENERATOR = Task(
    "the weights of its decoder and its output layer",
    "name 'lexical', or a language model that was trained to write",
)
SPARSE = Task(
    "a masked language model with its head",
    absent=("pooler",),
)
LATE_INTERACTION = Task(
    "all layers of its encoder",
    absent=("pooler",),
    spare=(*ENCODER.spare, "projection"),
)
NEW_CLASSIFIER = Task(
    "all layers of its encoder",
    new=("pooler", "classifier"),
)
NEW_HEAD = Task(
    "all layers of its encoder",
    new=("language-model head",),
)
MAYBE_HEAD = Task(
    "all layers of its encoder",
    absent=("language-model head",),
)


@contextmanager
def loading(
    name: str,
    task: Task = ENCODER,
    noun: str = "model",
    trusted: bool = False,
    known: Collection[str] = (),
    hub: Mapping[str, object] = {},
) -> Iterator[None]:
    """Let hosts load models in this block completely or not at all.

    Every ``from_pretrained`` of transformers reports what it did with each tensor, even where
    sentence-transformers calls it, and the report is checked at once. Any exception of a host
    becomes an InputError of one line.

    Args:
        name: The model's folder or hub name.
        task: What the model is loaded for.
        noun: What the model is to the user, for messages.
        trusted: The caller has chosen to run code that the model brings along, so its settings are
            not checked.
        known: See :func:`~beir_cocodr.models.checkpoints.model_files.check_files`.
        hub: The host's arguments that say where on the hub the model is.

    Raises:
        InputError: A file is damaged or missing, or tensors are missing, left over or of another
            shape.
    """
    if not name.strip():
        raise InputError(f"the name of the {noun} is empty; name a folder or a hub model")
    with _LOCK, _checked_reports(f"{noun} {name!r}", task):
        try:
            folder = None if trusted else settings_folder(name, hub)
            if folder is not None:
                check_files(folder, known)
            yield
        except InputError:
            raise
        except Exception as error:  # hosts raise exceptions of every kind
            if no_room(error) is not None:  # the disk is full, which is no fault of the model
                raise
            hint = ""
            if task is ENCODER:
                hint = suggestion(name)
            hint = hint or f"; {task.way_out}"
            raise InputError(
                f"{noun} {name!r} cannot be loaded: {_reason(name, error)}{hint}"
            ) from error
    pickled = _pickled(name)
    if pickled:
        log.info(
            "%s %s: weights of %s, read as tensors alone (torch.load, weights_only)",
            noun,
            name,
            pickled,
        )


@contextmanager
def _checked_reports(model_name: str, task: Task) -> Iterator[None]:
    """Check the report of every ``from_pretrained`` of transformers in this block."""
    original = PreTrainedModel.__dict__["from_pretrained"]

    def checked(
        cls: type,
        /,
        *args: object,
        output_loading_info: bool = False,
        **kwargs: object,
    ) -> Any:
        # The check raises for mismatches, and names the tensors.
        kwargs |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        model, info = original.__func__(cls, *args, **kwargs)
        _check_report(model_name, model, info, task)
        return (model, info) if output_loading_info else model

    reports = logging.getLogger("transformers.modeling_utils")
    PreTrainedModel.from_pretrained = classmethod(checked)
    reports.addFilter(_is_no_table)
    try:
        yield
    finally:
        reports.removeFilter(_is_no_table)
        PreTrainedModel.from_pretrained = original


def _is_no_table(record: logging.LogRecord) -> bool:
    """Return false for the host's table of tensors: what it says is checked, and one line."""
    return "LOAD REPORT" not in str(record.msg)


def _reason(name: str, error: BaseException) -> str:
    """Return why a host could not load a model, in one line."""
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        weights = _pickled(name) or "weights"
        return f"its {weights} cannot be read as tensors alone, and nothing else of it is ever run"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_list = bool(lines) and lines[0].endswith(":")
    message = " ".join(lines) if is_list else first_line(error)
    message = message[:_LONGEST_REASON]
    if isinstance(error, OSError | ValueError):
        return message
    return f"{type(error).__name__}: {message}"


def _pickled(name: str) -> str | None:
    """Return the names of a model's weights that are pickles, where there are no others."""
    folder = local_folder(name)
    if folder is None:
        return None
    names = []
    for pattern in ("pytorch_model*.bin", "*_*/pytorch_model*.bin"):
        for file in folder.glob(pattern):
            has_others = any(file.parent.glob("*.safetensors"))
            if not has_others:
                names.append(str(file.relative_to(folder)))
    return ", ".join(sorted(names)) or None


def _check_report(
    model_name: str,
    model: Any,
    info: Mapping[str, Any],
    task: Task,
) -> None:
    """Check the host's report on the tensors of a model that it has loaded."""
    missing = sorted(info["missing_keys"])
    unexpected = sorted(info["unexpected_keys"])
    faults = {
        "missing": _without_parts(missing, (*task.absent, *task.new)),
        "left over": _without_parts(unexpected, task.spare),
        "of another shape": [
            f"{tensor} {tuple(shape)} for {tuple(wanted)}"
            for tensor, shape, wanted in sorted(info["mismatched_keys"])
        ],
    }
    descriptions = []
    for kind, tensors in faults.items():
        if tensors:
            descriptions.append(f"{kind}: {listed(tensors, _NAMED_TENSORS)}")
    if descriptions:
        raise InputError(
            f"{model_name} is not complete, it needs {task.needs} ({'; '.join(descriptions)}); "
            f"{task.way_out}"
        )
    only_absent = tuple(part for part in task.absent if part not in task.new)
    _log_parts("%s: its %s is not read", model_name, _parts_of(unexpected, task.spare))
    _log_parts(
        "%s: its %s is new, drawn at random, to be trained",
        model_name,
        _parts_of(missing, task.new),
    )
    _log_parts("%s: it has no %s, and needs none", model_name, _parts_of(missing, only_absent))
    if "pooler" in task.absent:
        _remove_poolers(model, missing)


def _log_parts(
    message: str,
    model_name: str,
    parts: list[str],
) -> None:
    if parts:
        log.info(message, model_name, " and ".join(parts))


def _remove_poolers(model: Any, missing: Sequence[str]) -> None:
    """Remove poolers that were drawn at random.

    Otherwise these numbers would be saved with the model, and two saves of one model would differ.
    """
    for tensor in missing:
        if re.search(PARTS["pooler"], tensor):
            parent = tensor.rpartition("pooler.")[0].rstrip(".")
            model.get_submodule(parent).pooler = None


def _parts_of(tensors: Sequence[str], parts: Sequence[str]) -> list[str]:
    """Return those of some parts that tensors belong to."""
    present = []
    for part in parts:
        if any(re.search(PARTS[part], tensor) for tensor in tensors):
            present.append(part)
    return present


def _without_parts(tensors: Sequence[str], parts: Sequence[str]) -> list[str]:
    """Return the tensors that belong to none of some parts."""
    return [tensor for tensor in tensors if not _parts_of([tensor], parts)]


def check_loaded(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    noun: str = "model",
) -> None:
    """Check the numbers and the vocabulary of a model that a host has loaded.

    A model that is set to read more tokens than it has positions is set to read as many, where the
    host counts positions that mean padding.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        name: Its folder or hub name, for messages.
        noun: What it is to the user, for messages.

    Raises:
        InputError: A weight is NaN or infinite, or no floating-point number in its file, there is
            no vocabulary, a token has no embedding, or the model is set to read more tokens than
            it has positions.
    """
    folder = local_folder(name)
    if folder is not None:
        check_number_types(model, folder, noun)
    wrong = []
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point() and tensor.numel() and not _is_finite(tensor):
            wrong.append(key)
    if wrong:
        raise InputError(
            f"{noun} {name!r} has weights that are NaN or infinite "
            f"({listed(wrong, _NAMED_TENSORS)}), as after training with too high a learning rate; "
            "take an earlier one"
        )
    check_vocabulary(tokenizer, name)
    _check_length(model, name, noun)
    _check_embeddings(model, tokenizer, name, noun)


def _is_finite(tensor: torch.Tensor) -> bool:
    # The extremes are NaN or infinite if any number is, and are computed in one pass.
    return all(map(torch.isfinite, tensor.aminmax()))


def _check_length(
    model: Any,
    name: str,
    noun: str,
) -> None:
    """Check that a model is set to read at most as many tokens as it has positions."""
    room = positions(model)
    longest = getattr(model, "max_seq_length", None) or 0
    if not room or longest <= room:
        return
    # The host allows as many tokens as RoBERTa's table has rows, but its first rows mean padding.
    if longest > getattr(model[0].config, "max_position_embeddings", 0):
        raise InputError(
            f"{noun} {name!r} is set to read {longest} tokens, but has {room} positions; {DAMAGED}"
        )
    log.info("%s %s: reads %d tokens, as it has no more positions", noun, name, room)
    model.max_seq_length = room


def _check_embeddings(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    noun: str,
) -> None:
    """Check that every token has an embedding."""
    backbone = getattr(model, "transformers_model", model)
    if not hasattr(backbone, "get_input_embeddings") or not hasattr(tokenizer, "get_vocab"):
        return
    embedding = backbone.get_input_embeddings()
    if embedding is None:
        return
    token, last = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    rows = len(embedding.weight)
    if last >= rows:
        raise InputError(
            f"the tokenizer of {noun} {name!r} numbers {token!r} {last}, and there are {rows} "
            "embeddings; the tokenizer is another model's, or tokens were added and never trained"
        )


def positions(model: Any) -> int | None:
    """Return the most tokens that a model can read, or None if it has no table of positions."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and related models begin to count after the position of padding.
            padding = module.padding_idx
            reserved = 0
            if padding is not None:
                reserved = padding + 1
            return module.num_embeddings - reserved
    return None
