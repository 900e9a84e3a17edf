"""How far evidence leans to one side, by how many words of the queries the documents lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beir_cocodr.evaluation.label_free.estimators import (
    CROPS,
    GENERATED,
    MADE,
    MATCHED,
    TITLES,
    WRITTEN,
)
from fitting.labelled_pairs import Floats, LabelledPairs

#: The evidence whose leads are differences in nDCG@10, as those of labels are.
LEADS = (CROPS, MATCHED, TITLES, GENERATED, WRITTEN, MADE)

#: Uses of an encoder that are compared: a and b, whose lead over a may be too large.
COMPARED = (("bm25", "dense"), ("dense", "hybrid@0.5"))


@dataclass(frozen=True)
class Lead:
    """The lead of b over a on one collection.

    Attributes:
        family: The family of the collection.
        lost_words: How many fewer words of its queries than of crops its documents hold, as the
            logarithm of the ratio.
        excess: By how much evidence gives b a larger lead than labels do.
    """

    family: str
    lost_words: float
    excess: float


def overlap_bias(
    collections: Sequence[LabelledPairs],
    uses: Mapping[str, Mapping[str, str]],
    usual: float,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return estimator and pair of uses to the bias of its leads; of an absent estimator nothing.

    Args:
        collections: The labelled pairs of each collection, with all features.
        uses: Collection to model to its use of an encoder, such as "hybrid@0.5".
        usual: Collections that lose at most so many words are counted apart from the others.
    """
    biases: dict[str, dict[str, dict[str, Any]]] = {}
    for estimator in LEADS:
        if not any(estimator in values for pairs in collections for values in pairs.features):
            continue
        biases[estimator] = {}
        for a, b in COMPARED:
            leads = list(_leads(collections, uses, estimator, (a, b)))
            biases[estimator][f"{a}, {b}"] = describe_leads(leads, usual)
    return biases


def describe_leads(leads: Sequence[Lead], usual: float) -> dict[str, Any]:
    """Return the mean excess of leads, with usual and with few shared words, and its slope.

    Every family weighs the same. Standard errors are those of the jackknife over families. The
    slope is that of a least-squares line of the excess over the lost words.
    """
    groups = {
        "usual": [lead for lead in leads if lead.lost_words <= usual],
        "few": [lead for lead in leads if lead.lost_words > usual],
    }
    described: dict[str, Any] = {}
    for name, group in groups.items():
        described[name] = {"collections": len(group)} | _jackknife(group, _mean)
    described["slope"] = _jackknife(leads, _slope)
    return described


def _leads(
    collections: Sequence[LabelledPairs],
    uses: Mapping[str, Mapping[str, str]],
    estimator: str,
    compared: tuple[str, str],
) -> Iterator[Lead]:
    for pairs in collections:
        for row, (a, b) in enumerate(pairs.models):
            found = (uses[pairs.name][a], uses[pairs.name][b])
            if estimator not in pairs.features[row] or set(found) != set(compared):
                continue
            excess = pairs.features[row][estimator] - float(pairs.differences[row])
            if found != compared:
                excess = -excess
            yield Lead(pairs.family, pairs.lost_words, excess)


def _jackknife(leads: Sequence[Lead], statistic: Any) -> dict[str, float | None]:
    """Return a statistic of leads and its standard error over families."""
    families = sorted({lead.family for lead in leads})
    value = statistic(leads) if leads else None
    parts = []
    for family in families:
        rest = [lead for lead in leads if lead.family != family]
        part = statistic(rest) if rest else None
        if part is not None:
            parts.append(part)
    count = len(parts)
    if value is None or count < len(families) or count < 2:
        return {"value": value, "error": None}
    deviations = np.array(parts) - np.mean(parts)
    return {"value": value, "error": float(np.sqrt((count - 1) / count * np.sum(deviations**2)))}


def _mean(leads: Sequence[Lead]) -> float:
    excess = np.array([lead.excess for lead in leads])
    return float(np.average(excess, weights=_weights(leads)))


def _slope(leads: Sequence[Lead]) -> float | None:
    """Return the slope of the excess over the lost words; None if all lose as many."""
    weights = _weights(leads)
    lost = np.array([lead.lost_words for lead in leads])
    lost -= np.average(lost, weights=weights)
    square = float(weights @ lost**2)
    if square < 1e-12:
        return None
    excess = np.array([lead.excess for lead in leads])
    return float(weights @ (lost * excess)) / square


def _weights(leads: Sequence[Lead]) -> Floats:
    """Return the (n,) weights by which every family weighs the same."""
    families = [lead.family for lead in leads]
    return np.array([1 / families.count(family) for family in families])
