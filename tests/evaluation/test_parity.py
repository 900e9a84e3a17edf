"""Runs made by hand, in which each cause occurs alone and with others; oracles: the three tools."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import ir_measures
import pytest
import pytrec_eval
from beir.retrieval.evaluation import EvaluateRetrieval
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation import parity as parity_module
from beir_cocodr.evaluation.parity import ParityRecord, parity, ranked_documents

ALL = "nDCG@3 nDCG AP AP@2 R@2 R_cap@2 P@3 RR@2 RR Success@1"

Grades = dict[str, dict[str, int]]
Scores = dict[str, dict[str, float]]


def write(folder: Path, qrels: Grades, run: Scores) -> tuple[Path, str]:
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    documents = {d for part in (*qrels.values(), *run.values()) for d in part}
    lines = [json.dumps({"_id": d, "title": "", "text": "text"}) for d in sorted(documents)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    (folder / "queries.jsonl").write_text(
        "\n".join(json.dumps({"_id": q, "text": "text"}) for q in qrels.keys() | run.keys())
    )
    judged = [f"{q}\t{d}\t{g}" for q, grades in qrels.items() for d, g in grades.items()]
    (folder / "qrels" / "test.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n"
    )
    file = folder / "x.run"
    rows = [f"{q} Q0 {d} 1 {s!r} tag\n" for q, found in run.items() for d, s in found.items()]
    file.write_text("".join(rows))
    return file, str(folder)


def told(report: ParityRecord, measure: str, tool: str) -> SimpleNamespace:
    """A tool's difference, with its value and the reference's."""
    [row] = [row for row in report.measures if row.measure == measure]
    [found] = [found for found in row.differences if found.tool == tool]
    value, reference = (row.tools[name].value for name in (tool, "ir_measures"))
    return SimpleNamespace(**vars(found), value=value, reference=reference)


def causes(found: SimpleNamespace) -> list[str]:
    return [cause.cause for cause in found.causes if cause.cause != "rounding"]


def test_missing_queries_alone_the_published_example(tmp_path, caplog):
    """ECOSYSTEM's case: one of two queries found perfectly is 0.5 for one tool and 1.0 for the
    others.
    """
    qrels = {"q1": {"d1": 1}, "q2": {"d2": 1}}
    report = parity(
        *write(tmp_path, qrels, {"q1": {"d1": 2.0, "d3": 1.0}}), measures="nDCG@10 RR@10"
    )
    for tool in ("beir", "pytrec_eval"):
        found = told(report, "nDCG@10", tool)
        assert (found.reference, found.value) == (0.5, 1.0)
        [cause] = found.causes
        assert cause.cause == "queries without results"
        assert (cause.queries, cause.queries_changed, cause.effect) == (1, 1, 0.5)
        assert found.explained
    # BEIR's MRR divides by all judged queries, its nDCG does not.
    assert told(report, "RR@10", "beir").value == 0.5
    assert told(report, "RR@10", "beir").causes == []
    assert report.queries["judged_without_results"] == 1
    assert "x.run has no results for 1 of 2 judged queries, such as" in caplog.text


def test_identical_ids_alone(tmp_path):
    qrels = {"a": {"d1": 1}, "b": {"d1": 1}}
    run = {"a": {"a": 3.0, "d1": 2.0}, "b": {"d1": 3.0, "x": 1.0}}
    report = parity(*write(tmp_path, qrels, run), measures="RR@10 P@1")
    assert told(report, "RR@10", "beir").value == 1.0
    for measure, before in (("RR@10", 0.75), ("P@1", 0.5)):
        [cause] = told(report, measure, "beir").causes
        assert (cause.cause, cause.queries, cause.queries_changed) == ("identical ids", 1, 1)
        assert (cause.before, cause.after) == (before, 1.0)
        assert told(report, measure, "pytrec_eval").causes == []
    assert report.queries["with_own_id_in_results"] == 1


def test_ties_alone_three_tools_three_orders(tmp_path):
    """ir-measures takes d1 first, pytrec_eval d3, BEIR the file's d2."""
    qrels = {"q": {"d2": 1}}
    run = {"q": {"d2": 1.0, "d3": 1.0, "d1": 1.0, "d4": 0.5}}
    report = parity(*write(tmp_path, qrels, run), measures="RR@10 RR nDCG@10")
    assert told(report, "RR@10", "beir").reference == 0.5
    assert told(report, "RR@10", "beir").value == 1.0
    for measure, tool in (("RR@10", "beir"), ("RR", "beir")):
        [cause] = told(report, measure, tool).causes
        assert (cause.cause, cause.queries, cause.effect) == ("ties", 1, 0.5)
    # All three tools compute nDCG with trec_eval's order.
    assert causes(told(report, "nDCG@10", "beir")) == []
    assert report.queries["with_equal_scores"] == 1


def test_scores_that_are_equal_in_float32_only(tmp_path):
    qrels = {"q": {"d1": 1}}
    report = parity(
        *write(tmp_path, qrels, {"q": {"d1": 1 + 1e-9, "d2": 1.0}}), measures="RR@10 nDCG@10"
    )
    found = told(report, "RR@10", "pytrec_eval")
    assert (found.reference, found.value) == (1.0, 0.5)
    assert causes(found) == ["ties"]
    assert "float32" in found.causes[0].reason
    assert report.queries["with_equal_scores"] == 1


def test_capping_alone(tmp_path):
    qrels = {"q": {f"d{i}": 1 for i in range(4)}, "p": {"d1": 1}}
    run = {"q": {"d1": 3.0, "d2": 2.0}, "p": {"d1": 1.0}}
    report = parity(*write(tmp_path, qrels, run), measures="R_cap@2 R@2")
    found = told(report, "R_cap@2", "beir")
    assert (found.reference, found.value) == (0.75, 1.0)
    [cause] = found.causes
    assert (cause.cause, cause.queries, cause.effect) == ("capping", 1, 0.25)
    assert told(report, "R@2", "beir").causes == []


def test_cutoffs_alone(tmp_path):
    many = {f"d{i:04}": 2000.0 - i for i in range(1200)}
    qrels = {"q": {"d0002": 1, "d1100": 1}, "p": {"d0000": 1}}
    report = parity(*write(tmp_path, qrels, {"q": many, "p": {"d0000": 1.0}}), measures="AP RR@2")
    [cause, rounding] = told(report, "AP", "beir").causes
    assert (cause.cause, cause.queries, rounding.cause) == ("cutoff", 1, "rounding")
    assert cause.effect == pytest.approx(-(2 / 1101) / 2 / 2)
    [cause] = told(report, "RR@2", "pytrec_eval").causes
    assert (cause.cause, cause.queries) == ("cutoff", 1)
    assert cause.effect == pytest.approx(1 / 3 / 2)
    assert report.explained


def test_rounding_alone(tmp_path):
    report = parity(
        *write(tmp_path, {"q": {"d1": 1}}, {"q": {"x": 3.0, "y": 2.0, "d1": 1.0}}), measures="RR"
    )
    [cause] = told(report, "RR", "beir").causes
    assert cause.cause == "rounding"
    assert told(report, "RR", "beir").value == 0.33333
    assert cause.effect == pytest.approx(0.33333 - 1 / 3)


def test_queries_that_are_not_judged_and_queries_without_relevant_documents(tmp_path):
    """BEIR's own metrics fail on both, with KeyError and ZeroDivisionError: that is said."""
    qrels = {"q": {"d1": 1}, "none": {"d1": 0}}
    run = {"q": {"d1": 1.0}, "none": {"d1": 1.0}, "unknown": {"d1": 1.0}}
    report = parity(*write(tmp_path, qrels, run), measures="nDCG@10 R_cap@2 RR@2")
    assert report.explained
    assert all(row.differences[0].causes == [] for row in report.measures)
    assert (report.queries["not_judged"], report.queries["judged_without_relevant_documents"]) == (
        1,
        1,
    )
    notes = " ".join(report.notes)
    assert "1 queries of the run are not judged" in notes
    assert "KeyError" in notes
    assert "ZeroDivisionError" in notes
    with pytest.raises(KeyError):
        EvaluateRetrieval.evaluate_custom(qrels, run, [2], "mrr")
    with pytest.raises(ZeroDivisionError):
        EvaluateRetrieval.evaluate_custom(qrels, {"none": {"d1": 1.0}}, [2], "r_cap")


def everything() -> tuple[Grades, Scores]:
    qrels = {
        "a": {"d1": 1, "a": 2, "d5": 1, "d6": 1},
        "b": {"d2": 1, "d3": 1},
        "c": {"d3": 1},
        "e": {"d1": 0},
        "missing": {"d4": 1},
        "own": {"d4": 1},
    }
    run = {
        "a": {"a": 9.0, "d5": 4.0, "d6": 4.0, "d1": 4.0, "x": 4.0},
        "b": {"d1": 2.0, "d3": 1.0, "d2": 1.0},
        "c": {"d1": 5.0, "d2": 4.0, "d3": 3.0},
        "e": {"d1": 1.0},
        "own": {"own": 1.0},
        "unknown": {"d1": 1.0},
    }
    return qrels, run


def test_all_causes_together(tmp_path):
    qrels, run = everything()
    report = parity(*write(tmp_path, qrels, run), measures=ALL)
    assert report.explained
    assert causes(told(report, "R_cap@2", "beir")) == ["identical ids", "ties", "capping"]
    assert causes(told(report, "nDCG@3", "beir")) == ["identical ids", "queries without results"]
    assert causes(told(report, "RR@2", "pytrec_eval")) == [
        "ties",
        "cutoff",
        "queries without results",
    ]
    for row in report.measures:
        for found in row.differences:
            effects = sum(cause.effect for cause in found.causes)
            assert effects + found.remaining == pytest.approx(found.difference, abs=1e-12)
            assert abs(found.remaining) <= 1e-6


def test_the_numbers_are_the_tools_own(tmp_path):
    qrels, run = everything()
    report = parity(*write(tmp_path, qrels, run), measures=ALL)
    results = copy.deepcopy(run)
    ndcg, maps, recall, precision = EvaluateRetrieval.evaluate(qrels, results, [2, 3, 1000])
    expected = {"nDCG@3": ndcg["NDCG@3"], "AP@2": maps["MAP@2"], "AP": maps["MAP@1000"]}
    expected |= {"R@2": recall["Recall@2"], "P@3": precision["P@3"]}
    del results["unknown"]
    expected["RR@2"] = EvaluateRetrieval.evaluate_custom(qrels, results, [2], "mrr")["MRR@2"]
    for measure, value in expected.items():
        assert told(report, measure, "beir").value == value
    for metric, value in ir_measures.calc_aggregate(
        [ir_measures.parse_measure(name) for name in ALL.split() if "cap" not in name], qrels, run
    ).items():
        assert told(report, str(metric), "beir").reference == value
    per_query = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.3", "recip_rank"}).evaluate(run)
    for measure, name in (("nDCG@3", "ndcg_cut_3"), ("RR@2", "recip_rank")):
        mean = sum(scores[name] for scores in per_query.values()) / len(per_query)
        assert told(report, measure, "pytrec_eval").value == pytest.approx(mean, abs=1e-12)


def test_grades_below_zero_are_not_relevant_and_counted(tmp_path, caplog):
    """Given to pytrec_eval as they are, such grades make it hang now and then."""
    run = {"q": {"d2": 2.0, "d1": 1.0}}
    with caplog.at_level("INFO"):
        negative = parity(*write(tmp_path / "a", {"q": {"d1": 1, "d2": -1}}, run), measures=ALL)
    assert f"{tmp_path / 'a'}: grades below 0" in caplog.text
    zero = parity(*write(tmp_path / "b", {"q": {"d1": 1, "d2": 0}}, run), measures=ALL)
    assert negative.measures == zero.measures
    assert [note for note in negative.notes if note not in zero.notes] == [
        "grades below 0, read as 0, which means not relevant as well: 1"
    ]


IDS = ["d1", "d2", "d3", "d4", "d5", "q1", "q2", "é"]
QUERIES = ["q1", "q2", "q3", "d1"]


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    qrels=st.dictionaries(
        st.sampled_from(QUERIES),
        st.dictionaries(st.sampled_from(IDS), st.integers(-1, 2), min_size=1),
        min_size=1,
    ),
    run=st.dictionaries(
        st.sampled_from([*QUERIES, "q9"]),
        st.dictionaries(
            st.sampled_from(IDS),
            st.sampled_from([0.0, -1.0, 0.5, 0.5 + 1e-9, 2.0, 1 / 3]),
            min_size=1,
        ),
    ),
)
def test_any_run_is_explained(tmp_path, qrels, run):
    if not qrels.keys() & run.keys():
        return
    report = parity(*write(tmp_path, qrels, run), measures=ALL)
    assert report.explained, report


def test_orders_are_those_of_the_tools():
    found = {"b": 1.0, "a": 1.0 + 1e-9, "c": 1.0, "é": 1.0, "z": 0.5}
    assert ranked_documents(found, "file") == ["a", "b", "c", "é", "z"]
    assert ranked_documents(found, "msmarco") == ["a", "b", "c", "é", "z"]
    assert ranked_documents(found, "trec_eval") == ["é", "c", "b", "a", "z"]
    for rank, document in enumerate(ranked_documents(found, "trec_eval"), 1):
        evaluator = pytrec_eval.RelevanceEvaluator({"q": {document: 1}}, {"recip_rank"})
        assert evaluator.evaluate({"q": found})["q"]["recip_rank"] == pytest.approx(1 / rank)


def test_what_no_cause_explains_is_said(tmp_path, monkeypatch):
    """A tool that is off by more than its known habits allow."""
    honest = parity_module.beir_values

    def wrong(measures, qrels, run):
        return {name: value + 0.001 for name, value in honest(measures, qrels, run).items()}

    monkeypatch.setattr(parity_module, "beir_values", wrong)
    file, folder = write(tmp_path, {"q": {"d1": 1}}, {"q": {"x": 2.0, "d1": 1.0}})
    report = parity(file, folder, measures="RR@10")
    assert not report.explained
    found = told(report, "RR@10", "beir")
    assert not found.explained
    assert found.remaining == pytest.approx(0.001)
    from rich.console import Console

    from beir_cocodr.report.evaluation_tables import parity_tables

    console = Console(width=160, record=True)
    for table in parity_tables(report):
        console.print(table)
    assert "unexplained" in console.export_text()


@pytest.mark.parametrize(
    "name", ["R", "Judged@10", "nDCG(dcg='exp-log2')@10", "R_cap", "R_cap@0", "bogus", ""]
)
def test_measures_that_the_tools_do_not_share(tmp_path, name):
    file, folder = write(tmp_path, {"q": {"d1": 1}}, {"q": {"d1": 1.0}})
    with pytest.raises(InputError, match="measure"):
        parity(file, folder, measures=name)
