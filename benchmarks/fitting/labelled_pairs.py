"""Pairs of models on labelled collections, whose differences labels tell."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from beir_cocodr.evaluation.label_free.agreement import rank_distance
from beir_cocodr.evaluation.label_free.estimates import features
from beir_cocodr.evaluation.label_free.evidence import Evidence

Floats = npt.NDArray[np.float64]
Kinds = tuple[str | None, str | None]


@dataclass(frozen=True)
class LabelledPairs:
    """All pairs of models on one labelled collection.

    Attributes:
        name: The collection's name.
        family: The family of collections that is left out with it.
        models: (m,) names of a and b.
        kinds: (m,) kinds of a and b.
        features: (m,) features of each pair; absent evidence is missing.
        distances: (m,) rank distances.
        differences: (m,) mean differences b − a by labels.
        errors: (m,) their standard errors over queries.
        figures: Figures of the collection, which say how like others it is.
        lost_words: How many fewer words of its queries than of crops its documents hold.
        nonletter_excess: By how much the share of characters that are no letters is larger in its
            documents than in its queries.
        queries: The number of queries on which rankings are compared.
        damaged: (m,) true where one of the two models has a planted defect.
    """

    name: str
    family: str
    models: list[tuple[str, str]]
    kinds: list[Kinds]
    features: list[dict[str, float]]
    distances: Floats
    differences: Floats
    errors: Floats
    figures: dict[str, float] = field(default_factory=dict)
    lost_words: float = 0.0
    nonletter_excess: float = 0.0
    queries: int = 0
    damaged: npt.NDArray[np.bool_] | None = None

    def take(self, rows: npt.NDArray[np.bool_]) -> LabelledPairs:
        """Return some of the pairs."""
        chosen = np.flatnonzero(rows).tolist()
        return replace(
            self,
            models=[self.models[row] for row in chosen],
            kinds=[self.kinds[row] for row in chosen],
            features=[self.features[row] for row in chosen],
            distances=self.distances[rows],
            differences=self.differences[rows],
            errors=self.errors[rows],
            damaged=None if self.damaged is None else self.damaged[rows],
        )


def pairs_of(
    name: str,
    family: str,
    evidence: Evidence,
    scores: Mapping[str, Floats],
    figures: dict[str, float],
    pairs: Sequence[tuple[str, str]] | None = None,
) -> LabelledPairs:
    """Return pairs of models, what was seen of them, and what labels tell.

    Args:
        name: The collection's name.
        family: The family of collections that is left out with it.
        evidence: What was seen of the models.
        scores: Model to its nDCG@10 of every query by labels.
        figures: Figures of the collection.
        pairs: The pairs. Default: all.
    """
    pairs = list(itertools.combinations(scores, 2)) if pairs is None else list(pairs)
    gaps = [scores[b] - scores[a] for a, b in pairs]
    lists = evidence.lists
    return LabelledPairs(
        name=name,
        family=family,
        models=pairs,
        kinds=[evidence.pair_kinds(a, b) for a, b in pairs],
        features=[features(evidence, a, b) for a, b in pairs],
        distances=np.array([rank_distance(lists[a], lists[b]).mean() for a, b in pairs]),
        differences=np.array([gap.mean() for gap in gaps]),
        errors=np.array([gap.std(ddof=1) / np.sqrt(len(gap)) for gap in gaps]),
        figures=figures,
        lost_words=evidence.lost_words,
        nonletter_excess=evidence.nonletter_excess,
        queries=len(evidence.queries),
    )
