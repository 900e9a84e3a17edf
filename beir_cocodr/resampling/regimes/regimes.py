"""Interpolation, extrapolation and gap of a family of models, over an output of ``resample``."""

import json
import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from beir_cocodr import io as files
from beir_cocodr.data.collection import Collection, Datasets, load_collections
from beir_cocodr.distributed import join_processes, on_main
from beir_cocodr.errors import InputError, check_seeds, explained, naming_full_disk
from beir_cocodr.evaluation.measures import (
    DEFAULT_MEASURES,
    MeasureNames,
    correlate,
    parse_measures,
)
from beir_cocodr.evaluation.runs import identical_ids
from beir_cocodr.models.checkpoints.loading import model_source
from beir_cocodr.models.spec import check_device
from beir_cocodr.progress import steps
from beir_cocodr.records import Json, Report, versions
from beir_cocodr.resampling.manifest import Manifest, SourceRecord, read_manifest
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.cells import Cell, Cells, CellsByModel, cell_tasks
from beir_cocodr.resampling.regimes.model_rows import (
    SET,
    ModelRow,
    NamedPaths,
    chosen_rows,
    given_row,
    named_paths,
)
from beir_cocodr.resampling.regimes.units import REGIMES, TrainingUnit, training_units
from beir_cocodr.same_run import check_same_run

log = logging.getLogger(__name__)

RESULTS_FILE = "regimes.json"
PICTURE_FILE = "alignment.png"
_SETTINGS_FILE = "settings.json"


@dataclass(frozen=True)
class RegimeOptions:
    """Options of an evaluation of models in both regimes.

    Args:
        seeds: each trains every architecture once.
        ood: one collection outside the distribution or several, evaluated by their split "test",
            for the alignment.
        measures: names or objects of ir-measures; the first is that of the alignment.
        keep_models: keep trained models, or only their scores.
        progress: show progress bars on stderr.
    """

    seeds: tuple[int, ...] = (42,)
    ood: Datasets = ()
    measures: MeasureNames = DEFAULT_MEASURES
    keep_models: bool = True
    progress: bool = False


@dataclass(frozen=True)
class RegimePoint:
    """Scores of one group, model and seed.

    Attributes:
        measures: measure to regime to score.
        ood: collection to measure to regime to the score there of the models that the regime
            evaluates.
        queries: regime to the number of test queries.
    """

    group: str
    model: str
    seed: int
    measures: dict[str, dict[str, float]]
    ood: dict[str, dict[str, dict[str, float]]]
    queries: dict[str, int]


@dataclass(frozen=True)
class SeedScores:
    """Scores and gap of every seed."""

    interpolation: list[float]
    extrapolation: list[float]
    gap: list[float | None]


@dataclass(frozen=True)
class RegimeScores:
    """Means over seeds, the gap between them, and the standard deviation of the seeds' gaps."""

    interpolation: float
    extrapolation: float
    gap: float | None
    gap_sd: float | None
    seeds: SeedScores


@dataclass(frozen=True)
class RegimeRow:
    """One group and model over its seeds; ``queries`` by regime, ``measures`` by name."""

    group: str
    model: str
    seeds: list[int]
    queries: dict[str, int]
    measures: dict[str, RegimeScores]


@dataclass(frozen=True)
class Alignment:
    """The agreement of a regime with a collection outside the distribution in the order of models.

    Spearman's rho and Kendall's tau-b have two-sided p-values. All are None where nothing can be
    correlated.
    """

    models: int
    spearman: float | None
    spearman_p: float | None
    kendall: float | None
    kendall_p: float | None
    collection: str
    measure: str
    regime: str


@dataclass(frozen=True)
class RegimeSet:
    """A training set, the group of its row, and the regimes that it is evaluated in."""

    name: str
    group: str
    regimes: list[str]


@dataclass(frozen=True)
class Regimes(Report):
    """``regimes.json``: a family of models in both regimes.

    Attributes:
        folder: output of ``resample``.
        method, base, train, test: from its manifest.
        alignment: with collections outside the distribution, by the first measure.
    """

    folder: str
    method: str
    base: str
    train: SourceRecord
    test: SourceRecord
    sets: list[RegimeSet]
    recipe: Json
    seeds: list[int]
    measures: list[str]
    rows: list[RegimeRow]
    alignment: list[Alignment]
    points: list[RegimePoint]


def gap(interpolation: float, extrapolation: float) -> float | None:
    """Return (extrapolation − interpolation) / interpolation, negative for a loss.

    It is None if interpolation is 0.

    Source: Zhan et al., 2022, Tables 6 to 9.
    """
    if interpolation == 0:
        return None
    return (extrapolation - interpolation) / interpolation


def pooled_score(models: Iterable[Mapping[str, float]]) -> tuple[float, int]:
    """Return the mean over queries, and their number.

    A query that several models answered counts once, with its mean: in ReSTTest's interpolation, by
    the models of all other buckets.

    Args:
        models: for each model, query id to score.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    scores: dict[str, list[float]] = {}
    for model_scores in models:
        for query, score in model_scores.items():
            scores.setdefault(query, []).append(score)
    means = [sum(values) / len(values) for values in scores.values()]
    return sum(means) / len(means), len(means)


def regime_points(cells: CellsByModel, measures: Sequence[str]) -> list[RegimePoint]:
    """Return one point for a group, model and seed: scores of both regimes, and those outside.

    Those outside are of the models that are evaluated in the regime: of one in ReSTrain, and the
    mean over the buckets of ReSTTest.
    """
    points = []
    for (group, model, seed), model_cells in cells.items():
        point = RegimePoint(
            group=group,
            model=model,
            seed=seed,
            measures={},
            ood={},
            queries={},
        )
        for regime in REGIMES:
            _add_regime(point, regime, model_cells, measures)
        points.append(point)
    return points


def _add_regime(
    point: RegimePoint,
    regime: str,
    cells: Sequence[Cell],
    measures: Sequence[str],
) -> None:
    """Add the scores of a regime to a point."""
    evaluated = [cell for cell in cells if regime in cell.scores]
    for measure in measures:
        score, queries = pooled_score([cell.scores[regime][measure] for cell in evaluated])
        point.measures.setdefault(measure, {})[regime] = score
        point.queries[regime] = queries
    for name in evaluated[0].ood:
        outside = point.ood.setdefault(name, {})
        for measure in measures:
            mean = statistics.fmean(cell.ood[name][measure] for cell in evaluated)
            outside.setdefault(measure, {})[regime] = mean


def regime_rows(points: Sequence[RegimePoint]) -> list[RegimeRow]:
    """Return one row for a group and model: means over seeds, and the gaps."""
    by_model: dict[tuple[str, str], list[RegimePoint]] = {}
    for point in points:
        by_model.setdefault((point.group, point.model), []).append(point)
    rows = []
    for (group, model), seed_points in by_model.items():
        first = seed_points[0]
        rows.append(
            RegimeRow(
                group=group,
                model=model,
                seeds=[point.seed for point in seed_points],
                queries=first.queries,
                measures={name: _over_seeds(seed_points, name) for name in first.measures},
            )
        )
    return rows


def _over_seeds(points: Sequence[RegimePoint], measure: str) -> RegimeScores:
    near = [point.measures[measure]["interpolation"] for point in points]
    far = [point.measures[measure]["extrapolation"] for point in points]
    gaps = [gap(near_score, far_score) for near_score, far_score in zip(near, far, strict=True)]
    known = [value for value in gaps if value is not None]
    interpolation = statistics.fmean(near)
    extrapolation = statistics.fmean(far)
    return RegimeScores(
        interpolation=interpolation,
        extrapolation=extrapolation,
        gap=gap(interpolation, extrapolation),
        gap_sd=statistics.stdev(known) if len(known) > 1 else None,
        seeds=SeedScores(near, far, gaps),
    )


def alignment_rows(points: Sequence[RegimePoint], measure: str) -> list[Alignment]:
    """Correlate either regime with every collection outside, over all points.

    Source: Zhan et al., 2022, section 4.2 and Table 5.
    """
    names = dict.fromkeys(name for point in points for name in point.ood)
    rows = []
    for name in names:
        with_scores = [point for point in points if name in point.ood]
        for regime in REGIMES:
            inside = [point.measures[measure][regime] for point in with_scores]
            outside = [point.ood[name][measure][regime] for point in with_scores]
            spearman, spearman_p, kendall, kendall_p = correlate(
                np.array(inside), np.array(outside), stats.spearmanr
            )
            rows.append(
                Alignment(
                    models=len(with_scores),
                    spearman=spearman,
                    spearman_p=spearman_p,
                    kendall=kendall,
                    kendall_p=kendall_p,
                    collection=name,
                    measure=measure,
                    regime=regime,
                )
            )
    return rows


def evaluate_regimes(
    folder: str | Path,
    *,
    output: str | Path,
    architectures: Sequence[str] = (),
    models: NamedPaths = (),
    starts: NamedPaths = (),
    recipe: Recipe = Recipe(),
    options: RegimeOptions = RegimeOptions(),
) -> Regimes:
    """Train models on every resampled training set, or take given ones, and evaluate both regimes.

    Every model with its scores is a cell that is kept in ``output``. A run that was killed is
    resumed, and further architectures, models, seeds and collections are added to those that exist.
    Under ``torchrun`` all processes train each model, with the result of one process, and share the
    searches.

    Args:
        folder: output of ``resample restrain`` or ``resample resttest``.
        output: folder for cells and models.
        architectures: names, see
            :func:`~beir_cocodr.resampling.regimes.model_rows.chosen_rows`.
        models: given models as NAME=PATH or a mapping, see
            :func:`~beir_cocodr.resampling.regimes.model_rows.given_row`.
        starts: further starts as NAME=PATH or a mapping, which give rows ARCHITECTURE@NAME (the
            paper's Table 9 in one run).
        recipe: of training and search.
        options: seeds, measures, and collections outside the distribution.

    Raises:
        InputError: The resampled sets, models, options or output must be corrected.

    Source: Zhan et al., 2022, sections 4 and 5.
    """
    folder = Path(folder)
    output = files.output_path(output)
    check_device(recipe.device)
    join_processes(recipe.device)
    other_starts = dict(named_paths("--other-start", starts))

    def make_rows() -> list[ModelRow]:
        rows = chosen_rows(
            names=architectures,
            recipe=recipe,
            seeds=options.seeds,
            output=output,
            starts=other_starts,
        )
        for name, path in named_paths("--model", models):
            rows.append(given_row(name, path, options.seeds))
        return rows

    def plan() -> _Plan:
        _check(make_rows())
        return _Plan.of(folder, options)

    # The first process checks, and converts the corpora that all processes map afterwards.
    planned = on_main(plan)
    cells = Cells(
        output=output,
        recipe=recipe,
        measures=options.measures,
        policy=identical_ids(planned.manifest.test.dataset),
        ood=_outside(options),
        progress=options.progress,
    )

    def begin() -> None:
        stack.enter_context(files.sole_writer(files.output_folder(output, utf8=True)))
        settings = _settings(planned.manifest.content_sha256, recipe, planned.measures)
        _check_resumable(output, settings, other_starts)

    def kept() -> str:
        count = len(list(output.glob("cells/**/*.json")))
        return f"{count} models are evaluated and kept"

    with naming_full_disk(output, kept), ExitStack() as stack:
        on_main(begin)
        rows = make_rows()
        labels = [task.label for tasks in cell_tasks(rows, planned.units) for task in tasks]
        with steps(dict.fromkeys(labels)):
            evaluated = cells.evaluate(rows, planned.units, options.keep_models)
    points = regime_points(evaluated, planned.measures)
    return planned.report(folder, recipe, options, points)


@dataclass(frozen=True)
class _Plan:
    """The subjects of an evaluation and its measures."""

    manifest: Manifest
    units: list[TrainingUnit]
    measures: list[str]

    @classmethod
    def of(cls, folder: Path, options: RegimeOptions) -> "_Plan":
        """Read and check an output of ``resample``, and check the options."""
        manifest = read_manifest(folder)
        units = training_units(folder, manifest)
        measures = [str(measure) for measure in parse_measures(options.measures)]
        check_seeds(options.seeds)
        _outside(options)
        return cls(manifest, units, measures)

    def report(
        self,
        folder: Path,
        recipe: Recipe,
        options: RegimeOptions,
        points: list[RegimePoint],
    ) -> Regimes:
        """Return the record of an evaluation."""
        return Regimes(
            folder=str(folder),
            method=self.manifest.method,
            base=self.manifest.base,
            train=self.manifest.train,
            test=self.manifest.test,
            sets=[RegimeSet(unit.name, unit.group, list(unit.tests)) for unit in self.units],
            recipe=recipe.describe(),
            seeds=list(options.seeds),
            measures=self.measures,
            rows=regime_rows(points),
            alignment=alignment_rows(points, self.measures[0]),
            points=points,
            versions=versions(),
        )


def _outside(options: RegimeOptions) -> dict[str, Collection]:
    """Return the collections outside the distribution, by name."""
    if not options.ood:
        return {}
    collections = load_collections(options.ood, "test", kind="ood")
    return {collection.name: collection for collection in collections}


def _check(rows: Sequence[ModelRow]) -> None:
    if not rows:
        raise InputError("nothing to evaluate: name an --architecture, or a --model NAME=PATH")
    names = [row.name for row in rows]
    for row in rows:
        if names.count(row.name) > 1:
            raise InputError(
                f"two models are called {row.name!r}; give every --model a name of its own"
            )
        if row.path is not None and SET not in row.path:
            log.warning(
                "%s is one model in both regimes, as its path has no %s: no set trains it",
                row.name,
                SET,
            )


def _check_resumable(output: Path, settings: Json, starts: Mapping[str, str]) -> None:
    """Check that the cells in an output are comparable, and record what they depend on.

    Args:
        output: folder of the evaluation.
        settings: all that cells depend on, except for further starts, which may be added.
        starts: name to path of further starts.

    Raises:
        InputError: The output was begun with other settings, or holds something else.
    """
    other_starts: Json = {}
    for name, path in starts.items():
        other_starts[name] = [path, files.content_sha256(model_source(path))]
    file = output / _SETTINGS_FILE
    has_content = any((output / name).is_dir() for name in ("cells", "models"))
    if file.is_file() and has_content:
        with explained(f"{file} is damaged", "choose another --output", ValueError, TypeError):
            before = dict(files.parse_json(file.read_text()))
        starts_before = before.get("other_starts", {})
        then = {name: before.get(name) for name in settings}
        now = dict(settings)
        for name in other_starts.keys() & starts_before.keys():
            then[f"start {name}"] = starts_before[name]
            now[f"start {name}"] = other_starts[name]
        check_same_run(output, then, now)
        other_starts = starts_before | other_starts
    elif not file.is_file() and any(not files.is_incidental(path) for path in output.iterdir()):
        raise InputError(
            f"{output} is not empty and contains no evaluation of regimes; choose another --output"
        )
    recorded = settings | {"other_starts": other_starts}
    files.write_text(file, json.dumps(recorded, indent=2) + "\n")


def _settings(manifest_sha256: str, recipe: Recipe, measures: list[str]) -> Json:
    """Return all that the cells of an output depend on, except for further starts."""
    return {
        "manifest_sha256": manifest_sha256,
        "measures": measures,
        **recipe.describe(),
        "start_sha256": files.content_sha256(model_source(recipe.start)),
        "teacher_sha256": files.content_sha256(recipe.teacher),
    }
