"""One bad input: a broken part or a bad option of a scenario, run and judged."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beir_cocodr.temporary import PREFIX
from faults.commands import SCENARIOS, Scenario
from faults.options import break_option, names_option
from faults.parts import EXECUTED, PICKLE, Broken, break_part
from faults.runner import Ended, Warm, run_installed
from faults.world import lay_out, read_results, scenario_reference

#: How a case can end.
OUTCOMES = {
    "refused": "exit status 2 and one line that names the file, line, id or option",
    "harmless": "the same results as of the unbroken input",
    "warned": "other results, and a line that names what is left out or in doubt",
    "other content": (
        "other results, as of another text, weight or option that is complete in itself: nothing "
        "shows it"
    ),
    "refused unclearly": "exit status 2 without such a line",
    "silent difference": (
        "other results without a word, though the file or a checksum of ours shows the damage"
    ),
    "lost work": "something half-written, or changed or removed though it was not the command's",
    "traceback": "an exit status of neither 0 nor 2, or a traceback",
    "hang": "no end within the limit",
    "hole": "code of others was run, or one was answered who may not ask",
}
#: Outcomes that must not be.
FAILURES = ("refused unclearly", "silent difference", "lost work", "traceback", "hang", "hole")

#: The most seconds of a command; other work may keep the machine busy.
LIMIT = 180.0

#: Parts whose files have checksums or hashes of ours: any change in them must show.
OURS = ("store", "indexed", "sets", "interrupted")

#: Parts that a command may repair and add to.
REPAIRED = ("store", "indexed")

#: The most characters of a refusal, which is one line that a person can read.
LONGEST = 1_500

TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Outcome:
    """A case as it is recorded.

    Attributes:
        case: Its name.
        command: The command.
        scenario: The name of the scenario or long command.
        broken: What was broken.
        what: How it was broken.
        outcome: One of :data:`OUTCOMES`.
        message: The message that decided it.
        seconds: How long it took.
        arguments: The arguments of the command.
    """

    case: str
    command: str
    scenario: str
    broken: str
    what: str
    outcome: str
    message: str
    seconds: float
    arguments: list[str]


@dataclass(frozen=True)
class Campaign:
    """Where a worker runs cases.

    Attributes:
        folder: The folder of the campaign, which has the world.
        work: The folder of the case.
        seed: The campaign's seed.
        warm: The process that forks commands.
    """

    folder: Path
    work: Path
    seed: int
    warm: Warm

    def generator(self, case: str) -> random.Random:
        """Return the generator of a case, which depends on its name and the seed alone."""
        return random.Random(f"{self.seed} {case}")


@dataclass(frozen=True)
class Attempt:
    """A command with broken input.

    Attributes:
        broken: What was broken.
        by_option: Whether an option was, and not a part.
        arguments: The arguments of the command.
    """

    broken: Broken
    by_option: bool
    arguments: list[str]

    def outcome(
        self,
        case: str,
        scenario: str,
        judged: tuple[str, str],
        ended: Ended,
    ) -> Outcome:
        """Return the record of a case.

        Args:
            case: The name of the case.
            scenario: The name of the scenario.
            judged: The outcome, and the message that decided it.
            ended: How the command ended.
        """
        command = self.arguments[0]
        if scenario in SCENARIOS:
            command = SCENARIOS[scenario].command
        return Outcome(
            case,
            command,
            scenario,
            self.broken.file,
            self.broken.damage,
            *judged,
            ended.seconds,
            self.arguments,
        )

    @property
    def is_ours(self) -> bool:
        """Return whether the broken part has checksums of ours."""
        return self.broken.file.split("/")[0] in OURS

    @property
    def shows(self) -> bool:
        """Return whether the damage shows, in the file itself or by a checksum of ours."""
        is_judgements = "/qrels/" in self.broken.file and self.broken.damage == "missing"
        if is_judgements and "--no-labels" in self.arguments:
            return False  # without judgements a collection is whole where no labels are wanted
        return self.broken.shows or self.is_ours

    def is_named_in(self, line: str) -> bool:
        """Return whether a line names the file at fault or one that the command got."""
        if self.by_option:
            return names_option(line, self.broken)
        paths = [word.split(":")[-1] for word in self.arguments if "/" in word]
        return any(word in line for word in (*paths, Path(self.broken.file).name))


def run_input(case: str, campaign: Campaign) -> Outcome:
    """Draw, run and judge a case; ``command-N`` starts the installed command."""
    rng = campaign.generator(case)
    work = campaign.work
    is_installed = case.startswith("command")
    name = _draw_scenario(rng, is_installed)
    scenario = SCENARIOS[name]
    reference = scenario_reference(name, campaign.folder, campaign.warm)
    by_option = scenario.options or rng.random() < (0.4 if is_installed else 0.2)
    lay_out(work, campaign.folder / "world", scenario.parts)
    if by_option:
        broken, arguments = break_option(
            scenario,
            reference["settings"],
            rng,
            work,
        )
    else:
        part = rng.choice(scenario.parts)
        broken = break_part(work / "in" / part, rng)
        arguments = scenario.line.split()
    before = {part: _file_states(work / "in" / part) for part in scenario.parts}
    leftovers_before = set(find_leftovers(work))
    run = run_installed if is_installed else campaign.warm.run
    environment = {"BEIR_COCODR_CACHE": str(work.parent / "cache")}
    ended = run(
        arguments,
        work,
        LIMIT,
        environment,
    )
    attempt = Attempt(broken, by_option, arguments)
    results = read_results(work, scenario.outputs, ended.stdout)
    judged = judge(
        ended,
        attempt,
        reference,
        results,
    )
    if ended.status is not None:
        problem = find_lost_work(work, leftovers_before)
        if problem is None and ended.status == 2:
            problem = find_changes(work, scenario, before)
        judged = problem or judged
    return attempt.outcome(case, name, judged, ended)


def _draw_scenario(rng: random.Random, is_installed: bool) -> str:
    names = []
    for name, scenario in SCENARIOS.items():
        if scenario.light or not is_installed or rng.random() < 0.15:
            names.append(name)
    weights = [SCENARIOS[name].weight for name in names]
    return rng.choices(names, weights)[0]


def judge(
    ended: Ended,
    attempt: Attempt,
    reference: dict[str, Any],
    results: dict[str, str],
) -> tuple[str, str]:
    """Return the outcome, and the message that decided it.

    Args:
        ended: How the command ended.
        attempt: The command, and what was broken.
        reference: Its results and messages in the unbroken world.
        results: Its results here.
    """
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    failure = judge_end(ended, lines)
    if failure is not None:
        return failure
    if ended.status == 2:
        return _judge_refusal(lines, attempt)
    expected = reference["results"]
    warnings = _warnings(
        ended,
        lines,
        attempt,
        reference,
    )
    if attempt.by_option and results != expected:
        if warnings:
            return "warned", warnings[0][-300:]
        return ("silent difference" if attempt.broken.shows else "other content"), "accepted"
    if not attempt.is_ours:
        # A finished file that is kept and not read is for the user to look at.
        broken = Path("in", attempt.broken.file)
        at_fault = {str(broken), str(broken.with_name(PICKLE))}
        results = {name: value for name, value in results.items() if name not in at_fault}
        expected = {name: value for name, value in expected.items() if name not in at_fault}
    if results == expected:
        return "harmless", ""
    if warnings:
        return "warned", warnings[0][-300:]
    if attempt.shows:
        names = {*results, *expected}
        changed = sorted(name for name in names if results.get(name) != expected.get(name))
        return "silent difference", f"other {', '.join(changed)[:200]}"
    return "other content", ""


def judge_end(ended: Ended, lines: list[str]) -> tuple[str, str] | None:
    """Return the outcome of a command that neither worked nor refused, otherwise None."""
    last = lines[-1][-300:] if lines else ""
    if ended.status is None:
        return "hang", last
    if ended.status not in (0, 2) or TRACEBACK in ended.stderr:
        return "traceback", f"status {ended.status}: {last}"
    return None


def is_one_error(lines: list[str]) -> bool:
    """Say whether the last line, and no other, is an error."""
    errors = [line for line in lines if line.startswith("error: ")]
    return len(errors) == 1 and errors[0] == lines[-1]


def _judge_refusal(lines: list[str], attempt: Attempt) -> tuple[str, str]:
    last = lines[-1] if lines else ""
    is_clear = is_one_error(lines) and len(last) <= LONGEST and attempt.is_named_in(last)
    return ("refused" if is_clear else "refused unclearly"), last[-300:]


def _warnings(
    ended: Ended,
    lines: list[str],
    attempt: Attempt,
    reference: dict[str, Any],
) -> list[str]:
    """Return new lines that name what was broken."""
    known = set(reference.get("stderr", "").splitlines())
    # The results of validate are warnings.
    reported = ended.stdout.splitlines() if attempt.arguments[:1] == ["validate"] else []
    warnings = []
    for line in [*lines, *reported]:
        # The time left differs from run to run, and a step is named after its model.
        is_new = line not in known and not line.startswith("step ")
        if is_new and attempt.is_named_in(line):
            warnings.append(line)
    return warnings


def find_lost_work(work: Path, leftovers_before: Iterable[str]) -> tuple[str, str] | None:
    """Return an outcome if the folder shows run code or half-written files, otherwise None."""
    if any(work.rglob(EXECUTED)):
        return "hole", "code that came with a model was run"
    left = sorted(set(find_leftovers(work)) - set(leftovers_before))
    if left:
        return "lost work", f"left behind: {', '.join(left)[:200]}"
    return None


def find_changes(
    work: Path,
    scenario: Scenario,
    before: dict[str, dict[str, tuple[int, int]]],
) -> tuple[str, str] | None:
    """Return an outcome if a command that refused has changed its input, otherwise None."""
    for part, states in before.items():
        now = _file_states(work / "in" / part)
        changed = [file for file, state in states.items() if now.get(file) != state]
        if f"in/{part}" in scenario.outputs or part in REPAIRED:
            changed = [file for file in changed if file not in now]
        if changed:
            return "lost work", f"changed or removed though refused: {part}/{changed[0]}"
    return None


def find_leftovers(work: Path) -> list[str]:
    """List half-written files, locks and temporary folders of ours below a folder."""
    names = []
    for path in sorted(work.rglob("*")):
        if path.name.startswith((".unfinished-", "tmp", PREFIX)) or path.name == ".lock":
            names.append(path.relative_to(work).as_posix())
    return names


def _file_states(part: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file of a part."""
    if part.is_symlink() or not part.exists():
        return {}
    states = {}
    for path in [part] if part.is_file() else part.rglob("*"):
        is_own_file = path.is_file() and not path.is_symlink()
        if is_own_file and path.name != ".lock":
            status = path.stat()
            name = path.relative_to(part).as_posix()
            states[name] = (status.st_size, status.st_mtime_ns)
    return states
