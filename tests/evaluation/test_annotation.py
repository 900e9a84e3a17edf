from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.data.judgements import COLUMNS, write_annotation_candidates
from beir_cocodr.evaluation.annotation import PER_QUERY, annotation_candidates, draw_candidates


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
    st.sampled_from(["q1", "q2", "q3"]),
    st.permutations("abcdefghijklmn").map(lambda p: ranked(*p[:12])),
)


@given(rankings, rankings)
def test_a_weight_is_what_the_label_changes(first, second):
    """Labelling the pair as relevant changes the difference of DCG@10, and so the comparison, by as
    much.
    """

    def dcg(results, query, relevant):
        found = [document for document, _ in results.get(query, [])[:10]]
        return sum(
            1 / np.log2(2 + place) for place, document in enumerate(found) if document == relevant
        )

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
    assert [row.document_id for row in annotation_candidates(*lists, judged={"q": {"x": 0}})] == [
        "y"
    ]
    assert annotation_candidates(lists[0], lists[0]) == []
    assert len(annotation_candidates(*lists, count=1)) == 1


def test_the_queries_that_differ_most_come_first_among_equal_weights():
    first = {"q1": ranked("x", "s"), "q2": ranked("x", "y", "z")}
    second = {"q1": ranked("y", "s"), "q2": ranked("u", "v", "w")}
    assert [row.query_id for row in annotation_candidates(first, second)][:4] == [
        "q2",
        "q2",
        "q1",
        "q1",
    ]


def test_the_file_has_a_row_a_line_whatever_the_texts_hold(tmp_path):
    [row, _] = annotation_candidates({"q": ranked("x")}, {"q": ranked("y")})
    row = replace(row, query="a\tb", document="one\ntwo")
    write_annotation_candidates(tmp_path / "f.tsv", [row])
    header, line = (tmp_path / "f.tsv").read_text().splitlines()
    assert header.split("\t") == list(COLUMNS)
    assert line.split("\t") == ["q", "x", "", "1.0", "1", "", "a b", "one two", "", ""]


def many(count, seed, queries=60):
    """Results of ``count`` models for the same queries, some much alike."""
    rng = np.random.default_rng(seed)
    order = [f"d{i}" for i in range(40)]
    noise = rng.random(queries) * 12
    return {
        f"m{m}": {
            f"q{q}": ranked(
                *[order[i] for i in np.argsort(np.arange(40) + noise[q] * rng.random(40))]
            )
            for q in range(queries)
        }
        for m in range(count)
    }


def test_queries_that_a_run_lacks_are_not_drawn():
    results = many(3, 5)
    half = {query: hits for query, hits in results["m1"].items() if int(query[1:]) % 2}
    drawn = draw_candidates(results | {"m1": half}, "m0", "m1", count=100)
    assert drawn
    assert {pair.query_id for pair in drawn} <= half.keys()


def test_what_is_drawn_has_the_probability_that_is_written():
    """Over 400 seeds, one query's pairs are included as often as stated, in the exact number."""
    results = many(4, 2, queries=1)
    drawn = [draw_candidates(results, "m0", "m1", count=10, seed=seed) for seed in range(400)]
    assert {len(pairs) for pairs in drawn} == {PER_QUERY}
    chances, times = {}, {}
    for pair in (pair for pairs in drawn for pair in pairs):
        times[pair.document_id] = times.get(pair.document_id, 0) + 1
        assert (
            chances.setdefault(pair.document_id, pair.document_probability)
            == pair.document_probability
        )
        assert pair.query_probability == 1
    pool = {d for found in results.values() for d, _ in found["q0"][:10]}
    assert set(times) == pool
    assert len(pool) > PER_QUERY
    assert sum(chances.values()) == pytest.approx(PER_QUERY)
    for document, chance in chances.items():
        assert times[document] / 400 == pytest.approx(
            chance, abs=4 * np.sqrt(chance * (1 - chance) / 400) + 1e-9
        )


def test_queries_on_which_the_models_differ_are_drawn_more_often_and_weights_undo_it():
    results = many(3, 4)
    differ = {
        q: len({d for found in results.values() for d, _ in found[q][:10]}) for q in results["m0"]
    }
    size = np.array(list(differ.values()), float)
    means, weighted, truth = [], [], size.mean()
    for seed in range(150):
        pairs = draw_candidates(results, "m0", "m1", count=80, seed=seed)
        chances = {pair.query_id: pair.query_probability for pair in pairs}
        assert len(chances) == 8
        values = np.array([differ[q] for q in chances])
        means.append(values.mean())
        weighted.append(np.average(values, weights=1 / np.array(list(chances.values()))))
    error = np.std(weighted) / np.sqrt(150)
    assert np.mean(means) > truth + 4 * error
    assert np.mean(weighted) == pytest.approx(truth, abs=4 * error + 0.02 * truth)


def test_later_draws_go_on_with_the_same_sample_and_queries_come_whole():
    results = many(2, 6)
    first = draw_candidates(results, "m0", "m1", count=45)
    more = draw_candidates(results, "m0", "m1", count=90)
    done = {pair.query_id for pair in first}
    assert more[: len(first)] == first
    assert draw_candidates(results, "m0", "m1", done, count=90 - len(first)) == more[len(first) :]
    sizes = [
        sum(pair.query_id == query for pair in more) for query in {pair.query_id for pair in more}
    ]
    assert set(sizes) == {10}
    same = {"a": results["m0"], "b": results["m0"]}
    assert draw_candidates(same, "a", "b") == []
