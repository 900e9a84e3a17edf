"""Search over a store: exact, shard by shard, in processes, or by a FAISS index in its folder."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from beir_cocodr.arrays import Array, Floats, Ints
from beir_cocodr.retrieval.faiss.index import FaissIndex, best_candidates
from beir_cocodr.retrieval.faiss.transform import QUANTISED, FaissOptions, Kind, Transform
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.pool import ShareOut, Workers, share_out, torch_threads
from beir_cocodr.retrieval.vectors.selection import merge_keys, ranks_of, scores_of, to_keys
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores, search_keys

log = logging.getLogger(__name__)

#: Consecutive shards: the first, and one after the last.
Group = tuple[int, int]

# Groups for each process. With more of them all end at the same time, with fewer there is less to
# merge.
_GROUPS = 4


@dataclass(frozen=True)
class SearchJob:
    """The data that a process, here or elsewhere, needs to search shards of a store.

    Attributes:
        folder: Folder of the store.
        queries: (Q, w) float32, as :meth:`EmbeddingStore.queries` makes them.
        top_k: Documents wanted.
        threads: CPU threads of the process.
        excluded_rows: See :func:`search_store`.
        verify: Compare files with their checksums before they are read.
    """

    folder: Path
    queries: Floats
    top_k: int
    threads: int
    excluded_rows: Ints | None = None
    verify: bool = True

    def start(self, device: str) -> Callable[[Group], Array]:
        """Put the queries on a device.

        Returns:
            A function from a group of shards to the (Q, k) keys of its best documents.
        """
        store = EmbeddingStore.open(self.folder, self.verify)
        queries = torch.from_numpy(self.queries).to(device)

        def work(group: Group) -> Array:
            first, last = group
            with torch_threads(self.threads):
                keys = search_keys(
                    queries,
                    store.ranked_chunks(first, last),
                    self.top_k,
                    first_row=store.shards[first].start,
                    excluded_rows=self.excluded_rows,
                )
            return keys.cpu().numpy()

        return work


def search_store(
    store: EmbeddingStore,
    ids: Sequence[str],
    vectors: torch.Tensor,
    top_k: int,
    devices: Sequence[str] = ("cpu",),
    workers: Workers | None = None,
    excluded_rows: Ints | None = None,
) -> Ranking:
    """Return the best documents of each query, ties by descending document id.

    The tiles of every product lie within one shard, and results are merged by keys that have one
    order only: with equal shards and threads, scores and ranks are the same to the last bit for any
    number of processes. With other shards, threads or devices they agree to 1e-5, and in order
    outside ties.

    Args:
        store: A complete store.
        ids: Ids of the Q queries.
        vectors: (Q, w) queries, as the model gave them.
        top_k: Documents wanted; k = min(top_k, N).
        devices: A device for each process; with one, it is this process.
        workers: Threads of each process, and how shards are shared out; by default PyTorch's own
            number, and to processes on this machine.
        excluded_rows: (Q,) a row that each query must not retrieve, -1 for none.

    Raises:
        NonFiniteScores: A query is not finite, or a product is not; it names ids.
        InputError: There are no queries, ``top_k`` is below 1, or a shard cannot be read.
    """
    workers = workers or Workers()
    queries, offsets = store.queries(vectors)
    with torch_threads(workers.threads) as count:
        job = SearchJob(
            folder=store.folder,
            queries=queries.numpy(),
            top_k=top_k,
            threads=count,
            excluded_rows=excluded_rows,
            verify=store.verify,
        )
        try:
            groups = _groups(len(store.shards), len(devices))
            keys = merge_keys(
                _search_groups(job, groups, devices, workers.share),
                top_k,
            )
        except NonFiniteScores as error:
            raise error.named(store.ids, ids) from None
    if offsets is not None:
        keys = _with_offsets(keys, offsets)
    scores = scores_of(keys).numpy()
    rows = store.table.rows_at(ranks_of(keys).numpy())
    rows[scores == -np.inf] = -1
    return Ranking(list(ids), scores, rows)


def _groups(shards: int, processes: int) -> list[Group]:
    """Return consecutive shards in parts of like size; all in one part for one process."""
    parts = 1 if processes == 1 else min(shards, _GROUPS * processes)
    edges = np.linspace(0, shards, parts + 1).round().astype(int)
    return list(pairwise(edges.tolist()))


def _with_offsets(keys: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Add (Q,) offsets to the scores of (Q, k) keys, and sort again: rounding may create ties."""
    shifted = (scores_of(keys).double() + offsets[:, None]).float()
    shifted_keys = to_keys(shifted, ranks_of(keys))
    return shifted_keys.sort(dim=1, descending=True).values


def _search_groups(
    job: SearchJob,
    groups: Sequence[Group],
    devices: Sequence[str],
    share: ShareOut,
) -> list[torch.Tensor]:
    """Return the keys of the groups, merged as they come so that no more than two are held."""
    if share is share_out and len(devices) == 1:
        work = job.start(devices[0])
        return [torch.from_numpy(work(group)) for group in groups]
    merged: list[torch.Tensor] = []
    for keys in share(groups, job.start, devices):
        merged = [merge_keys([*merged, torch.from_numpy(keys)], job.top_k)]
    return merged


def search_index(
    store: EmbeddingStore,
    kind: Kind,
    ids: list[str],
    vectors: torch.Tensor,
    top_k: int,
    device: str | None = None,
) -> Ranking:
    """Search a store by a FAISS index, which is built the first time and then loaded.

    The index is in the folder ``index-KIND`` of the store and has its key. When it is built, its
    recall against exact search is measured with these queries, and logged then and whenever it is
    loaded. Kinds that quantise only select candidates, and the store's own vectors score them:
    scores are exact for all kinds. An index may return fewer than ``top_k`` documents.

    Args:
        store: A complete store.
        kind: Kind of the index.
        ids: Ids of the Q queries.
        vectors: (Q, w) queries, as the model gave them.
        top_k: Documents wanted.
        device: Where FAISS searches, see :class:`~beir_cocodr.retrieval.faiss.index.FaissIndex`.

    Raises:
        NonFiniteScores: As for :func:`search_store`.
        InputError: As for :func:`search_store`, FAISS is not installed, or there is no such
            device.
    """
    queries, offsets = store.queries(vectors)
    ties = store.table.tie_ranks()
    rescored = store if kind in QUANTISED else None
    try:
        index = _load_or_build(store, kind, queries.numpy(), device)
        scores, rows = index.search(queries.numpy(), top_k, ties, rescored)
    except NonFiniteScores as error:
        raise error.named(store.ids, ids) from None
    if offsets is not None:  # rounding may create ties
        scores, rows = best_candidates(
            scores + offsets.numpy()[:, None],
            rows,
            top_k,
            ties,
        )
    return Ranking(ids, scores, rows)


def _load_or_build(
    store: EmbeddingStore,
    kind: Kind,
    queries: Floats,
    device: str | None,
) -> FaissIndex:
    folder = store.folder / f"index-{kind}"
    key = {"store": store.record.key}
    if folder.exists():
        index = FaissIndex.load(folder, key, store.verify, device)
        log.info(
            "%s is loaded; its recall against exact search, when it was built: %s",
            folder,
            index.record["recall"],
        )
        return index
    # Also for vectors that are folded already: it keeps MRL's prior out of the codes, and changes
    # little else.
    transform: Transform = "folding" if store.record.flattened else "none"
    index = FaissIndex.build(
        store,
        FaissOptions(kind, transform),
        queries=queries,
        key=key,
        device=device,
    )
    index.save(folder)
    return index
