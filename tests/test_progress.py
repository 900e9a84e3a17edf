"""The line of progress, which changes in place on a terminal and comes now and then elsewhere."""

from __future__ import annotations

import io
import logging
import sys
import time

import pytest

from beir_cocodr import progress
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.progress import Bar, LineHandler, Steps, describe_seconds, step, steps


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when the test moves it."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def handler():
    """Return the handler of the command line, which owns the line."""
    handler = LineHandler(io.StringIO())
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def stderr(monkeypatch, terminal: bool) -> Stream:
    monkeypatch.setattr("sys.stderr", stream := Stream(terminal))
    return stream


def test_a_log_gets_whole_lines_and_none_of_what_is_over_soon(monkeypatch):
    log_file = stderr(monkeypatch, terminal=False)
    for _ in Bar(range(100), desc="Encoding"):
        pass
    assert log_file.getvalue() == ""
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    for _ in Bar(range(4), desc="Encoding", unit=" documents"):
        pass
    lines = log_file.getvalue().splitlines()
    assert len(lines) > 3
    assert all(line.startswith("Encoding: ") and "of 4 documents" in line for line in lines)
    assert "\r" not in log_file.getvalue()


def test_without_stderr_there_is_no_line(monkeypatch, handler):
    monkeypatch.setattr("sys.stderr", None)
    with steps({"a": 1.0, "b": 1.0}):
        step("b")
        assert list(Bar(range(3), desc="Encoding", delay=0)) == [0, 1, 2]


def test_a_terminal_has_one_line_and_it_goes(monkeypatch):
    stream = stderr(monkeypatch, terminal=True)
    with Bar(total=2, desc="Outer", delay=0) as outer:
        for _ in Bar(range(2), desc="Inner", delay=0, mininterval=0):
            pass
        outer.update()
    shown = stream.getvalue()
    assert "Inner" in shown
    assert "Outer" in shown
    assert "\n" not in shown
    assert shown.split("\r")[-2].strip() == shown.split("\r")[-1].strip() == ""


def test_the_time_left_for_all_is_that_of_the_pace_so_far(clock):
    whole = Steps({"a": 10.0, "b": 20.0, "c": 30.0})
    assert whole.left() == 60
    clock[0] = 4.0
    assert whole.left() == 56
    assert whole.left(bar=9.0) == 9 + 50
    clock[0] = 20.0  # a took twice what was expected
    assert whole.begin("b")
    assert whole.left() == 2 * 50
    assert str(whole) == "2 of 3, b"
    assert not whole.begin("a")
    assert not whole.begin("z")
    clock[0] = 60.0
    assert whole.begin("c")
    assert whole.left() == 2 * 30


def test_the_bar_that_ends_a_step_knows_better_than_what_was_expected(clock):
    whole = Steps({"a": 10.0, "b": 20.0, "c": 30.0})
    clock[0] = 10.0
    whole.begin("b")
    clock[0] = 13.0
    # Another 2 seconds: b takes 5 and not 20, so that c is expected at the pace of 15 for 30.
    assert whole.left(bar=2.0, ends_step=True) == 2 + 15
    assert whole.left(bar=2.0) == 17 + 30  # more may follow in this step
    assert whole.left(bar=0.0, ends_step=True) == 17 + 30  # nothing is known yet


def test_without_expectations_the_steps_before_count(clock):
    whole = Steps(dict.fromkeys("abc"))
    assert whole.left() is None
    assert whole.left(5.0) is None
    clock[0] = 7.0
    whole.begin("b")
    assert whole.left() == 14


def test_a_step_of_unknown_time_changes_no_pace(clock):
    whole = Steps({"queries": None, "training": 3600.0, "judgement": 60.0})
    clock[0] = 1.0  # the queries were there
    whole.begin("training")
    assert whole.left() == 3660
    assert whole.left(bar=1800.0, ends_step=True) == 1800 + 30
    clock[0] = 1 + 7200.0
    whole.begin("judgement")
    assert whole.left() == 2 * 60


def test_a_step_that_is_left_out_slows_nothing_down(clock):
    whole = Steps({"a": 10.0, "b": 10.0, "c": 10.0})
    clock[0] = 10.0
    whole.begin("c")
    assert whole.left() == 10


def test_steps_stand_before_a_bar_and_in_lines_of_a_log(caplog, monkeypatch, handler):
    log_file = stderr(monkeypatch, terminal=False)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    with caplog.at_level(logging.INFO, "beir_cocodr"), steps({"COCO": 60.0, "source": 60.0}):
        step("COCO")
        with steps({"x": 1.0, "y": 1.0}):  # of a part
            step("y")
            for _ in Bar(range(2), desc="Training"):
                pass
        step("source")
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "step 1 of 2, COCO",
        "step 2 of 2, source",
    ]
    assert "left for all" in caplog.text
    first = log_file.getvalue().splitlines()[0]
    assert first.startswith("[1 of 2, COCO] Training: ")
    assert "left for all" in first
    assert handler.steps is None
    step("nothing is in force")
    assert len(caplog.records) == 2


def test_the_bar_of_a_step_that_nobody_expected_speaks_of_itself_alone(monkeypatch, handler):
    log_file = stderr(monkeypatch, terminal=False)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    with steps(dict.fromkeys(("first model", "second model"))):
        step("second model")
        for _ in Bar(range(3), desc="Reranking"):
            pass
    assert " left" in log_file.getvalue()
    assert "for all" not in log_file.getvalue()


def test_a_step_that_nobody_expected_begins_without_a_promise(caplog, monkeypatch, handler):
    """BM25 takes no time, and an encoder after it may take hours."""
    stderr(monkeypatch, terminal=False)
    with caplog.at_level(logging.INFO, "beir_cocodr"), steps(dict.fromkeys(["bm25", "encoder"])):
        step("bm25")
        step("encoder")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["step 1 of 2, bm25", "step 2 of 2, encoder"]


def test_a_library_that_calls_steps_works_without_the_command_line(caplog, monkeypatch):
    log_file = stderr(monkeypatch, terminal=False)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    with caplog.at_level(logging.INFO, "beir_cocodr"), steps({"COCO": 60.0, "source": 60.0}):
        step("source")
        for _ in Bar(range(2), desc="Training"):
            pass
    assert caplog.records == []
    assert log_file.getvalue().splitlines()[0].startswith("Training: ")


def test_steps_end_with_an_error(handler):
    with pytest.raises(ValueError, match="broken"), steps({"a": None, "b": None}):
        raise ValueError("broken")
    assert handler.steps is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.3, "12 seconds"), (600, "10 minutes"), (7200, "2.0 hours")]
)
def test_times_are_for_people(seconds, text):
    assert describe_seconds(seconds) == text


class KnownTime:
    def seconds_left(self) -> float:
        return 4_000.0


def test_a_clock_that_knows_better_says_the_time_left(monkeypatch, clock):
    log_file = stderr(monkeypatch, terminal=False)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    with Bar(total=100, desc="Encoding", unit=" documents") as bar:
        bar.clock = KnownTime()
        clock[0] = 1.0
        bar.update(50)  # by the number of documents, a second would be left
    assert "Encoding: 50%, 50 of 100 documents, about 67 minutes left" in log_file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "speaks", "said"), [(0.0, False, True), (0.0, True, False), (60.0, False, False)]
)
def test_a_command_that_prints_nothing_says_that_it_has_begun(
    caplog, handler, seconds, speaks, said
):
    handler.has_spoken = speaks
    with caplog.at_level(logging.INFO, "beir_cocodr"):
        with progress.saying_soon("search has begun", seconds):
            time.sleep(0.2)
        time.sleep(0.05)
    assert ("search has begun" in caplog.text) == said


@pytest.mark.parametrize(
    ("progress_option", "terminal", "expected"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_python_shows_bars_on_a_terminal_unless_it_is_told(
    monkeypatch, progress_option, terminal, expected
):
    stderr(monkeypatch, terminal)
    assert SearchOptions(progress=progress_option).shows_progress == expected


def test_a_notebook_is_watched(monkeypatch):
    stderr(monkeypatch, terminal=False)
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    assert SearchOptions().shows_progress
