"""Kills, full disks and races of every long command: what a second run makes of what the first one
left.

The same command again, with ``--resume`` where it has that, has to end with the files of a run that
nothing happened to, equal to the byte but for times, and nothing beside them.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults_inputs import LIMIT, Outcome, leftovers
from faults_runner import Ended, Warm, remove
from faults_world import TRAIN, check, lay_out, reference, results


@dataclass(frozen=True)
class Long:
    """A command that works for a while into ``out``, and what its second run is given besides."""

    line: str
    again: str = ""

    @property
    def command(self) -> str:
        words = self.line.split()
        return " ".join(words[: 1 + (words[0] == "resample")])


_STEPS = f"--max-steps 6 {TRAIN} --output out"
_DISTILL = "--set m_bm25=2 --set m_hard=2 --set refresh_steps=2"

LONG: dict[str, Long] = {
    "encode": Long("encode --dataset in/beir --model in/model --shard-size 2 --output out"),
    "index": Long("search --store in/store --dataset in/beir --index hnsw --output out/x.run"),
    "generate": Long("generate-queries --dataset in/beir --shard-documents 2 --output out"),
    "generate-t5": Long(
        "generate-queries --dataset in/beir --generator in/t5 --per-passage 1 --max-length 6 --shard-documents 4 "
        "--output out"
    ),
    "pretrain": Long(
        f"pretrain --dataset in/beir --model in/bert --span-tokens 12 --max-length 48 {_STEPS}",
        "--resume",
    ),
    "pretrain-qc": Long(
        f"pretrain --objective qc --queries in/generated --dataset in/beir --model in/bert --max-length 48 {_STEPS}",
        "--resume",
    ),
    "finetune": Long(f"finetune --dataset in/beir --model in/model {_STEPS}", "--resume"),
    "finetune-idro": Long(
        f"finetune --dataset in/beir --model in/model --weighting idro --clusters 3 {_STEPS}",
        "--resume",
    ),
    "finetune-episodes": Long(
        f"finetune --dataset in/beir --model in/model --episodes 1 --target in/beir {_STEPS}",
        "--resume",
    ),
    "finetune-stages": Long(
        f"finetune --dataset in/beir --model in/model --stages 2 {_STEPS}", "--resume"
    ),
    "distill": Long(
        f"distill --dataset in/beir --model in/model --teacher bm25 --set held_out=0.3 {_DISTILL} {_STEPS}",
        "--resume",
    ),
    "distill-mrl": Long(
        f"distill --dataset in/beir --model in/bert --teacher bm25 --student mrl --set held_out=0 {_DISTILL} {_STEPS}",
        "--resume",
    ),
    "adapt": Long(
        "adapt --corpus in/beir --source in/source --base in/model --stages finetune --max-steps 2 --batch-size 4 "
        "--seed 1 --output out",
        "--resume",
    ),
    "adapt-unlabelled": Long(
        "adapt --corpus in/flat/corpus.tsv --base in/model --stages qgen --samples 6 --max-steps 2 --batch-size 4 "
        "--seed 1 --output out",
        "--resume",
    ),
    "restrain": Long(
        "resample restrain --train in/source --test in/beir --encoder in/model --size 4 --output out/new"
    ),
    "regimes": Long(
        "resample evaluate --folder in/sets --architecture bm25,dense --start in/bert --max-steps 2 --batch-size 4 "
        "--no-picture --output out"
    ),
    "evaluate": Long(
        "evaluate --dataset in/beir --model bm25 --model in/model --model hybrid:in/bert --output out"
    ),
    "compare": Long("compare bm25 in/model --dataset in/beir --no-labels --samples 8 --output out"),
    "qpp": Long("qpp --dataset in/beir --model in/model --no-picture --output out"),
    "report": Long("report in/evaluated --output out/page.html"),
}

#: What a folder that holds part of an evaluation asks for.
OVERWRITE = "--overwrite"

#: What is copied, as a long command writes to it.
_WRITTEN = {"index": ["store"]}


def long_reference(name: str, place: Path, warm: Warm) -> dict[str, Any]:
    """Results, size and time of a long command that is left alone."""

    def make(work: Path) -> dict[str, Any]:
        for _ in range(2):  # the first one imports
            _fresh(work, place, name)
            environment = {"BEIR_COCODR_CACHE": str(work / "cache"), "FAULTS_MODULES": "1"}
            ended = warm.run(LONG[name].line.split(), work, 300, environment)
            check(ended.status == 0, f"{name}: {LONG[name].line}", ended.stderr)
            warm.learn((work / "log" / "modules").read_text().split())
        size = sum(
            path.stat().st_size
            for path in work.rglob("*")
            if path.is_file() and not path.is_symlink()
        )
        return {"results": results(work, _outputs(name)), "seconds": ended.seconds, "bytes": size}

    return reference(f"long-{name}", place, warm, make)


def _fresh(work: Path, place: Path, name: str) -> Path:
    lay_out(work, place / "world", _WRITTEN.get(name, []))
    return work


def _outputs(name: str) -> list[str]:
    return ["out", *(f"in/{part}" for part in _WRITTEN.get(name, []))]


def run_kill(case: str, seed: int, place: Path, work: Path, warm: Warm) -> Outcome:
    """Kill a long command at a random moment, run it again, and compare; now and then kill that,
    too.
    """
    rng, names = random.Random(f"{seed} {case}"), list(LONG)
    name = names[int(case.split("-")[1]) % len(names)]  # every command in turn
    long, wanted = LONG[name], long_reference(name, place, warm)
    _fresh(work, place, name)
    arguments, told, finished = long.line.split(), [], False
    environment = {"BEIR_COCODR_CACHE": str(work / "cache")}
    began = time.perf_counter()
    for turn in range(1 + (rng.random() < 0.3)):
        at = rng.random() * wanted["seconds"]
        given = arguments if not turn or not long.again else [*arguments, long.again]
        running = warm.start(given, work, environment)
        in_time = not running.ends_within(at)
        running.kill()
        finished = running.wait(10).status == 0 or finished
        told.append(f"killed after {at:.3f} s" if in_time else "ended before its kill")
    outcome = _again(long, name, work, warm, environment, wanted, finished)
    seconds = round(time.perf_counter() - began, 3)
    return Outcome(
        case, long.command, name, "a kill", ", ".join(told), *outcome, seconds, arguments
    )


def _again(
    long: Long,
    name: str,
    work: Path,
    warm: Warm,
    environment: dict[str, str],
    reference: dict[str, Any],
    finished: bool = False,
) -> tuple[str, str]:
    """Run a command a last time, and judge what stands there then; one that had ``finished`` may be
    left as it is.
    """
    ended = warm.run([*long.line.split(), *long.again.split()], work, LIMIT, environment)
    if ended.status == 2 and OVERWRITE in ended.stderr:
        ended = warm.run([*long.line.split(), OVERWRITE], work, LIMIT, environment)
    outcome = judge_end(ended)
    if outcome[0] != "harmless" and not (finished and outcome[0] == "refused"):
        return (
            "lost work" if outcome[0] == "refused" else outcome[0]
        ), f"the second run: {outcome[1]}"
    return compare(name, work, reference)


def judge_end(ended: Ended) -> tuple[str, str]:
    lines = [line for line in ended.stderr.splitlines() if line.strip()] or [""]
    if ended.status is None:
        return "hang", lines[-1][-300:]
    if ended.status not in (0, 2) or "Traceback (most recent call last)" in ended.stderr:
        return "traceback", f"status {ended.status}: {lines[-1][-300:]}"
    if ended.status == 2:
        clear = (
            lines[-1].startswith("error: ")
            and sum(line.startswith("error: ") for line in lines) == 1
        )
        return ("refused" if clear else "refused unclearly"), lines[-1][-300:]
    return "harmless", ""


def compare(name: str, work: Path, reference: dict[str, Any]) -> tuple[str, str]:
    """Whether the files are those of an undisturbed run, and no others."""
    if left := leftovers(work / "out"):
        return "lost work", f"left behind: {', '.join(left)[:200]}"
    found, wanted = results(work, _outputs(name)), reference["results"]
    if missing := sorted(wanted.keys() - found.keys()):
        return "lost work", f"missing: {', '.join(missing)[:200]}"
    if more := sorted(found.keys() - wanted.keys()):
        return "lost work", f"left behind: {', '.join(more)[:200]}"
    if other := sorted(file for file in wanted if found[file] != wanted[file]):
        return "silent difference", f"other {', '.join(other)[:200]}"
    return "harmless", ""


@contextmanager
def small_disk(folder: Path, size: int) -> Any:
    """A file system of so many bytes on ``folder``; only root can make one."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def can_mount(place: Path) -> bool:
    """Whether this user can make a small disk."""
    with suppress(OSError, subprocess.CalledProcessError), small_disk(place / "mounted", 1 << 16):
        return os.geteuid() == 0
    return False


def run_disk(case: str, seed: int, place: Path, work: Path, warm: Warm) -> Outcome:
    """Let the disk fill while a long command works, then make room and run it again."""
    rng, names = random.Random(f"{seed} {case}"), list(LONG)
    name = names[int(case.split("-")[1]) % len(names)]
    long, wanted = LONG[name], long_reference(name, place, warm)
    disk = work.with_name(work.name + "-disk")
    remove(work)
    size = int(4096 * 4 + (rng.random() ** 2) * 1.2 * wanted["bytes"])
    began = time.perf_counter()
    with small_disk(disk, 1 << 30):
        inside = _fresh(disk / "w", place, name)
        _fill(disk, size)
        environment = {"BEIR_COCODR_CACHE": str(inside / "cache"), "TMPDIR": str(disk)}
        ended = warm.run(long.line.split(), inside, LIMIT, environment, str(work / "log"))
        outcome = judge_end(ended)
        words = ("space", "full", "disk", "room")
        if outcome[0] == "refused" and not any(word in outcome[1].lower() for word in words):
            outcome = "refused unclearly", outcome[1]
        (disk / "ballast").unlink()
        if outcome[0] == "refused":
            again = _again(long, name, inside, warm, environment, wanted)
            outcome = outcome if again[0] == "harmless" else again
        elif outcome[0] == "harmless":
            outcome = compare(name, inside, wanted)
    remove(disk)
    seconds = round(time.perf_counter() - began, 3)
    what = f"a disk with {size} bytes left"
    return Outcome(
        case, long.command, name, "a full disk", what, *outcome, seconds, long.line.split()
    )


def _fill(disk: Path, left: int) -> None:
    """Leave so many bytes."""
    state = os.statvfs(disk)
    with (disk / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, state.f_bavail * state.f_frsize - left))


def run_race(case: str, seed: int, place: Path, work: Path, warm: Warm) -> Outcome:
    """Two or three of the same command at once: in one output, or in outputs of their own with one
    new cache.
    """
    rng, names = random.Random(f"{seed} {case}"), list(LONG)
    number = int(case.split("-")[1])
    name = names[number % len(names)]
    together = (number // len(names)) % 2 == 0 or name == "index"
    long, wanted = LONG[name], long_reference(name, place, warm)
    _fresh(work, place, name)
    count = rng.choice((2, 2, 3))
    environment = {"BEIR_COCODR_CACHE": str(work / "cache")}
    began, running = time.perf_counter(), []
    lines = [long.line if together else long.line.replace(" out", f" out{n}") for n in range(count)]
    for n, line in enumerate(lines):
        running.append(warm.start(_words(long, line, n, together), work, environment, f"log{n}"))
        time.sleep(rng.choice((0, rng.random() * wanted["seconds"])))
    ends = [one.wait(LIMIT) for one in running]
    judged = [judge_end(ended) for ended in ends]
    bad = [one for one in judged if one[0] not in ("harmless", "refused")]
    if bad:
        outcome = bad[0]
    elif together:
        # Where nobody ended well, one more run must.
        won = any(one[0] == "harmless" for one in judged)
        outcome = (
            compare(name, work, wanted)
            if won
            else _again(long, name, work, warm, environment, wanted)
        )
        if outcome[0] == "harmless" and any(one[0] == "refused" for one in judged):
            outcome = "refused", next(one[1] for one in judged if one[0] == "refused")
    else:
        outcome = next((one for one in judged if one[0] == "refused"), ("harmless", ""))
        outcome = outcome if outcome[0] == "harmless" else ("lost work", outcome[1])
        for n in range(count):
            remove(work / "out")
            (work / f"out{n}").rename(work / "out") if (work / f"out{n}").exists() else None
            if outcome[0] == "harmless":
                outcome = compare_names(name, work, wanted, n)
    seconds = round(time.perf_counter() - began, 3)
    what = f"{count} at once in {'one output' if together else 'one cache'}"
    return Outcome(case, long.command, name, "a race", what, *outcome, seconds, long.line.split())


def _words(long: Long, line: str, number: int, together: bool) -> list[str]:
    # The later ones go on with what the first begins, where they can.
    return line.split() + (long.again.split() if number and together else [])


def compare_names(name: str, work: Path, reference: dict[str, Any], number: int) -> tuple[str, str]:
    """As :func:`compare`, for an output that had a number behind its name, which may stand in
    records.
    """
    for path in (work / "out").rglob("*"):
        if path.suffix in (".json", ".jsonl", ".html", ".md") and path.is_file():
            text = path.read_text()
            if f"out{number}" in text:
                path.write_text(text.replace(f"out{number}", "out"))
    return compare(name, work, reference)
