"""A table that can be sorted, as the template takes it.

Models by measures with their paired differences, and all paired tests.

Estimates and verdicts of a comparison without labels, and the pairs whose labels would tell most.

How models were trained, and what was measured after each round.

The papers' figures beside ours, on collections that they report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from beir_cocodr.evaluation.label_free.pseudo_queries import TRAINED_ON
from beir_cocodr.evaluation.label_free.verdict import training_pairs
from beir_cocodr.evaluation.recommendation import BASE, LEVEL, USE
from beir_cocodr.models.spec import ModelSpec
from beir_cocodr.report.html.outputs import Judgement, Trained, read_json
from beir_cocodr.report.html.text import p_value, signed, span


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: what is shown.
        value: what is sorted by; None sorts last.
        sub: smaller, below the text.
        mark: a class of the style sheet, such as "better".
    """

    text: str
    value: float | str | None = None
    sub: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Column:
    """One column: its header, whether it holds numbers, and what it means."""

    title: str
    number: bool = True
    meaning: str = ""


@dataclass(frozen=True)
class HtmlTable:
    """A table.

    Attributes:
        caption: what it shows.
        columns, rows: each row has a cell for every column; the first cell names the row.
        groups: (title, number of columns) over the columns, or nothing.
        notes: below it.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = field(default_factory=list)


def text_cell(text: str, sub: str = "", mark: str = "") -> Cell:
    """A cell that is sorted by its text."""
    return Cell(text, text.casefold(), sub, mark)


def number_cell(value: float | None, text: str, sub: str = "", mark: str = "") -> Cell:
    """A cell that is sorted by its number; a dash where there is none."""
    return Cell("–" if value is None else text, value, sub, mark)


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
    spec = ModelSpec.parse(model)
    encoder = spec.encoder
    parts = encoder.rstrip("/").split("/")
    ends = ["/".join(parts[-1:]), f"…/{'/'.join(parts[-2:])}" if len(parts) > 2 else encoder]
    return next((spec.prefix + end for end in ends if spec.prefix + end != name), "")


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


_VERDICTS = {"better": 1, "cannot tell": 0, "worse": -1}


def verdict_table(
    comparison: Mapping[str, Any],
    names: Mapping[str, str],
    pairs: Sequence[Mapping[str, Any]],
    caption: str,
) -> HtmlTable:
    """Pairs of models: the rule's verdict, and each estimate of b − a with its interval.

    Args:
        comparison: of ``compare`` without labels.
        names: model to the name that is shown.
        pairs: those of its pairs that are shown.
        caption: over the table.
    """
    estimators = list(dict.fromkeys(found["estimator"] for pair in pairs for found in pair["estimates"]))
    calibrated = any(pair["probability"] is not None for pair in pairs)
    columns = [
        Column("b", number=False),
        Column("against a", number=False),
        Column("Verdict", meaning="on b against a, by the rule; sorted from better to worse"),
        *([Column("P", meaning="P(b is better), by the calibrated rule")] if calibrated else []),
        *(Column(name[0].upper() + name[1:], meaning="b − a, with its 95% interval") for name in estimators),
    ]
    rows = []
    for pair in pairs:
        verdict, chance = pair["verdict"], pair["probability"]
        estimates = {estimate["estimator"]: estimate for estimate in pair["estimates"]}
        rows.append(
            [
                text_cell(names[pair["b"]]),
                text_cell(names[pair["a"]]),
                Cell(verdict, _VERDICTS.get(verdict), mark=verdict if verdict != "cannot tell" else ""),
                *([number_cell(chance, f"{chance or 0:.2f}")] if calibrated else []),
                *(_estimate(estimates.get(name)) for name in estimators),
            ]
        )
    notes = [f"The rule: {pairs[0]['reason']}."] if len(pairs) == 1 else []
    notes += dict.fromkeys(
        f"{found['estimator'][0].upper()}{found['estimator'][1:]}, where not counted: {found['remark']}."
        for pair in pairs
        for found in pair["estimates"]
        if found["remark"]
    )
    notes += dict.fromkeys(pair["trust"] for pair in pairs)
    return HtmlTable(caption, columns, rows, notes=[*notes, *_leakage(comparison)])


def shown_pairs(
    comparison: Mapping[str, Any], reference: str, names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The pairs with the reference, and those of an encoder with the base used in the same way."""
    labels = {label: name for name, label in names.items()}
    same_use = training_pairs(labels) if BASE in labels else []
    alike = {(labels[a], labels[b]) for a, b in same_use}
    return [
        pair
        for pair in comparison["pairs"]
        if reference in (pair["a"], pair["b"]) or (pair["a"], pair["b"]) in alike
    ]


def annotation_table(wanted: Mapping[str, Any], names: Mapping[str, str]) -> HtmlTable:
    """The query-document pairs whose labels would move the comparison most."""
    a, b = (names[wanted[side]] for side in "ab")
    columns = [
        Column("Query", number=False),
        Column("Document", number=False),
        Column("Weight", meaning="by how much the difference in DCG@10 changes if the document is relevant"),
        Column("Rank in a", meaning=a),
        Column("Rank in b", meaning=b),
    ]
    rows = [
        [
            text_cell(row["query"] or row["query_id"], row["query_id"]),
            text_cell(row["document"][:160] or row["document_id"], row["document_id"]),
            number_cell(row["weight"], f"{row['weight']:.3f}"),
            *(number_cell(row[name], str(row[name])) for name in ("rank_a", "rank_b")),
        ]
        for row in wanted["pairs"]
    ]
    return HtmlTable(f"Labels that would tell most between a = {a} and b = {b}", columns, rows)


def _estimate(estimate: Mapping[str, Any] | None) -> Cell:
    if estimate is None or estimate["difference"] is None:
        return number_cell(None, "")
    mark = {1: "better", -1: "worse"}.get(estimate["sign"], "")
    within = "" if estimate["interval"] is None else span(estimate["interval"])
    below = within if estimate["applies"] else "not counted"
    return number_cell(estimate["difference"], signed(estimate["difference"]), below, mark)


def _leakage(comparison: Mapping[str, Any]) -> list[str]:
    """How easy the pseudo-queries are."""
    told = []
    for name in ("held-out crops", "generated queries"):
        found = comparison["pseudo_queries"][name]
        if found["verbatim"] is not None:
            told.append(
                f"{name[0].upper()}{name[1:]}: {found['queries']:,}; {found['verbatim']:.0%} of their words "
                f"stand in the document that they have to find, and BM25 alone has nDCG@10 "
                f"{found['bm25_ndcg']:.3f}."
            )
        if known := found.get("counts", {}).get(TRAINED_ON):
            told.append(f"{name[0].upper()}{name[1:]}: {known:,} left out, as a model was trained on them.")
    return told


def training_table(trained: Sequence[Trained]) -> HtmlTable:
    """A row for every training, the ancestors of a model below it."""
    columns = [
        Column("Model", number=False),
        Column("Stage", number=False),
        Column("Given", number=False, meaning="the collections that training was given"),
        *(Column(title) for title in ("Steps", "Seed", "Loss", "Seconds")),
    ]
    rows = []
    for name, record in _lineage(trained):
        options = record.get("options", {})
        loss, seconds, steps = record.get("training_loss"), record.get("seconds"), record.get("steps")
        given = ", ".join(
            f"{shown.get('dataset')} ({shown['documents']:,} documents"
            + (f", {shown['queries']:,} queries)" if shown.get("queries") is not None else ")")
            for shown in record.get("seen", [])
            if shown.get("documents") is not None
        )
        rows.append(
            [
                text_cell(name, f"from {record.get('base', '?')}"),
                text_cell(str(record["stage"])),
                text_cell(given or "–"),
                number_cell(steps, f"{steps:,}" if steps is not None else ""),
                number_cell(options.get("seed"), str(options.get("seed"))),
                number_cell(loss, f"{loss:.4g}" if loss is not None else ""),
                number_cell(seconds, f"{seconds:,.0f}" if seconds is not None else ""),
            ]
        )
    return HtmlTable("Trainings", columns, rows)


def settings_table(model: Trained) -> HtmlTable:
    """Every setting of a training."""
    rows = [
        [text_cell(key), text_cell(value if isinstance(value, str) else json.dumps(value))]
        for key, value in {**model.record.get("options", {}), **model.record.get("encoder", {})}.items()
    ]
    columns = [Column("Setting", number=False), Column("Value", number=False)]
    return HtmlTable(f"Settings of {model.name}", columns, rows)


def curve_table(name: str, points: Sequence[Mapping[str, Any]]) -> HtmlTable:
    """The measures after each round."""
    measures = [key for key in points[0] if key not in ("model", "dataset")]
    columns = [Column("Round", number=False), Column("Target", number=False), *map(Column, measures)]
    rows = [
        [
            text_cell(point["model"]),
            text_cell(point["dataset"]),
            *(
                number_cell(value, f"{value:.3f}" if value is not None else "")
                for value in (point.get(measure) for measure in measures)
            ),
        ]
        for point in points
    ]
    return HtmlTable(f"After every round of {name}", columns, rows)


def _lineage(trained: Sequence[Trained]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in trained:
        name = model.name
        record: dict[str, Any] | None = model.record
        while record is not None:
            yield name, record
            record, name = record.get("parent"), f"{model.name}, before"


#: Where the figures lie in an installation: benchmarks/published of the source tree.
PACKAGE = "beir_cocodr.published"

_MEASURE = "nDCG@10"


def published_table(
    judged: Judgement, names: Mapping[str, str], files: Sequence[Path] = ()
) -> HtmlTable | None:
    """Our models among the published ones; None where the collection, or nDCG@10, is in no paper.

    Args:
        judged: our evaluation.
        names: label to the name that is shown.
        files: JSON files in the form of benchmarks/published, instead of the packaged ones.

    Source: COCO-DR, table 1; MRL, table 5.
    """
    if _MEASURE not in judged.measures:
        return None
    contents = [read_json(file) for file in files] if files else _packaged()
    task = _task(judged.dataset, contents)
    if task is None:
        return None
    ours = {label: record["measures"][_MEASURE] for label, record in judged.models.items()}
    rows = [
        [
            text_cell(names[label], mark="ours"),
            text_cell("this evaluation"),
            number_cell(value, f"{value:.3f}"),
        ]
        for label, value in ours.items()
    ]
    for content in contents:
        paper = str(content.get("paper", "")).split(",")[0]
        rows += [
            [text_cell(method), text_cell(paper), number_cell(value, f"{value:.3f}")]
            for method, value in _scores(content, task).items()
            if value is not None
        ]
    rows.sort(key=lambda row: -float(row[2].value or 0))
    columns = [Column("Model", number=False), Column("Source", number=False), Column(_MEASURE)]
    return HtmlTable(
        f"Published figures on {task}", columns, rows, notes=_published_notes(judged, task, contents)
    )


def _packaged() -> list[dict[str, Any]]:
    try:
        folder = resources.files(PACKAGE)
    except ModuleNotFoundError:
        return []
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda f: f.name)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _task(dataset: str, contents: Sequence[Mapping[str, Any]]) -> str | None:
    """What BEIR calls a collection, if a paper reports it; a single forum of cqadupstack is not the task."""
    parts = [part for part in re.split(r"[/:\\]", dataset.lower()) if part not in ("test", "v2", "")]
    last = parts[-1] if parts else ""
    return last if any(_scores(content, last) for content in contents) else None


def _scores(content: Mapping[str, Any], task: str) -> dict[str, float | None]:
    """Method to nDCG@10 on a task; {} where the paper has none."""
    cells = content.get("table1", {}).get("scores", {})
    if content.get("table1", {}).get("metric") == "ndcg@10" and task in cells:
        return dict(cells[task])
    table = content.get("table5", {})
    if table.get("metric") == "ndcg@10" and task in table.get("datasets", ()):
        return {method: row.get(task) for method, row in table["rows"].items()}
    return {}


def _published_notes(judged: Judgement, task: str, contents: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = ["Published figures are as printed: not measured here, and not tested against ours."]
    for content in contents:
        size = content.get("table5", {}).get("rows", {}).get(task, {})
        if "test_queries" not in size:
            continue
        published = size["documents"], size["test_queries"]
        here = judged.results["documents"], judged.results["queries"]
        if published != here:
            notes.append(
                f"Another version or a part: {here[0]:,} documents and {here[1]:,} queries here, "
                f"{published[0]:,} and {published[1]:,} published."
            )
    return notes
