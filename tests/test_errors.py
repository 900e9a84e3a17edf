"""Full disks, by the errors that libraries themselves raise; a limit on the size of files stands
for one.
"""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch
from conftest import limited_files

from beir_cocodr.errors import DiskFull, InputError, describe_full_disk, naming_full_disk, no_room
from beir_cocodr.io import atomic_path, draft_folder, write_text

ZEROS = np.random.default_rng(0).random(100_000)


def write_index(path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(100)
    index.add(ZEROS.astype(np.float32).reshape(-1, 100))
    faiss.write_index(index, str(path))


def write_table(path: Path) -> None:
    pq.write_table(pa.table({"a": ZEROS}), path)


def write_stream(path: Path) -> None:
    table = pa.table({"a": ZEROS})
    with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("a" * 100_000),
    "numpy": lambda path: np.save(path.with_suffix(".npy"), ZEROS),
    "safetensors": lambda path: safetensors.numpy.save_file({"a": ZEROS}, path),
    "torch": lambda path: torch.save({"a": torch.from_numpy(ZEROS)}, path),
    "parquet": write_table,
    "arrow": write_stream,
    "faiss": write_index,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("size", [0, 10_000])
def test_the_error_of_every_library_is_known(tmp_path, name, size):
    with (
        pytest.raises(DiskFull) as full,
        limited_files(size),
        atomic_path(tmp_path / "file") as temporary,
    ):
        WRITERS[name](temporary)
    assert full.value.filename == str(tmp_path)
    line = describe_full_disk(full.value)
    assert str(tmp_path) in line
    assert "nothing was written" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, "x"), errno.ENOSPC),
        (OSError(errno.EDQUOT, "x"), errno.EDQUOT),
        (OSError("Not enough free space to write 16777220 bytes after offset 128"), errno.ENOSPC),
        (OSError("8000 requested and 4000 written"), errno.ENOSPC),
        (Exception("No space left on device (os error 28)"), errno.ENOSPC),
        (
            RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 704 vs 600"),
            errno.ENOSPC,
        ),
        (RuntimeError("basic_ios::clear: iostream error"), errno.ENOSPC),
        (
            FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
            errno.ENOSPC,
        ),
        (OSError(errno.EACCES, "Permission denied"), None),
        (RuntimeError("CUDA error"), None),
        (InputError("No space left on device"), None),
    ],
)
def test_what_is_a_full_disk(error, number):
    assert no_room(error) == number
    other = ValueError("something else")
    other.__cause__ = error
    assert no_room(other) == number


def test_the_folder_that_stays_is_named_and_notes_are_kept(tmp_path):
    def fill() -> None:
        with (
            naming_full_disk(tmp_path, lambda: "1 of 2 is complete"),
            draft_folder(tmp_path / "new") as draft,
        ):
            write_text(draft / "deep" / "a", "b")
            raise RuntimeError("No space left on device")

    with pytest.raises(DiskFull) as full:
        fill()
    passed_on = pickle.loads(pickle.dumps(full.value))
    for error in (full.value, passed_on):
        assert error.filename == str(tmp_path / "new")
        assert describe_full_disk(error).count("1 of 2 is complete") == 1
    write_text(tmp_path / "whole" / "a.run", "b")
    with pytest.raises(DiskFull) as full, limited_files(0):
        write_text(tmp_path / "whole" / "b.run", "b")
    assert "complete there: a.run" in describe_full_disk(full.value)
    with pytest.raises(KeyError), naming_full_disk(tmp_path):
        raise KeyError
