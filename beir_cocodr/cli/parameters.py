"""Options that several commands share, and how commands get flags from options classes.

A field that is made by :func:`~beir_cocodr.models.spec.option` states a flag's name, type, default
and help once. A command names the fields it has flags for, and gets the options as one object: by
:func:`takes`, or, of a training, by :func:`trains`, with presets and ``--set``.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from typer import Context, Option

from beir_cocodr.cli.guide import Verbose
from beir_cocodr.data.analyzers import Language
from beir_cocodr.data.file_folder import Reading, TextFiles
from beir_cocodr.data.sources import FileSource
from beir_cocodr.errors import InputError
from beir_cocodr.io import results_folder
from beir_cocodr.models.spec import described
from beir_cocodr.report.terminal import print_json
from beir_cocodr.training.presets import stage_options


def plain(help: str) -> Any:
    """A flag whose default is not shown: there is none, or its help has it."""
    return Option(help=help, show_default=False)


Dataset = Annotated[
    str,
    plain(
        "Folder of files or BEIR folder, corpus file, hf:NAME, irds:ID, BEIR short name, or apidocs/DOMAIN."
    ),
]

Output = Annotated[Path, plain("Folder for results.")]

Measures = Annotated[str, Option(help="Measures that ir-measures knows, separated by spaces.")]

Split = Annotated[str, Option(help="Split of the qrels.")]

Json = Annotated[bool, Option("--json", help="Print results as JSON.")]

Preset = Annotated[
    str | None,
    Option(
        help="cocodr-base, cocodr-large, mrl, qc, cotmae, extrapolation (as in the papers), base, large, cpu (small)."
    ),
]

Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="NAME=VALUE for any setting that --show-config prints; repeat.",
        metavar="NAME=VALUE",
    ),
]

Resume = Annotated[
    bool, Option("--resume", help="Go on with an interrupted output; keep a finished one.")
]

Overwrite = Annotated[
    bool,
    Option(
        "--overwrite",
        help="Replace the results of another run in the output; those of this one always are.",
    ),
]

ShowConfig = Annotated[
    bool, Option("--show-config", help="Print the settings in force as JSON and stop.")
]

Policy = Annotated[
    str,
    Option(
        "--identical-ids",
        help="Documents whose id is the query's: keep, drop, or auto (drop on ArguAna and Quora).",
    ),
]

Judgements = Annotated[
    Path | None,
    plain(
        "Some judged queries: qrels, labels_wanted.tsv with its column filled, or a log of judgements."
    ),
]

_TextColumn = Annotated[
    list[str] | None,
    plain(
        "Column of a table that is the text, where its name does not show it; repeat to join several."
    ),
]

_Language = Annotated[
    str | None,
    plain(
        "Of the corpus, an ISO 639 code or an English name: sentences are parted, and words stemmed and left out by "
        "BM25, as in this language, unless --bm25-analyzer names another than english. Default: English."
    ),
]

log = logging.getLogger(__name__)

Command = Callable[..., None]

#: What every command that searches with any model has flags for.
SEARCHING = (
    *(
        "analyzer",
        "bm25_weight",
        "bf16",
        "query_length",
        "document_length",
        "title_separator",
        "batch_size",
        "device",
    ),
)

#: What every training command has flags for.
TRAINING = (
    "max_steps",
    "epochs",
    "batch_size",
    "mini_batch_size",
    "learning_rate",
    "loader_workers",
    "seed",
)


# What decides where and how a command runs and what it prints, not what it finds.
_INCIDENTAL = ("output", "overwrite", "as_json", "picture", "device", "encode_batch_size")


def this_run(context: Context) -> dict[str, object]:
    """The running command and its settings: what :func:`~beir_cocodr.io.results_folder` knows a run
    by.
    """
    unset = {name for name in ("language", "text_column") if not context.params.get(name)}
    settings = {
        name: value for name, value in context.params.items() if name not in (*_INCIDENTAL, *unset)
    }
    return {"command": context.command.name, **settings}


def results(
    context: Context, output: Path | None, overwrite: bool
) -> AbstractContextManager[Path | None]:
    """The folder to write the running command's results to, see
    :func:`~beir_cocodr.io.results_folder`; None where there is no ``output``.
    """
    return nullcontext() if output is None else results_folder(output, this_run(context), overwrite)


def reads(command: Command) -> Command:
    """Give a command the flags of all commands, and one that has ``--dataset`` those that say how
    files and languages are read.

    A corpus of files is read with what they say, which stands behind its name from then on
    (:class:`~beir_cocodr.data.file_folder.Reading`); BM25 reads by the language's analyzer.
    """
    original = signature(command, eval_str=True)
    named = "dataset" in original.parameters
    own = "language" in original.parameters  # of sentences alone
    flags: dict[str, Any] = {"verbose": Verbose}
    if named:
        flags |= {"text_column": _TextColumn} | ({} if own else {"language": _Language})
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in flags.items()
    ]

    @wraps(command)
    def extended(**values: Any) -> None:
        values.pop("verbose")  # in force since it was read
        if not named:
            command(**values)
            return
        columns = values.pop("text_column") or []
        given = values["language"] if own else values.pop("language")
        if given is not None and not (own and given == "en"):
            language = Language.parse(given)
            log.info("%s", language.describe())
            if values.get("bm25_analyzer", "") in (None, "english"):
                values["bm25_analyzer"] = language.analyzer
            given = language.code
        dataset = values["dataset"]
        if columns and dataset is None:
            raise InputError(
                "--text-column is of files, which are not named; give --dataset too, or leave it out"
            )
        settings = {"text": ",".join(columns), "language": given or ""}
        if (columns or given) and dataset is not None:
            several = type(dataset) is list
            read = [_read_with(one, settings) for one in (dataset if several else [dataset])]
            values["dataset"] = read if several else read[0]
        command(**values)

    parameters = [*original.parameters.values(), *added]
    return _with_parameters(extended, sorted(parameters, key=lambda parameter: parameter.kind))


def _read_with(dataset: str, settings: Mapping[str, str]) -> str:
    """The name of a dataset that is read with these settings; of no files, its own."""
    from beir_cocodr.data.collection import (
        resolve_source,
    )  # what reads files is not needed for help

    source, given = (
        resolve_source(dataset, "test"),
        {name: value for name, value in settings.items() if value},
    )
    if isinstance(source, TextFiles) or (
        isinstance(source, FileSource) and source.folder is None and settings["text"]
    ):
        return Reading.extend(dataset, **given)
    if settings["text"]:
        raise InputError(
            f"--text-column is of tables and files, and {dataset} is a collection; leave it out"
        )
    return dataset


def takes(into: str, *names: str) -> Callable[[Command], Command]:
    """Give a command flags for fields of an options class, which it gets as one object.

    Args:
        into: the command's keyword argument; its type is the class.
        names: the fields, of the class or of options in it. They stand in the help in this order,
            in the place of the argument. A field ``progress`` is always on.
    """

    def extend(command: Command) -> Command:
        kind = signature(command, eval_str=True).parameters[into].annotation
        flags = _flags(kind, names, optional=False)
        return _extended(
            command, into, flags, lambda **given: _build(kind, given | {"progress": True})
        )

    return extend


def gives(into: str, kind: type, *names: str) -> Callable[[Command], Command]:
    """Give a command flags for fields of an options class, and pass it as ``into`` a dict of those
    that were set.
    """

    def given(**values: object) -> dict[str, object]:
        return {name: value for name, value in values.items() if value is not None}

    return lambda command: _extended(command, into, _flags(kind, names, optional=True), given)


def trains(
    stage: str | None, *names: str, presets: str | None = None
) -> Callable[[Command], Command]:
    """Give a training command flags for its ``settings``, with a preset below them and ``--set``
    between.

    Args:
        stage: of presets; None for a training that is no single stage.
        names: fields that it has flags for, beside those of every training.
        presets: what presets call that.
    """
    layers: dict[str, tuple[Any, object]] = {"preset": (Preset, None)}
    layers |= {"assignments": (Settings, None), "show_config": (ShowConfig, False)}

    def extend(command: Command) -> Command:
        kind = signature(command, eval_str=True).parameters["settings"].annotation
        own = {field.name for field in fields(kind)}
        flags = _flags(kind, (*names, *(name for name in TRAINING if name in own)), optional=True)
        for name, (layer, default) in layers.items():
            flags[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=layer)

        def build(
            show_config: bool,
            assignments: list[str] | None,
            preset: str | None = None,
            **given: Any,
        ) -> object:
            settings = stage_options(
                kind, stage or presets or "", preset, assignments or (), **given
            )
            if not show_config:
                return settings
            print_json({stage: asdict(settings)} if stage else asdict(settings))
            return None

        return _extended(command, "settings", flags, build)

    return extend


def _extended(
    command: Command, into: str, flags: dict[str, Parameter], build: Callable[..., object]
) -> Command:
    """The command with ``flags`` in the place of ``into``; not called where there is nothing to
    pass.
    """
    original = signature(command, eval_str=True)
    parameters = [
        flag.replace(kind=Parameter.KEYWORD_ONLY)
        for name, parameter in original.parameters.items()
        for flag in (flags.values() if name == into else [parameter])
    ]

    @wraps(command)
    def extended(**values: Any) -> None:
        built = build(**{name: values.pop(flag.name) for name, flag in flags.items()})
        if built is not None:
            command(**values, **{into: built})

    return _with_parameters(extended, parameters)


def _with_parameters(command: Command, parameters: list[Parameter]) -> Command:
    """The command with what typer reads: a function's signature, and the types by name."""
    command.__signature__ = Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _flags(kind: type, names: tuple[str, ...], optional: bool) -> dict[str, Parameter]:
    """Field to flag; fields of options inside the options count."""
    found = dict(_all_fields(kind))
    return {name: _flag(name, *found[name], optional) for name in names}


def _all_fields(kind: type) -> Iterator[tuple[str, tuple[Mapping[str, Any], object, Any]]]:
    """Name of every field, with its flag's description, its default and its type."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            yield from _all_fields(hints[field.name])
            continue
        shown = {key: described(kind, field.name, key) for key in ("help", "flag")}
        yield (
            field.name,
            (shown, None if field.default is MISSING else field.default, hints[field.name]),
        )


def _flag(
    name: str, shown: Mapping[str, Any], default: object, hint: Any, optional: bool
) -> Parameter:
    """A keyword argument that typer makes a flag of; an optional one is None unless it is set."""
    default = None if optional else default
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        hint, default = list[kind if isinstance(kind, type) else Path] | None, None  # type: ignore[misc]
    elif get_origin(hint) is Literal:
        hint = str
    if default is None and type(None) not in get_args(hint):
        hint = hint | None
    # Named as its flag, for there may be a field of the same name in other options of the command.
    flag = shown["flag"] or "--" + name.replace("_", "-")
    made = Option(*([flag] if shown["flag"] else []), help=shown["help"])
    argument = flag.lstrip("-").replace("-", "_")
    return Parameter(
        argument, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, made]
    )


def _build(kind: type, given: Mapping[str, Any]) -> Any:
    """The options, and options inside them, of flags; what has none keeps its default."""
    hints, values = get_type_hints(kind), {}
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            values[field.name] = _build(hints[field.name], given)
        elif get_origin(hints[field.name]) is tuple:
            values[field.name] = tuple(given.get(field.name) or ())
        elif field.name in given:
            values[field.name] = given[field.name]
    return kind(**values)


Address = Annotated[
    str | None,
    Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Do it on a Ray cluster, with the same files to the byte: HOST:PORT of its head, auto (the one "
        "that RAY_ADDRESS names or that runs on this machine; meant where no ADDRESS is given), or local "
        "(one that is started for this and ended).",
    ),
]
