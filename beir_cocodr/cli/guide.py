"""The way through the commands: their former names, and what to run next."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Exit, Option
from typer.core import TyperCommand

from beir_cocodr.cli.carried import carried_options
from beir_cocodr.cli.examples import EXAMPLES
from beir_cocodr.cli.model_names import merge_models
from beir_cocodr.cli.noise import Verbose
from beir_cocodr.errors import InputError

#: Former names of commands, which go on working without being shown.
FORMER_COMMANDS = {
    name: ("study", name)
    for name in ("qpp", "shift", "representation", "source-clusters", "overlap", "resample")
}

#: Former names of options, which go on working without being shown.
FORMER_OPTIONS = {"--corpus": "--dataset", "--base": "--model"}

_NO_SMOOTHING = (
    "the smoothing of stores was removed; leave it out, or fuse the model with BM25 by fuse"
)

#: Options that were removed, with what to do instead.
REMOVED_OPTIONS = {
    "--smooth": _NO_SMOOTHING,
    "--smooth-neighbours": _NO_SMOOTHING,
    "--smooth-weight": _NO_SMOOTHING,
}


@dataclass(frozen=True)
class Ending:
    """The last lines of a command. Names in braces are replaced by the settings of these names.

    Attributes:
        done: one sentence about what the command did.
        following: commands to run next; the first whose settings were all given is printed.
    """

    done: str
    following: tuple[str, ...] = ()


_REPORT = "report {output}"
_SEARCH = "search --dataset {dataset} 'what you look for'"
_COMPARE_TRAINED = "compare --dataset {dataset} {model} {output}"
_COMPARE_JUDGED = "compare --dataset {dataset} {compared} --output {verdict}"
_JUDGE_RESAMPLED = "study resample evaluate --folder {output} --architecture bm25 --output judged"

#: Every command with its ending.
ENDINGS = {
    "quickstart": Ending("The quickstart is complete", (_REPORT,)),
    "try": Ending(
        "The page is closed",
        (_COMPARE_JUDGED, "try {dataset} --output {output}", "try --help"),
    ),
    "search": Ending(
        "{dataset} was searched",
        (
            "compare --dataset {dataset} {model} {others}",
            "compare --dataset {dataset} bm25 minilm hybrid:minilm",
        ),
    ),
    "compare": Ending(
        "The comparison on {dataset} is complete",
        (_REPORT, "adapt --dataset {dataset} --help"),
    ),
    "gate": Ending("NEW may replace OLD", (_REPORT, "gate --help")),
    "adapt": Ending("{model} was adapted to {dataset} and compared", (_REPORT,)),
    "fuse": Ending(
        "{model} was fused with BM25 over {dataset}", (f"{_SEARCH} --model {{output}}",)
    ),
    "evaluate": Ending("The models were measured on {dataset}", (_REPORT,)),
    "report": Ending("The page opens in any browser", ("search --help",)),
    "validate": Ending("{dataset} can be read", (_SEARCH,)),
    "doctor": Ending("The table says what is missing and how to get it", ("quickstart --fast",)),
    "cache": Ending("Anything removed from the cache is made again when needed", ("cache --help",)),
    "pretrain": Ending("{model} was pre-trained on {dataset}", (_COMPARE_TRAINED,)),
    "finetune": Ending("{model} was fine-tuned on {dataset}", (_COMPARE_TRAINED,)),
    "distill": Ending("{model} was trained on the lists of {teacher}", (_COMPARE_TRAINED,)),
    "generate-queries": Ending(
        "The queries for {dataset} are complete",
        ("finetune --dataset {output} --model minilm --output tuned",),
    ),
    "export": Ending(
        "The labelled queries of {dataset} were written", ("finetune --dataset {dataset} --help",)
    ),
    "encode": Ending("{dataset} is encoded", (f"{_SEARCH} --store {{output}}",)),
    "serve": Ending("The page is closed", (_COMPARE_JUDGED, "serve --help")),
    "hand-over": Ending("{model} can be loaded into {to}", ("hand-over --help",)),
    "learn": Ending(
        "Learning from the judgements is complete for {model}",
        (f"{_SEARCH} --model {{model}} --learned {{output}}",),
    ),
    "study": Ending("The analysis is complete"),
    "study qpp": Ending(
        "The predictors were correlated with the quality of {model}", ("study qpp --help",)
    ),
    "study shift": Ending("{source} was compared with {target}", ("adapt --help",)),
    "study representation": Ending(
        "{model} was measured on {dataset}", ("compare --dataset {dataset} {model}",)
    ),
    "study source-clusters": Ending(
        "{before} and {after} were compared on {source}", ("study shift --help",)
    ),
    "study overlap": Ending(
        "{train} was compared with {test}", ("study resample restrain --help",)
    ),
    "study resample": Ending("The resampling is complete"),
    "study resample restrain": Ending("The collections were written", (_JUDGE_RESAMPLED,)),
    "study resample resttest": Ending("The buckets were written", (_JUDGE_RESAMPLED,)),
    "study resample evaluate": Ending(
        "The architectures were evaluated", ("study resample evaluate --help",)
    ),
    "irds": Ending("The command of ir_datasets is complete", ("irds list",)),
    "pyserini": Ending("The module of Pyserini has ended", ("pyserini --help",)),
}


#: The ending of a generation that waits for the shards of other processes.
UNFINISHED_GENERATION = Ending(
    "This part of the queries for {dataset} is complete, and others are missing",
    ("generate-queries --help",),
)

_NEXT = "Next: beir-cocodr "

# Models that a search is compared with.
_COMPARED = ("bm25", "minilm", "hybrid:minilm")


def ending(
    command: str,
    settings: Mapping[str, object],
    row: Ending | None = None,
) -> list[str]:
    """Return the last lines of a command: its ending with the files, and what to run next.

    Args:
        command: the command's words, such as "study qpp".
        settings: its parameters by name; those that are None or empty count as not given.
        row: the ending. Default: that of the command in :data:`ENDINGS`.
    """
    words = _shell_words(settings)
    row = row or ENDINGS[command]
    files = _filled(" Files: {output}", words) or ""
    lines = [f"{_filled(row.done, words) or row.done}.{files}"]
    for text in row.following:
        following = _filled(text, words)
        if following is not None:
            lines.append(f"{_NEXT}{following}")
            break
    return lines


def _shell_words(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the settings that were given, each as a shell reads it."""
    words = {}
    for name, value in settings.items():
        values = value if isinstance(value, list | tuple) else [value]
        if len(values) > 0 and values[0] is not None:
            words[name] = shlex.join(map(str, values))
    others = [model for model in _COMPARED if model != words.get("model")]
    words["others"] = shlex.join(others)
    return words


def _filled(text: str, words: Mapping[str, str]) -> str | None:
    """Return the text with its settings, or None where one of them is missing."""
    try:
        return text.format_map(words)
    except KeyError:
        return None


class Command(TyperCommand):
    """A command that knows former names of options, and says at its end what to run next."""

    # Typer keeps its context's class private, hence Any.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command, with former names of options replaced by the new ones.

        Words that are passed on to another tool stay as they are.

        Raises:
            InputError: an option was removed, or the models are named twice or not at all.
        """
        if ctx.ignore_unknown_options:
            return super().parse_args(ctx, list(args))  # typer empties the list that it gets
        end = args.index("--") if "--" in args else len(args)
        options = [current_option(word) for word in args[:end]]
        rest = super().parse_args(ctx, [*_with_ray_address(options), *args[end:]])
        needs_model = getattr(self.callback, "needs_model", False)
        # A shell that completes a line asks before all of it is typed.
        merge_models(ctx.params, needs_model and not ctx.resilient_parsing)
        return rest

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the command's examples below its options."""
        command = ctx.command_path.partition(" ")[2]
        with formatter.section("Examples"):
            for example in EXAMPLES.get(command, ()):
                formatter.write(f"  beir-cocodr {example}\n")

    def invoke(self, ctx: Any) -> Any:
        """Run the command and print its ending on stderr: the one that it returns, or its usual."""
        result = super().invoke(ctx)
        # Among several processes, as torchrun starts them, the first one speaks.
        is_first = os.environ.get("RANK", "0") == "0"
        if is_first and not ctx.params.get("show_config") and sys.stderr is not None:
            if sys.stdout is not None:
                sys.stdout.flush()
            command = ctx.command_path.partition(" ")[2]
            lines = ending(command, ctx.params, result)
            if lines[-1].startswith(_NEXT):
                lines[-1] += carried_options(ctx, lines[-1].removeprefix(_NEXT))
            print(*lines, sep="\n", file=sys.stderr)
        return result


def current_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the present name of the command."""
    return [*FORMER_COMMANDS.get(words[0], (words[0],)), *words[1:]]


def current_option(word: str) -> str:
    """Return the word with the present name of its option.

    Raises:
        InputError: the option was removed.
    """
    option, equals, value = word.partition("=")
    if option in REMOVED_OPTIONS:
        raise InputError(f"{option}: {REMOVED_OPTIONS[option]}")
    return FORMER_OPTIONS.get(option, option) + equals + value


def _with_ray_address(words: Sequence[str]) -> list[str]:
    """Return the words with ``--ray=auto`` for a ``--ray`` that no address follows."""
    completed = []
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else "-"
        if word == "--ray" and following.startswith("-"):
            word = "--ray=auto"
        completed.append(word)
    return completed


def summary(command: Any) -> str:
    """Return the first line of a command's help, which is one sentence."""
    return str(command.help or "").partition("\n")[0]


def _print_version(asked: bool) -> None:
    if asked:
        from beir_cocodr import __version__

        print(f"beir-cocodr {__version__}")
        raise Exit()


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
    """Take the flags of the program itself."""
