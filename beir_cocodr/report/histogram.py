"""A histogram as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from beir_cocodr.report.scatter import require_matplotlib


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
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, format="png")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _plain(text: str) -> str:
    """Text as it stands: matplotlib takes dollar signs for formulas."""
    return text.replace("$", r"\$")
