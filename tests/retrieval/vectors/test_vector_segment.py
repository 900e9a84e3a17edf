"""A growing file of vectors: what was appended is there, and what a kill or damage broke is not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import exit_code
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from beir_cocodr.retrieval.vectors import vector_segment
from beir_cocodr.retrieval.vectors.vector_segment import Segment, SegmentRecord

RECORD = SegmentRecord("corpus", "encoder", 3)

#: Few values, so that hashes and halves of hashes coincide.
HASHES = arrays(np.uint64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.integers(0, 3))


def drawn(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**63, (count, 2), dtype=np.uint64)
    return hashes, rng.normal(size=(count, 3)).astype(np.float32)


def read(segment: Segment, hashes: np.ndarray) -> np.ndarray:
    return np.asarray(segment.vectors[segment.find(hashes)])


@settings(deadline=None)
@given(st.lists(HASHES, min_size=1, max_size=5), st.booleans())
def test_the_first_vector_of_each_text_is_kept_as_a_dictionary_keeps_it(
    tmp_path_factory, parts, is_indexed
):
    folder = tmp_path_factory.mktemp("segment")
    before = vector_segment._MOST_OUTSIDE
    vector_segment._MOST_OUTSIDE = 2 if is_indexed else 100
    try:
        segment = Segment(folder)
        expected: dict[tuple[int, ...], float] = {}
        number = 0.0
        for hashes in parts:
            vectors = np.arange(number, number + len(hashes), dtype=np.float32)
            number += len(hashes)
            segment.append(hashes, np.repeat(vectors[:, None], 3, axis=1), RECORD)
            for pair, value in zip(hashes.tolist(), vectors.tolist(), strict=True):
                expected.setdefault(tuple(pair), value)
    finally:
        vector_segment._MOST_OUTSIDE = before
    everything = np.array([[high, low] for high in range(4) for low in range(4)], np.uint64)
    for opened in (segment, Segment(folder)):
        slots = opened.find(everything)
        for pair, slot in zip(everything.tolist(), slots.tolist(), strict=True):
            value = None if slot < 0 else float(opened.vectors[slot][0])
            assert value == expected.get(tuple(pair))
        assert len(opened) == len(expected)


def test_one_process_sees_what_another_appends(tmp_path):
    hashes, vectors = drawn(6)
    reader = Segment(tmp_path)
    Segment(tmp_path).append(hashes[:4], vectors[:4], RECORD)
    assert len(reader) == 0
    reader.append(hashes[2:], vectors[2:] + 1, RECORD)  # two of them are there already
    np.testing.assert_array_equal(read(reader, hashes[:4]), vectors[:4])
    np.testing.assert_array_equal(read(reader, hashes[4:]), vectors[4:] + 1)


@pytest.mark.parametrize(("file", "lost"), [("texts", 1), ("vectors", 1), ("vectors", 13)])
def test_rows_that_a_kill_left_incomplete_do_not_count(tmp_path, file, lost):
    hashes, vectors = drawn(4)
    Segment(tmp_path).append(hashes, vectors, RECORD)
    path = tmp_path / file
    os.truncate(path, path.stat().st_size - lost)
    segment = Segment(tmp_path)
    complete = 2 if lost == 13 else 3
    assert (segment.find(hashes) >= 0).tolist() == [row < complete for row in range(4)]
    segment.append(hashes, vectors, RECORD)
    np.testing.assert_array_equal(read(Segment(tmp_path), hashes), vectors)


def test_a_vector_that_was_changed_is_missing_and_can_be_written_again(tmp_path, caplog):
    hashes, vectors = drawn(4)
    Segment(tmp_path).append(hashes, vectors, RECORD)
    with (tmp_path / "vectors").open("rb+") as file:
        file.seek(12 + 5)
        file.write(b"\x7f")
    assert (Segment(tmp_path, verify=False).find(hashes) >= 0).all()
    segment = Segment(tmp_path)
    assert (segment.find(hashes) >= 0).tolist() == [True, False, True, True]
    assert "1 vectors were changed since they were written" in caplog.text
    segment.append(hashes, vectors, RECORD)
    np.testing.assert_array_equal(read(Segment(tmp_path), hashes), vectors)


@pytest.mark.parametrize("file", ["segment.json", "index.npy"])
def test_a_damaged_record_or_index_is_made_anew(tmp_path, monkeypatch, file):
    monkeypatch.setattr(vector_segment, "_MOST_OUTSIDE", 2)
    hashes, vectors = drawn(6)
    Segment(tmp_path).append(hashes[:5], vectors[:5], RECORD)
    (tmp_path / file).write_bytes(b"{")
    segment = Segment(tmp_path)
    segment.append(hashes, vectors, RECORD)
    np.testing.assert_array_equal(read(Segment(tmp_path), hashes), vectors)


def test_a_segment_that_was_removed_begins_anew(tmp_path):
    hashes, vectors = drawn(6)
    segment = Segment(tmp_path / "segment")
    segment.append(hashes[:5], vectors[:5], RECORD)
    for path in (tmp_path / "segment").iterdir():
        path.unlink()
    segment.append(hashes[3:], vectors[3:], RECORD)
    assert (segment.find(hashes) >= 0).tolist() == [False] * 3 + [True] * 3


def append_and_die(folder: Path) -> None:
    """Append one batch after the other, and kill the process while it writes the third."""
    hashes, vectors = drawn(9)
    segment = Segment(folder)
    write = vector_segment._write_at

    def write_half(path: Path, offset: int, content: bytes) -> None:
        if len(segment) < 6 or path.name == "vectors":
            write(path, offset, content)
            return
        write(path, offset, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    vector_segment._write_at = write_half
    for start in (0, 3, 6):
        segment.append(hashes[start : start + 3], vectors[start : start + 3], RECORD)


def test_a_killed_process_loses_at_most_the_batch_that_it_writes(tmp_path):
    assert exit_code(append_and_die, tmp_path) == -signal.SIGKILL
    hashes, vectors = drawn(9)
    segment = Segment(tmp_path)
    is_kept = segment.find(hashes) >= 0
    assert is_kept[:6].all()
    np.testing.assert_array_equal(read(segment, hashes[is_kept]), vectors[is_kept])
    segment.append(hashes, vectors, RECORD)
    np.testing.assert_array_equal(read(Segment(tmp_path), hashes), vectors)
