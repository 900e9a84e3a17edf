"""Parts of the page, each against what it must be."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.evaluation.calibration import Calibration, Precedent
from beir_cocodr.evaluation.label_free.verdict import best_of
from beir_cocodr.evaluation.measures import paired_tests
from beir_cocodr.evaluation.recommendation import TRAINING, USE
from beir_cocodr.evaluation.results import (
    AnnotationCandidates,
    Best,
    ComparisonRecord,
    Estimate,
    EvaluationRecord,
    PairVerdict,
    PseudoQueryFigures,
)
from beir_cocodr.evaluation.runs import run_tops
from beir_cocodr.report import terminal
from beir_cocodr.report.evaluation_tables import verdict_tables
from beir_cocodr.report.html.headline import label_free_headline, recommended_use
from beir_cocodr.report.html.page import page
from beir_cocodr.report.html.pictures import cluster_pictures, picture, plain, reliability_picture
from beir_cocodr.report.html.queries import chosen_queries, list_spread, score_spread
from beir_cocodr.report.html.results_folder import ClusterWeights, LabelledEvaluation
from beir_cocodr.report.terminal import print_tables
from beir_cocodr.report.wording import collection_name, meaning, p_value, short_names, signed, span
from beir_cocodr.serve.session import ShownVerdict


@given(st.lists(st.floats(0, 1), max_size=60), st.integers(0, 70))
def test_as_many_queries_as_asked_for_with_the_largest_among_them(values, most):
    spread = {f"q{i}": value for i, value in enumerate(values)}
    chosen = chosen_queries(spread, most)
    assert len(chosen) == min(most, len(spread)) == len(set(chosen))
    assert chosen == [query for query in spread if query in chosen]
    half = sorted(values, reverse=True)[: (most + 1) // 2]
    kept = sorted((spread[query] for query in chosen), reverse=True)
    assert kept[: len(half)] == half


def test_spreads():
    assert score_spread([{"x": [0.5, 9]}, {"x": [0.7, 0]}, {"x": [0.1, 0]}]) == {
        "x": pytest.approx(0.4)
    }
    assert list_spread([{"x": ["a", "b"]}, {"x": ["b", "c"]}, {"x": ["a", "b"]}], 2) == {"x": 0.5}
    assert list_spread([{"x": ["a"]}, {}], 1) == {"x": 1.0}


@given(
    st.dictionaries(
        st.sampled_from(["q1", "q2"]),
        st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 99)), max_size=60),
    )
)
def test_the_top_of_a_run_is_that_of_the_whole_sorted(tmp_path_factory, hits):
    path = tmp_path_factory.mktemp("run") / "a.run"
    unique = {
        query: {f"d{number}": score for score, number in found} for query, found in hits.items()
    }
    lines = [f"{q} Q0 {d} 1 {s} t\n" for q, found in unique.items() for d, s in found.items()]
    path.write_text("".join(lines))
    expected = {
        query: sorted(found, key=lambda d: (found[d], d), reverse=True)[:3]
        for query, found in unique.items()
        if found
    }
    assert run_tops(path, 3) == expected
    assert run_tops(path, 3, {"q2"}) == {q: found for q, found in expected.items() if q == "q2"}


def test_short_names_are_unique():
    names = short_names(
        ["a/b/c", "hybrid:a/b/c", "x/c", "bm25", "base + COCO, fused", "z" * 90, "m/n/"]
    )
    assert names["hybrid:a/b/c"] == "hybrid:c"
    assert names["a/b/c"] == "a/b/c"
    assert names["x/c"] == "x/c"
    assert names["base + COCO, fused"] == "base + COCO, fused"
    assert names["m/n/"] == "n"
    assert len(names["z" * 90]) <= 40
    assert len(set(names.values())) == len(names)


def test_a_collection_is_called_by_its_name_and_a_folder_by_its_last_part():
    for name in (
        "apidocs/scipy+sklearn",
        "irds:beir/scifact/test",
        "scifact",
        "cqadupstack/android",
    ):
        assert collection_name(name) == name
    assert collection_name("/data/beir/scifact/") == "scifact"
    assert collection_name("./mine") == "mine"
    assert collection_name("a/b/c") == "c"


def test_figures():
    assert signed(-0.0412) == "−0.041"
    assert span([-0.1, 0.25]) == "−0.100 to +0.250"
    assert span(None) == "–"
    assert (p_value(0.00001), p_value(0.0321), p_value(None)) == ("< 0.001", "0.032", "–")


def test_a_test_that_was_made_the_other_way_round_is_turned():
    rng = np.random.default_rng(0)
    scores = {name: {"m": rng.random(30)} for name in "ab"}
    tests = paired_tests(scores, {TRAINING: [("b", "a")], USE: [("b", "a"), ("b", "a")]})
    record = EvaluationRecord(
        dataset="d", split="test", documents=1, queries=30, models={}, comparisons=tests
    )
    judged = LabelledEvaluation(record, "a")
    turned, [direct] = (
        judged.test("a", "b", "m", family=USE),
        paired_tests(scores, {"f": [("a", "b")]}),
    )
    assert turned.difference == pytest.approx(direct.difference)
    assert turned.interval == pytest.approx(direct.interval, abs=0.02)  # other resamples
    assert (turned.wins, turned.losses) == (direct.wins, direct.losses)
    assert turned.t_p_holm == pytest.approx(2 * direct.t_p)
    assert judged.test("a", "b", "m", family=TRAINING).t_p_holm == pytest.approx(direct.t_p)
    assert judged.test("a", "nobody", "m") is None


def test_the_reliability_diagram_has_a_point_for_each_bin():
    bins = [{"predicted": p, "observed": p / 2, "pairs": 10} for p in (0.1, 0.5, 0.9)]
    drawn = reliability_picture(Calibration(["a", "b"], [], {}, "2026-01-01", reliability=bins))
    assert drawn is not None
    assert "30 pairs" in drawn.caption
    assert "2 labelled collections" in drawn.caption
    [marks] = re.findall(
        r'<use [^>]*x="([^"]+)" y="([^"]+)"(?:.*?)' * 3, drawn.svg.split("line2d")[-1], re.DOTALL
    )
    points = np.array(marks, float).reshape(3, 2)
    # In units of the axes, of which an SVG's second grows downwards.
    right, down = np.diff(points, axis=0).T
    assert right[0] == pytest.approx(right[1])
    assert down[0] == pytest.approx(down[1])
    assert down[0] < 0 < right[0]
    assert reliability_picture(Calibration([], [], {}, "2026-01-01")) is None


def test_pictures_take_the_colours_of_the_page_and_ids_of_their_own():
    def draw(axis):
        axis.plot([0, 1], [0, 1])
        axis.set_title(plain('a $b$ <c> id="d" \x00'))

    first, second = (picture(name, "t <", "c", 2, draw).svg for name in ("one", "two"))
    assert "var(--muted)" in first
    assert "DejaVu" not in first
    assert "#020202" not in first
    assert 'id="one-figure_1"' in first
    assert 'id="two-figure_1"' in second
    assert first.replace("one-", "two-") == second
    assert 'a $b$ &lt;c&gt; id="d" \ufffd' in first
    assert "<script" not in first
    assert 'aria-label="t &lt;"' in first


def test_cluster_weights_that_never_move_can_be_drawn():
    lines = [ClusterWeights(step, [0.125] * 8) for step in (10, 20)]
    weights, heat = cluster_pictures("c", "same", lines)
    assert "8 clusters" in weights.caption
    assert "All weights stay equal throughout" in heat.caption
    assert len(cluster_pictures("c", "one line", lines[:1])) == 1
    assert len(cluster_pictures("c", "few", [ClusterWeights(1, [0.4, 0.6])] * 2)) == 1


def test_the_heat_map_says_what_its_strongest_colour_is():
    lines = [ClusterWeights(1, [0.1] * 10), ClusterWeights(2, [0.4] + [0.6 / 9] * 9)]
    _, heat = cluster_pictures("c", "t", lines)
    assert "is 4 times the equal weight" in heat.caption
    lines[1] = ClusterWeights(2, [0.1001] + [0.8999 / 9] * 9)
    assert "is 0.10% above or below" in cluster_pictures("c", "t", lines)[1].caption


@pytest.mark.parametrize(("first", "expected"), [("a", "better"), ("b", "worse")])
def test_a_calibrated_verdict_is_turned_with_its_pair(first, expected):
    estimate = Estimate("held-out crops", 0.1, 0.3, 0.2, (0.1, 0.4), 0.5, 9, 0, 1, 10, True, "")
    pair = PairVerdict(
        "a",
        "b",
        "f",
        "better",
        0.97,
        "calibrated",
        0.94,
        "r",
        "t",
        {},
        [estimate],
        0.5,
        0.2,
        (0.1, 0.3),
    )
    models = [first, *({"a", "b"} - {first})]
    found = label_free_headline(comparison_of(pair, models), {"a": "A", "b": "B"})
    assert found.verdict == expected
    assert found.pair == tuple(models)
    assert ("Chance to be better", "0.97" if first == "a" else "0.03") in found.facts
    assert ("+0.200" if first == "a" else "−0.200") in found.sentence
    assert f"{models[1].upper()} is {expected} than {first.upper()} on d" in found.sentence
    told = "+0.200 (+0.100 to +0.400)" if first == "a" else "−0.200 (−0.400 to −0.100)"
    assert ("Held-out crops", told) in found.facts
    assert found.notes == ["t"]


def test_without_a_verdict_the_better_bet_is_named_with_its_basis():
    crops = Estimate(
        "held-out crops", 0.1, 0.3, 0.2, (0.1, 0.4), 0.5, 9, 0, 1, 10, False, "trained on them"
    )
    pair = PairVerdict(
        a="a",
        b="b",
        family="f",
        verdict="cannot tell",
        probability=0.9,
        rule="calibrated",
        score=0.8,
        reason="r",
        trust="t",
        features={},
        estimates=[crops],
        distance=0.5,
        estimate=0.05,
        interval=(-0.02, 0.12),
        prior_share=0.75,
        precedent=Precedent(25, 21, 0.05),
    )
    found = label_free_headline(comparison_of(pair, ["a", "b"]), {"a": "A", "b": "B"})
    assert found.sentence == (
        "No verdict from this corpus; B is the better bet: in 21 of 25 labelled collections it was "
        "better, by 0.05 on average (chance 90%)."
    )
    # What is no evidence for the pair is no figure of its verdict.
    assert "Held-out crops" not in dict(found.facts)
    assert ("Estimated nDCG@10", "+0.050 (90% −0.020 to +0.120)") in found.facts
    assert ("Share of the prior", "75%") in found.facts
    turned = label_free_headline(comparison_of(pair, ["b", "a"]), {"a": "A", "b": "B"})
    assert turned.sentence == found.sentence


def open_pair(**changes: Any) -> PairVerdict:
    pair = PairVerdict(
        a="minilm",
        b="hybrid:minilm",
        family="f",
        verdict="cannot tell",
        probability=0.87,
        rule="calibrated",
        score=0.74,
        reason="what it rests on",
        trust="t",
        features={},
        estimates=[],
        distance=0.3,
        estimate=0.04,
        interval=(-0.02, 0.1),
        prior_share=0.6,
        precedent=Precedent(25, 21, 0.05),
    )
    return replace(pair, **changes)


@pytest.mark.parametrize("average", [0.004, -0.004])
@pytest.mark.parametrize("better", [21, 4])
def test_an_average_that_rounds_to_nothing_is_said_as_such(better, average):
    answer = open_pair(precedent=Precedent(25, better, average)).answer
    assert "less than 0.01" in answer
    assert "0.00 " not in answer


def test_what_rests_on_nothing_of_the_corpus_claims_no_evidence_of_it():
    without = open_pair(rule="prior", prior_share=1.0)
    assert best_of(["hybrid:minilm", "minilm"], [without]).reason.endswith(
        "This estimate is what usually wins; this corpus gives no evidence on it."
    )
    unknown = replace(
        without, family="models of a kind that the calibration does not have", precedent=None
    )
    assert best_of(["hybrid:minilm", "minilm"], [unknown]).reason.endswith(
        "and this corpus gives no evidence on them."
    )


def test_tables_show_texts_as_they_are(capsys):
    """Brackets and colons of queries, ids and folders are no markup."""
    query = "what does [/] mean in [bold]text[/bold] :cat:"
    table = terminal.make_table(
        "docs[old]", ["query"], ["nDCG@10 [x]"], [[query, "0.5"]], ["a note [red]"], ["[last]"]
    )
    print_tables(table)
    printed = capsys.readouterr().out
    for text in (query, "docs[old]", "nDCG@10 [x]", "a note [red]", "[last]"):
        assert text in printed


def test_titles_name_a_folder_and_not_how_it_is_read(capsys):
    comparison = comparison_of(open_pair(), ["minilm", "hybrid:minilm"])
    comparison = replace(comparison, dataset="my-folder?language=de")
    assert printed_rows(comparison, capsys, title="verdicts on my-folder, b against a")


@pytest.mark.parametrize("probability", [0.87, 0.2])
def test_terminal_json_report_and_page_say_the_same(probability, monkeypatch, capsys):
    estimate = 0.04 if probability > 0.5 else -0.04
    pair = open_pair(probability=probability, estimate=estimate)
    ranking = [pair.better_bet, *({"minilm", "hybrid:minilm"} - {pair.better_bet})]
    comparison = comparison_of(pair, ["minilm", "hybrid:minilm"])
    best = best_of(ranking, [pair])
    comparison = replace(comparison, ranking=ranking, best=best)
    names = {name: name for name in comparison.models}
    json_pair = comparison.to_json()["pairs"][0]
    assert json_pair["answer"] == pair.answer
    assert json_pair["verdict"] == "cannot tell"
    assert best.reason.startswith(f"{pair.answer}.")
    assert label_free_headline(comparison, names).sentence == f"{pair.answer}."
    shown = ShownVerdict.of(comparison, version=1)
    assert shown.pairs[0].answer == pair.answer
    assert shown.headline == best.reason
    monkeypatch.setattr(terminal, "_WIDTH", 500)  # nothing is wrapped
    [row] = printed_rows(comparison, capsys)
    assert row[:3] == [pair.a, pair.b, "cannot tell"]
    assert row[3:6] == [signed(pair.estimate), span(pair.interval), f"{pair.probability:.2f}"]
    assert row[6] == f"{pair.answer}. Estimate: {pair.reason}."
    output = SimpleNamespace(
        adaptation=None, comparison=comparison, evaluation=None, judged=comparison
    )
    advice = recommended_use(output, names)
    # The box follows the evidence: nothing is shown to be better than the first model, or it is a
    # bet.
    is_first = pair.better_bet == comparison.models[0]
    assert advice.title == f"{'Keep' if is_first else 'Best bet:'} {pair.better_bet}"
    assert advice.text == best.reason
    decided = replace(pair, verdict="better" if estimate > 0 else "worse")
    sure = replace(comparison, best=best_of(ranking, [decided]))
    output = SimpleNamespace(adaptation=None, comparison=sure, evaluation=None, judged=sure)
    verb = "Keep" if is_first else "Use"
    assert recommended_use(output, names).title == f"{verb} {pair.better_bet}"
    # A run cannot search, so there is no command for it.
    of_runs = replace(sure, retrieval={name: {"model": "run"} for name in names})
    output = SimpleNamespace(adaptation=None, comparison=of_runs, evaluation=None, judged=of_runs)
    assert recommended_use(output, names) is None
    sure = replace(sure, pairs=[decided])
    [row] = printed_rows(sure, capsys)
    assert row[2] == decided.verdict == sure.to_json()["pairs"][0]["verdict"]
    assert row[6].startswith(f"{decided.answer}.")


def printed_rows(
    comparison: ComparisonRecord, capsys: pytest.CaptureFixture[str], title: str = ""
) -> list[list[str]]:
    """Print the tables of a comparison with a title, and return the cells of each verdict."""
    figures = PseudoQueryFigures(40, of_the_collection=True)
    comparison = replace(comparison, pseudo_queries={"agreement": figures})
    print_tables(*verdict_tables(comparison))
    printed = capsys.readouterr().out
    assert comparison.best.reason in printed
    assert title in printed
    rows = [line.strip("│").split("│") for line in printed.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


def comparison_of(pair: PairVerdict, models: list[str]) -> ComparisonRecord:
    return ComparisonRecord(
        ranking=["b", "a"],
        best=Best("b", "", []),
        pairs=[pair],
        dataset="d",
        split=None,
        labels=False,
        documents=1,
        queries=0,
        corpus_sha256="",
        identical_ids="keep",
        models=models,
        labels_wanted=AnnotationCandidates("a", "b", [], ""),
        seen={},
        versions={},
    )


def test_measures_and_terms_have_meanings():
    assert "10 documents" in meaning("nDCG@10")
    assert "relevant documents" in meaning("R@100")
    assert "retrieved documents" in meaning("AP")
    assert meaning("95% interval") != meaning("p after Holm") != ""
    assert "among the first 5 documents" in meaning("P@5")
    assert meaning("Source") == ""


def test_a_template_that_lacks_a_part_is_an_error():
    with pytest.raises(Exception, match="undefined"):
        page({"title": "t"})


def test_packaged_published_figures_are_those_of_the_benchmarks():
    from importlib import resources
    from pathlib import Path

    from beir_cocodr.report.html.published import PACKAGE

    folder = Path(__file__).parents[2] / "benchmarks" / "published"
    for file in folder.glob("*.json"):
        packaged = resources.files(PACKAGE).joinpath(file.name).read_text(encoding="utf-8")
        assert json.loads(packaged) == json.loads(file.read_text())
