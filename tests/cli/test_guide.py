"""Output around results: groups of the help, last lines, the version, and noise of libraries."""

from __future__ import annotations

import json
import logging
import os
import shlex

import pytest
import typer

import beir_cocodr
from beir_cocodr.cli import commands, guide
from beir_cocodr.cli.__main__ import app, main
from beir_cocodr.cli.noise import Noise

PROGRAM = typer.main.get_command(app)


def run(capsys, *arguments: str) -> tuple[int, str, list[str]]:
    with pytest.raises(SystemExit) as status:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(status.value.code or 0), captured.out, captured.err.splitlines()


def all_commands(group=PROGRAM, path: str = "") -> dict[str, object]:
    """Every command by its words, with the groups among them."""
    by_words = {}
    for name, command in group.commands.items():
        words = f"{path} {name}".strip()
        by_words[words] = command
        if hasattr(command, "commands"):
            by_words |= all_commands(command, words)
    return by_words


COMMANDS = all_commands()
LEAVES = {name: command for name, command in COMMANDS.items() if not hasattr(command, "commands")}


def test_every_command_has_an_ending_and_every_ending_a_command():
    assert {*COMMANDS} == {*guide.ENDINGS}


def test_every_command_stands_in_one_group():
    assert sorted(name for names in commands.GROUPS.values() for name in names) == sorted(
        PROGRAM.commands
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_a_whole_sentence_of_at_most_60_characters(name):
    summary = guide.summary(COMMANDS[name])
    assert 0 < len(summary) <= 60
    assert summary[0].isupper()
    assert summary.endswith(".")
    assert "..." not in summary


@pytest.mark.parametrize("group", ["", "study", "study resample"])
def test_summaries_are_not_cut_at_80_columns(group, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, *group.split(), "--help")
    text = " ".join(out.split())
    rows = COMMANDS[group].commands if group else PROGRAM.commands
    for name, command in rows.items():
        assert f"{name} {guide.summary(command)}" in text
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", LEAVES)
def test_help_of_every_option_is_a_whole_sentence(name):
    for parameter in LEAVES[name].params:
        text = getattr(parameter, "help", None)
        if parameter.param_type_name == "argument" or parameter.name == "help":
            continue
        assert text, parameter.name
        assert text[0].isupper(), parameter.name
        assert text.endswith("."), parameter.name


@pytest.mark.parametrize("name", guide.FORMER_COMMANDS)
def test_a_former_name_prints_what_the_present_name_prints(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["--help"], ["--no-such-option"], []):
        former = run(capsys, name, *words)
        assert former == run(capsys, *guide.FORMER_COMMANDS[name], *words)
    _, out, _ = run(capsys, "--help")
    assert f"\n  {name} " not in out


@pytest.mark.parametrize("option", guide.REMOVED_OPTIONS)
def test_an_option_that_was_removed_is_refused_with_the_way_out(option, capsys):
    given = ["encode", "--dataset", "d", "--model", "m", "--output", "o"]
    for words in ([option, "x"], [f"{option}=x"]):
        status, out, err = run(capsys, *given, *words)
        assert (status, out, len(err)) == (2, "", 1)
        assert err[0].startswith(f"error: {option}: ")
        assert "leave it out" in err[0]


def test_a_command_without_words_ends_as_well(capsys):
    status, out, err = run(capsys, "doctor")
    assert (status, bool(out), err[-1].startswith("Next: ")) == (0, True, True)


@pytest.mark.parametrize("name", LEAVES)
def test_what_follows_can_be_typed(name, capsys):
    """Whatever was given, the next command has only flags that it knows, and all that it needs."""
    everything = {parameter.name: "a b" for parameter in LEAVES[name].params}
    for given in (everything, everything | {"output": None}, {}):
        sentence, *following = guide.ending(name, given)
        assert sentence
        for line in following:
            program, *words = shlex.split(line.removeprefix("Next: "))
            assert program == "beir-cocodr"
            command = PROGRAM
            while hasattr(command, "commands"):
                command, words = command.commands[words[0]], words[1:]
            try:
                command.make_context("x", words)
            except typer.Exit:
                assert "--help" in words


def test_settings_stand_in_the_ending_as_a_shell_reads_them():
    sentence, following = guide.ending(
        "compare", {"dataset": "my files", "output": "a'b", "models": ["x"]}
    )
    assert "'my files'" in sentence
    assert shlex.split(following)[-1] == "a'b"
    lines = guide.ending("pretrain", {"dataset": ["a", "b"], "model": "m", "output": "o"})
    assert "a b" in lines[0]


def test_a_command_ends_with_its_files_and_the_next_command_and_results_stay_alone(
    capsys, beir_folder, tmp_path
):
    given = [
        "evaluate",
        "--dataset",
        str(beir_folder),
        "--model",
        "bm25",
        "--output",
        str(tmp_path / "o"),
        "--json",
    ]
    status, out, err = run(capsys, *given)
    assert (status, json.loads(out)["dataset"]) == (0, str(beir_folder))
    assert str(tmp_path / "o") in err[-2]
    assert err[-1] == f"Next: beir-cocodr report {tmp_path / 'o'}"
    status, _, err = run(capsys, *given[:-1], "--measures", "bogus")
    assert (status, err[-1].startswith("error: ")) == (2, True)


def test_showing_settings_does_nothing_and_ends_with_nothing(capsys):
    status, _, err = run(
        capsys, "pretrain", "--dataset", "x", "--model", "x", "--output", "o", "--show-config"
    )
    assert (status, err) == (0, [])


def test_of_several_processes_one_speaks(capsys, beir_folder, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert run(capsys, "validate", "--dataset", str(beir_folder))[2] == []


def test_what_is_passed_on_is_left_as_it_is(capsys, monkeypatch):
    words = ["encode", "input", "--corpus", "docs.jsonl", "--ray"]  # of Pyserini's own
    passed = []
    monkeypatch.setattr("beir_cocodr.cli.other_tools.load_plugin", lambda name: passed.extend)
    for name in ("pyserini", "irds"):
        assert run(capsys, name, *words)[0] == 0
    assert passed == words * 2


@pytest.mark.parametrize(
    "given", [["--corpus", "FOLDER"], ["--corpus=FOLDER"], ["--dataset", "FOLDER"]]
)
def test_the_older_name_of_the_dataset_goes_on_working(capsys, beir_folder, given):
    words = [word.replace("FOLDER", str(beir_folder)) for word in given]
    status, out, _ = run(capsys, "validate", *words)
    assert (status, "0 errors" in out) == (0, True)


def test_what_stands_after_two_dashes_is_text(capsys, beir_folder):
    status, out, _ = run(
        capsys, "search", "--dataset", str(beir_folder), "--model", "bm25", "--", "--corpus"
    )
    assert (status, "no document contains a word of '--corpus'" in out) == (0, True)


@pytest.mark.parametrize("name", [name for name in LEAVES if "resample" not in name])
def test_a_single_collection_is_called_dataset_everywhere(name):
    flags = {flag for parameter in LEAVES[name].params for flag in parameter.opts}
    assert "--corpus" not in flags
    assert flags & {"--dataset", "--source", "--train"} or name in (
        "quickstart",
        "doctor",
        "cache",
        "try",
        "irds",
        "pyserini",
    )


def test_the_version_comes_from_one_place(capsys):
    status, out, _ = run(capsys, "--version")
    assert (status, out) == (0, f"beir-cocodr {beir_cocodr.__version__}\n")


def test_commands_stand_in_groups(capsys):
    _, out, _ = run(capsys, "--help")
    parts = [out.index(f"{heading}:") for heading in commands.GROUPS]
    assert parts == sorted(parts)
    for heading, rows in commands.GROUPS.items():
        below = out.split(f"{heading}:")[1].split("\n\n")[0]
        assert all(f"\n  {name} " in below for name in rows if " " not in name)


def test_libraries_are_heard_only_when_asked_for(capsys, beir_folder, monkeypatch):
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.delenv(name, raising=False)
    note, noise = (
        logging.LogRecord("transformers", logging.WARNING, "", 0, "x", None, None),
        Noise(),
    )
    own = logging.LogRecord("beir_cocodr.io", logging.INFO, "", 0, "x", None, None)
    for words, heard in (
        (["validate"], False),
        (["validate", "-v"], True),
        (["-v", "validate"], True),
        (["validate"], False),
    ):
        assert run(capsys, *words, "--dataset", str(beir_folder))[0] == 0
        assert (noise.filter(note), noise.filter(own)) == (heard, True)
        assert ("HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ) == heard
