"""Interpolation, extrapolation and gap of a family of models, over an output of `resample`.

Cells of the evaluation: one model of one training set, judged once and kept.

Rows of the table and points of the scatter, from cells.

What is lost from interpolation to extrapolation.

Whether a regime orders models as collections outside the distribution do.

The score of a regime from the scores of all models that were judged in it.
"""

from __future__ import annotations

import json
import logging
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, depth, parse_measures, score_queries
from beir_cocodr.evaluation.runs import identical_ids
from beir_cocodr.io import file_sha256, output_folder, write_text
from beir_cocodr.records import versions
from beir_cocodr.report.pictures import alignment_picture, will_draw
from beir_cocodr.resampling.manifest import MANIFEST_FILE, read_manifest
from beir_cocodr.resampling.regimes.architectures import (
    SET,
    TEACHER,
    Candidate,
    find_architectures,
    given_by_options,
    model_folder,
    trained,
)
from beir_cocodr.resampling.regimes.host_training import REGIMES, Recipe, TrainingUnit, training_units
from beir_cocodr.resampling.regimes.retrievers import load_retriever

#: Measure to query id to score.
Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Cells:
    """Judges models and keeps what it finds in ``output/cells/SET/NAME-SEED.json``.

    Attributes:
        output: folder of the evaluation.
        recipe: how models are trained and searched.
        measures: names that ir-measures knows.
        policy: for documents whose id is the query's, of the resampled test set.
        ood: further collections, whose split "test" every model is judged on.
        progress: show bars on stderr.
    """

    output: Path
    recipe: Recipe
    measures: str
    policy: str
    ood: Sequence[str] = ()
    progress: bool = False

    def judge(self, candidate: Candidate, unit: TrainingUnit, seed: int) -> dict[str, Any]:
        """The cell, made or completed where it is not there.

        Returns:
            ``scores``: regime to measure to query id to score; ``ood``: collection to measure to mean.

        Raises:
            InputError: the model cannot be trained or found, or the cell was made with another one.
        """
        file = self.output / "cells" / unit.name / f"{candidate.name}-{seed}.json"
        cell: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"ood": {}}
        if cell.get("given", candidate.where) != candidate.where:
            raise InputError(
                f"{file} was made with {cell['given'] or 'a trained model'}, not {candidate.where}; give the "
                "model another name, or choose another --output"
            )
        missing = [name for name in self.ood if name not in cell["ood"]]
        if "scores" in cell and not missing:
            return cell
        log.info("%s, seed %d, trained on %s", candidate.name, seed, unit.name)
        start = time.perf_counter()
        model = candidate.model(unit, seed)
        trained = time.perf_counter()
        if "scores" not in cell:
            tests = {regime: load_collection(folder, "test") for regime, folder in unit.tests.items()}
            scores, retrieval = self._scores(model, tests, self.policy)
            cell |= {
                "model": candidate.name,
                "given": candidate.where,
                "seed": seed,
                "set": unit.name,
                "scores": scores,
                "retrieval": retrieval,
                "training_seconds": round(trained - start, 1),
                "search_seconds": round(time.perf_counter() - trained, 1),
            }
            _write(file, cell)
        for name in missing:
            found, _ = self._scores(model, {"": load_collection(name, "test")}, identical_ids(name))
            cell["ood"][name] = {
                measure: sum(values.values()) / len(values) for measure, values in found[""].items()
            }
            _write(file, cell)
        return cell

    def _scores(
        self, model: str, tests: Mapping[str, Collection], policy: str
    ) -> tuple[dict[str, Scores], dict[str, Any]]:
        """Scores of test sets over one corpus, searched at once, and what the retriever says of itself."""
        wanted = parse_measures(self.measures)
        top_k, drop = depth(wanted), policy == "drop"
        documents = next(iter(tests.values())).documents
        queries = {query: text for found in tests.values() for query, text in found.queries.items()}
        with tempfile.TemporaryDirectory(dir=self.output, prefix=".embeddings-") as work:
            retriever = load_retriever(model, documents, Path(work), self.recipe, self.progress)
            results = retriever.search(queries, top_k + drop).results(documents, drop, top_k)
            retrieval = retriever.describe()
        scores = {}
        for name, found in tests.items():
            values = score_queries(wanted, found.qrels, {q: results[q] for q in found.qrels})
            scores[name] = {
                measure: dict(zip(found.qrels, per_query.tolist(), strict=True))
                for measure, per_query in values.items()
            }
        return scores, retrieval


def _write(file: Path, cell: dict[str, Any]) -> None:
    write_text(file, json.dumps(cell, indent=1, ensure_ascii=False) + "\n")


def gap(interpolation: float, extrapolation: float) -> float | None:
    """(extrapolation − interpolation) / interpolation, negative for a loss; None where interpolation is 0.

    Source: Zhan et al., 2022, Tables 6 to 9.
    """
    return None if interpolation == 0 else (extrapolation - interpolation) / interpolation


# Two points always lie on a line.
_FEWEST = 3


def ood_alignment(regime: Sequence[float], outside: Sequence[float]) -> dict[str, Any]:
    """Spearman's ρ and Kendall's τ-b, with two-sided p-values, over a set of models.

    Args:
        regime: (m,) scores of the models in a regime.
        outside: (m,) their scores on another collection.

    Returns:
        ``models``, ``spearman``, ``spearman_p``, ``kendall``, ``kendall_p``; None where fewer than three
        models or constant scores leave nothing to correlate.

    Source: Zhan et al., 2022, section 4.2 and Table 5.
    """
    if len(regime) != len(outside):
        raise ValueError(f"{len(regime)} scores in the regime and {len(outside)} outside")
    found: dict[str, Any] = {"models": len(regime)}
    found |= dict.fromkeys(("spearman", "spearman_p", "kendall", "kendall_p"))
    if len(regime) >= _FEWEST and np.ptp(regime) > 0 and np.ptp(outside) > 0:
        for name, test in (("spearman", stats.spearmanr), ("kendall", stats.kendalltau)):
            result = test(regime, outside)
            found[name], found[f"{name}_p"] = float(result.statistic), float(result.pvalue)
    return found


def pooled_score(judged: Iterable[Mapping[str, float]]) -> tuple[float, int]:
    """The mean over queries; a query that several models judged counts once, with its mean over them.

    In ReSTTest's extrapolation every query is judged once, in its interpolation by the models of all other
    buckets. In ReSTrain there is one model a regime.

    Args:
        judged: for each model, query id to score.

    Returns:
        The score and the number of queries.

    Source: Zhan et al., 2022, section 4.1.3.
    """
    scores: dict[str, list[float]] = {}
    for found in judged:
        for query, score in found.items():
            scores.setdefault(query, []).append(score)
    if not scores:
        raise ValueError("no query was judged")
    return sum(sum(found) / len(found) for found in scores.values()) / len(scores), len(scores)


#: (group, model, seed) to the cells of all sets of the group.
Judged = Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]


def regime_points(judged: Judged, measures: Sequence[str]) -> list[dict[str, Any]]:
    """One point for a group, model and seed: both regimes' scores, and those outside the distribution.

    A regime's scores outside are those of the models that are judged in it. ReSTrain has another model for
    each regime; over ReSTTest's models, which judge in both, it is the mean.
    """
    points = []
    for (group, model, seed), cells in judged.items():
        point: dict[str, Any] = {"group": group, "model": model, "seed": seed, "measures": {}, "ood": {}}
        for regime in REGIMES:
            own = [cell for cell in cells if regime in cell["scores"]]
            for measure in measures:
                score, queries = pooled_score([cell["scores"][regime][measure] for cell in own])
                point["measures"].setdefault(measure, {})[regime] = score
                point.setdefault("queries", {})[regime] = queries
            for name in own[0]["ood"]:
                for measure in measures:
                    outside = statistics.fmean(cell["ood"][name][measure] for cell in own)
                    point["ood"].setdefault(name, {}).setdefault(measure, {})[regime] = outside
        points.append(point)
    return points


def regime_rows(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for a group and model: means over seeds, the gap between them, and the gap of every seed."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for point in points:
        found.setdefault((point["group"], point["model"]), []).append(point)
    return [_row(group, model, seeds) for (group, model), seeds in found.items()]


def alignment_rows(points: Sequence[Mapping[str, Any]], measure: str) -> list[dict[str, Any]]:
    """Correlations of either regime with every collection outside, over all points."""
    names = dict.fromkeys(name for point in points for name in point["ood"])
    return [
        {
            "collection": name,
            "measure": measure,
            "regime": regime,
            **ood_alignment(
                [point["measures"][measure][regime] for point in points if name in point["ood"]],
                [point["ood"][name][measure][regime] for point in points if name in point["ood"]],
            ),
        }
        for name in names
        for regime in REGIMES
    ]


def _row(group: str, model: str, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    measures = {}
    for measure in seeds[0]["measures"]:
        scores = {regime: [point["measures"][measure][regime] for point in seeds] for regime in REGIMES}
        means = {regime: statistics.fmean(values) for regime, values in scores.items()}
        gaps = [gap(*pair) for pair in zip(scores[REGIMES[0]], scores[REGIMES[1]], strict=True)]
        known = [value for value in gaps if value is not None]
        measures[measure] = {
            **means,
            "gap": gap(means[REGIMES[0]], means[REGIMES[1]]),
            "gap_sd": statistics.stdev(known) if len(known) > 1 else None,
            "seeds": {**scores, "gap": gaps},
        }
    return {
        "group": group,
        "model": model,
        "seeds": [point["seed"] for point in seeds],
        "queries": seeds[0]["queries"],
        "measures": measures,
    }


log = logging.getLogger(__name__)

RESULTS_FILE, PICTURE_FILE, _SETTINGS_FILE = "regimes.json", "alignment.png", "settings.json"


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
    picture: bool | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Train models on every resampled training set, or take given ones, and judge them in both regimes.

    Every model and its judgement is a cell that is kept in ``output``: a run that was killed goes on where
    it was, and further architectures, models, seeds and collections are added to what is there.

    Args:
        folder: output of `resample restrain` or `resample resttest`.
        output: folder for cells, models, ``regimes.json`` and ``alignment.png``.
        architectures: names, see `find_architectures`.
        models: given ones as NAME=PATH, see `given`.
        recipe: of training and search.
        seeds: each trains every architecture once.
        ood: collections outside the distribution, judged by their split "test", for the alignment.
        measures: names that ir-measures knows; the first is that of the alignment.
        keep_models: keep trained models, or only their scores.
        picture: whether to draw the alignment; None draws where there is one, and matplotlib.
        progress: show bars on stderr.

    Returns:
        The content of regimes.json.

    Raises:
        InputError: what has to be corrected.

    Source: Zhan et al., 2022, sections 4 and 5.
    """
    recipe = recipe or Recipe()
    manifest = read_manifest(folder)
    units = training_units(folder, manifest)
    names = [str(measure) for measure in parse_measures(measures)]
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds {', '.join(map(str, seeds)) or 'none'}: give at least one, and each once")
    kinds = find_architectures(architectures)
    candidates = [trained(found, recipe, seeds, output) for found in kinds] + given_by_options(models, seeds)
    _check(candidates, ood)
    picture = will_draw(picture, bool(ood), "name collections outside the distribution with --ood")
    _lock_output(output_folder(output), folder, recipe, names)
    policy = identical_ids(manifest["test"]["dataset"])
    cells = Cells(output, recipe, measures, policy, ood, progress)
    points = regime_points(_judge(cells, candidates, units, keep_models), names)
    report = {
        "folder": str(folder),
        **{name: manifest[name] for name in ("method", "base", "train", "test")},
        "sets": [{"name": unit.name, "group": unit.group, "regimes": list(unit.tests)} for unit in units],
        "recipe": recipe.describe(),
        "seeds": list(seeds),
        "measures": names,
        "rows": regime_rows(points),
        "alignment": alignment_rows(points, names[0]),
        "points": points,
        "picture": PICTURE_FILE if picture else None,
        "versions": versions(),
    }
    if picture:
        title = f"{manifest['base']} ({manifest['method']})"
        alignment_picture(output / PICTURE_FILE, points, report["alignment"], title)
    write_text(output / RESULTS_FILE, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report


def _check(candidates: Sequence[Candidate], ood: Sequence[str]) -> None:
    if not candidates:
        raise InputError("nothing to evaluate: name an --architecture, or a --model NAME=PATH")
    names = [candidate.name for candidate in candidates]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two models are called {name!r}; give every --model a name of its own")
    if len(set(ood)) < len(ood):
        raise InputError(f"a collection is named twice in --ood: {', '.join(ood)}")
    for candidate in candidates:
        if candidate.where is not None and SET not in candidate.where:
            log.warning(
                "%s is one model in both regimes: it was not trained on the sets, as its path has no %s",
                candidate.name,
                SET,
            )


def _lock_output(output: Path, folder: Path, recipe: Recipe, measures: list[str]) -> None:
    """Cells in one output are comparable: they have one recipe, one set of measures, the same sets."""
    manifest = file_sha256(folder / MANIFEST_FILE)
    now = {"manifest_sha256": manifest, "measures": measures, **recipe.describe()}
    file = output / _SETTINGS_FILE
    begun = any((output / name).is_dir() for name in ("cells", "models"))
    if file.is_file() and begun:
        then = json.loads(file.read_text())
        if changed := [name for name, value in now.items() if then.get(name) != value]:
            raise InputError(
                f"{output} was begun with other {', '.join(changed)}; go on with the same ones, or choose "
                "another --output"
            )
    elif not file.is_file() and any(output.iterdir()):
        raise InputError(f"{output} is not empty and holds no evaluation of regimes; choose another --output")
    write_text(file, json.dumps(now, indent=2) + "\n")


def _judge(
    cells: Cells, candidates: Sequence[Candidate], units: Sequence[TrainingUnit], keep_models: bool
) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """(group, name, seed) to its cells."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for unit in units:
        for seed in dict.fromkeys(seed for candidate in candidates for seed in candidate.seeds):
            own = [candidate for candidate in candidates if seed in candidate.seeds]
            for candidate in own:
                cell = cells.judge(candidate, unit, seed)
                found.setdefault((unit.group, candidate.name, seed), []).append(cell)
            if not keep_models:
                # Only now, as one may have been another's teacher.
                for candidate in own:
                    if candidate.where is None:
                        shutil.rmtree(model_folder(cells.output, unit, candidate.name, seed), True)
                shutil.rmtree(model_folder(cells.output, unit, TEACHER, seed), True)
    if not keep_models:
        shutil.rmtree(cells.output / "shared", ignore_errors=True)
        _remove_empty(cells.output / "models")
    return found


def _remove_empty(folder: Path) -> None:
    """Remove a folder and those in it, as far as they hold no files."""
    for path in sorted([folder, *folder.rglob("*")], reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
