"""Pictures of records as PNG files, drawn where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.io import atomic_path
from beir_cocodr.report.wording import allowed_text

if TYPE_CHECKING:  # their modules import torch or scipy
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    from beir_cocodr.analysis.qpp import Coefficients, Prediction
    from beir_cocodr.analysis.representation import Representation
    from beir_cocodr.analysis.shift import Shift
    from beir_cocodr.analysis.source_clusters import SourceClusters
    from beir_cocodr.resampling.manifest import Manifest
    from beir_cocodr.resampling.overlap import Overlap
    from beir_cocodr.resampling.regimes.regimes import Regimes

log = logging.getLogger(__name__)

_PANEL_INCHES = 4.2


def has_matplotlib() -> bool:
    """Whether pictures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def will_draw(picture: bool | None, possible: bool, needs: str) -> bool:
    """Decide before the work starts; an InputError where a picture is asked for and cannot be
    drawn.

    Args:
        picture: whether one is asked for; None draws where there is something to draw and
            matplotlib.
        possible: whether there is something to draw, and a folder for it.
        needs: what is lacking where it is not possible, as the way out.
    """
    if picture and not has_matplotlib():
        raise InputError("a picture needs matplotlib; pip install 'beir-cocodr[report]'")
    if picture and not possible:
        raise InputError(f"there is nothing to draw; {needs}")
    if picture is None and possible and not has_matplotlib():
        log.info("no picture: matplotlib is not there; pip install 'beir-cocodr[report]'")
        return False
    return possible and picture is not False


@contextmanager
def _png(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches; the file appears when the block is through, and only when it is
    complete.
    """
    # Agg's canvas by name: no display, and no backend or state of pyplot that belongs to the
    # caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def plain(text: str) -> str:
    """Text as it stands: matplotlib takes dollar signs for formulas."""
    return allowed_text(text).replace("$", r"\$")


def _caption(row: Coefficients | None) -> str:
    return (
        ""
        if row is None or row.pearson is None
        else f"r = {row.pearson:+.3f}, τ = {row.kendall:+.3f}"
    )


#: Where a name may stand beside its point, the first that is free: offsets in points.
_PLACES = [(4, 3), (4, -3), (-4, 3), (-4, -3), (0, 6), (0, -6)]


@dataclass(frozen=True)
class ScatterPanel:
    """One panel: the points that have a finite x and a finite y.

    Attributes:
        x, y: name of a point -> its place.
        x_label, y_label: of the axes.
        caption: over the panel.
        names: name of a point -> what stands beside it, if anything; by default the name itself.
        groups: name of a point -> its group; groups differ in colour, and a legend names them.
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
        return {
            name: (x, y)
            for name, x in self.x.items()
            if x is not None
            and (y := self.y.get(name)) is not None
            and math.isfinite(x)
            and math.isfinite(y)
        }


def write_labelled_scatter(
    path: Path, panels: Sequence[ScatterPanel], title: str, columns: int = 2
) -> None:
    """Draw panels as a PNG, ``columns`` side by side, every point with its name."""
    columns = min(columns, len(panels))
    lines = math.ceil(len(panels) / columns)
    with _png(path, _PANEL_INCHES * columns, _PANEL_INCHES * lines) as figure:
        figure.suptitle(plain(title))
        figure.subplots(lines, columns, squeeze=False)
        for axis, panel in zip(figure.axes, panels, strict=False):
            _draw(axis, panel)
        for axis in figure.axes[len(panels) :]:
            axis.set_visible(False)
        figure.draw_without_rendering()  # only then is it known where everything stands
        for axis, panel in zip(figure.axes, panels, strict=False):
            _write_names(axis, panel)


def _draw(axis: Axes, panel: ScatterPanel) -> None:
    points = panel.points()
    for group in dict.fromkeys(panel.groups.get(name, "") for name in points):
        places = [place for name, place in points.items() if panel.groups.get(name, "") == group]
        axis.scatter(
            [x for x, _ in places],
            [y for _, y in places],
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
    """Write each name where it covers no earlier name and stays in the panel, if there is such a
    place.
    """
    taken: list[Bbox] = []
    shown = {name: plain(panel.names.get(name, name)) for name in panel.points()}
    for name, point in panel.points().items():
        if not shown[name]:
            continue
        text = axis.annotate(
            shown[name], point, xytext=(0, 0), textcoords="offset points", fontsize="x-small"
        )
        text.set_in_layout(False)  # a long name must not squeeze the panel
        for x, y in (*_PLACES, _PLACES[0]):
            horizontal = "left" if x > 0 else "right" if x else "center"
            text.set(position=(x, y), ha=horizontal, va="bottom" if y > 0 else "top")
            box = text.get_window_extent()
            inside = axis.bbox.x0 <= box.x0 and box.x1 <= axis.bbox.x1
            if inside and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)


def qpp_picture(path: Path, found: Prediction) -> None:
    """Draw a model's quality against every predictor: one panel a predictor, one point a query."""
    record = found.record
    panels = [
        ScatterPanel(
            found.values[row.predictor],
            found.quality,
            row.predictor,
            record.measure,
            f"{_caption(row) or 'not defined'} (n = {row.queries})",
            dict.fromkeys(found.quality, ""),
        )
        for row in record.predictors
    ]
    write_labelled_scatter(path, panels, f"{record.model} on {record.dataset}", columns=3)


def shift_picture(path: Path, report: Shift) -> None:
    """Draw every model's scores against both similarities, a point for each target.

    Source: COCO-DR, Figure 2.
    """
    from beir_cocodr.analysis.shift import SIMILARITIES, similarities

    values = similarities(report.targets)
    # Points and axes have no room for paths.
    targets = file_names(target.dataset for target in report.targets)
    models = file_names([*report.scores, *([] if report.baseline is None else [report.baseline])])
    against = "" if report.baseline is None else f" − {models[report.baseline]}"
    panels = [
        ScatterPanel(
            {targets[target]: value for target, value in values[row.similarity].items()},
            {targets[target]: score for target, score in scores.items()},
            SIMILARITIES[row.similarity],
            f"{report.measure}, {models[label]}{against}",
            _caption(row),
        )
        for label, scores in report.scores.items()
        for row in report.correlations[label]
    ]
    write_labelled_scatter(path, panels, f"similarity with {report.source.dataset}")


def representation_picture(path: Path, report: Representation) -> None:
    """Draw uniformity against alignment, and where there are gains these against the loss's
    reduction.

    Source: COCO-DR, Figures 5b and 5a.
    """
    models, datasets = file_names(report.models), file_names(report.datasets)  # paths are too long
    points = {
        f"{model}, {dataset}": (model, dataset, found)
        for dataset, corpus in report.datasets.items()
        for model, found in corpus.models.items()
    }
    panels = [
        ScatterPanel(
            {point: found.alignment for point, (_, _, found) in points.items()},
            {point: found.uniformity for point, (_, _, found) in points.items()},
            "ℓ_align",
            "ℓ_uniform",
            names={point: datasets[dataset] for point, (_, dataset, _) in points.items()},
            groups={point: models[model] for point, (model, _, _) in points.items()},
        )
    ]
    row = report.reduction_against_gain
    if row is not None:
        changes = {
            datasets[name]: corpus.change
            for name, corpus in report.datasets.items()
            if corpus.change
        }
        reduction = {name: change.contrastive_loss_reduction for name, change in changes.items()}
        gain = {name: change.gain for name, change in changes.items()}
        axes = ("reduction of contrastive loss", f"gain in {report.measure}")
        panels.append(ScatterPanel(reduction, gain, *axes, _caption(row)))
    write_labelled_scatter(path, panels, "representation of spans")


def source_clusters_picture(path: Path, report: SourceClusters) -> None:
    """Draw gains against the reduction of the nearest cluster's loss, a point for each target.

    Source: COCO-DR, Figure 5c.
    """
    panel = ScatterPanel(
        {name: target.reduction for name, target in report.targets.items()},
        {name: target.gain for name, target in report.targets.items()},
        "reduction of the nearest cluster's loss",
        f"gain in {report.measure}",
        _caption(report.reduction_against_gain),
        file_names(report.targets),  # paths are too long
    )
    write_labelled_scatter(path, [panel], f"{report.after} − {report.before}")


def overlap_picture(path: Path, report: Overlap) -> None:
    """Draw the histogram of similarities to the nearest training query."""
    encoder, histogram = report.nearest.encoder, report.nearest.histogram
    kind = "Jaccard, words" if encoder is None else f"cosine, {encoder.name}"
    with _png(path, 6.4, 4.0) as figure:
        axis = figure.subplots()
        axis.stairs(histogram.counts, histogram.edges, fill=True, alpha=0.6)
        title = plain(f"{report.test.dataset}: {report.test.queries:,} test queries")
        label = plain(f"similarity to the nearest training query ({kind})")
        axis.set(
            xlim=(histogram.edges[0], histogram.edges[-1]),
            xlabel=label,
            ylabel="test queries",
            title=title,
        )


def resampling_picture(path: Path, report: Manifest) -> None:
    """Draw queries by their two main components, sets in colours, test queries as crosses.

    Source: Zhan et al., 2022, Figure 1.
    """
    with _png(path, 6.4, 5.4) as figure:
        axis = figure.subplots()
        for name, found in report.points.items():
            style: Any = (
                {"marker": "x", "color": "black"}
                if name == "test"
                else {"marker": "o", "alpha": 0.5}
            )
            x, y = zip(*found, strict=True)
            axis.scatter(x, y, 12, label=name, **style)
        axis.legend()
        axis.set_title(plain(f"{report.base} ({report.method}), {report.encoder.name}"))


def alignment_picture(path: Path, report: Regimes) -> None:
    """Draw scores in a regime against scores outside the distribution.

    There is a panel for every collection and regime, and a point for every model and seed.

    Source: Zhan et al., 2022, Figure 2.
    """
    points = {f"{point.group} {point.model} {point.seed}": point for point in report.points}
    panels = [
        ScatterPanel(
            {name: point.measures[row.measure][row.regime] for name, point in points.items()},
            {
                name: point.ood[row.collection][row.measure][row.regime]
                for name, point in points.items()
            },
            f"{row.regime}, {row.measure}",
            f"{row.collection}, {row.measure}",
            f"not defined ({row.models} models)"
            if row.spearman is None
            else f"ρ = {row.spearman:+.3f} (p {row.spearman_p:.2g}), τ = {row.kendall:+.3f} (p {row.kendall_p:.2g})",
            names=dict.fromkeys(
                points, ""
            ),  # the colours tell models apart, and seeds need no names
            groups={name: point.model for name, point in points.items()},
        )
        for row in report.alignment
    ]
    write_labelled_scatter(path, panels, f"{report.base} ({report.method})")
