"""What stands around a command's results: the groups of the help, and at the end its files and the next command."""

from __future__ import annotations

import logging
import os
import shlex
import string
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Exit, Option
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Guide:
    """How a command is introduced and how it ends; texts in braces are its settings.

    Args:
        group: heading of the help.
        done: the sentence at its end.
        following: what to run next; the first one counts whose settings are all given.
    """

    group: str
    done: str
    following: tuple[str, ...]


_START, _SEARCH, _TRAIN, _STUDY = "Begin", "Search and judge", "Adapt and train", "Look into data and models"

_REPORT, _TRAINED = "report {output}", "compare --dataset {dataset} {model} {output}"

#: Command, as it is called, to its guide, in the order of the help. Every command has a row.
COMMANDS = {
    "quickstart": Guide(_START, "The quickstart is complete", (_REPORT,)),
    "validate": Guide(_START, "{dataset} can be read", ("search --dataset {dataset} 'what you look for'",)),
    "doctor": Guide(_START, "What is missing stands in the table, with the way to get it", ("quickstart --fast",)),
    "search": Guide(
        _SEARCH,
        "{dataset} is searched",
        ("compare --dataset {dataset} --parity {output}", "compare --dataset {dataset} bm25 minilm hybrid:minilm"),
    ),
    "encode": Guide(_SEARCH, "{dataset} is encoded", ("search --dataset {dataset} --store {output} 'your words'",)),
    "evaluate": Guide(_SEARCH, "The models are measured on {dataset}", (_REPORT,)),
    "compare": Guide(
        _SEARCH, "The comparison on {dataset} is complete", (_REPORT, "adapt --dataset {dataset} --base minilm --help")
    ),
    "report": Guide(_SEARCH, "The page opens in any browser", ("search --help",)),
    "adapt": Guide(_TRAIN, "{base} is adapted to {dataset} and judged", (_REPORT,)),
    "pretrain": Guide(_TRAIN, "{model} is pre-trained on {dataset}", (_TRAINED,)),
    "finetune": Guide(_TRAIN, "{model} is fine-tuned on {dataset}", (_TRAINED,)),
    "distill": Guide(_TRAIN, "{model} has learnt from {teacher}", (_TRAINED,)),
    "fuse": Guide(
        _TRAIN, "{model} is fused with BM25 of {dataset}", ("search --dataset {dataset} --model {output} 'your words'",)
    ),
    "generate-queries": Guide(
        _TRAIN,
        "The queries of {dataset} are generated",
        ("adapt --dataset {dataset} --base minilm --stages qgen --queries {output} --output adapted",),
    ),
    "qpp": Guide(_STUDY, "The predictors are correlated with the quality of {model}", ("qpp --help",)),
    "shift": Guide(_STUDY, "{source} is compared with {target}", ("adapt --help",)),
    "representation": Guide(_STUDY, "{model} is measured on {dataset}", ("compare --dataset {dataset} {model}",)),
    "source-clusters": Guide(_STUDY, "{before} and {after} are compared on {source}", ("shift --help",)),
    "overlap": Guide(_STUDY, "{train} is compared with {test}", ("resample restrain --help",)),
    "resample": Guide(_STUDY, "", ()),
    "resample restrain": Guide(
        _STUDY, "The collections are made", ("resample evaluate --folder {output} --architecture bm25 --output judged",)
    ),
    "resample resttest": Guide(
        _STUDY, "The buckets are made", ("resample evaluate --folder {output} --architecture bm25 --output judged",)
    ),
    "resample evaluate": Guide(_STUDY, "The architectures are judged", ("resample evaluate --help",)),
}


class _Values(string.Formatter):
    """Fills templates with settings as a shell reads them; KeyError for one that was not given."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> str:
        value = kwargs.get(str(key))
        if value in (None, [], ()):
            raise KeyError(key)
        return shlex.join(map(str, value if isinstance(value, list | tuple) else [value]))


def ending(command: str, settings: Mapping[str, object]) -> list[str]:
    """The last lines of a command: one sentence with its files, and what to run next."""
    guide, filled = COMMANDS[command], _Values()

    def fill(text: str) -> str | None:
        try:
            return filled.vformat(text, (), settings)
        except KeyError:
            return None

    files = fill(" Files: {output}") or ""
    following = next((found for text in guide.following if (found := fill(text))), None)
    return [f"{fill(guide.done) or guide.done}.{files}", *([f"Next: beir-cocodr {following}"] if following else [])]


class Command(TyperCommand):
    """A command that ends with :func:`ending`, and knows flags by older names and without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Takes ``--corpus`` for ``--dataset``, and ``--ray`` without a value for ``--ray auto``."""
        end = args.index("--") if "--" in args else len(args)
        words = []
        for word, after in zip(args[:end], [*args[1:end], "-"], strict=True):
            name, equals, value = word.partition("=")
            name = "--dataset" if name == "--corpus" else name
            bare = word == "--ray" and after.startswith("-")
            words.append("--ray=auto" if bare else name + equals + value)
        return super().parse_args(ctx, words + args[end:])

    def invoke(self, ctx: Any) -> Any:
        found = super().invoke(ctx)
        # Of several processes, as torchrun starts them, the first one speaks.
        if not ctx.params.get("show_config") and os.environ.get("RANK", "0") == "0" and sys.stderr is not None:
            if sys.stdout is not None:
                sys.stdout.flush()
            name = ctx.command_path.partition(" ")[2]
            print(*ending(name, ctx.params), sep="\n", file=sys.stderr)
        return found


class Group(TyperGroup):
    """Commands under the headings of :data:`COMMANDS`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        if ctx.parent is not None:
            super().format_commands(ctx, formatter)
            return
        limit = formatter.width - 6 - max(map(len, self.commands))
        for group in dict.fromkeys(guide.group for guide in COMMANDS.values()):
            names = [name for name in COMMANDS if name in self.commands and COMMANDS[name].group == group]
            with formatter.section(group):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in names])


#: What keeps bars and notes of the hosts off the terminal; they read it when they are imported.
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


class Noise(logging.Filter):
    """Lets our own lines pass, and errors of the hosts; their warnings as well where they are asked for."""

    least = logging.ERROR

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.startswith("beir_cocodr") or record.levelno >= self.least


def hush() -> None:
    """Keep the hosts quiet, unless the surroundings or Python's own flags say otherwise."""
    Noise.least = logging.ERROR
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _hear(verbose: bool) -> None:
    if verbose:
        Noise.least = logging.WARNING
        for name, value in _QUIET.items():
            if os.environ.get(name) == value:
                del os.environ[name]
        if not sys.warnoptions:
            warnings.resetwarnings()


def _print_version(asked: bool) -> None:
    if asked:
        from beir_cocodr import __version__

        print(f"beir-cocodr {__version__}")
        raise Exit()


#: Flag of every command, and of the program.
Verbose = Annotated[
    bool,
    Option("--verbose", "-v", callback=_hear, expose_value=False, help="Print bars and warnings of libraries, too."),
]

Version = Annotated[
    bool, Option("--version", callback=_print_version, is_eager=True, expose_value=False, help="Print the version.")
]


def root(version: Version = False, verbose: Verbose = False) -> None:
    """The flags of the program itself."""
