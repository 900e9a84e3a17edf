"""Pictures of the page, which follow its colours: weights, losses, measures and differences."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.evaluation.calibration import Calibration
from beir_cocodr.evaluation.recommendation import USE
from beir_cocodr.report.html.results_folder import (
    ClusterWeights,
    CurvePoint,
    LabelledEvaluation,
    Losses,
)
from beir_cocodr.report.png_pictures import has_matplotlib, plain
from beir_cocodr.report.wording import short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours that matplotlib draws, which are replaced by variables of the style sheet.
INK = "#010101"
MUTED = "#020202"
LINE = "#030303"
BETTER = "#040404"
WORSE = "#050505"
ACCENT = "#060606"
SERIES = ("#070707", "#080808", "#090909", "#0a0a0a", "#0b0b0b")

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    BETTER: "var(--better)",
    WORSE: "var(--worse)",
    ACCENT: "var(--accent)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)},
}

_STYLE: dict[str, object] = {
    "axes.edgecolor": LINE,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "axes.labelcolor": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "text.color": INK,
    "axes.titlecolor": INK,
    "legend.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.titlesize": 9,
    "axes.unicode_minus": True,
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
}

#: Width of a picture, in inches.
_WIDTH = 5.6

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"

#: Metadata of an SVG that would differ from run to run.
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class Picture:
    """A picture of the page.

    Attributes:
        title: line above it.
        caption: sentences below it.
        svg: its markup, which is safe in a page.
    """

    title: str
    caption: str
    svg: str


def picture(
    name: str,
    title: str,
    caption: str,
    height: float,
    draw: Callable[..., None],
    columns: int = 1,
) -> Picture | None:
    """Draw a picture with matplotlib.

    Args:
        name: begins all ids in the picture, and is unique on the page.
        title: line above it.
        caption: sentences below it.
        height: height in inches; the width is 5.6.
        draw: draws on axes, which it gets as one argument for each column.
        columns: axes side by side.

    Returns:
        The picture, or None if matplotlib is not installed.
    """
    if not has_matplotlib():
        return None
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        [axes] = figure.subplots(1, columns, squeeze=False)
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
        draw(*axes)
        figure.savefig(file, format="svg", metadata=_NO_METADATA)
    svg = _for_page(file.getvalue(), name, title)
    return Picture(title, caption, svg)


def _for_page(text: str, name: str, title: str) -> str:
    """Return an SVG with unique ids, the page's colours and fonts, and no size of its own."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(text)
    unwanted_tags = (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")
    for element in list(root.iter()):
        for child in list(element):
            if child.tag in unwanted_tags:
                element.remove(child)
        for key, value in element.attrib.items():
            element.attrib[key] = _attribute(key, value, name)
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", title)
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(key: str, value: str, name: str) -> str:
    """Return the value of an attribute on the page."""
    if key == "id":
        return f"{name}-{value}"
    is_link = key == f"{{{_XLINK}}}href"
    if is_link and value.startswith("#"):
        target = value.removeprefix("#")
        return f"#{name}-{target}"
    value = re.sub(r"url\(#", f"url(#{name}-", value)
    if key != "style":
        return value
    value = re.sub(r"(font(?:-family)?:[^;]*?)'[^;]*", r"\1system-ui, sans-serif", value)
    for colour, variable in _VARIABLES.items():
        value = value.replace(colour, variable)
    return value


#: Colours above and below the uniform weight, in red, green and blue. They are visible on white and
#: on black.
_ABOVE = (0.87, 0.45, 0.13)
_BELOW = (0.20, 0.52, 0.85)


def cluster_pictures(name: str, title: str, lines: Sequence[ClusterWeights]) -> list[Picture]:
    """Draw the weights of clusters as lines and, for several steps, all of them as a heat map.

    Args:
        name: begins the names of the pictures, and is unique on the page.
        title: whose clusters they are.
        lines: the weights at each logged step.
    """
    steps = np.array([line.step for line in lines])
    weights = np.array([line.weights for line in lines])  # (T, K)
    pictures = [_weight_lines(name, title, steps, weights)]
    has_several_steps = len(steps) > 1
    has_grey_lines = weights.shape[1] > len(SERIES)
    if has_several_steps and has_grey_lines:
        pictures.append(_heat_map(name, title, steps, weights))
    return [picture for picture in pictures if picture is not None]


def _weight_lines(name: str, title: str, steps: Ints, weights: Doubles) -> Picture | None:
    """Draw a line for each cluster; those with the largest last weights are named."""
    clusters = weights.shape[1]
    by_last_weight = np.argsort(-weights[-1], kind="stable")
    largest = by_last_weight[: len(SERIES)]
    others = np.delete(weights, largest, axis=1)
    marker = None
    if len(steps) == 1:
        marker = "o"

    def draw(axis: Axes) -> None:
        axis.plot(
            steps,
            others,
            color=MUTED,
            lw=0.7,
            alpha=0.45,
            marker=marker,
        )
        for colour, cluster in zip(SERIES, largest, strict=False):
            axis.plot(
                steps,
                weights[:, cluster],
                color=colour,
                lw=1.8,
                marker=marker,
                label=f"{cluster}",
            )
        equal_weight = 1 / clusters
        axis.axhline(
            equal_weight,
            color=LINE,
            lw=1,
            ls="--",
            zorder=0,
        )
        axis.set(xlabel="step", ylabel="weight")
        axis.ticklabel_format(axis="y", useOffset=False)
        axis.legend(title="cluster", loc="upper left", bbox_to_anchor=(1.01, 1))

    caption = (
        f"{clusters} clusters; the {len(largest)} with the largest weight at the end are coloured"
    )
    grey = clusters - len(largest)
    if grey:
        caption += f", the other {grey} grey"
    caption += ". Dashed: equal weights."
    return picture(
        name=f"{name}-lines",
        title=f"Cluster weights: {title}",
        caption=caption,
        height=2.7,
        draw=draw,
    )


def _heat_map(name: str, title: str, steps: Ints, weights: Doubles) -> Picture | None:
    """Draw a row for each cluster, coloured by its weight at each step."""
    clusters = weights.shape[1]
    by_last_weight = np.argsort(-weights[-1], kind="stable")
    multiples = weights[:, by_last_weight].T * clusters  # (K, T), of the equal weight
    ratios = np.log(np.maximum(multiples, 1e-12))  # 0 where uniform
    strengths = np.abs(ratios)
    largest = float(strengths.max())
    colours = np.zeros((*ratios.shape, 4))
    is_above = ratios[..., None] > 0
    colours[..., :3] = np.where(is_above, _ABOVE, _BELOW)
    if largest:
        colours[..., 3] = strengths / largest

    def draw(axis: Axes) -> None:
        axis.imshow(colours, aspect="auto", interpolation="none")
        columns = np.unique(_evenly_spaced(len(steps), 6))
        axis.set_xticks(columns, [f"{steps[column]:,}" for column in columns])
        first, *_, last = by_last_weight
        axis.set_yticks(
            [0, clusters - 1],
            [f"{first}", f"{last}"],
        )
        axis.set(xlabel="step", ylabel="cluster, by last weight")
        axis.spines[:].set_visible(False)

    height = 0.9 + 0.06 * clusters
    return picture(
        name=f"{name}-map",
        title=f"Every cluster over time: {title}",
        caption=f"One row per cluster ({clusters}), by the last weight. {_strongest(largest)}",
        height=min(3.2, height),
        draw=draw,
    )


def _evenly_spaced(count: int, most: int) -> Ints:
    """Return at most ``most`` of ``count`` rows, each the nearest to its even place."""
    places = np.linspace(0, count - 1, min(count, most))
    return places.round().astype(np.int64)


def _strongest(ratio: float) -> str:
    """Return what the colours mean.

    Args:
        ratio: the largest absolute logarithm of a weight divided by the equal weight.
    """
    if ratio < 1e-9:
        return "All weights stay equal throughout."
    factor = float(np.exp(ratio))
    if factor < 1.1:
        strongest = f"{factor - 1:.2%} above or below the equal weight"
    else:
        strongest = f"{factor:.3g} times the equal weight, or 1 / {factor:.3g} of it"
    return (
        "Orange: above the equal weight, blue: below, blank: equal; the strongest colour is "
        f"{strongest}."
    )


_DASHES = ("-", "--", ":")


def _line_style(number: int) -> tuple[str, str]:
    """Return the colour and the dashes of the n-th line of several."""
    cycle, within_cycle = divmod(number, len(SERIES))
    return SERIES[within_cycle], _DASHES[cycle % len(_DASHES)]


def curve_picture(name: str, title: str, points: Sequence[CurvePoint]) -> Picture | None:
    """Draw measures over rounds: one panel per measure, one line per target.

    Args:
        name: name of the picture, unique on the page.
        title: whose rounds they are.
        points: points of curves.json; their models are the rounds.
    """
    rounds = list(dict.fromkeys(point.model for point in points))
    datasets = dict.fromkeys(point.dataset for point in points)
    short = short_names(datasets)
    measures = list(points[0].measures)
    ticks = [plain(_tick(name)) for name in rounds]

    def panel(axis: Axes, measure: str) -> None:
        for number, dataset in enumerate(datasets):
            x = []
            y = []
            for point in points:
                if point.dataset == dataset and measure in point.measures:
                    x.append(rounds.index(point.model))
                    y.append(point.measures[measure])
            colour, dashes = _line_style(number)
            axis.plot(
                x,
                y,
                marker="o",
                ms=3.5,
                label=plain(short[dataset]),
                color=colour,
                ls=dashes,
                lw=1.6,
            )
        axis.set_xticks(range(len(ticks)), ticks)
        axis.margins(x=0.06, y=0.12)
        axis.set_title(plain(measure), loc="left")

    def draw(*axes: Axes) -> None:
        for axis, measure in zip(axes, measures, strict=True):
            panel(axis, measure)
        first = axes[0]
        handles, labels = first.get_legend_handles_labels()
        first.figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=3,
        )

    caption = "Measures of the base and after every round; there is no paired test between them."
    lines_of_legend = len(datasets) // 3
    return picture(
        name,
        title=f"Measures over rounds: {title}",
        caption=caption,
        height=2.5 + 0.2 * lines_of_legend,
        draw=draw,
        columns=len(measures),
    )


def _tick(name: str) -> str:
    """Return the number of a round such as "episode 2", whose whole name is in the table."""
    kind, _, number = name.partition(" ")
    if kind in ("episode", "stage") and number.isdigit():
        return number
    return name


def loss_picture(name: str, title: str, losses: Mapping[str, Losses]) -> Picture | None:
    """Draw the logged losses of a training, one line per round."""

    def draw(axis: Axes) -> None:
        for number, (label, points) in enumerate(losses.items()):
            steps, values = zip(*points, strict=True)
            marker = None
            if len(points) == 1:
                marker = "o"
            colour, dashes = _line_style(number)
            axis.plot(
                steps,
                values,
                marker=marker,
                label=label,
                color=colour,
                ls=dashes,
                lw=1.6,
            )
        axis.set(xlabel="step", ylabel="loss")
        if len(losses) > 1:
            axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1))

    caption = (
        "Each point is the mean since the point before. A falling loss does not show that search "
        "got better."
    )
    return picture(
        name,
        title=f"Training loss: {title}",
        caption=caption,
        height=2.5,
        draw=draw,
    )


_VERDICT_COLOURS = {"better": BETTER, "worse": WORSE, "cannot tell": MUTED}


def interval_picture(evaluation: LabelledEvaluation, names: Mapping[str, str]) -> Picture | None:
    """Draw every model's difference from the reference, if there are at least two."""
    tests = {}
    for label in evaluation.results.models:
        test = evaluation.test(evaluation.reference, label, family=USE)
        if test is not None:
            tests[label] = test
    rows = len(tests)
    if rows < 2:
        return None

    def draw(axis: Axes) -> None:
        axis.axvline(0, color=LINE, lw=1)
        for row, test in enumerate(tests.values()):
            colour = _VERDICT_COLOURS[test.verdict]
            low, high = test.interval or (test.difference, test.difference)
            axis.plot(
                [low, high],
                [row, row],
                color=colour,
                lw=2.2,
                solid_capstyle="round",
            )
            axis.plot(
                [test.difference],
                [row],
                "o",
                color=colour,
                ms=5,
            )
        models = [plain(names[label]) for label in tests]
        axis.set_yticks(range(rows), models)
        axis.tick_params(axis="y", length=0, labelcolor=INK)
        axis.set(
            ylim=(rows - 0.5, -0.5),
            xlabel=f"difference in {evaluation.measure}",
        )
        axis.spines["left"].set_visible(False)

    caption = (
        "Mean of the paired differences with its bootstrap 95% interval; green and red where "
        "p < 0.05 after Holm."
    )
    return picture(
        name="intervals",
        title=f"Differences from {names[evaluation.reference]}, {evaluation.measure}",
        caption=caption,
        height=0.75 + 0.27 * rows,
        draw=draw,
    )


#: The most bars that can be told apart.
_MOST_BARS = 600


def query_picture(
    evaluation: LabelledEvaluation,
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    pair: tuple[str, str],
    names: Mapping[str, str],
) -> Picture | None:
    """Draw the sorted differences of all queries, if both models have scores."""
    label_a, label_b = pair
    a = scores.get(label_a)
    b = scores.get(label_b)
    if not a or not b:
        return None
    differences = [b[query][0] - a[query][0] for query in a]
    values = np.sort(differences)[::-1]
    count = len(values)
    bars = values[_evenly_spaced(count, _MOST_BARS)]
    edges = np.linspace(0, count, len(bars) + 1)
    gains = np.maximum(bars, 0)
    losses = np.minimum(bars, 0)

    def draw(axis: Axes) -> None:
        for colour, part in ((BETTER, gains), (WORSE, losses)):
            if part.any():
                axis.stairs(
                    part,
                    edges,
                    fill=True,
                    color=colour,
                    lw=0,
                )
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
                0.5,
                0.75,
                "no query differs",
                ha="center",
                transform=axis.transAxes,
                color=MUTED,
            )

    return picture(
        name="queries",
        title=f"Difference on every query, {evaluation.measure}",
        caption=_count_differences(values, names[label_a], names[label_b]),
        height=2.5,
        draw=draw,
    )


def _count_differences(values: Doubles, a: str, b: str) -> str:
    """Return the caption of the (n,) differences of queries, b − a."""
    count = len(values)
    above = int((values > 0).sum())
    below = int((values < 0).sum())
    equal = count - above - below
    caption = (
        f"{b} minus {a}: above 0 on {above:,} queries, below on {below:,}, equal on {equal:,}."
    )
    if count > _MOST_BARS:
        caption += f" {_MOST_BARS} evenly spaced ones of {count:,} are drawn."
    return caption


def reliability_picture(calibration: Calibration) -> Picture | None:
    """Draw the reliability diagram of verdicts without labels, if the calibration has one."""
    bins = calibration.reliability
    if not bins:
        return None
    predicted = [part["predicted"] for part in bins]
    observed = [part["observed"] for part in bins]
    pairs = sum(int(part["pairs"]) for part in bins)

    def draw(axis: Axes) -> None:
        axis.plot([0, 1], [0, 1], color=LINE, lw=1)
        axis.plot(
            predicted,
            observed,
            "o-",
            color=ACCENT,
            ms=5,
            lw=1.5,
        )
        axis.set(
            xlim=(0, 1),
            ylim=(0, 1),
            xlabel="estimated chance to be better",
            ylabel="share that was better",
        )

    caption = (
        f"{pairs:,} pairs of models on {len(calibration.collections)} labelled collections and "
        "parts of them, each estimated by a model fitted without its collection. On the line, the "
        "estimated chance equals the observed share."
    )
    return picture(
        name="reliability",
        title="How reliable estimates without labels are",
        caption=caption,
        height=2.8,
        draw=draw,
    )
