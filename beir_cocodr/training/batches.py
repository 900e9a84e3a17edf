"""Batches: rows drawn when they are read, in groups or without repeated texts, and loaders."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from queue import Empty, Queue
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import xxhash
from datasets import Dataset
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch.utils.data import get_worker_info
from transformers import TrainerCallback, TrainerState

from beir_cocodr.arrays import Ints
from beir_cocodr.retrieval.vectors.pool import available_cores

#: Draws the columns of rows that are known by a number.
Draw = Callable[[dict[str, list[int]]], Mapping[str, object]]


class EpochClock(TrainerCallback):
    """Holds the number of the running epoch for whoever draws data by it, also after a resume."""

    def __init__(self) -> None:
        """Start at epoch 0."""
        self.epoch = 0

    def on_epoch_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Take over the epoch of the trainer."""
        self.epoch = int((state.epoch or 0) + 1e-6)


class _PicklableDraw:
    """A row transform that is pickled without what it holds.

    To name a data set, the host would pickle model and corpus.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def __call__(self, rows: dict[str, list[int]]) -> Mapping[str, object]:
        return self.draw(rows)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (uuid4().hex,)


def drawn_dataset(column: str, numbers: Ints, draw: Draw) -> Dataset:
    """Return a data set of rows known by a number, which are drawn when they are read.

    Args:
        column: the name of the numbers.
        numbers: (N,) the number of each row.
        draw: takes ``{column: numbers}`` and gives the columns.
    """
    return Dataset.from_dict({column: numbers}).with_transform(_PicklableDraw(draw))


def text_key(text: str) -> int:
    """Return the key of a text for :class:`BatchKeys`, a hash of 64 bits."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


# Documents that are read together: 64 take less than four times as long as one.
_READ_TOGETHER = 64


class TextKeys:
    """The keys of the documents of a corpus; each document is read once, with its neighbours.

    Args:
        count: N, the number of documents.
        read: returns the texts of rows.
    """

    def __init__(self, count: int, read: Callable[[Ints], Sequence[str]]) -> None:
        """Begin with no keys."""
        self._read = read
        self._keys = np.zeros(count, np.uint64)
        self._is_known = np.zeros(count, bool)

    def of(self, rows: Ints) -> list[int]:
        """Return the keys of documents."""
        unknown = rows[~self._is_known[rows]]
        if len(unknown):
            self._learn(unknown)
        keys: list[int] = self._keys[rows].tolist()
        return keys

    def _learn(self, rows: Ints) -> None:
        """Read documents and their neighbours."""
        blocks = np.unique(rows // _READ_TOGETHER)
        members = blocks[:, None] * _READ_TOGETHER + np.arange(_READ_TOGETHER)
        new = members[members < len(self._keys)]
        self._keys[new] = [text_key(text) for text in self._read(new)]
        self._is_known[new] = True


def _no_keys(_group: int) -> Set[str | int]:
    return frozenset()


@dataclass(frozen=True)
class BatchKeys:
    """The keys of each row that no other row of its batch may have.

    Rows may come in groups whose rows share keys, as the pairs of a query share the query and all
    that is relevant to it. Then no two rows of a group come into one batch. The host's sampler
    reads it like a data set.

    Attributes:
        rows: the number of rows.
        keys: the keys of a row, without those of its group: texts, or their :func:`text_key`.
        groups: the group of each row; None if every row is alone.
        shared: the keys of a group.
        column_names: the host asks for them.
    """

    rows: int
    keys: Callable[[int], Sequence[str | int]]
    groups: Sequence[int] | None = None
    shared: Callable[[int], Set[str | int]] = _no_keys
    column_names: tuple[str, ...] = ("keys",)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.rows

    def __getitem__(self, row: int) -> dict[str, str | int]:
        """Return the keys of a row and of its group."""
        shared = self.shared(self.groups[row]) if self.groups else ()
        return {str(number): key for number, key in enumerate([*shared, *self.keys(row)])}


class _Batch:
    """A batch that takes rows as long as they share no key with those it has."""

    def __init__(self, keys: BatchKeys) -> None:
        self.keys = keys
        self.groups: Sequence[int] = keys.groups or range(len(keys))
        self.rows: list[int] = []
        self._seen: set[str | int] = set()
        self._refused_groups: set[int] = set()

    def takes(self, row: int) -> bool:
        """Take a row and return true, or return false if it shares a key with another."""
        group = self.groups[row]
        if group in self._refused_groups:  # what is refused once is refused until the batch is full
            return False
        shared = self.keys.shared(group)
        if not self._seen.isdisjoint(shared):
            self._refused_groups.add(group)
            return False
        row_keys = self.keys.keys(row)
        if not self._seen.isdisjoint(row_keys):
            return False
        self.rows.append(row)
        self._seen.update(shared, row_keys)
        return True


# Passes without a single batch after which there is none.
_BARREN_PASSES = 10

# Batches that could not be filled one after another, after which a pass ends.
_UNFILLED_BATCHES = 10

# Keeps the seeds of passes apart.
_PASS_SEED = 1_000_003

# Rows of a shuffle that become Python's numbers at once.
_ORDER_CHUNK = 65_536


class WholeEpochs(DefaultBatchSampler):
    """Batches without repeated texts, in every epoch as many as its length says.

    The first pass over the rows gives the batches of the host's ``NoDuplicatesBatchSampler``: a
    batch takes the first rows of a shuffle that it can take, and the others wait for the next.
    The host compares every waiting row anew for every batch, which takes seconds where queries
    have many relevant documents; here a batch refuses a group of rows once. Where few texts
    differ, further passes follow, because a resumed training counts epochs by their length. A
    thread of its own makes some batches ahead, so that the training need not wait for them.

    Args:
        keys: the keys of the rows.
        **settings: as for the host's sampler.
    """

    def __init__(self, keys: BatchKeys, **settings: Any) -> None:
        """Remember the keys."""
        super().__init__(keys, **settings)
        self.keys = keys

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches of row numbers."""
        yield from _made_ahead(self._batches)

    def _batches(self) -> Iterator[list[int]]:
        left = len(self)
        barren = 0
        seed = self.seed + self.epoch
        while left and barren < _BARREN_PASSES:
            before = left
            for batch in islice(self._pass(seed), left):
                yield batch
                left -= 1
            barren = barren + 1 if left == before else 0
            seed += _PASS_SEED  # else the same batches came again

    def _pass(self, seed: int) -> Iterator[list[int]]:
        """Yield the batches of one shuffle, until the rows that are left fill none."""
        unread = self._shuffled(seed)
        waiting: list[int] = []
        unfilled = 0
        while unfilled < _UNFILLED_BATCHES:
            batch = _Batch(self.keys)
            read = iter(waiting)
            refused = []
            for row in chain(read, unread):
                if not batch.takes(row):
                    refused.append(row)
                elif len(batch.rows) == self.batch_size:
                    break
            is_full = len(batch.rows) == self.batch_size
            if not batch.rows:
                return
            if is_full or not self.drop_last:
                yield batch.rows
                unfilled = 0
            else:
                unfilled += 1
            waiting = [*refused, *read]

    def _shuffled(self, seed: int) -> Iterator[int]:
        """Yield all rows in the host's order."""
        generator = self.generator or torch.Generator()
        kind = torch.int32 if len(self.keys) <= np.iinfo(np.int32).max else torch.int64
        order = torch.randperm(len(self.keys), generator=generator.manual_seed(seed), dtype=kind)
        for start in range(0, len(order), _ORDER_CHUNK):
            yield from order[start : start + _ORDER_CHUNK].tolist()


class ConsecutiveBatches(DefaultBatchSampler):
    """Batches of rows whose groups are shuffled, while the rows of a group keep their order.

    COCO-DR's released loader gives the triplets of a query one after the other. A group may lie on
    the border of two batches.

    Args:
        dataset: the data set, whose rows are groups of ``consecutive`` rows one after another.
        consecutive: rows of a group.
        **settings: as for the host's sampler.
    """

    def __init__(self, dataset: Any, consecutive: int, **settings: Any) -> None:
        """Remember the size of a group."""
        super().__init__(dataset, **settings)
        self.rows = len(dataset)
        self.consecutive = consecutive

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches of row numbers, in an order that the seed and the epoch decide."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        group_count = self.rows // self.consecutive
        groups = torch.randperm(group_count, generator=generator)
        first_rows = groups[:, None] * self.consecutive
        members = torch.arange(self.consecutive)
        rows_of_groups = first_rows + members  # (groups, consecutive)
        rows = rows_of_groups.flatten().tolist()
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch


# Batches that are made ahead.
_AHEAD = 16


def _made_ahead(make: Callable[[], Iterator[list[int]]]) -> Iterator[list[int]]:
    """Yield what an iterator yields, which runs in a thread some items ahead."""
    items: Queue[list[int] | Exception | None] = Queue(_AHEAD)
    is_left = threading.Event()

    def work() -> None:
        last: Exception | None = None
        try:
            for item in make():
                items.put(item)
                if is_left.is_set():
                    return
        except Exception as error:  # is raised where the items are taken
            last = error
        items.put(last)

    thread = threading.Thread(target=work, name="batches", daemon=True)
    thread.start()
    try:
        while True:
            item = items.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        is_left.set()
        while thread.is_alive():  # it may wait for room
            with suppress(Empty):
                items.get(timeout=0.01)
        thread.join()


# Loader workers of a process on a GPU, unless their number is set or fewer cores are free: a GPU
# that trains on 2,300 pairs a second takes the work of about four, and more where texts are long.
_MOST_WORKERS = 8


def loader_workers(device: torch.device, workers: int | None) -> int:
    """Return the processes that prepare batches for a process that trains on ``device``.

    Args:
        device: the device of the training.
        workers: what the user set; None chooses by the device.
    """
    if workers is not None:
        return workers
    if device.type != "cuda":
        return 0
    cores = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, min(_MOST_WORKERS, cores - 1))


class _CountingReader:
    """A collator's way to read texts that counts those which lose words in loader workers.

    The counts of a worker's own model end with the worker.
    """

    def __init__(self, model: Any, read: Callable[..., Any]) -> None:
        self.model = model
        self.read = read
        self.lost = multiprocessing.Value("q", 0)

    def __call__(self, *args: object, **settings: object) -> Any:
        before = self.model.texts_cut
        features = self.read(*args, **settings)
        if get_worker_info() is not None:
            with self.lost.get_lock():
                self.lost.value += self.model.texts_cut - before
        return features


@contextmanager
def counting_workers(collator: Any, model: Any, workers: int) -> Iterator[None]:
    """Add what loader workers count to the model's ``texts_cut``, when they have ended."""
    if not workers or not hasattr(model, "texts_cut"):
        yield
        return
    was_set = "TOKENIZERS_PARALLELISM" in os.environ
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else tokenizers warn of the fork
    reader = _CountingReader(model, collator.preprocess_fn)
    collator.preprocess_fn = reader
    try:
        yield
    finally:
        model.texts_cut += reader.lost.value
        collator.preprocess_fn = reader.read
        if not was_set:
            del os.environ["TOKENIZERS_PARALLELISM"]
