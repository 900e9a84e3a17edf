"""The clusters of the training queries, kept beside the model that they are for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.clusters import cluster_queries
from beir_cocodr.errors import InputError
from beir_cocodr.files import atomic_writer
from beir_cocodr.training.finetune_options import FinetuneOptions

CLUSTERS_FILE, CENTROIDS_FILE = "clusters.tsv", "cluster_centroids.npy"


def training_clusters(
    ids: list[str],
    embeddings: npt.NDArray[np.float32],
    options: FinetuneOptions,
    normalize: bool,
    folder: Path,
) -> dict[str, int]:
    """Query id to cluster: k-means over the queries, or what an interrupted run left in ``folder``.

    Writes clusters.tsv (query id and cluster) last, and cluster_centroids.npy, (K, d).

    Args:
        ids: (Q,) of the training queries.
        embeddings: (Q, d) by the model that is going to be trained.
        options: number and least size of clusters, seed.
        normalize: whether the model compares by cosine.

    Raises:
        InputError: more clusters than distinct queries, or a saved file that is not of these queries.
    """
    file = folder / CLUSTERS_FILE
    if file.is_file():
        saved = [line.rsplit("\t", 1) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
        if [query for query, _ in saved] != ids:
            raise InputError(f"{file} has other queries than this run; delete it, or choose another --output")
        return {query: int(cluster) for query, cluster in saved}
    clusters = cluster_queries(
        embeddings,
        options.clusters,
        options.seed,
        normalize,
        ids,
        options.min_cluster_size,
    )
    np.save(folder / CENTROIDS_FILE, clusters.centroids)
    with atomic_writer(file) as out:
        out.write("query_id\tcluster\n")
        out.writelines(f"{query}\t{label}\n" for query, label in zip(ids, clusters.labels, strict=True))
    return dict(zip(ids, clusters.labels.tolist(), strict=True))
