"""Analyses as tables in a terminal, from their records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from beir_cocodr.analysis.shift import QUERY_TYPES, Shift
from beir_cocodr.report.terminal import make_table
from beir_cocodr.report.text import format_number, format_numbers, span

if TYPE_CHECKING:  # their modules import torch or scipy
    from beir_cocodr.analysis.qpp import QPP, Coefficients
    from beir_cocodr.analysis.representation import Representation
    from beir_cocodr.analysis.source_clusters import SourceClusters

_CORRELATION = ("Pearson r", "p", "Kendall τ", "p")


def _correlation(row: Coefficients) -> list[str]:
    """The cells below `_CORRELATION`."""
    return [
        cell
        for value, p in ((row.pearson, row.pearson_p_holm), (row.kendall, row.kendall_p_holm))
        for cell in (format_number(value, "+.3f"), "<0.0001" if p is not None and p < 1e-4 else format_number(p, ".4f"))
    ]


def _correlation_note(of: str, row: Coefficients, points: str) -> Iterator[str]:
    """The correlation with the gain in one line, if there is one."""
    if row.pearson is not None:
        yield (
            f"{of} and gain over {points}: Pearson's r {row.pearson:+.3f} (p = {row.pearson_p:.3g}), "
            f"Kendall's τ {row.kendall:+.3f} (p = {row.kendall_p:.3g})"
        )


def qpp_table(report: QPP) -> Table:
    """Predictors by their correlations with quality."""
    return make_table(
        f"{report.dataset} ({report.split}): {report.measure} of {report.model}, "
        f"{report.queries:,} queries (p after Holm's correction)",
        ["predictor"],
        [*_CORRELATION, "queries", "left out"],
        ([row.predictor, *_correlation(row), f"{row.queries:,}", f"{row.left_out:,}"] for row in report.predictors),
        _qpp_notes(report),
    )


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


def representation_tables(report: Representation) -> list[Table]:
    """Measures by corpus and model and, for two models, their changes."""
    measures = make_table(
        f"two spans of a document (t = {report.temperature:g}, seed {report.seed}; smaller is better in each)",
        ["corpus", "model"],
        ["documents", "ℓ_align", "95%", "ℓ_uniform", "contrastive loss", "95%"],
        (
            [
                *(dataset, model, f"{corpus.sampled:,}"),
                *(f"{found.alignment:.4f}", span(found.alignment_interval, sign="")),
                *format_numbers(".4f", found.uniformity, found.contrastive_loss),
                span(found.contrastive_loss_interval, sign=""),
            ]
            for dataset, corpus in report.datasets.items()
            for model, found in corpus.models.items()
        ),
        _representation_notes(report),
    )
    return [measures, _changes(report)] if len(report.models) == 2 else [measures]


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
    row = report.reduction_against_gain
    return make_table(
        f"{after} − {before}",
        ["corpus"],
        ["ℓ_align", "95%", "ℓ_uniform", "contrastive loss", "95%", "reduction", *_gain(report.measure)],
        (
            [
                *(dataset, f"{change.alignment:+.4f}", span(change.alignment_interval)),
                *format_numbers("+.4f", change.uniformity, change.contrastive_loss),
                span(change.contrastive_loss_interval),
                format_number(change.contrastive_loss_reduction, ".1%"),
                *(format_number(change.gain, "+.4f") for _ in _gain(report.measure)),
            ]
            for dataset, corpus in report.datasets.items()
            if (change := corpus.change) is not None
        ),
        _correlation_note(row.of, row, f"{row.datasets} corpora") if row else (),
    )


def _gain(measure: str | None) -> list[str]:
    """The column of gains, if there are any."""
    return [f"gain in {measure}"] if measure else []


def shift_tables(report: Shift) -> list[Table]:
    """Similarities, query types and, with results, correlations."""
    similarities = make_table(
        f"weighted Jaccard similarity with {report.source.dataset} (1: the same, 0: nothing shared)",
        ["target"],
        [
            *("documents", "words", "document similarity", "queries", "query type similarity"),
            *(f"{report.measure}, {label}" for label in report.scores),
        ],
        (
            [
                *(target.dataset, f"{target.documents:,}", f"{target.words:,}"),
                *(format_number(target.document_jaccard, ".4f"), f"{target.queries:,}"),
                format_number(target.query_type_jaccard, ".4f"),
                *(format_number(found.get(target.dataset), "+.4f") for found in report.scores.values()),
            ]
            for target in report.targets
        ),
        _shift_notes(report),
    )
    types = make_table(
        "query types (COCO-DR, appendix C.1)",
        ["collection"],
        QUERY_TYPES,
        (
            [record.dataset, *format_numbers(".1%", *map((record.query_types or {}).get, QUERY_TYPES))]
            for record in (report.source, *report.targets)
        ),
    )
    correlations = make_table(
        f"similarity and {report.measure} over targets (p after Holm's correction)",
        ["model", "similarity"],
        [*_CORRELATION, "targets"],
        (
            [label, row.similarity, *_correlation(row), str(row.targets)]
            for label, rows in report.correlations.items()
            for row in rows
        ),
    )
    return [similarities, types, *([correlations] if report.scores else [])]


def _shift_notes(report: Shift) -> Iterator[str]:
    for record in (report.source, *report.targets):
        if not record.queries:
            yield f"{record.dataset} has no queries, so there is no similarity of query types"
        elif record.split is None:
            yield f"{record.dataset}: all queries, whatever their split"
    if report.baseline:
        yield f"scores are differences to {report.baseline}"


def source_clusters_tables(report: SourceClusters) -> list[Table]:
    """Nearest clusters with losses and gains, and nearest queries."""
    central = {cluster.cluster: cluster.central_queries for cluster in report.clusters}
    clusters = make_table(
        f"{report.after} − {report.before}: the source cluster nearest to each target",
        ["target"],
        ["cluster", "queries", "similarity", "loss before", "after", "reduction", *_gain(report.measure)],
        (
            [
                *(name, str(target.cluster), f"{target.queries:,}"),
                *format_numbers(".4f", target.similarity, target.loss_before, target.loss_after),
                f"{target.reduction:+.4f}",
                *(format_number(target.gain, "+.4f") for _ in _gain(report.measure)),
                "; ".join(central[target.cluster]),
            ]
            for name, target in report.targets.items()
        ),
        _cluster_notes(report),
        ["central queries"],
    )
    cases = make_table(
        f"target queries and the source queries nearest to them: gain in {report.measure or 'measure'} of each",
        ["target", "target query", "source query"],
        ["gain", "source gain", "reduction of loss", "similarity"],
        (
            [
                *(name, case.query, near.query),
                *format_numbers("+.4f", case.gain, near.gain, near.loss_reduction),
                f"{near.similarity:.4f}",
            ]
            for name, target in report.targets.items()
            for case in target.cases
            for near in case.nearest
        ),
    )
    return [clusters, cases]


def _cluster_notes(report: SourceClusters) -> Iterator[str]:
    yield f"{report.sampled:,} queries of {report.source} in {len(report.clusters)} clusters"
    improved = f"{report.nearest_improved} of {len(report.targets)} targets"
    yield f"the loss of the nearest cluster is lower after than before for {improved}"
    if row := report.reduction_against_gain:
        yield from _correlation_note(row.of, row, f"{row.targets} targets")
