"""Files and folders that appear when they are complete, locks and hashes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import exit_code
from faults.ordinary import become_ordinary
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.errors import InputError
from beir_cocodr.io import (
    HELD,
    atomic_output,
    atomic_path,
    atomic_writer,
    cache_folder,
    cell_text,
    check_nesting,
    content_sha256,
    draft_folder,
    file_sha256,
    files_sha256,
    json_sha256,
    locked,
    output_folder,
    output_path,
    parse_json,
    remove_unfinished,
    save_array,
    sole_writer,
    text_cell,
    text_sha256,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path):
    write_text(tmp_path / "deep" / "a.txt", "old\n")

    def die_writing_text() -> None:
        with atomic_writer(tmp_path / "deep" / "a.txt") as file:
            file.write("half")
            assert (tmp_path / "deep" / "a.txt").read_text() == "old\n"
            raise ZeroDivisionError

    def die_in_a_library() -> None:
        with atomic_path(tmp_path / "b.bin") as temporary:
            temporary.write_bytes(b"half")
            temporary.with_name("beside").write_bytes(b"what a library writes for itself")
            raise ZeroDivisionError

    for die in (die_writing_text, die_in_a_library):
        with pytest.raises(ZeroDivisionError):
            die()
    assert names(tmp_path) == ["deep"]
    assert names(tmp_path / "deep") == ["a.txt"]
    assert (tmp_path / "deep" / "a.txt").read_bytes() == b"old\n"
    save_array(tmp_path / "c.npy", np.arange(3))
    assert np.load(tmp_path / "c.npy").tolist() == [0, 1, 2]
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "c.npy").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_folder_where_a_file_goes_is_named_and_stays(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(InputError, match=r"a\.json.*folder"):
        write_text(tmp_path / "a.json", "{}")
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("place", ["/proc", "file", "file/below"])
def test_a_place_that_cannot_be_written_to_is_named(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    with pytest.raises(InputError, match=f"{place} cannot be"):
        output_folder(Path(place))
    assert names(tmp_path) == ["file"]


def test_a_draft_takes_its_name_at_the_end(tmp_path):
    output = tmp_path / "o"
    with draft_folder(output) as draft:
        (draft / "file").write_text("1")
        assert not output.exists()
    assert names(tmp_path) == ["o"]
    with pytest.raises(InputError, match="is not empty"), draft_folder(output):
        pass
    with pytest.raises(ZeroDivisionError), draft_folder(output, replace=True) as draft:
        raise ZeroDivisionError
    assert (output / "file").read_text() == "1"
    with draft_folder(output, replace=True) as draft:
        (draft / "other").write_text("2")
    assert names(output) == ["other"]
    assert names(tmp_path) == ["o"]
    (tmp_path / "empty").mkdir()
    with draft_folder(tmp_path / "empty") as draft:
        (draft / "file").write_text("3")
    assert names(tmp_path / "empty") == ["file"]
    with (
        pytest.raises(InputError, match="cannot be made"),
        draft_folder(output / "other" / "below"),
    ):
        pass


_HOLD = """
import sys, time
from pathlib import Path
from beir_cocodr.io import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold(folder: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _HOLD, str(folder), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_drafts_of_killed_processes_are_removed_and_what_they_moved_is_put_back(tmp_path):
    """Those that a process still holds stay."""
    output = tmp_path / "o"
    program = "import os, sys; from pathlib import Path; from beir_cocodr.io import draft_folder\n"
    program += "with draft_folder(Path(sys.argv[1]), replace=True) as draft:\n    "
    for killed in (
        "os._exit(1)",
        "Path(sys.argv[1]).replace(draft.with_name('former')); os._exit(1)",
    ):
        subprocess.run([sys.executable, "-c", program + killed, str(output)], check=False)
        assert len(names(tmp_path)) == 1
        with draft_folder(output, replace=True) as draft:
            (draft / "a").write_text("first")
            with draft_folder(output, replace=True):
                assert draft.is_dir()
        assert names(tmp_path) == ["o"]
    assert (output / "a").read_text() == "first"


def test_a_draft_of_a_process_that_was_killed_when_its_output_was_complete_is_removed(tmp_path):
    output = tmp_path / "o"
    program = "import os, sys; from pathlib import Path; from beir_cocodr.io import draft_folder\n"
    program += "with draft_folder(Path(sys.argv[1])) as draft:\n    "
    program += "draft.replace(sys.argv[1]); (draft.parents[1] / 'o' / 'a').touch(); os._exit(1)"
    subprocess.run([sys.executable, "-c", program, str(output)], check=False)
    assert len(names(tmp_path)) == 2
    with pytest.raises(InputError, match="is not empty"), draft_folder(output):
        pass
    assert names(tmp_path) == ["o"]


@pytest.mark.parametrize("writing", [draft_folder, sole_writer])
def test_a_folder_that_is_moved_while_it_is_written_to_is_named(writing, tmp_path):
    """What is written late, under the old name, is in no output."""
    parent = tmp_path / "runs"
    output = parent / "o"
    parent.mkdir()
    if writing is sole_writer:
        output.mkdir()

    def write_while_it_is_moved() -> None:
        with writing(output):
            parent.rename(tmp_path / "moved")
            write_text(output / "late", "x")  # makes the folder anew

    with pytest.raises(InputError, match=f"{output} was moved or removed"):
        write_while_it_is_moved()
    assert not (tmp_path / "moved" / "o" / "late").exists()
    with writing(tmp_path / "moved" / "o"):
        pass
    assert names(tmp_path / "moved") == ["o"]
    assert names(tmp_path / "moved" / "o") == []


def test_what_a_killed_command_left_of_its_file_is_removed(tmp_path):
    output = tmp_path / "page.html"
    program = "import os, sys; from pathlib import Path; from beir_cocodr.io import atomic_output\n"
    program += (
        "with atomic_output(Path(sys.argv[1])) as temporary:\n    temporary.touch(); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", program, str(output)], check=False)
    [left] = tmp_path.iterdir()
    # Killed before it took its lock, and after it had let it go.
    before = left.with_name(f"{left.name[:30]}0")
    before.mkdir()
    after = left.with_name(f"{left.name[:30]}1")
    after.mkdir()
    (after / "page.html").touch()
    with atomic_output(output) as temporary:
        temporary.write_text("whole")
        with atomic_output(output) as other:  # as another process would
            other.write_text("before")
        assert temporary.is_file()
    assert names(tmp_path) == ["page.html"]
    assert output.read_text() == "whole"


def test_a_draft_that_the_umask_closes_is_not_left(tmp_path):
    assert exit_code(_write_without_permissions, tmp_path) == 0
    assert names(tmp_path) == []


def _write_without_permissions(folder: Path) -> None:
    become_ordinary()
    os.umask(0o777)
    for write in (lambda: write_text(folder / "a.txt", "x"), lambda: _draft(folder / "o")):
        with pytest.raises((OSError, InputError)):
            write()


def _draft(output: Path) -> None:
    with draft_folder(output):
        pass


def test_a_lock_holds_against_others_until_its_process_ends(tmp_path):
    process = hold(tmp_path, 60)
    with pytest.raises(InputError, match="another process writes"), locked(tmp_path, seconds=0):
        pass
    process.kill()
    process.wait()
    with locked(tmp_path, seconds=0):
        pass
    process = hold(tmp_path, 1)
    with locked(tmp_path):
        process.wait(timeout=30)
    assert names(tmp_path) == []


def test_the_sole_writer_removes_what_another_left(tmp_path):
    (tmp_path / ".unfinished-1").mkdir()
    (tmp_path / ".unfinished-1" / "half").write_text("x")
    (tmp_path / ".unfinished-2").write_text("x")
    (tmp_path / "mine").write_text("x")
    write_text(tmp_path / "checksums" / "mine", "x")
    (tmp_path / "checksums" / ".unfinished-3").mkdir()
    with sole_writer(tmp_path):
        assert names(tmp_path) == [".lock", "checksums", "mine"]
        assert names(tmp_path / "checksums") == ["mine"]
        (tmp_path / "checksums" / ".unfinished-4").mkdir()  # of a process that died within
    assert names(tmp_path) == ["checksums", "mine"]
    assert names(tmp_path / "checksums") == ["mine"]


def test_a_thread_may_ask_again_for_a_folder_that_it_holds_and_another_may_not(tmp_path):
    def write() -> str:
        with sole_writer(tmp_path / "x" / ".."):
            return "written"

    (tmp_path / "x").mkdir()
    with ThreadPoolExecutor(1) as other:
        with sole_writer(tmp_path):
            assert write() == "written"
            with pytest.raises(InputError, match="another process"):
                other.submit(write).result()
            assert write() == "written"
        assert other.submit(write).result() == "written"
        with pytest.raises(ZeroDivisionError), sole_writer(tmp_path):
            raise ZeroDivisionError
        assert other.submit(write).result() == "written"
    assert not HELD.holds(tmp_path)


def test_only_old_unfinished_work_is_removed_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path))
    folder = cache_folder("x")
    for name, age in (("new", 0), ("old", 2 * 86_400)):
        (folder / f".unfinished-{name}").mkdir()
        os.utime(folder / f".unfinished-{name}", (time.time() - age,) * 2)
    assert names(cache_folder("x")) == [".unfinished-new"]
    remove_unfinished(folder)
    assert names(folder) == []
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(folder / "none"))
    (folder / "none").write_text("a file")
    with pytest.raises(InputError, match="BEIR_COCODR_CACHE"):
        cache_folder("x")


def test_hashes(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert file_sha256(tmp_path / "f") == text_sha256("abc") == hashlib.sha256(b"abc").hexdigest()
    assert text_sha256("a", "b") == hashlib.sha256(b"a\0b").hexdigest()
    assert json_sha256({"a": 1, "b": [2]}) == json_sha256({"b": [2], "a": 1})
    assert json_sha256("ä") == hashlib.sha256(b'"\\u00e4"').hexdigest()
    assert json_sha256("ä", ensure_ascii=False) == hashlib.sha256('"ä"'.encode()).hexdigest()
    (tmp_path / ".unfinished-0").mkdir()
    for name in (".lock", ".unfinished-0/g"):
        (tmp_path / name).touch()
    assert files_sha256(tmp_path) == {"f": text_sha256("abc")}
    before = content_sha256(tmp_path)
    (tmp_path / "README.md").write_text("a card")
    assert content_sha256(tmp_path) == before
    (tmp_path / "weights").touch()
    assert content_sha256(tmp_path) != before


def test_json_that_is_nested_too_deeply_is_damaged():
    assert parse_json('{"a": [1, null]}') == {"a": [1, None]}
    for text in ("[" * 100_000, '{"a":' * 100_000, "{", ""):
        with pytest.raises(ValueError, match=r"deep|line 1"):
            parse_json(text)


NESTED = st.recursive(
    st.text() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(NESTED)
def test_json_that_is_not_deep_is_read_whatever_its_texts_hold(content):
    many = [content, "[{" * 600, '"[\\' * 600, [[]] * 600]
    check_nesting(json.dumps(many, ensure_ascii=False))
    assert parse_json(json.dumps(many)) == many


@pytest.mark.parametrize("opened", ["[", '{"[": '])
def test_the_levels_of_json_are_counted(opened):
    closed = {"[": "]", '{"[": ': "}"}[opened]
    check_nesting(opened * 500 + "1" + closed * 500)
    for ending in ("", "1" + closed * 501, '"' + "]" * 900):
        with pytest.raises(RecursionError, match="more than 500"):
            check_nesting(opened * 501 + ending)
    check_nesting((opened + "1" + closed) * 600)


def test_no_text_of_a_table_is_a_formula():
    for text in ("=1+1", "+1", "-1", "@sum", "\t=1", " =1"):
        assert text_cell(text) == "'" + text.strip()
        assert cell_text(text_cell(text)) == text.strip()
    for text in ("'", "'quoted'", "''", "a = 'b'"):
        assert text_cell(text) == cell_text(text) == text
    assert text_cell("'=1") == "''=1"
    assert cell_text("''=1") == "'=1"
    assert text_cell("a\tb\nc = d") == "a b c = d"


@pytest.mark.parametrize(
    "output", [None, 3, 1.5, b"out", [1], "", " ", "a\0b", "\ud800", "a" * 5000]
)
def test_an_output_of_another_kind_is_refused(output):
    with pytest.raises(InputError, match="output"):
        output_path(output)


@pytest.mark.skipif(sys.platform != "linux", reason="files of memory are those of Linux")
def test_a_file_that_cannot_be_read_to_its_end_is_named():
    with pytest.raises(InputError, match="/proc/self/mem cannot be read"):
        file_sha256(Path("/proc/self/mem"))
