"""K-means clusters of query embeddings."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import numpy as np

from beir_cocodr.arrays import Floats, Ints, check_finite, unit_rows
from beir_cocodr.errors import InputError, check_count, explained, listed

log = logging.getLogger(__name__)

Method = Literal["faiss", "scikit-learn"]


@dataclass(frozen=True)
class Clusters:
    """Queries in K clusters.

    A folded cluster keeps its number and its centroid, and has size 0.

    Attributes:
        labels: (Q,) int64 in 0..K-1, after folding.
        centroids: (K, d) float32 as K-means left them, with those of folded clusters.
        sizes: (K,) int64 numbers of queries, after folding; they sum to Q.
        folded_clusters: number of clusters that had fewer than ``min_size`` queries, but some.
    """

    labels: Ints
    centroids: Floats
    sizes: Ints
    folded_clusters: int


@dataclass(frozen=True)
class KMeans:
    """Options of k-means.

    Attributes:
        max_points_per_centroid: K-means runs on at most this many queries times K, drawn at random;
            every query is assigned in any case.
        iterations: iterations of Lloyd's algorithm (faiss's default).
        restarts: number of runs from different seeds; the one with the smallest sum of squared
            distances is taken.
        method: the library. Default: faiss where it is installed.
    """

    max_points_per_centroid: int = 16_384
    iterations: int = 25
    restarts: int = 1
    method: Method | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_count("max_points_per_centroid", self.max_points_per_centroid)
        check_count("iterations", self.iterations)
        check_count("restarts", self.restarts)

    def centroids(
        self,
        points: Floats,
        k: int,
        seed: int,
    ) -> Floats:
        """Return the (K, d) centroids of (Q, d) points."""
        sample = self._sample(points, k, seed)
        method = self.method or ("faiss" if find_spec("faiss") else "scikit-learn")
        run = _faiss if method == "faiss" else _scikit_learn
        best = None
        smallest = np.inf
        for run_seed in range(seed, seed + self.restarts):
            first = _first_centroids(sample, k, run_seed)
            centroids, distances = run(
                sample,
                first,
                run_seed,
                self.iterations,
            )
            if best is None or distances < smallest:
                best = centroids
                smallest = distances
        assert best is not None  # there is at least one run
        return best

    def _sample(
        self,
        points: Floats,
        k: int,
        seed: int,
    ) -> Floats:
        most = k * self.max_points_per_centroid
        if len(points) <= most:
            return points
        rows = np.random.default_rng(seed).choice(
            len(points),
            most,
            replace=False,
        )
        return points[np.sort(rows)]


_DEFAULTS = KMeans()


def cluster_queries(
    embeddings: Floats,
    k: int,
    seed: int = 42,
    *,
    normalize: bool = False,
    ids: Sequence[str] | None = None,
    min_size: int = 2,
    kmeans: KMeans = _DEFAULTS,
) -> Clusters:
    """Cluster queries by Euclidean K-means from k-means++ seeds.

    The same arguments give the same clusters on one machine. Small clusters are folded: each of
    their queries goes to the nearest centroid of a cluster that is large enough, and a warning
    names them.

    In published code faiss takes random queries as first centroids, which leave groups merged that
    k-means++ separates, and runs 5 times 500 iterations on a random 256 queries a centroid.

    Args:
        embeddings: (Q, d) float32.
        k: number of clusters, K.
        seed: seed of the sample, the first centroids and the library.
        normalize: scale every embedding to length 1 first, for models that compare by cosine; a
            zero vector stays zero. Centroids are the means of what was clustered, and not scaled.
        ids: (Q,) query ids, to name queries in messages; row numbers without them.
        min_size: the fewest queries of a cluster that is not folded; 1 folds none.
        kmeans: how K-means runs.

    Raises:
        InputError: embeddings are NaN or infinite; a number is below 1; there are more clusters
            than distinct queries; no cluster has ``min_size`` queries; or faiss is not installed.

    Example:
        >>> import numpy as np
        >>> from beir_cocodr.data.clusters import cluster_queries
        >>> embeddings = np.array([[0, 1], [0, 2], [5, 0], [6, 0]], np.float32)
        >>> labels = cluster_queries(embeddings, 2).labels.tolist()
        >>> labels in ([0, 0, 1, 1], [1, 1, 0, 0])
        True

    References:
        COCO-DR, section 4.2 (K = 50, on query embeddings of the current model, anew in each
        episode).
    """
    if embeddings.ndim != 2 or (ids is not None and len(ids) != len(embeddings)):
        raise ValueError(
            f"embeddings of shape {embeddings.shape} do not fit {ids and len(ids)} ids"
        )
    check_count("clusters", k)
    check_count("min_size", min_size)
    # In float64 a sum is finite exactly when all its float32 terms are.
    sums = embeddings.sum(axis=1, keepdims=True, dtype=np.float64)
    names: Sequence[object] = range(len(sums)) if ids is None else ids
    check_finite(sums, names, "queries")
    points = unit_rows(embeddings) if normalize else np.ascontiguousarray(embeddings, np.float32)
    _check_enough_points(k, points)
    centroids = kmeans.centroids(
        points,
        k,
        seed % 2**31,
    )  # both libraries take such seeds
    labels = _nearest(points, centroids)
    empty = k - len(np.unique(labels))
    if empty:
        log.warning("%d of %d clusters are empty; lower --clusters", empty, k)
    folded = _fold(points, centroids, labels, min_size, ids)
    return Clusters(
        labels,
        centroids,
        np.bincount(labels, minlength=k),
        folded,
    )


def _fold(
    points: Floats,
    centroids: Floats,
    labels: Ints,
    min_size: int,
    ids: Sequence[str] | None,
) -> int:
    """Move the queries of small clusters, in ``labels`` itself; return the number of these."""
    sizes = np.bincount(labels, minlength=len(centroids))
    small = np.flatnonzero((sizes > 0) & (sizes < min_size))
    if not len(small):
        return 0
    large = np.flatnonzero(sizes >= min_size)
    if not len(large):
        raise InputError(
            f"{len(centroids)} clusters for {len(points)} queries: none has {min_size} queries or "
            "more; lower --clusters"
        )
    names = []
    for cluster in small.tolist():
        rows = np.flatnonzero(labels == cluster)
        names.append(f"cluster {cluster} ({_describe_queries(rows, ids)})")
    moved = np.flatnonzero(np.isin(labels, small))
    labels[moved] = large[_nearest(points[moved], centroids[large])]
    log.warning(
        "%d of %d clusters have fewer than %d queries and are folded into the nearest others: %s; "
        "lower --clusters, or set min_size to 1 to keep them",
        len(small),
        len(centroids),
        min_size,
        ", ".join(names),
    )
    return len(small)


def _first_centroids(
    sample: Floats,
    k: int,
    seed: int,
) -> Floats:
    """Choose (K, d) first centroids by k-means++, the same for both libraries.

    faiss has no k-means++ before 1.13.
    """
    from sklearn.cluster import kmeans_plusplus

    chosen, _ = kmeans_plusplus(sample, k, random_state=seed)
    return np.ascontiguousarray(chosen, np.float32)


def _faiss(
    sample: Floats,
    first: Floats,
    seed: int,
    iterations: int,
) -> tuple[Floats, float]:
    """Return centroids, and the squared distances to the nearest before the last move, summed."""
    way_out = "pip install 'beir-cocodr[faiss-cpu]'"
    with explained("clustering with faiss needs it", way_out, ImportError):
        import faiss

    kmeans = faiss.Kmeans(
        sample.shape[1],
        len(first),
        niter=iterations,
        seed=seed,
        verbose=False,
        min_points_per_centroid=1,  # below it, faiss writes a warning past Python's stderr
        max_points_per_centroid=len(sample),  # it is a sample already,
    )
    kmeans.train(sample, init_centroids=first)
    distances = np.asarray(kmeans.obj)
    return np.array(kmeans.centroids, np.float32), float(distances[-1])


def _scikit_learn(
    sample: Floats,
    first: Floats,
    seed: int,
    iterations: int,
) -> tuple[Floats, float]:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    kmeans = KMeans(
        len(first),
        init=first,
        n_init=1,
        max_iter=iterations,
        random_state=seed,
    )
    # Threads would add up their parts of a mean in the order in which they finish.
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans.fit(sample)
    return np.array(kmeans.cluster_centers_, np.float32), float(kmeans.inertia_)


def _nearest(points: Floats, centroids: Floats) -> Ints:
    """Return the (Q,) nearest of (K, d) centroids.

    scikit-learn computes them a chunk at a time in float64: vectors far from the origin cancel in
    float32.
    """
    from sklearn.metrics import pairwise_distances_argmin

    nearest: Ints = pairwise_distances_argmin(points, centroids)
    return nearest


def _check_enough_points(k: int, points: Floats) -> None:
    distinct: set[bytes] = set()
    for point in points:
        distinct.add((point + 0.0).tobytes())  # -0.0 becomes 0.0, to which it is equal
        if len(distinct) >= k:
            return
    queries = f"{len(points)} queries"
    if len(distinct) < len(points):
        queries += f", {len(distinct)} of them distinct"
    raise InputError(f"{k} clusters for {queries}; lower --clusters")


def _describe_queries(rows: Ints, ids: Sequence[str] | None) -> str:
    names = []
    for row in rows.tolist():
        names.append(f"row {row}" if ids is None else repr(ids[row]))
    noun = "queries"
    if len(rows) == 1:
        noun = "query"
    return f"{noun} {listed(names)}"
