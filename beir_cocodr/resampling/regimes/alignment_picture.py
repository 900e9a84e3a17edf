"""Figure 2: scores in a regime against scores outside the distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.report.labelled_scatter import Panel, write_labelled_scatter


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
                _caption(row),
                names=dict.fromkeys(names, ""),  # the colours tell models, and seeds need no names
                groups={n: p["model"] for n, p in zip(names, points, strict=True)},
            )
        )
    write_labelled_scatter(path, panels, title)


def _caption(row: Mapping[str, Any]) -> str:
    if row["spearman"] is None:
        return f"not defined ({row['models']} models)"
    return (
        f"ρ = {row['spearman']:+.3f} (p {row['spearman_p']:.2g}), "
        f"τ = {row['kendall']:+.3f} (p {row['kendall_p']:.2g})"
    )
