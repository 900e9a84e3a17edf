"""Models by measures with their paired differences, and all paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from beir_cocodr.evaluation.encoder_name import encoder_name
from beir_cocodr.evaluation.recommendation import LEVEL, USE
from beir_cocodr.report.html.figures import p_value, signed, span
from beir_cocodr.report.html.judgement import Judgement
from beir_cocodr.report.html.table import Cell, Column, HtmlTable, number_cell, text_cell


def model_table(judged: Judgement, names: Mapping[str, str]) -> HtmlTable:
    """Every model in every measure, beside its difference to the reference."""
    alone = len(judged.models) == 1
    columns, groups = [Column("Model", number=False)], [("", 1)]
    for measure in judged.measures:
        columns.append(Column("Mean", meaning="mean over queries, with its bootstrap 95% interval"))
        if not alone:
            columns += [
                Column("Difference", meaning="mean of the paired differences, with its 95% interval"),
                Column("p", meaning="two-tailed paired t-test, after Holm's correction"),
                Column("W / T / L", meaning="queries won, tied and lost; sorted by won less lost"),
            ]
        groups.append((measure, 1 if alone else 4))
    rows = []
    for label, record in judged.models.items():
        cells = [text_cell(names[label], _model(record["model"], names[label]))]
        for measure in judged.measures:
            interval = record["intervals"][measure]
            value = record["measures"][measure]
            within = "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
            cells.append(number_cell(value, f"{value:.3f}", within))
            if not alone:
                cells += _against(judged, label, measure)
        rows.append(cells)
    reference = "" if alone else f", and differences to {names[judged.reference]}"
    return HtmlTable(f"Means{reference}", columns, rows, groups, list(_notes(judged, names)))


def test_table(judged: Judgement, names: Mapping[str, str]) -> HtmlTable:
    """Every paired test that was made, b against a."""
    columns = [Column(title, number=False) for title in ("b", "against a", "Question", "Measure")]
    columns += [
        Column("b − a", meaning="mean of the paired differences, with its bootstrap 95% interval"),
        Column("t-test p", meaning="two-tailed, after Holm's correction"),
        Column("Randomisation p", meaning="two-tailed, 10,000 sign flips, after Holm's correction"),
        Column("W / T / L", meaning="queries won, tied and lost by b; sorted by won less lost"),
    ]
    rows = [
        [
            text_cell(names[test["b"]]),
            text_cell(names[test["a"]]),
            text_cell(test["family"]),
            text_cell(test["measure"]),
            _difference(test),
            number_cell(test["t_p_holm"], p_value(test["t_p_holm"])),
            number_cell(test["randomization_p_holm"], p_value(test["randomization_p_holm"])),
            _queries(test),
        ]
        for test in judged.tests
    ]
    return HtmlTable("All paired tests", columns, rows)


def _against(judged: Judgement, label: str, measure: str) -> list[Cell]:
    test = None if label == judged.reference else judged.test(judged.reference, label, measure, USE)
    if test is None:
        return [number_cell(None, ""), number_cell(None, ""), number_cell(None, "")]
    p = test["t_p_holm"]
    return [_difference(test), number_cell(p, p_value(p)), _queries(test)]


def _difference(test: Mapping[str, Any]) -> Cell:
    p, difference = test["t_p_holm"], test["difference"]
    mark = "" if p is None or p >= LEVEL or not difference else "better" if difference > 0 else "worse"
    within = "" if test["interval"] is None else span(test["interval"])
    return number_cell(difference, signed(difference), within, mark)


def _queries(test: Mapping[str, Any]) -> Cell:
    return number_cell(
        test["wins"] - test["losses"], f"{test['wins']:,} / {test['ties']:,} / {test['losses']:,}"
    )


def _model(model: str, name: str) -> str:
    """The model behind a name, where that does not say it; of a path the last part, or two if need be."""
    encoder = encoder_name(model)
    parts = encoder.rstrip("/").split("/")
    ends = ["/".join(parts[-1:]), f"…/{'/'.join(parts[-2:])}" if len(parts) > 2 else encoder]
    kind = model.removesuffix(encoder)
    return next((kind + end for end in ends if kind + end != name), "")


def _notes(judged: Judgement, names: Mapping[str, str]) -> Iterator[str]:
    if len(judged.models) > 1:
        families = {test["family"] for test in judged.tests}
        over = f"“{USE}”" if USE in families else "all pairs of models"
        yield (
            f"p: two-tailed paired t-test over queries, after Holm's correction over {over} in a measure. "
            f"Coloured: p < {LEVEL}."
        )
    alike: dict[str, list[str]] = {}
    for label, record in judged.models.items():
        retrieval = record.get("retrieval") or {}
        if share := retrieval.get("truncated_documents"):
            told = f"{share:.0%} of documents cut at {retrieval['text_format']['document_length']} tokens"
            alike.setdefault(told, []).append(names[label])
    for told, models in alike.items():
        yield f"{told}: {'; '.join(models)}."
    for label, record in judged.models.items():
        if record.get("queries_without_results"):
            yield f"{names[label]}: {record['queries_without_results']:,} queries without results, scored 0."
