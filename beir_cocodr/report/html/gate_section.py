"""The decision of a gate and its evidence, as the page shows them."""

from beir_cocodr.evaluation.gate_record import (
    NEVER_WORSE,
    UNASKED,
    UNCHANGED,
    GateRecord,
    rates_sentence,
)
from beir_cocodr.evaluation.gate_rule import CANNOT_TELL, NOT_WORSE, WORSE, GateEvidence
from beir_cocodr.report.html.headline_record import Headline
from beir_cocodr.report.html.tables import (
    HtmlTable,
    TableCell,
    TableColumn,
    number_cell,
    text_cell,
    text_columns,
)
from beir_cocodr.report.wording import collection_name, short_names, signed, span


def side_names(record: GateRecord) -> tuple[str, str]:
    """Return the names that the page shows for the old side and for the new one."""
    if record.old == record.new:
        return "old", "new"
    names = short_names([record.old, record.new])
    return names[record.old], names[record.new]


_DECISIONS = {
    WORSE: "{new} is worse than {old}",
    NOT_WORSE: "{new} is not worse than {old}",
    CANNOT_TELL: "The evidence does not show whether {new} is worse than {old}",
}


def gate_headline(record: GateRecord) -> Headline:
    """Return the decision, with what it says about the difference."""
    old, new = side_names(record)
    decision = _DECISIONS[record.decision].format(old=old, new=new)
    collection = collection_name(record.dataset)
    expected = f"{signed(record.estimate)} is expected, 90% interval {span(record.interval)}"
    if record.is_decided_by_lost_documents:
        sentence = (
            f"{decision} on {collection}, because it no longer finds documents that it should "
            f"find. nDCG@10 alone would not show it: {expected}."
        )
    elif record.is_decided_by_same_lists:
        sentence = (
            f"{decision} by more than {record.margin:g} nDCG@10 on {collection}: {UNCHANGED}."
        )
    else:
        sentence = f"{decision} by more than {record.margin:g} nDCG@10 on {collection}: {expected}."
    tolerated = ("Tolerated loss", f"{record.margin:g}")
    ended = ("Exit status", str(record.exit_status))
    if record.is_decided_by_same_lists:
        facts = [tolerated, ended]
    else:
        estimate = f"{signed(record.estimate)} (90% {span(record.interval)})"
        probability = ("Probability of a larger loss", f"{record.probability_worse:.0%}")
        facts = [("Estimated nDCG@10", estimate), tolerated, probability, ended]
    return Headline(record.decision, sentence, facts, notes=_notes(record))


def _notes(record: GateRecord) -> list[str]:
    notes = []
    _, new = side_names(record)
    if record.loses_documents and not record.is_decided_by_lost_documents:
        notes.append(f"{new} no longer finds documents that it should find.")
    if record.loses_unasked_documents and record.decision != WORSE:
        notes.append(f"{new} no longer finds some documents; this does not count: {UNASKED}.")
    for figures in record.evidence:
        if figures.remark:
            notes.append(f"nDCG@10 on {figures.kind} does not count: {figures.remark}.")
    notes += _side_notes(record)
    if record.rates is not None:
        notes.append(rates_sentence(record.rates))
    elif not record.labels:
        notes.append(NEVER_WORSE)
    return notes


def _side_notes(record: GateRecord) -> list[str]:
    """Return what each side did not answer, does not hold, or returns besides the collection."""
    notes = []
    old, new = side_names(record)
    if record.left_out:
        notes.append(f"{record.left_out:,} queries that {old} does not answer are left out.")
    for role, name in (("old", old), ("new", new)):
        unanswered = record.unanswered.get(role)
        if unanswered:
            notes.append(f"{name} has no result for {unanswered:,} of the collection's queries.")
        missing = record.missing.get(role)
        if missing:
            notes.append(f"{name} lacks {missing:,} of the {record.documents:,} documents.")
        unknown = record.unknown.get(role)
        if unknown:
            notes.append(
                f"{unknown:.1%} of the results of {name} are documents that are not in the "
                "collection."
            )
    return notes


def gate_table(record: GateRecord) -> HtmlTable:
    """Return a row for each kind of queries that both sides were asked."""
    old, new = side_names(record)
    columns = [
        *text_columns("Queries"),
        TableColumn("Number"),
        TableColumn(f"{old}, nDCG@10"),
        TableColumn(f"{new}, nDCG@10"),
        TableColumn("Difference", meaning="new minus old, with its standard error"),
        TableColumn(
            "Better / worse", meaning="number of queries on which the new one is better and worse"
        ),
        TableColumn("Lists differ by", meaning="0 for the same lists, 1 for no common document"),
    ]
    rows = [_row(figures) for figures in record.evidence]
    return HtmlTable(f"{new} against {old}", columns, rows)


def _row(figures: GateEvidence) -> list[TableCell]:
    difference = TableCell("–")
    counts = TableCell("–")
    if figures.difference is not None:
        error = "" if figures.standard_error is None else f"± {figures.standard_error:.3f}"
        difference = TableCell(signed(figures.difference), figures.difference, error)
        balance = figures.better - figures.worse
        counts = TableCell(f"{figures.better:,} / {figures.worse:,}", balance)
    return [
        text_cell(figures.kind),
        number_cell(figures.queries, ","),
        number_cell(figures.old, ".3f"),
        number_cell(figures.new, ".3f"),
        difference,
        counts,
        number_cell(figures.distance, ".3f"),
    ]
