"""Evaluations, comparisons, adaptations and parity as tables in a terminal, and defects as
lines.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from beir_cocodr.data.defects import Defect
from beir_cocodr.evaluation import results as records
from beir_cocodr.evaluation.chains import ALONE, BASE, Chain
from beir_cocodr.evaluation.few_labels import FewLabels
from beir_cocodr.evaluation.label_free.choice import label_pairs, training_pairs
from beir_cocodr.evaluation.label_free.estimators import ESTIMATORS
from beir_cocodr.evaluation.parity import ParityRecord
from beir_cocodr.provenance import TrainingRecord
from beir_cocodr.report.terminal import make_table, print_json, print_tables
from beir_cocodr.report.wording import (
    describe_likeness,
    describe_pseudo_queries,
    format_number,
    format_numbers,
    p_value,
    signed,
    span,
)


def evaluation_table(record: records.EvaluationRecord) -> Table:
    """Models by measures, with bootstrap 95% intervals."""
    sizes = f"{record.documents:,} documents, {record.queries:,} queries"
    rows = []
    for label, result in record.models.items():
        rows.append([label])
        for measure, interval in result.intervals.items():
            within = "" if interval is None else "{:.3f}–{:.3f}".format(*interval)
            rows[-1] += [f"{result.measures[measure]:.4f}", within]
        rows[-1].append(f"{result.seconds:.1f}")
    columns = [title for measure in record.measures for title in (measure, "95%")]
    title = f"{record.dataset} ({record.split}): {sizes}"
    return make_table(title, ["model"], [*columns, "seconds"], rows, _remarks(record))


def evaluation_tables(record: records.EvaluationRecord) -> list[Table]:
    """Figures, paired tests, and what judgements of a file tell by themselves."""
    tables = [evaluation_table(record)]
    if record.comparisons:
        title = "paired tests (difference of b to a; p after Holm's correction)"
        rows = ([test.measure, test.a, test.b, *_test_cells(test)] for test in record.comparisons)
        tables.append(make_table(title, ["measure", "a", "b"], _TEST_COLUMNS, rows))
    return tables + ([] if record.few_labels is None else [few_labels_table(record.few_labels)])


def few_labels_table(found: FewLabels) -> Table:
    """Models by judged queries alone, each against the reference."""
    rows = []
    for model, value in found.values.items():
        gain, sign = found.pairs.get(found.reference, {}).get(model), 1
        if gain is None:
            gain, sign = found.pairs.get(model, {}).get(found.reference), -1
        cells = ["", "", ""]
        if gain is not None:
            ends = (
                None
                if gain.interval is None
                else tuple(sorted(sign * end for end in gain.interval))
            )
            more = "more than 10,000" if gain.more is None else f"{gain.more:,}"
            cells = [signed(sign * gain.difference), span(ends), more]
        rows.append([model, f"{value:.4f}", *cells, f"{found.unjudged[model]:.1f}"])
    columns = [
        "nDCG@10",
        f"against {found.reference}",
        "90%",
        "queries to settle it",
        "of ten unjudged",
    ]
    notes = [*found.describe(), "The intervals hold together at all numbers of judged queries."]
    return make_table(f"{found.queries} judged queries alone", ["model"], columns, rows, notes)


def _remarks(record: records.EvaluationRecord) -> Iterator[str]:
    """What a reader of the figures has to know: truncated documents, queries without results."""
    for label, result in record.models.items():
        if result.truncation:
            yield f"{label}: {result.truncation}"
        if result.queries_without_results:
            yield f"{label}: {result.queries_without_results} queries without results, scored 0"


def fusion_table(record: TrainingRecord) -> Table:
    """The ways to make BM25 dense that were tried for a hybrid encoder; the one that was taken is
    marked.
    """
    found: Any = record.details
    rows = []
    for one in found["candidates"]:
        numbers = one["components"] + one["hashed"]
        taken = (one["kind"], numbers) == (found["kind"], found["numbers"])
        rows.append(
            [("> " if taken else "  ") + one["kind"], f"{numbers:,}", f"{one['agreement']:.3f}"]
        )
    sizes = ", ".join(
        f"{size:,} in {precision}" for precision, size in found["bytes_per_document"].items()
    )
    notes = [
        "agreement: the share of the exact fusion's best 10 that is among its own, on crops and given queries",
        f"bytes a document: {sizes}; projection of {found['terms']:,} terms: {found['projection_bytes']:,} bytes",
    ]
    if found["terms_left_out"]:
        share = f"{found['unknown_share']:.1%} of all occurrences"
        notes.append(f"{found['terms_left_out']:,} rarer terms are left out, {share}")
    return make_table("hybrid encoder", ["lexical part"], ["numbers", "agreement"], rows, notes)


_TEST_COLUMNS = ("b − a", "95%", "t-test p", "randomisation p", "win/tie/loss")


def _test_cells(test: records.PairedTest) -> list[str]:
    ps = (p_value(p, 4) for p in (test.t_p_holm, test.randomization_p_holm))
    return [signed(test.difference, 4), span(test.interval), *ps, _counts(test)]


def _counts(found: records.PairedTest | records.Estimate) -> str:
    return f"{found.wins}/{found.ties}/{found.losses}"


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


def adaptation_table(
    comparison: records.ComparisonRecord,
    candidates: Mapping[str, str],
    chains: Mapping[str, Chain],
) -> Table:
    """Trained encoders against the base in the same use, and the untrained methods against the base
    alone.
    """
    pairs = label_pairs(comparison, candidates)
    size = f"{comparison.documents:,} documents, {comparison.queries:,} queries"
    base_uses = [
        chain.label for chain in chains.values() if not chain.stages and chain.mode != ALONE
    ]
    shown = [
        *training_pairs(chains.values()),
        *((BASE, label) for label in base_uses),
        (BASE, "bm25"),
    ]
    return make_table(
        f"{comparison.dataset}: {size}, estimates without labels",
        ["model", "against", "verdict"],
        ["nDCG@10", "90%", "P(better)", *ESTIMATORS],
        (
            [b, a, pair.verdict, *_expected(pair), *map(_estimate, pair.estimates)]
            for a, b in shown
            for pair in [pairs[a, b]]
        ),
        ["difference and its 95% interval; in brackets: does not count for this pair"],
    )


def _estimate(estimate: records.Estimate) -> str:
    if estimate.difference is None:
        return "–"
    text = signed(estimate.difference)
    text += "" if estimate.interval is None else f"\n{span(estimate.interval)}"
    return text if estimate.applies else f"({text})"


def print_adaptation(record: records.AdaptationRecord, as_json: bool) -> None:
    """Print an adaptation: the ablation's table, the verdict, and the recommendation.

    Without labels: the table of estimates, and how far to trust the verdict.
    """
    if as_json:
        print_json(record.to_json())
        return
    if record.results is not None:
        print_tables(evaluation_table(record.results))
    elif record.comparison is not None:
        few = record.comparison.few_labels
        print_tables(
            adaptation_table(record.comparison, record.candidates, record.chains),
            *([few_labels_table(few)] if few else []),
        )
    recommendation = record.recommendation
    print(f"Did training make the encoder better? {recommendation.verdict}.")
    for reason in recommendation.reasons:
        print(f"- {reason}")
    for trust in recommendation.trust:
        print(f"How far to trust this: {trust}")
    print(f"Recommended: {recommendation.model} ({record.path})")


_LISTED = 10


def verdict_tables(record: records.ComparisonRecord) -> list[Table]:
    """Verdicts, what they rest on, pairs to label, and what was seen in training."""
    tables = [
        _estimates(record) if record.evaluation is None else evaluation_table(record.evaluation)
    ]
    tables.append(_verdicts(record))
    if record.few_labels is not None:
        tables.append(few_labels_table(record.few_labels))
    if record.labels_wanted.pairs:
        tables.append(_candidates(record.labels_wanted))
    if record.seen:
        rows = ([model, "\n".join(statement.sentences)] for model, statement in record.seen.items())
        tables.append(make_table("what was seen in training", ["model", "statement"], rows=rows))
    return tables


def _verdicts(record: records.ComparisonRecord) -> Table:
    title = f"verdicts on {record.dataset}, b against a"
    if record.labels:
        tests = [pair for pair in record.pairs if isinstance(pair, records.PairedTest)]
        rows = ([test.a, test.b, test.verdict, test.measure, *_test_cells(test)] for test in tests)
        columns = ["measure", *_TEST_COLUMNS]
        return make_table(
            f"{title} (paired tests)", ["a", "b", "verdict"], columns, rows, [record.best.reason]
        )
    rows = (
        [pair.a, pair.b, pair.verdict, *_expected(pair), pair.reason] for pair in record.estimated
    )
    remarks = [record.best.reason, *dict.fromkeys(pair.trust for pair in record.estimated)]
    remarks += describe_likeness(record.likeness)
    columns = ["nDCG@10 b − a", "90%", "P(b better)"]
    title += " (without labels)" if record.few_labels is None else " (judged queries and estimates)"
    return make_table(title, ["a", "b", "verdict"], columns, rows, remarks, ["reason"])


def _expected(pair: records.PairVerdict) -> list[str]:
    return [signed(pair.estimate), span(pair.interval), format_number(pair.probability)]


def _estimates(record: records.ComparisonRecord) -> Table:
    asked = record.pseudo_queries["agreement"]
    whose = "the collection's own" if asked.of_the_collection else "generated"
    return make_table(
        f"{record.dataset}: {record.documents:,} documents, estimates without labels",
        ["a", "b", "estimator"],
        ["a", "b", "b − a", "95%", "win/tie/loss"],
        (
            [
                *(pair.a, pair.b, found.estimator + (f" ({found.remark})" if found.remark else "")),
                *format_numbers(".4f", found.a, found.b),
                "–" if found.difference is None else signed(found.difference, 4),
                *(span(found.interval), _counts(found)),
            ]
            for pair in record.estimated
            for found in pair.estimates
        ),
        [
            *describe_pseudo_queries(record.pseudo_queries),
            f"agreement: share of the other list's ten best documents, {asked.queries:,} {whose} queries",
        ],
    )


def _candidates(wanted: records.AnnotationCandidates) -> Table:
    more = len(wanted.pairs) - _LISTED
    return make_table(
        f"labels that would tell most between a = {wanted.a} and b = {wanted.b}",
        ["query", "document"],
        ["weight", "rank a", "rank b"],
        (
            [
                *(f"{pair.query_id}: {pair.query[:60]}", pair.document_id, f"{pair.weight:.3f}"),
                *format_numbers("d", pair.rank_a, pair.rank_b),
            ]
            for pair in wanted.pairs[:_LISTED]
        ),
        [f"and {more} more"] if more > 0 else [],
    )


_TOOLS = {"ir_measures": "ir-measures", "beir": "BEIR", "pytrec_eval": "pytrec_eval"}


def parity_tables(record: ParityRecord) -> list[Table]:
    """Measures by tools, then each difference with its causes."""
    queries = record.queries
    values = make_table(
        f"{escape(record.run)} on {escape(record.dataset)} ({record.split}): "
        f"{queries['judged']:,} judged queries, {queries['judged_with_results']:,} with results",
        ["measure"],
        [column for title in _TOOLS.values() for column in (title, "its name")],
        (
            [
                row.measure,
                *(
                    cell
                    for t in _TOOLS
                    for cell in (f"{row.tools[t].value:.6f}", row.tools[t].name)
                ),
            ]
            for row in record.measures
        ),
        map(escape, record.notes),
    )
    return [values, _differences(record)]


def _differences(record: ParityRecord) -> Table:
    table = make_table(
        "differences to ir-measures, each cause applied after those above it",
        ["measure", "tool", "cause"],
        ["queries", "changed", "before", "after", "effect"],
        notes=[
            f"every difference is explained, to {record.tolerance:g}"
            if record.explained
            else "not every difference is explained: see 'unexplained'"
        ],
        last=["reason"],
    )
    for row in record.measures:
        for found in row.differences:
            head = [row.measure, _TOOLS[found.tool]]
            for cause in found.causes:
                counts = format_numbers(",", cause.queries, cause.queries_changed)
                values = format_numbers(".6f", cause.before, cause.after)
                table.add_row(
                    *head, cause.cause, *counts, *values, f"{cause.effect:+.6f}", cause.reason
                )
                head = ["", ""]
            conclusion = (
                "all",
                found.difference,
                "recomputed with these causes, the numbers agree",
            )
            if not found.explained:
                reason = f"{found.remaining:+.2e} remains after all known causes"
                conclusion = ("unexplained", found.remaining, reason)
            elif not found.causes:
                conclusion = ("none", found.difference, "the same number")
            name, effect, reason = conclusion
            table.add_row(*head, name, *[""] * 4, f"{effect:+.6f}", reason, end_section=True)
    return table
