"""The command that is proposed next reads the same corpus in the same way."""

import shlex

import click
import pytest
import typer

from beir_cocodr.cli.__main__ import app
from beir_cocodr.cli.carried import carried_options
from beir_cocodr.cli.guide import ENDINGS, ending

PROGRAM = typer.main.get_command(app)

#: A command line, the command that follows, and the options that it takes over.
LINES = [
    (
        "search lift --dataset d --language de --strict --model bm25",
        "compare --dataset d bm25 minilm",
        " --strict --language de",
    ),
    (
        "validate --dataset d --text-column a --text-column 'b c'",
        "search --dataset d 'what you look for'",
        " --text-column a --text-column 'b c'",
    ),
    ("evaluate --dataset d --model bm25 --split dev --output o", "report o", " --split dev"),
    (
        "encode --dataset d --model m --output o --pooling mean",
        "search --dataset d 'what you look for' --store o",
        " --pooling mean",
    ),
    (
        "encode --dataset d --model m --output o --title-separator ': '",
        "search --dataset d 'what you look for' --store o",
        " --title-separator ': '",
    ),
    (
        "try d --model m --model n --no-browser --port 8000",
        "try d --output o",
        " --model m --model n --port 8000 --no-browser",
    ),
    ("search lift --dataset d --language de", "search --help", ""),
    ("search lift --dataset d", "compare --dataset d bm25 minilm", ""),
    ("export --dataset d --split dev --output o", "finetune --dataset d --split test", ""),
]


def context(line: str) -> click.Context:
    name, *words = shlex.split(line)
    root = click.Context(PROGRAM, info_name="beir-cocodr")
    return PROGRAM.commands[name].make_context(name, words, parent=root)


@pytest.mark.parametrize(("line", "following", "options"), LINES)
def test_options_are_taken_over(line, following, options):
    carried = carried_options(context(line), following)
    assert sorted(shlex.split(carried)) == sorted(shlex.split(options))
    whole = [*shlex.split(following), *shlex.split(carried)]
    if "--help" not in whole and options:
        PROGRAM.commands[whole[0]].make_context(whole[0], whole[1:])  # it can be parsed


def test_a_search_is_compared_with_the_models_that_it_did_not_use():
    assert "search" in ENDINGS
    for model, others in (("bm25", "bm25 minilm hybrid:minilm"), ("m", "m bm25 minilm")):
        last = ending("search", {"dataset": "d", "model": model})[-1]
        assert f"compare --dataset d {others}" in last
