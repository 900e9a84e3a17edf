"""Predictors against quality as a picture."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError

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
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, format="png")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _caption(row: Mapping[str, Any]) -> str:
    if row["pearson"] is None:
        return f"not defined (n = {row['queries']})"
    return f"r = {row['pearson']:+.3f}, τ = {row['kendall']:+.3f} (n = {row['queries']})"


def _plain(text: str) -> str:
    """Text as it stands: matplotlib takes dollar signs for formulas."""
    return text.replace("$", r"\$")
