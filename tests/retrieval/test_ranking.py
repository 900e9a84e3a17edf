"""Rankings as ids and scores, against a loop over rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.retrieval.ranking import Ranking

# Few documents, whose ids are looked up in a table, or many more than there are hits, which are
# sorted.
corpora = st.sampled_from([3, 7, 10_000])


@given(documents=corpora, queries=st.integers(0, 5), data=st.data())
def test_hits_are_those_of_a_loop(documents, queries, data):
    lists = st.lists(st.integers(0, documents - 1), max_size=6, unique=True)
    found = [data.draw(lists) for _ in range(queries)]
    rows = np.array([row + [-1] * (6 - len(row)) for row in found], np.int64).reshape(queries, 6)
    scores = np.arange(rows.size, dtype=np.float32).reshape(rows.shape)
    names = [f"d{number}" for number in range(queries)]  # a query may be named as a document is
    depth, drop = data.draw(st.sampled_from([None, 2])), data.draw(st.booleans())
    wanted = {}
    for number, name in enumerate(names):
        hits = [
            (f"d{row}", float(score))
            for row, score in zip(found[number], scores[number], strict=False)
        ]
        wanted[name] = [hit for hit in hits if not drop or hit[0] != name][:depth]

    def ids(asked: np.ndarray) -> list[str]:
        assert len(set(asked.tolist())) == len(asked)
        return [f"d{row}" for row in asked.tolist()]

    assert dict(Ranking(names, scores, rows).hits(ids, drop, depth)) == wanted
