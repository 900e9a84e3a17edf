"""Evaluations, comparisons, adaptations, passage sizes and parity as tables; defects as lines."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from beir_cocodr.data.defects import Defect
from beir_cocodr.evaluation.chains import ALONE, BASE, Chain
from beir_cocodr.evaluation.few_labels import FewLabels
from beir_cocodr.evaluation.label_free.choice import label_pairs, training_pairs
from beir_cocodr.evaluation.parity import Difference, ParityRecord
from beir_cocodr.evaluation.results import (
    AdaptationRecord,
    AnnotationCandidates,
    ComparisonRecord,
    Estimate,
    EvaluationRecord,
    PairedTest,
    PairVerdict,
)
from beir_cocodr.provenance import RECORD_FILE, TrainingRecord
from beir_cocodr.report.judge_tables import judge_table
from beir_cocodr.report.terminal import make_table, print_json, print_tables
from beir_cocodr.report.wording import (
    COUNTED,
    counted,
    describe_likeness,
    describe_pseudo_queries,
    describe_specificity,
    estimators_of,
    format_number,
    format_numbers,
    p_value,
    signed,
    span,
    without_settings,
)
from beir_cocodr.retrieval.hybrid.fusion_details import FusionDetails

if TYPE_CHECKING:  # what it imports takes a while
    from beir_cocodr.evaluation.passage_sizes import PassagesRecord


def evaluation_table(record: EvaluationRecord) -> Table:
    """Return models by measures, with bootstrap 95% intervals."""
    rows = []
    for label, result in record.models.items():
        row = [label]
        for measure, interval in result.intervals.items():
            ends = ""
            if interval is not None:
                low, high = interval
                ends = f"{low:.3f}–{high:.3f}"
            row += [f"{result.measures[measure]:.4f}", ends]
        row.append(f"{result.seconds:.1f}")
        rows.append(row)
    columns = []
    for measure in record.measures:
        columns += [measure, "95%"]
    sizes = f"{record.documents:,} documents, {record.queries:,} queries"
    title = f"{without_settings(record.dataset)} ({record.split}): {sizes}"
    return make_table(title, ["model"], [*columns, "seconds"], rows, _remarks(record))


def evaluation_tables(record: EvaluationRecord) -> list[Table]:
    """Return figures, paired tests, and figures from the judgements of a file alone."""
    tables = [evaluation_table(record)]
    if record.comparisons:
        rows = [[test.measure, test.a, test.b, *_test_cells(test)] for test in record.comparisons]
        tests = make_table(
            "paired tests (difference b − a; p after Holm's correction)",
            ["measure", "a", "b"],
            _TEST_COLUMNS,
            rows,
        )
        tables.append(tests)
    if record.few_labels is not None:
        tables.append(few_labels_table(record.few_labels))
    return tables


def few_labels_table(few: FewLabels) -> Table:
    """Return models by the judged queries alone, each against the reference."""
    rows = []
    for model, value in few.values.items():
        unjudged = few.unjudged[model]
        rows.append(
            [
                model,
                f"{value:.4f}",
                *_gain_cells(few, model),
                f"{unjudged:.1f}",
            ]
        )
    columns = [
        "nDCG@10",
        f"against {few.reference}",
        "90%",
        "more queries to decide",
        "unjudged in top ten",
    ]
    notes = [
        *few.describe(),
        "The intervals hold simultaneously for every number of judged queries.",
    ]
    title = f"from {few.queries} judged queries alone"
    return make_table(title, ["model"], columns, rows, notes)


def _gain_cells(few: FewLabels, model: str) -> list[str]:
    """Return a model's gain over the reference, its interval, and the queries that decide it."""
    gain = few.pairs.get(few.reference, {}).get(model)
    sign = 1
    if gain is None:
        gain = few.pairs.get(model, {}).get(few.reference)
        sign = -1
    if gain is None:
        return ["", "", ""]
    ends = None
    if gain.interval is not None:
        ends = sorted(sign * end for end in gain.interval)
    more = "more than 10,000"
    if gain.more is not None:
        more = f"{gain.more:,}"
    return [signed(sign * gain.difference), span(ends), more]


def _remarks(record: EvaluationRecord) -> Iterator[str]:
    """Yield truncated documents, and queries without results."""
    for label, result in record.models.items():
        if result.truncation:
            yield f"{label}: {result.truncation}"
        if result.queries_without_results:
            yield f"{label}: {result.queries_without_results} queries without results, scored 0"


def fusion_table(record: TrainingRecord) -> Table:
    """Return the ways to make BM25 dense that were tried, with a mark at the one taken."""
    details = FusionDetails.from_json(record.details, RECORD_FILE)
    rows = []
    for tried in details.candidates:
        is_same_kind = tried.kind == details.kind
        is_taken = is_same_kind and tried.numbers == details.numbers
        mark = "> " if is_taken else "  "
        rows.append(
            [
                f"{mark}{tried.kind}",
                f"{tried.numbers:,}",
                f"{tried.agreement:.3f}",
            ]
        )
    sizes = ", ".join(
        f"{size:,} in {precision}" for precision, size in details.bytes_per_document.items()
    )
    notes = [
        "agreement: share of the exact fusion's ten best documents that are among the "
        "encoder's ten best, on crops and the collection's queries",
        f"bytes per document: {sizes}; projection of {details.terms:,} terms: "
        f"{details.projection_bytes:,} bytes",
    ]
    if details.terms_left_out:
        notes.append(
            f"{details.terms_left_out:,} rarer terms, {details.unknown_share:.1%} of all "
            "occurrences, are left out"
        )
    reason = record.options.get("weight_reason")
    if reason:
        notes.append(str(reason))
    return make_table("hybrid encoder", ["lexical part"], ["numbers", "agreement"], rows, notes)


_TEST_COLUMNS = ("b − a", "95%", "t-test p", "randomisation p", "win/tie/loss")


def _test_cells(test: PairedTest) -> list[str]:
    """Return the cells below `_TEST_COLUMNS`."""
    return [
        signed(test.difference, 4),
        span(test.interval),
        p_value(test.t_p_holm, 4),
        p_value(test.randomization_p_holm, 4),
        _counts(test),
    ]


def _counts(pair: PairedTest | Estimate) -> str:
    return f"{pair.wins}/{pair.ties}/{pair.losses}"


def defect_lines(defects: Sequence[Defect], most: int) -> Iterator[str]:
    """Yield one line for each defect, at most ``most`` of each kind, and count the others."""
    seen: Counter[str] = Counter()
    for defect in defects:
        seen[defect.kind] += 1
        if seen[defect.kind] <= most:
            location = defect.file
            if defect.line is not None:
                location += f":{defect.line}"
            yield f"{defect.severity}: {location}: {defect.message}"
    for kind, count in seen.items():
        if count > most:
            yield f"... and {count - most} more: {kind}"


def adaptation_table(
    comparison: ComparisonRecord, candidates: Mapping[str, str], chains: Mapping[str, Chain]
) -> Table:
    """Return estimates for trained encoders, and for untrained methods, against the base.

    A trained encoder is compared with the base in the same use, an untrained method with the base
    alone.

    Args:
        comparison: the comparison of all candidates.
        candidates: label to model name.
        chains: label to chain, for those that are an encoder.
    """
    verdicts = label_pairs(comparison, candidates)
    pairs = training_pairs(chains.values())
    for chain in chains.values():
        if not chain.stages and chain.mode != ALONE:
            pairs.append((BASE, chain.label))
    pairs.append((BASE, "bm25"))
    estimators = estimators_of([verdicts[pair] for pair in pairs])
    rows = []
    for a, b in pairs:
        pair = verdicts[a, b]
        estimates = {estimate.estimator: _estimate(estimate) for estimate in pair.estimates}
        cells = [estimates.get(name, "–") for name in estimators]
        rows.append([b, a, pair.verdict, *_expected(pair), *cells])
    size = f"{comparison.documents:,} documents, {comparison.queries:,} queries"
    return make_table(
        f"{without_settings(comparison.dataset)}: {size}, estimates without labels",
        ["model", "against", "verdict"],
        ["nDCG@10", "90%", "P(better)", *estimators],
        rows,
        ["estimates are differences; one in brackets does not count for this pair"],
    )


def _estimate(estimate: Estimate) -> str:
    if estimate.difference is None:
        return "–"
    text = signed(estimate.difference)
    if estimate.applies:
        return text
    return f"({text})"


def print_adaptation(record: AdaptationRecord, as_json: bool) -> None:
    """Print an adaptation: its figures or estimates, the verdict, and the recommendation."""
    if as_json:
        print_json(record.to_json())
        return
    if record.results is not None:
        print_tables(evaluation_table(record.results))
    elif record.comparison is not None:
        print_tables(adaptation_table(record.comparison, record.candidates, record.chains))
        if record.comparison.few_labels is not None:
            print_tables(few_labels_table(record.comparison.few_labels))
    recommendation = record.recommendation
    change = "fusing with BM25" if record.stages == ["fuse"] else "training"
    print(f"Did {change} make the encoder better? {recommendation.verdict}.")
    for reason in recommendation.reasons:
        print(f"- {reason}")
    for trust in recommendation.trust:
        print(f"How far to trust this: {trust}")
    bet = "" if recommendation.decided else ", as the best bet"
    print(f"Recommended: {recommendation.model} ({record.path}){bet}")


def verdict_tables(record: ComparisonRecord) -> list[Table]:
    """Return figures or estimates, verdicts, pairs to label, and what training has seen."""
    if record.evaluation is None:
        tables = [_estimates(record), _estimated_verdicts(record)]
    else:
        tables = [evaluation_table(record.evaluation), _tested_verdicts(record)]
    if record.few_labels is not None:
        tables.append(few_labels_table(record.few_labels))
    if record.judge is not None:
        tables.append(judge_table(record.judge))
    if record.labels_wanted.pairs:
        tables.append(_candidates(record.labels_wanted))
    if record.seen:
        rows = [[model, "\n".join(statement.sentences)] for model, statement in record.seen.items()]
        tables.append(make_table("seen in training", ["model", "statement"], rows=rows))
    return tables


def _tested_verdicts(record: ComparisonRecord) -> Table:
    rows = []
    for test in record.pairs:
        if isinstance(test, PairedTest):
            rows.append([test.a, test.b, test.verdict, test.measure, *_test_cells(test)])
    return make_table(
        f"verdicts on {without_settings(record.dataset)}, b against a (paired tests)",
        ["a", "b", "verdict"],
        ["measure", *_TEST_COLUMNS],
        rows,
        [record.best.reason],
    )


def _estimated_verdicts(record: ComparisonRecord) -> Table:
    rows = []
    for pair in record.estimated:
        reason = f"{pair.answer}. Estimate: {pair.reason}."
        rows.append([pair.a, pair.b, pair.verdict, *_expected(pair), reason])
    remarks = [record.best.reason, *dict.fromkeys(pair.trust for pair in record.estimated)]
    remarks += describe_likeness(record.likeness)
    way = "without labels" if record.few_labels is None else "judged queries and estimates"
    return make_table(
        f"verdicts on {without_settings(record.dataset)}, b against a ({way})",
        ["a", "b", "verdict"],
        ["nDCG@10 b − a", "90%", "P(b better)"],
        rows,
        remarks,
        ["reason"],
    )


def _expected(pair: PairVerdict) -> list[str]:
    return [signed(pair.estimate), span(pair.interval), format_number(pair.probability)]


def _estimates(record: ComparisonRecord) -> Table:
    rows = []
    for pair in record.estimated:
        for estimate in pair.estimates:
            rows.append([pair.a, pair.b, *_estimate_cells(pair, estimate)])
    agreement = record.pseudo_queries["agreement"]
    kind = "of the collection" if agreement.of_the_collection else "that were generated"
    notes = [
        *describe_pseudo_queries(record.pseudo_queries),
        "agreement: share of the other list's ten best documents, over "
        f"{agreement.queries:,} queries {kind}",
        *describe_specificity(record.estimated),
    ]
    dataset = without_settings(record.dataset)
    return make_table(
        f"{dataset}: {record.documents:,} documents, estimates without labels",
        ["a", "b", "estimator"],
        ["a", "b", "b − a", "95%", "win/tie/loss"],
        rows,
        notes,
    )


def _estimate_cells(pair: PairVerdict, estimate: Estimate) -> list[str]:
    name = estimate.estimator
    value = counted(pair, estimate)
    if estimate.remark:
        name += f" ({estimate.remark})"
    elif value is not None:
        name += f" (counts as {signed(value, 4)}, {COUNTED})"
    difference = "–"
    if estimate.difference is not None:
        difference = signed(estimate.difference, 4)
    means = format_numbers(".4f", estimate.a, estimate.b)
    return [name, *means, difference, span(estimate.interval), _counts(estimate)]


#: Pairs to label that are listed.
_LISTED = 10


def _candidates(wanted: AnnotationCandidates) -> Table:
    rows = []
    for pair in wanted.pairs[:_LISTED]:
        query = f"{pair.query_id}: {pair.query[:60]}"
        ranks = format_numbers("d", pair.rank_a, pair.rank_b)
        rows.append([query, pair.document_id, f"{pair.weight:.3f}", *ranks])
    more = len(wanted.pairs) - _LISTED
    return make_table(
        f"pairs whose labels would decide most between a = {wanted.a} and b = {wanted.b}",
        ["query", "document"],
        ["weight", "rank a", "rank b"],
        rows,
        [f"and {more} more"] if more > 0 else [],
    )


_TOOLS = {"ir_measures": "ir-measures", "beir": "BEIR", "pytrec_eval": "pytrec_eval"}


def passage_tables(record: "PassagesRecord") -> list[Table]:
    """Return models and sizes by their figures, with the better bets below."""
    kinds = list(record.questions)
    rows = []
    for figures in record.figures:
        cells = [figures.model, str(figures.words), f"{figures.passages:,}"]
        cells += [f"{figures.by_file[kind]:.3f}" for kind in kinds]
        by_span = ""
        if figures.by_span is not None:
            by_span = f"{figures.by_span:.3f}"
        cells.append(by_span)
        rows.append(cells)
    columns = ["words", "passages", *[f"nDCG@10, {kind}" for kind in kinds], "by span"]
    title = f"{without_settings(record.dataset)}: passages of several sizes"
    return [make_table(title, ["model"], columns, rows, record.describe())]


def parity_tables(record: ParityRecord) -> list[Table]:
    """Return measures by tools, then each difference with its causes."""
    columns = []
    for title in _TOOLS.values():
        columns += [title, "its name"]
    rows = []
    for measure in record.measures:
        row = [measure.measure]
        for tool in _TOOLS:
            of_tool = measure.tools[tool]
            row += [f"{of_tool.value:.6f}", of_tool.name]
        rows.append(row)
    queries = record.queries
    values = make_table(
        f"{record.run} on {without_settings(record.dataset)} ({record.split}): "
        f"{queries['judged']:,} judged queries, {queries['judged_with_results']:,} with results",
        ["measure"],
        columns,
        rows,
        record.notes,
    )
    return [values, _differences(record)]


def _differences(record: ParityRecord) -> Table:
    if record.explained:
        note = f"every difference is explained, to {record.tolerance:g}"
    else:
        note = "not every difference is explained: see 'unexplained'"
    table = make_table(
        "differences from ir-measures, each cause applied after those above it",
        ["measure", "tool", "cause"],
        ["queries", "changed", "before", "after", "effect"],
        notes=[note],
        last=["reason"],
    )
    for measure in record.measures:
        for difference in measure.differences:
            _add_difference(table, measure.measure, difference)
    return table


def _add_difference(table: Table, measure: str, difference: Difference) -> None:
    """Add a row for each cause of a difference, and one for what remains."""
    head = [measure, _TOOLS[difference.tool]]
    for cause in difference.causes:
        counts = format_numbers(",", cause.queries, cause.queries_changed)
        values = format_numbers(".6f", cause.before, cause.after)
        effect = f"{cause.effect:+.6f}"
        table.add_row(
            *head,
            cause.cause,
            *counts,
            *values,
            effect,
            cause.reason,
        )
        head = ["", ""]
    effect = f"{difference.difference:+.6f}"
    if not difference.explained:
        name = "unexplained"
        effect = f"{difference.remaining:+.6f}"
        reason = f"{difference.remaining:+.2e} remains after all known causes"
    elif difference.causes:
        name = "all"
        reason = "recomputed with these causes, the numbers agree"
    else:
        name = "none"
        reason = "the same number"
    table.add_row(
        *head,
        name,
        "",
        "",
        "",
        "",
        effect,
        reason,
        end_section=True,
    )
