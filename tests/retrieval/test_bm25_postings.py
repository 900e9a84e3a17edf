"""The index against bm25s's own, and its search against all scores."""

from __future__ import annotations

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.retrieval import bm25 as module
from beir_cocodr.retrieval import postings
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.postings import Block, Postings


@pytest.mark.parametrize("analyzer", ["english", "none", "german", "words"])
def test_weights_are_those_of_the_host_to_the_last_bit(analyzer, beir_folder, monkeypatch):
    """In blocks of seven documents, which bm25s does not have."""
    documents = load_collection(beir_folder).documents
    monkeypatch.setattr(module, "_BLOCK", 7)
    ours, reader = (
        BM25(documents, analyzer=analyzer).postings,
        BM25(documents, analyzer=analyzer)._tokenizer,
    )
    texts = [TextFormat().document(document) for document in documents.take(range(len(documents)))]
    ids = reader.tokenize(texts, update_vocab=True, show_progress=False)
    host = bm25s.BM25(k1=0.9, b=0.4)
    host.index((ids, reader.get_vocab_dict()), show_progress=False)
    assert list(ours.vocabulary) == list(reader.get_vocab_dict())
    for array, name in ((ours.rows, "indices"), (ours.starts, "indptr")):
        np.testing.assert_array_equal(array, host.scores[name])
    # Before NumPy 2 its rules of promotion made the host compute in float64.
    np.testing.assert_array_max_ulp(
        ours.weights, host.scores["data"], 0 if Version(np.__version__).major > 1 else 2
    )


documents_of_terms = st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    ids=documents_of_terms,
    query=st.lists(st.integers(0, 5), max_size=5),
    depth=st.integers(1, 45),
    data=st.data(),
)
def test_the_best_are_those_of_all_scores(ids, query, depth, data):
    """Also where a line of the grid holds one document, or all."""
    narrowest = data.draw(st.sampled_from([1, 3, 64]))
    block = Block.counted(
        [" ".join(2 * "abcdef"[term] for term in terms) for terms in ids], Analyzer("none")
    )
    query = [
        block.terms.index(word) for term in query if (word := 2 * "abcdef"[term]) in block.terms
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postings, "_NARROWEST", narrowest)
        patch.setattr(postings, "_GRID", 2)
        index = Postings.build(lambda: [block], 0.9, 0.4)
        ties = np.random.default_rng(depth).permutation(len(ids))
        [(rows, scores)] = index.search([query], min(depth, len(ids)), ties)
    dense = np.zeros(len(ids), np.float32)
    for term in query:  # bm25s's own way to add
        found, weights = index.of(term)
        np.add.at(dense, found, weights)
    wanted = sorted(np.flatnonzero(dense > 0).tolist(), key=lambda row: (-dense[row], ties[row]))[
        :depth
    ]
    assert rows.tolist() == wanted
    assert scores.tolist() == dense[wanted].tolist()


def test_an_index_on_the_disk_is_the_one_in_memory(beir_folder, tmp_path, monkeypatch):
    collection = load_collection(beir_folder)
    monkeypatch.setattr(module, "_BLOCK", 7)
    kept, held = BM25(collection.documents), BM25(collection.documents)
    folder = kept.keep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]  # what was counted is gone
    for name in ("starts", "rows", "weights", "most"):
        np.testing.assert_array_equal(getattr(kept.postings, name), getattr(held.postings, name))
    first, second = (index.search(collection.queries, 10) for index in (kept, held))
    assert first.rows.tolist() == second.rows.tolist()
    assert not kept.postings.rows.flags.writeable


def test_an_index_is_counted_once_and_goes_on_after_a_kill(beir_folder, tmp_path, monkeypatch):
    documents = load_collection(beir_folder).documents
    monkeypatch.setattr(module, "_BLOCK", 7)
    counted, block = [], module._Counting.block

    def dying(self, number, analyzer):
        if len(counted) == 2:
            raise KeyboardInterrupt
        counted.append(number)
        return block(self, number, analyzer)

    monkeypatch.setattr(module._Counting, "block", dying)
    with pytest.raises(KeyboardInterrupt):
        BM25(documents).keep(tmp_path)
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".parts")]
    monkeypatch.setattr(
        module._Counting, "block", lambda self, n, a: counted.append(n) or block(self, n, a)
    )
    folder = BM25(documents).keep(tmp_path)
    assert sorted(counted) == list(range(-(-len(documents) // 7)))
    assert BM25(documents).keep(tmp_path) == folder
    assert BM25(documents, k1=1.2).keep(tmp_path) != folder
    assert len(counted) == 2 * -(-len(documents) // 7)
