"""Measures after each round of training as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from beir_cocodr.report.html.picture import INK, SERIES, Picture, picture, plain
from beir_cocodr.report.html.short_names import short_names

_STYLES = ("-", "--", ":")


def curve_picture(name: str, title: str, points: Sequence[Mapping[str, Any]]) -> Picture | None:
    """One panel a measure, one line a target, from the points of curves.json.

    Args:
        name: unique on the page.
        title: whose rounds.
        points: each with ``model`` (the round), ``dataset``, and measures.
    """
    rounds = list(dict.fromkeys(point["model"] for point in points))
    datasets = list(dict.fromkeys(point["dataset"] for point in points))
    short = short_names(datasets)
    measures = [key for key in points[0] if key not in ("model", "dataset")]

    def panel(axis: Any, measure: str) -> None:
        for number, dataset in enumerate(datasets):
            values = {
                point["model"]: point[measure]
                for point in points
                if point["dataset"] == dataset and measure in point
            }
            places = [place for place, found in enumerate(rounds) if found in values]
            axis.plot(
                places,
                [values[rounds[place]] for place in places],
                _STYLES[number // len(SERIES) % len(_STYLES)],
                color=SERIES[number % len(SERIES)],
                marker="o",
                ms=3.5,
                lw=1.6,
                label=plain(short[dataset]),
            )
        axis.set_xticks(range(len(rounds)), [plain(_tick(found)) for found in rounds])
        axis.margins(x=0.06, y=0.12)
        axis.set_title(plain(measure), loc="left")

    def draw(axes: Any) -> None:
        panels = axes if isinstance(axes, list) else [axes]
        for axis, measure in zip(panels, measures, strict=True):
            panel(axis, measure)
        panels[0].figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=3,
            labelcolor=INK,
            fontsize=8,
        )

    caption = "After the base and after every round; no paired test was made between them."
    height = 2.5 + 0.2 * (len(datasets) // 3)
    return picture(name, f"Measures over rounds: {title}", caption, height, draw, columns=len(measures))


def _tick(found: str) -> str:
    """ "episode 2" as "2": rounds of one kind need no more, and the name stands in the table."""
    kind, _, number = found.partition(" ")
    return number if kind in ("episode", "stage") and number.isdigit() else found
