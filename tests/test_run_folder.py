"""The folder of the results of one run: what is replaced, and what is never touched."""

from __future__ import annotations

import json

import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.run_folder import results_folder


def test_results_that_go_round_in_a_circle_are_one_line(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="loop cannot be"), results_folder(tmp_path / "loop", {}):
        pass


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "../precious.run",
        "{}/precious.run",
        "sub/a.run",
        "notes.txt",
        "linked.run",
        "folder.run",
        7,
        "",
        ".",
        "..",
        "a.run/../../precious.run",
        "sub\\a.run",
        "x.run\0",
        None,
        ["a.run"],
    ],
)
def test_a_record_of_a_run_removes_nothing_but_results(name, overwrite, tmp_path):
    output = tmp_path / "o"
    (output / "sub").mkdir(parents=True)
    (output / "folder.run").mkdir()
    for path in ("precious.run", "o/sub/a.run", "o/notes.txt", "o/a.run"):
        (tmp_path / path).write_text("mine")
    (output / "linked.run").symlink_to(tmp_path / "precious.run")
    name = name.format(tmp_path) if isinstance(name, str) else name
    record = json.dumps({"run": {"command": "x"}, "files": ["a.run", name]})
    (output / "run.json").write_text(record)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for run in ("x", "y"):  # the same run again, and another
        with (
            pytest.raises(InputError) as caught,
            results_folder(output, {"command": run}, overwrite),
        ):
            pass
        assert "\n" not in str(caught.value)
        assert "run.json" in str(caught.value) or "a.run" in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert (output / "linked.run").is_symlink()


def test_a_part_of_a_run_writes_to_its_draft(tmp_path):
    """Its results come to the output with those of the whole, whose record counts them."""
    for text in ("first", "second"):  # the second replaces the first
        with results_folder(tmp_path / "o", {"command": "compare"}) as draft:
            with results_folder(draft, {"command": "evaluate"}) as inner:
                (inner / "a.run").write_text(text)
            (draft / "comparison.json").write_text(text)
    assert (tmp_path / "o" / "a.run").read_text() == "second"
    record = json.loads((tmp_path / "o" / "run.json").read_text())
    assert record == {"run": {"command": "compare"}, "files": ["a.run", "comparison.json"]}
    assert {path.name for path in (tmp_path / "o").iterdir()} == {*record["files"], "run.json"}
