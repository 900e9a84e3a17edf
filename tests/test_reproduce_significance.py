"""Tables of the papers have paired tests and the papers' marks, from the scores of every query."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import write_beir
from reproduce import cocodr, extrapolation, mrl, runner
from reproduce.scales import PaperScale
from reproduce.significance import averaged_columns, mark_significance, p_value, query_scores
from reproduce.specification import AgainstZero, Cell, Comparison, Table, difference, mean
from reproduce.tables import averaged_rows, markdown, read_results, single_cells
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
        sets = extrapolation.RESTTEST
        cell = extrapolation.score("resttest-all", model, f"ndcg@10, {regime}", "", sets)
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


#: Tables whose papers make the tests, and those that are tested here alone.
OF_PAPERS = (
    "coco-dr-table2",
    "coco-dr-table3",
    "mrl-table2",
    "mrl-table5",
    "mrl-table6",
    "query-as-context-table1",
)
OF_OURS = (
    *(f"coco-dr-{name}" for name in ("table1", "table6", "table7")),
    *(f"coco-dr-figure{number}" for number in (3, 4, 5, 6)),
    "mrl-table4",
    *(f"query-as-context-table{number}" for number in (2, 3, 4)),
    *(f"extrapolation-table{number}" for number in (5, 6, 7, 8, 9)),
    "extrapolation-figure2",
)

#: Tables without scores of queries: storage and seconds, and statistics of texts.
NOTHING_TO_TEST = (
    "mrl-table3",
    "query-as-context-speed",
    "extrapolation-table3",
    "extrapolation-table4",
)


def test_every_table_with_scores_of_queries_has_tests():
    assert {*OF_PAPERS, *OF_OURS, *NOTHING_TO_TEST} == set(TABLES)
    for name in (*OF_PAPERS, *OF_OURS):
        table = TABLES[name]
        tests = table.comparison or table.against_zero
        assert tests.of_paper == (name in OF_PAPERS), name
        if table.comparison is None:
            assert set(tests.rows) <= set(table.rows)
            continue
        names = table.rows if tests.in_rows else table.columns
        assert tests.against
        for model, others in tests.against.items():
            assert others
            assert {model, *others} <= set(names)
    for name in NOTHING_TO_TEST:
        assert TABLES[name].comparison is None
        assert TABLES[name].against_zero is None


@pytest.mark.parametrize("name", [*OF_PAPERS, *OF_OURS])
def test_what_a_test_compares_has_scores_of_queries_or_a_p_value(name):
    """A judged collection, a gain over one, the queries of a regime, or a correlation."""
    table = TABLES[name]
    tested = 0
    for (row, column), cell in table.cells.items():
        parts = single_cells(cell)
        if table.comparison is None:
            tested += bool(cell.combine == "difference" or all(part.p_value for part in parts))
        elif (row if table.comparison.in_rows else column) in table.comparison.against:
            if any(part.why for part in parts) or cell.combine == "improved":
                continue
            is_change = column.endswith("change_percent")
            is_outside = name == "extrapolation-figure2" and column.endswith("trec-covid")
            has_queries = all(part.step.startswith("judged/") or part.queries for part in parts)
            assert has_queries or is_change or is_outside, (row, column)
            tested += has_queries
    assert tested


def test_a_gain_is_tested_over_the_queries_of_both_models(place, scores):
    steps = {"ours": "coco-dr-base", "weak": "ance", "even": "contriever"}
    cells = {
        name: finish(place, f"judged/{step}/scifact", scores[name]) for name, step in steps.items()
    }
    of_table = {("scifact", name): difference(cells["ours"], cells[name]) for name in steps}
    of_table["scifact", "score"] = cells["ours"]
    tests = AgainstZero(level=0.01, of_paper=False)
    results = read_results(place, Table("t", "", "cocodr", of_table, against_zero=tests))
    entries = results["cells"]["scifact"]
    for name, mark in (("weak", "†"), ("even", ""), ("ours", "")):
        expected = 1.0
        if name != "ours":
            expected = stats.ttest_rel(scores["ours"], scores[name]).pvalue
        assert entries[name]["p_values"] == {"0": pytest.approx(expected)}
        assert entries[name]["marks"] == mark
    assert entries["score"].keys() == {"ours", "published"}
    assert "† significantly different from zero: two-tailed paired t-test" in results["tests"]
    assert results["tests"].endswith("p < 0.01; the paper makes no test here")


def test_a_correlation_has_the_p_value_of_its_analysis(tmp_path):
    """MRL's Table 6 marks the significant correlations of MRL alone."""
    place = Workshop(runner.PAPERS["mrl"], PaperScale(), tmp_path)
    table = TABLES["mrl-table6"]
    rows = ("mrl-sigma-norm", "max-var")
    p_values = {"pearson": 0.01, "kendall": 0.2}
    predictors = [
        {"predictor": name, "pearson": 0.4, "pearson_p": 0.01, "kendall": 0.1, "kendall_p": 0.2}
        for name in ("‖σ²‖", "MaxVAR")
    ]
    folder = place.folder("qpp/trec-dl-2019")
    folder.mkdir(parents=True)
    (folder / "qpp.json").write_text(json.dumps({"predictors": predictors}))
    commands = place.words("qpp/trec-dl-2019")
    content = {"finished": len(commands), "seconds": [1], "commands": commands}
    folder.with_name(f"{folder.name}.progress.json").write_text(json.dumps(content))
    cells = {}
    for row in rows:
        for kind in p_values:
            column = f"trec-dl-2019, {kind}"
            cells[row, column] = replace(table.cells[row, column], making=None, expects=())
    results = read_results(place, replace(table, cells=cells))
    for row in rows:
        for kind, value in p_values.items():
            entry = results["cells"][row][f"trec-dl-2019, {kind}"]
            assert entry["p_values"] == {"0": value}
            assert entry["marks"] == ("†" if (row, kind) == (rows[0], "pearson") else "")
    assert "two-tailed test of the correlation, p < 0.05" in results["tests"]


def test_an_average_of_columns_is_tested_over_the_columns(place):
    """As that of COCO-DR's Table 3 and Figure 3 is."""
    assert averaged_columns(TABLES["coco-dr-table3"]) == {
        "avg": TABLES["coco-dr-table3"].columns[:-1]
    }
    figures = {"ours": [0.5, 0.6, 0.7, 0.6], "rival": [0.4, 0.52, 0.61, 0.49]}
    cells = {}
    for name in figures:
        tasks = [Cell() for _ in range(4)]
        cells |= {(name, f"task{i}"): task for i, task in enumerate(tasks)}
        cells[name, "avg"] = mean(tasks)
    entries = {
        name: {f"task{i}": {"ours": value} for i, value in enumerate(figures[name])}
        for name in figures
    }
    for name, values in figures.items():
        entries[name]["avg"] = {"ours": float(np.mean(values))}
    comparison = Comparison({"ours": {"rival": "†"}}, level=0.05, in_rows=True)
    mark_significance(place, Table("t", "", "cocodr", cells, comparison=comparison), entries, {})
    expected = stats.ttest_rel(figures["ours"], figures["rival"]).pvalue
    assert entries["ours"]["avg"]["p_values"] == {"rival": pytest.approx(expected)}
    assert entries["ours"]["avg"]["marks"] == "†"
