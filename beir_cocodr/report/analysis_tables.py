"""Analyses, overlap, resampled collections and retrieval regimes as tables of a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from beir_cocodr.analysis.shift import QUERY_TYPES, Shift
from beir_cocodr.report.terminal import make_table
from beir_cocodr.report.wording import format_number, format_numbers, span
from beir_cocodr.resampling.manifest import (
    LabelOverlap,
    Manifest,
    OverlapSummary,
    RestrainParameters,
)

if TYPE_CHECKING:  # their modules import torch or scipy
    from beir_cocodr.analysis.qpp import QPP, Coefficients
    from beir_cocodr.analysis.representation import Representation
    from beir_cocodr.analysis.source_clusters import SourceClusters
    from beir_cocodr.resampling.overlap import Overlap
    from beir_cocodr.resampling.regimes.regimes import Regimes, RegimeScores

_CORRELATION = ("Pearson r", "p", "Kendall τ", "p")


def _correlation(row: Coefficients) -> list[str]:
    """Return the cells below `_CORRELATION`."""
    return [
        format_number(row.pearson, "+.3f"),
        _small_p(row.pearson_p_holm),
        format_number(row.kendall, "+.3f"),
        _small_p(row.kendall_p_holm),
    ]


def _small_p(p: float | None) -> str:
    if p is not None and p < 1e-4:
        return "<0.0001"
    return format_number(p, ".4f")


def _correlation_note(of: str, row: Coefficients, points: str) -> Iterator[str]:
    """Yield the correlation with the gain in one line, if it is defined."""
    if row.pearson is not None:
        yield (
            f"{of} and gain over {points}: "
            f"Pearson's r {row.pearson:+.3f} (p = {row.pearson_p:.3g}), "
            f"Kendall's τ {row.kendall:+.3f} (p = {row.kendall_p:.3g})"
        )


def _gain_columns(measure: str | None) -> list[str]:
    """Return the title of the column of gains, nothing without gains."""
    if measure:
        return [f"gain in {measure}"]
    return []


def _gain_cells(gain: float | None, measure: str | None) -> list[str]:
    """Return the cell below the title of gains, nothing without gains."""
    if measure:
        return [format_number(gain, "+.4f")]
    return []


def qpp_table(report: QPP) -> Table:
    """Return predictors by their correlations with quality."""
    rows = []
    for row in report.predictors:
        counts = [f"{row.queries:,}", f"{row.left_out:,}"]
        rows.append([row.predictor, *_correlation(row), *counts])
    return make_table(
        f"{report.dataset} ({report.split}): {report.measure} of {report.model}, "
        f"{report.queries:,} queries (p after Holm's correction)",
        ["predictor"],
        [*_CORRELATION, "queries", "left out"],
        rows,
        _qpp_notes(report),
    )


def _qpp_notes(report: QPP) -> Iterator[str]:
    if report.queries_without_known_terms:
        yield f"{report.queries_without_known_terms} queries have no term that occurs in the corpus"
    if report.unknown_query_words:
        yield (
            f"{report.unknown_query_words} words of queries do not occur in the corpus and are "
            "ignored"
        )
    for row in report.predictors:
        if row.pearson is None:
            yield (
                f"{row.predictor} has no correlation: one side is constant, or too few queries are "
                "left"
            )
    for name, reason in report.predictors_left_out.items():
        yield f"{name} is not computed: it {reason}"


def representation_tables(report: Representation) -> list[Table]:
    """Return measures by corpus and model and, for two models, their changes."""
    rows = []
    for dataset, corpus in report.datasets.items():
        for model, measures in corpus.models.items():
            rows.append(
                [
                    dataset,
                    model,
                    f"{corpus.sampled:,}",
                    f"{measures.alignment:.4f}",
                    span(measures.alignment_interval, sign=""),
                    format_number(measures.uniformity, ".4f"),
                    format_number(measures.contrastive_loss, ".4f"),
                    span(measures.contrastive_loss_interval, sign=""),
                ]
            )
    table = make_table(
        f"two spans of a document (t = {report.temperature:g}, seed {report.seed}; smaller is "
        "better in each)",
        ["corpus", "model"],
        ["documents", "ℓ_align", "95%", "ℓ_uniform", "contrastive loss", "95%"],
        rows,
        _representation_notes(report),
    )
    if len(report.models) == 2:
        return [table, _changes(report)]
    return [table]


def _representation_notes(report: Representation) -> Iterator[str]:
    for dataset, corpus in report.datasets.items():
        batches = f"{corpus.batches} batches of {corpus.batch_size} documents"
        yield (
            f"{dataset}: contrastive loss over {batches}; at chance level it is "
            f"{corpus.loss_of_chance:.4f}"
        )
        if corpus.left_over:
            yield f"{dataset}: {corpus.left_over} documents fill no batch and are left out"
        if corpus.too_short:
            yield f"{dataset}: {corpus.too_short} sampled documents are too short for two spans"
    if not report.losses_comparable:
        yield (
            "the models compare texts in different ways, so their contrastive losses cannot be "
            "compared"
        )


def _changes(report: Representation) -> Table:
    """Return the changes from the first model to the second one."""
    before, after = report.models
    rows = []
    for dataset, corpus in report.datasets.items():
        change = corpus.change
        if change is None:
            continue
        rows.append(
            [
                dataset,
                f"{change.alignment:+.4f}",
                span(change.alignment_interval),
                format_number(change.uniformity, "+.4f"),
                format_number(change.contrastive_loss, "+.4f"),
                span(change.contrastive_loss_interval),
                format_number(change.contrastive_loss_reduction, ".1%"),
                *_gain_cells(change.gain, report.measure),
            ]
        )
    columns = ["ℓ_align", "95%", "ℓ_uniform", "contrastive loss", "95%", "reduction"]
    row = report.reduction_against_gain
    notes: Iterable[str] = ()
    if row is not None:
        notes = _correlation_note(row.of, row, f"{row.datasets} corpora")
    return make_table(
        f"{after} − {before}",
        ["corpus"],
        [*columns, *_gain_columns(report.measure)],
        rows,
        notes,
    )


def shift_tables(report: Shift) -> list[Table]:
    """Return similarities, query types and, with results, correlations."""
    tables = [_similarities(report), _query_types(report)]
    if report.scores:
        tables.append(_shift_correlations(report))
    return tables


def _similarities(report: Shift) -> Table:
    rows = []
    for target in report.targets:
        scores = [scores.get(target.dataset) for scores in report.scores.values()]
        rows.append(
            [
                target.dataset,
                f"{target.documents:,}",
                f"{target.words:,}",
                format_number(target.document_jaccard, ".4f"),
                f"{target.queries:,}",
                format_number(target.query_type_jaccard, ".4f"),
                *format_numbers("+.4f", *scores),
            ]
        )
    columns = ["documents", "words", "document similarity", "queries", "query type similarity"]
    return make_table(
        f"weighted Jaccard similarity with {report.source.dataset} (1: equal, 0: nothing shared)",
        ["target"],
        [*columns, *(f"{report.measure}, {label}" for label in report.scores)],
        rows,
        _shift_notes(report),
    )


def _query_types(report: Shift) -> Table:
    rows = []
    for record in (report.source, *report.targets):
        shares = record.query_types or {}
        rows.append([record.dataset, *format_numbers(".1%", *map(shares.get, QUERY_TYPES))])
    title = "query types (COCO-DR, appendix C.1)"
    return make_table(title, ["collection"], QUERY_TYPES, rows)


def _shift_correlations(report: Shift) -> Table:
    rows = []
    for label, correlations in report.correlations.items():
        for row in correlations:
            rows.append([label, row.similarity, *_correlation(row), str(row.targets)])
    return make_table(
        f"similarity and {report.measure} over targets (p after Holm's correction)",
        ["model", "similarity"],
        [*_CORRELATION, "targets"],
        rows,
    )


def _shift_notes(report: Shift) -> Iterator[str]:
    for record in (report.source, *report.targets):
        if not record.queries:
            yield f"{record.dataset} has no queries, so its query types cannot be compared"
        elif record.split is None:
            yield f"{record.dataset}: the queries of all splits"
    if report.baseline:
        yield f"scores are differences from {report.baseline}"


def source_clusters_tables(report: SourceClusters) -> list[Table]:
    """Return nearest clusters with losses and gains, and nearest queries."""
    return [_nearest_clusters(report), _nearest_queries(report)]


def _nearest_clusters(report: SourceClusters) -> Table:
    central = {cluster.cluster: cluster.central_queries for cluster in report.clusters}
    rows = []
    for name, target in report.targets.items():
        rows.append(
            [
                name,
                str(target.cluster),
                f"{target.queries:,}",
                format_number(target.similarity, ".4f"),
                format_number(target.loss_before, ".4f"),
                format_number(target.loss_after, ".4f"),
                f"{target.reduction:+.4f}",
                *_gain_cells(target.gain, report.measure),
                "; ".join(central[target.cluster]),
            ]
        )
    columns = ["cluster", "queries", "similarity", "loss before", "after", "reduction"]
    return make_table(
        f"{report.after} − {report.before}: the source cluster nearest to each target",
        ["target"],
        [*columns, *_gain_columns(report.measure)],
        rows,
        _cluster_notes(report),
        ["central queries"],
    )


def _nearest_queries(report: SourceClusters) -> Table:
    rows = []
    for name, target in report.targets.items():
        for case in target.cases:
            for near in case.nearest:
                numbers = format_numbers("+.4f", case.gain, near.gain, near.loss_reduction)
                similarity = f"{near.similarity:.4f}"
                rows.append([name, case.query, near.query, *numbers, similarity])
    measure = report.measure or "the measure"
    return make_table(
        f"target queries with their nearest source queries, and the gain of each in {measure}",
        ["target", "target query", "source query"],
        ["gain", "source gain", "reduction of loss", "similarity"],
        rows,
    )


def _cluster_notes(report: SourceClusters) -> Iterator[str]:
    yield f"{report.sampled:,} queries of {report.source} in {len(report.clusters)} clusters"
    improved = f"{report.nearest_improved} of {len(report.targets)} targets"
    yield f"the loss of the nearest cluster is lower after than before for {improved}"
    row = report.reduction_against_gain
    if row is not None:
        yield from _correlation_note(row.of, row, f"{row.targets} targets")


#: Most similar pairs that are listed.
_PAIRS = 10

#: Titles of the least numbers of passages that a query shares with training.
_MINIMUMS = {1: "any passage", 2: "more than one"}


def overlap_tables(report: Overlap) -> list[Table]:
    """Return label overlap, repeated queries and the most similar pairs."""
    return [_shared_labels(report), _repeated_queries(report), _similar_pairs(report)]


def _shared_labels(report: Overlap) -> Table:
    train = report.train
    test = report.test
    grades = list(dict.fromkeys(row.grade for row in report.label_overlap))
    shares = label_overlap_cells(report.label_overlap)
    rows = []
    for minimum, title in _MINIMUMS.items():
        rows.append([title, *(shares[grade, minimum] for grade in grades)])
    note = "the corpora differ: passages are compared by their ids"
    return make_table(
        f"{test.dataset} ({test.split}), {test.queries:,} queries, against "
        f"{train.dataset} ({train.split}), {train.queries:,} queries",
        ["test queries with passages relevant in training, of at least grade"],
        map(str, grades),
        rows,
        [] if report.same_corpus else [note],
    )


def _repeated_queries(report: Overlap) -> Table:
    exact = report.exact_duplicates
    near = report.near_duplicates
    rows = [
        ["the same text", f"{exact.queries:,}", f"{exact.share:.1%}"],
        [
            "another text with the same words, except for stop words and endings",
            f"{near.queries:,}",
            f"{near.share:.1%}",
        ],
    ]
    title = "test queries that occur in the training set"
    return make_table(title, [""], ["queries", "share"], rows)


def label_overlap_cells(rows: Iterable[LabelOverlap]) -> dict[tuple[int, int], str]:
    """Return (grade, minimum) to the share of test queries, for tables."""
    return {(row.grade, row.minimum): f"{row.share:.0%}" for row in rows}


def _similar_pairs(report: Overlap) -> Table:
    nearest = report.nearest
    kind = "Jaccard similarity of words" if nearest.encoder is None else "cosine similarity"
    pairs = sorted(nearest.queries, key=lambda row: -row.similarity)
    rows = []
    for row in pairs[:_PAIRS]:
        training_text = row.training_text or "–"
        rows.append([row.text, training_text, f"{row.similarity:.3f}"])
    note = f"the {_PAIRS} most similar of {len(pairs):,}; --json or --output gives all"
    return make_table(
        f"nearest training queries by {kind}: mean {nearest.mean:.3f}, "
        f"median {nearest.median:.3f}, {nearest.least:.3f} to {nearest.most:.3f}",
        ["test query", "nearest training query"],
        ["similarity"],
        rows,
        [note] if len(pairs) > _PAIRS else [],
    )


def regime_tables(report: Regimes) -> list[Table]:
    """Return both regimes with their gap, and the alignment if it was measured."""
    rows = []
    for row in report.rows:
        cells = [row.group, row.model, str(len(row.seeds))]
        for measure in report.measures:
            scores = row.measures[measure]
            cells += format_numbers(".4f", scores.interpolation, scores.extrapolation)
            cells.append(_gap(scores))
        rows.append(cells)
    columns = ["seeds"]
    for measure in report.measures:
        columns += [f"{measure} inter.", "extra.", "gap"]
    queries = report.rows[0].queries
    note = (
        "gap: (extrapolation − interpolation) / interpolation, of means over seeds, ± standard "
        f"deviation of the seeds' gaps; {queries['interpolation']:,} and "
        f"{queries['extrapolation']:,} test queries"
    )
    regimes = make_table(
        f"{report.method} of {report.train.dataset} and {report.test.dataset}",
        ["training sets", "model"],
        columns,
        rows,
        [note],
    )
    if report.alignment:
        return [regimes, _alignment(report)]
    return [regimes]


def _gap(scores: RegimeScores) -> str:
    if scores.gap is None:
        return "–"
    spread = ""
    if scores.gap_sd is not None:
        spread = f" ± {100 * scores.gap_sd:.1f}"
    return f"{100 * scores.gap:+.1f}{spread} %"


def _alignment(report: Regimes) -> Table:
    rows = []
    for row in report.alignment:
        rows.append(
            [
                row.collection,
                row.regime,
                str(row.models),
                format_number(row.spearman, "+.3f"),
                format_number(row.spearman_p, ".3g"),
                format_number(row.kendall, "+.3f"),
                format_number(row.kendall_p, ".3g"),
            ]
        )
    measure = report.alignment[0].measure
    return make_table(
        f"alignment with collections outside the distribution, {measure}",
        ["collection", "regime"],
        ["models", "Spearman's ρ", "p", "Kendall's τ", "p"],
        rows,
    )


def resample_tables(manifest: Manifest) -> list[Table]:
    """Return sizes, and the overlap with the test queries before and after."""
    overlap = manifest.overlap
    grades = [row.grade for row in overlap.before.label_overlap if row.minimum == 1]
    rows = [["(before)", *_overlap_cells(overlap.before, grades)]]
    for resampled in manifest.sets:
        k = ""
        if resampled.k is not None:
            k = f" (k = {resampled.k})"
        cells = _overlap_cells(overlap.after[resampled.folder], grades)
        rows.append([resampled.folder + k, *cells])
    notes = [
        "labels ≥ g: test queries with a passage of at least grade g that is relevant in training; "
        "similarity: cosine to the nearest training query",
        "an id in ir_datasets, after beir_cocodr.plugins.irds.register(), is for example "
        f"{manifest.sets[0].id}",
    ]
    if not manifest.same_corpus:
        notes.append("the corpora differ: the test split of each collection is in its folder test")
    labels = [f"labels ≥ {grade}" for grade in grades]
    similar = ["same text", "same words", "mean similarity"]
    columns = ["training queries", "test queries", *labels, *similar]
    return [make_table(_resample_title(manifest), ["collection"], columns, rows, notes)]


def _resample_title(manifest: Manifest) -> str:
    train = manifest.train
    test = manifest.test
    parameters = manifest.parameters
    if isinstance(parameters, RestrainParameters):
        method = f"ReSTrain, L = {parameters.exclude_top}, {parameters.pool:,} queries outside"
    else:
        method = f"ReSTTest, {parameters.buckets} buckets"
    sets = f"{train.dataset} ({train.split}) and {test.dataset} ({test.split})"
    return f"{method}: {sets} by {manifest.encoder.name}"


def _overlap_cells(summary: OverlapSummary, grades: list[int]) -> list[str]:
    shares = label_overlap_cells(summary.label_overlap)
    # The test queries of a bucket need not have passages of every grade.
    labels = [shares.get((grade, 1), "–") for grade in grades]
    return [
        *format_numbers(",", summary.training_queries, summary.test_queries),
        *labels,
        *format_numbers(",", summary.exact_duplicates, summary.near_duplicates),
        f"{summary.nearest_similarity.mean:.3f}",
    ]
