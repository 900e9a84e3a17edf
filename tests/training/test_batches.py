"""Batches without repeated texts are made ahead, by keys that are read once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler

from beir_cocodr.training import batches
from beir_cocodr.training.batches import BatchKeys, TextKeys, WholeEpochs, loader_workers, text_key

#: 600 rows of two texts each, of 200 different ones.
ROWS = [
    [f"text {number}" for number in np.random.default_rng(row).choice(200, 2, replace=False)]
    for row in range(600)
]


def sampled(kind: type[NoDuplicatesBatchSampler], keys: BatchKeys) -> NoDuplicatesBatchSampler:
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
    assert list(sampled(WholeEpochs, by_hash)) == expected
    assert sorted(asked) == sorted(set(asked))  # no document is read twice
    assert text_key(texts[3]) == of_documents.of(np.array([3]))[0]


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
