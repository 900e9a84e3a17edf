"""From a preset and what a user says to the options of a stage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from beir_cocodr.errors import InputError
from beir_cocodr.training.options import TrainingOptions
from beir_cocodr.training.presets import PRESETS

Options = TypeVar("Options", bound=TrainingOptions)


def stage_options(
    kind: type[Options],
    stage: str,
    preset: str | None,
    assignments: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Options:
    """The defaults, over them a preset, over it ``name=value`` assignments, over them overrides.

    Args:
        kind: the options' class.
        stage: of a preset: "pretrain", "finetune", or a stage of ``adapt``.
        preset: one of :data:`PRESETS`, or None.
        assignments: values as JSON, or plain words.
        defaults: what stands below the preset, over the class's own.
        **overrides: None leaves a setting as it is.

    Raises:
        InputError: an unknown preset or setting, or a value of the wrong type.
    """
    if preset is not None and preset not in PRESETS:
        raise InputError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    chosen = dict(defaults or {}) | (PRESETS[preset].get(stage, {}) if preset else {})
    chosen |= dict(_assigned(kind, assignment) for assignment in assignments)
    return kind(**chosen | {name: value for name, value in overrides.items() if value is not None})


def _assigned(kind: type[TrainingOptions], assignment: str) -> tuple[str, Any]:
    name, equals, text = assignment.partition("=")
    names = [field.name for field in fields(kind)]
    if not equals or name not in names:
        raise InputError(f"--set {assignment}: say NAME=VALUE with a name of {', '.join(names)}")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    hint = get_type_hints(kind)[name]
    allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if float in allowed and type(value) is int:
        value = float(value)
    if type(value) not in allowed:
        wanted = " or ".join("null" if kind is NoneType else kind.__name__ for kind in allowed)
        raise InputError(f"--set {assignment}: {name} has to be {wanted}")
    return name, value
