"""Pictures of records as PNG files, drawn where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.io import atomic_path

if TYPE_CHECKING:  # their modules import torch or scipy
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

    from beir_cocodr.analysis.qpp import Coefficients, Prediction
    from beir_cocodr.analysis.representation import Representation
    from beir_cocodr.analysis.shift import Shift
    from beir_cocodr.analysis.source_clusters import SourceClusters
    from beir_cocodr.resampling.manifest import Manifest
    from beir_cocodr.resampling.overlap import Overlap
    from beir_cocodr.resampling.regimes.regimes import Alignment, Regimes

log = logging.getLogger(__name__)

#: Width and height of a panel, in inches.
_PANEL_INCHES = 4.2


def has_matplotlib() -> bool:
    """Return whether pictures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def will_draw(picture: bool | None, possible: bool, needs: str) -> bool:
    """Decide before the work starts whether a picture will be drawn.

    Args:
        picture: True asks for a picture and False for none; None draws one where that is possible
            and matplotlib is installed.
        possible: whether there will be something to draw, and a folder for it.
        needs: the way out if it is not possible.

    Raises:
        InputError: a picture is asked for and cannot be drawn.
    """
    if picture and not has_matplotlib():
        raise InputError("a picture needs matplotlib: pip install 'beir-cocodr[report]'")
    if picture and not possible:
        raise InputError(f"there is nothing to draw; {needs}")
    if picture is None and possible and not has_matplotlib():
        log.info("no picture: matplotlib is not installed; pip install 'beir-cocodr[report]'")
        return False
    return possible and picture is not False


@contextmanager
def _png(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Give a figure, and write it when the block ends without an error.

    Args:
        path: the file, which appears only when it is complete.
        width: inches.
        height: inches.
    """
    # Agg's canvas is named, so that no display is needed and the caller's state of pyplot is left
    # alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def plain(text: str) -> str:
    """Return text that matplotlib draws as it is: it takes dollar signs for formulas."""
    # Imported here because commands that draw nothing must not pay for the records of verdicts.
    from beir_cocodr.report.wording import allowed_text

    return allowed_text(text).replace("$", r"\$")


def _caption(row: Coefficients | None) -> str:
    if row is None or row.pearson is None:
        return ""
    return f"r = {row.pearson:+.3f}, τ = {row.kendall:+.3f}"


#: Places of a name beside its point, tried in this order: offsets in points, and alignment.
_OFFSETS = [
    (4, 3, "left"),
    (4, -3, "left"),
    (-4, 3, "right"),
    (-4, -3, "right"),
    (0, 6, "center"),
    (0, -6, "center"),
]


@dataclass(frozen=True)
class ScatterPanel:
    """One panel of a picture: the points that have a finite x and a finite y.

    Attributes:
        x: name of a point to its x.
        y: name of a point to its y.
        x_label: label of the x axis.
        y_label: label of the y axis.
        caption: text above the panel.
        names: name of a point to the text beside it; by default the name itself.
        groups: name of a point to its group; groups differ in colour, and a legend names them.
    """

    x: Mapping[str, float | None]
    y: Mapping[str, float | None]
    x_label: str
    y_label: str
    caption: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)

    def points(self) -> dict[str, tuple[float, float]]:
        """Return name to place of each point that is drawn."""
        points = {}
        for name, x in self.x.items():
            y = self.y.get(name)
            if x is None or y is None:
                continue
            if math.isfinite(x) and math.isfinite(y):
                points[name] = (x, y)
        return points


def write_labelled_scatter(
    path: Path,
    panels: Sequence[ScatterPanel],
    title: str,
    columns: int = 2,
) -> None:
    """Draw panels as a PNG, every point with its name.

    Args:
        path: the file.
        panels: the panels.
        title: text above all panels.
        columns: panels side by side.
    """
    columns = min(columns, len(panels))
    lines = math.ceil(len(panels) / columns)
    width = _PANEL_INCHES * columns
    height = _PANEL_INCHES * lines
    with _png(path, width, height) as figure:
        figure.suptitle(plain(title))
        figure.subplots(lines, columns, squeeze=False)
        for axis, panel in zip(figure.axes, panels, strict=False):
            _draw(axis, panel)
        for axis in figure.axes[len(panels) :]:
            axis.set_visible(False)
        figure.draw_without_rendering()  # the layout is not known before
        for axis, panel in zip(figure.axes, panels, strict=False):
            _write_names(axis, panel)


def _draw(axis: Axes, panel: ScatterPanel) -> None:
    groups: dict[str, list[tuple[float, float]]] = {}
    for name, point in panel.points().items():
        groups.setdefault(panel.groups.get(name, ""), []).append(point)
    for group, points in groups.items():
        x, y = zip(*points, strict=True)
        axis.scatter(
            x,
            y,
            s=18,
            lw=0,
            alpha=0.7,
            label=plain(group) or None,
        )
    if panel.groups:
        axis.legend(fontsize="x-small")
    axis.margins(0.2)  # room for the names
    axis.set(xlabel=plain(panel.x_label), ylabel=plain(panel.y_label))
    axis.set_title(plain(panel.caption), fontsize="small")


def _write_names(axis: Axes, panel: ScatterPanel) -> None:
    """Write each name inside the panel where it covers no earlier one, if there is such a place."""
    taken: list[Bbox] = []
    for name, point in panel.points().items():
        name_text = plain(panel.names.get(name, name))
        if not name_text:
            continue
        text = axis.annotate(
            name_text,
            point,
            xytext=(0, 0),
            textcoords="offset points",
            fontsize="x-small",
        )
        text.set_in_layout(False)  # a long name must not squeeze the panel
        taken.append(_place(axis, text, taken))


def _place(axis: Axes, text: Annotation, taken: Sequence[Bbox]) -> Bbox:
    """Move a name to the first free offset, else to the first one, and return its box."""
    for x, y, horizontal in (*_OFFSETS, _OFFSETS[0]):
        text.set(
            position=(x, y),
            ha=horizontal,
            va="bottom" if y > 0 else "top",
        )
        box = text.get_window_extent()
        is_inside = axis.bbox.x0 <= box.x0 and box.x1 <= axis.bbox.x1
        covers_other = any(box.overlaps(other) for other in taken)
        if is_inside and not covers_other:
            break
    return box


def qpp_picture(path: Path, prediction: Prediction) -> None:
    """Draw a model's quality against every predictor: one panel each, one point per query."""
    record = prediction.record
    panels = []
    for row in record.predictors:
        caption = f"{_caption(row) or 'not defined'} (n = {row.queries})"
        panels.append(
            ScatterPanel(
                x=prediction.values[row.predictor],
                y=prediction.quality,
                x_label=row.predictor,
                y_label=record.measure,
                caption=caption,
                names=dict.fromkeys(prediction.quality, ""),
            )
        )
    title = f"{record.model} on {record.dataset}"
    write_labelled_scatter(path, panels, title, columns=3)


def shift_picture(path: Path, report: Shift) -> None:
    """Draw every model's scores against both similarities, one point per target.

    References:
        Yu et al., 2022 (COCO-DR), Figure 2.
    """
    from beir_cocodr.analysis.shift import SIMILARITIES, similarities

    values = similarities(report.targets)
    # Points and axes have no room for paths.
    targets = file_names(target.dataset for target in report.targets)
    labels = list(report.scores)
    if report.baseline is not None:
        labels.append(report.baseline)
    models = file_names(labels)
    against = ""
    if report.baseline is not None:
        against = f" − {models[report.baseline]}"
    panels = []
    for label, scores in report.scores.items():
        for row in report.correlations[label]:
            of_targets = values[row.similarity]
            panels.append(
                ScatterPanel(
                    x=_renamed(of_targets, targets),
                    y=_renamed(scores, targets),
                    x_label=SIMILARITIES[row.similarity],
                    y_label=f"{report.measure}, {models[label]}{against}",
                    caption=_caption(row),
                )
            )
    write_labelled_scatter(path, panels, f"similarity with {report.source.dataset}")


def _renamed(
    values: Mapping[str, float | None], names: Mapping[str, str]
) -> dict[str, float | None]:
    """Return values by the names that a picture has room for."""
    return {names[key]: value for key, value in values.items()}


def representation_picture(path: Path, report: Representation) -> None:
    """Draw uniformity against alignment and, with gains, gains against the loss's reduction.

    References:
        Yu et al., 2022 (COCO-DR), Figures 5a and 5b.
    """
    panels = [_alignment_panel(report)]
    if report.reduction_against_gain is not None:
        panels.append(_reduction_panel(report))
    write_labelled_scatter(path, panels, "representation of spans")


def _alignment_panel(report: Representation) -> ScatterPanel:
    # Points and the legend have no room for paths.
    models = file_names(report.models)
    datasets = file_names(report.datasets)
    alignment: dict[str, float | None] = {}
    uniformity: dict[str, float | None] = {}
    names = {}
    groups = {}
    for dataset, corpus in report.datasets.items():
        for model, measures in corpus.models.items():
            point = f"{model}, {dataset}"
            alignment[point] = measures.alignment
            uniformity[point] = measures.uniformity
            names[point] = datasets[dataset]
            groups[point] = models[model]
    return ScatterPanel(
        x=alignment,
        y=uniformity,
        x_label="ℓ_align",
        y_label="ℓ_uniform",
        names=names,
        groups=groups,
    )


def _reduction_panel(report: Representation) -> ScatterPanel:
    datasets = file_names(report.datasets)
    reductions: dict[str, float | None] = {}
    gains: dict[str, float | None] = {}
    for name, corpus in report.datasets.items():
        change = corpus.change
        if change is not None:
            point = datasets[name]
            reductions[point] = change.contrastive_loss_reduction
            gains[point] = change.gain
    return ScatterPanel(
        x=reductions,
        y=gains,
        x_label="reduction of contrastive loss",
        y_label=f"gain in {report.measure}",
        caption=_caption(report.reduction_against_gain),
    )


def source_clusters_picture(path: Path, report: SourceClusters) -> None:
    """Draw gains against the reduction of the nearest cluster's loss, one point per target.

    References:
        Yu et al., 2022 (COCO-DR), Figure 5c.
    """
    reductions = {name: target.reduction for name, target in report.targets.items()}
    gains = {name: target.gain for name, target in report.targets.items()}
    panel = ScatterPanel(
        x=reductions,
        y=gains,
        x_label="reduction of the nearest cluster's loss",
        y_label=f"gain in {report.measure}",
        caption=_caption(report.reduction_against_gain),
        names=file_names(report.targets),  # points have no room for paths
    )
    title = f"{report.after} − {report.before}"
    write_labelled_scatter(path, [panel], title)


def overlap_picture(path: Path, report: Overlap) -> None:
    """Draw the histogram of similarities to the nearest training query."""
    encoder = report.nearest.encoder
    histogram = report.nearest.histogram
    kind = "Jaccard, words"
    if encoder is not None:
        kind = f"cosine, {encoder.name}"
    with _png(path, 6.4, 4.0) as figure:
        axis = figure.subplots()
        axis.stairs(
            histogram.counts,
            histogram.edges,
            fill=True,
            alpha=0.6,
        )
        axis.set(
            xlim=(histogram.edges[0], histogram.edges[-1]),
            xlabel=plain(f"similarity to the nearest training query ({kind})"),
            ylabel="test queries",
            title=plain(f"{report.test.dataset}: {report.test.queries:,} test queries"),
        )


def resampling_picture(path: Path, report: Manifest) -> None:
    """Draw queries by their two main components, sets in colours, test queries as crosses.

    References:
        Zhan et al., 2022, Figure 1.
    """
    with _png(path, 6.4, 5.4) as figure:
        axis = figure.subplots()
        for name, points in report.points.items():
            x, y = zip(*points, strict=True)
            if name == "test":
                axis.scatter(
                    x,
                    y,
                    12,
                    label=name,
                    marker="x",
                    color="black",
                )
            else:
                axis.scatter(
                    x,
                    y,
                    12,
                    label=name,
                    marker="o",
                    alpha=0.5,
                )
        axis.legend()
        title = f"{report.base} ({report.method}), {report.encoder.name}"
        axis.set_title(plain(title))


def alignment_picture(path: Path, report: Regimes) -> None:
    """Draw scores in a regime against scores outside the distribution.

    Every collection and regime has a panel, and every model and seed a point.

    References:
        Zhan et al., 2022, Figure 2.
    """
    points = {f"{point.group} {point.model} {point.seed}": point for point in report.points}
    models = {name: point.model for name, point in points.items()}
    panels = []
    for row in report.alignment:
        inside: dict[str, float | None] = {}
        outside: dict[str, float | None] = {}
        for name, point in points.items():
            measures_outside = point.ood[row.collection]
            inside[name] = point.measures[row.measure][row.regime]
            outside[name] = measures_outside[row.measure][row.regime]
        panels.append(
            ScatterPanel(
                x=inside,
                y=outside,
                x_label=f"{row.regime}, {row.measure}",
                y_label=f"{row.collection}, {row.measure}",
                caption=_alignment_caption(row),
                # Colours tell models apart, and seeds need no names.
                names=dict.fromkeys(points, ""),
                groups=models,
            )
        )
    write_labelled_scatter(path, panels, f"{report.base} ({report.method})")


def _alignment_caption(row: Alignment) -> str:
    if row.spearman is None:
        return f"not defined ({row.models} models)"
    spearman = f"ρ = {row.spearman:+.3f} (p {row.spearman_p:.2g})"
    kendall = f"τ = {row.kendall:+.3f} (p {row.kendall_p:.2g})"
    return f"{spearman}, {kendall}"
