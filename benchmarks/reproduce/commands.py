"""Commands: a check that the installed version has them, and their execution."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from reproduce import make
from reproduce.checks import check_words
from reproduce.scales import is_distributed, is_training, kind_of

#: Kinds of models that may precede an encoder's name, and that some versions lack.
KINDS = ("rerank", "splade", "colbert")


@cache
def _commands() -> Any:
    import typer

    from beir_cocodr.cli.__main__ import app

    return typer.main.get_command(app)


def unavailable(words: list[str], gpus: int = 1) -> str:
    """Say why the installed version cannot run a command; "" if it can.

    Nothing is run, and no file is read.

    Args:
        words: The command.
        gpus: The number of available GPUs, by which options are checked for as many processes as
            the command would have.
    """
    return _unavailable(tuple(words), gpus)


@cache  # Many cells of many tables need the same commands.
def _unavailable(given: tuple[str, ...], gpus: int) -> str:
    if given[0] == "make":
        return ""
    words = _current(list(given))
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
    return _unknown_value(words) or _refused(command, list(given), rest, gpus)


def _refused(
    command: Any,
    given: list[str],
    rest: list[str],
    gpus: int,
) -> str:
    """Say what a command refuses of its words, for as many processes as it has; "" if nothing.

    Args:
        command: The command.
        given: Its words as the plan has them.
        rest: The present words behind its name.
        gpus: The number of available GPUs.
    """
    from beir_cocodr.errors import InputError

    kind = kind_of(given)
    try:
        processes = fitting_processes(given, gpus) if is_distributed(given) else 1
        if is_training(given):
            options_of(given, processes)
        with _processes(processes):
            check_words(command, kind, rest)
    except InputError as error:
        return f"{kind} refuses its options: {error}"
    return ""


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


@contextlib.contextmanager
def _processes(count: int) -> Iterator[None]:
    """Set the number of processes, by which presets count batches, as torchrun would."""
    before = os.environ.get("WORLD_SIZE")
    os.environ["WORLD_SIZE"] = str(count)
    try:
        yield
    finally:
        os.environ.pop("WORLD_SIZE")
        if before is not None:
            os.environ["WORLD_SIZE"] = before


def options_of(words: list[str], processes: int) -> Any:
    """Return the options of a training command, from its preset, flags and settings.

    Args:
        words: The command.
        processes: The processes that run it, by which some presets count batches.

    Raises:
        InputError: The options refuse a value.
    """
    return _options_of(tuple(words), processes)


@cache  # The check of a command, its processes and its cost ask for the same options.
def _options_of(words: tuple[str, ...], processes: int) -> Any:
    from beir_cocodr.resampling.regimes import Recipe
    from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions
    from beir_cocodr.training.presets import stage_options
    from beir_cocodr.training.shared_options import setting_fields

    kinds = {
        "pretrain": PretrainOptions,
        "finetune": FinetuneOptions,
        "distill": DistillOptions,
        "resample evaluate": Recipe,
    }
    command = kind_of(list(words))
    kind: Any = kinds[command]
    values = dict(pairwise(words))
    assigned = [value for name, value in pairwise(words) if name == "--set"]
    for _, setting in setting_fields(kind):
        flag = f"--{setting.name.replace('_', '-')}"
        if flag in values:
            assigned.append(f"{setting.name}={values[flag]}")
    with _processes(processes):
        return stage_options(
            kind,
            command,
            values.get("--preset"),
            assigned,
        )


def fitting_processes(words: list[str], gpus: int) -> int:
    """Return how many GPUs a command takes: of a training, as many as divide its batches evenly.

    Args:
        words: The command.
        gpus: The number of available GPUs; 0 means a CPU.
    """
    return _fitting_processes(tuple(words), gpus)


@cache  # Many cells of many tables need the same commands.
def _fitting_processes(command: tuple[str, ...], gpus: int) -> int:
    words = list(command)
    if not is_training(words):
        return max(1, gpus)
    for processes in range(max(1, gpus), 1, -1):
        if options_of(words, processes).batch_size % processes == 0:
            return processes
    return 1


def _has_processes(words: list[str], gpus: int) -> bool:
    """Say whether torchrun starts several processes of a command."""
    return is_distributed(words) and fitting_processes(words, gpus) > 1


def command_line(words: list[str], gpus: int) -> list[str]:
    """Return a whole command line, with torchrun where several processes work."""
    if words[0] == "make":
        return ["python", "benchmarks/reproduce/make.py", *words[1:]]
    if _has_processes(words, gpus):
        processes = str(fitting_processes(words, gpus))
        line = ["torchrun", "--standalone", "--nproc-per-node", processes, "-m"]
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
    if _has_processes(words, gpus):
        return ["-m", "torch.distributed.run", *command_line(words, gpus)[1:]]
    return ["-m", "beir_cocodr.cli", *words]


def _run_inside(words: list[str], file: Any) -> int:
    from beir_cocodr.cli.__main__ import main

    _remove_handlers()
    try:
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            if words[0] == "make":
                make.main(words[1:])
            else:
                main(words)
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        _remove_handlers()
    return 0


def _remove_handlers() -> None:
    """Remove the handlers of a command's log, whose file is closed when the command has ended."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if type(handler).__module__.startswith("beir_cocodr"):
            root.removeHandler(handler)
