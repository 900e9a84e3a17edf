"""What a hostile user finds: bad inputs of every command and file, kills, full disks, and races.

    python benchmarks/faults.py --inputs 2700 --commands 300 --kills 60 --disks 40 --races 60
    --workers 2

makes a world of tiny real models and collections, and what commands make of them, in a temporary
folder or in ``--place``; then breaks it, case by case, and judges what came of it (``OUTCOMES`` of
faults_inputs.py says how). Every case is drawn from the seed and its own name: ``--only
input-00042`` runs that one again and prints what was to see. Inputs and most others run in forks of
a warm process, ``--commands`` in processes of the installed command. A worker that dies or hangs is
replaced. ``--resume`` goes on in a ``--place`` that was left; figures and all failing cases go to
benchmarks/results/faults.json; ``--sample``, which CI runs, records nothing. Needs Linux, and root
for disks that are full.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from faults_inputs import FAILURES, LIMIT, OUTCOMES, Outcome, run_input
from faults_kills import can_mount, run_disk, run_kill, run_race
from faults_runner import ENVIRONMENT, Warm, remove
from faults_world import make_world
from machine import machine

RESULTS = Path(__file__).parent / "results" / "faults.json"

#: What a case's name begins with, and what runs it.
KINDS = {
    "input": run_input,
    "command": run_input,
    "kill": run_kill,
    "disk": run_disk,
    "race": run_race,
}

#: What CI runs: two minutes of one core, nothing recorded.
SAMPLE = {
    "inputs": 40,
    "commands": 2,
    "kills": 5,
    "disks": 2,
    "races": 3,
    "workers": 1,
    "results": Path(os.devnull),
}

_LONGEST_CASE = 6 * LIMIT


def prepare(place: Path) -> None:
    """Make the world, unless it is there."""
    if not (place / "world" / "modules").is_file():
        remove(place / "world")
        make_world(
            place / "world",
            Warm(["beir_cocodr.training.finetune", "beir_cocodr.retrieval.store.encode"]),
        )


def work_off(place: Path, number: int, seed: int) -> None:
    """A worker: the names of cases on stdin, their outcomes on stdout, a line each."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warm = Warm((place / "world" / "modules").read_text().split())
    for line in sys.stdin:
        case = line.strip()
        try:
            outcome = KINDS[case.split("-")[0]](
                case, seed, place, place / f"work-{number}" / "w", warm
            )
        except (
            SystemExit,
            Exception,
        ) as error:  # what is not broken does not work, or the campaign itself
            traceback.print_exc()
            outcome = Outcome(
                case, "", "", "", "", "traceback", f"not run: {error!r}"[-1000:], 0, []
            )
        replies.write(json.dumps(outcome.to_json()) + "\n")
        replies.flush()


class Worker:
    """A worker process, replaced when it dies or hangs."""

    def __init__(self, place: Path, number: int, seed: int) -> None:
        self.place, self.number, self.seed = place, number, seed
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, case: str) -> dict[str, Any]:
        if self.process is None:
            words = [
                sys.executable,
                __file__,
                "--work",
                str(self.number),
                "--place",
                str(self.place),
            ]
            log = (self.place / f"worker-{self.number}.log").open("ab")
            pipes: dict[str, Any] = {
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "stderr": log,
            }
            words += ["--seed", str(self.seed)]
            self.process = subprocess.Popen(
                words, env=os.environ | ENVIRONMENT, start_new_session=True, **pipes
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{case}\n".encode())
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], _LONGEST_CASE)
        if reply := self.process.stdout.readline() if ready else b"":
            found: dict[str, Any] = json.loads(reply)
            return found
        self.close()
        outcome = Outcome(
            case, "", "", "", "", "hang", "the worker died or hung", _LONGEST_CASE, []
        )
        return outcome.to_json()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def run_cases(place: Path, cases: Iterable[str], seed: int, workers: int) -> None:
    """Run cases by several workers, each recorded as it ends."""
    waiting: SimpleQueue[str] = SimpleQueue()
    code = commit()
    for case in cases:
        waiting.put(case)
    total, began = waiting.qsize(), time.perf_counter()

    def work(number: int) -> None:
        worker = Worker(place, number, seed)
        try:
            while True:
                found = worker.run(waiting.get_nowait()) | {"code": code}
                record(place, found)
                if found["outcome"] in FAILURES:
                    print(
                        f"{found['case']} {found['outcome']}: {describe(found)}",
                        file=sys.stderr,
                        flush=True,
                    )
        except Empty:
            pass
        finally:
            worker.close()

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    if total:
        print(f"{total} cases in {time.perf_counter() - began:.0f} seconds", file=sys.stderr)


def commit() -> str:
    """Of this code, with a mark where files were changed since."""
    words = [
        "git",
        "-C",
        str(Path(__file__).parents[1]),
        "describe",
        "--always",
        "--exclude=*",
        "--dirty=+",
    ]
    return (
        subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
        or "unknown"
    )


def describe(found: dict[str, Any]) -> str:
    return f"{found['scenario']}, {found['broken']}: {found['what'][:80]}: {found['message'][:160]}"


def record(place: Path, found: dict[str, Any]) -> None:
    with (place / "cases.jsonl").open("a") as file:
        file.write(json.dumps(found) + "\n")


def read_cases(place: Path) -> dict[str, list[dict[str, Any]]]:
    """Case to its records; the last one counts."""
    file, cases = place / "cases.jsonl", dict[str, list[dict[str, Any]]]()
    for line in file.read_text().splitlines() if file.is_file() else []:
        found = json.loads(line)
        cases.setdefault(found["case"], []).append(found)
    return cases


def summarize(cases: list[list[dict[str, Any]]], seed: int, mounts: bool) -> dict[str, Any]:
    """Counts by kind of case, command and part, every failing case with how it is run again, and
    those that failed before and were mended.
    """
    found = [records[-1] for records in cases]
    before = [
        next((one for one in records if one["outcome"] in FAILURES), None) for records in cases
    ]

    def count(key: Any) -> dict[str, dict[str, int]]:
        groups: dict[str, Counter[str]] = {}
        for one in found:
            groups.setdefault(key(one), Counter())[one["outcome"]] += 1
        return {
            name: {o: groups[name][o] for o in OUTCOMES if groups[name][o]}
            for name in sorted(groups)
        }

    failing = [one for one in found if one["outcome"] in FAILURES]
    keys = ("case", "scenario", "broken", "what", "outcome", "message", "arguments")
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "code": dict(Counter(one["code"] for one in found)),
        "seed": seed,
        "cases": len(found),
        "seconds": round(sum(one["seconds"] for one in found)),
        "small_disks": mounts,
        "outcomes": OUTCOMES,
        "by_kind": count(lambda one: one["case"].split("-")[0]),
        "by_command": count(lambda one: one["command"] or "unknown"),
        "by_part": count(lambda one: one["broken"].split("/")[0]),
        "failures": [
            {key: one[key] for key in keys}
            | {"again": f"benchmarks/faults.py --seed {seed} --only {one['case']}"}
            for one in failing
        ],
        "mended": [
            {key: was[key] for key in (*keys, "code")}
            | {"outcome_now": one["outcome"], "code_now": one["code"]}
            for was, one in zip(before, found, strict=True)
            if was is not None and one not in failing
        ],
    }


def table(summary: dict[str, Any], by: str = "command") -> str:
    """Commands, kinds of cases or parts down, outcomes across."""
    names, rows = list(OUTCOMES), dict(summary[f"by_{by}"])
    lines = [
        f"| {by} | cases | " + " | ".join(names) + " |",
        "| --- |" + " ---: |" * (len(names) + 1),
    ]
    rows["all"] = sum(map(Counter, rows.values()), Counter())
    for row, counts in rows.items():
        cells = [str(counts.get(name, 0)) for name in names]
        lines.append(f"| {row} | {sum(counts.values())} | {' | '.join(cells)} |")
    return "\n".join(lines)


def world_digest(place: Path) -> str:
    """Of all names and contents of the world, which no case may touch."""
    digest = hashlib.sha256()
    for path in sorted((place / "world" / "in").rglob("*")):
        digest.update(str(path).encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for kind, default in (
        ("inputs", 2700),
        ("commands", 300),
        ("kills", 60),
        ("disks", 40),
        ("races", 60),
    ):
        parser.add_argument(f"--{kind}", type=int, default=default, metavar="N")
    parser.add_argument("--sample", action="store_true", help="two minutes of it, nothing recorded")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--place",
        type=Path,
        help="folder of the world and of what was done; default: a temporary one",
    )
    parser.add_argument("--resume", action="store_true", help="go on in --place")
    parser.add_argument(
        "--only",
        action="append",
        metavar="CASE",
        help="run this case, and print all of it; with --resume it is recorded; repeat",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sample:
        vars(given).update(SAMPLE)
    if given.work is not None:
        work_off(given.place, given.work, given.seed)
        return
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        place = (given.place or Path(temporary)).resolve()
        if (place / "cases.jsonl").exists() and not (given.resume or given.only):
            raise SystemExit(
                f"{place} holds cases: --resume to go on with them, or another --place"
            )
        sys.exit(campaign(place, given))


def campaign(place: Path, given: argparse.Namespace) -> int:
    """Run what is missing; the number of failing cases, at most 1."""
    place.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    # In a process of its own: a fork of it is what every case is.
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            prepare(place)
            status = 0
        except SystemExit as error:
            print(error, file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(status)
    if os.waitpid(pid, 0)[1]:
        return 1
    print(f"world: {time.perf_counter() - began:.0f} seconds", file=sys.stderr)
    mounts = can_mount(place)
    if given.only:
        worker = Worker(place, 0, given.seed)
        outcomes = set()
        for case in given.only:
            found = worker.run(case) | {"code": commit()}
            outcomes.add(found["outcome"])
            if given.resume:
                record(place, found)
            print(json.dumps(found, indent=2))
            logs = sorted((place / "work-0" / "w").glob("log*/std*"))
            print(
                "\n".join(f"{log}:\n{log.read_text(errors='replace')[-4000:]}" for log in logs),
                flush=True,
            )
        worker.close()
        return int(bool(outcomes & {*FAILURES}))
    done, before = read_cases(place), world_digest(place)
    counts = {kind: getattr(given, f"{kind}s") for kind in KINDS}
    counts["disk"] *= mounts
    # All kinds at once, so that what was done by any time is a smaller campaign.
    places = sorted(
        (number / count, kind, number) for kind, count in counts.items() for number in range(count)
    )
    wanted = [f"{kind}-{number:05d}" for _, kind, number in places]
    run_cases(place, [case for case in wanted if case not in done], given.seed, given.workers)
    done = read_cases(place)
    summary = summarize([done[case] for case in wanted], given.seed, mounts)
    if world_digest(place) != before:
        raise SystemExit(
            "a case changed the world that it was given; its figures are worth nothing"
        )
    given.results.parent.mkdir(parents=True, exist_ok=True)
    given.results.write_text(json.dumps(summary, indent=1) + "\n")
    for by in ("part", "command", "kind"):
        print(table(summary, by), end="\n\n")
    return int(bool(summary["failures"]))


if __name__ == "__main__":
    main()
