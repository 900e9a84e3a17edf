"""Predictors against quality as a picture.

A few named points against each other as a picture.

A histogram as a picture.

Whether a picture is going to be drawn.

Figure 2: scores in a regime against scores outside the distribution.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.io import atomic_path

_COLUMNS = 3

_PANEL_INCHES = 3.2


def has_matplotlib() -> bool:
    """Whether pictures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def require_matplotlib() -> None:
    """Refuse early what could not be drawn.

    Raises:
        InputError: matplotlib is not installed.
    """
    if not has_matplotlib():
        raise InputError("a picture needs matplotlib; pip install 'beir-cocodr[report]'")


def write_scatter(
    path: Path,
    values: Mapping[str, Mapping[str, float]],
    quality: Mapping[str, float],
    rows: Sequence[Mapping[str, Any]],
    title: str,
    measure: str,
) -> None:
    """Draw one panel a predictor, one point a query, as a PNG.

    Args:
        path: of the picture; appears only when it is complete.
        values: predictor to query id to value; values that are missing or not finite are not drawn.
        quality: query id to the measure.
        rows: the correlations of every predictor, in the order of the panels.
        title, measure: what is written over the picture and at the vertical axes.

    Raises:
        InputError: matplotlib is not installed.
    """
    require_matplotlib()
    # Agg's canvas by name: no display, and no backend or state of pyplot that belongs to the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(rows))
    lines = math.ceil(len(rows) / columns)
    figure = Figure(figsize=(_PANEL_INCHES * columns, _PANEL_INCHES * lines), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_plain(title))
    figure.subplots(lines, columns, sharey=True, squeeze=False)
    for axis, row in zip(figure.axes, rows, strict=False):
        found = values[row["predictor"]]
        drawn = [query for query in quality if math.isfinite(found.get(query, math.nan))]
        axis.scatter(
            [found[query] for query in drawn], [quality[query] for query in drawn], s=10, alpha=0.5, lw=0
        )
        axis.set_xlabel(_plain(row["predictor"]))
        axis.set_title(_caption(row), fontsize="small")
    for axis in figure.axes[len(rows) :]:
        axis.set_visible(False)
    for axis in figure.axes[::columns]:
        axis.set_ylabel(measure)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def _caption(row: Mapping[str, Any]) -> str:
    if row["pearson"] is None:
        return f"not defined (n = {row['queries']})"
    return f"r = {row['pearson']:+.3f}, τ = {row['kendall']:+.3f} (n = {row['queries']})"


def _plain(text: str) -> str:
    """Text as it stands: matplotlib takes dollar signs for formulas."""
    return text.replace("$", r"\$")


_LABELLED_PANEL_INCHES = 4.2

#: Where a name may stand beside its point, the first that is free: offset in points, alignments.
_PLACES = [
    (4, 3, "left", "bottom"),
    (4, -3, "left", "top"),
    (-4, 3, "right", "bottom"),
    (-4, -3, "right", "top"),
    (0, 6, "center", "bottom"),
    (0, -6, "center", "top"),
]


@dataclass(frozen=True)
class Panel:
    """One panel: the points that have a finite x and a finite y.

    Attributes:
        x, y: name of a point -> its place.
        x_label, y_label: of the axes.
        caption: over the panel.
        names: name of a point -> what stands beside it; by default the name itself.
        groups: name of a point -> its group; groups differ in colour, and a legend tells them.
    """

    x: Mapping[str, float | None]
    y: Mapping[str, float | None]
    x_label: str
    y_label: str
    caption: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)

    def points(self) -> dict[str, tuple[float, float]]:
        """Name to place of what is drawn."""
        places = {name: (_number(x), _number(self.y.get(name))) for name, x in self.x.items()}
        return {name: place for name, place in places.items() if all(map(math.isfinite, place))}


def write_labelled_scatter(path: Path, panels: Sequence[Panel], title: str, columns: int = 2) -> None:
    """Draw panels as a PNG, every point with its name.

    Args:
        path: the file; it appears only when it is complete.
        panels: in reading order.
        title: over the picture.
        columns: panels side by side.

    Raises:
        InputError: matplotlib is not installed.
    """
    require_matplotlib()
    # Agg's canvas by name: no display, and no backend or state of pyplot that belongs to the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = Figure(
        figsize=(_LABELLED_PANEL_INCHES * columns, _LABELLED_PANEL_INCHES * lines), layout="constrained"
    )
    FigureCanvasAgg(figure)
    figure.suptitle(_plain(title))
    figure.subplots(lines, columns, squeeze=False)
    for axis, panel in zip(figure.axes, panels, strict=False):
        _draw(axis, panel)
    for axis in figure.axes[len(panels) :]:
        axis.set_visible(False)
    figure.draw_without_rendering()  # only then is it known where everything stands
    for axis, panel in zip(figure.axes, panels, strict=False):
        _write_names(axis, panel)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw(axis: Any, panel: Panel) -> None:
    points = panel.points()
    for group in dict.fromkeys(panel.groups.get(name, "") for name in points):
        places = [place for name, place in points.items() if panel.groups.get(name, "") == group]
        axis.scatter([x for x, _ in places], [y for _, y in places], s=18, lw=0, label=_plain(group) or None)
    if panel.groups:
        axis.legend(fontsize="x-small")
    axis.margins(0.2)  # room for the names
    axis.set_xlabel(_plain(panel.x_label))
    axis.set_ylabel(_plain(panel.y_label))
    axis.set_title(_plain(panel.caption), fontsize="small")


def _write_names(axis: Any, panel: Panel) -> None:
    """Write each name where it covers no earlier name and stays in the panel, if there is such a place."""
    taken: list[Any] = []
    for name, point in panel.points().items():
        text = axis.annotate(
            _plain(panel.names.get(name, name)),
            point,
            xytext=(0, 0),
            textcoords="offset points",
            fontsize="x-small",
        )
        text.set_in_layout(False)  # a long name must not squeeze the panel
        for x, y, horizontal, vertical in (*_PLACES, _PLACES[0]):
            text.set(position=(x, y), ha=horizontal, va=vertical)
            box = text.get_window_extent()
            inside = axis.bbox.x0 <= box.x0 and box.x1 <= axis.bbox.x1
            if inside and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def write_histogram(
    path: Path, edges: Sequence[float], counts: Sequence[int], title: str, label: str
) -> None:
    """Draw a histogram as a PNG.

    Args:
        path: of the picture; appears only when it is complete.
        edges: (B + 1,) of the bins, ascending.
        counts: (B,) what is in them.
        title, label: over the picture, and at its horizontal axis.

    Raises:
        InputError: matplotlib is not installed.
    """
    require_matplotlib()
    # Agg's canvas by name: no display, and no backend or state of pyplot that belongs to the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.stairs(counts, edges, fill=True, alpha=0.6)
    axis.set_xlim(edges[0], edges[-1])
    axis.set_xlabel(_plain(label))
    axis.set_ylabel("test queries")
    axis.set_title(_plain(title))
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


log = logging.getLogger(__name__)


def will_draw(picture: bool | None, possible: bool, needs: str) -> bool:
    """Decide before the work starts.

    Args:
        picture: whether one is asked for; None draws where there is something to draw and matplotlib.
        possible: whether there is something to draw, and a folder for it.
        needs: what is lacking where it is not possible, as the way out.

    Raises:
        InputError: a picture is asked for and cannot be drawn.
    """
    if picture:
        require_matplotlib()
        if not possible:
            raise InputError(f"there is nothing to draw; {needs}")
    elif picture is None and possible and not has_matplotlib():
        log.info("no picture: matplotlib is not there; pip install 'beir-cocodr[report]'")
        return False
    return possible and picture is not False


def alignment_picture(
    path: Path, points: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], title: str
) -> None:
    """Draw a panel for every collection and regime, a point for every model and seed.

    Args:
        path: of the PNG.
        points, rows: from `regime_points` and `alignment_rows`.
        title: over the picture.

    Source: Zhan et al., 2022, Figure 2.
    """
    names = [f"{point['group']} {point['model']} {point['seed']}" for point in points]
    panels = []
    for row in rows:
        name, measure, regime = row["collection"], row["measure"], row["regime"]
        panels.append(
            Panel(
                {n: p["measures"][measure][regime] for n, p in zip(names, points, strict=True)},
                {n: p["ood"][name][measure][regime] for n, p in zip(names, points, strict=True)},
                f"{regime}, {measure}",
                f"{name}, {measure}",
                _alignment_caption(row),
                names=dict.fromkeys(names, ""),  # the colours tell models, and seeds need no names
                groups={n: p["model"] for n, p in zip(names, points, strict=True)},
            )
        )
    write_labelled_scatter(path, panels, title)


def _alignment_caption(row: Mapping[str, Any]) -> str:
    if row["spearman"] is None:
        return f"not defined ({row['models']} models)"
    return (
        f"ρ = {row['spearman']:+.3f} (p {row['spearman_p']:.2g}), "
        f"τ = {row['kendall']:+.3f} (p {row['kendall_p']:.2g})"
    )
