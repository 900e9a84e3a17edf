"""Checks of planned commands by the command line itself; nothing is run, and no file is read.

A command's words are parsed as the command line parses them. The classes of options that it would
build are built, and what it checks first in its own body is checked: measures, names of models,
sizes, architectures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from inspect import signature
from typing import Any

from beir_cocodr.errors import MOST_PROCESSES, InputError, Limits

#: The parameters of a command by name, as they were parsed.
Parsed = Mapping[str, Any]


def check_words(
    command: Any,
    kind: str,
    words: list[str],
) -> None:
    """Check a command's words as it would itself.

    Args:
        command: The command, as typer makes it.
        kind: Its name with that of its subcommand, a key of :data:`BODIES` if its body checks more.
        words: The words behind its name.

    Raises:
        InputError: A word, or an option's value, is refused.
    """
    parsed = _parsed(command, words)
    for options, flags in _classes_of_options(command.callback):
        # Those of a training come from a preset too; commands.options_of builds them.
        if "assignments" not in flags:
            _built(options, flags, parsed)
    if kind in BODIES:
        BODIES[kind](parsed)


def _parsed(command: Any, words: list[str]) -> Parsed:
    """Return the parameters of a command line."""
    try:
        context = command.make_context(command.name, list(words))
    except Exception as error:
        # typer's errors of usage, whose class depends on its version.
        if not hasattr(error, "format_message"):
            raise
        raise InputError(error.format_message()) from error
    parsed: Parsed = context.params
    return parsed


@cache
def _classes_of_options(callback: Any) -> list[tuple[Any, set[str]]]:
    """Return the classes of options that a command builds, each with the flags that go into it.

    Each decorator of ``beir_cocodr.cli.flags`` gives a command flags in place of an argument whose
    type is such a class.
    """
    classes = []
    outer = callback
    while hasattr(outer, "__wrapped__"):
        inner = outer.__wrapped__
        outer_names = signature(outer, eval_str=True).parameters
        inner_names = signature(inner, eval_str=True).parameters
        for name in inner_names.keys() - outer_names.keys():
            kind = inner_names[name].annotation
            if is_dataclass(kind):
                classes.append((kind, set(outer_names) - set(inner_names)))
        outer = inner
    return classes


def _built(kind: Any, flags: set[str], parsed: Parsed) -> Any:
    """Build options of a class from the flags that were given.

    Raises:
        InputError: The class refuses a value.
    """
    from beir_cocodr.models.option_fields import described
    from beir_cocodr.training.shared_options import options_of, setting_fields

    values = {}
    for owner, option_field in setting_fields(kind):
        flag = described(owner, option_field.name, "flag") or option_field.name
        argument = flag.lstrip("-").replace("-", "_")
        value = parsed.get(argument)
        if argument in flags and value is not None:
            values[option_field.name] = tuple(value) if isinstance(value, list) else value
    return options_of(kind, values)


@cache  # Hundreds of commands ask for the same measures.
def _check_measures(measures: str, identical_ids: str = "auto") -> None:
    from beir_cocodr.evaluation.evaluate import EvaluateOptions, EvaluationTask

    EvaluationTask.of(measures, options=EvaluateOptions(identical_ids=identical_ids))


def _check_models(*names: str) -> None:
    from beir_cocodr.models.spec import ModelSpec

    for name in names:
        ModelSpec.parse(name)


def _check_encode(parsed: Parsed) -> None:
    _check_models(parsed["model"])
    if parsed["processes"] is not None:
        Limits(min=1, max=MOST_PROCESSES).check("processes", parsed["processes"])


def _check_evaluate(parsed: Parsed) -> None:
    _check_models(*parsed["model"])
    _check_measures(parsed["measures"], parsed["identical_ids"])


def _check_qpp(parsed: Parsed) -> None:
    _check_models(parsed["model"])
    _check_measures(parsed["measure"], parsed["identical_ids"])


def _check_restrain(parsed: Parsed) -> None:
    """Check the sizes; ``check_targets``, which would import torch, has more to say of them."""
    sizes = parsed["size"] or parsed["k"] or []
    if bool(parsed["size"]) == bool(parsed["k"]) or min(sizes) < 1:
        raise InputError("give the training sets a --size or a --k of 1 or more, and not both")


def _check_regimes(parsed: Parsed) -> None:
    from beir_cocodr.resampling.regimes.architecture_rows import ARCHITECTURES

    _check_measures(parsed["measures"])
    starts = {text.partition("=")[0] for text in parsed["other_start"] or ()}
    names = [name for text in parsed["architecture"] or () for name in text.split(",")]
    if len(set(names)) < len(names):
        raise InputError(f"--architecture {','.join(names)} names one twice")
    for name in names:
        architecture, mark, start = name.partition("@")
        if architecture not in ARCHITECTURES or (mark and start not in starts):
            raise InputError(f"--architecture {name}: there is no such architecture or start")


#: What the body of a command checks before it works.
BODIES: dict[str, Callable[[Parsed], None]] = {
    "encode": _check_encode,
    "evaluate": _check_evaluate,
    "qpp": _check_qpp,
    "resample restrain": _check_restrain,
    "resample evaluate": _check_regimes,
}
