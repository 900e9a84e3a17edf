"""FAISS indexes against a full sort of all scores."""

from __future__ import annotations

import logging
import weakref

import numpy as np
import pytest
import torch
from conftest import sentences
from hypothesis import given, settings
from hypothesis import strategies as st
from mrl_vectors import exact_top, mrl_like, overlap

from beir_cocodr.errors import InputError
from beir_cocodr.models.mrl import MRL
from beir_cocodr.retrieval.faiss import build as corpus_vectors
from beir_cocodr.retrieval.faiss.index import FaissIndex, recall_against_exact
from beir_cocodr.retrieval.faiss.transform import FaissOptions
from beir_cocodr.retrieval.store.embeddings import MemoryEmbeddings

faiss = pytest.importorskip("faiss")
KINDS = ["flat", "hnsw", "ivfpq", "sq8"]
TRANSFORMS = ["none", "centring", "folding"]
QUIET = {"recall_queries": 0}


@pytest.fixture(autouse=True)
def one_thread():
    """Threads link a graph in the order they happen to come."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.fixture(scope="module")
def encoded(tiny_bert) -> tuple[np.ndarray, np.ndarray]:
    """Queries and documents of a real, tiny MRL."""
    model = MRL(str(tiny_bert))
    rng = np.random.default_rng(0)
    documents = [sentences(rng, i % 4, 1 + i % 3) for i in range(400)]
    queries = [" ".join(sentences(rng, i % 4, 1).split()[:5]) for i in range(40)]
    return model.encode_query(queries), model.encode_document(documents)


def full_sort(scores: np.ndarray, ranks: np.ndarray, k: int) -> np.ndarray:
    return np.stack([np.lexsort((ranks, -row))[:k] for row in scores])


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_flat_ranks_real_mrl_vectors_as_exact_search_does(encoded, transform):
    queries, documents = encoded
    index = FaissIndex.build(documents, FaissOptions(transform=transform, **QUIET), queries[:20])
    scores, rows = index.search(queries, 50)
    exact = queries.astype(np.float64) @ documents.astype(np.float64).T
    found = np.take_along_axis(exact, rows, axis=1)
    scale = np.abs(exact).max()
    np.testing.assert_allclose(scores, found, rtol=0, atol=1e-6 * scale)
    # Where two scores are nearer than float32 can tell them, either may come first.
    np.testing.assert_allclose(found, -np.sort(-exact, axis=1)[:, :50], rtol=0, atol=1e-6 * scale)
    assert overlap(rows, exact_top(queries, documents, 50)) > 0.99
    assert (scores.dtype, rows.dtype) == (np.float32, np.int64)
    assert (np.diff(scores, axis=1) <= 0).all()


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_flat_breaks_ties_by_their_ranks(data: st.DataObject) -> None:
    """Small whole numbers: nearly every score is tied, and ties run across the last place."""
    n, q, d = (
        data.draw(st.integers(1, 300)),
        data.draw(st.integers(1, 25)),
        data.draw(st.integers(1, 4)),
    )
    magnitude, top_k = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 320))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    queries = random.integers(-magnitude, magnitude + 1, (q, d)).astype(np.float32)
    documents = random.integers(-magnitude, magnitude + 1, (n, d)).astype(np.float32)
    ranks = random.permutation(n) if data.draw(st.booleans()) else None

    scores, rows = FaissIndex.build(documents, FaissOptions(**QUIET)).search(queries, top_k, ranks)

    expected = full_sort(queries @ documents.T, np.arange(n) if ranks is None else ranks, top_k)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(
        scores, np.take_along_axis(queries @ documents.T, expected, axis=1)
    )


class Streamed(MemoryEmbeddings):
    """Embeddings that make every block anew, and remember what they gave."""

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__(torch.from_numpy(vectors))
        self.given: list[weakref.ref] = []
        self.most_alive = 0

    def blocks(self, size: int):
        for start in range(0, len(self), size):
            block = self.vectors[start : start + size].clone()
            self.given.append(weakref.ref(block))
            self.most_alive = max(self.most_alive, sum(ref() is not None for ref in self.given))
            yield block
            del block


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_arrays_and_selections_make_the_same_index(kind, transform, monkeypatch):
    monkeypatch.setattr(corpus_vectors, "_BLOCK", 300)
    queries, documents = mrl_like(2000, 30, k=6)
    options = FaissOptions(
        kind=kind, transform=transform, ef_construction=20, train_size=1500, **QUIET
    )
    whole = FaissIndex.build(documents, options, queries).search(queries, 20)
    order = np.random.default_rng(0).permutation(2000)
    shuffled = MemoryEmbeddings(torch.from_numpy(documents[order])).select(np.argsort(order))
    selected = FaissIndex.build(shuffled, options, queries).search(queries, 20)
    for one, other in zip(whole, selected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["sq8", "ivfpq"])
def test_blocks_are_let_go_when_they_are_indexed(kind, monkeypatch):
    monkeypatch.setattr(corpus_vectors, "_BLOCK", 100)
    queries, documents = mrl_like(4000, 10, k=6)
    streamed = Streamed(documents)
    options = FaissOptions(kind=kind, transform="folding", train_size=400, pq_bits=4, **QUIET)
    FaissIndex.build(streamed, options, queries)
    assert len(streamed.given) >= (3 if kind == "sq8" else 2) * 40  # read several times
    assert streamed.most_alive <= 4
    assert not any(ref() is not None for ref in streamed.given)


@pytest.mark.parametrize("kind", KINDS)
def test_the_corpus_may_be_on_disk_and_in_half_precision(kind, tmp_path):
    queries, documents = mrl_like(1500, 20, k=8)
    narrow = documents.astype(np.float16)
    np.save(tmp_path / "corpus.npy", narrow)
    options = FaissOptions(kind=kind, transform="folding", **QUIET)
    mapped = FaissIndex.build(np.load(tmp_path / "corpus.npy", mmap_mode="r"), options, queries)
    plain = FaissIndex.build(narrow.astype(np.float32), options, queries)
    for one, other in zip(mapped.search(queries, 10), plain.search(queries, 10), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_recall_is_the_share_of_the_exact_top(kind):
    queries, documents = mrl_like(3000, 40)
    index = FaissIndex.build(
        documents, FaissOptions(kind=kind, transform="folding", ef_search=16), queries
    )
    measured = index.record["recall"]
    rows = index.search(queries, 100)[1]
    exact = exact_top(queries, documents, 100)
    assert measured["recall@10"] == pytest.approx(overlap(rows[:, :10], exact[:, :10]), abs=2e-3)
    assert measured["recall@100"] == pytest.approx(overlap(rows, exact), abs=2e-3)
    assert (measured["queries"], measured["of"]) == (40, "given")
    least = {"flat": 0.999, "hnsw": 0.9, "ivfpq": 0.3, "sq8": 0.9}
    assert measured["recall@10"] >= least[kind]


def test_recall_of_a_searcher_that_is_half_right():
    queries, documents = mrl_like(300, 30)
    exact = exact_top(queries, documents, 300)

    class Half:
        def search(self, asked, top_k):
            at = [int(np.flatnonzero((queries == query).all(axis=1))[0]) for query in asked]
            found = exact[at, :top_k].copy()
            found[:, 5:10], found[:, 50:] = exact[at, -5:], exact[at, 200 : 150 + top_k]
            return None, found

    recall = recall_against_exact(Half(), queries, documents, sample=12, seed=3)
    assert recall == {"recall@10": 0.5, "recall@100": pytest.approx(0.45), "queries": 12}
    small = recall_against_exact(
        FaissIndex.build(documents[:7], FaissOptions(**QUIET)), queries, documents[:7]
    )
    assert small == {"recall@10": 1.0, "recall@100": 1.0, "queries": 30}


def test_without_queries_documents_stand_in(caplog):
    queries, documents = mrl_like(2000, 30)
    with caplog.at_level(logging.INFO):
        folded = FaissIndex.build(documents, FaissOptions(transform="folding"))
    assert "documents used as queries" in caplog.text
    assert folded.record["recall"]["of"] == "documents"
    # Two of nearly one score may change places.
    assert (folded.search(queries, 10)[1] == exact_top(queries, documents, 10)).mean() > 0.99


@pytest.mark.parametrize("kind", ["hnsw", "ivfpq", "sq8"])
def test_searched_thoroughly_nothing_is_missed(kind):
    """All lists and the whole graph, all candidates scored with the vectors themselves."""
    queries, documents = mrl_like(1200, 25, k=16)
    options = FaissOptions(kind=kind, transform="folding", **QUIET)
    index = FaissIndex.build(documents, options, queries)
    thorough = index.tuned(ef_search=1200, nprobe=1200, over_fetch=120)
    scores, rows = thorough.search(queries, 10, vectors=documents)
    np.testing.assert_array_equal(rows, exact_top(queries, documents, 10))
    exact = queries.astype(np.float64) @ documents.astype(np.float64).T
    np.testing.assert_allclose(scores, np.take_along_axis(exact, rows, axis=1), rtol=1e-6)
    assert index.options == options.fitted(1200, 33)  # the first one is as it was


def test_a_graph_gives_exact_scores_and_equal_documents_tie():
    queries, documents = mrl_like(500, 20, k=8)
    twice = np.concatenate([documents, documents])
    ranks = np.concatenate([np.arange(500, 1000), np.arange(500)])  # the second copy first
    index = FaissIndex.build(
        twice, FaissOptions(kind="hnsw", transform="folding", ef_search=400), queries
    )
    scores, rows = index.search(queries, 40, ranks)
    exact = queries.astype(np.float64) @ twice.astype(np.float64).T
    np.testing.assert_allclose(scores, np.take_along_axis(exact, rows, axis=1), rtol=1e-5)
    np.testing.assert_array_equal(rows[:, 1::2], rows[:, ::2] - 500)
    np.testing.assert_array_equal(scores[:, 1::2], scores[:, ::2])


def test_too_few_results_are_marked():
    """One list of many is read, and it is shorter than what is asked for."""
    queries, documents = mrl_like(2000, 20, k=8)
    options = FaissOptions(
        kind="ivfpq", nlist=100, nprobe=1, pq_bits=6, transform="folding", **QUIET
    )
    scores, rows = FaissIndex.build(documents, options, queries).search(queries, 500)
    assert scores.shape == rows.shape == (20, 500)
    missing = rows < 0
    assert missing.any(axis=1).all()
    np.testing.assert_array_equal(missing, np.isneginf(scores))
    np.testing.assert_array_equal(missing, np.sort(missing, axis=1))
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in rows)


def test_numbers_that_are_not_given_are_chosen_by_the_size_of_the_corpus(caplog):
    with caplog.at_level(logging.INFO):
        chosen = FaissOptions(kind="ivfpq", transform="folding").fitted(100_000, 767)
    assert (chosen.nlist, chosen.nprobe, chosen.pq_m, chosen.pq_bits) == (1265, 79, 96, 8)
    assert "1265 lists, 79 of them read, 96 codes of 8 bits" in caplog.text
    with caplog.at_level(logging.WARNING):
        small = FaissOptions(kind="ivfpq").fitted(100, 16)
    assert (small.nlist, small.nprobe, small.pq_m, small.pq_bits) == (2, 2, 2, 6)
    assert "100 training vectors are few" in caplog.text
    queries, documents = mrl_like(3, 4, k=8)
    tiny = FaissIndex.build(documents, FaissOptions(kind="ivfpq", transform="folding"), queries)
    assert set(tiny.search(queries, 3)[1].ravel()) == {0, 1, 2}


def test_one_query_is_searched_as_among_others(encoded):
    queries, documents = encoded
    for kind in KINDS:
        index = FaissIndex.build(
            documents, FaissOptions(kind=kind, transform="folding", **QUIET), queries
        )
        together = index.search(queries, 10)
        alone = [index.search(query[None], 10) for query in queries]
        np.testing.assert_allclose(
            np.concatenate([one[0] for one in alone]), together[0], rtol=1e-5
        )
        assert overlap(np.concatenate([one[1] for one in alone]), together[1]) > 0.99


def test_the_gpu_is_used_where_there_is_one_and_the_index_stays_where_it_cannot(
    monkeypatch, caplog
):
    def refuse(resources, device, index):
        raise RuntimeError("Error in somewhere\nno such width")

    queries, documents = mrl_like(200, 5, k=8)
    expected = FaissIndex.build(documents, FaissOptions(**QUIET)).search(queries, 5)
    moved = []
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(
        faiss, "index_cpu_to_gpu", lambda *args: moved.append(args) or args[2], raising=False
    )
    index = FaissIndex.build(documents, FaissOptions(**QUIET))
    np.testing.assert_array_equal(index.search(queries, 5)[1], expected[1])
    FaissIndex.build(documents, FaissOptions(kind="hnsw", **QUIET))
    assert len(moved) == 1
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", refuse, raising=False)
    np.testing.assert_array_equal(
        FaissIndex.build(documents, FaissOptions(**QUIET)).search(queries, 5)[1], expected[1]
    )
    assert "stays on the CPU" in caplog.text


@pytest.fixture
def three_gpus(monkeypatch) -> list[tuple[str, object]]:
    """A FAISS that finds three GPUs, and a list of what it copies to them."""
    copies: list[tuple[str, object]] = []

    class Sharding:
        shard = False

    def to_all(index, co):
        copies.append(("all", co.shard))
        return index

    def to_one(resources, number, index):
        copies.append(("one", number))
        return index

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 3)
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "GpuMultipleClonerOptions", Sharding, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", to_all)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", to_one, raising=False)
    return copies


@pytest.mark.parametrize(
    ("device", "copies"),
    [
        (None, [("all", True)]),
        ("cuda", [("all", True)]),
        ("cuda:2", [("one", 2)]),
        ("cpu", []),
    ],
)
def test_all_gpus_share_an_index_or_the_named_one_has_it(three_gpus, device, copies):
    queries, documents = mrl_like(200, 5, k=8)
    expected = FaissIndex.build(documents, FaissOptions(**QUIET), device="cpu").search(queries, 5)
    index = FaissIndex.build(documents, FaissOptions(**QUIET), device=device)
    assert three_gpus == copies
    np.testing.assert_array_equal(index.search(queries, 5)[1], expected[1])


def test_a_gpu_that_there_is_not_is_refused(three_gpus):
    _, documents = mrl_like(200, 5, k=8)
    with pytest.raises(InputError, match=r"3 GPUs.*cuda:3"):
        FaissIndex.build(documents, FaissOptions(**QUIET), device="cuda:3")


def test_a_line_says_when_the_cpu_searches_beside_a_gpu(three_gpus, monkeypatch, caplog):
    queries, documents = mrl_like(200, 5, k=8)
    caplog.set_level("INFO")
    FaissIndex.build(documents, FaissOptions(kind="hnsw", **QUIET))
    assert "no GPU code for hnsw" in caplog.text
    index = FaissIndex.build(documents, FaissOptions(**QUIET))
    index._searched = object()  # a copy on a GPU
    monkeypatch.setattr(corpus_vectors, "GPU_DEPTH", 3)
    index.search(queries, 5)
    assert "at most 3" in caplog.text
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    FaissIndex.build(documents, FaissOptions(**QUIET))
    assert "this FAISS finds no GPU" in caplog.text


def test_tensors_are_arrays_too(encoded):
    queries, documents = encoded
    index = FaissIndex.build(torch.from_numpy(documents), FaissOptions(**QUIET))
    np.testing.assert_array_equal(
        index.search(torch.from_numpy(queries), 10)[1], exact_top(queries, documents, 10)
    )
