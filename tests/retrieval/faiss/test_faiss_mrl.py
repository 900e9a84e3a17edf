"""Folding of MRL's vectors for coarse indexes and storage types."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mrl_vectors import exact_top, mrl_like, overlap

from beir_cocodr.errors import InputError
from beir_cocodr.models.folding import Folding
from beir_cocodr.models.kl import flatten_document, flatten_query
from beir_cocodr.retrieval.faiss.index import FaissIndex
from beir_cocodr.retrieval.faiss.transform import FaissOptions, Layout, documents_as_queries

faiss = pytest.importorskip("faiss")
QUIET = {"recall_queries": 0}
CODES = {"nlist": 32, "pq_m": 12, "pq_bits": 6}


@pytest.fixture(scope="module")
def vectors() -> tuple[np.ndarray, np.ndarray]:
    return mrl_like(2500, 100, k=24, certainty=0.3)


def top(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :10]


def share(vectors: tuple[np.ndarray, np.ndarray], **options) -> float:
    """Return the share of the exact top 10 that an index finds."""
    queries, documents = vectors
    index = FaissIndex.build(documents, FaissOptions(**options, **QUIET), queries)
    return overlap(index.search(queries, 10)[1], exact_top(queries, documents, 10))


def bare_faiss(
    kind: str, queries: np.ndarray, documents: np.ndarray, lists=None, nprobe=32
) -> np.ndarray:
    """(Q, 10) rows of FAISS's own index over the vectors as they are."""
    if kind == "sq8":
        index = faiss.IndexScalarQuantizer(
            49, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
    else:
        queries, documents = (np.pad(one, ((0, 0), (0, 11))) for one in (queries, documents))
        index = faiss.IndexIVFPQ(
            lists or faiss.IndexFlatIP(60), 60, 32, 12, 6, faiss.METRIC_INNER_PRODUCT
        )
        index.nprobe, index.cp.spherical = nprobe, lists is None
        index.pq.cp.min_points_per_centroid = 1  # else it writes warnings past Python's stderr
    index.train(documents)
    index.add(documents)
    return index.search(queries, 10)[1]


def folded(vectors: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    folding = Folding.fit(*vectors)
    return folding.transform_queries(vectors[0]), folding.transform_documents(vectors[1])


@pytest.mark.parametrize("kind", ["sq8", "ivfpq"])
def test_quantised_kinds_beat_those_over_the_vectors_as_they_are(vectors, kind):
    """With as many codes of as many bits, and all of them read."""
    exact = exact_top(*vectors, 10)
    ours = share(vectors, kind=kind, transform="folding", **CODES, nprobe=32)
    assert ours > overlap(bare_faiss(kind, *vectors), exact) + 0.1


def test_the_prior_apart_beats_one_that_is_quantised_too():
    vectors = mrl_like(5000, 200, k=24, certainty=0.3)  # so many have priors far from the mean
    exact = exact_top(*vectors, 10)
    assert (
        share(vectors, kind="sq8", transform="folding")
        > overlap(bare_faiss("sq8", *folded(vectors)), exact) + 0.02
    )


def test_lists_stand_for_the_means_of_their_documents(vectors, tmp_path):
    """Not for directions: a document's score depends on its length as well."""
    options = FaissOptions(kind="ivfpq", transform="folding", **CODES, **QUIET)
    FaissIndex.build(vectors[1], options, vectors[0]).save(tmp_path / "index")
    index = faiss.read_index(str(tmp_path / "index" / "index.faiss"))
    centroids = index.quantizer.reconstruct_n(0, index.nlist)[:, :49]
    documents = folded(vectors)[1]
    nearest = ((documents[:, None] - centroids[None]) ** 2).sum(axis=2).argmin(axis=1)
    means = np.stack([documents[nearest == at].mean(axis=0) for at in range(index.nlist)])
    assert np.linalg.norm(means - centroids) < 0.2 * np.linalg.norm(means)


def test_lists_are_read_in_the_order_of_their_mean_scores(vectors):
    exact = exact_top(*vectors, 10)
    nearest = bare_faiss("ivfpq", *folded(vectors), faiss.IndexFlatL2(60), nprobe=4)
    ours = share(vectors, kind="ivfpq", transform="folding", **CODES, nprobe=4)
    assert ours > overlap(nearest, exact) + 0.1


def test_a_graph_needs_both_folding_and_the_reduction(vectors):
    graph = {"kind": "hnsw", "ef_search": 16, "ef_construction": 40}
    both = share(vectors, transform="folding", **graph)
    assert both > 0.95
    assert both > share(vectors, transform="none", **graph) + 0.1
    assert both > share(vectors, transform="folding", reduction=False, **graph) + 0.1
    assert share(vectors, transform="none", reduction=False, **graph) < 0.2


def test_the_nearest_documents_of_a_reduction_are_the_best():
    """|q - d|^2 = |q|^2 + M^2 - 2 q.d: an identity, whatever the lengths."""
    rng = np.random.default_rng(0)
    documents = rng.standard_normal((50, 6)) * rng.exponential(3, (50, 1))
    queries = rng.standard_normal((9, 6))
    longest = float((documents**2).sum(axis=1).max())
    layout = Layout.of(FaissOptions(kind="hnsw"), 6, longest)
    d, q = (
        layout.documents(documents).astype(np.float64),
        layout.queries(queries).astype(np.float64),
    )
    distances = ((q[:, None] - d[None]) ** 2).sum(axis=2)
    expected = (queries**2).sum(axis=1)[:, None] + longest - 2 * queries @ documents.T
    np.testing.assert_allclose(distances, expected, rtol=1e-5)


def test_fp16_error_and_int8_rankings_gain_from_folding():
    """The error of fp16 falls to an eighth, and the overlap of int8 rises from 0.40 to 0.93."""
    queries, documents = (array.astype(np.float64) for array in mrl_like(6000, 60))
    folding = Folding.fit(queries, documents)
    exact, scores, errors = exact_top(queries, documents, 10), {}, {}
    for name, q, d in (
        ("before", queries, documents),
        (
            "after",
            folding.transform_queries(queries, np.float64),
            folding.transform_documents(documents, np.float64),
        ),
    ):
        rest, scale = d[:, 1:], np.abs(d[:, 1:]).max() / 127
        for stored, small in (
            ("fp16", rest.astype(np.float16).astype(np.float64)),
            ("int8", scale * np.round(rest / scale)),
        ):
            scores[stored, name] = d[:, 0] + q[:, 1:] @ small.T
            errors[stored, name] = np.sqrt(np.mean((scores[stored, name] - q @ d.T) ** 2))
    shares = {key: overlap(top(value), exact) for key, value in scores.items()}
    assert errors["fp16", "after"] < errors["fp16", "before"] / 4
    assert errors["int8", "after"] < errors["int8", "before"] / 4
    assert shares["fp16", "after"] >= shares["fp16", "before"]
    assert shares["int8", "after"] > shares["int8", "before"] + 0.2
    assert shares["int8", "before"] < 0.6
    assert shares["int8", "after"] > 0.7


@pytest.mark.parametrize("formula", ["exact", "paper"])
def test_documents_as_queries_have_the_same_distribution(formula):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(20, 7, generator=generator, dtype=torch.float64)
    variance = torch.rand(20, 7, generator=generator, dtype=torch.float64) + 0.1
    made = documents_as_queries(flatten_document(mean, variance, formula).numpy())
    np.testing.assert_allclose(made, flatten_query(mean, variance, formula).numpy(), rtol=1e-12)
    with pytest.raises(InputError, match=r"documents .*MRL"):
        documents_as_queries(np.ones((3, 1)))
