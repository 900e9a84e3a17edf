"""The same run scored by ir_measures, pytrec_eval and BEIR."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import depth, parse_measures, score_queries
from beir_cocodr.evaluation.runs import file_names, write_run


@pytest.fixture(scope="module")
def judged():
    rng = np.random.default_rng(0)
    documents = [f"d{i}" for i in range(60)]
    qrels = {
        f"q{i}": {str(d): int(rng.integers(0, 4)) for d in rng.choice(documents, 12, replace=False)}
        for i in range(15)
    }
    results = {}
    for query in qrels:
        scores = np.sort(np.round(rng.random(50), 1))[::-1]  # many ties
        results[query] = list(
            zip(rng.permutation(documents)[:50].tolist(), scores.tolist(), strict=True)
        )
    return qrels, results


def test_equal_to_pytrec_eval_per_query(judged):
    import pytrec_eval

    qrels, results = judged
    ours = score_queries(parse_measures("nDCG@10 R@30"), qrels, results)
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.30"})
    theirs = evaluator.evaluate({query: dict(found) for query, found in results.items()})
    for i, query in enumerate(qrels):
        assert ours["nDCG@10"][i] == pytest.approx(theirs[query]["ndcg_cut_10"], abs=1e-6)
        assert ours["R@30"][i] == pytest.approx(theirs[query]["recall_30"], abs=1e-6)


def test_equal_to_beir_where_all_queries_have_results(judged):
    from beir.retrieval.evaluation import EvaluateRetrieval

    qrels, results = judged
    ours = score_queries(parse_measures("nDCG@10 R@30"), qrels, results)
    run = {query: dict(found) for query, found in copy.deepcopy(results).items()}
    ndcg, _, recall, _ = EvaluateRetrieval.evaluate(
        qrels, run, [10, 30], ignore_identical_ids=False
    )
    assert ours["nDCG@10"].mean() == pytest.approx(ndcg["NDCG@10"], abs=1e-5)
    assert ours["R@30"].mean() == pytest.approx(recall["Recall@30"], abs=1e-5)


def test_a_written_run_gives_the_same_scores_when_read_back(judged, tmp_path):
    import ir_measures

    qrels, results = judged
    write_run(tmp_path / "a.run", results, "tag")
    lines = (tmp_path / "a.run").read_text().splitlines()
    first = lines[0].split(" ")
    assert (first[1], first[3], first[5], len(first)) == ("Q0", "1", "tag", 6)
    read = ir_measures.calc_aggregate(
        parse_measures("nDCG@10"), qrels, ir_measures.read_trec_run(str(tmp_path / "a.run"))
    )
    ours = score_queries(parse_measures("nDCG@10"), qrels, results)["nDCG@10"].mean()
    assert next(iter(read.values())) == pytest.approx(ours, abs=1e-9)


def test_queries_without_results_score_zero(judged):
    qrels, results = judged
    fewer = dict(results) | {"q3": []}
    del fewer["q4"]
    all_of, some = (
        score_queries(parse_measures("nDCG@10"), qrels, found)["nDCG@10"]
        for found in (results, fewer)
    )
    assert some[3] == some[4] == 0
    np.testing.assert_array_equal(np.delete(some, [3, 4]), np.delete(all_of, [3, 4]))
    assert not score_queries(parse_measures("nDCG@10"), qrels, {})["nDCG@10"].any()


def test_depth_is_what_the_measures_need():
    assert depth(parse_measures("nDCG@10, R@100")) == 100
    assert depth(parse_measures("AP nDCG@10")) == 1000


@pytest.mark.parametrize("text", ["nDGC@10", "nDCG@10 bogus", ""])
def test_unknown_measures_are_one_clear_line(text):
    with pytest.raises(InputError, match="measure"):
        parse_measures(text)


@pytest.mark.parametrize("name", ["nDCG@0", "R@0", "P@0", "nDCG@99999999999"])
def test_a_cutoff_that_ends_the_process_is_one_line(name):
    with pytest.raises(InputError, match=r"measure|cutoff"):
        parse_measures(f"AP {name}")


def test_file_names_are_safe_and_unique():
    names = file_names(
        [
            "minilm",
            "hybrid:minilm",
            "a/b/final",
            "c/final",
            "hybrid:/x/final",
            "base + COCO, fused",
            "..",
        ]
    )
    assert list(names.values()) == [
        "minilm", "hybrid-minilm", "final", "final-2", "hybrid-final", "base-+-COCO-fused", "model",
    ]  # fmt: skip


def test_grades_below_zero_are_not_relevant():
    results = {"q": [("spam", 3.0), ("good", 2.0), ("other", 1.0)]}
    measures = parse_measures("nDCG@10 AP RR@10 R@2")
    below = score_queries(measures, {"q": {"spam": -2, "good": 1, "other": 0}}, results)
    zero = score_queries(measures, {"q": {"spam": 0, "good": 1, "other": 0}}, results)
    assert {name: float(values[0]) for name, values in below.items()} == pytest.approx(
        {"nDCG@10": 1 / np.log2(3), "AP": 0.5, "RR@10": 0.5, "R@2": 1.0}
    )
    assert all(np.array_equal(below[name], zero[name]) for name in zero)
