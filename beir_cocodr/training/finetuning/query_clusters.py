"""Clusters of training queries, and the log of their weights."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import TrainerCallback, TrainerState

from beir_cocodr.arrays import Floats
from beir_cocodr.data.clusters import KMeans, cluster_queries
from beir_cocodr.distributed import do_each, gather, on_main, rank, sum_over_ranks, world_size
from beir_cocodr.errors import InputError, naming
from beir_cocodr.io import atomic_writer, file_sha256, parse_json, write_text
from beir_cocodr.losses.dro import ClusterLoss
from beir_cocodr.training.checkpoints import CHECKPOINTS
from beir_cocodr.training.finetuning.pairs import TrainingPairs
from beir_cocodr.training.hard_negatives.mined_negatives import MinedNegatives
from beir_cocodr.training.options import FinetuneOptions

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

log = logging.getLogger(__name__)

#: Query id and cluster of each training query.
CLUSTERS_FILE = "clusters.tsv"

#: (K, d) the centroids.
CENTROIDS_FILE = "cluster_centroids.npy"

# The hash of the file of clusters, beside the checkpoints of a run that may be interrupted.
_DIGEST_FILE = f"{CLUSTERS_FILE}.sha256"

#: Weights, losses and examples of the clusters along the training.
CLUSTER_LOG = "cluster_weights.jsonl"


def pair_clusters(
    pairs: TrainingPairs, model: COCODR, output: Path, mined: MinedNegatives | None
) -> torch.Tensor:
    """Return (pairs,) the cluster of each training pair; all processes call this.

    Args:
        pairs: the training pairs, with their options.
        model: the encoder, before training.
        output: folder for the clusters, or what an interrupted run left there.
        mined: negatives that the model mined, whose query embeddings are used again.
    """
    ids = list(dict.fromkeys(pairs.queries))
    parts: list[Floats] = []
    if mined is None and not on_main(partial(_has_clusters, output)):
        share = [pairs.collection.queries[query] for query in ids[rank() :: world_size()]]
        parts = do_each(
            lambda: model.encode_queries(share, convert_to_numpy=True, show_progress_bar=False)
        )

    def cluster() -> dict[str, int]:
        embeddings = _joined(parts, len(ids)) if mined is None else _mined_embeddings(mined, ids)
        normalize = model.similarity_fn_name == "cosine"
        with naming(pairs.collection.name):
            return training_clusters(
                ids=ids,
                embeddings=embeddings,
                options=pairs.options,
                normalize=normalize,
                folder=output,
            )

    cluster_of = on_main(cluster)
    return torch.tensor([cluster_of[query] for query in pairs.queries])


def _mined_embeddings(mined: MinedNegatives, ids: Sequence[str]) -> Floats:
    row_of = {query: row for row, query in enumerate(mined.queries)}
    return np.asarray(mined.embeddings[[row_of[query] for query in ids]], np.float32)


def _joined(parts: Sequence[Floats], queries: int) -> Floats:
    """Return the embeddings of all queries from those of all processes, which took turns.

    Without any parts the clusters are there already.
    """
    width = 0
    if parts:
        width = parts[0].shape[1]
    embeddings = np.empty((queries, width), np.float32)
    for number, part in enumerate(parts):
        if len(part):  # there may be fewer queries than processes
            embeddings[number :: len(parts)] = part
    return embeddings


def training_clusters(
    ids: list[str], embeddings: Floats, options: FinetuneOptions, normalize: bool, folder: Path
) -> dict[str, int]:
    """Cluster queries by k-means, or read the clusters that an interrupted run left in ``folder``.

    Writes cluster_centroids.npy, (K, d), and last clusters.tsv with query id and cluster.

    Args:
        ids: (Q,) ids of the queries.
        embeddings: (Q, d) their embeddings by the model that is going to be trained.
        options: a weighting's own options, and the seed.
        normalize: normalise the embeddings, for a model that compares by cosine.
        folder: folder for the two files.

    Returns:
        Query id to cluster.

    Raises:
        InputError: There are more clusters than different queries, or a saved file is of other
            queries or cannot be read.
    """
    file = folder / CLUSTERS_FILE
    if _has_clusters(folder):
        return _saved_clusters(file, ids)
    own_options = options.clustering
    clusters = cluster_queries(
        embeddings,
        own_options.clusters,
        options.seed,
        normalize=normalize,
        ids=ids,
        min_size=own_options.min_cluster_size,
        kmeans=KMeans(
            max_points_per_centroid=own_options.kmeans_points,
            iterations=own_options.kmeans_iterations,
            restarts=own_options.kmeans_restarts,
        ),
    )
    np.save(folder / CENTROIDS_FILE, clusters.centroids)
    with atomic_writer(file) as out:
        out.write("query_id\tcluster\n")
        for query, label in zip(ids, clusters.labels, strict=True):
            out.write(f"{query}\t{label}\n")
    write_text(folder / CHECKPOINTS / _DIGEST_FILE, file_sha256(file))
    return dict(zip(ids, clusters.labels.tolist(), strict=True))


def _has_clusters(folder: Path) -> bool:
    """Return whether a run that was interrupted left its clusters, as it wrote them."""
    file = folder / CLUSTERS_FILE
    digest = folder / CHECKPOINTS / _DIGEST_FILE
    if not file.is_file() or not digest.is_file():
        return False
    is_whole = digest.read_bytes() == file_sha256(file).encode()
    if not is_whole:
        log.warning("%s was changed since it was written; it is made again", file)
    return is_whole


def _saved_clusters(file: Path, ids: list[str]) -> dict[str, int]:
    rows = [line.rsplit("\t", 1) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    if [query for query, _ in rows] != ids:
        raise InputError(
            f"{file} has different queries from those of this run; delete it, or choose another "
            "--output"
        )
    return {query: int(cluster) for query, cluster in rows}


@dataclass(eq=False)
class ClusterLog(TrainerCallback):
    """Writes a line of JSON every few steps.

    A line holds ``step``, the ``weights`` of the clusters then, and since the line before the mean
    of their ``losses`` (null for a cluster that did not occur) and the number of their
    ``examples``. Where each process has weights of its own, ``weights`` are those of the first one,
    and ``weights_by_process`` has all. A resumed run drops the lines after its checkpoint.

    Args:
        loss: the loss.
        file: the file of the lines.
        every: steps between two lines.
    """

    loss: ClusterLoss
    file: Path
    every: int

    def on_train_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Drop the lines after the checkpoint."""
        if rank() > 0:
            return
        lines = []
        if self.file.is_file():
            lines = self.file.read_text(encoding="utf-8", errors="replace").splitlines()
        steps = [_step_of(line) for line in lines]
        if None in steps[:-1]:  # a killed run may have been writing the last line
            log.warning("%s: damaged lines were left out", self.file)
        numbered = zip(lines, steps, strict=True)
        kept = [line for line, step in numbered if step is not None and step <= state.global_step]
        write_text(self.file, "".join(f"{line}\n" for line in kept))

    def on_step_end(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Write a line, if it is time."""
        loss = self.loss
        loss.finish_step()
        last = state.global_step >= state.max_steps
        if state.global_step % self.every and not last:
            return
        weights_by_process = {}
        if loss.scope == "rank" and world_size() > 1:
            weights_by_process = {"weights_by_process": gather(loss.weights.tolist())}
            for tally in (loss.loss_sums, loss.steps_seen, loss.examples_seen):
                sum_over_ranks(tally)
        sums = zip(loss.loss_sums.tolist(), loss.steps_seen.tolist(), strict=True)
        line = {
            "step": state.global_step,
            "weights": loss.weights.tolist(),
            "losses": [total / steps if steps else None for total, steps in sums],
            "examples": loss.examples_seen.tolist(),
            **weights_by_process,
        }
        for tally in (loss.loss_sums, loss.steps_seen, loss.examples_seen):
            tally.zero_()
        if rank() == 0:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _step_of(line: str) -> int | None:
    """Return the step of a line, None for a damaged one and one that a killed run was writing."""
    try:
        step = parse_json(line)["step"]
    except (ValueError, TypeError, KeyError):
        return None
    return step if isinstance(step, int) else None
