from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from beir_cocodr.cli.__main__ import main


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(status.value.code or 0), captured.out, captured.err


COMMANDS = (
    "quickstart validate evaluate generate-queries pretrain finetune distill adapt encode search"
    " study compare report doctor"
).split()


@pytest.mark.parametrize("command", [[], ["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help(capsys, command):
    status, out, _ = run(capsys, *command)
    assert status == 0
    assert "Usage: beir-cocodr" in out


def test_a_line_about_a_long_id_is_short_and_keeps_both_its_ends(capsys, tmp_path, beir_folder):
    qrels = tmp_path / "qrels"
    qrels.mkdir()
    for name in ("corpus", "queries"):
        (tmp_path / f"{name}.jsonl").write_bytes((beir_folder / f"{name}.jsonl").read_bytes())
    (qrels / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "q" * 100_000 + "\td1\t1\n")
    status, _, err = run(
        *(capsys, "evaluate", "--dataset", str(tmp_path), "--model", "bm25"),
        *("--output", str(tmp_path / "out")),
    )
    assert status == 2
    assert "test.tsv" in err[:400]
    assert len(err.splitlines()[-1]) < 1_100


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_doctor_waits_no_endless_time(capsys, value):
    status, _, err = run(capsys, "doctor", "--hub-timeout", value)
    assert status == 2
    assert "hub-timeout" in err


@pytest.mark.parametrize("measures", ["", " "])
def test_no_measures_are_not_the_default_ones(capsys, tmp_path, beir_folder, measures):
    run_file = tmp_path / "a.run"
    run_file.write_text("q0 Q0 d0 1 1.0 a\n")
    for arguments in (["bm25", "minilm"], ["--parity", str(run_file)]):
        status, out, err = run(
            capsys, "compare", "--dataset", str(beir_folder), *arguments, "--measures", measures
        )
        assert (status, out) == (2, "")
        assert "measure" in err.splitlines()[-1]


def bad(folder: Path, tmp_path: Path) -> dict[str, list[str]]:
    output = ["--output", str(tmp_path / "o")]
    data = ["--dataset", str(folder)]
    broken = tmp_path / "broken"
    return {
        "no such dataset": ["evaluate", "--dataset", "nowhere/to/be", "--model", "bm25", *output],
        "no such split": ["evaluate", *data, "--split", "dev", "--model", "bm25", *output],
        "no such model": ["evaluate", *data, "--model", "no-such-model", *output],
        "no such measure": ["evaluate", *data, "--model", "bm25", "--measures", "bogus", *output],
        "zero results": ["evaluate", *data, "--model", "bm25", "--top-k", "0", *output],
        "unusable measure": ["evaluate", *data, "--model", "bm25", "--measures", "ERR@10", *output],
        "model twice": ["evaluate", *data, "--model", "bm25", "--model", "bm25", *output],
        "output is a file": [
            "evaluate",
            *data,
            "--model",
            "bm25",
            "--output",
            str(broken / "corpus.jsonl"),
        ],
        "negative negatives": [
            "finetune",
            *data,
            "--model",
            "minilm",
            "--negatives",
            "-1",
            *output,
        ],
        "lonely query": [
            "finetune",
            *data,
            "--model",
            "x",
            "--negatives",
            "0",
            "--batch-size",
            "1",
            *output,
        ],
        "lonely document": ["pretrain", *data, "--model", "minilm", "--batch-size", "1", *output],
        "split of the target": [
            "adapt",
            "--corpus",
            str(folder),
            "--source",
            str(folder),
            "--base",
            "minilm",
            "--split",
            "tset",
            *output,
        ],
        "measure of the target": [
            "adapt",
            "--corpus",
            str(folder),
            "--source",
            str(folder),
            "--base",
            "x",
            "--measures",
            "nDGC",
            *output,
        ],
        "no such policy": ["evaluate", *data, "--model", "bm25", "--identical-ids", "x", *output],
        "no model": ["evaluate", *data, *output],
        "no such option": ["evaluate", *data, "--modle", "bm25", *output],
        "no such command": ["evalute"],
        "not a number": ["finetune", *data, "--model", "minilm", "--max-steps", "many", *output],
        "zero steps": ["finetune", *data, "--model", "minilm", "--max-steps", "0", *output],
        "negative rate": ["pretrain", *data, "--model", "minilm", "--learning-rate", "-1", *output],
        "no such objective": [
            "pretrain",
            *data,
            "--model",
            "minilm",
            "--objective",
            "bogus",
            *output,
        ],
        "no such stage": [
            "adapt",
            "--corpus",
            str(folder),
            "--base",
            "minilm",
            "--stages",
            "x",
            *output,
        ],
        "no source": ["adapt", "--corpus", str(folder), "--base", "minilm", *output],
        "no such weighting": [
            "finetune",
            *data,
            "--model",
            "minilm",
            "--weighting",
            "bogus",
            *output,
        ],
        "no negatives": [
            "finetune",
            *data,
            "--model",
            "x",
            "--weighting",
            "idro",
            "--negatives",
            "0",
            *output,
        ],
        "no such preset": ["finetune", *data, "--model", "minilm", "--preset", "tiny", *output],
        "no such setting": ["pretrain", *data, "--model", "minilm", "--set", "spam=1", *output],
        "setting of a wrong type": [
            "finetune",
            *data,
            "--model",
            "minilm",
            "--set",
            "rho=high",
            *output,
        ],
        "targets without episodes": [
            "finetune",
            *data,
            "--model",
            "x",
            "--target",
            str(folder),
            *output,
        ],
        "no such target": [
            "finetune",
            *data,
            "--model",
            "minilm",
            "--episodes",
            "1",
            "--target",
            "nowhere",
            *output,
        ],
        "no such teacher": ["distill", *data, "--model", "minilm", "--teacher", "nobody", *output],
        "no such student": [
            "distill",
            *data,
            "--model",
            "x",
            "--teacher",
            "bm25",
            "--student",
            "y",
            *output,
        ],
        "broken line": ["pretrain", "--dataset", str(broken), "--model", "minilm", *output],
    }


@pytest.mark.parametrize("case", bad(Path(), Path()))
def test_bad_input_is_status_2_and_one_line(capsys, beir_folder, tmp_path, case):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "corpus.jsonl").write_text(
        '{"_id": "1", "text": "a"}\n{"_id": "2", "text": \n'
    )
    status, out, err = run(capsys, *bad(beir_folder, tmp_path)[case])
    assert status == 2
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert err.splitlines()[-1] == lines[0]
    assert "Traceback" not in err
    assert not list((tmp_path / "o").rglob("*.run"))
    if case == "broken line":
        assert "corpus.jsonl:2" in lines[0]


def test_evaluate_prints_a_table_and_json(capsys, beir_folder, tmp_path):
    arguments = [
        "evaluate",
        "--dataset",
        str(beir_folder),
        "--model",
        "bm25",
        "--output",
        str(tmp_path),
    ]
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert "bm25" in out
    assert "nDCG@10" in out
    status, out, _ = run(capsys, *arguments, "--json")
    report = json.loads(out)
    assert report == json.loads((tmp_path / "results.json").read_text())


def test_validate_lists_everything_and_says_2_only_for_errors(capsys, beir_folder, tmp_path):
    status, out, _ = run(capsys, "validate", "--dataset", str(beir_folder))
    assert status == 0
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "a b", "text": "x"}\n{"_id": "1", "text": "y"}\n{"_id": "1"}\nno\n'
    )
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "x"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq\t1\thigh\nz\t1\t1\n"
    )
    status, out, err = run(capsys, "validate", "--dataset", str(tmp_path))
    assert status == 2
    for place in ("corpus.jsonl:1", "corpus.jsonl:3", "corpus.jsonl:4", "test.tsv:2", "test.tsv:3"):
        assert place in out
    assert err.splitlines()[-1].startswith("error: ")
    status, out, _ = run(capsys, "validate", "--dataset", str(tmp_path), "--json")
    assert {defect["severity"] for defect in json.loads(out)} == {"error", "warning"}


def test_a_corpus_alone_is_no_defect_and_evaluate_points_to_compare(capsys, beir_folder, tmp_path):
    (tmp_path / "corpus.jsonl").write_bytes((beir_folder / "corpus.jsonl").read_bytes())
    for dataset in (str(tmp_path), str(tmp_path / "corpus.jsonl")):
        status, out, _ = run(capsys, "validate", "--dataset", dataset)
        assert (status, "0 errors" in out, "compare" in out) == (0, True, True)
        status, out, _ = run(capsys, "validate", "--dataset", dataset, "--split", "test")
        assert (status, "missing" in out) == (2, True)
        for command in (["evaluate", "--model", "bm25"], ["finetune", "--model", "x"]):
            status, _, err = run(
                capsys, *command, "--dataset", dataset, "--output", str(tmp_path / "o")
            )
            assert (status, "compare" in err.splitlines()[-1]) == (2, True)
    assert not (tmp_path / "o").exists()
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n")
    status, out, _ = run(capsys, "validate", "--dataset", str(tmp_path))
    assert (status, "choose one of: train" in out) == (
        2,
        True,
    )  # labels that are there have to be whole
    (tmp_path / "queries.jsonl").write_bytes((beir_folder / "queries.jsonl").read_bytes())
    status, _, err = run(
        *(capsys, "evaluate", "--dataset", str(tmp_path), "--model", "bm25"),
        *("--output", str(tmp_path / "out")),
    )
    assert (status, "train" in err.splitlines()[-1]) == (2, True)


def test_a_source_that_needs_no_network_is_named_where_there_is_none(capsys, tmp_path, beir_folder):
    given = [
        "adapt",
        "--corpus",
        str(beir_folder),
        "--base",
        "minilm",
        "--output",
        str(tmp_path / "o"),
    ]
    status, _, err = run(capsys, *given)
    assert (status, "apidocs/" in err.splitlines()[-1]) == (2, True)


@pytest.mark.parametrize("command", ["pretrain", "finetune", "adapt"])
def test_show_config_prints_the_settings_in_force_and_trains_nothing(capsys, tmp_path, command):
    data = (
        ["--corpus", "nowhere", "--base", "x"]
        if command == "adapt"
        else ["--dataset", "nowhere", "--model", "x"]
    )
    output = tmp_path / "o"
    arguments = [
        command,
        *data,
        "--output",
        str(output),
        "--show-config",
        "--seed",
        "7",
        "--epochs",
        "2",
    ]
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    for settings in json.loads(out).values():
        assert (settings["seed"], settings["epochs"]) == (7, 2)
    assert not output.exists()


def test_the_installed_script_runs(tmp_path):
    script = Path(sys.executable).with_name("beir-cocodr")
    arguments = ["validate", "--dataset", str(tmp_path / "none")]
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")
