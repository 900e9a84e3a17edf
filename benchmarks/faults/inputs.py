"""One bad input: a broken part or a bad option of a scenario, run, and judged."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, get_args

from faults_parts import EXECUTED, Done, break_part
from faults_runner import Ended, Warm, run_command
from faults_world import SCENARIOS, Scenario, lay_out, results, scenario_reference
from typer.models import ArgumentInfo

#: What came of a case. Those of ``FAILURES`` must not be.
OUTCOMES = {
    "refused": "exit status 2 and one line that names the file, line, id or option",
    "harmless": "the same results as of the unbroken input",
    "warned": "other results, and a line that names what is left out or in doubt",
    "other content": "other results, as of another text, weight or option that is whole in itself: nothing shows it",
    "refused unclearly": "exit status 2 without such a line",
    "silent difference": "other results without a word, though the file or a checksum of ours shows the damage",
    "lost work": "something half-written, changed or removed that was not the command's to touch",
    "traceback": "an exit status of neither 0 nor 2, or a traceback",
    "hang": "no end within the limit",
}
FAILURES = ("refused unclearly", "silent difference", "lost work", "traceback", "hang")

#: Seconds; many, as other work may keep the machine busy.
LIMIT = 180.0

#: Parts that this package wrote and keeps checksums or hashes of: whatever is changed in them has
#: to show.
OURS = ("store", "indexed", "sets", "interrupted")

#: A refusal is one line that a person can read.
LONGEST = 1_500


@dataclass(frozen=True)
class Outcome:
    """A case as it is recorded."""

    case: str
    command: str
    scenario: str
    broken: str
    what: str
    outcome: str
    message: str
    seconds: float
    arguments: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_input(case: str, seed: int, place: Path, work: Path, warm: Warm) -> Outcome:
    """Draw, run and judge the case of this name; ``command-N`` starts the installed command."""
    rng, real = random.Random(f"{seed} {case}"), case.startswith("command")
    names = [
        name
        for name, scenario in SCENARIOS.items()
        if scenario.light or not real or rng.random() < 0.15
    ]
    name = rng.choices(names, [SCENARIOS[name].weight for name in names])[0]
    scenario, reference = SCENARIOS[name], scenario_reference(name, place, warm)
    by_option = scenario.options or rng.random() < (0.4 if real else 0.2)
    lay_out(work, place / "world", scenario.parts)
    arguments = scenario.line.split()
    if by_option:
        done, arguments = break_option(scenario, reference["settings"], rng, work)
    else:
        part = rng.choice(scenario.parts)
        done = break_part(work / "in" / part, rng)
    before = {part: _state(work / "in" / part) for part in scenario.parts}
    left_before = leftovers(work)
    environment = {"BEIR_COCODR_CACHE": str(work.parent / "cache")}
    run = run_command if real else warm.run
    ended = run(arguments, work, LIMIT, environment)
    judged = judge(
        ended, done, by_option, arguments, reference, results(work, scenario.outputs, ended.stdout)
    )
    if ended.status is not None:
        judged = check_left(work, scenario, ended, before, left_before, judged)
    return Outcome(
        case, scenario.command, name, done.file, done.what, *judged, ended.seconds, arguments
    )


def judge(
    ended: Ended,
    done: Done,
    by_option: bool,
    arguments: list[str],
    reference: dict[str, Any],
    found: dict[str, str],
) -> tuple[str, str]:
    """The outcome, and the message that decided it."""
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if ended.status is None:
        return "hang", last[-300:]
    if ended.status not in (0, 2) or "Traceback (most recent call last)" in ended.stderr:
        return "traceback", f"status {ended.status}: {last[-300:]}"
    if ended.status == 2:
        errors = [line for line in lines if line.startswith("error: ")]
        clear = len(errors) == 1 and errors[0] == last and len(last) <= LONGEST
        return (
            "refused" if clear and names(last, done, by_option, arguments) else "refused unclearly"
        ), last[-300:]
    if by_option and found != reference["results"]:
        return ("silent difference" if done.shows else "other content"), "accepted"
    wanted = reference["results"]
    if (
        done.file.split("/")[0] not in OURS
    ):  # a finished file that is kept and not read is the user's to look at
        found, wanted = (
            {n: v for n, v in one.items() if n != f"in/{done.file}"} for one in (found, wanted)
        )
    if found == wanted:
        return "harmless", ""
    known = set(reference.get("stderr", "").splitlines())
    reported = (
        ended.stdout.splitlines() if arguments[:1] == ["validate"] else []
    )  # whose results are warnings
    # The time left differs from run to run, and a step is named after its model.
    new = [
        line for line in [*lines, *reported] if line not in known and not line.startswith("step ")
    ]
    if warnings := [line for line in new if names(line, done, by_option, arguments)]:
        return "warned", warnings[0][-300:]
    if done.shows or done.file.split("/")[0] in OURS:
        changed = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        return "silent difference", f"other {', '.join(changed)[:200]}"
    return "other content", ""


def names(line: str, done: Done, by_option: bool, arguments: list[str]) -> bool:
    """Whether a line names the file at fault or one that the command was given; or the option or
    its value.
    """
    if by_option:
        flag, _, value = done.what.partition("=")
        bare = flag.lstrip("-").replace("-", "_")
        words = {
            flag,
            bare,
            *(["dataset"] if bare in _DATASETS else ["model"] if bare in _MODELS else []),
            bare.replace("_", " "),
            *(["split"] if bare.endswith("_split") else []),
            *(["error: .:"] if not value else []),  # an empty path is the folder where one is
            value.strip("'\"")[:60],
            repr(value)[1:60],
            done.file,
        }
        return any(word and word.lower() in line.lower() for word in words)
    paths = [word.split(":")[-1] for word in arguments if "/" in word]
    return any(word in line for word in (*paths, Path(done.file).name))


def check_left(
    work: Path,
    scenario: Scenario,
    ended: Ended,
    before: dict[str, Any],
    left_before: list[str],
    judged: tuple[str, str],
) -> tuple[str, str]:
    """The outcome, or lost work or run code where the folder shows it."""
    if any(work.rglob(EXECUTED)):
        return "traceback", "code that came with a model was run"
    if left := sorted({*leftovers(work)} - {*left_before}):
        return "lost work", f"left behind: {', '.join(left)[:200]}"
    if ended.status != 2:
        return judged
    for part, state in before.items():
        now = _state(work / "in" / part)
        written = {f"in/{part}"} & {*scenario.outputs} or part in ("store", "indexed")
        changed = [file for file, value in state.items() if now.get(file) != value]
        if written:  # may gain and repair files, and lose none
            changed = [file for file in changed if file not in now]
        if changed:
            return "lost work", f"changed or removed though refused: {part}/{changed[0]}"
    return judged


def leftovers(work: Path) -> list[str]:
    """Half-written files and locks below a folder."""
    return [
        path.relative_to(work).as_posix()
        for path in sorted(work.rglob("*"))
        if path.name.startswith((".unfinished-", "tmp")) or path.name == ".lock"
    ]


def _state(part: Path) -> dict[str, tuple[int, int]]:
    if part.is_symlink() or not part.exists():
        return {}
    files = (
        [part]
        if part.is_file()
        else [p for p in part.rglob("*") if p.is_file() and not p.is_symlink()]
    )
    files = [p for p in files if p.name != ".lock"]
    return {p.relative_to(part).as_posix(): (p.stat().st_size, p.stat().st_mtime_ns) for p in files}


# Texts of any content are what these ask for.
_FREE = {
    "query_prompt",
    "document_prompt",
    "title_separator",
    "prefix",
    "prompt",
    "base_id",
    "language",
    "query",
}

# How long a run takes is for the user to say.
_DATASETS = {"dataset", "corpus", "source", "target", "train", "test", "ood"}
_MODELS = {"encoder", "base", "before", "after"}
_AMOUNTS = {"max_steps", "epochs", "mlm_steps", "hub_timeout", "samples", "per_passage"}

NEVER = {
    int: ["abc", "", "1.5", "nan", "inf", "0x10", "--", "1e3"],
    float: ["abc", "", "nan", "-nan", "inf", "-inf", "1,5", "--"],
}
MAYBE = {
    int: ["-1", "0", "-2147483649", "4294967296", "18446744073709551616", "9" * 70],
    float: ["-1", "0", "-1e-9", "1e308"],
}
LARGE = ["1000000000", "1000000000000000000"]

STRINGS = [
    "",
    " ",
    "nonsense",
    "x" * 5000,
    "../../etc",
    "\udcff\udcfe",
    "a\nb",
    "🦆" * 300,
    "-",
    "null",
    "%s%n",
    "{}",
]
PATHS = [
    "nowhere",
    "",
    "x" * 300,
    "nowhere/" * 600,
    "\udcff\udcfe",
    "/dev/null",
    "/proc/self/mem",
    "in",
    ".",
]
PARTICULAR = {
    "device": ["nonsense", "cuda", "cuda:99", "tpu", "meta", "cpu:-1", "", "mps", "cuda:0;x"],
    "measures": [
        "nDCG@0",
        "nDCG@-1",
        "nonsense@3",
        "",
        "P(rel=x)@5",
        "nDCG@999999999999999999999",
        "nDCG@10 nDCG@10",
    ],
    "measure": ["nDCG@0", "nonsense@3", "", "nDCG@10 R@100", "RR(rel=-1)@10"],
    "seed": ["-1", "4294967296", "18446744073709551616", "abc", "1.5", "nan"],
    "split": ["nonsense", "", "../qrels/test", "test.tsv", "x" * 300, "te\nst"],
    "model": [
        "nonsense",
        "",
        "hybrid:",
        "hybrid:bm25",
        "rrf:nonsense",
        "feedback:hybrid:in/model",
        "in/beir",
        "in",
    ],
    "queries": ["nowhere", "in/beir", "in/model", "", "in/beir/queries.jsonl"],
    "index": ["nonsense", "", "FLAT", "flat,hnsw"],
    "shard": ["0/1", "2/1", "-1/2", "a/b", "1/0", "", "1/99999999999999999999"],
    "ray": ["nonsense", "127.0.0.1:1"],
    "stages": ["", "nonsense", "coco,coco", ",,,", "finetune,nonsense"],
    "teacher": ["nonsense", "", "in/model", "in/bert", "in/beir", "file", "hybrid:nonsense"],
    "generator": ["nonsense", "", "in/beir", "in/bert", "in/model"],
    "architecture": ["nonsense", "", "bm25,bm25", ","],
    "folder": ["nowhere", "in/beir", "in/model", ""],
    "store": ["nowhere", "in/beir", "in/model", ""],
    "dataset": [
        "nowhere",
        "in/model",
        "irds:nonsense",
        "apidocs/nonsense",
        "",
        "in/model/config.json",
        "in",
        "irds:",
    ],
}
_ALWAYS_WRONG = {"", "nonsense", "nowhere", "in/model", "in/beir", "in"}


def break_option(
    scenario: Scenario, settings: dict[str, Any], rng: random.Random, work: Path
) -> tuple[Done, list[str]]:
    """A bad value of one option or setting, an unknown option, or a required one left out."""
    arguments = scenario.line.split()
    kind = rng.random()
    if kind < 0.04:
        flag = rng.choice(["--nonsense", "--outputt", "-z", "--set"])
        return Done("options", flag, True), [*arguments, flag]
    flags = [word for word in arguments if word.startswith("--")]
    if kind < 0.08 and flags and not scenario.options:  # which would run whole
        flag = rng.choice(flags)
        at = arguments.index(flag)
        valued = at + 1 < len(arguments) and not arguments[at + 1].startswith("--")
        del arguments[at : at + 1 + valued]
        return Done("options", flag, False), arguments
    if settings and kind < 0.5:
        name = rng.choice(sorted(settings))
        value, shows = bad_value(name, _kind(settings[name]), rng)
        return Done(f"--set {name}", f"{name}={value}", shows), [
            *arguments,
            "--set",
            f"{name}={value}",
        ]
    name, flag, typed = rng.choice(_options(scenario.command))
    if flag == "--output":
        value, shows = _bad_output(work, scenario.parts, rng), False
        value = rng.choice(_CLOSED) if scenario.options else value
    else:
        value, shows = bad_value(name, typed, rng)
    if flag in arguments:
        at = arguments.index(flag)
        arguments[at + 1] = value
    elif flag.startswith("--"):
        arguments += [flag, value]
    else:
        arguments = [
            value if not word.startswith("-") and n == 1 else word
            for n, word in enumerate(arguments)
        ]
    if "\0" in value:
        value = value.replace("\0", "")
    return Done(name, f"{flag}={value}", shows), arguments


def bad_value(name: str, kind: type, rng: random.Random) -> tuple[str, bool]:
    """A value, and whether it can never be right."""
    if name in PARTICULAR and rng.random() < 0.8:
        value = rng.choice(PARTICULAR[name])
        return value, value in _ALWAYS_WRONG
    if kind in NEVER:
        large = [] if name in _AMOUNTS else LARGE
        value = rng.choice([*NEVER[kind], *MAYBE[kind], *large])
        return value, value in NEVER[kind]
    if kind is Path:
        return rng.choice(PATHS), False
    value = rng.choice(STRINGS)
    return value, value == "nonsense" and name not in _FREE


def _bad_output(work: Path, parts: list[str], rng: random.Random) -> str:
    (work / "file").write_text("text")
    (work / "taken").mkdir(exist_ok=True)
    (work / "taken" / "mine.txt").write_text("mine")
    (work / "loop").symlink_to("loop")
    places = [
        "file",
        "file/below",
        "taken",
        "taken/mine.txt",
        "loop",
        "",
        ".",
        "x" * 300,
        "a/" * 2100,
        "new ü/\n",
    ]
    places += ["/proc/nothing", "/sys/nothing", "/dev/null", "/dev/full", "\udcff\udcfe"]
    return rng.choice([*places, *(f"in/{part}" for part in parts)])


#: Of a command that must not run whole: what cannot be written to.
_CLOSED = [
    "file",
    "file/below",
    "taken/mine.txt",
    "loop",
    "x" * 300,
    "a/" * 2100,
    "/proc/nothing",
    "/dev/null",
]


def _kind(value: object) -> type:
    return (
        float
        if isinstance(value, float)
        else int
        if isinstance(value, int) and not isinstance(value, bool)
        else str
    )


@cache
def _options(command: str) -> list[tuple[str, str, type]]:
    """(name, flag, type) of all options and arguments of a command that take a value."""
    from beir_cocodr.cli.__main__ import app, resample_app, study_app

    first, *rest = command.split()
    registered = [*app.registered_commands, *study_app.registered_commands]
    known = resample_app.registered_commands if rest else registered
    (function,) = (
        c.callback for c in known if c.callback.__name__.replace("_", "-") == (rest or [first])[0]
    )
    listed = []
    for name, parameter in signature(function, eval_str=True).parameters.items():
        hint, option = get_args(parameter.annotation) or (parameter.annotation, None)
        kinds = [kind for part in (hint, *get_args(hint)) for kind in (part, *get_args(part))]
        if bool not in kinds:
            flags = [
                flag for flag in getattr(option, "param_decls", None) or () if flag.startswith("--")
            ]
            flag = (
                name
                if isinstance(option, ArgumentInfo)
                else (flags or ["--" + name.replace("_", "-")])[0]
            )
            listed.append(
                (name, flag, next((kind for kind in (int, float, Path) if kind in kinds), str))
            )
    return listed
