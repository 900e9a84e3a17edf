"""Analyses as tables in a terminal, from their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from beir_cocodr.analysis.shift import QUERY_TYPES, Shift
from beir_cocodr.report.terminal import make_table
from beir_cocodr.report.text import format_number

if TYPE_CHECKING:  # their modules import torch or scipy
    from beir_cocodr.analysis.qpp import QPP, Coefficients
    from beir_cocodr.analysis.representation import Representation
    from beir_cocodr.analysis.source_clusters import SourceClusters


def qpp_table(report: QPP) -> Table:
    """Predictors by their correlations with quality."""
    table = make_table(
        f"{report.dataset} ({report.split}): {report.measure} of {report.model}, "
        f"{report.queries:,} queries (p after Holm's correction)",
        ["predictor"],
        ["Pearson r", "p", "Kendall τ", "p", "queries", "left out"],
        _qpp_notes(report),
    )
    for row in report.predictors:
        table.add_row(
            row.predictor,
            format_number(row.pearson, "+.3f"),
            _p(row.pearson_p_holm),
            format_number(row.kendall, "+.3f"),
            _p(row.kendall_p_holm),
            f"{row.queries:,}",
            f"{row.left_out:,}",
        )
    return table


def _qpp_notes(report: QPP) -> Iterator[str]:
    if report.queries_without_known_terms:
        yield f"{report.queries_without_known_terms} queries have no term that the corpus has"
    if report.unknown_query_words:
        yield f"{report.unknown_query_words} words of queries are not in the corpus and play no part"
    for row in report.predictors:
        if row.pearson is None:
            yield f"{row.predictor} has no correlation: one side is constant, or too few queries are left"
    for name, reason in report.predictors_left_out.items():
        yield f"{name} is not computed: it {reason}"


def _p(value: float | None) -> str:
    return "<0.0001" if value is not None and value < 1e-4 else format_number(value, ".4f")


def _correlation_note(of: str, row: Coefficients | None, points: str) -> Iterator[str]:
    """The correlation with the gain in one line, if there is one."""
    if row is not None and row.pearson is not None:
        yield (
            f"{of} and gain over {points}: Pearson's r {row.pearson:+.3f} (p = {row.pearson_p:.3g}), "
            f"Kendall's τ {row.kendall:+.3f} (p = {row.kendall_p:.3g})"
        )


def representation_tables(report: Representation) -> list[Table]:
    """Measures by corpus and model and, for two models, their changes."""
    tables = [_measures(report)]
    return [*tables, _changes(report)] if len(report.models) == 2 else tables


def _measures(report: Representation) -> Table:
    table = make_table(
        f"two spans of a document (t = {report.temperature:g}, seed {report.seed}; smaller is better in each)",
        ["corpus", "model"],
        ["documents", "ℓ_align", "95%", "ℓ_uniform", "contrastive loss", "95%"],
        _representation_notes(report),
    )
    for dataset, corpus in report.datasets.items():
        for model, found in corpus.models.items():
            table.add_row(
                dataset,
                model,
                f"{corpus.sampled:,}",
                f"{found.alignment:.4f}",
                _interval(found.alignment_interval),
                f"{found.uniformity:.4f}",
                f"{found.contrastive_loss:.4f}",
                _interval(found.contrastive_loss_interval),
            )
    return table


def _representation_notes(report: Representation) -> Iterator[str]:
    for dataset, corpus in report.datasets.items():
        batches = f"{corpus.batches} batches of {corpus.batch_size} documents"
        yield f"{dataset}: contrastive loss over {batches}, by chance {corpus.loss_of_chance:.4f}"
        if corpus.left_over:
            yield f"{dataset}: {corpus.left_over} documents left over, in no batch"
        if corpus.too_short:
            yield f"{dataset}: {corpus.too_short} documents drawn too, but too short for two spans"
    if not report.losses_comparable:
        yield "the models compare texts in different ways, so their contrastive losses cannot be compared"


def _changes(report: Representation) -> Table:
    before, after = report.models
    gain = [f"gain in {report.measure}"] if report.measure else []
    row = report.reduction_against_gain
    table = make_table(
        f"{after} − {before}",
        ["corpus"],
        ["ℓ_align", "95%", "ℓ_uniform", "contrastive loss", "95%", "reduction", *gain],
        _correlation_note(row.of, row, f"{row.datasets} corpora") if row else (),
    )
    for dataset, corpus in report.datasets.items():
        change = corpus.change
        assert change is not None  # there is one for two models
        table.add_row(
            dataset,
            f"{change.alignment:+.4f}",
            _interval(change.alignment_interval, "+"),
            f"{change.uniformity:+.4f}",
            format_number(change.contrastive_loss, "+.4f"),
            _interval(change.contrastive_loss_interval, "+"),
            format_number(change.contrastive_loss_reduction, ".1%"),
            *([format_number(change.gain, "+.4f")] if gain else []),
        )
    return table


def _interval(interval: Sequence[float] | None, sign: str = "") -> str:
    return "" if interval is None else " to ".join(f"{end:{sign}.3f}" for end in interval)


def shift_tables(report: Shift) -> list[Table]:
    """Similarities, query types and, with results, correlations."""
    tables = [_similarities(report), _types(report)]
    return [*tables, _correlations(report)] if report.scores else tables


def _similarities(report: Shift) -> Table:
    table = make_table(
        f"weighted Jaccard similarity with {report.source.dataset} (1: the same, 0: nothing shared)",
        ["target"],
        [
            *("documents", "words", "document similarity", "queries", "query type similarity"),
            *(f"{report.measure}, {label}" for label in report.scores),
        ],
        _shift_notes(report),
    )
    for target in report.targets:
        table.add_row(
            target.dataset,
            f"{target.documents:,}",
            f"{target.words:,}",
            format_number(target.document_jaccard, ".4f"),
            f"{target.queries:,}",
            format_number(target.query_type_jaccard, ".4f"),
            *(format_number(found.get(target.dataset), "+.4f") for found in report.scores.values()),
        )
    return table


def _shift_notes(report: Shift) -> Iterator[str]:
    for record in (report.source, *report.targets):
        if not record.queries:
            yield f"{record.dataset} has no queries, so there is no similarity of query types"
        elif record.split is None:
            yield f"{record.dataset}: all queries, whatever their split"
    if report.baseline:
        yield f"scores are differences to {report.baseline}"


def _types(report: Shift) -> Table:
    table = make_table("query types (COCO-DR, appendix C.1)", ["collection"], QUERY_TYPES)
    for record in (report.source, *report.targets):
        shares = record.query_types or {}
        table.add_row(record.dataset, *(format_number(shares.get(name), ".1%") for name in QUERY_TYPES))
    return table


def _correlations(report: Shift) -> Table:
    table = make_table(
        f"similarity and {report.measure} over targets (p after Holm's correction)",
        ["model", "similarity"],
        ["Pearson r", "p", "Kendall τ", "p", "targets"],
    )
    for label, rows in report.correlations.items():
        for row in rows:
            table.add_row(
                label,
                row.similarity,
                format_number(row.pearson, "+.3f"),
                format_number(row.pearson_p_holm, ".4f"),
                format_number(row.kendall, "+.3f"),
                format_number(row.kendall_p_holm, ".4f"),
                str(row.targets),
            )
    return table


def source_clusters_tables(report: SourceClusters) -> list[Table]:
    """Nearest clusters with losses and gains, and nearest queries."""
    return [_clusters(report), _cases(report)]


def _clusters(report: SourceClusters) -> Table:
    gain = [f"gain in {report.measure}"] if report.measure else []
    table = make_table(
        f"{report.after} − {report.before}: the source cluster nearest to each target",
        ["target"],
        ["cluster", "queries", "similarity", "loss before", "after", "reduction", *gain],
        _cluster_notes(report),
    )
    table.add_column("central queries", max_width=60)
    central = {cluster.cluster: cluster.central_queries for cluster in report.clusters}
    for name, target in report.targets.items():
        table.add_row(
            name,
            str(target.cluster),
            f"{target.queries:,}",
            f"{target.similarity:.4f}",
            f"{target.loss_before:.4f}",
            f"{target.loss_after:.4f}",
            f"{target.reduction:+.4f}",
            *([format_number(target.gain, "+.4f")] if gain else []),
            "; ".join(central[target.cluster]),
        )
    return table


def _cluster_notes(report: SourceClusters) -> Iterator[str]:
    yield f"{report.sampled:,} queries of {report.source} in {len(report.clusters)} clusters"
    improved = f"{report.nearest_improved} of {len(report.targets)} targets"
    yield f"the loss of the nearest cluster is lower after than before for {improved}"
    row = report.reduction_against_gain
    if row is not None:
        yield from _correlation_note(row.of, row, f"{row.targets} targets")


def _cases(report: SourceClusters) -> Table:
    gain = f"gain in {report.measure or 'measure'}"
    table = Table(title="target queries and the source queries nearest to them")
    table.add_column("target")
    table.add_column("target query", max_width=50)
    table.add_column(gain, justify="right")
    table.add_column("source query", max_width=50)
    for column in (gain, "reduction of loss", "similarity"):
        table.add_column(column, justify="right")
    for name, target in report.targets.items():
        for case in target.cases:
            for near in case.nearest:
                table.add_row(
                    name,
                    case.query,
                    format_number(case.gain, "+.4f"),
                    near.query,
                    format_number(near.gain, "+.4f"),
                    f"{near.loss_reduction:+.4f}",
                    f"{near.similarity:.4f}",
                )
    return table
