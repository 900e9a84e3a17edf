"""Exact search over a store, shard by shard, in one process or in several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from beir_cocodr.retrieval.embedding_store import EmbeddingStore
from beir_cocodr.retrieval.process_pool import ShareOut, share_out
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.sort_keys import merge_keys, ranks_of, scores_of, to_keys
from beir_cocodr.retrieval.topk import NonFiniteScores, search_keys
from beir_cocodr.retrieval.torch_threads import torch_threads

#: Consecutive shards, the first and the one after the last.
Group = tuple[int, int]
# Groups for each process: with more of them all end at the same time, with fewer there is less to merge.
_GROUPS = 4


@dataclass(frozen=True)
class SearchJob:
    """What a process, here or elsewhere, needs in order to search shards of a store.

    Args:
        folder: of the store.
        queries: (Q, w) float32, as :meth:`EmbeddingStore.queries` makes them.
        top_k: documents wanted for each query.
        threads: CPU threads of each process.
        excluded_rows: (Q,), a row that each query must not retrieve, -1 for none; None for none at all.
    """

    folder: Path
    queries: npt.NDArray[np.float32]
    top_k: int
    threads: int
    excluded_rows: npt.NDArray[np.int64] | None = None

    def start(self, device: str) -> Callable[[Group], npt.NDArray[np.int64]]:
        """Put the queries on a device.

        Returns:
            a function from a group of shards to the (Q, k) keys of its best documents, for ``merge_keys``.
        """
        store = EmbeddingStore.open(self.folder)
        queries = torch.from_numpy(self.queries).to(device)

        def work(group: Group) -> npt.NDArray[np.int64]:
            with torch_threads(self.threads):
                keys = search_keys(
                    queries,
                    store.ranked_chunks(*group),
                    self.top_k,
                    first_row=store.shards[group[0]].start,
                    excluded_rows=self.excluded_rows,
                )
            found: npt.NDArray[np.int64] = keys.cpu().numpy()
            return found

        return work


def search_store(
    store: EmbeddingStore,
    ids: Sequence[str],
    vectors: torch.Tensor,
    top_k: int,
    devices: Sequence[str] = ("cpu",),
    threads: int | None = None,
    excluded_rows: npt.NDArray[np.int64] | None = None,
    share: ShareOut | None = None,
) -> Ranking:
    """The ``top_k`` best documents of each query.

    The tiles of every product lie within one shard, and results are merged by keys that have one order only:
    with equal shards and threads, scores and ranks are the same to the last bit for any number of processes.
    With other shards, threads or devices they agree to 1e-5, and in order outside ties.

    Args:
        store: complete.
        ids: of the Q queries.
        vectors: (Q, w), as the model gave them.
        top_k: documents wanted; k = min(top_k, N).
        devices: one for each process; with one, it is this process.
        threads: CPU threads of each process; PyTorch's own number by default.
        excluded_rows: (Q,), a row that each query must not retrieve, -1 for none.
        share: how shards are shared out; to processes here by default.

    Returns:
        the ranking; ties by descending document id.

    Raises:
        NonFiniteScores: a query is not finite, or a product is not; names ids.
        InputError: no queries, top_k below 1, or a shard that cannot be read.
    """
    queries, offsets = store.queries(vectors)
    with torch_threads(threads) as count:
        job = SearchJob(store.folder, queries.numpy(), top_k, count, excluded_rows)
        try:
            groups = _groups(len(store.shards), len(devices))
            keys = merge_keys(_parts(job, groups, devices, share), top_k)
        except NonFiniteScores as error:
            named = error.named(
                lambda rows: store.ids(np.asarray(rows, dtype=np.int64)), lambda rows: [ids[r] for r in rows]
            )
            raise named from None
    scores, ranks = scores_of(keys), ranks_of(keys)
    if offsets is not None:
        # Rounding may bring about ties that were none before.
        keys = (
            to_keys((scores.double() + offsets[:, None]).float(), ranks).sort(dim=1, descending=True).values
        )
        scores, ranks = scores_of(keys), ranks_of(keys)
    rows = store.table.rows_at(ranks.numpy())
    rows[scores.numpy() == -np.inf] = -1
    return Ranking(list(ids), scores.numpy(), rows)


def _parts(
    job: SearchJob, groups: Sequence[Group], devices: Sequence[str], share: ShareOut | None
) -> list[torch.Tensor]:
    """Keys of the groups, merged as they come so that no more than two are held."""
    if share is None and len(devices) == 1:
        work = job.start(devices[0])
        return [torch.from_numpy(work(group)) for group in groups]
    parts: list[torch.Tensor] = []
    for found in (share or share_out)(groups, job.start, devices):
        parts = [merge_keys([*parts, torch.from_numpy(found)], job.top_k)]
    return parts


def _groups(shards: int, processes: int) -> list[Group]:
    """Consecutive shards in parts of like size; all in one for one process."""
    count = 1 if processes == 1 else min(shards, _GROUPS * processes)
    edges = np.linspace(0, shards, count + 1).round().astype(int).tolist()
    return list(pairwise(edges))
