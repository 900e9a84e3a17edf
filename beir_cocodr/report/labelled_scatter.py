"""A few named points against each other as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beir_cocodr.report.scatter import require_matplotlib

_PANEL_INCHES = 4.2
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
    figure = Figure(figsize=(_PANEL_INCHES * columns, _PANEL_INCHES * lines), layout="constrained")
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
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, format="png")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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


def _plain(text: str) -> str:
    """Text as it stands: matplotlib takes dollar signs for formulas."""
    return text.replace("$", r"\$")
