"""Flags that are made from options classes."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from beir_cocodr.cli.flags import gives, takes, trains
from beir_cocodr.cli.reading import reads_files
from beir_cocodr.errors import InputError
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions


def run(command: Any, *arguments: str) -> str:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command)
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_a_command_gets_one_object():
    got = []

    @takes("search", "analyzer", "batch_size", "stores", "query_length", "device")
    def command(name: str, batch_size: int = 1, *, search: SearchOptions) -> None:
        got.append((name, search, batch_size))

    run(command, "x")
    run(
        command,
        "y",
        "--bm25-analyzer",
        "none",
        "--store",
        "a",
        "--store",
        "b",
        "--query-length",
        "5",
        "--batch-size",
        "2",
    )
    first, second = got
    assert first == ("x", SearchOptions(progress=True), 1)
    assert (second[1].analyzer, [str(store) for store in second[1].stores]) == ("none", ["a", "b"])
    assert second[1].encoder == EncoderOptions(query_length=5)
    assert (second[1].batch_size, second[2]) == (64, 2)  # fields of one name, flags of two


def test_only_what_is_set_goes_over_a_preset():
    got = []

    @trains("finetune", "clusters", "weighting")
    def command(*, settings: FinetuneOptions) -> None:
        got.append(settings)

    run(command, "--preset", "cpu", "--set", "clusters=5", "--set", "rho=1", "--clusters", "6")
    own = got[0].weighting_options
    assert (own.clusters, own.rho, got[0].weighting) == (6, 1.0, "idro")
    shown = run(command, "--weighting", "cvar", "--clusters", "7", "--show-config")
    assert '"clusters": 7' in shown
    assert len(got) == 1  # showing the settings does nothing else


def test_given_flags_are_a_dict():
    got = []

    @gives("found", PretrainOptions, "epochs", "seed")
    def command(*, found: dict[str, Any]) -> None:
        got.append(found)

    run(command)
    run(command, "--epochs", "2")
    assert got == [{}, {"epochs": 2.0}]


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (
            PretrainOptions,
            "epochs",
            "Train for this many passes over the data.",
        ),  # a default of its own, help from above
        (
            PretrainOptions,
            "objective",
            "coco (default), mlm, condenser, cocondenser, simcse, ict or tsdae",
        ),
        (
            FinetuneOptions,
            "weighting",
            "Weight clusters of queries by erm (equal weights; default), idro, groupdro or cvar.",
        ),
        (GenerationOptions, "dedupe", "--no-dedupe"),
    ],
)
def test_help_is_that_of_the_field(kind, name, expected):
    @gives("found", kind, name)
    def command(*, found: dict[str, Any]) -> None:
        pass

    assert expected in run(command, "--help")


def test_every_command_with_a_corpus_reads_files_and_languages(tmp_path, beir_folder):
    from beir_cocodr.cli.__main__ import app

    (tmp_path / "a.csv").write_text("body\nein Text\n")
    got: list[object] = []

    @reads_files
    @takes("search", "analyzer")
    def command(dataset: list[str], *, search: SearchOptions) -> None:
        got.append((dataset, search.analyzer))

    name, folder = str(tmp_path / "a.csv"), str(beir_folder)
    run(command, name, "--text-column", "body", "--language", "german")
    run(command, folder, name, "--language", "de")
    run(command, name, "--language", "pl", "--bm25-analyzer", "none")
    run(command, folder)
    assert got == [
        ([f"{name}?text=body&language=de"], "german"),
        ([folder, f"{name}?language=de"], "german"),
        ([f"{name}?language=pl"], "none"),
        ([folder], "english"),
    ]
    with pytest.raises(InputError, match="--text-column"):
        run(command, folder, "--text-column", "body")

    @reads_files
    def other(dataset: str | None = None) -> None:
        got.append({})

    with pytest.raises(InputError, match=r"--text-column .*--dataset"):
        run(other, "--text-column", "body")
    for name, made in typer.main.get_command(app).commands.items():
        named = {parameter.name for parameter in made.params}
        assert ("text_column" in named) == ("dataset" in named), name
