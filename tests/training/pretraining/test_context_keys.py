"""What passages meet in an epoch, and the keys that keep equal texts out of a batch.

Both are computed for many rows at once, and must agree with what is drawn for a row alone, and with
a comparison of the texts themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from contexts import settings as options_of
from contexts import views, write_context
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.training.batches import BatchKeys, EpochClock, WholeEpochs, text_key
from beir_cocodr.training.pretraining import context_keys
from beir_cocodr.training.pretraining.context_draws import AFTER, BEFORE, SPANS, ContextDraws
from beir_cocodr.training.pretraining.context_keys import ContextKeys, load_keys, query_counts
from beir_cocodr.training.pretraining.context_views import ContextViews

#: Few different texts, so that many are equal.
TEXTS = st.sampled_from(["", "wing", "wing ", "Wing", "flow", "Überflug", "\u2028", "𝄞"])


def sampled(rows: int, keys: Callable, epoch: int, batch_size: int = 4) -> list[list[int]]:
    sampler = WholeEpochs(
        BatchKeys(rows, keys),
        batch_size=batch_size,
        drop_last=True,
        generator=torch.Generator(),
        seed=5,
    )
    sampler.set_epoch(epoch)
    return list(sampler)


def draws_of(mix: float, rows: int = 60_000, seed: int = 7) -> ContextDraws:
    """Return draws of documents of one, two and three passages, each with five queries."""
    sizes = np.tile([1, 2, 3], rows // 6)
    return ContextDraws(
        seed=seed,
        mix=mix,
        query_counts=np.full(rows, 5, np.int32),
        document=np.repeat(np.arange(len(sizes)), sizes),
    )


@pytest.mark.parametrize("mix", [0.0, 0.3])
def test_a_row_draws_the_same_alone_and_among_all(mix):
    draws = draws_of(mix, rows=66_000)  # more than are drawn at a time
    rows = np.array([0, 1, 7, 65_535, 65_536, 65_999, 3])
    epochs = [draws.of_epoch(epoch) for epoch in range(3)]
    for epoch, contexts in enumerate(epochs):
        assert draws(epoch, rows).tolist() == contexts[rows].tolist()
    assert not np.array_equal(epochs[0], epochs[1])
    assert not np.array_equal(epochs[0], draws_of(mix, rows=66_000, seed=8).of_epoch(0))


def test_contexts_are_drawn_as_often_as_the_options_say():
    draws = draws_of(mix=0.3)
    contexts = draws.of_epoch(0)
    place = np.tile([0, 0, 1, 0, 1, 2], 10_000)  # of a row in its document
    size = np.tile([1, 2, 2, 3, 3, 3], 10_000)
    first, last = place == 0, place == size - 1
    assert not (first & (contexts == BEFORE)).any()
    assert not (last & (contexts == AFTER)).any()
    assert set(contexts[size == 1]) == {SPANS, *range(5)}
    assert SPANS not in contexts[size > 1]

    def check(happened: np.ndarray, chance: float) -> None:
        deviation = np.sqrt(chance * (1 - chance) / len(happened))
        assert abs(happened.mean() - chance) < 4 * deviation

    check(contexts < 0, 0.3)
    check(contexts[~first & ~last] == BEFORE, 0.15)
    for query in range(5):
        check(contexts == query, 0.7 / 5)
    assert draws_of(mix=0.0).of_epoch(0).min() == 0
    assert draws_of(mix=1.0).of_epoch(0).max() < 0


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("span_tokens", [12, 38])
def test_keys_give_the_batches_that_texts_give(mix, span_tokens, tmp_path, tiny_mlm, monkeypatch):
    """Passages of one, two and three to a document, in two folders that share half their texts."""
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    folders = [
        str(write_context(tmp_path / name, documents=documents, queries=3))
        for name, documents in (("first", 8), ("second", 16))
    ]
    options = options_of("qc", mix=mix, span_tokens=span_tokens, seed=7)
    found = views(folders, tiny_mlm, options)
    assert found.batch_keys is not None
    for epoch in range(3):
        found.clock.epoch = epoch
        pairs = found.texts_of(range(len(found)))
        assert [found.texts(row) for row in (0, 5)] == [pairs[row] for row in (0, 5)]

        def keys_by_texts(row: int, pairs=pairs) -> list[str]:
            return [f"\0{found.document[row]}", *pairs[row]]

        batches = sampled(len(found), keys_by_texts, epoch)
        assert len(batches) > 5
        assert sampled(len(found), found.batch_keys.keys, epoch) == batches


@pytest.fixture(scope="module")
def write_table(tmp_path_factory) -> Callable[[list[tuple[str, list[str]]]], Dataset]:
    """Return what writes passages with their queries as a table of the cache."""
    folder = tmp_path_factory.mktemp("tables")
    written = iter(range(1_000_000))
    schema = pa.schema({"text": pa.large_string(), "queries": pa.list_(pa.large_string())})

    def write(rows: list[tuple[str, list[str]]]) -> Dataset:
        path = folder / f"{next(written):032}.arrow"
        with path.open("wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for start in range(0, len(rows), 3):
                texts, queries = zip(*rows[start : start + 3], strict=True)
                batch = pa.record_batch([list(texts), list(queries)], schema=schema)
                writer.write_batch(batch)
        return Dataset.from_file(str(path))

    return write


PASSAGES = st.lists(
    st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=3)), min_size=1, max_size=12
)


@settings(deadline=None, max_examples=50)
@given(data=st.data(), first=PASSAGES, second=PASSAGES | st.just([]), epoch=st.integers(0, 3))
def test_rows_share_keys_if_and_only_if_they_share_texts(data, first, second, epoch, write_table):
    """Keys of texts that are read once, against the texts of each row as it is drawn."""
    parts = [part for part in (first, second) if part]
    rows = [row for part in parts for row in part]
    starts = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    document = np.cumsum(starts)
    tables = [write_table(part) for part in parts]
    counts = np.concatenate([query_counts(table) for table in tables])
    assert counts.tolist() == [len(queries) for _, queries in rows]
    draws = ContextDraws(seed=3, mix=0.0, query_counts=counts, document=document)
    clock = EpochClock()
    clock.epoch = epoch
    keys = ContextKeys(tables, draws, clock, lambda row: pytest.fail("a text is read"))

    def texts(row: int) -> list[str]:
        [number] = draws(epoch, np.array([row]))
        text, queries = rows[row]
        return [f"\0{document[row]}", text, queries[number]]

    for one in range(len(rows)):
        for other in range(len(rows)):
            shares_text = not set(texts(one)).isdisjoint(texts(other))
            assert shares_text == (not set(keys.of(one)).isdisjoint(keys.of(other)))
    assert sampled(len(rows), keys.of, epoch, 2) == sampled(len(rows), texts, epoch, 2)


def test_keys_are_made_once_and_are_the_same_in_every_process(write_table, monkeypatch):
    rows = [("wing", ["a query", "Überflug"]), ("flow", ["a query"])]
    table = write_table(rows)
    keys = load_keys(table)
    texts = ["wing", "a query", "Überflug", "flow", "a query"]
    assert keys.tolist() == [text_key(text) for text in texts]
    # XXH3, which no seed of a process changes.
    assert text_key("wing") == 12_476_609_150_077_347_659
    monkeypatch.setattr(context_keys, "text_key", lambda text: pytest.fail("a text is read"))
    assert load_keys(table).tolist() == keys.tolist()
    assert load_keys(table).base is not None  # mapped from a file
    [cached] = table.cache_files
    file = Path(cached["filename"]).with_suffix(".keys.npy")
    assert file.stat().st_size == 128 + 8 * len(texts)


def test_a_sampler_of_queries_reads_no_text(tmp_path, tiny_mlm, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    folder = str(write_context(tmp_path / "context"))
    found = views(folder, tiny_mlm, options_of("qc"))
    keys = found.batch_keys
    assert keys is found.batch_keys
    monkeypatch.setattr(ContextViews, "texts_of", lambda *_: pytest.fail("a text is read"))
    assert sampled(len(found), keys.keys, 0)
    # Passages that are compared with no other need no keys.
    other = views(str(write_context(tmp_path / "other", seed=1)), tiny_mlm, options_of("masked"))
    assert other.batch_keys is None
    assert len(list((tmp_path / "cache" / "query-context").glob("*.keys.npy"))) == 1
