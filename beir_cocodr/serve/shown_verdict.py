"""The verdict on the models of a page, as the page shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from beir_cocodr.evaluation.few_labels import FEWEST, FewLabels

if TYPE_CHECKING:
    from beir_cocodr.evaluation.results import Best, ComparisonRecord, Interval


@dataclass(frozen=True)
class ShownPair:
    """The verdict on model b against model a, as the page shows it."""

    a: str
    b: str
    verdict: str
    estimate: float
    interval: Interval
    answer: str
    reason: str


@dataclass(frozen=True)
class ShownVerdict:
    """The verdict on all models, as the page shows it.

    Attributes:
        version: version of the log of judgements.
        headline: the verdict in a sentence.
        best: the best model.
        open: models that may be as good.
        queries: judged queries.
        fewest: judged queries from which they count by themselves.
        more: further judged queries that would decide; None if 10,000 would not.
        pairs: the verdict on each pair.
        sentences: sentences about the judged queries.
        trust: sentences about how far to trust the verdicts.
    """

    version: int
    headline: str
    best: str
    open: list[str]
    queries: int
    fewest: int
    more: int | None
    pairs: list[ShownPair]
    sentences: list[str]
    trust: list[str]

    @classmethod
    def of(cls, record: ComparisonRecord, version: int) -> ShownVerdict:
        """Return the verdict of a comparison without labels."""
        few = record.few_labels
        pairs = [
            ShownPair(
                a=pair.a,
                b=pair.b,
                verdict=pair.verdict,
                estimate=pair.estimate,
                interval=pair.interval,
                answer=pair.answer,
                reason=pair.reason,
            )
            for pair in record.estimated
        ]
        return cls(
            version=version,
            headline=record.best.reason,
            best=record.best.model,
            open=record.best.indistinguishable,
            queries=0 if few is None else few.queries,
            fewest=FEWEST,
            more=None if few is None else _more_queries(few, record.best),
            pairs=pairs,
            sentences=[] if few is None else list(few.describe()),
            trust=list(dict.fromkeys(pair.trust for pair in record.estimated)),
        )


def _more_queries(few: FewLabels, best: Best) -> int | None:
    """Return the further queries that decide between the best model and those that may be as good.

    It is None if 10,000 would not decide.
    """
    most = 0
    for a, gains in few.pairs.items():
        for b, gain in gains.items():
            is_open = (a == best.model and b in best.indistinguishable) or (
                b == best.model and a in best.indistinguishable
            )
            if is_open and gain.more is None:
                return None
            if is_open and gain.more is not None:
                most = max(most, gain.more)
    return most
