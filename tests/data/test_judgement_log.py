"""The log of judgements: what was answered stands in it, once, whoever writes and however a process
ends.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import limited_files, process
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.data.asked_queries import ASKED_FILE, AskedQueries, load_asked
from beir_cocodr.data.judgement_log import (
    DAMAGED,
    LOG_FILE,
    QRELS_FILE,
    Asked,
    JudgementLog,
    typed_id,
)
from beir_cocodr.data.judgements import load_judgements
from beir_cocodr.errors import DiskFull, InputError
from beir_cocodr.io import locked

WING = Asked("wing in a flow")


def lines(folder):
    return [json.loads(line) for line in (folder / LOG_FILE).read_text().splitlines()]


def test_a_judgement_is_written_at_once_and_a_doubled_one_once(tmp_path):
    log = JudgementLog(tmp_path)
    for _ in range(2):
        log.judge(WING, "d1", 1)
    log.judge(Asked("wing  in a flow "), "d2", 0)
    assert [(line["document_id"], line["grade"]) for line in lines(tmp_path)] == [
        ("d1", 1),
        ("d2", 0),
    ]
    assert log.version == 2
    assert log.grades == {typed_id(WING.text): {"d1": 1, "d2": 0}}
    assert (
        load_judgements(tmp_path / QRELS_FILE).qrels
        == log.grades
        == load_judgements(tmp_path / LOG_FILE).qrels
    )


def test_undo_restores_what_was_before_and_a_doubled_undo_undoes_once(tmp_path):
    log = JudgementLog(tmp_path)
    log.judge(WING, "d1", 1, query_probability=0.5)
    log.judge(WING, "d1", 2)
    seen = log.version
    log.undo(seen)
    log.undo(seen)  # the same click again
    assert log.grades == {WING.id: {"d1": 1}}
    assert JudgementLog(tmp_path).can_undo
    log.undo(log.version)
    assert (log.grades, log.can_undo) == ({}, False)
    assert JudgementLog(tmp_path).grades == {}
    log.undo(log.version)
    assert log.version == 4
    assert (tmp_path / QRELS_FILE).read_text() == "query-id\tcorpus-id\tscore\n"


steps = st.tuples(
    st.sampled_from(["judge", "undo"]),
    st.integers(0, 1),
    st.integers(0, 2),
    st.sampled_from([0, 1, None]),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(steps, max_size=12))
def test_two_tabs_and_a_restart_see_what_a_stack_would_hold(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("log")
    tabs, stack = [JudgementLog(folder), JudgementLog(folder)], [{}]
    for act, tab, document, grade in steps:
        log = tabs[tab]
        if act == "undo":
            log.refresh()
            log.undo(log.version)
            stack = stack[:-1] or stack
            continue
        log.judge(WING, f"d{document}", grade)
        now = {name: value for name, value in stack[-1].items() if name != f"d{document}"}
        now |= {} if grade is None else {f"d{document}": grade}
        if now == stack[-1]:
            continue
        changed = [name for name in {*now, *stack[-1]} if now.get(name) != stack[-1].get(name)]
        back = len(stack) > 1 and now == stack[-2] and changed == [f"d{document}"]
        stack = stack[:-1] if back else [*stack, now]
    for log in (*tabs, JudgementLog(folder)):
        log.refresh()
        assert log.grades.get(WING.id, {}) == stack[-1]
        assert log.can_undo == (len(stack) > 1)


WRITER = """
import sys
from pathlib import Path
from beir_cocodr.data.judgement_log import (Asked, JudgementLog)
log = JudgementLog(Path(sys.argv[1]))
for number in range(100_000):
    log.judge(Asked(f"query {number % 7}"), f"{sys.argv[2]}{number}", number % 3)
    print(number, flush=True)
"""


def test_two_writers_that_are_killed_lose_nothing_and_double_nothing(tmp_path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), name], stdout=subprocess.PIPE, text=True
        )
        for name in "ab"
    ]
    answered = {writer: [writer.stdout.readline() for _ in range(15)] for writer in writers}
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        answered[writer] += writer.stdout.readlines()
        writer.wait()
    found = [(line["query"], line["document_id"]) for line in lines(tmp_path)]
    assert len(found) == len(set(found))
    for writer, name in zip(writers, "ab", strict=True):
        numbers = [int(line) for line in answered[writer] if line.endswith("\n")]
        assert numbers == list(range(len(numbers)))
        assert {(f"query {n % 7}", f"{name}{n}") for n in numbers} <= set(found)
    log = JudgementLog(tmp_path)
    assert sum(map(len, log.grades.values())) == len(found)
    assert load_judgements(tmp_path / QRELS_FILE).qrels == log.grades


def test_a_line_that_is_no_judgement_is_named(tmp_path):
    JudgementLog(tmp_path).judge(WING, "d1", 1)
    with (tmp_path / LOG_FILE).open("a") as file:
        file.write("{}\n")
    with pytest.raises(InputError, match=r"judgements\.jsonl:2: time"):
        JudgementLog(tmp_path)


@pytest.mark.parametrize("room", [0, 1, 40, 150])
def test_a_full_disk_leaves_the_log_as_it_was(room, tmp_path):
    log = JudgementLog(tmp_path)
    log.judge(WING, "d1", 1)
    before = (tmp_path / LOG_FILE).read_bytes()
    long = Asked("wing " * 100)
    for _ in range(2):
        with limited_files(len(before) + room), pytest.raises(DiskFull):
            log.judge(long, "d2", 1)
        assert (tmp_path / LOG_FILE).read_bytes() == before
    log.judge(long, "d2", 1)
    assert JudgementLog(tmp_path).grades == {WING.id: {"d1": 1}, long.id: {"d2": 1}}


@pytest.mark.parametrize("damage", [b'{"time": "2026', b"\0\0\0", b'e": 1}\n', b"{\n\xff\n"])
@pytest.mark.parametrize("place", [1, 2])
def test_damaged_lines_are_set_aside_and_all_judgements_stay(damage, place, tmp_path, caplog):
    log = JudgementLog(tmp_path)
    for document in ("d1", "d2"):
        log.judge(WING, document, 1)
    lines = (tmp_path / LOG_FILE).read_bytes().splitlines(keepends=True)
    ended = damage if place == 2 or damage.endswith(b"\n") else damage + b"\n"
    (tmp_path / LOG_FILE).write_bytes(b"".join([*lines[:place], ended, *lines[place:]]))
    opened = JudgementLog(tmp_path)
    assert opened.grades == {WING.id: {"d1": 1, "d2": 1}}
    assert (tmp_path / LOG_FILE).read_bytes() == b"".join(lines)
    aside = (tmp_path / (LOG_FILE + DAMAGED)).read_bytes()
    assert aside.rstrip(b"\n") == damage.rstrip(b"\n")
    [message] = caplog.messages
    assert f"{LOG_FILE}:{place + 1}: " in message
    assert LOG_FILE + DAMAGED in message
    opened.judge(WING, "d3", 1)
    assert load_judgements(tmp_path / LOG_FILE).qrels == {WING.id: {"d1": 1, "d2": 1, "d3": 1}}


def test_a_writer_that_dies_in_a_line_stops_no_session_that_runs(tmp_path):
    log = JudgementLog(tmp_path)
    log.judge(WING, "d1", 1)
    with (tmp_path / LOG_FILE).open("ab") as file:
        file.write(b'{"time": "2026')
    log.judge(WING, "d2", 1)
    assert log.grades == {WING.id: {"d1": 1, "d2": 1}}
    assert load_judgements(tmp_path / LOG_FILE).qrels == log.grades


def test_a_last_line_without_its_end_is_a_judgement(tmp_path):
    JudgementLog(tmp_path).judge(WING, "d1", 1)
    whole = (tmp_path / LOG_FILE).read_bytes()
    (tmp_path / LOG_FILE).write_bytes(whole.removesuffix(b"\n"))
    log = JudgementLog(tmp_path)
    assert log.grades == {WING.id: {"d1": 1}}
    log.judge(WING, "d2", 1)
    assert log.grades == {WING.id: {"d1": 1, "d2": 1}}
    assert (tmp_path / LOG_FILE).read_bytes().startswith(whole)


def test_qrels_that_a_full_disk_kept_back_are_written_later(tmp_path, monkeypatch):
    log = JudgementLog(tmp_path)
    log.judge(WING, "d1", 1)
    with monkeypatch.context() as patch:
        patch.setattr("beir_cocodr.data.judgement_log.write_qrels", _no_room)
        with pytest.raises(OSError, match="No space"):
            log.judge(WING, "d2", 1)
    log.refresh()
    assert (
        load_judgements(tmp_path / QRELS_FILE).qrels == log.grades == {WING.id: {"d1": 1, "d2": 1}}
    )


def _no_room(*args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_edit_in_place_is_noticed_by_the_content(tmp_path):
    log = JudgementLog(tmp_path)
    log.judge(WING, "d1", 1)
    log.judge(WING, "d2", 0)
    content = log.file.read_bytes()
    edited = content.replace(b'"grade": 1', b'"grade": 2')
    assert len(edited) == len(content)
    log.file.write_bytes(edited)
    log.refresh()
    assert log.grades == {WING.id: {"d1": 2, "d2": 0}}
    log.file.write_bytes(edited.replace(b"\n", b"\r\n"))
    log.refresh()
    log.judge(WING, "d3", 1)
    assert log.grades == {WING.id: {"d1": 2, "d2": 0, "d3": 1}}
    assert JudgementLog(tmp_path).grades == log.grades


def test_a_folder_in_place_of_the_log_is_named(tmp_path):
    log = JudgementLog(tmp_path)
    log.judge(WING, "d1", 1)
    log.file.unlink()
    log.file.mkdir()
    with pytest.raises(InputError, match=LOG_FILE):
        log.judge(WING, "d2", 1)


@pytest.mark.parametrize("kind", ["gone", "a file", "under a file"])
def test_a_folder_that_was_taken_away_is_named(tmp_path, kind):
    folder = tmp_path / "above" / "judged"
    folder.mkdir(parents=True)
    log = JudgementLog(folder)
    log.judge(WING, "d1", 1)
    asked = AskedQueries(folder)
    taken = folder.parent if kind == "under a file" else folder
    shutil.rmtree(taken)
    if kind == "gone":  # it is made again, and the judgement is kept
        log.judge(WING, "d2", 1)
        assert JudgementLog(folder).grades == {WING.id: {"d2": 1}}
        return
    taken.write_text("a file")
    with pytest.raises(InputError, match=f"{LOG_FILE} cannot be read or written"):
        log.judge(WING, "d2", 1)
    with pytest.raises(InputError, match=f"{ASKED_FILE} cannot be read or written"):
        asked.add("wing in a flow")


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (b"\xff\xfe", "asked.jsonl"),
        (b"text", "asked.jsonl:2"),
        (b"[]", "asked.jsonl:2"),
        (b'{"text": "wing"}', "asked.jsonl:2 is not a query"),
        (b'{"query": null}', "asked.jsonl:2 is not a query"),
        (b'{"query": 7}', "asked.jsonl:2 is not a query"),
        (b'{"query": "\\ud800"}', "asked.jsonl:2: the query contains an unpaired surrogate"),
    ],
)
def test_damaged_asked_queries_are_named(damaged, message, tmp_path):
    (tmp_path / ASKED_FILE).write_bytes(b'{"query": "wing"}\n' + damaged + b"\n")
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        load_asked(tmp_path)


def test_a_full_disk_leaves_the_asked_queries_as_they_were(tmp_path):
    asked = AskedQueries(tmp_path)
    asked.add("wing in a flow")
    before = asked.file.read_bytes()
    with limited_files(len(before) + 20), pytest.raises(DiskFull):
        asked.add("a plate in the boundary layer")
    assert asked.file.read_bytes() == before
    asked.add("a plate in the boundary layer")
    assert [*load_asked(tmp_path).values()] == ["wing in a flow", "a plate in the boundary layer"]


def test_half_a_character_is_refused_and_the_log_stays(tmp_path):
    log = JudgementLog(tmp_path)
    log.judge(WING, "d1", 1)
    before = log.file.read_bytes()
    with pytest.raises(InputError, match="whole characters"):
        log.judge(Asked("\ud800"), "d2", 1)
    assert log.file.read_bytes() == before


@pytest.mark.timeout(60)
def test_a_folder_that_another_process_holds_is_waited_for_for_seconds(tmp_path, monkeypatch):
    log = JudgementLog(tmp_path)
    log.judge(WING, "d1", 1)
    asked = AskedQueries(tmp_path)
    monkeypatch.setattr("beir_cocodr.data.judgement_log._LONGEST_WAIT", 0.2)
    holder = process(hold, tmp_path)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    for act in (
        lambda: log.judge(WING, "d2", 1),
        lambda: log.undo(1),
        lambda: asked.add("wing in a flow"),
        lambda: JudgementLog(tmp_path),
    ):
        with pytest.raises(InputError, match="another process"):
            act()
    holder.kill()
    holder.join()
    log.judge(WING, "d2", 1)
    assert log.grades == {WING.id: {"d1": 1, "d2": 1}}


def hold(folder):
    with locked(folder):
        (folder / "held").touch()
        time.sleep(60)
