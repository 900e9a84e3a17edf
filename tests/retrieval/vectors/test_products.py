"""The screen by a product of integers, against all products in double precision."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beir_cocodr.retrieval.vectors import products, topk
from beir_cocodr.retrieval.vectors.products import Screen, TileCandidates, candidates_by_scores
from beir_cocodr.retrieval.vectors.topk import search_chunks


@pytest.fixture(autouse=True)
def screening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Screen from the start, for any number of queries and documents and on any processor."""
    if not products.multiplies_bytes():  # elsewhere, the sums of its product may be clipped

        def product(
            queries: torch.Tensor, documents: torch.Tensor, out: torch.Tensor
        ) -> torch.Tensor:
            return out.copy_(queries.int() @ documents.int())

        monkeypatch.setattr(torch, "_int_mm", product)
    monkeypatch.setattr(products, "multiplies_bytes", lambda: True)
    monkeypatch.setattr(products, "_FEWEST_QUERIES", 1)
    monkeypatch.setattr(products, "_PANEL", 70)
    monkeypatch.setattr(topk, "FIRST_SCREENED", 1)
    monkeypatch.setattr(topk, "_QUERY_TILE", 7)
    monkeypatch.setattr(topk, "_DOCUMENT_TILE", 200)


KINDS = ("plain", "cone", "outlier", "lengths", "whole", "zero", "tiny", "tiniest", "huge")


def embeddings(kind: str, count: int, width: int, random: np.random.Generator) -> np.ndarray:
    rows = random.standard_normal((count, width))
    if kind == "cone":
        rows += 3
    if kind == "outlier":
        rows[:, 0] = 50 + 20 * rows[:, 0]
    if kind == "lengths":
        rows *= np.exp(2 * random.standard_normal((count, 1)))
    if kind == "whole":
        rows = rows.round()
    if kind == "zero":
        rows[::2] = 0
    return (rows * {"tiny": 1e-12, "tiniest": 1e-18, "huge": 1e12}.get(kind, 1)).astype(np.float32)


def pairs(candidates: TileCandidates) -> dict[tuple[int, int], float]:
    """Return the score of each pair of a query and a document."""
    counts = np.diff(candidates.starts)
    rows = np.repeat(np.arange(len(counts)), counts)
    return dict(
        zip(
            zip(rows.tolist(), candidates.columns.tolist(), strict=True),
            candidates.scores.tolist(),
            strict=True,
        )
    )


@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.integers(2, 40), st.floats(0, 1))
def test_no_document_that_reaches_the_bound_is_lost(
    seed: int, kind: str, width: int, quantile: float
) -> None:
    """The bounds are scores of documents, which float32 may round to either side of them."""
    random = np.random.default_rng(seed)
    queries, documents = (embeddings(kind, count, width, random) for count in (9, 300))
    exact = queries.astype(np.float64) @ documents.astype(np.float64).T
    bounds = np.quantile(exact, quantile, axis=1).astype(np.float32)
    query_rows = torch.from_numpy(queries)
    document_rows = torch.from_numpy(documents)
    screen = Screen(query_rows, document_rows[:200])
    panels = list(screen.panels(document_rows))
    with patch.object(products, "_MOST_LEFT", 1.0):
        screened = screen.candidates(slice(2, 7), panels, bounds[2:7])
    assert screened is not None
    part = query_rows[2:7]
    by_scores = candidates_by_scores(part, document_rows, part @ document_rows.T, bounds[2:7])
    assert by_scores is not None
    error = 1e-5 * np.linalg.norm(queries[2:7], axis=1)[:, None] * np.linalg.norm(documents, axis=1)
    reached = np.nonzero(exact[2:7] > bounds[2:7, None] + error)
    for scores in (pairs(screened), pairs(by_scores)):
        assert set(zip(*reached, strict=True)) <= set(scores)
        for (query, document), score in scores.items():
            assert abs(score - exact[2 + query, document]) <= error[query, document]


def test_no_document_is_lost_to_the_rounding_of_float32() -> None:
    """Documents far from the origin have scores that float32 rounds by more than one.

    Queries and documents, and the centre of the documents, are exact integers here. The bound of
    Cauchy and Schwarz is then 0, and only the margin for rounding keeps the best documents.
    """
    random = np.random.default_rng(3)
    queries = random.integers(0, 128, (9, 24)).astype(np.float32)
    queries[:, 0] = 127
    offsets = random.integers(-127, 128, (100, 24)).astype(np.float32)
    offsets[0, 0] = 127
    documents = np.concatenate([offsets, -offsets]) + np.float32(2**16)
    query_rows = torch.from_numpy(queries)
    document_rows = torch.from_numpy(documents)
    every_row, every_column = np.divmod(np.arange(9 * 200), 200)
    scores = products._products(query_rows, document_rows, every_row, every_column)
    scores = scores.reshape(9, 200)
    screen = Screen(query_rows, document_rows)
    panels = list(screen.panels(document_rows))
    assert all(panel.residual == 0 for panel in panels)
    for rank in range(1, 20):
        bounds = np.sort(scores, axis=1)[:, -rank]
        candidates = screen.candidates(slice(0, 9), panels, bounds)
        assert candidates is not None
        reached = np.nonzero(scores >= bounds[:, None])
        assert set(pairs(candidates)) == set(zip(*reached, strict=True))


def test_few_random_vectors_are_multiplied_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests would pass if the screen left all four thousand documents to float32."""
    random = np.random.default_rng(0)
    multiplied = 0

    def counting(queries, documents, row, column):
        nonlocal multiplied
        multiplied += len(row)
        return exact(queries, documents, row, column)

    exact = products._products
    monkeypatch.setattr(products, "_products", counting)
    queries, documents = (
        random.standard_normal((count, 64), dtype=np.float32) for count in (20, 4_000)
    )
    scores, _ = search_chunks(queries, [documents], 12, similarity="cosine")
    assert 0.01 < multiplied / (20 * 4_000) < 0.08
    queries, documents = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, documents)
    )
    exact_scores = queries.astype(np.float64) @ documents.T.astype(np.float64)
    expected = -np.sort(-exact_scores, axis=1)[:, :12]
    np.testing.assert_allclose(scores.numpy(), expected, atol=1e-6)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.integers(1, 40), st.booleans())
def test_a_screened_search_finds_what_a_full_sort_finds(
    seed: int, kind: str, top_k: int, excluding: bool
) -> None:
    random = np.random.default_rng(seed)
    queries, documents = (embeddings(kind, count, 24, random) for count in (15, 450))
    excluded = random.integers(-1, len(documents), len(queries)) if excluding else None
    scores, rows = search_chunks(
        queries, np.split(documents, [30, 240]), top_k, excluded_rows=excluded
    )
    exact = queries.astype(np.float64) @ documents.astype(np.float64).T
    if excluded is not None:
        exact[np.flatnonzero(excluded >= 0), excluded[excluded >= 0]] = -np.inf
    error = (
        1e-5 * np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(documents, axis=1).max()
    )
    here = np.take_along_axis(exact, rows.numpy(), axis=1)
    assert (abs(scores.numpy() - here) <= error).all()
    assert (abs(here + np.sort(-exact, axis=1)[:, :top_k]) <= 2 * error).all()
    assert all(len(set(row)) == top_k for row in rows.tolist())


def test_equal_documents_tie_in_any_tile() -> None:
    """Some of the tiles are screened, others are multiplied in float32 as a whole."""
    random = np.random.default_rng(1)
    queries, documents = (
        random.standard_normal((count, 48), dtype=np.float32) for count in (8, 900)
    )
    documents[[850, 420, 150]] = documents[3]
    queries[0] = documents[3]
    ranks = random.permutation(len(documents))
    scores, rows = search_chunks(queries, [documents], 5, ranks)
    same = np.array([3, 150, 420, 850])
    assert rows[0, :4].tolist() == same[ranks[same].argsort()].tolist()
    assert len(set(scores[0, :4].tolist())) == 1


@pytest.mark.parametrize("most", [10, 1 << 22])
def test_documents_are_found_among_scores_too_close_to_screen(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_MOST_HELD", most)
    random = np.random.default_rng(2)
    queries, documents = (
        1 + 1e-7 * random.random((count, 32), dtype=np.float32) for count in (20, 700)
    )
    documents[123] = 2
    scores, rows = search_chunks(queries, [documents], 3)
    assert rows[:, 0].tolist() == [123] * 20
    assert (abs(scores[:, 1:] - 32) < 1e-4).all()


def test_the_default_dtype_of_the_caller_changes_nothing() -> None:
    random = np.random.default_rng(4)
    queries, documents = (
        random.standard_normal((count, 32), dtype=np.float32) for count in (20, 700)
    )
    expected = search_chunks(queries, [documents], 3)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        result = search_chunks(queries, [documents], 3)
    finally:
        torch.set_default_dtype(dtype)
    assert all(torch.equal(*pair) for pair in zip(result, expected, strict=True))


LIMITED = """
import torch
from beir_cocodr.retrieval.vectors.products import multiplies_bytes
rows = torch.tensor([[127] * 64] * 18, dtype=torch.int8)
print(multiplies_bytes(), int(torch._int_mm(rows, rows.T)[0, 0]) == 64 * 127 * 127)
"""


def test_a_product_that_clips_sums_is_not_used() -> None:
    """oneDNN may be kept from the instructions that a processor has."""
    limited = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], env=limited, capture_output=True, text=True, check=True
    )
    used, exact = done.stdout.split()
    assert used == "False" or exact == "True"


def test_the_product_of_the_largest_integers_is_exact() -> None:
    """It would not be if sums of two products were held in 16 bits."""
    signs = torch.tensor([[127] * 768, [-127] * 768, [127, -127] * 384], dtype=torch.int8)
    product = torch._int_mm(
        signs.repeat(6, 1), signs.repeat(6, 1).T, out=torch.empty(18, 18, dtype=torch.int32)
    )
    wide = signs.repeat(6, 1).double()
    assert torch.equal(product.double(), wide @ wide.T)


@pytest.mark.parametrize(
    ("shape", "top_k", "pays"),
    [((256, 16), 256, True), ((255, 16), 9, False), ((999, 15), 9, False), ((999, 16), 257, False)],
)
def test_screening_pays_for_many_queries_that_want_few_documents(
    shape, top_k, pays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_FEWEST_QUERIES", 256)
    assert Screen.pays(torch.ones(shape), top_k) is pays
    monkeypatch.setattr(products, "multiplies_bytes", lambda: False)
    assert not Screen.pays(torch.ones(shape), top_k)
