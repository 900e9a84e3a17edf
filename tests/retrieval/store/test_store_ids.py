from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.store import store_ids
from beir_cocodr.retrieval.store.store_ids import StoreIds


def corpus(ids: list[str]) -> Documents:
    chunks = [
        pa.array(ids[start : start + 3], pa.large_string()) for start in range(0, len(ids), 3)
    ]
    column = pa.chunked_array(chunks, pa.large_string())
    return Documents(pa.table(dict.fromkeys(("id", "title", "text"), column)), "none")


@settings(deadline=None, max_examples=30)
@given(
    ids=st.lists(
        st.text(min_size=1, max_size=5).filter(lambda id: id.isprintable()), min_size=1, unique=True
    ),
    group=st.integers(1, 9),
)
def test_ids_by_row_and_the_order_of_ties(tmp_path_factory, ids, group):
    folder, documents = tmp_path_factory.mktemp("ids"), corpus(ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_ids, "_GROUP", group)
        table = StoreIds(folder, len(ids))
        table.write(documents)
        assert table.complete()
        rows = np.random.default_rng(len(ids)).integers(0, len(ids), 20)
        assert table.ids(rows) == [ids[row] for row in rows]
        assert table.ids(np.empty(0, np.int64)) == []
    descending = sorted(range(len(ids)), key=lambda row: ids[row].encode(), reverse=True)
    np.testing.assert_array_equal(table.rows_at(np.arange(len(ids))), descending)
    np.testing.assert_array_equal(table.tie_ranks(0, len(ids))[descending], np.arange(len(ids)))
    np.testing.assert_array_equal(table.tie_ranks(0, len(ids)), documents.tie_ranks())
    assert pq.read_table(folder / "ids.parquet").column("id").to_pylist() == ids


def test_what_is_there_is_not_written_again(tmp_path):
    table = StoreIds(tmp_path, 4)
    table.write(corpus(["b", "d", "a", "c"]))
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.*")}
    (tmp_path / "tie_ranks.npy").unlink()
    table.write(corpus(["b", "d", "a", "c"]))
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.*")}
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} <= {"tie_ranks.npy"}
    assert table.tie_ranks(0, 4).tolist() == [2, 0, 3, 1]


def test_a_broken_table_is_named(tmp_path):
    table = StoreIds(tmp_path, 3)
    with pytest.raises(InputError, match=r"ids\.parquet"):
        table.ids(np.array([0]))
    StoreIds(tmp_path, 2).write(corpus(["a", "b"]))
    with pytest.raises(InputError, match=r"2 ids .*3 documents"):
        table.ids(np.array([0]))
    with pytest.raises(InputError, match=r"tie_ranks\.npy .*\(2,\)"):
        table.tie_ranks(0, 3)
    with pytest.raises(IndexError, match="-1 to 1"):
        StoreIds(tmp_path, 2).ids(np.array([1, -1]))
