"""The campaign of benchmarks/faults finds what is broken; `make faults` runs a sample of it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from faults.calls import CALLS, METHODS, OPTIONS
from faults.campaign import keep_record, merge
from faults.commands import HOSTS, PAGES, SCENARIOS
from faults.inputs import Attempt, judge
from faults.ordinary import become_ordinary
from faults.page_server import parse_answer
from faults.parts import Broken, break_part
from faults.runner import Ended
from faults.settings import break_settings
from faults.world import write_collection, write_judged

import beir_cocodr

REFERENCE = {"results": {"out/x.run": "1"}, "stderr": ""}


def judged(
    status: int | None,
    stderr: str = "",
    found: str = "1",
    shows: bool = True,
    file: str = "beir/corpus.jsonl",
):
    ended = Ended(status, "", stderr, 0.1)
    attempt = Attempt(Broken(file, "cut", shows), by_option=False, arguments=[])
    return judge(ended, attempt, REFERENCE, {"out/x.run": found})[0]


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (
            "refused",
            {"status": 2, "stderr": "progress\nerror: in/beir/corpus.jsonl:3: broken JSON"},
        ),
        ("refused unclearly", {"status": 2, "stderr": "error: broken JSON"}),
        ("refused unclearly", {"status": 2, "stderr": "error: corpus.jsonl\nerror: corpus.jsonl"}),
        ("traceback", {"status": 1, "stderr": "KeyError: 'corpus.jsonl'"}),
        ("traceback", {"status": -6}),
        ("traceback", {"status": 0, "stderr": "Traceback (most recent call last)\n"}),
        ("hang", {"status": None}),
        ("harmless", {"status": 0}),
        ("silent difference", {"status": 0, "found": "2"}),
        ("other content", {"status": 0, "found": "2", "shows": False}),
        (
            "silent difference",
            {"status": 0, "found": "2", "shows": False, "file": "store/shard.npy"},
        ),
        (
            "warned",
            {"status": 0, "found": "2", "stderr": "corpus.jsonl: 3 blank lines were left out"},
        ),
    ],
)
def test_outcomes_follow_the_rule(expected, given):
    assert judged(**given) == expected


@pytest.mark.parametrize(
    ("damage", "arguments", "expected"),
    [
        ("missing", ["gate", "--no-labels"], "other content"),
        ("missing", ["gate"], "silent difference"),
        ("emptied", ["gate", "--no-labels"], "silent difference"),
    ],
)
def test_without_labels_a_collection_without_judgements_is_whole(damage, arguments, expected):
    attempt = Attempt(Broken("beir/qrels/test.tsv", damage, True), False, arguments)
    ended = Ended(0, "", "", 0.1)
    assert judge(ended, attempt, REFERENCE, {"out/x.run": "2"})[0] == expected


def states(part: Path) -> dict[Path, tuple[int, bytes]]:
    files = [path for path in part.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mode, path.read_bytes()) for path in files}


def test_damage_is_drawn_from_the_seed_and_changes_something(tmp_path):
    """Two generators of one seed break a part in the same way; over many seeds every file is
    broken.
    """
    broken = set()
    for seed in range(60):
        done = []
        for copy in ("a", "b"):
            part = tmp_path / f"{seed}-{copy}" / "beir"
            write_collection(part, 1)
            before = states(part)
            (part.parent / "other").symlink_to(tmp_path)
            done.append(break_part(part, random.Random(seed)))
            assert states(part) != before
        assert done[0] == done[1]
        broken.add(done[0].file)
    assert {"beir/corpus.jsonl", "beir/queries.jsonl", "beir/qrels/test.tsv"} <= broken


def test_every_command_has_scenarios():
    import typer

    from beir_cocodr.cli.__main__ import app

    names = set(commands_of(typer.main.get_command(app)))
    assert {scenario.command for scenario in SCENARIOS.values()} == names - PAGES - HOSTS


def test_the_judgements_of_the_world_are_enough_to_learn_from(tiny_cosine, tmp_path, monkeypatch):
    from beir_cocodr.cli.__main__ import main

    write_collection(tmp_path / "in" / "beir", 1)
    (tmp_path / "in" / "judged").mkdir()
    write_judged(tmp_path / "in" / "beir", tmp_path / "in" / "judged" / "judged.tsv")
    (tmp_path / "in" / "model").symlink_to(tiny_cosine)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(SCENARIOS["learn"].line.split())


def commands_of(group, prefix=""):
    """Yield the names of all commands of a group, as they are typed."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


def test_another_seed_every_day_for_the_sample_alone(monkeypatch):
    from faults.campaign import parse_options

    seeds = set()
    for arguments in (["--sample"], [], ["--seed", "7", "--sample"]):
        monkeypatch.setattr("sys.argv", ["faults", *arguments])
        seeds.add(parse_options().seed)
    assert seeds == {time.gmtime().tm_yday, 42, 7}


def test_a_process_of_root_can_give_up_its_permissions(tmp_path):
    from conftest import exit_code

    file = tmp_path / "file"
    file.write_text("secret")
    file.chmod(0)
    assert exit_code(read_as_ordinary, file) == 1
    file.chmod(0o400)
    assert exit_code(read_as_ordinary, file) == 0


def read_as_ordinary(file: Path) -> None:
    become_ordinary()
    file.read_text()


def test_every_kind_has_a_number_of_cases():
    from faults.campaign import CASES, KINDS, SAMPLE

    assert KINDS.keys() == CASES.keys() == SAMPLE.keys()
    assert min(SAMPLE.values()) > 0


def test_an_answer_ends_where_its_length_says():
    """What follows is the answer to the rest of a malformed request."""
    answer = parse_answer(
        b'HTTP/1.1 403 Forbidden\r\ncontent-length: 14\r\n\r\n{"error": "a"}HTTP/1.1 400 Bad\r\n'
    )
    assert (answer.status, answer.error) == (403, "a")
    assert parse_answer(b"").status is None
    chunked = b"HTTP/1.1 400 Bad\r\ntransfer-encoding: chunked\r\n\r\n4\r\nAway\r\n0\r\n\r\n"
    assert parse_answer(chunked).error == "Away"


def test_hostile_settings_are_drawn_from_the_seed(tmp_path):
    """Each setting that is drawn is written, and two generators of one seed write the same."""
    before = '{"hidden_size": 8, "model_type": "bert"}'
    for seed in range(30):
        contents = []
        for copy in ("a", "b"):
            part = tmp_path / f"{seed}-{copy}" / "in" / "model"
            part.mkdir(parents=True)
            (part / "config.json").write_text(before)
            broken = break_settings(part, random.Random(seed))
            contents.append((broken.damage, (part / "config.json").read_text()))
            assert contents[-1][1] != before
        assert contents[0] == contents[1]


def test_every_public_function_has_cases_of_wrong_types():
    names = {name.partition(".")[0] for name in [*CALLS, *METHODS, *OPTIONS]}
    assert names == {*beir_cocodr.__all__} - {"__version__", "Retriever"}


def test_campaigns_of_several_seeds_are_summed_up(tmp_path):
    for seed in (1, 2):
        record = {
            "case": "api-00000",
            "seed": seed,
            "code": "c",
            "command": "fuse",
            "scenario": "fuse",
            "broken": "model",
            "what": "NaN",
            "outcome": "traceback" if seed == 1 else "refused",
            "message": "",
            "seconds": 1.0,
            "arguments": [],
        }
        (tmp_path / str(seed)).mkdir()
        keep_record(tmp_path / str(seed), record)
    assert merge([tmp_path / "1", tmp_path / "2"], tmp_path / "r.json") == 1
    summary = json.loads((tmp_path / "r.json").read_text())
    assert (summary["seeds"], summary["cases"]) == ([1, 2], 2)
    [failure] = summary["failures"]
    assert failure["again"] == "python benchmarks/faults --seed 1 --only api-00000"
