"""Overlap, resampled collections, and interpolation and extrapolation as tables, from their records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from beir_cocodr.report.terminal import make_table
from beir_cocodr.report.text import format_number, format_numbers
from beir_cocodr.resampling.manifest import LabelOverlap, Manifest, OverlapSummary, RestrainParameters

if TYPE_CHECKING:  # their modules import torch or scipy
    from beir_cocodr.resampling.overlap import Overlap
    from beir_cocodr.resampling.regimes.regimes import Regimes, RegimeScores

_PAIRS = 10

_RULES = {1: "any passage", 2: "more than one"}


def overlap_tables(report: Overlap) -> list[Table]:
    """Label overlap, repeated queries and the most similar pairs."""
    train, test = report.train, report.test
    grades = list(dict.fromkeys(row.grade for row in report.label_overlap))
    shares = label_overlap_cells(report.label_overlap)
    labels = make_table(
        f"{escape(test.dataset)} ({test.split}), {test.queries:,} queries, against "
        f"{escape(train.dataset)} ({train.split}), {train.queries:,} queries",
        ["test queries with passages relevant in training, of grade at least"],
        map(str, grades),
        ([name, *(shares[grade, minimum] for grade in grades)] for minimum, name in _RULES.items()),
        [] if report.same_corpus else ["the corpora differ: passages are compared by their ids"],
    )
    duplicates = {
        "the same text": report.exact_duplicates,
        "other text, the same words but for stop words and endings": report.near_duplicates,
    }
    repeated = make_table(
        "test queries that stand in the training set",
        [""],
        ["queries", "share"],
        ([name, f"{found.queries:,}", f"{found.share:.1%}"] for name, found in duplicates.items()),
    )
    return [labels, repeated, _pairs(report)]


def label_overlap_cells(rows: Iterable[LabelOverlap]) -> dict[tuple[int, int], str]:
    """(grade, minimum) to the share of test queries, for tables."""
    return {(row.grade, row.minimum): f"{row.share:.0%}" for row in rows}


def _pairs(report: Overlap) -> Table:
    nearest = report.nearest
    kind = "Jaccard similarity of words" if nearest.encoder is None else "cosine similarity"
    best = sorted(nearest.queries, key=lambda row: -row.similarity)
    more = f"the {_PAIRS} most similar of {len(best):,}; --json or --output has all"
    return make_table(
        f"nearest training queries by {kind}: mean {nearest.mean:.3f}, "
        f"median {nearest.median:.3f}, {nearest.least:.3f} to {nearest.most:.3f}",
        ["test query", "nearest training query"],
        ["similarity"],
        ([escape(row.text), escape(row.training_text or "–"), f"{row.similarity:.3f}"] for row in best[:_PAIRS]),
        [more] if len(best) > _PAIRS else [],
    )


def regime_tables(report: Regimes) -> list[Table]:
    """Both regimes and the gap, and the alignment where there is one."""
    return [_regimes(report), *([_alignment(report)] if report.alignment else [])]


def _regimes(report: Regimes) -> Table:
    queries = report.rows[0].queries
    rows = []
    for row in report.rows:
        rows.append([row.group, escape(row.model), str(len(row.seeds))])
        for measure in report.measures:
            found = row.measures[measure]
            rows[-1] += [*format_numbers(".4f", found.interpolation, found.extrapolation), _gap(found)]
    return make_table(
        escape(f"{report.method} of {report.train.dataset} and {report.test.dataset}"),
        ["training sets", "model"],
        ["seeds", *(name for m in report.measures for name in (f"{m} inter.", "extra.", "gap"))],
        rows,
        [
            "gap: (extrapolation − interpolation) / interpolation, of means over seeds, ± standard deviation "
            f"of the seeds' gaps; {queries['interpolation']:,} and {queries['extrapolation']:,} test queries"
        ],
    )


def _gap(found: RegimeScores) -> str:
    if found.gap is None:
        return "–"
    spread = "" if found.gap_sd is None else f" ± {100 * found.gap_sd:.1f}"
    return f"{100 * found.gap:+.1f}{spread} %"


def _alignment(report: Regimes) -> Table:
    return make_table(
        f"alignment with collections outside the distribution, {report.alignment[0].measure}",
        ["collection", "regime"],
        ["models", "Spearman's ρ", "p", "Kendall's τ", "p"],
        (
            [
                *(escape(row.collection), row.regime, str(row.models)),
                *(format_number(row.spearman, "+.3f"), format_number(row.spearman_p, ".3g")),
                *(format_number(row.kendall, "+.3f"), format_number(row.kendall_p, ".3g")),
            ]
            for row in report.alignment
        ),
    )


def resample_table(manifest: Manifest) -> Table:
    """Sizes, and overlap with the test queries before and after."""
    overlap = manifest.overlap
    grades = [row.grade for row in overlap.before.label_overlap if row.minimum == 1]
    notes = [
        "labels ≥ g: test queries with a passage of that grade or more that is relevant in training; "
        "similarity: cosine to the nearest training query",
        f"in ir_datasets, after beir_cocodr.plugins.irds.register(): {escape(manifest.sets[0].id)} and the like",
    ]
    if not manifest.same_corpus:
        notes.append("the corpora differ: the test split of each collection is in its folder test")
    labels = [f"labels ≥ {grade}" for grade in grades]
    similar = ["same text", "same words", "mean similarity"]
    numbers = ["training queries", "test queries", *labels, *similar]
    rows = [["(before)", *_cells(overlap.before, grades)]]
    for found in manifest.sets:
        k = "" if found.k is None else f" (k = {found.k})"
        rows.append([found.folder + k, *_cells(overlap.after[found.folder], grades)])
    return make_table(_title(manifest), ["collection"], numbers, rows, notes)


def _title(manifest: Manifest) -> str:
    train, test, parameters = manifest.train, manifest.test, manifest.parameters
    if isinstance(parameters, RestrainParameters):
        what = f"ReSTrain, L = {parameters.exclude_top}, {parameters.pool:,} queries outside"
    else:
        what = f"ReSTTest, {parameters.buckets} buckets"
    return escape(
        f"{what}: {train.dataset} ({train.split}) and {test.dataset} ({test.split}) by {manifest.encoder.name}"
    )


def _cells(summary: OverlapSummary, grades: list[int]) -> list[str]:
    shares = label_overlap_cells(summary.label_overlap)
    return [
        *format_numbers(",", summary.training_queries, summary.test_queries),
        # The test queries of a bucket need not have passages of every grade.
        *(shares.get((grade, 1), "–") for grade in grades),
        *format_numbers(",", summary.exact_duplicates, summary.near_duplicates),
        f"{summary.nearest_similarity.mean:.3f}",
    ]
