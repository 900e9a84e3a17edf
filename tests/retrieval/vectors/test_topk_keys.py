"""Keys of scores and tie ranks, and their merging."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.retrieval.vectors.selection import merge_keys, ranks_of, scores_of, to_keys
from beir_cocodr.retrieval.vectors.topk import search_chunks, search_keys

hits = st.lists(
    st.tuples(st.floats(width=32, allow_nan=False), st.integers(0, 2**32 - 1)),
    min_size=1,
    max_size=60,
)


@given(hits)
def test_keys_sort_by_score_then_rank_and_can_be_decoded(hit_list):
    scores = torch.tensor([score for score, _ in hit_list], dtype=torch.float32)
    ranks = torch.tensor([rank for _, rank in hit_list])
    keys = to_keys(scores, ranks)
    assert torch.equal(scores_of(keys), scores)
    assert torch.equal(ranks_of(keys), ranks)
    by_key = [hit_list[i] for i in keys.sort(descending=True, stable=True).indices.tolist()]
    assert by_key == sorted(hit_list, key=lambda hit: (-hit[0], hit[1]))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_keys_of_any_division_of_a_corpus_merge_to_the_same_result(data):
    """Integer embeddings give exact products and many ties."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    count = data.draw(st.integers(1, 200))
    top_k = data.draw(st.integers(1, 40))
    queries = random.integers(-2, 3, (5, 3)).astype(np.float32)
    documents = random.integers(-2, 3, (count, 3)).astype(np.float32)
    ranks = random.permutation(count)
    excluded = random.integers(-1, count, 5)
    edges = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=4))})
    parts = [
        search_keys(
            queries,
            [(documents[start:stop], ranks[start:stop])],
            top_k,
            first_row=start,
            excluded_rows=excluded,
        )
        for start, stop in pairwise(edges)
    ]
    keys = merge_keys(data.draw(st.permutations(parts)), top_k)

    scores, rows = search_chunks(queries, [documents], top_k, ranks, excluded_rows=excluded)
    assert torch.equal(scores_of(keys), scores)
    expected = np.argsort(ranks)[ranks_of(keys)]
    expected[np.isneginf(scores.numpy())] = -1
    np.testing.assert_array_equal(expected, rows)
