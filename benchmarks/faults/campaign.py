"""Claim: bad input, kills, full disks and races never end in a traceback or in silent damage.

The campaign makes a world of tiny real models and collections, and what commands make of them. It
then breaks this world case by case, and judges how each command ends (``OUTCOMES`` in inputs.py
says how). Every case is drawn from the seed and its own name: ``--only input-00042`` runs that case
again and prints everything. The sample that CI runs has another seed every day of the year, and
prints it. All cases run with the permissions of an ordinary user, in forks of a warm process;
``--commands`` start the installed command. A worker that dies or hangs is replaced. ``--resume``
continues in a ``--work`` folder, and ``--merge`` sums up several, each with its own seed. The
campaign needs Linux, and root for full disks.

It prints tables of outcomes by part, command and kind, and writes all figures and every failing
case to ``benchmarks/results/faults.json``. ``--sample``, which CI runs, records nothing:

    python benchmarks/faults --inputs 2700 --commands 300 --kills 60 --disks 40 --races 60
    python benchmarks/faults --sample
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from harness.page import Marks, markdown_table
from harness.script import add_integers, origin, results_file, write_results

from faults.calls import run_api, run_copy
from faults.clients import run_client
from faults.corners import run_cache, run_folder, run_inside
from faults.inputs import FAILURES, LIMIT, OUTCOMES, Campaign, Outcome, run_input
from faults.kills import can_mount, run_disk, run_kill, run_race
from faults.places import run_place
from faults.runner import ENVIRONMENT, Warm, remove
from faults.sessions import run_session
from faults.settings import run_model
from faults.world import make_world

MARKS = Marks("<!-- faults table -->", "<!-- end of faults -->")

#: The beginning of a case's name to the function that runs it.
KINDS = {
    "input": run_input,
    "command": run_input,
    "kill": run_kill,
    "disk": run_disk,
    "race": run_race,
    "folder": run_folder,
    "cache": run_cache,
    "inside": run_inside,
    "api": run_api,
    "client": run_client,
    "copy": run_copy,
    "model": run_model,
    "place": run_place,
    "session": run_session,
}

#: The number of cases of each kind, in a campaign and in the sample that CI runs.
CASES = {
    "input": 2700,
    "command": 300,
    "kill": 60,
    "disk": 40,
    "race": 60,
    "folder": 300,
    "cache": 150,
    "inside": 60,
    "api": 600,
    "client": 400,
    "copy": 60,
    "model": 250,
    "place": 250,
    "session": 30,
}
SAMPLE = {
    "input": 32,
    "command": 2,
    "kill": 5,
    "disk": 2,
    "race": 3,
    "folder": 8,
    "cache": 3,
    "inside": 4,
    "api": 6,
    "client": 8,
    "copy": 2,
    "model": 4,
    "place": 6,
    "session": 1,
}

#: A record of a case as it is read back.
Record = dict[str, Any]

_LONGEST_CASE = 6 * LIMIT
_WARM = ["beir_cocodr.training.finetuning.finetune", "beir_cocodr.retrieval.store.encode"]
#: What the results say of a failing case.
_KEYS = ("case", "scenario", "broken", "what", "outcome", "message", "arguments")


def prepare(folder: Path) -> None:
    """Make the world, unless the folder has it."""
    world = folder / "world"
    if not (world / "modules").is_file():
        remove(world)
        make_world(world, Warm(_WARM))


def work_off(
    folder: Path,
    number: int,
    seed: int,
) -> None:
    """Work as a worker: read names of cases from stdin, and write their outcomes to stdout."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warm = Warm((folder / "world" / "modules").read_text().split())
    campaign = Campaign(
        folder,
        folder / f"work-{number}" / "w",
        seed,
        warm,
    )
    for line in sys.stdin:
        case = line.strip()
        run = KINDS[case.split("-")[0]]
        try:
            outcome = run(case, campaign)
        except (SystemExit, Exception) as error:
            # The unbroken world fails, or the campaign itself does.
            traceback.print_exc()
            outcome = _not_run(
                case,
                "traceback",
                f"not run: {error!r}"[-1000:],
                0,
            )
        replies.write(json.dumps(asdict(outcome)) + "\n")
        replies.flush()


def _not_run(
    case: str,
    outcome: str,
    message: str,
    seconds: float,
) -> Outcome:
    return Outcome(
        case,
        "",
        "",
        "",
        "",
        outcome,
        message,
        seconds,
        [],
    )


class Worker:
    """A worker process, which is replaced when it dies or hangs."""

    def __init__(
        self,
        folder: Path,
        number: int,
        seed: int,
    ) -> None:
        self.folder = folder
        self.number = number
        self.seed = seed
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, case: str) -> Record:
        """Run a case, and return its record."""
        process = self.process or self._start()
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{case}\n".encode())
        process.stdin.flush()
        ready, _, _ = select.select(
            [process.stdout],
            [],
            [],
            _LONGEST_CASE,
        )
        reply = process.stdout.readline() if ready else b""
        if reply:
            record: Record = json.loads(reply)
            return record
        self.close()
        return asdict(
            _not_run(
                case,
                "hang",
                "the worker died or hung",
                _LONGEST_CASE,
            )
        )

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(__file__).parent), f"--worker={self.number}"]
        command += [f"--work={self.folder}", f"--seed={self.seed}"]
        log = (self.folder / f"worker-{self.number}.log").open("ab")
        return subprocess.Popen(
            command,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def run_cases(
    folder: Path,
    cases: Iterable[str],
    seed: int,
    workers: int,
) -> None:
    """Run cases by several workers, and record each as it ends."""
    waiting: SimpleQueue[str] = SimpleQueue()
    for case in cases:
        waiting.put(case)
    total = waiting.qsize()
    code = describe_code()
    began = time.perf_counter()

    def work(number: int) -> None:
        worker = Worker(folder, number, seed)
        try:
            while True:
                record = worker.run(waiting.get_nowait()) | {"code": code, "seed": seed}
                keep_record(folder, record)
                if record["outcome"] in FAILURES:
                    print(
                        describe_failure(record),
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


def describe_code() -> str:
    """Return the commit of this code, with a plus where files were changed since."""
    root = str(Path(__file__).parents[2])
    command = ["git", "-C", root, "describe", "--always", "--exclude=*", "--dirty=+"]
    completed = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
    )
    return completed.stdout.strip() or "unknown"


def describe_failure(record: Record) -> str:
    """Say in one line what failed."""
    broken = f"{record['scenario']}, {record['broken']}: {record['what'][:80]}"
    return f"{record['case']} {record['outcome']}: {broken}: {record['message'][:160]}"


def keep_record(folder: Path, record: Record) -> None:
    """Append a record to the campaign's file."""
    with (folder / "cases.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def read_records(folder: Path) -> dict[str, list[Record]]:
    """Return case to its records; the last one counts."""
    file = folder / "cases.jsonl"
    cases: dict[str, list[Record]] = {}
    if file.is_file():
        for line in file.read_text().splitlines():
            record = json.loads(line)
            cases.setdefault(record["case"], []).append(record)
    return cases


def summarize(cases: list[list[Record]], can_mount_disks: bool) -> dict[str, Any]:
    """Return counts, every failing case, and those that failed before and were mended."""
    latest = [records[-1] for records in cases]
    failures = []
    mended = []
    for records in cases:
        record = records[-1]
        if record["outcome"] in FAILURES:
            again = f"python benchmarks/faults --seed {record['seed']} --only {record['case']}"
            failures.append({key: record[key] for key in _KEYS} | {"again": again})
            continue
        failed = [one for one in records if one["outcome"] in FAILURES]
        if failed:
            now = {
                "outcome_now": record["outcome"],
                "code_now": record["code"],
            }
            mended.append({key: failed[0][key] for key in (*_KEYS, "code")} | now)
    return origin() | {
        "code": dict(Counter(record["code"] for record in latest)),
        "seeds": sorted({record["seed"] for record in latest}),
        "cases": len(latest),
        "seconds": round(sum(record["seconds"] for record in latest)),
        "small_disks": can_mount_disks,
        "outcomes": OUTCOMES,
        "by_kind": count_outcomes(latest, lambda record: record["case"].split("-")[0]),
        "by_command": count_outcomes(latest, lambda record: record["command"] or "unknown"),
        "by_part": count_outcomes(latest, lambda record: record["broken"].split("/")[0]),
        "failures": failures,
        "mended": mended,
    }


def count_outcomes(
    records: list[Record], group_of: Callable[[Record], str]
) -> dict[str, dict[str, int]]:
    """Count the outcomes of every group."""
    groups: dict[str, Counter[str]] = {}
    for record in records:
        groups.setdefault(group_of(record), Counter())[record["outcome"]] += 1
    counts = {}
    for name in sorted(groups):
        group = groups[name]
        counts[name] = {outcome: group[outcome] for outcome in OUTCOMES if outcome in group}
    return counts


def table(summary: dict[str, Any], by: str = "command") -> str:
    """Format outcomes by command, kind or part."""
    groups = {name: Counter(counts) for name, counts in summary[f"by_{by}"].items()}
    groups["all"] = sum(groups.values(), Counter())
    rows = []
    for name, counts in groups.items():
        cells = [counts.get(outcome, 0) for outcome in OUTCOMES]
        rows.append([name, sum(counts.values()), *cells])
    lines = markdown_table([by, "cases", *OUTCOMES], rows).splitlines()
    lines[1] = "| --- |" + " ---: |" * (len(OUTCOMES) + 1)
    return "\n".join(lines)


def world_digest(folder: Path) -> str:
    """Return a digest of all names and contents of the world, which no case may change."""
    digest = hashlib.sha256()
    for path in sorted((folder / "world" / "in").rglob("*")):
        digest.update(str(path).encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    integers = {f"--{kind}s": (count, "Cases of this kind.") for kind, count in CASES.items()}
    integers["--workers"] = (2, "Processes that run cases.")
    add_integers(parser, integers)
    parser.add_argument(
        "--seed",
        type=int,
        help="The seed of all cases. Default: 42, with --sample the number of the day in the year.",
    )
    parser.add_argument(
        "--sample",
        action="store_true",
        help="Run two minutes of it, and record nothing.",
    )
    parser.add_argument(
        "--work",
        type=Path,
        help="Keep the world and the records here. Default: nowhere.",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="Continue in --work.",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="CASE",
        help="Run only this case, and print everything; record it with --resume.",
    )
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="Summarise the campaigns in these folders, of several seeds, and run nothing.",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=results_file("faults"),
    )
    parser.add_argument(
        "--worker",
        type=int,
        help=argparse.SUPPRESS,
    )
    options = parser.parse_args()
    if options.sample:
        for kind, count in SAMPLE.items():
            setattr(options, f"{kind}s", count)
        options.workers = 1
        options.results = None
    if options.seed is None:
        options.seed = time.gmtime().tm_yday if options.sample else 42
    return options


def main() -> int:
    options = parse_options()
    if options.worker is not None:
        work_off(options.work, options.worker, options.seed)
        return 0
    if options.merge:
        return merge(options.merge, options.results)
    if options.work:
        return run_in(options.work.resolve(), options)
    # A TemporaryDirectory would be removed by every fork that ends.
    folder = Path(tempfile.mkdtemp(prefix="faults-")).resolve()
    try:
        return run_in(folder, options)
    finally:
        remove(folder)


def run_in(folder: Path, options: argparse.Namespace) -> int:
    """Run a campaign or some of its cases in a folder."""
    is_begun = (folder / "cases.jsonl").exists()
    if is_begun and not (options.resume or options.only):
        raise SystemExit(
            f"{folder} holds a campaign; name another folder, or continue it with --resume"
        )
    folder.mkdir(
        parents=True,
        exist_ok=True,
    )
    if not prepare_in_fork(folder):
        return 1
    if options.only:
        return run_only(folder, options)
    return run_campaign(folder, options)


def prepare_in_fork(folder: Path) -> bool:
    """Make the world in a process of its own, so that this one stays small."""
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            prepare(folder)
            status = 0
        except SystemExit as error:
            print(error, file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    print(f"world: {time.perf_counter() - began:.0f} seconds", file=sys.stderr)
    return status == 0


def run_only(folder: Path, options: argparse.Namespace) -> int:
    """Run some cases, and print everything."""
    worker = Worker(folder, 0, options.seed)
    has_failed = False
    for case in options.only:
        record = worker.run(case) | {"code": describe_code(), "seed": options.seed}
        has_failed = has_failed or record["outcome"] in FAILURES
        if options.resume:
            keep_record(folder, record)
        print(json.dumps(record, indent=2))
        for log in sorted((folder / "work-0" / "w").glob("log*/std*")):
            print(f"{log}:\n{log.read_text(errors='replace')[-4000:]}", flush=True)
    worker.close()
    return int(has_failed)


def run_campaign(folder: Path, options: argparse.Namespace) -> int:
    """Run all cases that are not recorded yet, and summarise the campaign."""
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    before = world_digest(folder)
    can_mount_disks = can_mount(folder)
    counts = {kind: getattr(options, f"{kind}s") for kind in KINDS}
    if not can_mount_disks:
        counts["disk"] = 0
    cases = order_cases(counts)
    done = read_records(folder)
    missing = [case for case in cases if case not in done]
    run_cases(
        folder,
        missing,
        options.seed,
        options.workers,
    )
    done = read_records(folder)
    summary = summarize([done[case] for case in cases], can_mount_disks)
    if world_digest(folder) != before:
        raise SystemExit("a case changed the world, which it shares with others: no figure holds")
    return report(summary, options.results)


def merge(folders: list[Path], results: Path | None) -> int:
    """Summarise campaigns of several seeds that lie in folders, and run nothing."""
    cases = []
    for folder in folders:
        cases += read_records(folder).values()
    has_disks = any(records[-1]["case"].startswith("disk") for records in cases)
    return report(summarize(cases, has_disks), results)


def report(summary: dict[str, Any], results: Path | None) -> int:
    """Write and print a summary, and return the exit status."""
    if results is not None:
        write_results(results, summary)
    for by in ("part", "command", "kind"):
        print(table(summary, by), end="\n\n")
    return int(bool(summary["failures"]))


def order_cases(counts: dict[str, int]) -> list[str]:
    """Mix the kinds, so that what was done at any time is a smaller campaign."""
    positions = []
    for kind, count in counts.items():
        for number in range(count):
            positions.append((number / count, kind, number))
    return [f"{kind}-{number:05d}" for _, kind, number in sorted(positions)]


if __name__ == "__main__":
    sys.exit(main())
