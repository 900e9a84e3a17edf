"""Clusters of queries: blobs that have one right answer, and what holds for any input."""

from __future__ import annotations

import logging
import sys
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import adjusted_rand_score

from beir_cocodr.data import clusters
from beir_cocodr.data.clusters import KMeans
from beir_cocodr.errors import InputError

METHODS = ["faiss", "scikit-learn"]
both = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def needs_faiss(request):
    if "faiss" in request.node.name:
        pytest.importorskip("faiss")


def cluster_queries(points, k, seed=42, **options):
    """Settings of K-means are named beside the others."""
    names = [field.name for field in fields(KMeans) if field.name in options]
    kmeans = KMeans(**{name: options.pop(name) for name in names})
    return clusters.cluster_queries(points, k, seed, kmeans=kmeans, **options)


def blobs(sizes, seed=0, dimensions=6, spread=0.1):
    """Embeddings in shuffled order and the group of each; group g lies around a far corner."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = 10 * rng.normal(size=(len(sizes), dimensions))
    points = centres[truth] + spread * rng.normal(size=(len(truth), dimensions))
    return points.astype(np.float32), truth


@both
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cap", [2, 256])
def test_separated_groups_are_found(method, seed, cap):
    points, truth = blobs([30, 12, 50, 8, 25, 40], seed)
    found = cluster_queries(
        points, 6, seed, method=method, max_points_per_centroid=50 if cap == 2 else cap
    )
    assert adjusted_rand_score(found.labels, truth) == 1
    assert found.labels.dtype == np.int64
    assert found.centroids.dtype == np.float32
    for label in range(6):
        mine = points[found.labels == label]
        assert found.sizes[label] == len(mine)
        np.testing.assert_allclose(found.centroids[label], mine.mean(axis=0), atol=1e-4)


@both
def test_more_restarts_and_iterations_are_never_worse(method):
    points, _ = blobs([9] * 12, seed=3, spread=6)

    def cost(**given):
        found = cluster_queries(points, 12, 3, min_size=1, method=method, **given)
        return float(((points - found.centroids[found.labels]) ** 2).sum())

    few = cost(iterations=1)
    assert cost(iterations=100) < few
    best = cost(iterations=100, restarts=8)
    alone = min(
        float(((points - c.centroids[c.labels]) ** 2).sum())
        for c in (
            cluster_queries(points, 12, s, min_size=1, method=method, iterations=100)
            for s in range(3, 11)
        )
    )
    assert best == pytest.approx(alone, rel=1e-5)


def test_the_two_libraries_agree_on_what_is_not_separated():
    pytest.importorskip("faiss")
    points, _ = blobs([40, 40, 40], spread=4)
    labels = [cluster_queries(points, 3, method=method).labels for method in METHODS]
    assert adjusted_rand_score(*labels) == 1


@both
def test_k_means_runs_until_nothing_moves(method):
    """Where groups are not separated, the first centroids are no means, and one iteration leaves
    them 0.15 away.
    """
    points = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    found = cluster_queries(points, 6, method=method, min_size=1)
    means = [points[found.labels == label].mean(axis=0) for label in range(6)]
    np.testing.assert_allclose(found.centroids, means, atol=1e-5)


@both
def test_a_seed_decides(method):
    points = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    first, again, other = (cluster_queries(points, 12, seed, method=method) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.labels, again.labels)
    np.testing.assert_array_equal(first.centroids, again.centroids)
    assert adjusted_rand_score(first.labels, other.labels) < 1


@both
def test_a_sample_trains_and_all_are_assigned(method, monkeypatch):
    points, truth = blobs([400, 300, 500])
    name, trained = {"faiss": "_faiss", "scikit-learn": "_scikit_learn"}[method], []
    run = getattr(clusters, name)
    monkeypatch.setattr(
        clusters, name, lambda sample, *rest: trained.append(len(sample)) or run(sample, *rest)
    )
    found = cluster_queries(points, 3, method=method, max_points_per_centroid=20)
    assert trained == [60]
    assert adjusted_rand_score(found.labels, truth) == 1


@both
def test_normalised_directions(method):
    rng = np.random.default_rng(0)
    points, truth = blobs([20, 20, 20], dimensions=16)
    stretched = points * rng.uniform(0.01, 100, size=(60, 1)).astype(np.float32)
    assert (
        adjusted_rand_score(
            cluster_queries(stretched, 3, normalize=True, method=method).labels, truth
        )
        == 1
    )
    with_zero = np.concatenate([stretched, np.zeros((2, 16), np.float32)])
    labels = cluster_queries(with_zero, 4, normalize=True, method=method).labels
    assert labels[-1] == labels[-2]


@both
def test_small_clusters_are_folded_and_named(method, caplog):
    points, truth = blobs([20, 1, 15, 3])
    ids = [f"q{group}-{i}" for i, group in enumerate(truth)]
    whole = cluster_queries(points, 4, ids=ids, min_size=1, method=method)
    assert not caplog.records
    assert whole.folded_clusters == 0
    found = cluster_queries(points, 4, ids=ids, min_size=4, method=method)
    small = np.flatnonzero(whole.sizes < 4)
    assert sorted(whole.sizes) == [1, 3, 15, 20]
    assert found.folded_clusters == 2
    np.testing.assert_array_equal(found.sizes[small], 0)
    np.testing.assert_array_equal(found.centroids, whole.centroids)
    # The others stay where they were, under the same number.
    stayed = ~np.isin(whole.labels, small)
    np.testing.assert_array_equal(found.labels[stayed], whole.labels[stayed])
    large = np.flatnonzero(whole.sizes >= 4)
    distances = np.linalg.norm(points[~stayed][:, None] - whole.centroids[large], axis=2)
    np.testing.assert_array_equal(found.labels[~stayed], large[distances.argmin(axis=1)])
    [record] = caplog.records
    message = record.getMessage()
    assert record.levelno == logging.WARNING
    for label in small:
        named = ", ".join(
            repr(id) for id, own in zip(ids, whole.labels, strict=True) if own == label
        )
        assert (
            f"cluster {label} ({'query' if whole.sizes[label] == 1 else 'queries'} {named})"
            in message
        )
    assert "lower --clusters, or set min_size to 1" in message


def test_at_most_five_queries_of_a_cluster_are_named(caplog):
    points, _ = blobs([30, 7])
    cluster_queries(points, 2, min_size=8, method="scikit-learn")
    [record] = caplog.records
    assert record.getMessage().count("row ") == 5
    assert "and 2 more" in record.getMessage()


@both
def test_neither_library_talks(method, capfd, recwarn):
    points, _ = blobs([3, 3, 3])
    cluster_queries(points, 3, method=method)
    cluster_queries(points, 9, min_size=1, method=method)
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


@both
def test_a_sample_with_fewer_distinct_queries_leaves_clusters_empty(method, capfd, recwarn, caplog):
    points = np.zeros((100, 2), np.float32)
    points[:3] = [[1, 0], [0, 1], [1, 1]]
    found = cluster_queries(points, 4, min_size=1, method=method, max_points_per_centroid=1)
    assert found.sizes.sum() == 100
    empty = (found.sizes == 0).sum()
    assert empty > 0
    assert f"{empty} of 4 clusters are empty; lower --clusters" in caplog.text
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


@both
def test_read_only_memory_mapped_embeddings(method, tmp_path):
    points, truth = blobs([10, 10])
    np.save(tmp_path / "points.npy", points)
    mapped = np.load(tmp_path / "points.npy", mmap_mode="r")
    assert adjusted_rand_score(cluster_queries(mapped, 2, method=method).labels, truth) == 1


def test_scikit_learn_takes_over_where_faiss_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    points, _ = blobs([5, 5])
    assert cluster_queries(points, 2).sizes.tolist() == [5, 5]
    with pytest.raises(InputError, match=r"beir-cocodr\[faiss-cpu\]"):
        cluster_queries(points, 2, method="faiss")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 50}, r"50 clusters for 16 .*--clusters"),
        ({"k": 0}, r"clusters .*1.* 0"),
        ({"k": 16}, r"16 clusters for 16 .*none .*--clusters"),
        ({"k": 2, "min_size": 0}, r"min_size .*1.* 0"),
        ({"k": 2, "max_points_per_centroid": 0}, r"max_points_per_centroid .*1.* 0"),
    ],
)
def test_impossible_numbers(change, message):
    points = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    with pytest.raises(InputError, match=message):
        cluster_queries(points, **change)


def test_only_distinct_queries_count():
    points = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    points[0, 1] = -0.0
    with pytest.raises(InputError, match=r"4 clusters .*3 .*--clusters"):
        cluster_queries(points, 4)
    assert sorted(cluster_queries(points, 3).sizes) == [4, 4, 4]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_embeddings_are_named(value):
    points, _ = blobs([10, 10])
    points[3, 1] = points[17, 0] = value
    ids = [f"q{i}" for i in range(20)]
    with pytest.raises(InputError, match="'q3', 'q17'"):
        cluster_queries(points, 2, ids=ids)
    with pytest.raises(InputError, match="queries: 3, 17"):
        cluster_queries(points, 2)


def test_ids_of_another_length_are_a_mistake():
    with pytest.raises(ValueError, match="3 ids"):
        cluster_queries(np.eye(4, dtype=np.float32), 2, ids=["a", "b", "c"])


@both
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_holds_for_any_embeddings(method, data):
    shape = st.tuples(st.integers(1, 24), st.integers(1, 4))
    numbers = st.floats(-100, 100, width=32)
    points = data.draw(arrays.arrays(np.float32, shape, elements=numbers))
    k = data.draw(st.integers(1, len(np.unique(points + 0.0, axis=0))))
    min_size = data.draw(st.integers(1, 4))
    whole = cluster_queries(points, k, min_size=1, method=method)
    distances = np.linalg.norm(points[:, None].astype(np.float64) - whole.centroids, axis=2)
    own = np.take_along_axis(distances, whole.labels[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(own, distances.min(axis=1), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(whole.sizes, np.bincount(whole.labels, minlength=k))
    if whole.sizes.max() < min_size:
        with pytest.raises(InputError, match="--clusters"):
            cluster_queries(points, k, min_size=min_size, method=method)
        return
    found = cluster_queries(points, k, min_size=min_size, method=method)
    assert found.sizes.sum() == len(points) == len(found.labels)
    assert found.sizes.shape == found.centroids.shape[:1] == (k,)
    assert ((found.sizes == 0) | (found.sizes >= min_size)).all()
    small = (whole.sizes > 0) & (whole.sizes < min_size)
    assert found.folded_clusters == small.sum()
    assert (found.labels != whole.labels).sum() == whole.sizes[small].sum()
