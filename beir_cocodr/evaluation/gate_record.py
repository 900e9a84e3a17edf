"""The record of a gate, and the paragraph that says what was decided and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from beir_cocodr.evaluation.gate_rule import (
    CANNOT_TELL,
    NOT_WORSE,
    RULE,
    WORSE,
    GateEvidence,
    GateRates,
)
from beir_cocodr.records import Record, versions

#: The file of a gate's record.
GATE_FILE = "gate.json"


#: Why NEW is not worse where it gives what OLD gives.
UNCHANGED = (
    "both give the same documents of the collection at the same ranks for every query that they "
    "were asked"
)

#: What NEW has lost.
LOST = (
    "it no longer finds documents that it should find: on queries with a known document it loses "
    "significantly, and more than twice the margin"
)

#: What may be decided without labels if no scored query has a known document.
NEVER_WORSE = (
    "Without labels, systems that cannot be judged by queries made from documents, such as runs, "
    "are not called worse, unless they only cut lists short: give labels or judgements, or name "
    "the models."
)

#: Why such a loss does not count.
UNASKED = "for the collection's own queries the lists of both differ by less than the margin"


@dataclass(frozen=True)
class GateRecord(Record):
    """The record of a gate, ``gate.json``.

    Attributes:
        dataset: the collection.
        split: the split that was asked for.
        documents: documents of the collection.
        old: OLD as the user named it.
        new: NEW as the user named it.
        margin: the loss in nDCG@10 that is tolerated.
        decision: "worse", "not worse" or "cannot tell".
        exit_status: 1, 0 or 3.
        estimate: the estimated difference in nDCG@10, NEW − OLD.
        interval: its 90% interval.
        probability_worse: the probability that NEW is worse by more than the margin, by the error
            of such estimates; it does not decide where ``is_unchanged`` is true.
        loses_documents: true if NEW no longer finds documents, while its lists are close to those
            of OLD.
        evidence: the figures of each kind of queries.
        missing: documents of the collection that a side does not hold; None if that is unknown.
        unknown: share of a side's results that the collection does not have.
        labels: True if labels or judgements count.
        left_out: queries of the collection that are not asked, because OLD is a run without them.
        unanswered: queries of the collection for which a side has no result; they count as such.
        is_unchanged: true if the lists of both are the same for every query, and NEW holds what OLD
            holds.
        loses_unasked_documents: true if NEW no longer finds documents, but its lists for the
            collection's queries hardly differ from those of OLD.
        rates: how often the rule was right without labels; None where no query with a known
            document was asked, with which it was measured.
        versions: versions of the packages that a number may depend on.
    """

    dataset: str
    split: str
    documents: int
    old: str
    new: str
    margin: float
    decision: str
    exit_status: int
    estimate: float
    interval: tuple[float, float]
    probability_worse: float
    loses_documents: bool
    evidence: list[GateEvidence]
    missing: dict[str, int | None]
    unknown: dict[str, float]
    labels: bool
    left_out: int = 0
    unanswered: dict[str, int] = field(default_factory=dict)
    is_unchanged: bool = False
    loses_unasked_documents: bool = False
    rates: GateRates | None = None
    versions: dict[str, str] = field(default_factory=versions)

    @property
    def names(self) -> tuple[str, str]:
        """Return the names of OLD and NEW; with their roles where they would be the same."""
        if self.old == self.new:
            return f"OLD ({self.old})", f"NEW ({self.new})"
        return self.old, self.new

    @property
    def is_decided_by_lost_documents(self) -> bool:
        """Return true if the estimated difference alone would not have decided for "worse"."""
        return self.loses_documents and self.probability_worse < RULE.alarm

    @property
    def is_decided_by_same_lists(self) -> bool:
        """Return true if NEW passes because nothing has changed, whatever the estimate is."""
        return self.is_unchanged and self.decision == NOT_WORSE

    @property
    def paragraph(self) -> str:
        """Return the decision with its reasons and the measured error rates, in one paragraph."""
        return " ".join(_sentences(self))


def _sentences(record: GateRecord) -> Iterator[str]:
    """Yield the sentences of the paragraph."""
    old, new = record.names
    yield from _decision_sentences(record)
    if record.loses_unasked_documents and record.decision != WORSE:
        yield f"{LOST[0].upper()}{LOST[1:]}. This does not count: {UNASKED}."
    for figures in record.evidence:
        yield _evidence_sentence(figures)
    if record.left_out:
        yield (
            f"{record.left_out:,} queries of the collection are left out, because {old} does not "
            "answer them."
        )
    for role, name in (("old", old), ("new", new)):
        unanswered = record.unanswered.get(role)
        if unanswered:
            yield f"{name} has no result for {unanswered:,} of the collection's queries."
        missing = record.missing[role]
        if missing:
            yield f"{name} lacks {missing:,} of the {record.documents:,} documents."
        if record.unknown[role]:
            yield (
                f"{record.unknown[role]:.1%} of the results of {name} are documents that the "
                "collection does not have."
            )
    if record.rates is not None:
        yield rates_sentence(record.rates)
    elif not record.labels:
        yield NEVER_WORSE


def _decision_sentences(record: GateRecord) -> Iterator[str]:
    """Yield what was decided, and by what."""
    low, high = record.interval
    old, new = record.names
    estimated = (
        f"the estimated difference is {record.estimate:+.3f} (90% interval {low:+.3f} to "
        f"{high:+.3f}), and the probability of a loss beyond the margin is "
        f"{record.probability_worse:.0%}"
    )
    if record.is_decided_by_lost_documents:
        yield f"{new} is worse than {old} on {record.dataset}, because {LOST}."
        yield (f"nDCG@10 alone would not show a loss of more than {record.margin:g}: {estimated}.")
        return
    if record.is_decided_by_same_lists:
        yield (
            f"{new} is not worse than {old} by more than {record.margin:g} in nDCG@10 on "
            f"{record.dataset}: {UNCHANGED}."
        )
        return
    decisions = {
        WORSE: f"{new} is worse than {old} by more than {record.margin:g}",
        NOT_WORSE: f"{new} is not worse than {old} by more than {record.margin:g}",
        CANNOT_TELL: (
            f"The evidence does not show whether {new} is worse than {old} by more than "
            f"{record.margin:g}"
        ),
    }
    yield f"{decisions[record.decision]} in nDCG@10 on {record.dataset}: {estimated}."
    if record.loses_documents:
        yield f"{LOST[0].upper()}{LOST[1:]}."


def _evidence_sentence(figures: GateEvidence) -> str:
    lists = f"the lists differ by {figures.distance:.1%}"
    if figures.remark:
        lists += f"; nDCG@10 does not count, as {figures.remark}"
    if figures.difference is None:
        return f"On {figures.queries:,} {figures.kind} {lists}."
    return (
        f"On {figures.queries:,} {figures.kind} nDCG@10 went from {figures.old:.3f} to "
        f"{figures.new:.3f} ({figures.better:,} better, {figures.worse:,} worse), and {lists}."
    )


def rates_sentence(rates: GateRates) -> str:
    """Return how often the rule was right without labels."""
    queries = "without their queries"
    if rates.queries:
        queries = f"with up to {rates.queries} of their queries"
    return (
        f"Without labels, on {rates.collections} labelled collections {queries}, to which it was "
        f"not fitted, the gate with a margin of {rates.margin:g} noticed {rates.found:.0%} of "
        f"{rates.faults:,} faults that cost more than 0.02, and raised a false alarm for "
        f"{rates.false_alarms:.1%} of {rates.changes:,} harmless changes."
    )
