"""Resampled collections as a table in a terminal."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table


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
