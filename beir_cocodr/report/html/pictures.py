"""Pictures that stand in the page and follow its colours: cluster weights over time, measures after
each round of training, and differences between models, over models and over queries.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from beir_cocodr.evaluation.recommendation import USE
from beir_cocodr.evaluation.results import Calibration
from beir_cocodr.report.html.results_folder import ClusterWeights, CurvePoint, LabelledEvaluation
from beir_cocodr.report.png_pictures import has_matplotlib, plain
from beir_cocodr.report.wording import short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours that are drawn, and the variables of the style sheet that take their place.
INK, MUTED, LINE, BETTER, WORSE, ACCENT = (
    "#010101",
    "#020202",
    "#030303",
    "#040404",
    "#050505",
    "#060606",
)

SERIES = ("#070707", "#080808", "#090909", "#0a0a0a", "#0b0b0b")

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    BETTER: "var(--better)",
    WORSE: "var(--worse)",
    ACCENT: "var(--accent)",
} | {colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)}

_STYLE = (
    dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), LINE)
    | dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), MUTED)
    | dict.fromkeys(("text.color", "axes.titlecolor", "legend.labelcolor"), INK)
    | {
        "axes.facecolor": "none",
        "axes.linewidth": 0.8,
        "axes.titlesize": 9,
        "axes.unicode_minus": True,
    }
    | {
        "font.size": 9,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "report",
    }
)

_WIDTH = 5.6

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class Picture:
    """Attributes: title, caption: above and below it; svg: markup, safe to stand in a page."""

    title: str
    caption: str
    svg: str


def picture(
    name: str, title: str, caption: str, height: float, draw: Callable[..., None], columns: int = 1
) -> Picture | None:
    """Draw with matplotlib, 5.6 by ``height`` inches; None where it is not installed. Ids within
    the picture begin with its ``name``, unique on the page; ``draw`` gets the axes, one argument
    for each of ``columns`` side by side.
    """
    if not has_matplotlib():
        return None
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        axes = figure.subplots(1, columns, squeeze=False)[0].tolist()
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
        draw(*axes)
        file = io.StringIO()
        figure.savefig(
            file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return Picture(title, caption, _for_page(file.getvalue(), name, title))


def _for_page(text: str, name: str, title: str) -> str:
    """Ids unique on the page, colours by variables, fonts of the page, no width or height of its
    own.
    """
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(text)
    for element in list(root.iter()):
        for child in [
            child for child in element if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")
        ]:
            element.remove(child)
        for key, value in element.attrib.items():
            element.attrib[key] = _attribute(key, value, name)
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", title)
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == f"{{{_XLINK}}}href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    value = re.sub(r"url\(#", f"url(#{name}-", value)
    if key != "style":
        return value
    value = re.sub(r"(font(?:-family)?:[^;]*?)'[^;]*", r"\1system-ui, sans-serif", value)
    for colour, variable in _VARIABLES.items():
        value = value.replace(colour, variable)
    return value


#: Above and below the uniform weight, in red, green, blue: seen on white and on black.
_ABOVE, _BELOW = (0.87, 0.45, 0.13), (0.20, 0.52, 0.85)


def cluster_pictures(name: str, title: str, lines: Sequence[ClusterWeights]) -> list[Picture]:
    """Weights of all clusters with the largest named, and, of several log lines, all of them as a
    heat map; ``name`` is unique on the page, ``title`` says whose clusters.
    """
    steps = np.array([line.step for line in lines])
    weights = np.array([line.weights for line in lines])  # (T, K)
    drawn = [_lines, _heat_map] if len(steps) > 1 and weights.shape[1] > len(SERIES) else [_lines]
    return [found for draw in drawn if (found := draw(name, title, steps, weights)) is not None]


def _lines(
    name: str, title: str, steps: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]
) -> Picture | None:
    clusters = weights.shape[1]
    largest = np.argsort(-weights[-1], kind="stable")[: len(SERIES)]

    def draw(axis: Axes) -> None:
        marker = "o" if len(steps) == 1 else None
        axis.plot(
            steps,
            np.delete(weights, largest, axis=1),
            color=MUTED,
            lw=0.7,
            alpha=0.45,
            marker=marker,
        )
        for colour, cluster in zip(SERIES, largest, strict=False):
            axis.plot(
                steps, weights[:, cluster], color=colour, lw=1.8, marker=marker, label=f"{cluster}"
            )
        axis.axhline(1 / clusters, color=LINE, lw=1, ls="--", zorder=0)
        axis.set(xlabel="step", ylabel="weight")
        axis.ticklabel_format(axis="y", useOffset=False)
        axis.legend(title="cluster", loc="upper left", bbox_to_anchor=(1.01, 1))

    rest = clusters - len(largest)
    caption = (
        f"{clusters} clusters; the {len(largest)} with the largest weight at the end are coloured"
    )
    caption += f", the other {rest} grey" if rest else ""
    return picture(
        f"{name}-lines",
        f"Cluster weights: {title}",
        f"{caption}. Dashed: equal weights.",
        2.7,
        draw,
    )


def _heat_map(
    name: str, title: str, steps: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]
) -> Picture | None:
    clusters = weights.shape[1]
    order = np.argsort(-weights[-1], kind="stable")
    ratio = np.log(np.maximum(weights[:, order].T * clusters, 1e-12))  # (K, T), 0 where uniform
    largest = float(np.abs(ratio).max())
    colours = np.zeros((*ratio.shape, 4))
    colours[..., :3] = np.where(ratio[..., None] > 0, _ABOVE, _BELOW)
    colours[..., 3] = np.abs(ratio) / largest if largest else 0

    def draw(axis: Axes) -> None:
        axis.imshow(colours, aspect="auto", interpolation="none")
        places = np.unique(np.linspace(0, len(steps) - 1, min(6, len(steps))).round().astype(int))
        axis.set_xticks(places, [f"{steps[place]:,}" for place in places])
        axis.set_yticks([0, clusters - 1], [f"{order[0]}", f"{order[-1]}"])
        axis.set(xlabel="step", ylabel="cluster, by last weight")
        axis.spines[:].set_visible(False)

    caption = f"A row for each of {clusters} clusters, by their last weight. {_strongest(largest)}"
    height = min(3.2, 0.9 + 0.06 * clusters)
    return picture(f"{name}-map", f"Every cluster over time: {title}", caption, height, draw)


def _strongest(ratio: float) -> str:
    """What the colours mean, from the largest absolute logarithm of weight to equal weight."""
    if ratio < 1e-9:
        return "All weights are equal all the time."
    factor = float(np.exp(ratio))
    strongest = f"{factor:.3g} times the equal weight, or 1 / {factor:.3g} of it"
    if factor < 1.1:
        strongest = f"{factor - 1:.2%} above or below the equal weight"
    return f"Orange: above the equal weight, blue: below, blank: equal; the strongest colour is {strongest}."


_STYLES = ("-", "--", ":")


def _line(number: int) -> dict[str, Any]:
    """How the n-th line of several is drawn."""
    return {
        "ls": _STYLES[number // len(SERIES) % len(_STYLES)],
        "color": SERIES[number % len(SERIES)],
        "lw": 1.6,
    }


def curve_picture(name: str, title: str, points: Sequence[CurvePoint]) -> Picture | None:
    """One panel a measure, one line a target, from the points of curves.json, whose models are the
    rounds.
    """
    rounds = list(dict.fromkeys(point.model for point in points))
    datasets = short_names(dict.fromkeys(point.dataset for point in points))
    measures = list(points[0].measures)

    def panel(axis: Axes, measure: str) -> None:
        for number, (dataset, short) in enumerate(datasets.items()):
            own = [
                point for point in points if point.dataset == dataset and measure in point.measures
            ]
            places = [rounds.index(point.model) for point in own]
            values = [point.measures[measure] for point in own]
            axis.plot(places, values, marker="o", ms=3.5, label=plain(short), **_line(number))
        axis.set_xticks(range(len(rounds)), [plain(_tick(found)) for found in rounds])
        axis.margins(x=0.06, y=0.12)
        axis.set_title(plain(measure), loc="left")

    def draw(*axes: Axes) -> None:
        for axis, measure in zip(axes, measures, strict=True):
            panel(axis, measure)
        axes[0].figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3
        )

    caption = "After the base and after every round; no paired test was made between them."
    height = 2.5 + 0.2 * (len(datasets) // 3)
    return picture(
        name, f"Measures over rounds: {title}", caption, height, draw, columns=len(measures)
    )


def loss_picture(
    name: str, title: str, losses: Mapping[str, Sequence[tuple[float, float]]]
) -> Picture | None:
    """The loss that training logged, one line a round."""

    def draw(axis: Axes) -> None:
        for number, (label, points) in enumerate(losses.items()):
            steps, values = zip(*points, strict=True)
            axis.plot(
                steps,
                values,
                marker="o" if len(points) == 1 else None,
                label=label,
                **_line(number),
            )
        axis.set(xlabel="step", ylabel="loss")
        if len(losses) > 1:
            axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1))

    caption = "Means since the point before. A loss that falls is no sign that search got better."
    return picture(name, f"Training loss: {title}", caption, 2.5, draw)


def _tick(found: str) -> str:
    """ "episode 2" as "2": rounds of one kind need no more, and the name stands in the table."""
    kind, _, number = found.partition(" ")
    return number if kind in ("episode", "stage") and number.isdigit() else found


#: More bars than these cannot be told apart.
_MOST_BARS = 600

_COLOURS = {"better": BETTER, "worse": WORSE, "cannot tell": MUTED}


def interval_picture(evaluation: LabelledEvaluation, names: Mapping[str, str]) -> Picture | None:
    """Every model's difference to the reference with its interval; None where there are fewer than
    two.
    """
    tests = [
        (label, test)
        for label in evaluation.results.models
        if (test := evaluation.test(evaluation.reference, label, family=USE)) is not None
    ]
    if len(tests) < 2:
        return None

    def draw(axis: Axes) -> None:
        axis.axvline(0, color=LINE, lw=1)
        for place, (_, test) in enumerate(tests):
            colour = _COLOURS[test.verdict]
            low, high = test.interval or (test.difference, test.difference)
            axis.plot([low, high], [place, place], color=colour, lw=2.2, solid_capstyle="round")
            axis.plot([test.difference], [place], "o", color=colour, ms=5)
        axis.set_yticks(range(len(tests)), [plain(names[label]) for label, _ in tests])
        axis.tick_params(axis="y", length=0, labelcolor=INK)
        axis.set(ylim=(len(tests) - 0.5, -0.5), xlabel=f"difference in {evaluation.measure}")
        axis.spines["left"].set_visible(False)

    return picture(
        "intervals",
        f"Differences to {names[evaluation.reference]}, {evaluation.measure}",
        "Mean of the paired differences and bootstrap 95% interval; green and red where p < 0.05 after Holm.",
        0.75 + 0.27 * len(tests),
        draw,
    )


def query_picture(
    evaluation: LabelledEvaluation,
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

    def draw(axis: Axes) -> None:
        for colour, part in ((BETTER, np.maximum(bars, 0)), (WORSE, np.minimum(bars, 0))):
            if part.any():
                axis.stairs(part, edges, fill=True, color=colour, lw=0)
        axis.axhline(0, color=MUTED, lw=0.8)
        axis.set(
            xlim=(0, count),
            xlabel="queries, by difference",
            ylabel=f"difference in {evaluation.measure}",
        )
        axis.margins(y=0.08)
        axis.locator_params(axis="x", integer=True)
        axis.spines["bottom"].set_visible(False)
        if not values.any():
            axis.set_ylim(-1, 1)
            axis.text(
                0.5, 0.75, "no query differs", ha="center", transform=axis.transAxes, color=MUTED
            )

    wins, losses = int((values > 0).sum()), int((values < 0).sum())
    caption = (
        f"{names[pair[1]]} less {names[pair[0]]}: above on {wins:,} queries, below on {losses:,}, equal on "
        f"{count - wins - losses:,}."
    )
    if count > _MOST_BARS:
        caption += f" {_MOST_BARS} evenly spaced ones of {count:,} are drawn."
    return picture(
        "queries", f"Difference on every query, {evaluation.measure}", caption, 2.5, draw
    )


def reliability_picture(calibration: Calibration) -> Picture | None:
    """The reliability diagram of verdicts without labels; None where the calibration has none."""
    bins = calibration.reliability
    if not bins:
        return None

    def draw(axis: Axes) -> None:
        axis.plot([0, 1], [0, 1], color=LINE, lw=1)
        predicted, observed = (
            [found[name] for found in bins] for name in ("predicted", "observed")
        )
        axis.plot(predicted, observed, "o-", color=ACCENT, ms=5, lw=1.5)
        axis.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel="estimated chance to be better",
            ylabel="share that was better",
        )

    return picture(
        "reliability",
        "How reliable estimates without labels are",
        f"{sum(int(found['pairs']) for found in bins):,} pairs of models on {len(calibration.collections)} labelled "
        "collections and parts of them, each estimated by a model fitted without its collection. On the line the "
        "chance is what it says.",
        2.8,
        draw,
    )
