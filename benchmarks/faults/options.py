"""Bad options of a command: wrong values, unknown options, and required options left out."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_args

from typer.models import ArgumentInfo

from faults.commands import Scenario
from faults.parts import Broken

# Options that take text of any content.
_FREE = {
    "query_prompt",
    "document_prompt",
    "title_separator",
    "prefix",
    "prompt",
    "base_id",
    "language",
    "query",
    "collection",  # the name that another engine gives it
}

_DATASETS = {"dataset", "corpus", "source", "target", "train", "test", "ood"}
_MODELS = {"encoder", "base", "before", "after"}
# Options that say how long a command runs, which may be very long.
_AMOUNTS = {"max_steps", "epochs", "mlm_steps", "hub_timeout", "samples", "per_passage"}

NEVER = {
    int: ["abc", "", "1.5", "nan", "inf", "0x10", "--", "1e3"],
    float: ["abc", "", "nan", "-nan", "inf", "-inf", "1,5", "--"],
}
MAYBE = {
    int: ["-1", "0", "-2147483649", "4294967296", "18446744073709551616", "9" * 70],
    float: ["-1", "0", "-1e-9", "1e308"],
}
LARGE = ["1000000000", "1000000000000000000"]

STRINGS = [
    "",
    " ",
    "nonsense",
    "x" * 5000,
    "../../etc",
    "\udcff\udcfe",
    "a\nb",
    "🦆" * 300,
    "-",
    "null",
    "%s%n",
    "{}",
]
PATHS = [
    "nowhere",
    "",
    "x" * 300,
    "nowhere/" * 600,
    "\udcff\udcfe",
    "/dev/null",
    "/proc/self/mem",
    "in",
    ".",
]
#: Values for options of these names.
PARTICULAR = {
    "device": ["nonsense", "cuda", "cuda:99", "tpu", "meta", "cpu:-1", "", "mps", "cuda:0;x"],
    "measures": [
        "nDCG@0",
        "nDCG@-1",
        "nonsense@3",
        "",
        "P(rel=x)@5",
        "nDCG@999999999999999999999",
        "nDCG@10 nDCG@10",
    ],
    "measure": ["nDCG@0", "nonsense@3", "", "nDCG@10 R@100", "RR(rel=-1)@10"],
    "seed": ["-1", "4294967296", "18446744073709551616", "abc", "1.5", "nan"],
    "split": ["nonsense", "", "../qrels/test", "test.tsv", "x" * 300, "te\nst"],
    "model": [
        "nonsense",
        "",
        "hybrid:",
        "hybrid:bm25",
        "rrf:nonsense",
        "feedback:hybrid:in/model",
        "in/beir",
        "in",
    ],
    "queries": ["nowhere", "in/beir", "in/model", "", "in/beir/queries.jsonl"],
    "index": ["nonsense", "", "FLAT", "flat,hnsw"],
    "shard": ["0/1", "2/1", "-1/2", "a/b", "1/0", "", "1/99999999999999999999"],
    "ray": ["nonsense", "127.0.0.1:1"],
    "stages": ["", "nonsense", "coco,coco", ",,,", "finetune,nonsense"],
    "teacher": ["nonsense", "", "in/model", "in/bert", "in/beir", "file", "hybrid:nonsense"],
    "generator": ["nonsense", "", "in/beir", "in/bert", "in/model"],
    "architecture": ["nonsense", "", "bm25,bm25", ","],
    "folder": ["nowhere", "in/beir", "in/model", ""],
    "store": ["nowhere", "in/beir", "in/model", ""],
    "dataset": [
        "nowhere",
        "in/model",
        "irds:nonsense",
        "apidocs/nonsense",
        "",
        "in/model/config.json",
        "in",
        "irds:",
    ],
}
_ALWAYS_WRONG = {"", "nonsense", "nowhere", "in/model", "in/beir", "in"}

_UNKNOWN = ["--nonsense", "--outputt", "-z", "--set"]
_OUTPUTS = [
    "file",
    "file/below",
    "taken",
    "taken/mine.txt",
    "loop",
    "",
    ".",
    "x" * 300,
    "a/" * 2100,
    "new ü/\n",
    "/proc/nothing",
    "/sys/nothing",
    "/dev/null",
    "/dev/full",
    "\udcff\udcfe",
]
#: Outputs to which nothing can be written, for a command that must not run to its end.
_CLOSED = [
    "file",
    "file/below",
    "taken/mine.txt",
    "loop",
    "x" * 300,
    "a/" * 2100,
    "/proc/nothing",
    "/dev/null",
]


@dataclass(frozen=True)
class Option:
    """An option or argument of a command that takes a value.

    Attributes:
        name: Its name in Python.
        flag: Its name on the command line.
        kind: The type of its value.
    """

    name: str
    flag: str
    kind: type


def break_option(
    scenario: Scenario,
    settings: dict[str, Any],
    rng: random.Random,
    work: Path,
) -> tuple[Broken, list[str]]:
    """Give a bad value or an unknown option, or leave a required option out.

    Args:
        scenario: The command.
        settings: The settings that ``--set`` can give it.
        rng: The generator of the choice.
        work: The folder in which the command runs.

    Returns:
        What was broken, and the arguments.
    """
    arguments = scenario.line.split()
    kind = rng.random()
    if kind < 0.04:
        flag = rng.choice(_UNKNOWN)
        return Broken("options", flag, True), [*arguments, flag]
    flags = [word for word in arguments if word.startswith("--")]
    if kind < 0.08 and flags and not scenario.options:
        flag = rng.choice(flags)
        return Broken("options", flag, False), _without_option(arguments, flag)
    if settings and kind < 0.5:
        name = rng.choice(sorted(settings))
        value, shows = bad_value(name, _kind_of(settings[name]), rng)
        setting = f"{name}={value}"
        return Broken(f"--set {name}", setting, shows), [*arguments, "--set", setting]
    option = rng.choice(_options_of(scenario.command))
    if option.flag == "--output":
        value = _bad_output(work, scenario.parts, rng)
        if scenario.options:
            value = rng.choice(_CLOSED)
        shows = False
    elif scenario.options and option.kind in NEVER:
        # With a possible value it would run to its end, which may take minutes.
        value = rng.choice(NEVER[option.kind])
        shows = True
    else:
        value, shows = bad_value(option.name, option.kind, rng)
    words = len(scenario.command.split())
    arguments = _with_value(arguments, option.flag, value, words)
    text = value.replace("\0", "")
    shows = shows and option.name not in scenario.unused
    return Broken(option.name, f"{option.flag}={text}", shows), arguments


def _without_option(arguments: list[str], flag: str) -> list[str]:
    position = arguments.index(flag)
    end = position + 1
    if end < len(arguments) and not arguments[end].startswith("--"):
        end += 1
    return arguments[:position] + arguments[end:]


def _with_value(
    arguments: list[str],
    flag: str,
    value: str,
    words: int,
) -> list[str]:
    """Give an option another value, or the argument after the words of the command."""
    if flag in arguments:
        position = arguments.index(flag) + 1
        return [*arguments[:position], value, *arguments[position + 1 :]]
    if flag.startswith("--"):
        return [*arguments, flag, value]
    others = arguments[words:]
    if others and not others[0].startswith("-"):
        others = others[1:]
    return [*arguments[:words], value, *others]


def bad_value(
    name: str,
    kind: type,
    rng: random.Random,
) -> tuple[str, bool]:
    """Draw a bad value, and say whether it can never be right."""
    if name in PARTICULAR and rng.random() < 0.8:
        value = rng.choice(PARTICULAR[name])
        # A folder of any files is a dataset.
        return value, value in _ALWAYS_WRONG and (name, value) != ("dataset", "in")
    if kind in NEVER:
        large = [] if name in _AMOUNTS else LARGE
        value = rng.choice([*NEVER[kind], *MAYBE[kind], *large])
        return value, value in NEVER[kind]
    if kind is Path:
        return rng.choice(PATHS), False
    value = rng.choice(STRINGS)
    return value, value == "nonsense" and name not in _FREE


def _bad_output(
    work: Path,
    parts: list[str],
    rng: random.Random,
) -> str:
    """Draw an output that is a file, a folder of another's, a link, or cannot be written to."""
    (work / "file").write_text("text")
    (work / "taken").mkdir(exist_ok=True)
    (work / "taken" / "mine.txt").write_text("mine")
    (work / "loop").symlink_to("loop")
    return rng.choice([*_OUTPUTS, *(f"in/{part}" for part in parts)])


def names_option(line: str, broken: Broken) -> bool:
    """Say whether a line names the option at fault, or its value."""
    flag, _, value = broken.damage.partition("=")
    bare = flag.lstrip("-").replace("-", "_")
    words = [
        flag,
        bare,
        bare.replace("_", " "),
        value.strip("'\"")[:60],
        repr(value)[1:-1][:60],
        broken.file,
    ]
    if bare in _DATASETS:
        words.append("dataset")
    elif bare in _MODELS or "model" in bare:
        words.append("model")
    elif bare == "words":
        words.append("query")  # which the words after the command are
    if bare.endswith("_split"):
        words.append("split")
    if not value:
        words += ["error: .:", "error: . "]  # An empty path is the current folder.
    return any(word and word.lower() in line.lower() for word in words)


def _kind_of(value: object) -> type:
    if isinstance(value, bool):
        return str
    for kind in (float, int):
        if isinstance(value, kind):
            return kind
    return str


@cache
def _options_of(command: str) -> list[Option]:
    """List the options and arguments of a command that take a value."""
    from beir_cocodr import load_object
    from beir_cocodr.cli import commands
    from beir_cocodr.cli.reading import reads_files

    *groups, name = command.split()
    rows = {name: row for group in commands.GROUPS.values() for name, row in group.items()}
    for group in groups:
        rows = rows[group].rows
    function = reads_files(load_object(f"beir_cocodr.cli.{rows[name].function}"))
    options = []
    for name, parameter in signature(function, eval_str=True).parameters.items():
        option = _read_option(name, parameter)
        if option is not None:
            options.append(option)
    return options


def _read_option(name: str, parameter: Parameter) -> Option | None:
    """Read an option from a parameter; a flag without a value is none."""
    hint, declared = get_args(parameter.annotation) or (parameter.annotation, None)
    kinds = []
    for part in (hint, *get_args(hint)):
        kinds += [part, *get_args(part)]
    if bool in kinds:
        return None
    flags = [word for word in getattr(declared, "param_decls", None) or () if word[:2] == "--"]
    if isinstance(declared, ArgumentInfo):
        flag = name
    elif flags:
        flag = flags[0]
    else:
        flag = "--" + name.replace("_", "-")
    for kind in (int, float, Path):
        if kind in kinds:
            return Option(name, flag, kind)
    return Option(name, flag, str)
