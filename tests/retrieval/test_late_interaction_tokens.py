"""Vectors of tokens on disk, and the documents that an index of them finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval import late_interaction
from beir_cocodr.retrieval.late_interaction import TokenIndex, TokenVectors


def unit(generator: np.random.Generator, count: int) -> torch.Tensor:
    vectors = generator.standard_normal((count, 16))
    return torch.from_numpy(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).float()


@pytest.fixture
def corpus():
    generator = np.random.default_rng(0)
    return [unit(generator, int(count)) for count in generator.integers(0, 9, 300)]


def maxsim(query: torch.Tensor, corpus: list[torch.Tensor]) -> np.ndarray:
    """By its definition; a document without tokens has none."""
    sims = (query @ document.T for document in corpus)
    return np.array([float(sim.max(1).values.sum()) if sim.numel() else -np.inf for sim in sims])


def test_what_is_written_is_read_in_any_order(corpus, tmp_path):
    TokenVectors.write(tmp_path / "t", (corpus[i : i + 70] for i in range(0, 300, 70)), "hash")
    read = TokenVectors(tmp_path / "t")
    rows = np.random.default_rng(1).permutation(300)
    assert (len(read), read.corpus) == (300, "hash")
    for row, found in zip(rows, read.take(rows), strict=True):
        assert torch.equal(found, corpus[row])


def test_half_precision_is_near(corpus, tmp_path):
    half = TokenVectors.write(tmp_path / "t", [corpus], "hash", half=True)
    for found, vectors in zip(half.take(np.arange(300)), corpus, strict=True):
        torch.testing.assert_close(found, vectors, atol=1e-3, rtol=0)


def test_a_corpus_without_tokens(tmp_path):
    with pytest.raises(InputError, match="no document has a token"):
        TokenVectors.write(tmp_path / "t", [[torch.empty(0, 16)]], "hash")


@pytest.mark.parametrize("compared", [50_000, 100])
def test_candidates_hold_the_best_of_maxsim(compared, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(late_interaction, "_COMPARED", compared)
    index = TokenIndex(TokenVectors.write(tmp_path / "t", [corpus], "hash"))
    assert index.index.options.kind == ("flat" if compared > 100 else "ivfpq")
    generator = np.random.default_rng(2)
    for _ in range(10):
        query = unit(generator, 4)
        best = np.argsort(-maxsim(query, corpus))[:5]
        assert set(best) <= set(index.candidates(query, 60))
    assert len(index.candidates(query, 7)) == 7
    assert not len(index.candidates(torch.empty(0, 16), 7))


def test_all_tokens_found_are_maxsim_itself(tmp_path):
    """Where each token of the query finds all tokens, the order of candidates is that of MaxSim."""
    generator = np.random.default_rng(3)
    corpus = [unit(generator, 3) for _ in range(50)]
    index = TokenIndex(TokenVectors.write(tmp_path / "t", [corpus], "hash"))
    query = unit(generator, 4)
    best = np.argsort(-maxsim(query, corpus), kind="stable")
    np.testing.assert_array_equal(index.candidates(query, 49), best[:49])
    np.testing.assert_array_equal(index.candidates(query, 50), np.arange(50))
