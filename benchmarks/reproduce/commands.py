"""Commands: a check that the installed version has them, and their execution."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from reproduce import make
from reproduce.scales import is_distributed

#: Kinds of models that may precede an encoder's name, and that some versions lack.
KINDS = ("rerank", "splade", "colbert")


@cache
def _commands() -> Any:
    import typer

    from beir_cocodr.cli.__main__ import app

    return typer.main.get_command(app)


def unavailable(words: list[str]) -> str:
    """Say why the installed version cannot run a command; "" if it can.

    Nothing is run, and no file is read.
    """
    if words[0] == "make":
        return ""
    words = _current(words)
    command = _commands()
    rest = words
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"there is no command {' '.join(words[:2])}"
        command = command.commands[rest[0]]
        rest = rest[1:]
    options = {}
    for option in command.params:
        for flag in (*option.opts, *option.secondary_opts):
            options[flag] = option
    flags = Counter(word for word in rest if word.startswith("--"))
    for flag, count in flags.items():
        if flag not in options:
            return f"{command.name} has no option {flag}"
        if count > 1 and not options[flag].multiple:
            return f"{command.name} takes one {flag}, and {count} are needed"
    return _unknown_value(words)


def _current(words: list[str]) -> list[str]:
    """Return the words with the present names of the command and its options."""
    from beir_cocodr.cli.guide import current_option, current_words

    return [current_option(word) for word in current_words(words)]


def _unknown_value(words: list[str]) -> str:
    """Say which kind of model or preset the installed version lacks; "" if none."""
    from beir_cocodr.models.spec import ModelSpec
    from beir_cocodr.training.presets import PRESETS

    for flag, value in pairwise(words):
        kind = value.partition(":")[0].partition("@")[0]
        if flag == "--model" and kind in KINDS and ModelSpec.parse(value).kind == "dense":
            return f"models of the kind {kind} are missing"
        if flag == "--preset" and value not in PRESETS:
            return f"there is no preset {value}"
    return ""


def command_line(words: list[str], gpus: int) -> list[str]:
    """Return a whole command line, with torchrun where several processes work."""
    if words[0] == "make":
        return ["python", "benchmarks/reproduce/make.py", *words[1:]]
    if is_distributed(words) and gpus > 1:
        line = ["torchrun", "--standalone", "--nproc-per-node", str(gpus), "-m"]
        if "--start" in words:
            line.append("--")  # Otherwise torchrun takes --start for an option of its own.
        return [*line, "beir_cocodr.cli", *_current(words)]
    return ["beir-cocodr", *_current(words)]


def run(
    words: list[str],
    log: Path,
    gpus: int,
    *,
    inside: bool,
) -> None:
    """Run a command, with its output in a file.

    Args:
        words: The command.
        log: The file.
        gpus: The processes of a training.
        inside: Run it in this process.

    Raises:
        RuntimeError: It failed; the message is its last line.
    """
    with log.open("a") as file:
        if inside:
            status = _run_inside(words, file)
        else:
            command = [sys.executable, *_module(words, gpus)]
            status = subprocess.run(
                command,
                stdout=file,
                stderr=file,
                check=False,
            ).returncode
    if status:
        lines = log.read_text().strip().splitlines() or [f"exit status {status}"]
        raise RuntimeError(lines[-1])


def _module(words: list[str], gpus: int) -> list[str]:
    """Return the arguments of Python that run a command."""
    if words[0] == "make":
        return [str(make.__file__), *words[1:]]
    if is_distributed(words) and gpus > 1:
        return ["-m", "torch.distributed.run", *command_line(words, gpus)[1:]]
    return ["-m", "beir_cocodr.cli", *words]


def _run_inside(words: list[str], file: Any) -> int:
    from beir_cocodr.cli.__main__ import main

    root = logging.getLogger()
    for handler in root.handlers[:]:
        if type(handler).__module__.startswith("beir_cocodr"):
            root.removeHandler(handler)
    try:
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            if words[0] == "make":
                make.main(words[1:])
            else:
                main(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0
