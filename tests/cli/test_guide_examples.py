"""Every command's help ends with examples that can be typed."""

from __future__ import annotations

import shlex

import pytest
import typer
from test_guide import LEAVES, PROGRAM, run

from beir_cocodr.cli.examples import EXAMPLES

EXAMPLE_LINES = [line for lines in EXAMPLES.values() for line in lines]


def test_every_command_has_two_different_examples_of_itself():
    assert {*EXAMPLES} == {*LEAVES}
    for command, lines in EXAMPLES.items():
        assert len(set(lines)) >= 2, command
        assert all(line == command or line.startswith(f"{command} ") for line in lines)


@pytest.mark.parametrize("line", EXAMPLE_LINES)
def test_an_example_parses(line):
    command = PROGRAM
    words = shlex.split(line)
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    try:
        command.make_context(line, words)
    except typer.Exit:
        assert "--help" in words


@pytest.mark.parametrize("name", LEAVES)
def test_the_help_of_a_command_shows_its_examples_whole(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run(capsys, *name.split(), "--help")
    shown = out.partition("Examples:\n")[2].splitlines()
    assert status == 0
    assert [line.strip() for line in shown] == [f"beir-cocodr {line}" for line in EXAMPLES[name]]
    assert max(map(len, shown)) <= 100
