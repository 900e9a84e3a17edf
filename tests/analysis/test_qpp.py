from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from beir_cocodr.analysis.predictors import PREDICTORS, Predictor
from beir_cocodr.analysis.qpp import QPP, Correlation, QPPOptions, predictor_correlations, qpp
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import read_per_query
from beir_cocodr.evaluation.measures import holm
from beir_cocodr.report.analysis_tables import qpp_table


def first_column(path, measure):
    return {query: score for query, [score] in read_per_query(path, [measure]).items()}


def by_id(numbers) -> dict[str, float]:
    return {f"q{i}": float(number) for i, number in enumerate(numbers)}


def one(values, quality) -> Correlation:
    [row] = predictor_correlations({"p": by_id(values)}, by_id(quality))
    return row


@pytest.fixture(scope="module")
def report(beir_folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("qpp")
    return qpp("bm25", beir_folder, output=output), output


def test_coefficients_have_the_right_size_and_sign():
    quality = np.linspace(0, 1, 12)
    assert one(3 * quality + 1, quality).pearson == pytest.approx(1)
    assert one(-quality, quality).pearson == pytest.approx(-1)
    bent = one(-np.exp(5 * quality), quality)
    assert bent.kendall == pytest.approx(-1)
    assert -1 < bent.pearson < -0.8
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, 4000))
    row = one(x, 0.6 * x + 0.8 * noise)
    assert row.pearson == pytest.approx(0.6, abs=0.03)
    assert row.kendall == pytest.approx(2 / math.pi * math.asin(0.6), abs=0.03)
    assert abs(one(x, noise).pearson) < 0.05


def test_coefficients_by_hand_and_p_against_a_t_distribution():
    x, y = np.array([1.0, 2, 2, 4]), np.array([0.1, 0.3, 0.2, 0.2])
    row = one(x, y)
    r = np.corrcoef(x, y)[0, 1]
    t = r * math.sqrt(2 / (1 - r * r))
    assert row.pearson == pytest.approx(r)
    assert row.pearson_p == pytest.approx(2 * stats.t.sf(abs(t), 2))
    # Pairs in agreement 3, against 1; tied in x one, in y one, of six.
    assert row.kendall == pytest.approx((3 - 1) / math.sqrt(5 * 5))


@given(st.permutations(range(6)))
def test_kendalls_p_is_the_share_of_orders_with_a_larger_coefficient(order):
    row = one(range(6), order)
    reference = stats.kendalltau(range(6), order, method="exact")
    assert (row.kendall, row.kendall_p) == pytest.approx((reference.statistic, reference.pvalue))


def test_missing_and_non_finite_values_are_left_out_and_counted():
    quality = by_id([0.1, 0.4, 0.5, 0.9, 0.7, 0.2])
    values = {"q0": 1.0, "q1": 3.0, "q2": 2.0, "q3": 5.0, "q4": math.nan, "stranger": 1e9}
    [row] = predictor_correlations({"p": values}, quality)
    assert (row.queries, row.left_out) == (4, 2)
    assert row.pearson == pytest.approx(np.corrcoef([1, 3, 2, 5], [0.1, 0.4, 0.5, 0.9])[0, 1])
    [infinite] = predictor_correlations({"p": values | {"q5": -math.inf}}, quality)
    assert infinite == row


@pytest.mark.parametrize(
    ("values", "quality"),
    [([1, 1, 1, 1], [0.1, 0.2, 0.3, 0.4]), ([1, 2, 3], [0.5] * 3), ([1, 2], [0.1, 0.2])],
)
def test_constants_and_two_queries_have_no_coefficients(values, quality):
    row = one(values, quality)
    assert {
        value for key, value in vars(row).items() if key.startswith(("pearson", "kendall"))
    } == {None}


def test_holms_correction_is_over_predictors_of_one_coefficient():
    rng = np.random.default_rng(1)
    quality = by_id(rng.random(20))
    values = {f"p{i}": by_id(rng.random(20)) for i in range(4)} | {"constant": by_id([1] * 20)}
    rows = predictor_correlations(values, quality)
    for name in ("pearson", "kendall"):
        assert [getattr(row, f"{name}_p_holm") for row in rows] == holm(
            [getattr(row, f"{name}_p") for row in rows]
        )
        assert getattr(rows[-1], f"{name}_p_holm") is None


def test_a_predictor_of_a_script_takes_part(beir_folder, monkeypatch):
    size = Predictor(lambda statistics, terms: float(statistics.documents), help="the corpus")
    monkeypatch.setitem(PREDICTORS, "size", size)
    quality = dict.fromkeys(load_collection(beir_folder).queries, 0.5)
    prediction = qpp("bm25", beir_folder, per_query=quality)
    assert prediction.values["size"] == dict.fromkeys(quality, 48.0)
    assert [row.predictor for row in prediction.record.predictors] == list(PREDICTORS)


def test_the_report_can_be_recomputed_from_the_written_values(report, beir_folder):
    prediction, output = report
    result = prediction.record
    result.write(output / "qpp.json")
    assert QPP.read(output / "qpp.json") == result
    json.dumps(result.to_json(), allow_nan=False)
    prediction.write_values(output / "predictors.tsv")
    assert [row.predictor for row in result.predictors] == list(PREDICTORS)
    assert (result.queries, result.documents, result.picture) == (16, 48, None)
    assert all(row.queries + row.left_out == 16 for row in result.predictors)
    quality = first_column(output / "bm25.per_query.tsv", "nDCG@10")
    assert result.mean == pytest.approx(np.mean(list(quality.values())))
    for row in result.predictors:
        written = first_column(output / "predictors.tsv", row.predictor)
        used = [query for query in quality if math.isfinite(written[query])]
        reference = stats.kendalltau([written[q] for q in used], [quality[q] for q in used])
        if row.predictor == "MaxPMI":  # the same for all queries of this collection
            assert row.kendall is None
            assert len(set(written.values())) == 1
            continue
        assert row.kendall == pytest.approx(reference.statistic)
        assert row.kendall_p == pytest.approx(reference.pvalue)


def test_known_per_query_scores_give_the_same_without_a_search(report, beir_folder, tmp_path):
    result, output = report
    again = qpp("bm25", beir_folder, per_query=output / "bm25.per_query.tsv")
    assert again == result
    assert not (tmp_path / "bm25.run").exists()


def test_further_predictors_are_added_to_the_others(beir_folder, tmp_path):
    queries = load_collection(beir_folder).queries
    quality = dict(zip(queries, np.linspace(0, 1, len(queries)), strict=True))
    variance = {query: 2 - value for query, value in list(quality.items())[1:]}
    prediction = qpp("mine", beir_folder, per_query=quality, predictors={"variance": variance})
    prediction.write_values(tmp_path / "predictors.tsv")
    result = prediction.record
    row = result.predictors[-1]
    assert (row.predictor, row.queries, row.left_out) == ("variance", len(queries) - 1, 1)
    assert row.pearson == row.kendall == pytest.approx(-1)
    assert "variance" in (tmp_path / "predictors.tsv").read_text().splitlines()[0]


def test_queries_without_known_terms_are_counted_and_have_no_value(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(
        "".join(
            f'{{"_id": "d{i}", "text": "{text}"}}\n'
            for i, text in enumerate(["wing flow", "drag wing"])
        )
    )
    texts = ["wing flow", "drag", "zebra zebras", "the", "flow"]
    (tmp_path / "queries.jsonl").write_text(
        "".join(f'{{"_id": "q{i}", "text": "{text}"}}\n' for i, text in enumerate(texts))
    )
    (tmp_path / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\td0\t1\n" for i in range(5))
    )
    prediction = qpp("bm25", tmp_path)
    prediction.write_values(tmp_path / "out" / "predictors.tsv")
    result = prediction.record
    assert (result.queries_without_known_terms, result.unknown_query_words) == (2, 2)
    assert [row.left_out for row in result.predictors] == [2, 2, 2, 2, 4]
    written = (tmp_path / "out" / "predictors.tsv").read_text().splitlines()
    assert written[3].split("\t")[2:] == ["nan"] * 5


def test_the_rounding_of_sums_breaks_no_tie(tmp_path):
    """Three postings with tf 6 have no variance, although their mean is rounded."""
    (tmp_path / "corpus.jsonl").write_text(
        "".join(f'{{"_id": "d{i}", "text": "{("wing " * 6 + "drag ")}"}}\n' for i in range(3))
    )
    queries = ("wing", "drag", "wing drag")
    (tmp_path / "queries.jsonl").write_text(
        "".join(f'{{"_id": "q{i}", "text": "{text}"}}\n' for i, text in enumerate(queries))
    )
    prediction = qpp("mine", tmp_path, per_query=by_id([0.1, 0.2, 0.3]))
    prediction.write_values(tmp_path / "predictors.tsv")
    result = prediction.record
    written = first_column(tmp_path / "predictors.tsv", "MaxVAR")
    assert set(written.values()) == {0.0}
    assert result.predictors[2].kendall is None


def test_the_table_names_what_was_left_out(report):
    from rich.console import Console

    console = Console(width=160, record=True, file=io.StringIO())
    console.print(qpp_table(report[0].record))
    text = console.export_text()
    for name in [*PREDICTORS, "MaxDC", "P_clarity", "--word-vectors"]:
        assert name in text


def test_bad_input_is_refused_by_name(beir_folder, tmp_path):
    queries = load_collection(beir_folder).queries
    some = dict.fromkeys(queries, 0.5)

    def refused(match: str, per_query, predictors=None, **options):
        with pytest.raises(InputError, match=match):
            qpp(
                "bm25",
                beir_folder,
                per_query=per_query,
                predictors=predictors,
                options=QPPOptions(**options),
            )

    refused("'q0'", {"q0": 0.5})  # a query of the train split
    refused("no query", {})
    refused("nan", some | {next(iter(queries)): math.nan})
    refused("'AvgIDF'", some, predictors={"AvgIDF": some})
    refused("'mine' has no value", some, predictors={"mine": {"x": 1.0}})
    refused("one measure", some, measure="nDCG@10 AP")
    refused("policy.*'some'", some, identical_ids="some")
    refused("absent", tmp_path / "absent.tsv")
    for text, match in {
        "query_id\tAP\nq1\t0.5\n": "no nDCG@10.*AP",
        "query_id\tnDCG@10\nq1\t0.5\nq2\tgood\n": r":3: .*'good'",
        "query_id\tnDCG@10\nq1\t0.5\nq1\t0.5\n": r":3: .*'q1'",
        "query_id\tnDCG@10\nq1\n": r":2: 1 columns",
        "query_id\tnDCG@10\nq1\t0.5": "ends in the middle of a line",
    }.items():
        (tmp_path / "bad.tsv").write_text(text)
        refused(match, tmp_path / "bad.tsv")
