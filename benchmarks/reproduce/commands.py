"""Whether a command can be run by what is installed, and running it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from reproduce import make
from reproduce.scales import DISTRIBUTED

#: Kinds of models that may stand before an encoder's name, and which some versions lack.
KINDS = ("rerank", "splade", "colbert")


@cache
def _commands() -> Any:
    import typer

    from beir_cocodr.cli.__main__ import app

    return typer.main.get_command(app)


def unavailable(words: list[str]) -> str:
    """Why no such command can be run yet; "" where it can. Nothing is run, and no file is looked
    at.
    """
    if words[0] == "make":
        return ""
    words = _current(words)
    command, rest = _commands(), words
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"there is no command {' '.join(words[:2])}"
        command, rest = command.commands[rest[0]], rest[1:]
    options = {flag: one for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    for flag, count in Counter(word for word in rest if word.startswith("--")).items():
        if flag not in options:
            return f"{command.name} has no option {flag}"
        if count > 1 and not options[flag].multiple:
            return f"{command.name} takes one {flag}, and {count} are needed"
    return _unknown(words)


def _current(words: list[str]) -> list[str]:
    """The words with the present names of the command and its options."""
    from beir_cocodr.cli.guide import current_option, current_words

    return [current_option(word) for word in current_words(words)]


def _unknown(words: list[str]) -> str:
    """Why a model's kind, a preset or a predictor is not there."""
    from beir_cocodr.models.spec import ModelSpec
    from beir_cocodr.training.presets import PRESETS

    for flag, value in pairwise(words):
        kind = value.partition(":")[0].partition("@")[0]
        if flag == "--model" and kind in KINDS and ModelSpec.parse(value).kind == "dense":
            return f"models of the kind {kind}: are not there"
        if flag == "--preset" and value not in PRESETS:
            return f"there is no preset {value}"
    return ""


def shown(words: list[str], gpus: int) -> list[str]:
    """The words of a whole command line, with torchrun before what works on several processes."""
    if words[0] == "make":
        return ["python", "benchmarks/reproduce/make.py", *words[1:]]
    if _is_distributed(words) and gpus > 1:
        own = ["--"] if "--start" in words else []  # torchrun takes it for one of its own
        return [
            "torchrun",
            "--standalone",
            "--nproc-per-node",
            str(gpus),
            "-m",
            *own,
            "beir_cocodr.cli",
            *_current(words),
        ]
    return ["beir-cocodr", *_current(words)]


def _is_distributed(words: list[str]) -> bool:
    return words[0] in DISTRIBUTED or " ".join(words[:2]) in DISTRIBUTED


def run(words: list[str], log: Path, gpus: int, inside: bool) -> None:
    """Run a command with its output in a file, in this process with ``inside``; a RuntimeError with
    its last line.
    """
    with log.open("a") as file:
        if inside:
            status = _inside(words, file)
        else:
            status = subprocess.run(
                [sys.executable, *_module(words, gpus)], stdout=file, stderr=file
            ).returncode
    if status:
        lines = log.read_text().strip().splitlines() or [f"exit status {status}"]
        raise RuntimeError(lines[-1])


def _module(words: list[str], gpus: int) -> list[str]:
    if words[0] == "make":
        return [str(make.__file__), *words[1:]]
    if _is_distributed(words) and gpus > 1:
        return ["-m", "torch.distributed.run", *shown(words, gpus)[1:]]
    return ["-m", "beir_cocodr.cli", *words]


def _inside(words: list[str], file: Any) -> int:
    import logging

    from beir_cocodr.cli.__main__ import main

    for handler in logging.getLogger().handlers[:]:
        if type(handler).__module__.startswith("beir_cocodr"):
            logging.getLogger().removeHandler(handler)
    try:
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            make.main(words[1:]) if words[0] == "make" else main(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0
