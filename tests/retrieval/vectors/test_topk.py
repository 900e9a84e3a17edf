"""The running top-k against a full sort of all scores."""

from __future__ import annotations

import sys
import warnings
import weakref
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import completed
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.vectors import products, selection, topk
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores, search_chunks


def full_sort(scores: np.ndarray, ranks: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows of a complete sort by score descending, then rank ascending."""
    rows = np.stack([np.lexsort((ranks, -row))[:k] for row in scores])
    return np.take_along_axis(scores, rows, axis=1), rows


def cut(documents: np.ndarray, sizes: list[int]) -> list[torch.Tensor]:
    """The documents in chunks of the given sizes, the last size repeated."""
    chunks, start = [], 0
    while start < len(documents):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        chunks.append(torch.from_numpy(documents[start : start + size]))
        start += size
    return chunks


@pytest.fixture(params=[True, False], ids=["oneDNN", "BLAS"])
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply by each of the libraries that PyTorch may be built with."""
    monkeypatch.setattr(products, "one_dnn_is_faster", lambda: request.param)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_equals_a_full_sort_under_heavy_ties(data: st.DataObject) -> None:
    """Small integers have exact products in float32, and nearly every score is tied."""
    integers = st.integers(1, 400)
    n, q, d = data.draw(integers), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    magnitude = data.draw(st.integers(0, 3))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    queries = random.integers(-magnitude, magnitude + 1, (q, d)).astype(np.float32)
    documents = random.integers(-magnitude, magnitude + 1, (n, d)).astype(np.float32)
    ranks = random.permutation(n)
    top_k = data.draw(integers)

    chunks = cut(documents, data.draw(st.lists(integers, min_size=1, max_size=5)))
    with patch.multiple(
        topk, _QUERY_TILE=data.draw(st.integers(1, 14)), _DOCUMENT_TILE=data.draw(integers)
    ):
        scores, rows = search_chunks(torch.from_numpy(queries), chunks, top_k, ranks)

    expected_scores, expected_rows = full_sort(queries @ documents.T, ranks, top_k)
    np.testing.assert_array_equal(rows.numpy(), expected_rows)
    np.testing.assert_array_equal(scores.numpy(), expected_scores)
    assert (scores.dtype, rows.dtype) == (torch.float32, torch.int64)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(1, 120),
    st.lists(st.integers(1, 220), min_size=1, max_size=4),
)
def test_random_embeddings_are_searched_exactly_for_any_chunk_size(
    seed: int, top_k: int, sizes: list[int]
) -> None:
    random = np.random.default_rng(seed)
    queries = random.standard_normal((5, 33), dtype=np.float32)
    documents = random.standard_normal((200, 33), dtype=np.float32)

    scores, rows = search_chunks(queries, cut(documents, sizes), top_k)

    exact = queries.astype(np.float64) @ documents.astype(np.float64).T
    selected = np.take_along_axis(exact, rows.numpy(), axis=1)
    np.testing.assert_allclose(scores.numpy(), selected, atol=1e-5)
    np.testing.assert_allclose(selected, -np.sort(-exact, axis=1)[:, :top_k], atol=1e-5)
    assert all(len(set(row)) == len(row) for row in rows.tolist())


@pytest.mark.usefixtures("product")
def test_selection_in_many_blocks_of_one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are several tiles of queries and documents, and several blocks in a tile."""
    random = np.random.default_rng(3)
    queries = random.integers(-4, 5, (70, 6)).astype(np.float32)
    documents = random.integers(-4, 5, (5_000, 6)).astype(np.float32)
    ranks = random.permutation(len(documents))

    monkeypatch.setattr(topk, "_QUERY_TILE", 64)
    monkeypatch.setattr(topk, "_DOCUMENT_TILE", 4_096)
    monkeypatch.setattr(selection, "_SELECTION", 1 << 16)  # 16 queries of a tile
    scores, rows = search_chunks(queries, [documents], 50, ranks)

    expected_scores, expected_rows = full_sort(queries @ documents.T, ranks, 50)
    np.testing.assert_array_equal(rows.numpy(), expected_rows)
    np.testing.assert_array_equal(scores.numpy(), expected_scores)


@pytest.mark.parametrize("selection", [5_000, 1 << 27])
@pytest.mark.parametrize("k", [1, 60])
def test_selection_as_on_an_accelerator(
    k: int, selection: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The selection of an accelerator runs on a processor as well."""
    monkeypatch.setattr("beir_cocodr.retrieval.vectors.selection._DEVICE_SELECTION", selection)
    random = np.random.default_rng(5)
    queries = random.integers(-2, 3, (40, 3)).astype(np.float32)
    documents = random.integers(-2, 3, (3_000, 3)).astype(np.float32)
    monkeypatch.setattr(topk, "_QUERY_TILE", 30)
    monkeypatch.setattr(topk, "_DOCUMENT_TILE", 700)
    here = search_chunks(queries, [documents], k)
    device = torch.device("cpu")
    monkeypatch.setattr(topk, "HostBest", lambda count, k: topk.DeviceBest(count, k, device))
    there = search_chunks(queries, [documents], k)
    assert all(torch.equal(*pair) for pair in zip(here, there, strict=True))


@pytest.mark.parametrize("order", [1, -1])
def test_a_corpus_sorted_by_score_is_searched(order: int) -> None:
    """Every document is better than all before it, or worse."""
    documents = np.arange(5_000, dtype=np.float32)[::order, None].copy()
    scores, rows = search_chunks(np.ones((2, 1), np.float32), cut(documents, [700]), 30)
    assert scores.tolist() == [list(range(4999, 4969, -1))] * 2
    assert documents[rows[0].numpy(), 0].tolist() == list(range(4999, 4969, -1))


def test_minus_zero_ties_with_zero() -> None:
    queries = np.array([[-1.0]], np.float32)
    documents = np.array([[0.0], [-0.0], [0.0], [-0.0]], np.float32)
    _, rows = search_chunks(queries, [documents], 4, np.array([2, 1, 0, 3]))
    assert rows.tolist() == [[2, 1, 0, 3]]


def test_ties_without_ranks_follow_the_rows() -> None:
    _, rows = search_chunks(torch.ones(1, 2), [torch.ones(4, 2), torch.ones(3, 2)], 5)
    assert rows.tolist() == [[0, 1, 2, 3, 4]]


def test_more_documents_than_the_corpus_has_and_empty_chunks_are_allowed() -> None:
    chunks = [
        torch.empty(0, 1),
        torch.tensor([[1.0], [3.0]]),
        torch.empty(0, 1),
        torch.tensor([[2.0]]),
    ]
    scores, rows = search_chunks(torch.ones(1, 1), chunks, 10)
    assert (scores.tolist(), rows.tolist()) == ([[3.0, 2.0, 1.0]], [[1, 2, 0]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_scores_are_float32_products_of_embeddings_of_any_dtype(dtype: torch.dtype) -> None:
    """217 + 1/128 and 217 differ in float32, but are one number in half precision."""
    documents = torch.tensor([[217.0, 0.0], [217.0, 1.0]], dtype=dtype)
    scores, rows = search_chunks(torch.tensor([[1.0, 1 / 128]], dtype=dtype), [documents], 2)
    assert scores.dtype == torch.float32
    assert scores.tolist() == [[217 + 1 / 128, 217.0]]
    assert rows.tolist() == [[1, 0]]


def test_embeddings_may_be_views_with_any_strides() -> None:
    random = np.random.default_rng(7)
    queries = torch.from_numpy(random.integers(-4, 5, (6, 3)).astype(np.float32)).T
    documents = torch.from_numpy(random.integers(-4, 5, (6, 900)).astype(np.float32)).T[::2]
    scores, rows = search_chunks(queries, [documents], 20)
    expected_scores, expected_rows = full_sort((queries @ documents.T).numpy(), np.arange(450), 20)
    np.testing.assert_array_equal(rows.numpy(), expected_rows)
    np.testing.assert_array_equal(scores.numpy(), expected_scores)


@pytest.mark.usefixtures("product")
def test_autocast_around_the_search_leaves_scores_alone() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores, _ = search_chunks(torch.tensor([[1.0, 1 / 128]]), [torch.tensor([[217.0, 1.0]])], 1)
    assert scores.tolist() == [[217 + 1 / 128]]


def test_the_cosine_does_not_depend_on_lengths() -> None:
    random = np.random.default_rng(5)
    queries, documents = random.standard_normal((4, 8)), random.standard_normal((60, 8))
    cosine = (queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ (
        documents / np.linalg.norm(documents, axis=1, keepdims=True)
    ).T
    lengths = np.resize([1e-30, 1e-12, 1.0, 1e12, 1e30], 60)[:, None]  # squares leave float32
    scores, rows = search_chunks(
        (queries * 1e25).astype(np.float32),
        [(documents * lengths).astype(np.float32)],
        60,
        similarity="cosine",
    )
    np.testing.assert_allclose(scores.numpy(), -np.sort(-cosine, axis=1), atol=1e-5)
    np.testing.assert_allclose(
        np.take_along_axis(cosine, rows.numpy(), axis=1), scores.numpy(), atol=1e-5
    )


def test_zero_vectors_have_cosine_zero() -> None:
    documents = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    scores, rows = search_chunks(
        torch.tensor([[2.0, 0.0], [0.0, 0.0]]), [documents], 3, similarity="cosine"
    )
    assert scores.tolist() == [[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]]
    assert rows.tolist() == [[1, 0, 2], [0, 1, 2]]


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_documents_with_nan_or_infinity_are_named(value: float, similarity: str) -> None:
    documents = torch.ones(40, 3)
    documents[17, 1] = documents[23, 0] = value
    with pytest.raises(NonFiniteScores, match="document row 17, row 23:") as caught:
        search_chunks(torch.ones(2, 3), torch.split(documents, 16), 1, similarity=similarity)
    assert (caught.value.documents, caught.value.queries) == ([17, 23], [])


def test_an_infinite_element_is_named_even_if_all_its_scores_are_minus_infinity() -> None:
    documents = torch.tensor([[1.0], [-float("inf")]])
    with pytest.raises(NonFiniteScores, match="document row 1"):
        search_chunks(torch.ones(2, 1), [documents], 1)


def test_queries_with_nan_are_named() -> None:
    queries = torch.ones(3, 2)
    queries[1, 0] = float("nan")
    with pytest.raises(NonFiniteScores, match="query row 1:") as caught:
        search_chunks(queries, [torch.ones(4, 2)], 1)
    assert (caught.value.documents, caught.value.queries) == ([], [1])


def test_a_product_that_overflows_names_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk, "_QUERY_TILE", 1)
    queries, documents = torch.tensor([[1.0], [1e30]]), torch.tensor([[1.0], [2.0], [1e20]])
    with pytest.raises(NonFiniteScores, match=r"document row 2 .*query row 1") as caught:
        search_chunks(queries, [documents[:2], documents[2:]], 1)
    assert (caught.value.documents, caught.value.queries) == ([2], [1])


def test_large_numbers_with_finite_products_are_searched() -> None:
    """The product of norms exceeds float32, the scores do not."""
    queries = torch.tensor([[1e25, 0.0]])
    documents = torch.tensor([[1.0, 1e25], [2.0, 1e25]])
    scores, rows = search_chunks(queries, [documents], 2)
    assert rows.tolist() == [[1, 0]]
    torch.testing.assert_close(scores, torch.tensor([[2e25, 1e25]]))


def test_many_culprits_are_counted() -> None:
    with pytest.raises(NonFiniteScores, match=r"row 4 .*3 more"):
        search_chunks(torch.ones(1, 1), [torch.full((8, 1), float("nan"))], 1)


def test_excluded_rows_make_room_for_others() -> None:
    documents = torch.tensor([[5.0], [4.0], [3.0], [2.0]])
    scores, rows = search_chunks(
        torch.ones(3, 1), torch.split(documents, 2), 2, excluded_rows=np.array([0, 3, -1])
    )
    assert rows.tolist() == [[1, 2], [0, 1], [0, 1]]
    scores, rows = search_chunks(
        torch.ones(2, 1), torch.split(documents, 3), 9, excluded_rows=np.array([-1, 1])
    )
    assert rows.tolist() == [[0, 1, 2, 3], [0, 2, 3, -1]]
    assert scores.tolist() == [[5.0, 4.0, 3.0, 2.0], [5.0, 3.0, 2.0, -float("inf")]]


def test_read_only_arrays_are_accepted_silently() -> None:
    documents, ranks = np.eye(3, dtype=np.float32), np.array([2, 1, 0])
    documents.flags.writeable = ranks.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, rows = search_chunks(np.ones((1, 3), np.float32), [documents], 3, ranks)
    assert rows.tolist() == [[2, 1, 0]]


def test_inputs_stay_unchanged_and_scores_have_no_gradient() -> None:
    queries, documents = torch.ones(2, 3, requires_grad=True), torch.rand(9, 3, requires_grad=True)
    before = documents.detach().clone()
    scores, _ = search_chunks(
        queries, [documents], 2, similarity="cosine", excluded_rows=np.array([0, 1])
    )
    assert not scores.requires_grad
    assert torch.equal(documents, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 0}, "top_k .*0"),
        ({"query_embeddings": torch.empty(0, 2)}, "no queries"),
        ({"query_embeddings": torch.ones(2)}, "two-dimensional"),
        ({"chunks": []}, "no documents"),
        ({"chunks": [torch.ones(3, 5)]}, "5 dimensions.*2"),
        ({"tie_ranks": np.arange(2)}, "tie ranks"),
        ({"tie_ranks": np.arange(4)}, "4 tie ranks .*3"),
        ({"tie_ranks": np.array([0, 1, 1])}, "permutation of 0..2"),
        ({"tie_ranks": np.array([0, 1, 3])}, "permutation of 0..2"),
        ({"similarity": "euclidean"}, "'dot' nor 'cosine'"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    arguments = {
        "query_embeddings": torch.ones(1, 2),
        "chunks": [torch.ones(3, 2)],
        "top_k": 1,
    } | change
    with pytest.raises(InputError, match=message):
        search_chunks(**arguments)


def test_chunks_are_released_one_by_one() -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    def chunks():
        for _ in range(6):
            chunk = torch.rand(10, 2)
            seen.append(weakref.ref(chunk))
            yield chunk
            del chunk
            # The search's own loop variable may still hold the last one.
            assert sum(ref() is not None for ref in seen) <= 1

    search_chunks(torch.rand(3, 2), chunks(), 2)
    assert len(seen) == 6


def print_memory() -> None:
    """Search 100,000 documents, then 400,000, and print the most memory that was in use."""
    import resource  # Windows has none

    for count in (10, 40):
        chunks = (torch.rand(10_000, 64) for _ in range(count))
        search_chunks(torch.rand(200, 64), chunks, 10)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_memory_does_not_grow_with_the_corpus() -> None:
    """300,000 more documents have 75 MiB of embeddings and 230 MiB of scores."""
    done = completed(print_memory)
    small, large = map(int, done.stdout.split())
    assert large - small < 25 * 1024


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_finds_the_same() -> None:
    random = np.random.default_rng(11)
    queries = random.integers(-4, 5, (50, 6)).astype(np.float32)
    documents = random.integers(-4, 5, (20_000, 6)).astype(np.float32)
    ranks = random.permutation(len(documents))
    scores, rows = search_chunks(
        torch.from_numpy(queries).cuda(), cut(documents, [7_000]), 40, ranks
    )
    expected_scores, expected_rows = full_sort(queries @ documents.T, ranks, 40)
    assert rows.is_cuda
    np.testing.assert_array_equal(rows.cpu().numpy(), expected_rows)
    np.testing.assert_array_equal(scores.cpu().numpy(), expected_scores)


def test_a_gpu_gets_copies_from_pinned_memory():
    class Recorded:
        device = torch.device("cpu")

        def pin_memory(self) -> Recorded:
            calls.append("pinned")
            return self

        def to(self, device: torch.device, non_blocking: bool = False) -> Recorded:
            calls.append((device.type, non_blocking))
            return self

    calls: list[object] = []
    topk._moved(Recorded(), torch.device("cuda"))
    topk._moved(Recorded(), torch.device("cpu"))
    assert calls == ["pinned", ("cuda", True), ("cpu", False)]
