"""Input that FAISS indexes refuse, and parts that they can do without."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from mrl_vectors import mrl_like

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.faiss.index import FaissIndex, recall_against_exact
from beir_cocodr.retrieval.faiss.transform import FaissOptions

pytest.importorskip("faiss")
QUIET = {"recall_queries": 0}


def test_bad_input_is_one_clear_line():
    queries, documents = mrl_like(300, 10, k=8)
    index = FaissIndex.build(documents, FaissOptions(**QUIET))
    holes, asked = documents.copy(), queries.copy()
    holes[[7, 9], 3], asked[2, 0] = np.nan, np.inf
    ivfpq = {"kind": "ivfpq", **QUIET}
    for message, call in {
        "kind .*'annoy'": lambda: FaissOptions(kind="annoy"),
        "transform .*'rotation'": lambda: FaissOptions(transform="rotation"),
        "ef_search .*0": lambda: FaissOptions(ef_search=0),
        "over_fetch .*0": lambda: index.tuned(over_fetch=0),
        "at most 16": lambda: FaissOptions(pq_bits=17),
        "nlist 301 .*300": lambda: FaissIndex.build(documents, FaissOptions(nlist=301, **ivfpq)),
        "nlist 51 .*from 50": lambda: FaissIndex.build(
            documents, FaissOptions(nlist=51, train_size=50, **ivfpq)
        ),
        "pq_bits 9 .*512": lambda: FaissIndex.build(documents, FaissOptions(pq_bits=9, **ivfpq)),
        "pq_m 18": lambda: FaissIndex.build(documents, FaissOptions(pq_m=18, **ivfpq)),
        "no vectors": lambda: FaissIndex.build(documents[:0]),
        "two-dimensional": lambda: FaissIndex.build(documents[0]),
        "document row 7, row 9": lambda: FaissIndex.build(holes),
        "documents .*MRL": lambda: FaissIndex.build(
            np.abs(documents), FaissOptions(transform="folding")
        ),
        "begin with 1": lambda: FaissIndex.build(
            documents, FaissOptions(transform="folding"), documents
        ),
        r"shape \(10, 16\)": lambda: FaissIndex.build(documents, None, queries[:, 1:]),
        r"needs \(Q, 17\)": lambda: index.search(queries[0], 5),
        "no queries": lambda: index.search(queries[:0], 5),
        "query row 2": lambda: index.search(asked, 5),
        "top_k .*0": lambda: index.search(queries, 0),
        "299 tie ranks": lambda: index.search(queries, 5, np.arange(299)),
        r"vectors .*\(300, 16\)": lambda: index.search(queries, 5, vectors=documents[:, 1:]),
        "one query": lambda: recall_against_exact(index, queries[:0], documents),
    }.items():
        with pytest.raises(InputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_where_faiss_is_absent_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"beir-cocodr\[faiss-cpu\]"):
        FaissIndex.build(np.eye(3, dtype=np.float32))
