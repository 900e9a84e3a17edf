"""The two ways to name models on the command line: after the command, and by ``--model``."""

from collections.abc import Iterator
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, get_args, get_origin

from typer import Argument

from beir_cocodr.cli.flags import Command, with_parameters
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import ALIASES, BM25, FUSIONS

#: The name among a command's parameters of the models that stand after the command.
_POSITIONAL = "positional_models"


def names_models(command: Command) -> Command:
    """Let a command with the option ``--model`` also take its models as arguments.

    The command receives them as ``model``, whichever way they were given. An option without a
    default stays required: :func:`merge_models` refuses a command line without models.
    """
    parameters = dict(signature(command, eval_str=True).parameters)
    option = parameters["model"]
    needs_model = option.default is Parameter.empty
    takes_many = _is_list(option.annotation)
    argument = Argument(
        metavar="[MODEL]...",
        help="Name the models here or with --model." if takes_many else "The same as --model.",
        show_default=False,
        autocompletion=complete_models,
    )
    hint: Any = list[str] if takes_many else str
    parameters["model"] = option.replace(kind=Parameter.KEYWORD_ONLY, default=_default(option))
    parameters[_POSITIONAL] = Parameter(
        _POSITIONAL,
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[hint | None, argument],
    )

    @wraps(command)
    def extended(**values: Any) -> None:
        values.pop(_POSITIONAL, None)
        command(**values)

    extended.needs_model = needs_model  # type: ignore[attr-defined]
    ordered = sorted(parameters.values(), key=lambda parameter: parameter.kind)
    return with_parameters(extended, ordered)


def merge_models(settings: dict[str, Any], needs_model: bool) -> None:
    """Move the models that stand after a command to those of ``--model``.

    Args:
        settings: the command's parameters by name; they are changed.
        needs_model: refuse settings without any model.

    Raises:
        InputError: both name models, and not the same ones, or a model is missing.
    """
    positional = settings.pop(_POSITIONAL, None)
    arguments = _as_list(positional)
    options = _as_list(settings.get("model"))
    if arguments and options and arguments != options:
        raise InputError(
            f"the models {' '.join(arguments)} and --model {' '.join(options)} differ: name the "
            "models once, after the command or with --model"
        )
    if arguments:
        settings["model"] = positional
    if needs_model and not arguments and not options:
        raise InputError("--model is missing: name a model after the command or with --model")


def complete_models(incomplete: str) -> Iterator[str]:
    """Yield the names of models that begin as an incomplete word, for the completion of shells.

    Where there are none, the shell itself completes the names of files.
    """
    names = [*ALIASES, BM25, f"lucene-{BM25}"]
    for fusion in FUSIONS:
        names += [f"{fusion}:{alias}" for alias in ALIASES]
    yield from (name for name in names if name.startswith(incomplete))


def _is_list(annotation: object) -> bool:
    """Return True for an annotated list, with None or without."""
    hint = get_args(annotation)[0]
    kinds = [hint, *get_args(hint)]
    return any(get_origin(kind) is list for kind in kinds)


def _default(option: Parameter) -> object:
    return None if option.default is Parameter.empty else option.default


def _as_list(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [str(name) for name in value]
    return [str(value)]
