"""What one model scores above another, by collection and by query."""

from __future__ import annotations

from beir_cocodr.analysis.judged import Judged
from beir_cocodr.analysis.qpp import read_per_query


class Gains:
    """Differences of a second model to a first one.

    Args:
        judged: what evaluations say; None where there are none, and then no gain is known.
        before, after: the models, by label or by the name they were loaded by.

    Raises:
        InputError: the evaluations lack one of the models.
    """

    def __init__(self, judged: Judged | None, before: str, after: str) -> None:
        self.judged = judged
        self.labels = () if judged is None else (judged.label(before), judged.label(after))

    def of(self, dataset: str) -> float | None:
        """The gain in the measure's mean; None unless both models are judged on the collection."""
        if self.judged is None:
            return None
        first, second = (self.judged.scores[label].get(dataset) for label in self.labels)
        return None if first is None or second is None else second - first

    def by_query(self, dataset: str) -> dict[str, float]:
        """The gain of every query that both models are judged on, from the per-query files.

        Raises:
            InputError: such a file cannot be read.
        """
        if self.judged is None or self.of(dataset) is None:
            return {}
        files = [self.judged.per_query[label][dataset] for label in self.labels]
        first, second = (read_per_query(file, self.judged.measure) for file in files)
        return {query: second[query] - value for query, value in first.items() if query in second}
