"""What stands around a command's results: the groups of the help, and at the end its files and the
next command.
"""

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Mapping
from typing import Annotated, Any

from typer import Exit, Option
from typer.core import TyperCommand, TyperGroup

_REPORT, _TRAINED = "report {output}", "compare --dataset {dataset} {model} {output}"
_SEARCH = "search --dataset {dataset} 'what you look for'"
_JUDGE = "resample evaluate --folder {output} --architecture bm25 --output judged"

_JUDGED = "compare --dataset {dataset} {compared} --output {verdict}"

#: Heading of the help to its commands, each with the sentence at its end and what to run next: the
#: first whose settings, which stand in braces, are all given. Every command has a row.
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "Begin": {
        "quickstart": ("The quickstart is complete", _REPORT),
        "try": ("The page is closed", _JUDGED, "try {dataset} --output {output}", "try --help"),
        "validate": ("{dataset} can be read", _SEARCH),
        "doctor": (
            "What is missing stands in the table, with the way to get it",
            "quickstart --fast",
        ),
    },
    "Search and judge": {
        "search": (
            "{dataset} is searched",
            "compare --dataset {dataset} bm25 minilm hybrid:minilm",
        ),
        "serve": ("The page is closed", _JUDGED, "serve --help"),
        "encode": ("{dataset} is encoded", f"{_SEARCH} --store {{output}}"),
        "evaluate": ("The models are measured on {dataset}", _REPORT),
        "compare": (
            "The comparison on {dataset} is complete",
            _REPORT,
            "adapt --dataset {dataset} --help",
        ),
        "report": ("The page opens in any browser", "search --help"),
    },
    "Adapt and train": {
        "adapt": ("{base} is adapted to {dataset} and judged", _REPORT),
        "pretrain": ("{model} is pre-trained on {dataset}", _TRAINED),
        "finetune": ("{model} is fine-tuned on {dataset}", _TRAINED),
        "distill": ("{model} has learnt from {teacher}", _TRAINED),
        "fuse": ("{model} is fused with BM25 of {dataset}", f"{_SEARCH} --model {{output}}"),
        "export": (
            "The labelled queries of {dataset} are written",
            "finetune --dataset {dataset} --help",
        ),
        "generate-queries": (
            "{dataset} has queries now",
            "finetune --dataset {output} --model minilm --output tuned",
        ),
    },
    "Look into data and models": {
        "qpp": ("The predictors are correlated with the quality of {model}", "qpp --help"),
        "shift": ("{source} is compared with {target}", "adapt --help"),
        "representation": (
            "{model} is measured on {dataset}",
            "compare --dataset {dataset} {model}",
        ),
        "source-clusters": ("{before} and {after} are compared on {source}", "shift --help"),
        "overlap": ("{train} is compared with {test}", "resample restrain --help"),
        "resample": ("",),
        "resample restrain": ("The collections are made", _JUDGE),
        "resample resttest": ("The buckets are made", _JUDGE),
        "resample evaluate": ("The architectures are judged", "resample evaluate --help"),
    },
    "Run other tools": {
        "irds": ("The command of ir_datasets is complete", "irds list"),
        "pyserini": ("The module of Pyserini has ended", "pyserini --help"),
    },
}

COMMANDS = {name: row for rows in GROUPS.values() for name, row in rows.items()}


def ending(command: str, settings: Mapping[str, object]) -> list[str]:
    """The last lines of a command: one sentence with its files, and what to run next."""
    given = {
        name: value if isinstance(value, list | tuple) else [value]
        for name, value in settings.items()
    }
    words = {
        name: shlex.join(map(str, value))
        for name, value in given.items()
        if value not in ([], (), [None])
    }

    def fill(text: str) -> str | None:
        try:
            return text.format_map(words)
        except KeyError:
            return None

    done, *following = COMMANDS[command]
    filled = [f"Next: beir-cocodr {found}" for text in following if (found := fill(text))]
    return [f"{fill(done) or done}.{fill(' Files: {output}') or ''}", *filled[:1]]


class Command(TyperCommand):
    """A command that ends with :func:`ending`, and knows flags by older names and without a
    value.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Takes ``--corpus`` for ``--dataset``, and ``--ray`` without a value for ``--ray auto``;
        what is passed on to another tool is left as it is.
        """
        if ctx.ignore_unknown_options:
            return super().parse_args(ctx, list(args))  # the host takes words away
        end = args.index("--") if "--" in args else len(args)
        words = [
            "--dataset" + word[8:] if word.split("=")[0] == "--corpus" else word
            for word in args[:end]
        ]
        pairs = zip(words, [*words[1:], "-"], strict=False)
        words = [
            "--ray=auto" if word == "--ray" and after.startswith("-") else word
            for word, after in pairs
        ]
        return super().parse_args(ctx, words + args[end:])

    def invoke(self, ctx: Any) -> Any:
        found = super().invoke(ctx)
        # Of several processes, as torchrun starts them, the first one speaks.
        if (
            not ctx.params.get("show_config")
            and os.environ.get("RANK", "0") == "0"
            and sys.stderr is not None
        ):
            if sys.stdout is not None:
                sys.stdout.flush()
            name = ctx.command_path.partition(" ")[2]
            print(*ending(name, ctx.params), sep="\n", file=sys.stderr)
        return found


class Group(TyperGroup):
    """Commands under the headings of :data:`GROUPS`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        if ctx.parent is not None:
            super().format_commands(ctx, formatter)
            return
        limit = formatter.width - 6 - max(map(len, self.commands))
        for group, rows in GROUPS.items():
            shown = [
                (name, self.commands[name].get_short_help_str(limit))
                for name in rows
                if name in self.commands
            ]
            with formatter.section(group):
                formatter.write_dl(shown)


#: What keeps bars and notes of the hosts off the terminal; they read it when they are imported.
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


class Noise(logging.Filter):
    """Lets our own lines pass, and errors of the hosts; their warnings as well where they are asked
    for.
    """

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
        for name in [name for name, value in _QUIET.items() if os.environ.get(name) == value]:
            del os.environ[name]
        warnings.simplefilter("default")


def _print_version(asked: bool) -> None:
    if asked:
        from beir_cocodr import __version__

        print(f"beir-cocodr {__version__}")
        raise Exit()


#: Flag of every command, and of the program.
Verbose = Annotated[
    bool,
    Option(
        "--verbose",
        "-v",
        callback=_hear,
        expose_value=False,
        help="Print bars and warnings of libraries, too.",
    ),
]

Version = Annotated[
    bool,
    Option(
        "--version",
        callback=_print_version,
        is_eager=True,
        expose_value=False,
        help="Print the version.",
    ),
]


def root(version: Version = False, verbose: Verbose = False) -> None:
    """The flags of the program itself."""
