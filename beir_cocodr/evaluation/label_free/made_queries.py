"""Queries that were made of documents, judged as if their rankings looked like those of real ones.

Crops and titles often leave a model surer, or less sure, than real queries do. A lead on them is
therefore taken at the margins that the models have on real queries.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from beir_cocodr.arrays import Doubles
from beir_cocodr.evaluation.label_free.estimates import (
    DerivedQueries,
    held_out_crops,
    matched_crops,
    titles,
)
from beir_cocodr.evaluation.label_free.estimators import (
    CROPS,
    FEWEST_QUERIES,
    MATCHED,
    TITLES,
    Estimator,
)
from beir_cocodr.evaluation.label_free.evidence import ASKED, Evidence
from beir_cocodr.evaluation.label_free.margins import lead_at
from beir_cocodr.models.spec import BM25

# A lead counts as it is where the models reach this nDCG@10 on average.
_USUAL_LEVEL = 0.5


class MadeQueries(Estimator):
    """The lead on crops and titles, at the margins that real queries have.

    Without real queries, or without scores, it is the mean lead. A lead is divided by the root of
    the mean nDCG@10 of the two models, because where both find little, leads are small as well.
    """

    def __init__(self, name: str) -> None:
        """Take the name of the row."""
        super().__init__(name)
        self.kinds: tuple[DerivedQueries, ...] = (
            held_out_crops(CROPS),
            matched_crops(MATCHED),
            titles(TITLES),
        )

    def counting(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> list[DerivedQueries]:
        """Return the kinds of queries that are evidence for a pair."""
        kinds = []
        for kind in self.available(evidence, a, b):
            if not kind.objection(evidence, a, b):
                kinds.append(kind)
        return kinds

    def available(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> list[DerivedQueries]:
        """Return the kinds of queries that both models were asked."""
        kinds = []
        for kind in self.kinds:
            # Without real queries there are no lengths that crops could match.
            if kind.name == MATCHED and not evidence.real:
                continue
            if kind.is_available(evidence) and len(kind.scores(evidence, a, b)[0]):
                kinds.append(kind)
        return kinds

    def scores(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> tuple[Doubles, Doubles]:
        """Return the nDCG@10 on all queries that count for a pair, or on all if none count."""
        kinds = self.counting(evidence, a, b) or self.available(evidence, a, b)
        pairs = [kind.scores(evidence, a, b) for kind in kinds]
        if not pairs:
            return np.zeros(0), np.zeros(0)
        first = np.concatenate([scores for scores, _ in pairs])
        second = np.concatenate([scores for _, scores in pairs])
        return first, second

    def objection(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> str:
        """Return why no kind of these queries is evidence for a pair."""
        if self.counting(evidence, a, b):
            return ""
        return self.kinds[0].objection(evidence, a, b)

    def features(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> dict[str, float]:
        """Return the lead of b at the margins of real queries, relative to the level of both."""
        if not self.counting(evidence, a, b):
            return {}
        first, second = self.scores(evidence, a, b)
        level = float(first.mean() + second.mean()) / 2 if len(first) else 0.0
        if len(first) < FEWEST_QUERIES or level <= 0:
            return {}
        lead = self.lead(evidence, a, b)
        return {self.name: lead * float(np.sqrt(_USUAL_LEVEL / level))}

    def lead(
        self,
        evidence: Evidence,
        a: str,
        b: str,
    ) -> float:
        """Return the lead of b that is expected at the margins of real queries."""
        first, second = self.scores(evidence, a, b)
        leads = second - first
        models = list(dict.fromkeys([a, b, BM25]))
        names = [kind.name for kind in self.counting(evidence, a, b)]
        wanted = margins_of(evidence, [ASKED], models)
        known = margins_of(evidence, names, models)
        if wanted is None or known is None:
            return float(leads.mean())
        return lead_at(leads, known, wanted)


def margins_of(
    evidence: Evidence,
    kinds: Sequence[str],
    models: Sequence[str],
) -> Doubles | None:
    """Return the (Q, m) margins of models on queries of several kinds; None if any is missing."""
    blocks = []
    for kind in kinds:
        by_model: Mapping[str, Doubles] = evidence.margins.get(kind, {})
        if not all(model in by_model for model in models):
            return None
        blocks.append(np.stack([by_model[model] for model in models], axis=1))
    values = np.concatenate(blocks)
    return values if len(values) else None
