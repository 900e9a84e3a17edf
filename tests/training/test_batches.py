"""Batches without repeated texts are made ahead, by keys that are read once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.base.sampler import DefaultBatchSampler, NoDuplicatesBatchSampler

from beir_cocodr.training import batches
from beir_cocodr.training.batches import BatchKeys, TextKeys, WholeEpochs, loader_workers, text_key

#: 600 rows of two texts each, of 200 different ones.
ROWS = [
    [f"text {number}" for number in np.random.default_rng(row).choice(200, 2, replace=False)]
    for row in range(600)
]


def sampled(kind: type[DefaultBatchSampler], keys: BatchKeys) -> DefaultBatchSampler:
    return kind(keys, batch_size=8, drop_last=True, generator=torch.Generator(), seed=1)


def test_hashes_of_texts_give_the_batches_of_the_texts():
    texts = sorted({text for row in ROWS for text in row})
    asked: list[int] = []

    def read(rows: np.ndarray) -> list[str]:
        asked.extend(rows.tolist())
        return [texts[row] for row in rows]

    of_documents = TextKeys(len(texts), read)
    by_text = BatchKeys(len(ROWS), lambda row: ROWS[row])
    by_hash = BatchKeys(len(ROWS), lambda row: of_documents.of(np.searchsorted(texts, ROWS[row])))
    expected = list(sampled(NoDuplicatesBatchSampler, by_text))
    # The host's last batch may be the first of a second pass, which ours shuffles by its own seed;
    # sentence-transformers 6.0 draws one pass.
    shared = len(expected) - 1
    assert shared > 50
    assert list(sampled(WholeEpochs, by_hash))[:shared] == expected[:shared]
    assert sorted(asked) == sorted(set(asked))  # no document is read twice
    assert text_key(texts[3]) == of_documents.of(np.array([3]))[0]


def test_documents_are_read_with_their_neighbours():
    """A document costs about as much to read as its block; the last block is shorter."""
    texts = [f"text {number}" for number in range(150)]
    asked: list[list[int]] = []

    def read(rows: np.ndarray) -> list[str]:
        asked.append(rows.tolist())
        return [texts[row] for row in rows]

    keys = TextKeys(len(texts), read)
    assert keys.of(np.array([149, 3, 149])) == [text_key(texts[row]) for row in (149, 3, 149)]
    assert asked == [[*range(64), *range(128, 150)]]
    assert keys.of(np.array([0, 130])) == [text_key(texts[row]) for row in (0, 130)]
    assert len(asked) == 1
    assert keys.of(np.array([64])) == [text_key(texts[64])]
    assert asked[1] == [*range(64, 128)]


@st.composite
def grouped_keys(draw: st.DrawFn) -> BatchKeys:
    """Rows in groups; few keys, so that groups and rows often share one."""
    keys = st.sets(st.integers(0, 30), max_size=3)
    shared = draw(st.lists(keys, min_size=1, max_size=12))
    of_group = [keys | {f"group {number}"} for number, keys in enumerate(shared)]
    rows = draw(st.lists(st.tuples(st.integers(0, len(shared) - 1), keys), min_size=1, max_size=60))
    own = [sorted(keys) for _, keys in rows]
    groups = [group for group, _ in rows]
    return BatchKeys(len(rows), own.__getitem__, groups, of_group.__getitem__)


@settings(deadline=None)
@given(keys=grouped_keys(), batch_size=st.integers(1, 6), drop_last=st.booleans())
def test_a_pass_gives_the_batches_of_the_host(keys, batch_size, drop_last):
    """The host compares every waiting row; a pass ends early only where ten batches fail."""
    arguments = {"batch_size": batch_size, "drop_last": drop_last, "seed": 3}
    host = NoDuplicatesBatchSampler(keys, generator=torch.Generator(), **arguments)
    host.generator.manual_seed(3)

    def values(row: int) -> set[str]:
        return {str(key) for key in keys[row].values()}

    def overlaps(row: set[str], batch: set[str]) -> bool:
        return not row.isdisjoint(batch)

    # Before 6.2, sentence-transformers drew one pass and had no name for it.
    one_pass = getattr(host, "_iter_one_pass", lambda *_: iter(host))
    expected = list(one_pass(values, overlaps))
    ours = list(WholeEpochs(keys, generator=torch.Generator(), **arguments)._pass(3))
    assert ours == expected[: len(ours)]
    if len(keys) < 10 * batch_size or not drop_last:
        assert ours == expected


def test_a_query_with_many_documents_is_compared_once_for_each_batch():
    """Of 40 queries with 50 documents each, every batch asks for each query once, not 50 times."""
    asked: list[int] = []

    def shared(group: int) -> set[int]:
        asked.append(group)
        return {group, 1000 + group // 2}  # two queries share a document: 20 go together

    groups = [row // 50 for row in range(2000)]
    keys = BatchKeys(2000, lambda row: [10_000 + row], groups, shared)
    batches = list(sampled(WholeEpochs, keys))
    assert len(batches) == 250
    assert len(asked) <= 270 * 40


def test_batches_are_made_off_the_main_thread_some_ahead():
    threads: set[str] = set()
    asked: list[int] = []

    def keys(row: int) -> list[str]:
        threads.add(threading.current_thread().name)
        asked.append(row)
        return ROWS[row]

    iterator = iter(sampled(WholeEpochs, BatchKeys(len(ROWS), keys)))
    next(iterator)
    for _ in range(200):
        if len(asked) > 8 * batches._AHEAD:
            break
        threading.Event().wait(0.05)
    assert 8 * batches._AHEAD < len(asked) < len(ROWS)  # a full queue stops the thread
    assert threads == {"batches"}
    iterator.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "batches"]


def test_an_error_of_the_keys_is_raised_where_batches_are_taken():
    def keys(row: int) -> list[str]:
        raise KeyError("no such document")

    with pytest.raises(KeyError, match="no such document"):
        list(sampled(WholeEpochs, BatchKeys(len(ROWS), keys)))


@pytest.mark.parametrize(
    ("cores", "gpus", "workers"), [(64, 8, 7), (64, 1, 8), (4, 1, 3), (1, 1, 0), (128, 8, 8)]
)
def test_the_free_cores_of_a_gpu_prepare_its_batches(monkeypatch, cores, gpus, workers):
    monkeypatch.setattr(batches, "available_cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(gpus))
    assert loader_workers(torch.device("cuda"), None) == workers
    assert loader_workers(torch.device("cpu"), None) == 0
    assert loader_workers(torch.device("cuda"), 2) == 2
