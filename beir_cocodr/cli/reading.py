"""The options that say how a corpus of files is read, given to every command with ``--dataset``."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from beir_cocodr.cli.flags import Command, plain, with_parameters
from beir_cocodr.cli.noise import Verbose
from beir_cocodr.data.analyzers import Language
from beir_cocodr.data.files.file_folder import Reading, TextFiles
from beir_cocodr.data.files.own_folders import check_output
from beir_cocodr.data.sources import FileSource
from beir_cocodr.errors import InputError

log = logging.getLogger(__name__)

_TextColumn = Annotated[
    list[str] | None,
    plain(
        "Read the text from this column of a table if no column name shows which one it is; "
        "repeat to join several columns."
    ),
]

#: The option ``--language``, for a command that reads its value as well.
CorpusLanguage = Annotated[
    str | None,
    plain(
        "Treat the corpus as written in this language, an ISO 639 code or an English name. It "
        "decides how sentences are split and, unless --bm25-analyzer names an analyzer other "
        "than english, how BM25 stems words and removes stop words. Default: the language that "
        "most text of a folder of files is written in; English for other collections."
    ),
]

_Strict = Annotated[
    bool,
    Option(
        "--strict",
        help="Refuse a folder with a file that cannot be read, instead of leaving the file out.",
    ),
]


def reads_files(command: Command) -> Command:
    """Give a command the flags of all commands, and those of reading files if it has a dataset.

    Reading settings become part of the dataset's name
    (:class:`~beir_cocodr.data.files.file_folder.Reading`), and BM25 uses the language's analyzer.
    """
    original = signature(command, eval_str=True)
    has_dataset = "dataset" in original.parameters
    # Some commands have the option themselves: they split sentences by it.
    has_language = "language" in original.parameters
    hints: dict[str, object] = {"verbose": Verbose}
    if has_dataset:
        hints["text_column"] = _TextColumn
        hints["strict"] = _Strict
    if has_dataset and not has_language:
        hints["language"] = CorpusLanguage
    added = []
    for name, hint in hints.items():
        default = False if name == "strict" else None
        added.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))

    @wraps(command)
    def extended(**values: Any) -> object:
        values.pop("verbose")  # its callback has already done the work
        if has_dataset:
            columns = values.pop("text_column") or []
            language = values["language"] if has_language else values.pop("language")
            if language is not None:
                language = _use_language(language, values)
            _read_with(columns, language, values.pop("strict"), values)
        _check_output(values)
        return command(**values)

    parameters = [*original.parameters.values(), *added]
    return with_parameters(extended, sorted(parameters, key=lambda parameter: parameter.kind))


# The arguments of commands that name datasets, and those that name models.
_DATASETS = ("dataset", "source", "target")
_MODELS = ("model", "models", "teacher", "student")


def _check_output(values: Mapping[str, Any]) -> None:
    """Check that the output of a command is apart from the datasets and models that it reads.

    Raises:
        InputError: it is one of them, or would become a document of one.
    """
    output = values.get("output")
    if output is None:
        return
    # Imported here because --help needs nothing that reads files.
    from beir_cocodr.data.collection import check_apart

    check_output(Path(output), [_encoder(name) for name in _names(values, _MODELS)])
    for dataset in _names(values, _DATASETS):
        check_apart(output, dataset)


def _names(values: Mapping[str, Any], arguments: Iterable[str]) -> Iterator[str]:
    for argument in arguments:
        value = values.get(argument)
        names = value if isinstance(value, list) else [value]
        yield from (str(name) for name in names if name)


def _encoder(model: str) -> str:
    """Return the name of the encoder of a model."""
    # Imported here because --help needs no models.
    from beir_cocodr.models.spec import ModelSpec

    try:
        return ModelSpec.parse(model).encoder
    except InputError:  # the command itself refuses the name
        return model


def _use_language(name: str, values: dict[str, object]) -> str:
    """Make BM25 analyse texts as the language asks, and return the language's code."""
    language = Language.parse(name)
    log.info("%s", language.describe())
    if values.get("bm25_analyzer", "") in (None, "english"):
        values["bm25_analyzer"] = language.analyzer
    return language.code


def _read_with(
    columns: list[str],
    language: str | None,
    strict: bool,
    values: dict[str, Any],
) -> None:
    """Put the settings of reading into the names of the datasets among a command's values.

    Args:
        columns: the text columns.
        language: the code of the language.
        strict: refuse what cannot be read.
        values: the command's values by name, changed in place.

    Raises:
        InputError: columns are named without a dataset.
    """
    dataset = values["dataset"]
    if columns and dataset is None:
        raise InputError(
            "--text-column describes files, and no dataset is named; give --dataset too, or "
            "leave --text-column out"
        )
    settings = {}
    if columns:
        settings["text"] = ",".join(columns)
    if language:
        settings["language"] = language
    if strict:
        settings["strict"] = "true"
    if not settings or dataset is None:
        return
    if isinstance(dataset, list):
        values["dataset"] = [_with_settings(name, settings) for name in dataset]
    else:
        values["dataset"] = _with_settings(dataset, settings)


def _with_settings(dataset: str, settings: Mapping[str, str]) -> str:
    """Return the name of a dataset that is read with these settings.

    A collection that is not read from files keeps its name.

    Raises:
        InputError: a text column is set for a collection that has none.
    """
    # Imported here because --help needs nothing that reads files.
    from beir_cocodr.data.collection import resolve_source

    source = resolve_source(dataset, "test")
    is_corpus_file = isinstance(source, FileSource) and source.folder is None
    if isinstance(source, TextFiles) or (is_corpus_file and "text" in settings):
        return Reading.extend(dataset, **settings)
    if "text" in settings:
        raise InputError(
            f"--text-column describes tables and files, and {dataset} is a collection; leave "
            "--text-column out"
        )
    return dataset
