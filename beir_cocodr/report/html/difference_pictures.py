"""Differences between models as pictures: over models, and over queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from beir_cocodr.evaluation.recommendation import USE, verdict
from beir_cocodr.report.html.judgement import Judgement
from beir_cocodr.report.html.picture import BETTER, INK, LINE, MUTED, WORSE, Picture, picture, plain

#: More bars than these cannot be told apart.
_MOST_BARS = 600
_COLOURS = {"better": BETTER, "worse": WORSE, "cannot tell": MUTED}


def interval_picture(judged: Judgement, names: Mapping[str, str]) -> Picture | None:
    """Every model's difference to the reference with its interval; None where there are fewer than two."""
    found = [
        (label, judged.test(judged.reference, label, family=USE))
        for label in judged.models
        if label != judged.reference
    ]
    tests = [(label, test) for label, test in found if test is not None]
    if len(tests) < 2:
        return None

    def draw(axis: Any) -> None:
        axis.axvline(0, color=LINE, lw=1)
        for place, (_, test) in enumerate(tests):
            colour = _COLOURS[verdict(test)]
            low, high = test["interval"] or (test["difference"],) * 2
            axis.plot([low, high], [place, place], color=colour, lw=2.2, solid_capstyle="round")
            axis.plot([test["difference"]], [place], "o", color=colour, ms=5)
        axis.set_yticks(range(len(tests)), [plain(names[label]) for label, _ in tests])
        axis.tick_params(axis="y", length=0, labelcolor=INK)
        axis.set_ylim(len(tests) - 0.5, -0.5)
        axis.spines["left"].set_visible(False)
        axis.set_xlabel(f"difference in {judged.measure}")

    return picture(
        "intervals",
        f"Differences to {names[judged.reference]}, {judged.measure}",
        "Mean of the paired differences and bootstrap 95% interval; green and red where p < 0.05 after Holm.",
        0.75 + 0.27 * len(tests),
        draw,
    )


def query_picture(
    judged: Judgement,
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    pair: tuple[str, str],
    names: Mapping[str, str],
) -> Picture | None:
    """The difference on every query, sorted; None without scores of both models."""
    a, b = (scores.get(label) for label in pair)
    if not a or not b:
        return None
    values = np.sort([b[query][0] - a[query][0] for query in a])[::-1]
    count = len(values)
    bars = values[np.linspace(0, count - 1, min(count, _MOST_BARS)).round().astype(int)]
    edges = np.linspace(0, count, len(bars) + 1)

    def draw(axis: Any) -> None:
        for colour, part in ((BETTER, np.maximum(bars, 0)), (WORSE, np.minimum(bars, 0))):
            if part.any():
                axis.stairs(part, edges, fill=True, color=colour, lw=0)
        axis.axhline(0, color=MUTED, lw=0.8)
        axis.set_xlim(0, count)
        axis.margins(y=0.08)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_xlabel("queries, by difference")
        axis.set_ylabel(f"difference in {judged.measure}")
        axis.spines["bottom"].set_visible(False)
        if not values.any():
            axis.set_ylim(-1, 1)
            axis.text(0.5, 0.75, "no query differs", ha="center", transform=axis.transAxes, color=MUTED)

    wins, losses = int((values > 0).sum()), int((values < 0).sum())
    caption = (
        f"{names[pair[1]]} less {names[pair[0]]}: above on {wins:,} queries, below on {losses:,}, equal on "
        f"{count - wins - losses:,}."
    )
    if count > _MOST_BARS:
        caption += f" {_MOST_BARS} evenly spaced ones of {count:,} are drawn."
    return picture("queries", f"Difference on every query, {judged.measure}", caption, 2.5, draw)
