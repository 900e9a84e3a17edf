from __future__ import annotations

import json

import pytest

from beir_cocodr.cli.__main__ import main


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main(["generate-queries", *arguments])
    captured = capsys.readouterr()
    return int(status.value.code or 0), captured.out, captured.err


def test_help(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert "Usage: beir-cocodr generate-queries" in out


def test_the_record_is_printed_and_every_option_reaches_it(capsys, beir_folder, tmp_path):
    settings = {
        "per_passage": 3,
        "passage_tokens": 40,
        "tokenizer": "words",
        "language": "de",
        "max_length": 20,
        "top_p": 0.5,
        "top_k": 7,
        "batch_size": 4,
        "max_passages": 60,
        "shard_documents": 9,
        "seed": 3,
        "title_separator": "|",
    }
    selection = {"dedupe": True, "filter_retriever": "bm25", "filter_top": 5, "analyzer": "none"}
    options = {"bm25_analyzer": "none"} | settings | selection
    del options["analyzer"], options["dedupe"]
    given = [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    data = [
        "--dataset",
        str(beir_folder),
        "--output",
        str(tmp_path / "o"),
        "--generator",
        "lexical",
    ]
    status, out, _ = run(capsys, *data, "--dedupe", *given)
    record = json.loads(out)
    assert status == 0
    assert record == json.loads((tmp_path / "o" / "generation.json").read_text())
    assert {name: record["settings"][name] for name in settings} == settings
    assert record["selection"] == selection
    status, out, _ = run(capsys, *data, "--dedupe", *given)
    assert json.loads(out) == record


def test_parts(capsys, beir_folder, tmp_path):
    data = ["--dataset", str(beir_folder), "--output", str(tmp_path), "--shard-documents", "10"]
    status, out, err = run(capsys, *data, "--shard", "2/2")
    assert (status, json.loads(out)) == (0, {"shards": 5, "missing": 3})
    assert "others are missing" in err
    assert "finetune" not in err
    status, out, err = run(capsys, *data, "--shard", "1/2")
    assert json.loads(out)["counts"]["documents"] == 48
    assert "others are missing" not in err
    assert "finetune" in err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--shard", "3/2"],
        ["--shard", "0/2"],
        ["--shard", "half"],
        ["--generator", "nowhere/to/be"],
        ["--generator", "BERT"],
        ["--prompt", "no place"],
        ["--prefix", "x"],
        ["--tokenizer", "nowhere/to/be"],
        ["--top-p", "1.5"],
        ["--per-passage", "many"],
        ["--filter-retriever", "nobody"],
        ["--dataset", "nowhere/to/be"],
    ],
)
def test_bad_input_is_status_2_and_one_line(capsys, beir_folder, tiny_bert, tmp_path, wrong):
    wrong = [str(tiny_bert) if word == "BERT" else word for word in wrong]
    data = ["--dataset", str(beir_folder), "--output", str(tmp_path / "o")]
    status, out, err = run(capsys, *data, *wrong)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1
    assert not list((tmp_path / "o").rglob("*"))
