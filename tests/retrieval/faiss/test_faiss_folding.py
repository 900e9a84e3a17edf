from __future__ import annotations

import numpy as np
import pytest
import torch

from beir_cocodr.errors import InputError
from beir_cocodr.models.folding import Folding
from beir_cocodr.models.kl import flatten_document, flatten_query

K, DOCUMENTS, QUERIES = 48, 3000, 40


@pytest.fixture(scope="module")
def vectors() -> tuple[np.ndarray, np.ndarray]:
    """Flattened queries and documents as encoders make them: a common mean far larger than what
    differs, and variances about ln 2.
    """
    rng = np.random.default_rng(0)
    centre, common = 2 * rng.standard_normal(K), 0.2 * rng.standard_normal(K)

    def texts(count):
        means = centre + 0.5 * rng.standard_normal((count, K))
        variances = np.log1p(np.exp(common + 0.2 * rng.standard_normal((count, K))))
        return torch.from_numpy(means), torch.from_numpy(variances)

    return flatten_query(*texts(QUERIES)).numpy(), flatten_document(*texts(DOCUMENTS)).numpy()


def top(scores: np.ndarray, depth: int = 10) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :depth]


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(one, other, strict=True)]))


def fp16(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Scores with the rest in fp16, the prior in float32."""
    return (
        documents[:, 0] + queries[:, 1:] @ documents[:, 1:].astype(np.float16).astype(np.float64).T
    )


def int8(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Scores with the rest in int8 at a single scale, the prior in float32."""
    scale = np.abs(documents[:, 1:]).max() / 127
    return documents[:, 0] + scale * (queries[:, 1:] @ np.round(documents[:, 1:] / scale).T)


def test_scores_shift_by_a_constant_of_the_query_alone(vectors):
    queries, documents = vectors
    folding = Folding.fit(queries, documents)
    before = queries @ documents.T
    after = (
        folding.transform_queries(queries, np.float64)
        @ folding.transform_documents(documents, np.float64).T
    )
    np.testing.assert_allclose(
        after + folding.query_offsets(queries)[:, None], before, rtol=0, atol=1e-9
    )
    np.testing.assert_array_equal(np.argsort(-after, axis=1), np.argsort(-before, axis=1))
    assert (
        np.ptp(folding.query_offsets(queries)) > 1
    )  # why scores of different queries need the offsets


def test_folding_alone_leaves_the_score_itself(vectors):
    queries, documents = vectors
    fitted = Folding.fit(queries, documents)
    folding = Folding(np.zeros_like(fitted.document_mean), fitted.query_mean)
    after = (
        folding.transform_queries(queries, np.float64)
        @ folding.transform_documents(documents, np.float64).T
    )
    np.testing.assert_allclose(after, queries @ documents.T, rtol=0, atol=1e-9)


def test_rankings_are_identical_in_float32(vectors):
    queries, documents = vectors
    folding = Folding.fit(queries, documents)
    after = folding.transform_queries(queries) @ folding.transform_documents(documents).T
    assert after.dtype == np.float32
    np.testing.assert_array_equal(top(after, 100), top(queries @ documents.T, 100))


def test_any_mean_will_do(vectors):
    queries, documents = vectors
    rng = np.random.default_rng(1)
    folding = Folding(rng.standard_normal(2 * K + 1), rng.standard_normal(2 * K))
    after = (
        folding.transform_queries(queries, np.float64)
        @ folding.transform_documents(documents, np.float64).T
    )
    np.testing.assert_array_equal(
        np.argsort(-after, axis=1), np.argsort(-(queries @ documents.T), axis=1)
    )


@pytest.mark.parametrize("stored", [fp16, int8])
def test_what_quantisation_loses_shrinks(vectors, stored):
    queries, documents = vectors
    exact = queries @ documents.T
    folding = Folding.fit(queries, documents)
    small = (
        folding.transform_queries(queries, np.float64),
        folding.transform_documents(documents, np.float64),
    )
    before = stored(queries, documents)
    after = stored(*small) + folding.query_offsets(queries)[:, None]
    assert np.abs(after - exact).max() < np.abs(before - exact).max() / 2
    assert overlap(top(after), top(exact)) >= overlap(top(before), top(exact))


def test_arrays_and_tensors_fit_alike(vectors):
    queries, documents = vectors
    whole = Folding.fit(queries, documents)
    tensors = Folding.fit(torch.from_numpy(queries), torch.from_numpy(documents))
    np.testing.assert_array_equal(tensors.query_mean, whole.query_mean)
    np.testing.assert_array_equal(tensors.document_mean, whole.document_mean)
    folded = whole.transform_documents(documents, np.float64)
    np.testing.assert_allclose(folded.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(
        whole.transform_queries(queries, np.float64)[:, 1:].mean(axis=0), 0, atol=1e-10
    )
    np.testing.assert_array_equal(
        whole.transform_documents(torch.from_numpy(documents), np.float64), folded
    )


def test_the_callers_vectors_stay_as_they_are(vectors):
    queries, documents = (x.copy() for x in vectors)
    folding = Folding.fit(queries, documents)
    folding.transform_queries(queries)
    folding.transform_documents(documents)
    np.testing.assert_array_equal(queries, vectors[0])
    np.testing.assert_array_equal(documents, vectors[1])


def test_saved_and_loaded(vectors, tmp_path):
    queries, documents = vectors
    folding = Folding.fit(queries, documents)
    file = tmp_path / "index" / "folding.safetensors"
    folding.save(file)
    folding.save(file)  # over itself
    loaded = Folding.load(file)
    np.testing.assert_array_equal(loaded.query_mean, folding.query_mean)
    np.testing.assert_array_equal(loaded.document_mean, folding.document_mean)
    assert loaded.document_mean.dtype == np.float64
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_bad_input_is_one_clear_line(vectors, tmp_path):
    queries, documents = vectors
    folding = Folding.fit(queries, documents)
    bad = documents.copy()
    bad[3, 4] = np.nan
    (tmp_path / "other").write_bytes(b"something else")
    for message, call in {
        "no documents": lambda: Folding.fit(queries, []),
        "no queries": lambda: Folding.fit(queries[:0], documents),
        "NaN": lambda: Folding.fit(queries, bad),
        "begin with 1": lambda: Folding.fit(documents, queries),
        "begin with 1 as flattened queries": lambda: folding.transform_queries(documents),
        "97": lambda: folding.transform_documents(documents[:, :-1]),
        "dimensions": lambda: Folding.fit(queries[:, :-2], documents),
        "other": lambda: Folding.load(tmp_path / "other"),
        "absent": lambda: Folding.load(tmp_path / "absent"),
    }.items():
        with pytest.raises(InputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
