"""Hubs: documents that a model ranks among its best for many queries, whatever these ask.

A model that does not find what a query asks for tends to find hubs. How often the documents that it
ranks first are also found for other queries therefore tells how good it is. This needs real
queries, but no labels. Where documents resemble each other, every model finds hubs. Crops, each cut
out of another document, show how many.

References:
    Radovanović et al., 2010: Hubs in Space, on documents that are among the nearest neighbours of
    many others; Hurlbert, 1971, on what is expected of a random sample of a fixed size.
"""

import math
from dataclasses import dataclass

import numpy as np

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.evaluation.label_free.estimates import rehearsal
from beir_cocodr.evaluation.label_free.estimators import CROPS, FEWEST_QUERIES, Estimator
from beir_cocodr.evaluation.label_free.evidence import Evidence


@dataclass(frozen=True)
class HubForm:
    """How hubs are counted.

    The values were chosen on labelled collections, where others change verdicts only a little.

    Attributes:
        first: The best documents of a query that are looked for in the results of others.
        depth: The best results of the others among which they are looked for.
        sample: Queries of a random sample, or all if there are fewer. As its size is fixed, a
            figure does not depend on how many queries there are.
        floor: Added to a probability before its logarithm is taken.
        of_crops: The share of what crops tell that is subtracted.
    """

    first: int = 2
    depth: int = 10
    sample: int = FEWEST_QUERIES
    floor: float = 0.2
    of_crops: float = 0.5


def shared_with_others(rows: Ints, form: HubForm = HubForm()) -> Doubles:
    """Return how probable it is that what is found for a query is found for other queries as well.

    For each query, nine others are drawn at random. A document is shared if it is among the ten
    best of one of these.

    Args:
        rows: (Q, k) rows of documents, best first, -1 for no result; at least ten queries.
        form: How hubs are counted.

    Returns:
        (Q,) probabilities that a document is shared, averaged over the two best of each query. A
        query without results has 1, because nothing was found for it in particular.
    """
    best = rows[:, : form.depth]
    is_result = best >= 0
    documents, numbers = np.unique(best[is_result], return_inverse=True)
    found_for = np.bincount(numbers, minlength=len(documents))
    probabilities = np.zeros(best.shape)
    probabilities[is_result] = _probability_of_others(len(rows), found_for, form.sample)[numbers]
    is_first = is_result[:, : form.first]
    count = is_first.sum(axis=1)
    sums = (probabilities[:, : form.first] * is_first).sum(axis=1)
    return np.where(count > 0, sums / np.maximum(count, 1), 1.0)


def _probability_of_others(queries: int, found_for: Ints, sample: int) -> Doubles:
    """Return how probable it is that a document is found for another query of a random sample.

    Args:
        queries: The number of all queries.
        found_for: (d,) numbers of queries for which each document is found, at least 1.
        sample: The number of queries of a sample.
    """
    without = (queries - found_for).astype(np.float64)
    none = np.ones(len(found_for))
    for drawn in range(min(sample, queries) - 1):
        none *= np.maximum(without - drawn, 0.0) / (queries - 1 - drawn)
    return 1 - none


class Specificity(Estimator):
    """How rarely what a model finds for a real query is found for other queries as well."""

    def __init__(self, name: str, form: HubForm = HubForm()) -> None:
        """Take the name of the row, and how hubs are counted."""
        super().__init__(name)
        self.form = form

    def is_available(self, evidence: Evidence) -> bool:
        """Return true if people asked at least ten queries."""
        return evidence.real and len(evidence.queries) >= FEWEST_QUERIES

    def scores(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> tuple[Doubles, Doubles]:
        """Return the probabilities that documents are not shared, for queries both answer."""
        first, second = evidence.lists_of([a, b])
        if len(first) < FEWEST_QUERIES:
            return np.zeros(0), np.zeros(0)
        return 1 - shared_with_others(first, self.form), 1 - shared_with_others(second, self.form)

    def objection(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> str:
        """Return why specific results are no evidence.

        Training on the texts of a corpus drives apart what it finds for different texts.
        """
        silent = [model for model in (a, b) if model not in evidence.crop_lists]
        if silent:
            return f"{' and '.join(silent)} cannot be queried with {CROPS}"
        crops = len(evidence.crop_lists[a])
        if crops < FEWEST_QUERIES:
            return f"only {crops} {CROPS}, and {FEWEST_QUERIES} are needed"
        lead = self._lead(evidence, a, b)
        contamination = evidence.contamination
        practices = contamination.practised_spans | contamination.practised_generated
        for practice, models in practices.items():
            objection = rehearsal(lead, models, practice, a, b)
            if objection:
                return objection
        return ""

    def features(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> dict[str, float]:
        """Return by what factor the results of b are more specific, as a logarithm."""
        first, _ = self.scores(evidence, a, b)
        if len(first) < FEWEST_QUERIES or self.objection(evidence, a, b):
            return {}
        return {self.name: self._lead(evidence, a, b)}

    def _lead(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> float:
        """Return the lead of b on real queries, less a share of that on crops."""
        first, second = self.scores(evidence, a, b)
        if not len(first):
            return 0.0
        on_crops = [shared_with_others(evidence.crop_lists[model], self.form) for model in (a, b)]
        lead = self._log_ratio(1 - first, 1 - second)
        return lead - self.form.of_crops * self._log_ratio(*on_crops)

    def _log_ratio(self, first: Doubles, second: Doubles) -> float:
        """Return by what factor, as a logarithm, the second probabilities are lower on average."""
        floor = self.form.floor
        return math.log((floor + float(first.mean())) / (floor + float(second.mean())))
