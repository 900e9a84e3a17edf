"""The steps of a paper at a scale: which are done, which can be run, and running them."""

from __future__ import annotations

import functools
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from beir_cocodr.io import write_text
from reproduce.commands import command_line, run, unavailable
from reproduce.lineage import Making, mismatch
from reproduce.scales import Scale, resolve
from reproduce.specification import COMBINATIONS, Cell, Paper, Step, names_in, read, task_of


@functools.cache
def _split(line: str) -> tuple[str, ...]:
    return tuple(shlex.split(line))


class Workshop:
    """Steps of one paper at one scale, in folders below ``output``.

    Attributes:
        scale: The scale.
        output: The folder.
        inside: Whether commands run in this process.
        without: The tasks that are left out.
        steps: The steps by name.
        failed: A step to what went wrong in this run.
    """

    def __init__(
        self,
        paper: Paper,
        scale: Scale,
        output: Path,
        *,
        inside: bool = False,
        without: Sequence[str] = (),
    ) -> None:
        self.scale = scale
        self.without = tuple(without)
        self.output = output
        self.inside = inside
        self.steps: dict[str, Step] = {}
        for name, step in paper.steps.items():
            self.steps[name] = step.without(without)
        self.failed: dict[str, str] = {}
        self._first: dict[tuple[str, ...], str] = {}
        self._names: dict[str, str] = {}
        self._words: dict[str, list[list[str]]] = {}

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return getattr(self.scale, "gpus", 1)

    def first_equal(self, name: str) -> str:
        """Return the first step that runs the same commands; at a small scale many do."""
        if name not in self._names:
            commands = self.steps[name].commands
            key = tuple(resolve(command, self.scale, self.folder) for command in commands)
            self._names[name] = self._first.setdefault(key, name)
        return self._names[name]

    def folder(self, name: str) -> Path:
        """Return the folder of a step."""
        return self.output / "steps" / self.first_equal(name)

    def _record(self, name: str) -> Path:
        folder = self.folder(name)
        return folder.with_name(f"{folder.name}.progress.json")

    def records_folders(self) -> set[Path]:
        """Return the folders in which the progress of the steps is recorded."""
        return {self._record(name).parent for name in self.steps}

    def words(self, name: str) -> list[list[str]]:
        """Return the commands of a step as they are run."""
        if name not in self._words:
            out = self.folder(name)
            commands = []
            for command in self.steps[name].commands:
                line = resolve(
                    command,
                    self.scale,
                    self.folder,
                    out,
                )
                commands.append(self.scale.words(list(_split(line))))
            self._words[name] = commands
        return self._words[name]

    def order(self, name: str) -> Iterator[str]:
        """Yield the steps that a step needs, and then itself."""
        for needed in self.steps[name].needs("step"):
            yield from self.order(needed)
        yield name

    def progress(self, name: str) -> dict[str, Any]:
        """Return how many commands of a step are finished, and their seconds."""
        file = self._record(name)
        if not file.is_file():
            return {
                "finished": 0,
                "seconds": [],
                "commands": [],
            }
        progress: dict[str, Any] = json.loads(file.read_text())
        return progress

    def is_done(self, name: str) -> bool:
        """Say whether all commands of a step are finished."""
        return bool(self.progress(name)["finished"] == len(self.steps[name].commands))

    def obstacle(self, name: str, *, needs_data: bool = True) -> str:
        """Say why a step, or one that it needs, cannot be run; "" if it can.

        Args:
            name: The step.
            needs_data: Whether missing collections and weights are an obstacle.
        """
        for needed in self.order(name):
            for words in self.words(needed):
                reason = unavailable(words, self.gpus)
                if reason:
                    return f"cannot be run yet: {reason}"
            if needs_data and not self.is_done(needed):
                for data in self.steps[needed].needs("data"):
                    reason = self.scale.missing(data)
                    if reason:
                        return reason
                for model in self.steps[needed].needs("model"):
                    reason = self.scale.missing_model(model)
                    if reason:
                        return reason
            failure = self.failed.get(self.first_equal(needed))
            if failure is not None:
                return f"{needed} failed: {failure}"
        return ""

    def make(self, name: str) -> None:
        """Run what a step lacks, and the steps that it needs; note what fails."""
        for needed in self.order(name):
            if self.obstacle(needed):
                return
            if self.is_done(needed):
                continue
            try:
                self._run(needed)
            except RuntimeError as error:
                self.failed[self.first_equal(needed)] = str(error)
                print(f"{needed} failed: {error}", file=sys.stderr)
                return

    def _run(self, name: str) -> None:
        progress = self.progress(name)
        words = self.words(name)
        file = self._record(name)
        folder = self.folder(name)
        begun = progress["commands"]
        if begun != words[: len(begun)]:
            raise RuntimeError(
                f"{folder} was begun with other commands; remove it and {file.name}, or choose "
                "another --output"
            )
        file.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        log = file.with_name(f"{folder.name}.log")
        for number in range(progress["finished"], len(words)):
            line = shlex.join(command_line(words[number], self.gpus))
            print(f"{name}: {line[:150]}", file=sys.stderr)
            progress["commands"] = words[: number + 1]
            _write_progress(file, progress)
            started = time.perf_counter()
            run(
                words[number],
                log,
                self.gpus,
                inside=self.inside,
            )
            progress["finished"] = number + 1
            progress["seconds"].append(round(time.perf_counter() - started, 1))
            _write_progress(file, progress)
        for part in self.steps[name].discard:
            shutil.rmtree(folder / part, ignore_errors=True)

    def figure(self, cell: Cell) -> tuple[Any, str]:
        """Return a cell's figure and "", or None and why there is none."""
        if cell.why:
            return None, cell.why
        if cell.combine:
            return self._combine(cell)
        if not self.is_done(cell.step):
            return None, self.obstacle(cell.step) or "not run"
        wrong = self.wrong_wiring(cell)
        if wrong:
            self.failed[cell.step] = wrong
            return None, wrong
        address = resolve(cell.read, self.scale, self.folder)
        try:
            value = read(self.folder(cell.step), address)
        except (LookupError, ValueError, OSError) as error:
            reason = type(error).__name__
            return None, f"no such figure: {cell.step} has no {cell.read} ({reason})"
        if value is None:
            return None, "not defined there"
        is_number = isinstance(value, (int, float))
        return (value * cell.factor if is_number else value), ""

    def wrong_wiring(self, cell: Cell) -> str:
        """Say in what the model or the data of a finished cell are not those of its row."""

        def resolved(text: str) -> str:
            return resolve(text, self.scale, self.folder)

        for address, expected in cell.expects:
            try:
                value = str(read(self.folder(cell.step), resolved(address)))
            except (LookupError, OSError):
                return f"wired wrongly: {cell.step} has no {address}, which is to be {expected}"
            if value != resolved(expected):
                return f"wired wrongly: {address} of {cell.step} is {value}, not {expected}"
        made = [(cell.model, cell.making)] if cell.making is not None else []
        for folder, making in (*made, *cell.others):
            difference = mismatch(
                Path(resolved(folder)),
                self._at_hand(making),
                resolved,
                self.scale.setting,
            )
            if difference:
                return f"wired wrongly: {difference}"
        return ""

    def _at_hand(self, making: Making) -> Making:
        """Return a making without the collections of the tasks that are left out."""
        kept = []
        for data in making.data:
            if not {task_of(name) for name in names_in(data, "data")} & set(self.without):
                kept.append(data)
        return replace(making, data=tuple(kept))

    def _combine(self, cell: Cell) -> tuple[Any, str]:
        values = []
        for part in cell.parts:
            value, why = self.figure(part)
            if value is None:
                return None, why
            values.append(value)
        return COMBINATIONS[cell.combine](values) * cell.factor, ""


def _write_progress(file: Path, progress: dict[str, Any]) -> None:
    write_text(file, json.dumps(progress, indent=1) + "\n")
