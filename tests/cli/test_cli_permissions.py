"""Files and folders that an ordinary user may not read or write: one line names them."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import completed
from faults.ordinary import become_ordinary

from beir_cocodr.cli.__main__ import main


def main_as_user(arguments: list[str]) -> None:
    become_ordinary()
    main(arguments)


@pytest.fixture
def world(beir_folder, tiny_cosine, tmp_path, monkeypatch) -> Iterator[Path]:
    folder = tmp_path / "world"
    shutil.copytree(beir_folder, folder / "beir")
    shutil.copytree(tiny_cosine, folder / "model")
    (folder / "notes" / "sub").mkdir(parents=True)
    (folder / "notes" / "a.txt").write_text("The wing makes lift.")
    (folder / "notes" / "sub" / "b.csv").write_text("id,text\n1,one\n")
    (folder / "flat.tsv").write_text("1\tone wing\n")
    (folder / "out").mkdir()
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(folder)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700)


EVALUATE = "evaluate --dataset beir --model bm25 --output out/x"
VALIDATE = "validate --dataset notes"
STRICT = "validate --dataset notes --strict"
FUSE = "fuse --dataset beir --model model --output out/x"

#: A path without permission, its mode, and a command that needs it.
DENIED = [
    ("beir", 0o000, EVALUATE),
    ("beir/corpus.jsonl", 0o000, EVALUATE),
    ("beir/queries.jsonl", 0o000, EVALUATE),
    ("beir/qrels", 0o000, EVALUATE),
    ("beir/qrels/test.tsv", 0o000, EVALUATE),
    ("beir/qrels", 0o000, "validate --dataset beir"),
    ("notes", 0o000, VALIDATE),
    ("notes", 0o111, VALIDATE),
    ("notes/sub", 0o000, VALIDATE),
    ("notes/sub", 0o000, STRICT),
    ("notes/sub/b.csv", 0o000, VALIDATE),
    ("notes/sub/b.csv", 0o000, STRICT),
    ("notes/a.txt", 0o000, VALIDATE),
    ("notes/a.txt", 0o000, STRICT),
    ("flat.tsv", 0o000, "validate --dataset flat.tsv"),
    ("out", 0o555, EVALUATE),
    ("out", 0o000, EVALUATE),
    ("out", 0o555, "generate-queries --dataset beir --output out/x"),
    ("out", 0o555, FUSE),
    ("model", 0o000, FUSE),
    ("model/model.safetensors", 0o000, FUSE),
    ("model/tokenizer.json", 0o000, FUSE),
    ("model/config.json", 0o000, FUSE),
    ("model/modules.json", 0o000, FUSE),
    ("model/1_Pooling", 0o000, FUSE),
]


@pytest.mark.parametrize(("name", "mode", "line"), DENIED)
def test_a_missing_permission_is_one_line(world, name, mode, line):
    (world / name).chmod(mode)
    done = completed(main_as_user, line.split())
    assert "Traceback" not in done.stderr + done.stdout
    is_left_out = line == VALIDATE and name.startswith("notes/")
    assert done.returncode == (0 if is_left_out else 2)
    text = done.stderr + (done.stdout if line.startswith("validate") else "")
    lines = [one for one in text.splitlines() if Path(name).name in one]
    assert lines, text
    errors = [one for one in done.stderr.splitlines() if one.startswith("error: ")]
    assert len(errors) == (0 if is_left_out else 1)


def test_an_output_of_before_that_may_not_be_written(world):
    for _ in range(2):
        done = completed(main_as_user, EVALUATE.split())
        assert done.returncode == 0, done.stderr
        (world / "out" / "x").chmod(0o555)
        done = completed(main_as_user, EVALUATE.split())
        assert done.returncode == 2
        assert "out/x" in done.stderr
        (world / "out" / "x").chmod(0o755)
    (world / "out" / "x" / "run.json").chmod(0o000)
    done = completed(main_as_user, EVALUATE.split())
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (world / "out" / "x" / "results.json").chmod(0o000)
    done = completed(main_as_user, ["report", "out/x"])
    assert (done.returncode, "results.json" in done.stderr) == (2, True)


def test_a_cache_that_may_not_be_written(world):
    cache = Path(os.environ["BEIR_COCODR_CACHE"])
    cache.mkdir()
    cache.chmod(0o555)
    done = completed(main_as_user, EVALUATE.split())
    cache.chmod(0o755)
    assert (done.returncode, "BEIR_COCODR_CACHE" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "line", ["validate --dataset notes", "fuse --dataset {0}/beir --model {0}/model --output out"]
)
def test_a_working_folder_that_is_gone(line, world, monkeypatch, capsys):
    gone = world / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SystemExit) as end:
        main(line.format(world).split())
    monkeypatch.chdir(world)
    assert end.value.code == 2
    assert "working folder" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["file", "file/below", "folder"])
@pytest.mark.parametrize("options", [[], ["--fast"]])
def test_quickstart_refuses_an_output_before_it_works(
    tmp_path, monkeypatch, capsys, output, options
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("a file")
    Path("folder").mkdir()
    Path("folder/mine").write_text("a file")
    # What is read and measured first is kept in the cache.
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as end:
        main(["quickstart", *options, "--output", output])
    assert end.value.code == 2
    assert f"error: {output}" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize(
    ("variable", "line"),
    [("BEIR_COCODR_CACHE", EVALUATE), ("BEIR_COCODR_VECTORS", "cache")],
)
def test_a_cache_of_nobody(variable, line, world, monkeypatch):
    monkeypatch.setenv(variable, "~nobody-at-all/cache")
    done = completed(main, line.split())
    assert (done.returncode, "~nobody-at-all" in done.stderr) == (2, True)


def test_nobody_has_no_part_of_the_cache(world):
    done = completed(main, ["cache", "--clear", "~nobody-at-all"])
    assert (done.returncode, "~nobody-at-all" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["a\udcff", "x" * 300])
def test_a_cache_whose_name_no_library_takes(world, monkeypatch, name):
    monkeypatch.setenv("BEIR_COCODR_CACHE", name)
    done = completed(main, EVALUATE.split())
    assert (done.returncode, "error: BEIR_COCODR_CACHE" in done.stderr) == (2, True)
