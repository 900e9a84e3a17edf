"""Flags of commands, made from options classes.

A field that is made by :func:`~beir_cocodr.models.spec.option` states a flag's name, type, default
and help once. A command names the fields it has flags for, and receives the options as one object:
by :func:`takes` or, if it trains, by :func:`trains`, which adds presets and ``--set``.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from typer import Option

from beir_cocodr.models.option_fields import described, type_hints
from beir_cocodr.report.terminal import print_json
from beir_cocodr.training.shared_options import setting_fields

#: A command; it returns None, or an ending that is printed in place of its usual one.
Command = Callable[..., object]

#: The fields that every command has flags for which searches with any model.
SEARCHING = (
    "analyzer",
    "bm25_weight",
    "bf16",
    "query_length",
    "document_length",
    "pooling",
    "chunk_pooling",
    "title_separator",
    "batch_size",
    "device",
)

#: The fields of loading an encoder that commands of one encoder have flags for.
ENCODING = (
    "query_length",
    "document_length",
    "pooling",
    "chunk_pooling",
    "title_separator",
    "device",
)

#: The fields that every training command has flags for.
TRAINING = (
    "max_steps",
    "epochs",
    "batch_size",
    "mini_batch_size",
    "learning_rate",
    "loader_workers",
    "precision",
    "seed",
    "report_to",
)

Preset = Annotated[
    str | None,
    Option(
        help="Start from a preset: cocodr-base, cocodr-large, mrl, gpl, qc, cotmae or "
        "extrapolation as in the papers, cocodr-base-released or cocodr-large-released as in "
        "COCO-DR's code, base or large, or cpu for a small machine."
    ),
]

_Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="Set any setting that --show-config prints; repeat for several.",
        metavar="NAME=VALUE",
    ),
]

ShowConfig = Annotated[
    bool, Option("--show-config", help="Print the settings in force as JSON and stop.")
]


def plain(help: str) -> Any:
    """Return a flag whose default is not shown: it has none, or its help says it."""
    return Option(help=help, show_default=False)


def takes(into: str, *names: str) -> Callable[[Command], Command]:
    """Give a command flags for fields of an options class, which it receives as one object.

    Args:
        into: the command's keyword argument; its type is the class.
        names: the fields, of the class or of options inside it. They take the argument's place in
            the help, in this order. A field ``progress`` is always on.
    """

    def extend(command: Command) -> Command:
        kind = signature(command, eval_str=True).parameters[into].annotation
        flags = _flags(kind, names, optional=False)

        def build(**values: object) -> object:
            return _build(kind, values | {"progress": True})

        return _extended(command, into, flags, build)

    return extend


def gives(into: str, kind: type, *names: str) -> Callable[[Command], Command]:
    """Give a command flags for fields of an options class, and pass it a dict of those set.

    Args:
        into: the command's keyword argument that gets the dict.
        kind: the options class.
        names: its fields.
    """

    def values_that_were_set(**values: object) -> dict[str, object]:
        return {name: value for name, value in values.items() if value is not None}

    def extend(command: Command) -> Command:
        return _extended(command, into, _flags(kind, names, optional=True), values_that_were_set)

    return extend


def trains(
    stage: str | None, *names: str, presets: str | None = None
) -> Callable[[Command], Command]:
    """Give a training command flags for its ``settings``, with ``--preset`` and ``--set``.

    A flag outweighs ``--set``, which outweighs the preset.

    Args:
        stage: the stage that presets have settings for; None if the training is no single stage.
        names: the fields that it has flags for, beside those of every training.
        presets: the name under which presets keep its settings, if it is no single stage.
    """

    def extend(command: Command) -> Command:
        kind = signature(command, eval_str=True).parameters["settings"].annotation
        field_names = {field.name for field in fields(kind)}
        shared = [name for name in TRAINING if name in field_names]
        flags = _flags(kind, (*names, *shared), optional=True)
        flags["preset"] = _keyword("preset", Preset, None)
        flags["assignments"] = _keyword("assignments", _Settings, None)
        flags["show_config"] = _keyword("show_config", ShowConfig, False)

        def build(
            show_config: bool,
            assignments: list[str] | None,
            preset: str | None = None,
            **values: Any,
        ) -> object:
            # Imported here because most commands train nothing.
            from beir_cocodr.training.presets import stage_options

            name = stage or presets or ""
            settings = stage_options(kind, name, preset, assignments or (), **values)
            if not show_config:
                return settings
            print_json({stage: asdict(settings)} if stage else asdict(settings))
            return None

        return _extended(command, "settings", flags, build)

    return extend


def _keyword(name: str, hint: object, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _extended(
    command: Command,
    into: str,
    flags: dict[str, Parameter],
    build: Callable[..., object],
) -> Command:
    """Return the command with flags in an argument's place.

    Args:
        command: the command.
        into: the argument that they replace.
        flags: field to flag.
        build: makes the argument's value of the fields' values; where it returns None, the command
            is not called.
    """
    parameters: list[Parameter] = []
    for name, parameter in signature(command, eval_str=True).parameters.items():
        replacing = flags.values() if name == into else [parameter]
        parameters += [flag.replace(kind=Parameter.KEYWORD_ONLY) for flag in replacing]

    @wraps(command)
    def extended(**values: object) -> object:
        built = build(**{name: values.pop(flag.name) for name, flag in flags.items()})
        return None if built is None else command(**values, **{into: built})

    return with_parameters(extended, parameters)


def with_parameters(command: Command, parameters: list[Parameter]) -> Command:
    """Return the command with the signature and the annotations that typer reads."""
    signature = Signature(parameters, return_annotation=None)
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


@dataclass(frozen=True)
class _Field:
    """A field of an options class, as a flag needs it.

    ``help`` and ``flag`` are those of :func:`~beir_cocodr.models.spec.option`.
    """

    name: str
    hint: Any
    default: object
    help: str
    flag: str | None


def _flags(kind: type, names: tuple[str, ...], optional: bool) -> dict[str, Parameter]:
    """Return field to flag; fields of options inside the options, and of rows, count too."""
    known = {field.name: (owner, field) for owner, field in setting_fields(kind)}
    flags = {}
    for name in names:
        owner, field = known[name]
        flags[name] = _flag(_described_field(owner, field), optional)
    return flags


def _described_field(owner: type, field: Field[Any]) -> _Field:
    """Return what a flag needs to know about a field of a class of options."""
    return _Field(
        name=field.name,
        hint=type_hints(owner)[field.name],
        default=None if field.default is MISSING else field.default,
        help=described(owner, field.name, "help"),
        flag=described(owner, field.name, "flag"),
    )


def _flag(field: _Field, optional: bool) -> Parameter:
    """Return a keyword argument that typer makes a flag of; an optional one is None unless set."""
    default = None if optional else field.default
    hint = field.hint
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        default = None
        hint = list[item if isinstance(item, type) else Path] | None  # type: ignore[misc]
    elif get_origin(hint) is Literal:
        hint = str
    if default is None and type(None) not in get_args(hint):
        hint = hint | None
    flag = field.flag or "--" + field.name.replace("_", "-")
    names = [field.flag] if field.flag else []
    # The argument is named after its flag, because other options of the command may have a field
    # of the same name.
    argument = flag.lstrip("-").replace("-", "_")
    return _keyword(
        argument,
        Annotated[hint, Option(*names, help=field.help)],
        default,
    )


def _build(kind: type, values: Mapping[str, Any]) -> Any:
    """Return the options made of flags' values; a field without a value keeps its default."""
    hints = type_hints(kind)
    arguments: dict[str, object] = {}
    for field in fields(kind):
        hint = hints[field.name]
        if is_dataclass(hint):
            arguments[field.name] = _build(hint, values)  # type: ignore[arg-type]
        elif get_origin(hint) is tuple:
            arguments[field.name] = tuple(values.get(field.name) or ())
        elif field.name in values:
            arguments[field.name] = values[field.name]
    return kind(**arguments)
