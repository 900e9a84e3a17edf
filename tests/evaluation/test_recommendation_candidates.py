from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.evaluation.recommendation import COLUMNS, annotation_candidates, write_annotation_candidates


def ranked(*documents):
    return [(document, -float(rank)) for rank, document in enumerate(documents)]


def test_weights_by_hand():
    found = annotation_candidates({"q": ranked("x", "y", "z")}, {"q": ranked("y", "x", "w")})
    told = {row.document_id: (row.weight, row.rank_a, row.rank_b) for row in found}
    first_two = 1 - 1 / np.log2(3)
    assert told["x"] == (pytest.approx(first_two), 1, 2)
    assert told["y"] == (pytest.approx(first_two), 2, 1)
    assert told["z"] == (pytest.approx(1 / 2), 3, None)
    assert told["w"] == (pytest.approx(1 / 2), None, 3)
    assert [row.weight for row in found] == sorted((row.weight for row in found), reverse=True)


rankings = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3"]), st.permutations("abcdefghijklmn").map(lambda p: ranked(*p[:12]))
)


@given(rankings, rankings)
def test_a_weight_is_what_the_label_changes(first, second):
    """Labelling the pair as relevant changes the difference of DCG@10, and so the comparison, by as much."""

    def dcg(results, query, relevant):
        found = [document for document, _ in results.get(query, [])[:10]]
        return sum(1 / np.log2(2 + place) for place, document in enumerate(found) if document == relevant)

    rows = annotation_candidates(first, second, count=10_000)
    weights = {(row.query_id, row.document_id): row.weight for row in rows}
    for query in {*first, *second}:
        for document in "abcdefghijklmn":
            change = abs(dcg(first, query, document) - dcg(second, query, document))
            assert weights.get((query, document), 0) == pytest.approx(change)
    swapped = annotation_candidates(second, first, count=10_000)
    assert [(row.query_id, row.document_id) for row in swapped] == list(weights)


def test_judged_pairs_and_equal_lists_are_left_out():
    lists = {"q": ranked("x", "y")}, {"q": ranked("y", "x")}
    assert [row.document_id for row in annotation_candidates(*lists, judged={"q": {"x": 0}})] == ["y"]
    assert annotation_candidates(lists[0], lists[0]) == []
    assert len(annotation_candidates(*lists, count=1)) == 1


def test_the_queries_that_differ_most_come_first_among_equal_weights():
    first = {"q1": ranked("x", "s"), "q2": ranked("x", "y", "z")}
    second = {"q1": ranked("y", "s"), "q2": ranked("u", "v", "w")}
    assert [row.query_id for row in annotation_candidates(first, second)][:4] == ["q2", "q2", "q1", "q1"]


def test_the_file_has_a_row_a_line_whatever_the_texts_hold(tmp_path):
    [row, _] = annotation_candidates({"q": ranked("x")}, {"q": ranked("y")})
    row = replace(row, query="a\tb", document="one\ntwo")
    write_annotation_candidates(tmp_path / "f.tsv", [row])
    header, line = (tmp_path / "f.tsv").read_text().splitlines()
    assert header.split("\t") == list(COLUMNS)
    assert line.split("\t") == ["q", "x", "1.0", "1", "", "a b", "one two"]
