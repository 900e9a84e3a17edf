"""Three people who use the package for the first time, in their shell and their browser.

One has a folder of mixed files, one a collection of BEIR's form with labels, and one maintains a
search and compares two models without labels. Every command is one that the one before it printed,
or the page.
"""

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from conftest import process
from test_serve_browser import Page, focused, search, until, write_files

from beir_cocodr.cli import serving
from beir_cocodr.cli.__main__ import main

pytestmark = pytest.mark.browser


def type_command(place: Path, *words: str) -> None:
    """A terminal in a folder, whose output goes to a file, on a machine without minilm."""
    os.chdir(place)
    sys.stdout = (place / "out").open("w", buffering=1)
    sys.stderr = (place / "err").open("w", buffering=1)
    serving.find_spec = lambda name: None if name == serving.MINILM_PACKAGE else True
    main(list(words))


class Walk(Page):
    """A person whose program is a command that is typed word by word."""

    def __init__(self, browser, place: Path, *words: str) -> None:
        self.words = words
        super().__init__(browser, place, "")

    def start(self) -> None:
        (self.place / "out").unlink(missing_ok=True)
        self.program = process(type_command, self.place, *self.words)
        out = self.place / "out"
        until(lambda: out.is_file() and "http" in out.read_text())
        self.link = next(word for word in out.read_text().split() if word.startswith("http"))
        self.browser.open("about:blank")
        self.browser.open(self.link)
        until(lambda: self.browser.one("#page").is_displayed())

    def interrupt(self) -> str:
        """End the program as by Ctrl-C, and return the last line of the terminal."""
        os.kill(self.program.pid, signal.SIGINT)
        self.program.join(60)
        assert self.program.exitcode == 0
        return (self.place / "err").read_text().splitlines()[-1]


@pytest.fixture
def walks(browser):
    """Return a function that starts a program; those that still run are killed at the end."""
    started = []

    def start(place: Path, *words: str) -> Walk:
        started.append(Walk(browser, place, *words))
        return started[-1]

    yield start
    for walk in started:
        walk.kill()


def run(capsys, *words: str) -> list[str]:
    """Run a command that must succeed, and return the lines of its output."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as status:
        main(list(words))
    captured = capsys.readouterr()
    assert status.value.code == 0, captured.err
    return captured.out.splitlines()


def test_a_folder_of_mixed_files_is_searched_judged_and_continued(browser, walks, tmp_path):
    write_files(tmp_path / "my files")
    (tmp_path / "my files" / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    walk = walks(tmp_path, "try", "my files", "--no-browser")
    assert browser.one("#page h1").text.startswith("my files")
    search(walk, "average of data")
    until(lambda: focused(walk, ".rank") == "1")
    walk.keys("j", "2")
    until(lambda: walk.text("#count") == "1 judgement of 1 query.")
    last = walk.interrupt()
    assert last.startswith("Next: beir-cocodr ")
    # What the last line says goes on where the person was.
    words = shlex.split(last.removeprefix("Next: beir-cocodr "))
    assert words[:2] == ["try", "my files"]
    again = walks(tmp_path, *words, "--no-browser")
    until(lambda: again.text("#count") == "1 judgement of 1 query.")


def test_a_collection_with_labels_is_checked_judged_and_reported(
    browser, beir_folder, tiny_cosine, tmp_path, capsys
):
    dataset = ("--dataset", str(beir_folder))
    run(capsys, "validate", *dataset)
    models = ("--model", "bm25", "--model", str(tiny_cosine))
    output = tmp_path / "judged"
    run(capsys, "evaluate", *dataset, *models, "--output", str(output))
    sentence, file = run(capsys, "report", str(output))
    browser.open(Path(file))
    assert browser.one("#verdict .sentence").text == sentence
    buttons = browser.all("#query-list button")
    assert len(buttons) > 5
    buttons[3].click()
    assert browser.one("#query h3").text in buttons[3].text
    assert browser.all("#query .hit.relevant")
    # The command of the page finds something.
    words = shlex.split(browser.one("#use code").text)
    assert words[:2] == ["beir-cocodr", "search"]
    assert run(capsys, *words[1:-1], "wing in a flow")


def test_two_models_are_compared_judged_and_compared_again(
    browser, walks, beir_folder, tiny_cosine, tmp_path, capsys
):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text((beir_folder / "corpus.jsonl").read_text())
    estimate = tmp_path / "estimate"
    comparing = ("compare", "bm25", str(tiny_cosine), "--dataset", str(corpus))
    run(capsys, *comparing, "--no-labels", "--samples", "20", "--output", str(estimate))
    [*_, file] = run(capsys, "report", str(estimate))
    browser.open(Path(file))
    assert browser.one("#verdict-word").text == "Cannot tell"
    commands = [shlex.split(code.text) for code in browser.all(".labelling code")]
    serve, *_, compare = commands
    assert serve[1] == "serve"
    judged = tmp_path / "served"
    walk = walks(tmp_path, *serve[1:], "--no-browser", "--output", str(judged))
    for count, text in enumerate(("wing in a supersonic flow", "a library of journals"), 1):
        search(walk, text)
        until(lambda: focused(walk, ".rank") == "1")
        walk.keys("2")
        until(lambda count=count: f"{count} judgement" in walk.text("#count"))
    walk.interrupt()
    # The command of the page, with the log of judgements in place of the table.
    table = compare.index("--judgements") + 1
    compare[table] = str(judged / "judgements.jsonl")
    run(capsys, *compare[1:], "--samples", "20")
    second = compare[compare.index("--output") + 1]
    both = tmp_path / "both.html"
    assert run(capsys, "report", str(estimate), second, "--output", str(both))[-1] == str(both)
    browser.open(both)
    assert browser.one(".verdict h2").text == "Cannot tell"
    assert len(browser.all("#figures tbody tr")) == 2
