"""Batches in which some consecutive rows stay together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from sentence_transformers.base.sampler import DefaultBatchSampler


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
