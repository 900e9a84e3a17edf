"""`resample` on the command line: bad input is one line, results are JSON or a table."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import write_beir

from beir_cocodr.cli.__main__ import main
from beir_cocodr.resampling import RestrainOptions
from beir_cocodr.resampling.restrain import resample_restrain


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """80 training and 8 test queries over 200 documents."""
    made = write_beir(tmp_path_factory.mktemp("pair") / "tiny", documents=200, queries=80)
    lines = (made / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    (made / "qrels" / "test.tsv").write_text("".join(lines[:17]))
    return made


@pytest.fixture
def wrong(folder, tmp_path) -> dict[str, list[str]]:
    """Command lines that cannot be carried out, by what is wrong with them."""
    swapped = tmp_path / "swapped"
    shutil.copytree(folder, swapped)
    (swapped / "qrels" / "train.tsv").rename(swapped / "qrels" / "old.tsv")
    (swapped / "qrels" / "test.tsv").rename(swapped / "qrels" / "train.tsv")
    (swapped / "qrels" / "old.tsv").rename(swapped / "qrels" / "test.tsv")
    renamed = tmp_path / "renamed"
    shutil.copytree(folder, renamed)
    texts = (
        (renamed / "queries.jsonl").read_text().replace('"_id": "q80"', '"_id": "q1"').splitlines()
    )
    texts = [line for line in texts if '"q1"' not in line or line == texts[80]]
    (renamed / "queries.jsonl").write_text("\n".join(texts) + "\n")
    qrels = (renamed / "qrels" / "test.tsv").read_text().replace("q80\t", "q1\t")
    (renamed / "qrels" / "test.tsv").write_text(qrels)
    lonely = tmp_path / "lonely"
    shutil.copytree(folder, lonely)
    one = (lonely / "qrels" / "test.tsv").read_text().splitlines(keepends=True)[:2]
    (lonely / "qrels" / "test.tsv").write_text("".join(one))
    here = ["--train", str(folder), "--test", str(folder)]
    return {
        "the test set is larger": [
            "restrain",
            "--train",
            str(swapped),
            "--test",
            str(swapped),
            "--size",
            "2",
        ],
        "test set is larger than the training set": [
            "resttest",
            "--train",
            str(swapped),
            "--test",
            str(swapped),
        ],
        "has one text in .* and another": [
            "restrain",
            "--train",
            str(folder),
            "--test",
            str(renamed),
            "--k",
            "1",
        ],
        "no training queries are left; take at most 40": ["restrain", *here, "--size", "41"],
        "no training queries are left for": ["restrain", *here, "--k", "79"],
        "a --size or a --k": ["restrain", *here],
        "--exclude-top 1 is less": ["restrain", *here, "--k", "2", "--exclude-top", "1"],
        "unknown search 'bm25'": ["restrain", *here, "--k", "1", "--search", "bm25"],
        "--base-id 'a b'": ["restrain", *here, "--k", "1", "--base-id", "a b"],
        "--buckets 1: give 2 to 8": ["resttest", *here, "--buckets", "1"],
        f"--buckets 9: give 2 to 8.* of {folder}": ["resttest", *here, "--buckets", "9"],
        f"{lonely}: the test split has 1 judged query": [
            "resttest",
            "--train",
            str(folder),
            "--test",
            str(lonely),
        ],
        "no split 'dev'": ["resttest", *here, "--test-split", "dev"],
        "Missing command|missing command": [],
    }


def test_bad_input_is_status_2_one_line_and_nothing_written(wrong, tiny_cosine, tmp_path, capsys):
    for message, arguments in wrong.items():
        options = (
            ["--encoder", str(tiny_cosine), "--output", str(tmp_path / "o")] if arguments else []
        )
        with pytest.raises(SystemExit) as status:
            main(["resample", *arguments, *options])
        captured = capsys.readouterr()
        assert status.value.code == 2, message
        assert captured.out == ""
        errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert re.search(message, errors[0]), (message, errors)
        assert not (tmp_path / "o").exists()
        assert not list(tmp_path.glob(".o.*"))


def test_an_output_appears_together_with_its_picture(folder, tiny_cosine, tmp_path):
    output = tmp_path / "o"

    def draw(draft, manifest):
        assert (draft / "manifest.json").is_file()
        assert manifest.points
        assert not output.exists()
        raise ZeroDivisionError

    options = RestrainOptions(ks=(2,))
    with pytest.raises(ZeroDivisionError):
        resample_restrain(
            str(folder),
            str(folder),
            model=str(tiny_cosine),
            output=output,
            options=options,
            draw=draw,
        )
    assert not list(tmp_path.iterdir())


def test_the_command_line_end_to_end(folder, tiny_cosine, tmp_path, capsys):
    common = ["--train", str(folder), "--test", str(folder), "--encoder", str(tiny_cosine)]
    for arguments in (["restrain", "--size", "12", "--seed", "5"], ["resttest", "--buckets", "2"]):
        output = tmp_path / arguments[0]
        with pytest.raises(SystemExit) as status:
            main(["resample", *arguments, *common, "--output", str(output), "--json"])
        assert status.value.code in (0, None)
        printed = json.loads(capsys.readouterr().out)
        assert printed == json.loads((output / "manifest.json").read_text())
        assert (output / "queries.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit) as status:
        main(
            [
                "resample",
                "restrain",
                "--k",
                "2",
                *common,
                "--output",
                str(tmp_path / "k"),
                "--no-picture",
            ]
        )
    assert "interpolation (k = 2)" in capsys.readouterr().out
    assert not (tmp_path / "k" / "queries.png").exists()
    for arguments in (
        ["resample"],
        ["resample", "restrain"],
        ["resample", "resttest"],
        ["overlap"],
    ):
        with pytest.raises(SystemExit) as status:
            main([*arguments, "--help"])
        assert status.value.code in (0, None)
        assert "Usage: beir-cocodr" in capsys.readouterr().out


def test_help_loads_nothing_heavy():
    program = (
        "import sys\nfrom beir_cocodr.cli.__main__ import main\ntry:\n    main(['resample',"
        " 'restrain', '--help'])\nexcept SystemExit:\n    pass\nprint([name for name in ('torch',"
        " 'transformers', 'faiss', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
