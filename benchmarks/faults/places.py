"""Odd places to run a command in: closed streams, folders that are gone, caches of nobody."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from faults.commands import SCENARIOS
from faults.inputs import LIMIT, Campaign, Outcome, find_lost_work, is_one_error, judge_end
from faults.runner import remove
from faults.world import lay_out, read_results, scenario_reference

_SCENARIOS = [
    "validate",
    "evaluate-bm25",
    "generate",
    "report-evaluated",
    "search",
    "export",
    "parity",
    "overlap",
    "cache",
]


def _close(*numbers: int) -> None:
    """Close standard streams, as a shell does that starts a command with ``>&-``."""
    for number in numbers:
        os.close(number)
        if number == 1:
            sys.stdout = None  # type: ignore[assignment]
        if number == 2:
            sys.stderr = None  # type: ignore[assignment]


def _redirect(number: int, path: str) -> None:
    os.dup2(os.open(path, os.O_WRONLY), number)
    _open_stream(number)


def _open_stream(number: int) -> None:
    """Open a standard stream anew; the old object takes it for the file that it was."""
    stream = open(number, "w", buffering=1, closefd=False)  # noqa: SIM115
    setattr(sys, "stdout" if number == 1 else "stderr", stream)


def _leave_reader(number: int) -> None:
    """Let a stream be a pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, number)
    _open_stream(number)


def _leave_folder() -> None:
    """Go to a folder that is removed then."""
    folder = Path("gone").absolute()
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()


def _cache(value: str) -> Callable[[], None]:
    return lambda: os.environ.__setitem__("BEIR_COCODR_CACHE", value)


def _variable(name: str, value: str) -> Callable[[], None]:
    return lambda: os.environ.__setitem__(name, value)


def _take_home() -> None:
    for name in ("HOME", "USER", "LOGNAME", "BEIR_COCODR_CACHE", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    os.environ["HOME"] = "/proc/nowhere"


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))


def _speak_ascii() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="ascii")  # type: ignore[union-attr]


#: What is odd about a place; a name that begins with "stdout" or "stderr" takes that stream away.
_PLACES: dict[str, Callable[[], object]] = {
    "stdout closed": lambda: _close(1),
    "stderr closed": lambda: _close(2),
    "stdout and stderr closed": lambda: _close(1, 2),
    "all streams closed, stdout too": lambda: _close(0, 1, 2),
    "stdin closed": lambda: os.close(0),
    "stdout full": lambda: _redirect(1, "/dev/full"),
    "stderr full": lambda: _redirect(2, "/dev/full"),
    "stdout without a reader": lambda: _leave_reader(1),
    "stderr without a reader": lambda: _leave_reader(2),
    "a working folder that is gone": _leave_folder,
    "a working folder that may not be read": lambda: Path().chmod(0o311),
    "a working folder that may not be written": lambda: Path().chmod(0o555),
    "a cache of nobody": _cache("~nouser/cache"),
    "a cache that is a file": _cache("file"),
    "a cache below a file": _cache("file/cache"),
    "a cache without a name": _cache(""),
    "a cache with a long name": _cache("x" * 300),
    "a cache in /proc": _cache("/proc/cache"),
    "a cache that is a link to itself": _cache("loop"),
    "a cache with a NUL-like name": _cache("a\nb \udcff"),
    "no home": _take_home,
    "no folder for temporary files": _variable("TMPDIR", "/nowhere"),
    "a file for temporary files": _variable("TMPDIR", "file"),
    "no width": _variable("COLUMNS", "0"),
    "a width of text": _variable("COLUMNS", "wide"),
    "a huge width": _variable("COLUMNS", "99999999999999999999"),
    "a cache of models that is a file": _variable("HF_HOME", "file"),
    "few open files": _limit_files,
    "no permissions for new files": lambda: os.umask(0o777),
    "a terminal that knows ASCII alone": _speak_ascii,
    "signals that are ignored": lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
}


def run_place(case: str, campaign: Campaign) -> Outcome:
    """Run a command in an odd place: it works as elsewhere, or names what is odd."""
    rng = campaign.generator(case)
    name = rng.choice(_SCENARIOS)
    kind = rng.choice(list(_PLACES))
    scenario = SCENARIOS[name]
    reference = scenario_reference(name, campaign.folder, campaign.warm)
    work = campaign.work
    lay_out(work, campaign.folder / "world", [])
    (work / "file").write_text("a file")
    (work / "loop").symlink_to("loop")
    arguments = ["cache", "--json"] if name == "cache" else scenario.line.split()

    def run() -> None:
        _PLACES[kind]()
        from beir_cocodr.cli.__main__ import main

        main(arguments)

    cache = work.parent / "cache-of-the-place"  # folders in it may be closed to later cases
    remove(cache)
    environment = {"BEIR_COCODR_CACHE": str(cache)}
    ended = campaign.warm.fork(run, work, environment).wait(LIMIT)
    work.chmod(0o755)
    _allow_reading(work / "out")
    results = read_results(work, scenario.outputs, ended.stdout)
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    failure = judge_end(ended, lines)
    is_compared = not kind.startswith("all") and "stdout" not in kind and name != "cache"
    if failure is not None:
        outcome, message = failure
    elif ended.status == 2:
        is_clear = "stderr" in kind or kind.startswith("all") or is_one_error(lines)
        outcome = "refused" if is_clear else "refused unclearly"
        message = lines[-1][-300:] if lines else ""
    elif is_compared and results != reference["results"] and kind != "a huge width":
        named = [line for line in lines if "BEIR_COCODR_CACHE" in line]
        outcome = "warned" if named else "silent difference"
        message = named[0][-300:] if named else "other results"
    else:
        outcome, message = "harmless", ""
    outcome, message = find_lost_work(work, ()) or (outcome, message)
    seconds = ended.seconds
    return Outcome(case, scenario.command, name, kind, kind, outcome, message, seconds, arguments)


def _allow_reading(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
