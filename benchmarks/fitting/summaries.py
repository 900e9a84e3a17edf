"""Summaries of predictions by groups of pairs, and what the best bets reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from collecting.searched import Searched

from beir_cocodr.evaluation.label_free.verdict import is_same_kind, rank_by_lead
from fitting.counts import count_trust
from fitting.judged_collections import FUSED, use_of
from fitting.labelled_pairs import Kinds, LabelledPairs
from fitting.left_out import Predicted

#: Counts and means of a group of pairs, by name.
Summary = dict[str, Any]


def summarize(predictions: Sequence[Predicted]) -> Summary:
    """Return counts of pairs, widths, errors, and how much of the estimates is prior.

    ``spread`` is the deviation of the labelled differences from their mean in a pair of kinds,
    to compare the widths with.
    """
    predictions = [predicted for predicted in predictions if predicted.differences]
    if not predictions:
        return {"collections": 0, "counts": {}}
    names = {predicted.pairs.name for predicted in predictions}
    errors = []
    widths = []
    shares = []
    for predicted in predictions:
        errors.append(predicted.expected - predicted.pairs.differences)
        widths.append(predicted.widths)
        shares += [difference.prior_share for difference in predicted.differences]
    squares = np.concatenate(errors) ** 2
    return {
        "collections": len(names),
        "counts": count_trust(predictions),
        "width": float(np.concatenate(widths).mean()),
        "error": float(np.sqrt(squares.mean())),
        "spread": _spread(predictions),
        "prior": float(np.mean(shares)),
    }


def _spread(predictions: Sequence[Predicted]) -> float:
    """Return the deviation of labelled differences within pairs of kinds."""
    by_kinds: dict[str, list[float]] = {}
    for predicted in predictions:
        pairs = predicted.pairs
        for kinds, difference in zip(pairs.kinds, pairs.differences.tolist(), strict=True):
            values = by_kinds.setdefault(name_of(kinds), [])
            values.append(difference if _in_order(kinds) else -difference)
    squares: list[float] = []
    for values in by_kinds.values():
        deviations = np.array(values) - np.mean(values)
        squares += (deviations**2).tolist()
    return float(np.sqrt(np.mean(squares)))


def _in_order(kinds: Kinds) -> bool:
    a, b = kinds
    return str(a) <= str(b)


def share(summary: Mapping[str, Any], part: str, of: str) -> float:
    """Return the share of some counted pairs among others; 0 of none."""
    counts = summary["counts"]
    return float(counts.get(part, 0) / max(1, counts.get(of, 0)))


def grouped(
    predictions: Sequence[Predicted],
    group_of: Callable[[LabelledPairs, int], str],
) -> dict[str, Summary]:
    """Return the summaries of groups of pairs.

    Args:
        predictions: The predictions.
        group_of: Returns the group of a pair by its collection's pairs and its row.
    """
    groups: dict[str, list[Predicted]] = {}
    for predicted in predictions:
        pairs = predicted.pairs
        names = [group_of(pairs, row) for row in range(len(pairs.models))]
        for name in dict.fromkeys(names):
            is_member = np.array([other == name for other in names])
            members = groups.setdefault(name, [])
            members.append(predicted.take(is_member))
    return {name: summarize(groups[name]) for name in sorted(groups)}


def without_own_kind(predicted: Predicted, searched: Searched) -> Predicted:
    """Leave out the pairs of one kind that share their encoder, such as a fusion in two forms.

    They say nothing of how often verdicts on two encoders are right.
    """
    pairs = predicted.pairs
    kept = []
    for (a, b), kinds in zip(pairs.models, pairs.kinds, strict=True):
        same_encoder = searched.systems[a].encoder == searched.systems[b].encoder
        kept.append(not (same_encoder and is_same_kind(kinds)))
    return predicted.take(np.array(kept, bool))


def name_of(kinds: Kinds) -> str:
    """Return a pair of kinds in one order."""
    return " and ".join(sorted(map(str, kinds)))


def encoders_of(searched: Searched, pair: tuple[str, str]) -> str:
    """Return the encoders of a pair."""
    encoders = {searched.systems[name].encoder for name in pair}
    encoders.discard("")
    return " and ".join(sorted(encoders))


def defect_of(searched: Searched, pair: tuple[str, str]) -> str:
    """Return the defect of one of a pair."""
    first, second = (searched.systems[name].defect for name in pair)
    return first or second


def picks(predictions: Sequence[Predicted], searched: Mapping[str, Searched]) -> Summary:
    """Return what the best bets among the uses of an encoder reach, on each collection.

    The best bet has the highest expected value. It is compared with the best of all by labels,
    and with fixed choices.
    """
    rows = []
    for predicted in predictions:
        of_collection = searched[predicted.pairs.name]
        encoders = {system.encoder for system in of_collection.systems.values()} - {""}
        for encoder in sorted(encoders):
            values = _values(predicted, of_collection, encoder)
            if values:
                rows.append({"collection": predicted.pairs.name, "encoder": encoder} | values)
    means = {}
    for name in ("picked", "best", "fusion", "encoder alone", "bm25"):
        means[name] = float(np.mean([row[name] for row in rows])) if rows else 0.0
    return {"means": means, "rows": rows}


def _values(predicted: Predicted, searched: Searched, encoder: str) -> dict[str, Any]:
    """Return nDCG@10 of the pick and of fixed choices among an encoder's uses and BM25."""
    leads = {}
    for (a, b), difference in zip(predicted.pairs.models, predicted.differences, strict=True):
        if {searched.systems[a].encoder, searched.systems[b].encoder} <= {encoder, ""}:
            leads[a, b] = difference.mean
    models = list(dict.fromkeys(name for pair in leads for name in pair))
    by_use = {use_of(searched, name): name for name in models}
    if not {"dense", FUSED, "bm25"} <= by_use.keys():
        return {}
    values = {name: float(searched.scores[name].mean()) for name in models}
    pick = rank_by_lead(models, leads)[0]
    return {
        "pick": pick,
        "picked": values[pick],
        "best": max(values.values()),
        "fusion": values[by_use[FUSED]],
        "encoder alone": values[by_use["dense"]],
        "bm25": values[by_use["bm25"]],
    }
