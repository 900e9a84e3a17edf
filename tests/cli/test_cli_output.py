"""Output to a terminal, a pipe or a full device, and paths that are not UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import completed

from beir_cocodr.cli.__main__ import main

COMMAND = [sys.executable, "-m", "beir_cocodr.cli"]


@pytest.fixture
def corpus(tmp_path) -> Path:
    (tmp_path / "é.jsonl").write_text(
        2 * '{"_id": "é", "title": "", "text": "wing"}\n', encoding="utf-8"
    )
    return tmp_path / "é.jsonl"


def run(*arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], stderr=subprocess.PIPE, text=True, check=False, **settings
    )


def main_in_ascii(arguments: list[str]) -> None:
    """Run a command with the stdout that Python makes for a terminal without UTF-8."""
    sys.stdout = open(1, "w", encoding="ascii", closefd=False)  # noqa: SIM115
    main(arguments)


def test_a_terminal_without_utf_8(corpus):
    arguments = ["validate", "--dataset", str(corpus)]
    shown = completed(main_in_ascii, arguments)
    assert (shown.returncode, "\\xe9" in shown.stdout) == (2, True)
    errors = [line for line in shown.stderr.splitlines() if "has begun" not in line]
    assert len(errors) == 1
    found = completed(main_in_ascii, [*arguments, "--json"])
    assert json.loads(found.stdout)[0]["id"] == "é"  # JSON has escapes of its own
    assert found.stdout.isascii()


def test_a_full_device():
    with Path("/dev/full").open("w") as full:
        done = run("--help", stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "No space left" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_left():
    reader, writer = os.pipe()
    os.close(reader)
    done = run("--help", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_that_is_not_utf_8(beir_folder, tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.symlink_to(beir_folder)
    output = tmp_path / os.fsdecode(b"out\xe9")
    given = ["evaluate", "--dataset", str(folder), "--model", "bm25", "--output", str(output)]
    done = completed(main, given)
    assert done.returncode == 0
    assert "caf\\udce9" in "".join(done.stdout.split())  # a long path is wrapped
    record = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert Path(record["dataset"]) == folder  # as JSON writes it, and every program reads it
    assert "report.html" in completed(main, ["report", str(output)]).stdout


@pytest.mark.parametrize(
    "arguments", [["--model", "a" * 300], ["--model", "minilm", "--store", "a" * 300]]
)
def test_a_name_that_is_too_long(arguments, beir_folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(
            ["evaluate", "--dataset", str(beir_folder), *arguments, "--output", str(tmp_path / "o")]
        )
    assert end.value.code == 2
    assert "too long" in capsys.readouterr().err


def assert_closed_streams_change_nothing(
    done: subprocess.CompletedProcess[str], output: Path
) -> None:
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    for file in output.iterdir():  # no line of the terminal went into a file
        assert "Next:" not in file.read_text()
    assert json.loads((output / "results.json").read_text())["models"]


def test_all_streams_are_closed(beir_folder, tmp_path):
    output = tmp_path / "out"
    command = f"{sys.executable} -m beir_cocodr.cli evaluate --dataset {beir_folder} --model bm25"
    done = subprocess.run(
        f"{command} --output {output} 0<&- 1>&- 2>&-",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert_closed_streams_change_nothing(done, output)


def main_without(streams: list[str], arguments: list[str]) -> None:
    """Run a command as Python does if these streams are closed: it has None in their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if name in streams:
            os.close(number)
            setattr(sys, name, None)
    main(arguments)


@pytest.mark.parametrize("streams", [["stdout"], ["stderr"], ["stdout", "stderr"]], ids="+".join)
def test_streams_that_are_closed(beir_folder, tmp_path, streams):
    output = tmp_path / "out"
    arguments = ["evaluate", "--dataset", str(beir_folder), "--model", "bm25"]
    done = completed(main_without, streams, [*arguments, "--output", str(output)])
    assert_closed_streams_change_nothing(done, output)


@pytest.mark.parametrize("lost", ["2>&-", "2>/dev/full", "1>&- 2>&-", "1>/dev/full 2>/dev/full"])
def test_a_fault_that_cannot_be_said_is_the_exit_status(tmp_path, lost):
    command = f"{sys.executable} -m beir_cocodr.cli validate --dataset {tmp_path / 'nothing'}"
    done = subprocess.run(
        f"{command} {lost}", shell=True, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
