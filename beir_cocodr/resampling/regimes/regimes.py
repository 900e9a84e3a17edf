"""Interpolation, extrapolation and gap of a family of models, over an output of `resample`."""

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
from beir_cocodr.distributed import join_processes, on_main
from beir_cocodr.errors import InputError, check_seeds, explained, naming_full_disk
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, correlate, parse_measures
from beir_cocodr.evaluation.runs import identical_ids
from beir_cocodr.models.loading import model_source
from beir_cocodr.models.spec import check_device
from beir_cocodr.progress import steps
from beir_cocodr.records import Json, Report, versions
from beir_cocodr.resampling.manifest import MANIFEST_FILE, Manifest, SourceRecord, read_manifest
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.architectures import (
    SET,
    ModelRow,
    all_trained,
    find_architectures,
    given,
    named_path,
)
from beir_cocodr.resampling.regimes.cells import Cells, CellsByModel, label
from beir_cocodr.resampling.regimes.host_training import REGIMES, TrainingUnit, training_units
from beir_cocodr.same_run import check_same_run

log = logging.getLogger(__name__)

RESULTS_FILE, PICTURE_FILE, _SETTINGS_FILE = "regimes.json", "alignment.png", "settings.json"


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
    """How a regime orders models beside how a collection outside the distribution does: Spearman's
    rho and Kendall's tau-b with two-sided p-values, None where nothing can be correlated.
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
        folder: output of `resample`; ``method``, ``base``, ``train`` and ``test`` are its
            manifest's.
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
    """(extrapolation − interpolation) / interpolation, negative for a loss; None where
    interpolation is 0.

    Source: Zhan et al., 2022, Tables 6 to 9.
    """
    return None if interpolation == 0 else (extrapolation - interpolation) / interpolation


def pooled_score(models: Iterable[Mapping[str, float]]) -> tuple[float, int]:
    """The mean over queries, and their number; a query that several models answered counts once,
    with its mean: in ReSTTest's interpolation by the models of all other buckets. ``models``: for
    each, query id to score.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    scores: dict[str, list[float]] = {}
    for query, score in (pair for found in models for pair in found.items()):
        scores.setdefault(query, []).append(score)
    return sum(sum(found) / len(found) for found in scores.values()) / len(scores), len(scores)


def regime_points(cells: CellsByModel, measures: Sequence[str]) -> list[RegimePoint]:
    """One point for a group, model and seed: both regimes' scores, and those outside the
    distribution, of the models that are evaluated in the regime: one in ReSTrain, their mean over
    ReSTTest's buckets.
    """
    points = []
    for (group, model, seed), found in cells.items():
        point = RegimePoint(group, model, seed, {}, {}, {})
        for regime in REGIMES:
            own = [cell for cell in found if regime in cell.scores]
            for measure in measures:
                score, queries = pooled_score([cell.scores[regime][measure] for cell in own])
                point.measures.setdefault(measure, {})[regime] = score
                point.queries[regime] = queries
            for name in own[0].ood:
                for measure in measures:
                    outside = statistics.fmean(cell.ood[name][measure] for cell in own)
                    point.ood.setdefault(name, {}).setdefault(measure, {})[regime] = outside
        points.append(point)
    return points


def regime_rows(points: Sequence[RegimePoint]) -> list[RegimeRow]:
    """One row for a group and model: means over seeds, the gap between them, and the gap of every
    seed.
    """
    found: dict[tuple[str, str], list[RegimePoint]] = {}
    for point in points:
        found.setdefault((point.group, point.model), []).append(point)
    rows = []
    for (group, model), seeds in found.items():
        measures = {measure: _over_seeds(seeds, measure) for measure in seeds[0].measures}
        rows.append(
            RegimeRow(group, model, [point.seed for point in seeds], seeds[0].queries, measures)
        )
    return rows


def _over_seeds(seeds: Sequence[RegimePoint], measure: str) -> RegimeScores:
    near, far = ([point.measures[measure][regime] for point in seeds] for regime in REGIMES)
    means = statistics.fmean(near), statistics.fmean(far)
    gaps = [gap(*pair) for pair in zip(near, far, strict=True)]
    known = [value for value in gaps if value is not None]
    spread = statistics.stdev(known) if len(known) > 1 else None
    return RegimeScores(*means, gap(*means), spread, SeedScores(near, far, gaps))


def alignment_rows(points: Sequence[RegimePoint], measure: str) -> list[Alignment]:
    """Correlations of either regime with every collection outside, over all points.

    Source: Zhan et al., 2022, section 4.2 and Table 5.
    """
    rows = []
    for name in dict.fromkeys(name for point in points for name in point.ood):
        own = [point for point in points if name in point.ood]
        for regime in REGIMES:
            here = np.array([point.measures[measure][regime] for point in own])
            there = np.array([point.ood[name][measure][regime] for point in own])
            rows.append(
                Alignment(len(own), *correlate(here, there, stats.spearmanr), name, measure, regime)
            )
    return rows


def evaluate_regimes(
    folder: Path,
    output: Path,
    architectures: Sequence[str] = (),
    models: Sequence[str] = (),
    recipe: Recipe | None = None,
    seeds: Sequence[int] = (42,),
    ood: Sequence[str] = (),
    measures: str = DEFAULT_MEASURES,
    keep_models: bool = True,
    progress: bool = False,
    starts: Sequence[str] = (),
) -> Regimes:
    """Train models on every resampled training set, or take given ones, and evaluate them in both
    regimes. An InputError names what has to be corrected.

    Every model with its scores is a cell that is kept in ``output``: a run that was killed is
    resumed where it was, and further architectures, models, seeds and collections are added to what
    is there. Under ``torchrun`` all processes train each model, which is that of one process, and
    share the searches.

    Args:
        folder: output of `resample restrain` or `resample resttest`.
        output: folder for cells and models.
        architectures, models: names, see `find_architectures`, and NAME=PATH, see `given`.
        recipe: of training and search.
        seeds: each trains every architecture once.
        ood: collections outside the distribution, evaluated by their split "test", for the
            alignment.
        measures: names that ir-measures knows; the first is that of the alignment.
        keep_models: keep trained models, or only their scores.
        progress: show bars on stderr.
        starts: NAME=PATH of further starts, which give rows ARCHITECTURE@NAME (the paper's Table 9
            in one run).

    Source: Zhan et al., 2022, sections 4 and 5.
    """
    recipe = recipe or Recipe()
    check_device(recipe.device)
    join_processes(recipe.device)
    others: dict[str, str] = {}

    def find() -> list[ModelRow]:
        kinds = find_architectures(architectures)
        others.update(named_path("--other-start", start) for start in starts)
        return [
            *all_trained(kinds, recipe, seeds, output, others),
            *(given(found, seeds) for found in models),
        ]

    def check() -> tuple[Manifest, list[TrainingUnit], list[str]]:
        manifest = read_manifest(folder)
        units, names = (
            training_units(folder, manifest),
            [str(measure) for measure in parse_measures(measures)],
        )
        check_seeds(seeds)
        _check(find(), ood)
        return manifest, units, names

    manifest, units, names = on_main(check)
    candidates = find()
    cells = Cells(output, recipe, measures, identical_ids(manifest.test.dataset), ood, progress)
    kept = naming_full_disk(
        output, lambda: f"{len([*output.glob('cells/**/*.json')])} models are evaluated and kept"
    )

    def begin() -> None:
        stack.enter_context(files.sole_writer(files.output_folder(output, utf8=True)))
        _check_resumable(output, folder, recipe, names, others)

    with kept, ExitStack() as stack:
        on_main(begin)
        labels = [
            label(one, unit, seed) for unit in units for one in candidates for seed in one.seeds
        ]
        with steps(dict.fromkeys(labels)):
            points = regime_points(cells.evaluate(candidates, units, keep_models), names)
    return Regimes(
        folder=str(folder),
        method=manifest.method,
        base=manifest.base,
        train=manifest.train,
        test=manifest.test,
        sets=[RegimeSet(unit.name, unit.group, list(unit.tests)) for unit in units],
        recipe=recipe.describe(),
        seeds=list(seeds),
        measures=names,
        rows=regime_rows(points),
        alignment=alignment_rows(points, names[0]),
        points=points,
        versions=versions(),
    )


def _check(candidates: Sequence[ModelRow], ood: Sequence[str]) -> None:
    if not candidates:
        raise InputError("nothing to evaluate: name an --architecture, or a --model NAME=PATH")
    names = [candidate.name for candidate in candidates]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"two models are called {name!r}; give every --model a name of its own"
            )
    if len(set(ood)) < len(ood):
        raise InputError(f"a collection is named twice in --ood: {', '.join(ood)}")
    for candidate in candidates:
        if candidate.where is not None and SET not in candidate.where:
            log.warning(
                "%s is one model in both regimes, as its path has no %s: no set trains it",
                candidate.name,
                SET,
            )


def _check_resumable(
    output: Path, folder: Path, recipe: Recipe, measures: list[str], starts: Mapping[str, str]
) -> None:
    """Cells in one output are comparable: they have one recipe, one set of measures, the same sets
    and starts.
    """
    sets = files.file_sha256(folder / MANIFEST_FILE)
    now: Json = {"manifest_sha256": sets, "measures": measures, **recipe.describe()}
    contents = {"start": model_source(recipe.start), "teacher": recipe.teacher}
    now |= {f"{name}_sha256": files.content_sha256(path) for name, path in contents.items()}
    others = {
        name: [path, files.content_sha256(model_source(path))] for name, path in starts.items()
    }
    if (file := output / _SETTINGS_FILE).is_file() and any(
        (output / name).is_dir() for name in ("cells", "models")
    ):
        with explained(f"{file} is damaged", "choose another --output", ValueError, TypeError):
            then = dict(files.parse_json(file.read_text()))
        starts_before = then.get("other_starts", {})
        shared = [name for name in others if name in starts_before]  # later ones may be added
        check_same_run(
            output,
            {name: then.get(name) for name in now}
            | {f"start {name}": starts_before[name] for name in shared},
            now | {f"start {name}": others[name] for name in shared},
        )
        others = starts_before | others
    elif not file.is_file() and any(not files.is_incidental(path) for path in output.iterdir()):
        raise InputError(
            f"{output} is not empty and holds no evaluation of regimes; choose another --output"
        )
    files.write_text(file, json.dumps(now | {"other_starts": others}, indent=2) + "\n")
