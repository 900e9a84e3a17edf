"""Cluster weights over time as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.report.html.picture import INK, LINE, MUTED, SERIES, Picture, picture
from beir_cocodr.report.scatter import has_matplotlib

#: Above and below the uniform weight, in red, green, blue: seen on white and on black.
_ABOVE, _BELOW = (0.87, 0.45, 0.13), (0.20, 0.52, 0.85)


def cluster_pictures(name: str, title: str, lines: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Weights of all clusters with the largest named, and, of several log lines, all of them as a heat map.

    Args:
        name: unique on the page.
        title: whose clusters.
        lines: of cluster_weights.jsonl, each with ``step`` and ``weights``.
    """
    if not has_matplotlib():
        return []
    steps = np.array([line["step"] for line in lines])
    weights = np.array([line["weights"] for line in lines])  # (T, K)
    drawn = [_lines(name, title, steps, weights)]
    if len(steps) > 1 and weights.shape[1] > len(SERIES):
        drawn.append(_heat_map(name, title, steps, weights))
    return [found for found in drawn if found is not None]


def _lines(
    name: str, title: str, steps: npt.NDArray[Any], weights: npt.NDArray[np.float64]
) -> Picture | None:
    clusters = weights.shape[1]
    largest = np.argsort(-weights[-1], kind="stable")[: len(SERIES)]

    def draw(axis: Any) -> None:
        marker = "o" if len(steps) == 1 else None
        axis.plot(steps, np.delete(weights, largest, axis=1), color=MUTED, lw=0.7, alpha=0.45, marker=marker)
        for colour, cluster in zip(SERIES, largest, strict=False):
            axis.plot(steps, weights[:, cluster], color=colour, lw=1.8, marker=marker, label=f"{cluster}")
        axis.axhline(1 / clusters, color=LINE, lw=1, ls="--", zorder=0)
        axis.set_xlabel("step")
        axis.set_ylabel("weight")
        axis.yaxis.get_major_formatter().set_useOffset(False)
        axis.legend(title="cluster", loc="upper left", bbox_to_anchor=(1.01, 1), labelcolor=INK, fontsize=8)

    rest = clusters - len(largest)
    caption = f"{clusters} clusters; the {len(largest)} with the largest weight at the end are coloured"
    caption += f", the other {rest} grey" if rest else ""
    return picture(
        f"{name}-lines", f"Cluster weights: {title}", f"{caption}. Dashed: equal weights.", 2.7, draw
    )


def _heat_map(
    name: str, title: str, steps: npt.NDArray[Any], weights: npt.NDArray[np.float64]
) -> Picture | None:
    clusters = weights.shape[1]
    order = np.argsort(-weights[-1], kind="stable")
    ratio = np.log(np.maximum(weights[:, order].T * clusters, 1e-12))  # (K, T), 0 where uniform
    largest = float(np.abs(ratio).max())
    colours = np.zeros((*ratio.shape, 4))
    colours[..., :3] = np.where(ratio[..., None] > 0, _ABOVE, _BELOW)
    colours[..., 3] = np.abs(ratio) / largest if largest else 0

    def draw(axis: Any) -> None:
        axis.imshow(colours, aspect="auto", interpolation="none")
        places = np.unique(np.linspace(0, len(steps) - 1, min(6, len(steps))).round().astype(int))
        axis.set_xticks(places, [f"{steps[place]:,}" for place in places])
        axis.set_yticks([0, clusters - 1], [f"{order[0]}", f"{order[-1]}"])
        axis.set_xlabel("step")
        axis.set_ylabel("cluster, by last weight")
        axis.spines[:].set_visible(False)

    caption = f"A row for each of {clusters} clusters, by their last weight. {_strongest(largest)}"
    height = min(3.2, 0.9 + 0.06 * clusters)
    return picture(f"{name}-map", f"Every cluster over time: {title}", caption, height, draw)


def _strongest(ratio: float) -> str:
    """What the colours mean, from the largest absolute logarithm of weight to equal weight."""
    if ratio < 1e-9:
        return "All weights are equal all the time."
    factor = float(np.exp(ratio))
    told = f"{factor:.3g} times the equal weight, or 1 / {factor:.3g} of it"
    if factor < 1.1:
        told = f"{factor - 1:.2%} above or below the equal weight"
    return f"Orange: above the equal weight, blue: below, blank: equal; the strongest colour is {told}."
