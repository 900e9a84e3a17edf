"""Tables of the papers have paired tests and the papers' marks, from the scores of every query."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import write_beir
from reproduce import cocodr, extrapolation, mrl, runner
from reproduce.scales import PaperScale
from reproduce.significance import mark_significance, p_value, query_scores
from reproduce.specification import Cell, Comparison, Table, mean
from reproduce.tables import averaged_rows, markdown, read_results
from reproduce.workshop import Workshop
from scipy import stats

from beir_cocodr.resampling import ResttestOptions
from beir_cocodr.resampling.regimes.regimes import evaluate_regimes
from beir_cocodr.resampling.resttest import resample_resttest

TABLES = {name: table for name, (_, table) in runner.TABLES.items()}
QUERIES = [f"q{number}" for number in range(12)]


@pytest.fixture
def place(tmp_path) -> Workshop:
    return Workshop(runner.PAPERS["coco-dr"], PaperScale(), tmp_path)


def finish(place: Workshop, step: str, scores: list[float]) -> Cell:
    """Pretend that a step has judged a model with these scores."""
    judged = place.folder(step) / "judged"
    judged.mkdir(parents=True)
    lines = ["query_id\tnDCG@10"]
    lines += [f"{query}\t{score!r}" for query, score in zip(QUERIES, scores, strict=True)]
    (judged / "model.per_query.tsv").write_text("\n".join(lines) + "\n")
    content = {
        "models": {"m": {"measures": {"nDCG@10": float(np.mean(scores))}}},
        "documents": 3,
        "queries": 12,
    }
    (judged / "results.json").write_text(json.dumps(content))
    commands = place.words(step)
    file = place.folder(step).with_name(f"{place.folder(step).name}.progress.json")
    file.write_text(json.dumps({"finished": len(commands), "seconds": [1], "commands": commands}))
    return Cell(step, "judged/results.json:models|*|measures|nDCG@10")


@pytest.fixture
def scores() -> dict[str, list[float]]:
    """Ours is clearly better than one rival, by chance better than the other."""
    rng = np.random.default_rng(3)
    ours = rng.uniform(0.3, 0.9, 12)
    return {
        "ours": ours.tolist(),
        "weak": (ours - rng.uniform(0.05, 0.1, 12)).tolist(),
        "even": (ours + rng.normal(-0.01, 0.2, 12)).tolist(),
    }


def test_p_values_are_those_of_scipy_and_need_the_same_queries(scores):
    first, second = (
        {("c", q): s for q, s in zip(QUERIES, scores[name], strict=True)}
        for name in ("ours", "even")
    )
    expected = stats.ttest_rel(scores["ours"], scores["even"]).pvalue
    assert p_value(first, second) == pytest.approx(expected, rel=1e-12)
    assert p_value(first, first) == 1.0
    assert p_value(first, dict(list(second.items())[1:])) is None


def table_of(place: Workshop, scores, **settings) -> Table:
    judged = [name for name in place.steps if name.startswith("judged/") and "bm25" not in name][:3]
    columns = dict(zip(scores, judged, strict=True))
    cells = {("task", name): finish(place, columns[name], scores[name]) for name in scores}
    return Table("t", "title", "cocodr", cells, comparison=Comparison(**settings))


def test_marks_say_which_models_are_significantly_worse(place, scores, monkeypatch):
    monkeypatch.setattr("reproduce.significance._collection", lambda cell: "c")
    against = {"ours": {"weak": "†", "even": "‡"}}
    table = table_of(place, scores, against=against, level=0.01)
    results = read_results(place, table)
    entry = results["cells"]["task"]["ours"]
    assert entry["marks"] == "†"
    for other in ("weak", "even"):
        expected = stats.ttest_rel(scores["ours"], scores[other]).pvalue
        assert entry["p_values"][other] == pytest.approx(expected, rel=1e-9)
    assert "p_values" not in results["cells"]["task"]["weak"]
    text = markdown(results, 3)
    assert f"{np.mean(scores['ours']):.3f}†" in text
    assert "† weak; ‡ even: two-tailed paired t-test over queries, p < 0.01" in text


def test_one_mark_for_all_others_needs_a_gain_over_each_by_bonferroni(place, scores, monkeypatch):
    monkeypatch.setattr("reproduce.significance._collection", lambda cell: "c")
    against = {"ours": {"weak": "*", "even": "*"}}
    table = table_of(place, scores, against=against, level=0.05, all_at_once=True)
    entry = read_results(place, table)["cells"]["task"]["ours"]
    assert entry["marks"] == ""
    alone = Comparison({"ours": {"weak": "*"}}, level=0.05, all_at_once=True)
    entries = {"task": {name: {"ours": 0.5} for name in scores}}
    mark_significance(place, Table("t", "", "cocodr", table.cells, comparison=alone), entries, {})
    assert entries["task"]["ours"]["marks"] == "*"


def test_a_mean_of_forums_is_tested_over_the_queries_of_all(place, scores):
    first, second = [name for name in place.steps if name.startswith("judged/coco-dr-base/")][:2]
    cells = [finish(place, step, scores["ours"]) for step in (first, second)]
    assert len(query_scores(place, mean(cells))) == 24


def test_an_average_is_tested_over_the_rows_that_it_averages(place):
    cells = {("avg", name): Cell() for name in ("ours", "rival")}
    comparison = Comparison({"ours": {"rival": "†"}}, level=0.05)
    figures = {"ours": [0.5, 0.6, 0.7, 0.6], "rival": [0.4, 0.52, 0.61, 0.49]}
    entries = {f"task{i}": {name: {"ours": figures[name][i]} for name in figures} for i in range(4)}
    entries["avg"] = {name: {"ours": float(np.mean(figures[name]))} for name in figures}
    rows = {"avg": [f"task{i}" for i in range(4)]}
    mark_significance(place, Table("t", "", "cocodr", cells, comparison=comparison), entries, rows)
    expected = stats.ttest_rel(figures["ours"], figures["rival"]).pvalue
    assert entries["avg"]["ours"] == {
        "ours": pytest.approx(0.6),
        "p_values": {"rival": pytest.approx(expected)},
        "marks": "†",
    }


def test_a_regime_is_tested_over_the_scores_of_its_queries(tmp_path, tiny_cosine):
    place = Workshop(runner.PAPERS["extrapolation"], PaperScale(), tmp_path)
    data = str(write_beir(tmp_path / "data", documents=80, queries=30))
    resampled = tmp_path / "resampled"
    options = ResttestOptions(buckets=3)
    resample_resttest(data, data, model=str(tiny_cosine), output=resampled, options=options)
    folder = place.folder("resttest-all")
    regimes = evaluate_regimes(
        resampled, output=folder, architectures=["bm25"], models={"ours": tiny_cosine}
    )
    regimes.write(folder / "regimes.json")
    commands = place.words("resttest-all")
    content = {"finished": len(commands), "seconds": [1], "commands": commands}
    folder.with_name(f"{folder.name}.progress.json").write_text(json.dumps(content))

    def cell(model: str, regime: str) -> Cell:
        cell = extrapolation.score("resttest-all", model, f"ndcg@10, {regime}", "")
        return replace(cell, published="", expects=())

    regime_names = ("inter", "extra", "change_percent")
    cells = {
        (name, regime): cell(name, regime) for name in ("ours", "bm25") for regime in regime_names
    }
    comparison = extrapolation.comparing(extrapolation.over("ours", ["ours", "bm25"]))
    entries = read_results(place, Table("t", "", "extrapolation", cells, comparison=comparison))
    row = entries["cells"]["bm25"]
    for regime in ("inter", "extra"):
        scores = query_scores(place, cells["bm25", regime])
        assert len(scores) == 30
        assert np.mean(list(scores.values())) == pytest.approx(row[regime]["ours"])
    # Extrapolation asks each query once, of the model of its own bucket.
    by_model = {}
    for name in ("ours", "bm25"):
        by_query: dict[str, float] = {}
        for file in sorted(folder.glob(f"cells/*/{name}-42.json")):
            by_query |= json.loads(file.read_text())["scores"]["extrapolation"]["nDCG@10"]
        by_model[name] = [by_query[query] for query in sorted(by_query)]
    expected = stats.ttest_rel(by_model["bm25"], by_model["ours"]).pvalue
    assert row["extra"]["p_values"]["ours"] == pytest.approx(expected, rel=1e-9)
    assert row["extra"]["marks"] == ("†" if expected < 0.05 else "")
    assert "p_values" not in row["change_percent"]
    assert "p_values" not in entries["cells"]["ours"]["extra"]


def test_a_ratio_of_rows_is_no_average():
    table = TABLES["query-as-context-speed"]
    assert averaged_rows(table) == {}
    assert set(averaged_rows(TABLES["coco-dr-table2"])) == {"avg"}


def test_the_tables_compare_what_their_papers_compare():
    ablation = cocodr.over_ablations()
    assert ablation.level == 0.01
    assert set(ablation.against["coco-dr-large"]) == {
        "coco-dr-large-no-idro",
        "coco-dr-large-no-coco",
        "cocondenser-large",
        "condenser-large",
    }
    assert mrl.over_all(["mrl", "bm25", "colbertv2"]).against == {"mrl": {"bm25": "*"}}
    of_papers = ("coco-dr-table2", "coco-dr-table3", "mrl-table2", "mrl-table5")
    of_ours = ("coco-dr-table1", "coco-dr-table7")
    of_ours += tuple(f"extrapolation-table{number}" for number in (6, 7, 8, 9))
    for name in (*of_papers, *of_ours):
        table = TABLES[name]
        assert table.comparison.of_paper == (name in of_papers)
        names = table.rows if table.comparison.in_rows else table.columns
        for model, others in table.comparison.against.items():
            assert {model, *others} <= set(names)
