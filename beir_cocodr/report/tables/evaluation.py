"""Results as tables in a terminal.

The estimates of an adaptation without labels as a table in a terminal.

A comparison of models as tables in a terminal.

One run under three tools, and why their numbers differ, as tables in a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from beir_cocodr.data.defects import Defect
from beir_cocodr.evaluation.label_free.estimates import ESTIMATORS
from beir_cocodr.evaluation.label_free.verdict import label_pairs, training_pairs
from beir_cocodr.evaluation.recommendation import BASE, MODES


def evaluation_table(report: dict[str, Any]) -> Table:
    """Models by measures, with bootstrap 95% intervals, from the content of results.json."""
    sizes = f"{report['documents']:,} documents, {report['queries']:,} queries"
    table = Table(title=f"{report['dataset']} ({report['split']}): {sizes}")
    table.add_column("model")
    measures = list(next(iter(report["models"].values()))["measures"])
    for measure in measures:
        table.add_column(measure, justify="right")
        table.add_column("95%", justify="right", style="dim")
    table.add_column("seconds", justify="right")
    for label, record in report["models"].items():
        cells = []
        for measure in measures:
            interval = record["intervals"][measure]
            cells += [
                f"{record['measures'][measure]:.4f}",
                "" if interval is None else "{:.3f}–{:.3f}".format(*interval),
            ]
        table.add_row(label, *cells, f"{record['seconds']:.1f}")
    table.caption = "\n".join(_remarks(report["models"])) or None
    table.caption_justify = "left"
    return table


def _remarks(models: dict[str, Any]) -> Iterator[str]:
    """What a reader of the figures has to know: truncated documents, queries without results."""
    for label, record in models.items():
        retrieval = record["retrieval"]
        if retrieval.get("truncated_documents"):
            length = retrieval["text_format"]["document_length"]
            yield f"{label}: {retrieval['truncated_documents']:.0%} of documents cut at {length} tokens"
        if record["queries_without_results"]:
            yield f"{label}: {record['queries_without_results']} queries without results, scored 0"


def comparison_table(report: dict[str, Any]) -> Table:
    """Paired tests between models, from the content of results.json."""
    table = Table(title="paired tests (difference of b to a; p after Holm's correction)")
    for column in ("measure", "a", "b"):
        table.add_column(column)
    for column in ("b − a", "95%", "t-test p", "randomisation p", "win/tie/loss"):
        table.add_column(column, justify="right")
    for test in report["comparisons"]:
        interval = "" if test["interval"] is None else "{:+.3f} to {:+.3f}".format(*test["interval"])
        table.add_row(
            test["measure"],
            test["a"],
            test["b"],
            f"{test['difference']:+.4f}",
            interval,
            _p(test["t_p_holm"]),
            _p(test["randomization_p_holm"]),
            f"{test['wins']}/{test['ties']}/{test['losses']}",
        )
    return table


def _p(value: float | None) -> str:
    return "–" if value is None else "<0.0001" if value < 1e-4 else f"{value:.4f}"


def defect_lines(defects: Sequence[Defect], most: int) -> Iterator[str]:
    """One line a defect, at most ``most`` of each kind; what is left out is counted."""
    listed: Counter[str] = Counter()
    for defect in defects:
        listed[defect.kind] += 1
        if listed[defect.kind] <= most:
            place = defect.file if defect.line is None else f"{defect.file}:{defect.line}"
            yield f"{defect.severity}: {place}: {defect.message}"
    for kind, count in listed.items():
        if count > most:
            yield f"... and {count - most} more: {kind}"


def adaptation_table(comparison: Mapping[str, Any], candidates: Mapping[str, str]) -> Table:
    """Trained encoders against the base in the same use, and the untrained methods against the base alone."""
    pairs = label_pairs(comparison, candidates)
    size = f"{comparison['documents']:,} documents, {comparison['queries']:,} queries"
    table = Table(title=f"{comparison['dataset']}: {size}, estimates without labels")
    for column in ("model", "against", "verdict"):
        table.add_column(column)
    table.add_column("P(better)", justify="right")
    for name in ESTIMATORS:
        table.add_column(name, justify="right")
    for a, b in [*training_pairs(candidates), *((BASE, BASE + mode) for mode in MODES[1:]), (BASE, "bm25")]:
        pair = pairs[a, b]
        chance = "–" if pair["probability"] is None else f"{pair['probability']:.2f}"
        table.add_row(b, a, pair["verdict"], chance, *map(_cell, pair["estimates"]))
    table.caption = "difference and its 95% interval; in brackets: does not count for this pair"
    table.caption_justify = "left"
    return table


def _cell(estimate: Mapping[str, Any]) -> str:
    if estimate["difference"] is None:
        return "–"
    told = f"{estimate['difference']:+.3f}"
    if estimate["interval"] is not None:
        told += "\n{:+.3f} to {:+.3f}".format(*estimate["interval"])
    return told if estimate["applies"] else f"({told})"


_LISTED = 10


def verdict_tables(report: dict[str, Any]) -> list[Table]:
    """Verdicts, what they rest on, pairs to label, and what was seen, from the content of comparison.json."""
    tables = [evaluation_table(report["evaluation"])] if report["labels"] else [_estimates(report)]
    tables.append(_verdicts(report))
    if report["labels_wanted"]["pairs"]:
        tables.append(_wanted(report["labels_wanted"]))
    if report["seen"]:
        tables.append(_seen(report["seen"]))
    return tables


def _verdicts(report: dict[str, Any]) -> Table:
    basis = "paired tests" if report["labels"] else "without labels"
    table = Table(title=f"verdicts on {report['dataset']}, b against a ({basis})")
    for column in ("a", "b", "verdict"):
        table.add_column(column)
    if report["labels"]:
        _add_tests(table, report)
    else:
        table.add_column("P(b better)", justify="right")
        table.add_column("reason")
        for pair in report["pairs"]:
            chance = "–" if pair["probability"] is None else f"{pair['probability']:.2f}"
            table.add_row(pair["a"], pair["b"], pair["verdict"], chance, pair["reason"])
    table.caption = "\n".join(_comparison_remarks(report))
    table.caption_justify = "left"
    return table


def _add_tests(table: Table, report: dict[str, Any]) -> None:
    for column in ("measure", "b − a", "95%", "p (Holm)", "win/tie/loss"):
        table.add_column(column, justify="right")
    for pair in report["pairs"]:
        span = "" if pair["interval"] is None else "{:+.3f} to {:+.3f}".format(*pair["interval"])
        p = pair["t_p_holm"]
        table.add_row(
            pair["a"],
            pair["b"],
            pair["verdict"],
            pair["measure"],
            f"{pair['difference']:+.4f}",
            span,
            "–" if p is None else "<0.0001" if p < 1e-4 else f"{p:.4f}",
            f"{pair['wins']}/{pair['ties']}/{pair['losses']}",
        )


def _comparison_remarks(report: dict[str, Any]) -> Iterator[str]:
    yield report["best"]["reason"]
    if not report["labels"]:
        yield from dict.fromkeys(pair["trust"] for pair in report["pairs"])


def _estimates(report: dict[str, Any]) -> Table:
    table = Table(title=f"{report['dataset']}: {report['documents']:,} documents, estimates without labels")
    for column in ("a", "b", "estimator"):
        table.add_column(column)
    for column in ("a", "b", "b − a", "95%", "win/tie/loss"):
        table.add_column(column, justify="right")
    for pair in report["pairs"]:
        for found in pair["estimates"]:
            span = "" if found["interval"] is None else "{:+.3f} to {:+.3f}".format(*found["interval"])
            table.add_row(
                pair["a"],
                pair["b"],
                found["estimator"] + (f" ({found['remark']})" if found["remark"] else ""),
                _number(found["a"], ".4f"),
                _number(found["b"], ".4f"),
                _number(found["difference"], "+.4f"),
                span,
                f"{found['wins']}/{found['ties']}/{found['losses']}",
            )
    table.caption = "\n".join(_leakage(report["pseudo_queries"]))
    table.caption_justify = "left"
    return table


def _leakage(told: dict[str, Any]) -> Iterator[str]:
    for name in ("held-out crops", "generated queries"):
        found = told[name]
        if found["verbatim"] is not None:
            yield (
                f"{name}: {found['queries']:,}; {found['verbatim']:.0%} of their words stand in the document "
                f"that they have to find, and BM25 alone has nDCG@10 {found['bm25_ndcg']:.3f}"
            )
        if known := found["counts"].get("queries_trained_on"):
            yield f"{name}: {known:,} left out because a model was trained on them"
    agreement = told["agreement"]
    whose = "the collection's own" if agreement["of_the_collection"] else "generated"
    yield f"agreement: share of the other list's ten best documents, {agreement['queries']:,} {whose} queries"


def _wanted(wanted: dict[str, Any]) -> Table:
    table = Table(title=f"labels that would tell most between a = {wanted['a']} and b = {wanted['b']}")
    for column in ("query", "document"):
        table.add_column(column)
    for column in ("weight", "rank a", "rank b"):
        table.add_column(column, justify="right")
    for row in wanted["pairs"][:_LISTED]:
        ranks = [_number(row[name], "d") for name in ("rank_a", "rank_b")]
        table.add_row(
            f"{row['query_id']}: {row['query'][:60]}", row["document_id"], f"{row['weight']:.3f}", *ranks
        )
    if len(wanted["pairs"]) > _LISTED:
        table.caption = f"and {len(wanted['pairs']) - _LISTED} more"
        table.caption_justify = "left"
    return table


def _seen(seen: dict[str, Any]) -> Table:
    table = Table(title="what was seen in training")
    table.add_column("model")
    table.add_column("statement")
    for model, found in seen.items():
        table.add_row(model, "\n".join(found["sentences"]))
    return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


_TOOLS = {"ir_measures": "ir-measures", "beir": "BEIR", "pytrec_eval": "pytrec_eval"}


def parity_tables(report: dict[str, Any]) -> list[Table]:
    """Measures by tools, then each difference with its causes, from what ``parity`` returns."""
    return [_values(report), _differences(report)]


def _values(report: dict[str, Any]) -> Table:
    queries = report["queries"]
    table = Table(
        title=f"{escape(report['run'])} on {escape(report['dataset'])} ({report['split']}): "
        f"{queries['judged']:,} judged queries, {queries['judged_with_results']:,} with results"
    )
    table.add_column("measure")
    for title in _TOOLS.values():
        table.add_column(title, justify="right")
        table.add_column("its name", style="dim")
    for row in report["measures"]:
        cells: list[str] = []
        for tool in _TOOLS:
            cells += [f"{row['tools'][tool]['value']:.6f}", row["tools"][tool]["name"]]
        table.add_row(row["measure"], *cells)
    table.caption = "\n".join(escape(note) for note in report["notes"]) or None
    table.caption_justify = "left"
    return table


def _differences(report: dict[str, Any]) -> Table:
    table = Table(title="differences to ir-measures, each cause applied after those above it")
    for column in ("measure", "tool", "cause"):
        table.add_column(column)
    for column in ("queries", "changed", "before", "after", "effect"):
        table.add_column(column, justify="right")
    table.add_column("reason", overflow="fold")
    for row in report["measures"]:
        for found in row["differences"]:
            head = [row["measure"], _TOOLS[found["tool"]]]
            for cause in found["causes"]:
                figures = [f"{cause['queries']:,}", f"{cause['queries_changed']:,}"]
                figures += [f"{cause['before']:.6f}", f"{cause['after']:.6f}", f"{cause['effect']:+.6f}"]
                table.add_row(*head, cause["cause"], *figures, cause["reason"])
                head = ["", ""]
            table.add_row(*head, *_conclusion(found), end_section=True)
    table.caption = (
        f"every difference is explained, to {report['tolerance']:g}"
        if report["explained"]
        else "not every difference is explained: see 'unexplained'"
    )
    table.caption_justify = "left"
    return table


def _conclusion(found: dict[str, Any]) -> list[str]:
    total = f"{found['difference']:+.6f}"
    if not found["explained"]:
        reason = f"{found['remaining']:+.2e} remains after all known causes"
        return ["unexplained", "", "", "", "", f"{found['remaining']:+.6f}", reason]
    if not found["causes"]:
        return ["none", "", "", "", "", total, "the same number"]
    reason = "recomputed with these causes, the numbers agree"
    return ["all", "", "", "", "", total, reason]
