"""A folder of results belongs to one run."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import exit_code
from test_io import hold

from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.compare import compare
from beir_cocodr.evaluation.evaluate import EvaluateOptions, evaluate
from beir_cocodr.evaluation.results import EvaluationRecord
from beir_cocodr.run_folder import results_folder


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(status.value.code or 0), captured.out, captured.err


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def judged(beir_folder, tmp_path) -> Path:
    evaluate(["bm25"], str(beir_folder), output=tmp_path / "o")
    return tmp_path / "o"


def test_the_same_run_again_replaces_its_results(judged, beir_folder):
    (judged / "notes.txt").write_text("mine")
    before = content(judged)
    evaluate(["bm25"], str(beir_folder), output=judged)
    after = content(judged)
    assert (
        before.keys()
        == after.keys()
        == {"bm25.run", "bm25.per_query.tsv", "results.json", "run.json", "notes.txt"}
    )
    assert all(
        before[name] == after[name] for name in before if name != "results.json"
    )  # which has the seconds


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"measures": "R@5"}, EvaluateOptions()),
        ({"split": "train"}, EvaluateOptions()),
        ({}, EvaluateOptions(top_k=7)),
        ({}, EvaluateOptions(queries=3)),
    ],
)
def test_another_run_is_refused_or_replaces_all(change, options, judged, beir_folder):
    before = content(judged)
    with pytest.raises(InputError, match=r"other settings .*--overwrite"):
        evaluate(["bm25"], str(beir_folder), output=judged, options=options, **change)
    assert content(judged) == before
    options = replace(options, overwrite=True)
    evaluate({"other": "bm25"}, str(beir_folder), output=judged, options=options, **change)
    assert content(judged).keys() == {
        "other.run",
        "other.per_query.tsv",
        "results.json",
        "run.json",
    }


def test_what_is_not_ours_is_never_written_over(judged, beir_folder, tmp_path):
    (judged / "notes.txt").write_text("mine")
    before = content(judged)
    with pytest.raises(InputError, match=r"notes.txt"):
        evaluate(
            ["bm25"],
            str(beir_folder),
            output=judged,
            measures="R@5",
            options=EvaluateOptions(overwrite=True),
        )
    assert content(judged) == before
    model = tmp_path / "model"
    model.mkdir()
    (model / "training.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"training.json"):
            evaluate(
                ["bm25"],
                str(beir_folder),
                output=model,
                options=EvaluateOptions(overwrite=overwrite),
            )
    assert content(model) == {"training.json": b"{}"}
    # Files that are no results are no obstacle, and results of an earlier version are known by
    # their names.
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("x")
    evaluate(["bm25"], str(beir_folder), output=tmp_path / "data")
    (judged / "notes.txt").unlink()
    (judged / "run.json").unlink()
    with pytest.raises(InputError, match="which run"):
        evaluate(["bm25"], str(beir_folder), output=judged)
    evaluate(["bm25"], str(beir_folder), output=judged, options=EvaluateOptions(overwrite=True))


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"run": 1}', "null"])
def test_a_broken_mark_is_another_run(broken, judged, beir_folder):
    (judged / "run.json").write_text(broken)
    with pytest.raises(InputError, match="which run"):
        evaluate(["bm25"], str(beir_folder), output=judged)
    evaluate(["bm25"], str(beir_folder), output=judged, options=EvaluateOptions(overwrite=True))


def test_compare_and_evaluate_do_not_share_a_folder(judged, beir_folder, tmp_path):
    with pytest.raises(InputError, match="other settings"):
        compare(["bm25", str(tmp_path / "x")], str(beir_folder), output=judged)
    runs = [str(judged / "bm25.run"), str(tmp_path / "second.run")]
    Path(runs[1]).write_bytes(Path(runs[0]).read_bytes())
    compare(runs, str(beir_folder), output=tmp_path / "c")
    compare(runs, str(beir_folder), output=tmp_path / "c")
    with pytest.raises(InputError, match="other settings"):
        compare(runs, str(beir_folder), output=tmp_path / "c", measures="R@10")


def _die(data: Path, output: Path) -> None:
    EvaluationRecord.write = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
    evaluate(["bm25"], str(data), output=output)


def test_a_killed_run_leaves_the_results_as_they_were(judged, beir_folder):
    before = content(judged)
    assert exit_code(_die, beir_folder, judged) == -signal.SIGKILL
    left = {path.name for path in judged.iterdir()} - before.keys()
    assert left
    assert all(name.startswith(".") for name in left)
    assert {name: (judged / name).read_bytes() for name in before} == before
    evaluate(["bm25"], str(beir_folder), output=judged)
    assert content(judged).keys() == before.keys()


def test_a_kill_while_results_are_moved_is_repaired_by_the_same_run(tmp_path, monkeypatch):
    def write(text: str, **settings: object) -> None:
        with results_folder(tmp_path / "o", {"command": "x", **settings}, overwrite=True) as folder:
            for name in ("a.run", "b.run", "results.json"):
                (folder / name).write_text(text)

    class Killed(BaseException):
        pass

    def dies_at(count: int):
        original, left = Path.replace, [count]

        def replace(path: Path, target: Path) -> Path:
            left[0] -= path.suffix == ".run"
            if left[0] == 0:
                raise Killed
            return original(path, target)

        return replace

    write("first", k=1)
    for count in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dies_at(count))
            with pytest.raises(Killed):
                write("second", k=2)
        assert not (tmp_path / "o" / "results.json").exists()  # no record of files of two runs
    write("second", k=2)
    assert {path.name: path.read_text() for path in (tmp_path / "o").glob("[ab]*")} == {
        "a.run": "second",
        "b.run": "second",
    }


def test_two_evaluations_in_one_folder_are_refused(beir_folder, tmp_path):
    process = hold(tmp_path, 60)
    try:
        with pytest.raises(InputError, match="another process writes"):
            evaluate(["bm25"], str(beir_folder), output=tmp_path)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def test_the_commands_keep_to_their_folders(capsys, beir_folder, judged, tmp_path):
    data, output = str(beir_folder), str(tmp_path / "q")
    scores = ["--per-query", str(judged / "bm25.per_query.tsv"), "--no-picture"]
    qpp = ["qpp", "--dataset", data, "--model", "bm25", "--output"]
    assert run(capsys, *qpp, output, *scores)[0] == 0
    assert run(capsys, *qpp, output, *scores, "--json")[0] == 0  # the same again
    status, _, error = run(capsys, *qpp, str(judged), *scores)
    assert status == 2
    assert "--overwrite" in error
    shift = ["shift", "--source", data, "--target", data]
    assert run(capsys, *shift, "--output", output)[0] == 2
    assert run(capsys, *shift, "--output", output, "--overwrite")[0] == 0
    assert content(tmp_path / "q").keys() == {"shift.json", "run.json"}
    assert json.loads((tmp_path / "q" / "run.json").read_text())["files"] == ["shift.json"]
    page = str(tmp_path / "page.html")
    assert run(capsys, "report", str(judged), "--output", page)[0] == 0
    evaluate(["bm25"], data, output=tmp_path / "second", measures="R@5")
    status, _, error = run(capsys, "report", str(tmp_path / "second"), "--output", page)
    assert status == 2
    assert "another run" in error
    assert run(capsys, "report", str(tmp_path / "second"), "--output", page, "--overwrite")[0] == 0
    assert run(capsys, "report", str(judged))[0] == 0
    evaluate(["bm25"], data, output=judged)  # its report is made anew with it
    assert not (judged / "report.html").exists()
