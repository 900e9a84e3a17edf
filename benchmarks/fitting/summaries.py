"""Summaries of predictions by groups of pairs, and what the best bets reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from collecting.searched import Searched

from beir_cocodr.evaluation.few_labels import NORMAL
from beir_cocodr.evaluation.label_free.verdict import rank_by_lead
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
    differences = [one for predicted in predictions for one in predicted.differences]
    if not differences:
        return {"collections": 0, "counts": {}}
    labelled = np.concatenate([predicted.pairs.differences for predicted in predictions])
    expected = np.concatenate([predicted.expected for predicted in predictions])
    return {
        "collections": len({predicted.pairs.name for predicted in predictions}),
        "counts": count_trust(predictions),
        "width": float(np.mean([2 * NORMAL * one.deviation for one in differences])),
        "error": float(np.sqrt(np.mean((expected - labelled) ** 2))),
        "spread": _spread(predictions),
        "prior": float(np.mean([one.prior_share for one in differences])),
    }


def _spread(predictions: Sequence[Predicted]) -> float:
    """Return the deviation of labelled differences within pairs of kinds."""
    by_kinds: dict[str, list[float]] = {}
    for predicted in predictions:
        pairs = predicted.pairs
        for (a, b), difference in zip(pairs.kinds, pairs.differences.tolist(), strict=True):
            sign = 1 if str(a) <= str(b) else -1
            by_kinds.setdefault(name_of((a, b)), []).append(sign * difference)
    squares: list[float] = []
    for values in by_kinds.values():
        squares += np.square(np.array(values) - np.mean(values)).tolist()
    return float(np.sqrt(np.mean(squares)))


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
        names = np.array([group_of(pairs, row) for row in range(len(pairs.models))])
        for name in dict.fromkeys(names.tolist()):
            rows = names == name
            kept = [predicted.differences[row] for row in np.flatnonzero(rows).tolist()]
            groups.setdefault(name, []).append(Predicted(pairs.take(rows), kept))
    return {name: summarize(of_group) for name, of_group in sorted(groups.items())}


def name_of(kinds: Kinds) -> str:
    """Return a pair of kinds in one order."""
    return " and ".join(sorted(map(str, kinds)))


def encoders_of(searched: Searched, pair: tuple[str, str]) -> str:
    """Return the encoders of a pair."""
    encoders = {searched.systems[name].encoder for name in pair} - {""}
    return " and ".join(sorted(encoders))


def defect_of(searched: Searched, pair: tuple[str, str]) -> str:
    """Return the defect of one of a pair."""
    return next(searched.systems[name].defect for name in pair if searched.systems[name].defect)


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
