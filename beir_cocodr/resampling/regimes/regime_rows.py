"""Rows of the table and points of the scatter, from cells."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from beir_cocodr.resampling.regimes.gap import gap
from beir_cocodr.resampling.regimes.ood_alignment import ood_alignment
from beir_cocodr.resampling.regimes.pooling import pooled_score
from beir_cocodr.resampling.regimes.training_units import REGIMES

#: (group, model, seed) to the cells of all sets of the group.
Judged = Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]


def regime_points(judged: Judged, measures: Sequence[str]) -> list[dict[str, Any]]:
    """One point for a group, model and seed: both regimes' scores, and those outside the distribution.

    A regime's scores outside are those of the models that are judged in it. ReSTrain has another model for
    each regime; over ReSTTest's models, which judge in both, it is the mean.
    """
    points = []
    for (group, model, seed), cells in judged.items():
        point: dict[str, Any] = {"group": group, "model": model, "seed": seed, "measures": {}, "ood": {}}
        for regime in REGIMES:
            own = [cell for cell in cells if regime in cell["scores"]]
            for measure in measures:
                score, queries = pooled_score([cell["scores"][regime][measure] for cell in own])
                point["measures"].setdefault(measure, {})[regime] = score
                point.setdefault("queries", {})[regime] = queries
            for name in own[0]["ood"]:
                for measure in measures:
                    outside = statistics.fmean(cell["ood"][name][measure] for cell in own)
                    point["ood"].setdefault(name, {}).setdefault(measure, {})[regime] = outside
        points.append(point)
    return points


def regime_rows(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for a group and model: means over seeds, the gap between them, and the gap of every seed."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for point in points:
        found.setdefault((point["group"], point["model"]), []).append(point)
    return [_row(group, model, seeds) for (group, model), seeds in found.items()]


def alignment_rows(points: Sequence[Mapping[str, Any]], measure: str) -> list[dict[str, Any]]:
    """Correlations of either regime with every collection outside, over all points."""
    names = dict.fromkeys(name for point in points for name in point["ood"])
    return [
        {
            "collection": name,
            "measure": measure,
            "regime": regime,
            **ood_alignment(
                [point["measures"][measure][regime] for point in points if name in point["ood"]],
                [point["ood"][name][measure][regime] for point in points if name in point["ood"]],
            ),
        }
        for name in names
        for regime in REGIMES
    ]


def _row(group: str, model: str, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    measures = {}
    for measure in seeds[0]["measures"]:
        scores = {regime: [point["measures"][measure][regime] for point in seeds] for regime in REGIMES}
        means = {regime: statistics.fmean(values) for regime, values in scores.items()}
        gaps = [gap(*pair) for pair in zip(scores[REGIMES[0]], scores[REGIMES[1]], strict=True)]
        known = [value for value in gaps if value is not None]
        measures[measure] = {
            **means,
            "gap": gap(means[REGIMES[0]], means[REGIMES[1]]),
            "gap_sd": statistics.stdev(known) if len(known) > 1 else None,
            "seeds": {**scores, "gap": gaps},
        }
    return {
        "group": group,
        "model": model,
        "seeds": [point["seed"] for point in seeds],
        "queries": seeds[0]["queries"],
        "measures": measures,
    }
