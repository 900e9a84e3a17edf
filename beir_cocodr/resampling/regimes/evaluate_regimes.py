"""Interpolation, extrapolation and gap of a family of models, over an output of `resample`."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, parse_measures
from beir_cocodr.evaluation.protocol import identical_ids
from beir_cocodr.files import output_folder, write_text
from beir_cocodr.report.will_draw import will_draw
from beir_cocodr.resampling.manifest import MANIFEST_FILE, read_manifest
from beir_cocodr.resampling.regimes.alignment_picture import alignment_picture
from beir_cocodr.resampling.regimes.architectures import find_architectures
from beir_cocodr.resampling.regimes.candidate import (
    SET,
    TEACHER,
    Candidate,
    given_by_options,
    model_folder,
    trained,
)
from beir_cocodr.resampling.regimes.cells import Cells
from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.resampling.regimes.regime_rows import alignment_rows, regime_points, regime_rows
from beir_cocodr.resampling.regimes.training_units import TrainingUnit, training_units
from beir_cocodr.versions import versions

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
    _claim(output_folder(output), folder, recipe, names)
    policy = identical_ids(manifest["test"]["dataset"])
    cells = Cells(output, recipe, measures, policy, ood, progress)
    points = regime_points(_judge(cells, candidates, units, keep_models), names)
    report = {
        "folder": str(folder),
        **{name: manifest[name] for name in ("method", "base", "train", "test")},
        "sets": [{"name": unit.name, "group": unit.group, "regimes": list(unit.tests)} for unit in units],
        "recipe": recipe.told(),
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


def _claim(output: Path, folder: Path, recipe: Recipe, measures: list[str]) -> None:
    """Cells in one output are comparable: they have one recipe, one set of measures, the same sets."""
    manifest = hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()
    now = {"manifest_sha256": manifest, "measures": measures, **recipe.told()}
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
