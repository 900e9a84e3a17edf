from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import xxhash

from beir_cocodr import checksums
from beir_cocodr.errors import InputError


@pytest.fixture
def hashed(monkeypatch) -> list[Path]:
    """The files that were read for their checksums."""
    files: list[Path] = []
    original = checksums._checksum
    monkeypatch.setattr(
        checksums,
        "_checksum",
        lambda path, *content: files.append(path) or original(path, *content),
    )
    return files


def write(path: Path, content: bytes) -> Path:
    with checksums.checked_path(path) as temporary:
        temporary.write_bytes(content)
    return path


def test_a_checksum_is_the_line_of_xxhsum(tmp_path):
    for name, content in (("a.bin", os.urandom(700_000)), ("empty", b"")):
        write(tmp_path / name, content)
        line = (tmp_path / "checksums" / name).read_text()
        assert line == f"XXH3_{xxhash.xxh3_64_hexdigest(content)}  {name}\n"
        assert checksums.fault(tmp_path / name) is None
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "a.bin",
        "a.bin",
        "checksums",
        "empty",
        "empty",
    ]


def test_a_file_is_read_once_until_it_changes(tmp_path, hashed):
    path = write(tmp_path / "a", b"12345")
    time.sleep(0.05)
    hashed.clear()
    assert [checksums.fault(path) for _ in range(3)] == [None] * 3
    assert len(hashed) == 1
    path.write_bytes(b"12346")  # of the same size, right after it was verified
    with pytest.raises(InputError, match=r"a was changed since it was written.*; do this"):
        checksums.verify(path, "do this")
    path.write_bytes(b"12345")
    assert checksums.fault(path) is None


def test_a_file_is_verified_as_it_is_read_and_read_again_without(tmp_path, hashed):
    content = os.urandom(700_000)
    path = write(tmp_path / "a", content)
    time.sleep(0.05)
    hashed.clear()
    for _ in range(3):
        assert checksums.read(path, "do this").tobytes() == content
    assert len(hashed) == 1
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for damaged in (None, content[:-1], content + b"1", b""):
        with pytest.raises(InputError, match=r"a was changed since it was written.*; do this"):
            checksums.read(path, "do this")
        if damaged is not None:
            path.write_bytes(damaged)


def test_what_is_missing_is_a_fault(tmp_path):
    path = write(tmp_path / "a", b"1")
    (tmp_path / "checksums" / "a").unlink()
    assert "checksums/a cannot be read" in str(checksums.fault(path))
    path.unlink()
    assert "a cannot be read" in str(checksums.fault(path))


def test_a_kill_between_checksum_and_file_leaves_what_is_broken_or_missing(tmp_path, monkeypatch):
    def dies(*arguments: object) -> None:
        raise ZeroDivisionError

    for before in (None, b"old"):
        path = tmp_path / "a"
        if before:
            path.write_bytes(before)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", dies)
            with pytest.raises(ZeroDivisionError):
                write(path, b"new")
        assert checksums.fault(path) is not None


def test_a_folder_gets_all_checksums_at_once(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(name)
    checksums.add_checksums(tmp_path, ["a", "b"])
    assert [checksums.fault(tmp_path / name) for name in "ab"] == [None, None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "checksums"]
