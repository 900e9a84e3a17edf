"""Estimates and verdicts of a comparison without labels, and the pairs whose labels would tell most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from beir_cocodr.evaluation.label_free.pseudo_queries import TRAINED_ON
from beir_cocodr.evaluation.label_free.recommendation import training_pairs
from beir_cocodr.evaluation.recommendation import BASE
from beir_cocodr.report.html.figures import signed, span
from beir_cocodr.report.html.table import Cell, Column, HtmlTable, number_cell, text_cell

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


def wanted_table(wanted: Mapping[str, Any], names: Mapping[str, str]) -> HtmlTable:
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
