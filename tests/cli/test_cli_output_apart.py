"""Outputs that lie inside, or are, what a command reads."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import completed

from beir_cocodr import compare, evaluate, gate, load_collection
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.run_folder import results_folder


@pytest.fixture
def notes(tmp_path) -> Path:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("The wing of an aircraft makes lift.")
    (folder / "sub" / "b.md").write_text("# Heat\n\nThe plate gets hot in the flow.")
    return folder


def refused(*arguments: object) -> str:
    done = completed(main, [str(argument) for argument in arguments])
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in done.stderr
    return lines[0]


def ids(folder: Path) -> set[str]:
    documents = load_collection(folder, labels="none").documents
    return set(documents.ids(range(len(documents))))


def generate(folder: Path, output: Path) -> list[str]:
    return ["generate-queries", "--dataset", str(folder), "--output", str(output)]


def write_results(output: Path) -> None:
    with results_folder(output, {"command": "compare"}) as folder:
        (folder / "labels_wanted.tsv").write_text("query\tdocument\nwing\ta.txt\n")
        (folder / "comparison.json").write_text("{}")
        (folder / "report.html").write_text("<p>The verdict</p>")


def test_a_link_to_itself_is_named(notes, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be the output folder" in refused(*generate(notes, loop))
    assert "not a folder" in refused("report", loop, notes, "--output", tmp_path / "page.html")
    assert "contains nothing of" in refused("cache", "--clear", loop)


def test_an_output_inside_the_folder_is_not_read_as_documents(notes, caplog):
    before = ids(notes)
    write_results(notes / "runs" / "verdict")
    for _ in range(2):  # the second time, the output is there
        done = completed(main, generate(notes, notes / "sub" / "queries"))
        assert done.returncode == 0, done.stderr
        assert (notes / "sub" / "queries" / "corpus.jsonl").is_file()
        assert ids(notes) == before
    (notes / "c.txt").write_text("A nozzle.")
    with caplog.at_level("INFO"):
        assert len(ids(notes)) == len(before) + 1
    said = [line for line in caplog.messages if "written by beir-cocodr" in line]
    assert len(said) == 1
    assert "runs/verdict" in said[0]
    assert "sub/queries" in said[0]


def test_a_model_and_a_store_inside_the_folder_are_not_read(notes, tiny_cosine):
    before = ids(notes)
    shutil.copytree(tiny_cosine, notes / "models" / "tiny")
    (notes / "models" / "tiny" / "README.md").write_text("# A model card")
    done = completed(
        main,
        [
            *("encode", "--dataset", str(notes), "--model", str(notes / "models" / "tiny")),
            *("--output", str(notes / "store")),
        ],
    )
    assert done.returncode == 0, done.stderr
    assert ids(notes) == before


@pytest.mark.parametrize("model", ["tiny_cosine", "tiny_bert"])
def test_a_model_is_no_dataset(model, request, capsys):
    folder = request.getfixturevalue(model)
    with pytest.raises(SystemExit) as end:
        main(["validate", "--dataset", str(folder)])
    assert end.value.code == 2
    assert f"{folder} is a model, not a dataset" in capsys.readouterr().err


def test_the_output_of_a_command_is_no_dataset(tmp_path, capsys):
    write_results(tmp_path / "verdict")
    with pytest.raises(SystemExit) as end:
        main(["validate", "--dataset", str(tmp_path / "verdict")])
    assert end.value.code == 2
    assert "verdict is the output of a command, not a dataset" in capsys.readouterr().err


def test_records_of_other_programs_hide_nothing(notes):
    for name in ("run.json", "manifest.json", "plan.json", "modules.json", "results.json"):
        (notes / "sub" / name).write_text(json.dumps({"name": "an app", "files": []}))
    (notes / "sub" / "training.json").write_text("[1, 2")
    assert any(id.startswith("sub/b.md") for id in ids(notes))


def test_the_dataset_is_no_output(notes, beir_folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(notes)
    for output in (notes, link, notes / "sub" / ".."):
        assert str(output) in refused(*generate(notes, output))
    kept = sorted(path.name for path in beir_folder.iterdir())
    message = refused(
        "evaluate", "--dataset", beir_folder, "--model", "bm25", "--output", beir_folder
    )
    assert "choose another --output" in message
    assert sorted(path.name for path in beir_folder.iterdir()) == kept


@pytest.mark.parametrize("below", ["", "sub"])
def test_the_functions_of_python_do_not_write_to_a_folder_of_documents(below, notes):
    before = ids(notes)
    output = notes / below
    message = r"choose another --output|choose a new folder"
    with pytest.raises(InputError, match=message):
        compare(["bm25", "bm25@x"], notes, output=output)
    with pytest.raises(InputError, match=message):
        gate("bm25", "bm25", notes, output=output)
    assert ids(notes) == before


def test_evaluate_does_not_write_to_its_dataset(beir_folder):
    before = sorted(path.name for path in beir_folder.iterdir())
    with pytest.raises(InputError, match="choose another --output"):
        evaluate("bm25", beir_folder, output=beir_folder)
    assert sorted(path.name for path in beir_folder.iterdir()) == before


def test_a_folder_with_documents_is_no_output(notes):
    message = refused(*generate(notes, notes / "sub"))
    assert "contains documents" in message
    assert not (notes / "sub" / "run.json").exists()


def test_the_model_is_no_output(notes, tiny_cosine, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_cosine, model)
    link = tmp_path / "link"
    link.symlink_to(model)
    kept = sorted(path.name for path in model.iterdir())
    for output in (model, link):
        for command in ("fuse", "pretrain"):
            message = refused(command, "--dataset", notes, "--model", model, "--output", output)
            assert str(output) in message
    arguments = ["--dataset", notes, "--model", f"hybrid:{model}", "--output", link]
    assert str(link) in refused("evaluate", *arguments)
    assert sorted(path.name for path in model.iterdir()) == kept


def test_a_page_does_not_become_a_document(notes, tmp_path):
    write_results(tmp_path / "verdict")
    report = ["report", tmp_path / "verdict", "--dataset", notes, "--output", notes / "page.html"]
    assert "would become a document" in refused(*report)
    assert not (notes / "page.html").exists()


def test_links_that_lead_outside_are_not_followed(notes, tmp_path, caplog):
    (tmp_path / "secret.txt").write_text("A password.")
    (notes / "link.txt").symlink_to(tmp_path / "secret.txt")
    (notes / "inside.txt").symlink_to(notes / "a.txt")
    (notes / "loop.txt").symlink_to(notes / "loop.txt")
    with caplog.at_level("INFO"):
        documents = ids(notes)
    assert not any(id.startswith("link.txt") for id in documents)
    assert any(id.startswith("inside.txt") for id in documents)
    assert any("link.txt" in line and "outside" in line for line in caplog.messages)


def test_a_thousand_nested_folders(notes):
    inner = notes
    for _ in range(1_100):
        inner = inner / "d"
        inner.mkdir()
    try:
        assert len(ids(notes)) == 2
    finally:  # Python's own way to remove a folder recurses, and pytest would fail at it
        subprocess.run(["rm", "-r", notes / "d"], check=True)
