"""Analyses, overlap, resampled collections, and interpolation and extrapolation as tables, from
their records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.markup import escape
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
    """The cells below `_CORRELATION`."""
    return [
        cell
        for value, p in ((row.pearson, row.pearson_p_holm), (row.kendall, row.kendall_p_holm))
        for cell in (
            format_number(value, "+.3f"),
            "<0.0001" if p is not None and p < 1e-4 else format_number(p, ".4f"),
        )
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
        (
            [row.predictor, *_correlation(row), f"{row.queries:,}", f"{row.left_out:,}"]
            for row in report.predictors
        ),
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
        [
            "ℓ_align",
            "95%",
            "ℓ_uniform",
            "contrastive loss",
            "95%",
            "reduction",
            *_gain(report.measure),
        ],
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
                *(
                    format_number(found.get(target.dataset), "+.4f")
                    for found in report.scores.values()
                ),
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
            [
                record.dataset,
                *format_numbers(".1%", *map((record.query_types or {}).get, QUERY_TYPES)),
            ]
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
        [
            "cluster",
            "queries",
            "similarity",
            "loss before",
            "after",
            "reduction",
            *_gain(report.measure),
        ],
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
        (
            [escape(row.text), escape(row.training_text or "–"), f"{row.similarity:.3f}"]
            for row in best[:_PAIRS]
        ),
        [more] if len(best) > _PAIRS else [],
    )


def regime_tables(report: Regimes) -> list[Table]:
    """Both regimes and the gap, and the alignment where there is one."""
    queries = report.rows[0].queries
    rows = []
    for row in report.rows:
        rows.append([row.group, escape(row.model), str(len(row.seeds))])
        for measure in report.measures:
            found = row.measures[measure]
            rows[-1] += [
                *format_numbers(".4f", found.interpolation, found.extrapolation),
                _gap(found),
            ]
    regimes = make_table(
        escape(f"{report.method} of {report.train.dataset} and {report.test.dataset}"),
        ["training sets", "model"],
        ["seeds", *(name for m in report.measures for name in (f"{m} inter.", "extra.", "gap"))],
        rows,
        [
            "gap: (extrapolation − interpolation) / interpolation, of means over seeds, ± standard deviation "
            f"of the seeds' gaps; {queries['interpolation']:,} and {queries['extrapolation']:,} test queries"
        ],
    )
    return [regimes, *([_alignment(report)] if report.alignment else [])]


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


def resample_tables(manifest: Manifest) -> list[Table]:
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
    return [make_table(_title(manifest), ["collection"], numbers, rows, notes)]


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
