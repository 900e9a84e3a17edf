"""Search over a store: exact, shard by shard, in one process or several; or by a FAISS index in the
store's folder.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from beir_cocodr.arrays import Array, Floats, Ints
from beir_cocodr.retrieval.faiss.index import FaissIndex, best_candidates
from beir_cocodr.retrieval.faiss.transform import QUANTISED, FaissOptions, Kind
from beir_cocodr.retrieval.pool import ShareOut, share_out, torch_threads
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.selection import merge_keys, ranks_of, scores_of, to_keys
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.topk import NonFiniteScores, search_keys

log = logging.getLogger(__name__)

#: Consecutive shards, the first and the one after the last.
Group = tuple[int, int]

# Groups for each process: with more of them all end at the same time, with fewer there is less to
# merge.
_GROUPS = 4


@dataclass(frozen=True)
class SearchJob:
    """What a process, here or elsewhere, needs in order to search shards of a store: (Q, w) float32
    queries as :meth:`EmbeddingStore.queries` makes them; the rest is as for :func:`search_store`.
    """

    folder: Path
    queries: Floats
    top_k: int
    threads: int
    excluded_rows: Ints | None = None
    verify: bool = True

    def start(self, device: str) -> Callable[[Group], Array]:
        """Put the queries on a device; gives a function from a group of shards to (Q, k) keys of
        its best documents.
        """
        store = EmbeddingStore.open(self.folder, self.verify)
        queries = torch.from_numpy(self.queries).to(device)

        def work(group: Group) -> Array:
            with torch_threads(self.threads):
                first, chunks = store.shards[group[0]].start, store.ranked_chunks(*group)
                keys = search_keys(
                    queries, chunks, self.top_k, first_row=first, excluded_rows=self.excluded_rows
                )
            return keys.cpu().numpy()

        return work


def search_store(
    store: EmbeddingStore,
    ids: Sequence[str],
    vectors: torch.Tensor,
    top_k: int,
    devices: Sequence[str] = ("cpu",),
    threads: int | None = None,
    excluded_rows: Ints | None = None,
    share: ShareOut = share_out,
) -> Ranking:
    """The ``top_k`` best documents of each query, ties by descending document id.

    The tiles of every product lie within one shard, and results are merged by keys that have one
    order only: with equal shards and threads, scores and ranks are the same to the last bit for any
    number of processes. With other shards, threads or devices they agree to 1e-5, and in order
    outside ties.

    Args:
        store: complete.
        ids: of the Q queries.
        vectors: (Q, w), as the model gave them.
        top_k: documents wanted; k = min(top_k, N).
        devices: one for each process; with one, it is this process.
        threads: CPU threads of each process; PyTorch's own number by default.
        excluded_rows: (Q,), a row that each query must not retrieve, -1 for none.
        share: how shards are shared out; to processes here by default.

    Raises:
        NonFiniteScores: a query is not finite, or a product is not; names ids.
        InputError: no queries, top_k below 1, or a shard that cannot be read.
    """
    queries, offsets = store.queries(vectors)
    with torch_threads(threads) as count:
        job = SearchJob(store.folder, queries.numpy(), top_k, count, excluded_rows, store.verify)
        try:
            # Consecutive shards in parts of like size; all in one for one process.
            parts = 1 if len(devices) == 1 else min(len(store.shards), _GROUPS * len(devices))
            edges = np.linspace(0, len(store.shards), parts + 1).round().astype(int).tolist()
            keys = merge_keys(_parts(job, list(pairwise(edges)), devices, share), top_k)
        except NonFiniteScores as error:
            raise error.named(store.ids, ids) from None
    scores, ranks = scores_of(keys), ranks_of(keys)
    if offsets is not None:
        # Rounding may bring about ties that were none before.
        keys = (
            to_keys((scores.double() + offsets[:, None]).float(), ranks)
            .sort(dim=1, descending=True)
            .values
        )
        scores, ranks = scores_of(keys), ranks_of(keys)
    rows = store.table.rows_at(ranks.numpy())
    rows[scores.numpy() == -np.inf] = -1
    return Ranking(list(ids), scores.numpy(), rows)


def _parts(
    job: SearchJob, groups: Sequence[Group], devices: Sequence[str], share: ShareOut
) -> list[torch.Tensor]:
    """Keys of the groups, merged as they come so that no more than two are held."""
    if share is share_out and len(devices) == 1:
        work = job.start(devices[0])
        return [torch.from_numpy(work(group)) for group in groups]
    parts: list[torch.Tensor] = []
    for found in share(groups, job.start, devices):
        parts = [merge_keys([*parts, torch.from_numpy(found)], job.top_k)]
    return parts


def search_index(
    store: EmbeddingStore, kind: Kind, ids: list[str], vectors: torch.Tensor, top_k: int
) -> Ranking:
    """Search a store by a FAISS index, which is built the first time and then loaded; ties by
    descending document id.

    The index is in the folder ``index-KIND`` of the store and bears its key. When it is built, its
    recall against exact search is measured with these queries, and logged then and whenever it is
    loaded. Kinds that quantise find candidates, and the store's own vectors score them: scores are
    exact for all.

    Arguments and errors are those of :func:`search_store`; an index may find fewer than ``top_k``
    documents, and an InputError says where FAISS is not installed.
    """
    queries, offsets = store.queries(vectors)
    ties, stored = store.table.tie_ranks(), store if kind in QUANTISED else None
    try:
        scores, rows = _index(store, kind, queries.numpy()).search(
            queries.numpy(), top_k, ties, stored
        )
    except NonFiniteScores as error:
        raise error.named(store.ids, ids) from None
    if offsets is not None:  # rounding may bring about ties that were none before
        scores, rows = best_candidates(scores + offsets.numpy()[:, None], rows, top_k, ties)
    return Ranking(ids, scores, rows)


def _index(store: EmbeddingStore, kind: Kind, queries: Floats) -> FaissIndex:
    folder, key = store.folder / f"index-{kind}", {"store": store.record.key}
    if folder.exists():
        index = FaissIndex.load(folder, key, store.verify)
        log.info(
            "%s is loaded; when it was built, it found of exact search: %s",
            folder,
            index.record["recall"],
        )
        return index
    # Also of vectors that are folded already: it keeps MRL's prior out of the codes, and changes
    # little else.
    transform = FaissOptions(kind, "folding" if store.record.flattened else "none")
    index = FaissIndex.build(store, transform, queries=queries, key=key)
    index.save(folder)
    return index
