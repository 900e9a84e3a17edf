"""Overlap of a training and a test set as tables in a terminal.

Interpolation and extrapolation as tables in a terminal.

Resampled collections as a table in a terminal.
"""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

_PAIRS = 10

_RULES = {1: "any passage", 2: "more than one"}


def overlap_tables(report: dict[str, Any]) -> list[Table]:
    """Label overlap, repeated queries and the most similar pairs, from the content of overlap.json."""
    return [_labels(report), _queries(report), _pairs(report)]


def label_overlap_cells(rows: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    """(grade, minimum) to the share of test queries, for tables."""
    return {(row["grade"], row["minimum"]): f"{row['share']:.0%}" for row in rows}


def _labels(report: dict[str, Any]) -> Table:
    train, test = report["train"], report["test"]
    title = (
        f"{escape(test['dataset'])} ({test['split']}), {test['queries']:,} queries, against "
        f"{escape(train['dataset'])} ({train['split']}), {train['queries']:,} queries"
    )
    table = Table(title=title)
    table.add_column("test queries with passages relevant in training, of grade at least")
    rows = report["label_overlap"]
    grades = list(dict.fromkeys(row["grade"] for row in rows))
    for grade in grades:
        table.add_column(str(grade), justify="right")
    cells = label_overlap_cells(rows)
    for minimum, name in _RULES.items():
        table.add_row(name, *(cells[grade, minimum] for grade in grades))
    if not report["same_corpus"]:
        table.caption = "the corpora differ: passages are compared by their ids"
        table.caption_justify = "left"
    return table


def _queries(report: dict[str, Any]) -> Table:
    table = Table(title="test queries that stand in the training set")
    table.add_column("")
    table.add_column("queries", justify="right")
    table.add_column("share", justify="right")
    for key, name in (
        ("exact_duplicates", "the same text"),
        ("near_duplicates", "other text, the same words but for stop words and endings"),
    ):
        found = report[key]
        table.add_row(name, f"{found['queries']:,}", f"{found['share']:.1%}")
    return table


def _pairs(report: dict[str, Any]) -> Table:
    nearest = report["nearest"]
    kind = "Jaccard similarity of words" if nearest["encoder"] is None else "cosine similarity"
    table = Table(
        title=f"nearest training queries by {kind}: mean {nearest['mean']:.3f}, "
        f"median {nearest['median']:.3f}, {nearest['least']:.3f} to {nearest['most']:.3f}"
    )
    for column in ("test query", "nearest training query"):
        table.add_column(column, overflow="fold")
    table.add_column("similarity", justify="right")
    best = sorted(nearest["queries"], key=lambda row: -row["similarity"])
    for row in best[:_PAIRS]:
        table.add_row(escape(row["text"]), escape(row["training_text"] or "–"), f"{row['similarity']:.3f}")
    if len(best) > _PAIRS:
        table.caption = f"the {_PAIRS} most similar of {len(best):,}; --json or --output has all"
        table.caption_justify = "left"
    return table


def regime_tables(report: dict[str, Any]) -> list[Table]:
    """Both regimes and the gap, and the alignment where there is one, from the content of regimes.json."""
    tables = [_regimes(report)]
    if report["alignment"]:
        tables.append(_alignment(report))
    return tables


def _regimes(report: dict[str, Any]) -> Table:
    title = f"{report['method']} of {report['train']['dataset']} and {report['test']['dataset']}"
    table = Table(title=escape(title))
    table.add_column("training sets")
    table.add_column("model")
    table.add_column("seeds", justify="right")
    for measure in report["measures"]:
        for column in (f"{measure} inter.", "extra.", "gap"):
            table.add_column(column, justify="right")
    for row in report["rows"]:
        cells = []
        for measure in report["measures"]:
            found = row["measures"][measure]
            cells += [f"{found['interpolation']:.4f}", f"{found['extrapolation']:.4f}", _gap(found)]
        table.add_row(row["group"], escape(row["model"]), str(len(row["seeds"])), *cells)
    queries = report["rows"][0]["queries"]
    table.caption = (
        f"gap: (extrapolation − interpolation) / interpolation, of means over seeds, ± standard deviation of "
        f"the seeds' gaps; {queries['interpolation']:,} and {queries['extrapolation']:,} test queries"
    )
    table.caption_justify = "left"
    return table


def _gap(found: dict[str, Any]) -> str:
    if found["gap"] is None:
        return "–"
    spread = "" if found["gap_sd"] is None else f" ± {100 * found['gap_sd']:.1f}"
    return f"{100 * found['gap']:+.1f}{spread} %"


def _alignment(report: dict[str, Any]) -> Table:
    measure = report["alignment"][0]["measure"]
    table = Table(title=f"alignment with collections outside the distribution, {measure}")
    table.add_column("collection")
    table.add_column("regime")
    for column in ("models", "Spearman's ρ", "p", "Kendall's τ", "p"):
        table.add_column(column, justify="right")
    for row in report["alignment"]:
        cells = (
            [
                f"{row['spearman']:+.3f}",
                f"{row['spearman_p']:.3g}",
                f"{row['kendall']:+.3f}",
                f"{row['kendall_p']:.3g}",
            ]
            if row["spearman"] is not None
            else ["–"] * 4
        )
        table.add_row(escape(row["collection"]), row["regime"], str(row["models"]), *cells)
    return table


def resample_table(manifest: dict[str, Any]) -> Table:
    """Sizes, and overlap with the test queries before and after, from the content of manifest.json."""
    overlap = manifest["overlap"]
    table = Table(title=_title(manifest))
    table.add_column("collection")
    grades = [row["grade"] for row in overlap["before"]["label_overlap"] if row["minimum"] == 1]
    for column in ("training queries", "test queries", *(f"labels ≥ {grade}" for grade in grades)):
        table.add_column(column, justify="right")
    for column in ("same text", "same words", "mean similarity"):
        table.add_column(column, justify="right")
    table.add_row("(before)", *_cells(overlap["before"], grades))
    for found in manifest["sets"]:
        k = f" (k = {found['k']})" if "k" in found else ""
        table.add_row(found["folder"] + k, *_cells(overlap["after"][found["folder"]], grades))
    remarks = [
        "labels ≥ g: test queries with a passage of that grade or more that is relevant in training; "
        "similarity: cosine to the nearest training query",
        "in ir_datasets, after beir_cocodr.plugins.irds.register(): "
        f"{escape(manifest['sets'][0]['id'])} and the like",
    ]
    if not manifest["same_corpus"]:
        remarks.append("the corpora differ: the test split of each collection is in its folder test")
    table.caption = "\n".join(remarks)
    table.caption_justify = "left"
    return table


def _title(manifest: dict[str, Any]) -> str:
    train, test, parameters = manifest["train"], manifest["test"], manifest["parameters"]
    if manifest["method"] == "restrain":
        what = f"ReSTrain, L = {parameters['exclude_top']}, {parameters['pool']:,} queries outside"
    else:
        what = f"ReSTTest, {parameters['buckets']} buckets"
    return escape(
        f"{what}: {train['dataset']} ({train['split']}) and {test['dataset']} ({test['split']}) "
        f"by {manifest['encoder']['name']}"
    )


def _cells(summary: dict[str, Any], grades: list[int]) -> list[str]:
    shares = {row["grade"]: f"{row['share']:.0%}" for row in summary["label_overlap"] if row["minimum"] == 1}
    return [
        f"{summary['training_queries']:,}",
        f"{summary['test_queries']:,}",
        # The test queries of a bucket need not have passages of every grade.
        *(shares.get(grade, "–") for grade in grades),
        f"{summary['exact_duplicates']:,}",
        f"{summary['near_duplicates']:,}",
        f"{summary['nearest_similarity']['mean']:.3f}",
    ]
