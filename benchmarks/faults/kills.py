"""Kills, full disks and races of every long command, and what a second run makes of the rest.

The same command, run again with ``--resume`` if it has that option, must end with the files of an
undisturbed run, equal to the byte except for times, and with no others.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from beir_cocodr.temporary import remove_dead_folders
from faults.commands import LONG, LongCommand
from faults.inputs import LIMIT, Campaign, Outcome, find_leftovers, is_one_error, judge_end
from faults.runner import LIST_MODULES, TEMPORARY, Ended, Running, Warm, remove
from faults.world import check, keep_reference, lay_out, read_results

#: The option that a folder with part of an evaluation asks for.
OVERWRITE = "--overwrite"

#: Parts to which a long command writes, and which are therefore copied.
_WRITTEN = {"index": ["store"]}

#: A refusal on a full disk has one of these words.
_FULL = ("space", "full", "disk", "room")

#: An outcome, and the message that decided it.
Judged = tuple[str, str]
HARMLESS: Judged = ("harmless", "")


def _long_commands(case: str) -> list[str]:
    """Return the names of the long commands that cases of this kind take in turn."""
    is_kill = case.startswith("kill")
    return [name for name, command in LONG.items() if is_kill or not command.killed_only]


def _draw_command(case: str) -> str:
    """Return the name of the long command of a case."""
    names = _long_commands(case)
    return names[_number(case) % len(names)]


def _number(case: str) -> int:
    return int(case.split("-")[1])


def _fresh(
    work: Path,
    campaign: Path,
    name: str,
) -> Path:
    lay_out(work, campaign / "world", _WRITTEN.get(name, []))
    return work


def _outputs(name: str) -> list[str]:
    return ["out", *(f"in/{part}" for part in _WRITTEN.get(name, []))]


def long_reference(
    name: str,
    campaign: Path,
    warm: Warm,
) -> dict[str, Any]:
    """Return the results, the size and the time of a long command that is left alone."""

    def make(work: Path) -> dict[str, Any]:
        for _ in range(2):  # The first run imports, the second is timed.
            _fresh(work, campaign, name)
            environment = {
                "BEIR_COCODR_CACHE": str(work / "cache"),
                LIST_MODULES: "1",
            }
            ended = warm.run_and_learn(LONG[name].line.split(), work, environment)
            check(ended.status == 0, f"{name}: {LONG[name].line}", ended.stderr)
        files = [path for path in work.rglob("*") if path.is_file() and not path.is_symlink()]
        return {
            "results": read_results(work, _outputs(name)),
            "steps": [line for line in ended.stderr.splitlines() if line.startswith("step ")],
            "seconds": ended.seconds,
            "bytes": sum(path.stat().st_size for path in files),
        }

    return keep_reference(
        f"long-{name}",
        campaign,
        warm,
        make,
    )


class Disturbed:
    """A long command of one case, which something happens to."""

    def __init__(self, case: str, campaign: Campaign) -> None:
        self.case = case
        self.campaign = campaign
        self.work = campaign.work
        self.name = _draw_command(case)
        self.command: LongCommand = LONG[self.name]
        self.arguments = self.command.line.split()
        self.reference = long_reference(self.name, campaign.folder, campaign.warm)
        self.environment = {"BEIR_COCODR_CACHE": str(self.work / "cache")}
        self.began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Return how long the undisturbed command takes."""
        return float(self.reference["seconds"])

    def run(self, arguments: list[str]) -> Ended:
        """Run with these arguments."""
        return self.campaign.warm.run(
            arguments,
            self.work,
            LIMIT,
            self.environment,
        )

    def run_again(self, *, has_finished: bool = False) -> Judged:
        """Run a last time, and judge the files.

        Args:
            has_finished: Whether a run before has finished, so that a refusal is right.
        """
        ended = self.run([*self.arguments, *self.command.again.split()])
        if ended.status == 2 and OVERWRITE in ended.stderr:
            ended = self.run([*self.arguments, OVERWRITE])
        outcome, message = judge_run(ended)
        # A run may have been killed after its output was complete.
        is_complete = has_finished or self.compare_files() == HARMLESS
        may_refuse = is_complete and outcome == "refused"
        if outcome != "harmless" and not may_refuse:
            worse = "lost work" if outcome == "refused" else outcome
            return worse, f"the second run: {message}"
        return self.compare_files()

    def compare_files(self) -> Judged:
        """Judge whether the files are those of an undisturbed run, and no others."""
        left = find_leftovers(self.work / "out") + self._temporary_leftovers()
        if left:
            return "lost work", f"left behind: {', '.join(left)[:200]}"
        results = read_results(self.work, _outputs(self.name))
        expected = self.reference["results"]
        missing = sorted(expected.keys() - results.keys())
        if missing:
            return "lost work", f"missing: {', '.join(missing)[:200]}"
        more = sorted(results.keys() - expected.keys())
        if more:
            return "lost work", f"left behind: {', '.join(more)[:200]}"
        other = sorted(file for file in expected if results[file] != expected[file])
        if other:
            return "silent difference", f"other {', '.join(other)[:200]}"
        return HARMLESS

    def _temporary_leftovers(self) -> list[str]:
        """List the temporary files that stay although a process cared for those of dead ones."""
        place = self.work / TEMPORARY
        if not place.is_dir():
            return []
        remove_dead_folders(place)
        return find_leftovers(place)

    def outcome(
        self,
        broken: str,
        text: str,
        judged: Judged,
    ) -> Outcome:
        """Return the record of the case."""
        seconds = round(time.perf_counter() - self.began, 3)
        return Outcome(
            self.case,
            self.command.command,
            self.name,
            broken,
            text,
            *judged,
            seconds,
            self.arguments,
        )


def judge_run(ended: Ended) -> Judged:
    """Judge how a command ended."""
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    failure = judge_end(ended, lines)
    if failure is not None:
        return failure
    if ended.status == 0:
        return HARMLESS
    is_clear = bool(lines) and is_one_error(lines)
    return ("refused" if is_clear else "refused unclearly"), (lines[-1][-300:] if lines else "")


def run_kill(case: str, campaign: Campaign) -> Outcome:
    """Kill a long command at some moment, sometimes kill the next run too, and run it again."""
    rng = campaign.generator(case)
    disturbed = Disturbed(case, campaign)
    _fresh(disturbed.work, campaign.folder, disturbed.name)
    again = disturbed.command.again.split()
    texts = []
    has_finished = False
    turns = 2 if rng.random() < 0.3 else 1
    for turn in range(turns):
        arguments = disturbed.arguments
        if turn > 0:
            arguments = [*arguments, *again]
        wait, moment = _draw_moment(disturbed, rng)
        running = campaign.warm.start(arguments, disturbed.work, disturbed.environment)
        is_killed = wait(running)
        running.kill()
        if running.wait(10).status == 0:
            has_finished = True
        texts.append(f"killed {moment}" if is_killed else f"ended before it was killed {moment}")
    judged = disturbed.run_again(has_finished=has_finished)
    return disturbed.outcome("a kill", ", ".join(texts), judged)


#: Files that a command has for a while, and whose appearance is a phase of its work.
_PASSING = [
    "out/.unfinished-*",
    "out/*/.unfinished-*",
    ".unfinished-*",
    "out/checkpoints/*/complete.json",
    "out/**/*.progress.json",
    "cache/*/*",
    f"{TEMPORARY}/*",
]

#: Waits until a running command is to be killed, and says whether it still ran.
Wait = Callable[[Running], bool]


def _draw_moment(disturbed: Disturbed, rng: random.Random) -> tuple[Wait, str]:
    """Draw when a command is killed: after some time, or in a phase that has a name.

    A phase begins when a file appears or when the command says that it begins a step.
    """
    kind = rng.choice(["time", "file", "passing file", "step"])
    steps = disturbed.reference["steps"]
    if kind == "step" and steps:
        name = rng.choice(steps).partition(";")[0]
        log = disturbed.work / "log" / "stderr"
        return _waiting_until(lambda: name in log.read_text(errors="replace")), f"in {name!r}"
    if kind in ("file", "passing file"):
        files = sorted(disturbed.reference["results"])
        pattern = rng.choice(files if kind == "file" else _PASSING)
        work = disturbed.work
        return _waiting_until(lambda: any(work.glob(pattern))), f"when {pattern} was there"
    seconds = rng.random() * disturbed.seconds
    return lambda running: not running.ends_within(seconds), f"after {seconds:.3f} s"


def _waiting_until(has_begun: Callable[[], bool]) -> Wait:
    """Return a function that waits until a phase has begun."""

    def wait(running: Running) -> bool:
        end = time.perf_counter() + LIMIT
        while time.perf_counter() < end:
            with suppress(FileNotFoundError):  # a folder that goes while it is listed
                if has_begun():
                    return True
            if running.ends_within(0.001):
                return False
        return True

    return wait


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Mount a file system of so many bytes on a folder, as only root can."""
    folder.mkdir(
        parents=True,
        exist_ok=True,
    )
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def can_mount(folder: Path) -> bool:
    """Say whether this user can mount a small disk."""
    with suppress(OSError, subprocess.CalledProcessError), small_disk(folder / "mounted", 1 << 16):
        return os.geteuid() == 0
    return False


def run_disk(case: str, campaign: Campaign) -> Outcome:
    """Let the disk fill while a long command works, then make room and run it again."""
    rng = campaign.generator(case)
    disturbed = Disturbed(case, campaign)
    disk = campaign.work.with_name(campaign.work.name + "-disk")
    remove(campaign.work)
    size = int(4096 * 4 + (rng.random() ** 2) * 1.2 * disturbed.reference["bytes"])
    with small_disk(disk, 1 << 30):
        disturbed.work = _fresh(disk / "w", campaign.folder, disturbed.name)
        cache = str(disturbed.work / "cache")
        disturbed.environment = {
            "BEIR_COCODR_CACHE": cache,
            "TMPDIR": str(disk),
        }
        _fill(disk, size)
        ended = campaign.warm.run(
            disturbed.arguments,
            disturbed.work,
            LIMIT,
            disturbed.environment,
            str(campaign.work / "log"),
        )
        judged = _judge_full(judge_run(ended))
        (disk / "ballast").unlink()
        if judged[0] == "refused":
            again = disturbed.run_again()
            if again[0] != "harmless":
                judged = again
        elif judged[0] == "harmless":
            judged = disturbed.compare_files()
    remove(disk)
    return disturbed.outcome("a full disk", f"a disk with {size} bytes left", judged)


def _judge_full(judged: Judged) -> Judged:
    """Judge a refusal on a full disk, which must name the reason."""
    outcome, message = judged
    names_disk = any(word in message.lower() for word in _FULL)
    if outcome == "refused" and not names_disk:
        return "refused unclearly", message
    return judged


def _fill(disk: Path, left: int) -> None:
    """Fill a disk except for so many bytes."""
    state = os.statvfs(disk)
    size = state.f_bavail * state.f_frsize - left
    with (disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, size))


def run_race(case: str, campaign: Campaign) -> Outcome:
    """Start the same command two or three times at once.

    They share one output, or have an output each and share one new cache.
    """
    rng = campaign.generator(case)
    disturbed = Disturbed(case, campaign)
    round_number = _number(case) // len(_long_commands(case))
    in_one_output = round_number % 2 == 0 or disturbed.name == "index"
    _fresh(disturbed.work, campaign.folder, disturbed.name)
    count = rng.choice((2, 2, 3))
    judged_runs = _run_at_once(
        disturbed,
        count,
        in_one_output,
        rng,
    )
    failures = [one for one in judged_runs if one[0] not in ("harmless", "refused")]
    if failures:
        judged = failures[0]
    elif in_one_output:
        judged = _judge_one_output(disturbed, judged_runs)
    else:
        judged = _judge_outputs(disturbed, judged_runs)
    shared = "one output" if in_one_output else "one cache"
    return disturbed.outcome("a race", f"{count} at once in {shared}", judged)


def _run_at_once(
    disturbed: Disturbed,
    count: int,
    in_one_output: bool,
    rng: random.Random,
) -> list[Judged]:
    """Start the commands one after another, and judge how each ended."""
    warm = disturbed.campaign.warm
    running = []
    for number in range(count):
        line = disturbed.command.line
        if not in_one_output:
            line = line.replace(" out", f" out{number}")
        arguments = line.split()
        if number > 0 and in_one_output:
            # The later ones continue what the first has begun, if they can.
            arguments += disturbed.command.again.split()
        logs = f"log{number}"
        running.append(
            warm.start(
                arguments,
                disturbed.work,
                disturbed.environment,
                logs,
            )
        )
        time.sleep(rng.choice((0, rng.random() * disturbed.seconds)))
    return [judge_run(one.wait(LIMIT)) for one in running]


def _judge_one_output(disturbed: Disturbed, judged_runs: list[Judged]) -> Judged:
    """Judge runs that shared an output: if none ended well, one more run must."""
    has_winner = any(outcome == "harmless" for outcome, _ in judged_runs)
    judged = disturbed.compare_files() if has_winner else disturbed.run_again()
    refusals = [one for one in judged_runs if one[0] == "refused"]
    if judged[0] == "harmless" and refusals:
        return refusals[0]
    return judged


def _judge_outputs(disturbed: Disturbed, judged_runs: list[Judged]) -> Judged:
    """Judge runs with an output each: all must end well, with the same files."""
    for outcome, message in judged_runs:
        if outcome == "refused":
            return "lost work", message
    for number in range(len(judged_runs)):
        output = disturbed.work / "out"
        numbered = disturbed.work / f"out{number}"
        remove(output)
        if numbered.exists():
            numbered.rename(output)
        _forget_number(output, number)
        judged = disturbed.compare_files()
        if judged[0] != "harmless":
            return judged
    return HARMLESS


def _forget_number(output: Path, number: int) -> None:
    """Replace the numbered name of an output in its records."""
    for path in output.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".html", ".md") and path.is_file():
            text = path.read_text()
            path.write_text(text.replace(f"out{number}", "out"))
