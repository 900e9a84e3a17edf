"""Models are named after a command or by --model, with the same meaning."""

from __future__ import annotations

import json

import pytest
from test_guide import LEAVES, PROGRAM, run

from beir_cocodr.cli.model_names import complete_models

BOTH_WAYS = {
    name: [
        parameter.name for parameter in command.params if parameter.param_type_name == "argument"
    ]
    for name, command in LEAVES.items()
    if any("--model" in parameter.opts for parameter in command.params)
}

#: Commands whose arguments are a text or a folder, or whose --model is no model to work on.
ONLY_THE_OPTION = {"search", "try", "export", "study resample evaluate"}


def settings(*words: str) -> dict[str, object]:
    command = PROGRAM
    rest = list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command.make_context("x", rest).params


def test_every_command_with_models_takes_them_both_ways():
    both = {name for name, arguments in BOTH_WAYS.items() if "positional_models" in arguments}
    assert both == {*BOTH_WAYS} - ONLY_THE_OPTION


@pytest.mark.parametrize("name", ["evaluate", "compare", "serve", "study representation"])
def test_several_models_mean_the_same_both_ways(name):
    rest = ["--dataset", "d", *(["--output", "o"] if name == "evaluate" else [])]
    positional = settings(*name.split(), "a", "b", *rest)
    option = settings(*name.split(), "--model", "a", *rest, "--model", "b")
    twice = settings(*name.split(), "a", "b", "--model", "a", "--model", "b", *rest)
    assert positional == option == twice
    assert list(positional["model"]) == ["a", "b"]


@pytest.mark.parametrize("name", ["encode", "fuse", "adapt", "pretrain", "finetune", "distill"])
def test_one_model_means_the_same_both_ways(name):
    rest = ["--dataset", "d", "--output", "o"]
    rest += ["--teacher", "bm25"] if name == "distill" else []
    positional = settings(name, "a", *rest)
    assert positional == settings(name, *rest, "--model", "a")
    assert positional["model"] == "a"


@pytest.mark.parametrize("name", ["evaluate", "encode"])
def test_models_that_differ_are_refused(name, capsys):
    status, _, err = run(
        capsys, name, "minilm", "--model", "bm25", "--dataset", "d", "--output", "o"
    )
    assert (status, len(err)) == (2, 1)
    assert "minilm" in err[0]
    assert "--model bm25" in err[0]


@pytest.mark.parametrize("name", ["evaluate", "encode", "serve", "study representation"])
def test_a_missing_model_is_named(name, capsys):
    output = ["--output", "o"] if name in ("evaluate", "encode") else []
    status, _, err = run(capsys, *name.split(), "--dataset", "d", *output)
    assert (status, len(err)) == (2, 1)
    assert "--model is missing" in err[0]


def test_a_command_runs_and_ends_in_the_same_way(capsys, beir_folder, tmp_path):
    outputs = []
    for words in (["bm25"], ["--model", "bm25"]):
        given = ["evaluate", *words, "--dataset", str(beir_folder), "--json", "--overwrite"]
        status, out, err = run(capsys, *given, "--output", str(tmp_path / "o"))
        assert status == 0
        measures = {label: row["measures"] for label, row in json.loads(out)["models"].items()}
        outputs.append((measures, err[-1]))
    assert outputs[0] == outputs[1]
    assert [*outputs[0][0]] == ["bm25"]


def test_names_of_models_are_completed():
    assert list(complete_models("hyb")) == ["hybrid:minilm"]
    assert "bm25" in complete_models("")
    assert list(complete_models("./my-")) == []
