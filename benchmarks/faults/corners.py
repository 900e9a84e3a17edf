"""Cases beside broken files of the world: folders of texts, caches, outputs inside inputs.

Each kind draws a case from a generator, runs it as an ordinary user, and judges how it ends.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.commands import TRAIN
from faults.damage import cut, empty, flip, garbage, missing, zeros
from faults.inputs import (
    LIMIT,
    Attempt,
    Campaign,
    Outcome,
    find_lost_work,
    judge,
    judge_end,
)
from faults.parts import Broken
from faults.runner import LIST_MODULES
from faults.world import check, keep_reference, lay_out, read_results

_NOTES = {
    "wing.txt": "The wing of an aircraft makes lift in the flow.\n",
    "heat/plate.md": "# Heat\n\nThe plate gets hot in the boundary layer.\n",
    "heat/page.html": "<h1>Shock</h1><p>A shock stands before the nozzle.</p>\n",
    "tables/a.csv": "id,title,text\n1,One,The first record of drag.\n2,Two,The second of lift.\n",
    "tables/b.jsonl": '{"id": "x", "title": "X", "text": "A record."}\n{"id": "y", "text": "Y."}\n',
}

_FOLDER_LINES = {
    "validate-notes": "validate --dataset in/notes",
    "search-notes": "search lift --dataset in/notes --model bm25",
    "generate-notes": "generate-queries --dataset in/notes --per-passage 1 --output out",
    "generate-inside": "generate-queries --dataset in/notes --per-passage 1 --output in/notes/new",
}

#: Breaks a folder of texts, and says which file and how.
FolderBreak = Callable[[Path, random.Random], tuple[str, str]]


def write_notes(folder: Path) -> None:
    """Write a folder of texts and tables."""
    for name, text in _NOTES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _denied(folder: Path, rng: random.Random) -> tuple[str, str]:
    name = rng.choice([*_NOTES, "heat", "tables"])
    (folder / name).chmod(rng.choice([0o000, 0o111]) if (folder / name).is_dir() else 0o000)
    return name, "no permission"


def _linked(folder: Path, rng: random.Random) -> tuple[str, str]:
    name = rng.choice(["link.txt", "heat/link.md", "loop"])
    targets = {
        "outside": folder.parent / "beir" / "corpus.jsonl",
        "a folder": folder,
        "nowhere": folder / "gone",
        "itself": folder / name,
        "a password": Path("/etc/passwd"),
    }
    kind = rng.choice(list(targets))
    (folder / name).symlink_to(targets[kind])
    return name, f"a link to {kind}"


def _encoded(folder: Path, rng: random.Random) -> tuple[str, str]:
    name = rng.choice(list(_NOTES))
    encoding = rng.choice(
        ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-8-sig", "cp1252", "cp500"]
    )
    text = _NOTES[name].replace("lift", "Auftrieb \xe4\xf6\xfc")
    (folder / name).write_bytes(text.encode(encoding))
    return name, encoding


_TABLES = {
    "two columns of one name": "id,text,text\n1,one,two\n",
    "two columns of nearly one name": "id,Text,text\n1,one,two\n",
    "one column without a header": "The wing makes lift.\nThe plate gets hot.\n",
    "no records": "id,text\n",
    "nothing": "",
    "a row too short": "id,text\n1,one\n2\n",
    "an open quote": 'id,text\n1,"one\n2,two\n',
    "NUL": "id,text\n1,o\0ne\n",
}


def _table(folder: Path, rng: random.Random) -> tuple[str, str]:
    kind = rng.choice(list(_TABLES))
    (folder / "tables" / "a.csv").write_text(_TABLES[kind])
    return "tables/a.csv", kind


_RECORDS = {
    "another text field": '{"text": "one"}\n{"body": "two"}\n',
    "another id field": '{"id": "a", "text": "one"}\n{"doc_id": "b", "text": "two"}\n',
    "a list": '{"id": "a", "text": ["one"]}\n',
    "half a character": '{"id": "a", "text": "\\\\ud800"}\n',
    "a deep nesting": "[" * 5000 + "\n",
    "no text": '{"id": "a"}\n',
}


def _records(folder: Path, rng: random.Random) -> tuple[str, str]:
    kind = rng.choice(list(_RECORDS))
    (folder / "tables" / "b.jsonl").write_text(_RECORDS[kind].replace("\\\\", "\\"))
    return "tables/b.jsonl", kind


def _odd(folder: Path, rng: random.Random) -> tuple[str, str]:
    contents = {
        "binary.txt": rng.randbytes(300),
        "empty.md": b"",
        "tags.html": b"<p " * rng.choice([1, 1000, 3000]),
        "deep.html": b"<div>" * rng.choice([100, 3000]),
        "a%23b #c.txt": b"The lift of a wing.",
        "scan.pdf": b"%PDF-1.4 broken",
        "word.docx": b"PK\x03\x04 broken",
        "table.parquet": b"PAR1 broken",
    }
    name = rng.choice(list(contents))
    (folder / name).write_bytes(contents[name])
    return name, "an odd file"


_FOLDER_BREAKS: list[FolderBreak] = [_denied, _linked, _encoded, _table, _records, _odd]


def run_folder(case: str, campaign: Campaign) -> Outcome:
    """Draw, run and judge a case of a broken folder of texts and tables.

    A file that cannot be read is left out and named; with ``--strict`` it is refused.
    """
    rng = campaign.generator(case)
    name = rng.choice(list(_FOLDER_LINES))
    arguments = _FOLDER_LINES[name].split()

    def make(work: Path) -> dict[str, Any]:
        lay_out(work, campaign.folder / "world", [])
        write_notes(work / "in" / "notes")
        environment = {LIST_MODULES: "1", "BEIR_COCODR_CACHE": str(work.parent / "cache")}
        ended = campaign.warm.run(arguments, work, LIMIT, environment)
        check(ended.status == 0, name, ended.stderr)
        results = read_results(work, ["out"], ended.stdout)
        return {"results": results, "stderr": ended.stderr}

    reference = keep_reference(f"corner-{name}", campaign.folder, campaign.warm, make)
    work = campaign.work
    lay_out(work, campaign.folder / "world", [])
    write_notes(work / "in" / "notes")
    file, damage = rng.choice(_FOLDER_BREAKS)(work / "in" / "notes", rng)
    is_strict = rng.random() < 0.3
    if is_strict:
        arguments = [*arguments, "--strict"]
    attempt = Attempt(Broken(f"notes/{file}", damage, True), False, arguments)
    environment = {"BEIR_COCODR_CACHE": str(work.parent / "cache")}
    ended = campaign.warm.run(arguments, work, LIMIT, environment)
    results = read_results(work, ["out"], ended.stdout)
    outcome, message = judge(ended, attempt, reference, results)
    if outcome == "silent difference" and damage in ("an odd file", "utf-8-sig", "utf-16"):
        outcome = "other content"  # another text, which was read
    if outcome == "refused" and not is_strict:
        outcome = "refused unclearly"
        message = f"one file stopped the folder: {message}"
    judged = find_lost_work(work, ()) or (outcome, message)
    return attempt.outcome(case, name, judged, ended)


_CACHED = {
    "cached-search": "search lift --dataset in/beir --model hybrid:in/model",
    "cached-file": "evaluate --dataset in/beir --model bm25 --output out",
    "cached-notes": "search lift --dataset in/notes --model bm25",
    "cached-overlap": "overlap --train in/source --test in/beir --encoder in/model --no-picture "
    "--output out",
    "cached-finetune": f"finetune --dataset in/beir --model in/model --max-steps 1 {TRAIN} "
    "--output out",
    "cached-pretrain": "pretrain --dataset in/beir --model in/bert --span-tokens 12 --max-length "
    f"48 --max-steps 1 {TRAIN} --output out",
    "cached-qc": "pretrain --objective qc --queries in/generated --dataset in/beir --model in/bert "
    f"--max-length 48 --max-steps 1 {TRAIN} --output out",
}


def run_cache(case: str, campaign: Campaign) -> Outcome:
    """Fill a cache, damage a file of it, and run the command again: its results must stay."""
    rng = campaign.generator(case)
    name = rng.choice(list(_CACHED))
    arguments = _CACHED[name].split()
    work = campaign.work
    cache = work.parent / "own-cache"
    shutil.rmtree(cache, ignore_errors=True)
    environment = {"BEIR_COCODR_CACHE": str(cache)}

    def prepare() -> None:
        lay_out(work, campaign.folder / "world", [])
        write_notes(work / "in" / "notes")

    prepare()
    first = campaign.warm.run(arguments, work, LIMIT, environment)
    check(first.status == 0, name, first.stderr)
    expected = read_results(work, ["out"], first.stdout)
    files = sorted(path for path in cache.rglob("*") if path.is_file() and path.name != ".lock")
    file = rng.choice(files)
    prepare()
    damage = None
    while damage is None:
        damage = rng.choice([cut, flip, zeros, empty, garbage, missing])(file, rng)
    damaged_name = file.relative_to(cache).as_posix()
    ended = campaign.warm.run(arguments, work, LIMIT, environment)
    results = read_results(work, ["out"], ended.stdout)
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    failure = judge_end(ended, lines)
    if failure is not None:
        outcome, message = failure
    elif ended.status == 2:
        outcome = "refused unclearly"
        message = f"not repaired: {lines[-1][-300:]}"
    elif results != expected:
        outcome = "silent difference"
        message = f"other {sorted(results)[:3]}"
    else:
        outcome = "harmless"
        message = ""
    command = arguments[0]
    return Outcome(
        case, command, name, damaged_name, damage, outcome, message, ended.seconds, arguments
    )


_INSIDE = {
    "fuse --dataset in/beir --model in/model": ["in/beir", "in/model"],
    "encode --dataset in/beir --model in/model": ["in/beir", "in/model"],
    "evaluate --dataset in/beir --model bm25": ["in/beir"],
    "evaluate --dataset in/notes --model bm25": ["in/notes", "in/notes/heat"],
    "generate-queries --dataset in/notes": ["in/notes", "in/notes/heat", "in/notes/tables"],
    f"pretrain --dataset in/notes --model in/bert --max-steps 1 {TRAIN}": ["in/notes", "in/bert"],
    f"finetune --dataset in/beir --model in/model --max-steps 1 {TRAIN}": ["in/beir", "in/model"],
    "compare bm25 in/model --dataset in/beir": ["in/beir", "in/model"],
}


def run_inside(case: str, campaign: Campaign) -> Outcome:
    """Name what a command reads as its output, by its own name or another: it is refused."""
    rng = campaign.generator(case)
    line = rng.choice(list(_INSIDE))
    damaged_name = rng.choice(_INSIDE[line])
    work = campaign.work
    lay_out(work, campaign.folder / "world", ["beir", "model", "bert"])
    write_notes(work / "in" / "notes")
    how = rng.choice(["itself", "a link", "a longer path", "the full path"])
    output = damaged_name
    if how == "a link":
        (work / "link").symlink_to(work / damaged_name)
        output = "link"
    elif how == "a longer path":
        output = f"in/../{damaged_name}/."
    elif how == "the full path":
        output = str(work / damaged_name)
    before = _contents(work / "in")
    arguments = [*line.split(), "--output", output]
    environment = {"BEIR_COCODR_CACHE": str(work.parent / "cache")}
    ended = campaign.warm.run(arguments, work, LIMIT, environment)
    attempt = Attempt(Broken(damaged_name, how, True), False, arguments)
    outcome, message = judge(ended, attempt, {"results": {}, "stderr": ""}, {"accepted": "1"})
    if _contents(work / "in") != before:
        outcome = "lost work"
        message = f"{damaged_name} was written to"
    return attempt.outcome(case, arguments[0], (outcome, message), ended)


def _contents(folder: Path) -> dict[str, bytes]:
    contents = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != ".lock":
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents
