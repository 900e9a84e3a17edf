"""The rows of the table: models that an architecture trains, and models that are given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from beir_cocodr.errors import InputError
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.architectures import (
    Architecture,
    find_architectures,
    load_architecture,
)
from beir_cocodr.resampling.regimes.units import TrainingUnit

#: Placeholders in the path of given models.
SET = "{set}"
SEED = "{seed}"

#: Stands between an architecture and its start in the names of rows.
START_MARK = "@"

#: The architecture that can be the teacher of another on the same set.
TEACHER = "cross-encoder"

#: Paths by name: one NAME=PATH or several, or a mapping.
NamedPaths: TypeAlias = str | Sequence[str] | Mapping[str, str | Path]


@dataclass(frozen=True)
class ModelRow:
    """One row of the table.

    Attributes:
        name: of the row.
        seeds: of its models.
        model: trains or finds the model of a set and a seed.
        path: of given models, with placeholders; None for trained ones.
    """

    name: str
    seeds: tuple[int, ...]
    model: Callable[[TrainingUnit, int], str]
    path: str | None = None


def trained_row(
    architecture: Architecture,
    recipe: Recipe,
    seeds: Sequence[int],
    output: Path,
    start: str = "",
) -> ModelRow:
    """Return the row of an architecture, whose models go to ``output/models/SET/NAME-SEED``.

    Args:
        architecture: what is trained; one without chance has only the first seed.
        recipe: of the training.
        seeds: of its models.
        output: folder of the evaluation.
        start: the name of another start than the recipe's own, which follows that of the
            architecture in the row's name.
    """
    name = architecture.name
    if start:
        name = f"{architecture.name}{START_MARK}{start}"
    shared = output / "shared" / start

    def model(unit: TrainingUnit, seed: int) -> str:
        own_recipe = recipe
        if architecture.name == "dense-distilled" and recipe.teacher == TEACHER:
            teacher = trained_row(
                architecture=load_architecture(TEACHER),
                recipe=recipe,
                seeds=[seed],
                output=output,
                start=start,
            )
            own_recipe = replace(recipe, teacher=teacher.model(unit, seed))
        folder = model_folder(output, unit, name, seed)
        return str(
            architecture.train(
                str(unit.train),
                folder,
                own_recipe,
                seed,
                shared,
            )
        )

    used_seeds = seeds if architecture.seeded else seeds[:1]
    return ModelRow(name, tuple(used_seeds), model)


def trained_rows(
    architectures: Sequence[Architecture],
    recipe: Recipe,
    seeds: Sequence[int],
    output: Path,
    starts: Mapping[str, str],
) -> list[ModelRow]:
    """Return the rows of architectures from the recipe's start, and from others.

    Args:
        architectures: what is trained.
        recipe: of the training.
        seeds: of the models.
        output: folder of the evaluation.
        starts: name to path of further starts, for the architectures that have one.
    """
    rows = [trained_row(one, recipe, seeds, output) for one in architectures]
    for name, path in starts.items():
        other = replace(recipe, start=path)
        for one in architectures:
            if one.seeded:
                rows.append(
                    trained_row(
                        architecture=one,
                        recipe=other,
                        seeds=seeds,
                        output=output,
                        start=name,
                    )
                )
    return rows


def chosen_rows(
    names: Sequence[str],
    recipe: Recipe,
    seeds: Sequence[int],
    output: Path,
    starts: Mapping[str, str],
) -> list[ModelRow]:
    """Return the rows of architectures by name, where ARCHITECTURE@START chooses one start.

    A start that no name chooses starts all architectures that are named alone.

    Args:
        names: names of :data:`ARCHITECTURES`, or ARCHITECTURE@START.
        recipe: of the training.
        seeds: of the models.
        output: folder of the evaluation.
        starts: name to path of further starts.

    Raises:
        InputError: An architecture or a start is unknown, or a name occurs twice.
    """
    alone = [name for name in names if START_MARK not in name]
    pairs = [name.split(START_MARK, 1) for name in names if START_MARK in name]
    chosen_starts = {start for _, start in pairs}
    free_starts = {name: path for name, path in starts.items() if name not in chosen_starts}
    rows = trained_rows(
        architectures=find_architectures(alone),
        recipe=recipe,
        seeds=seeds,
        output=output,
        starts=free_starts,
    )
    for name, start in pairs:
        if start not in starts:
            raise InputError(
                f"--architecture {name}{START_MARK}{start} names no start; add --other-start "
                f"{start}=PATH"
            )
        if names.count(f"{name}{START_MARK}{start}") > 1:
            raise InputError(f"architecture {name}{START_MARK}{start} is named twice")
        [architecture] = find_architectures([name])
        own_recipe = replace(recipe, start=starts[start])
        rows.append(trained_row(architecture, own_recipe, seeds, output, start))
    return rows


def named_paths(flag: str, values: NamedPaths) -> list[tuple[str, str]]:
    """Return names and paths.

    Args:
        flag: how messages call the values.
        values: NAME=PATH, or a mapping.

    Raises:
        InputError: A value is not NAME=PATH.
    """
    if isinstance(values, Mapping):
        return [(name, str(path)) for name, path in values.items()]
    pairs = []
    for text in [values] if isinstance(values, str) else values:
        name, _, path = text.partition("=")
        if not name or not path or "/" in name:
            raise InputError(
                f"{flag} {text!r}: give NAME=PATH; in --model, PATH may hold {SET}, {SEED}"
            )
        pairs.append((name, path))
    return pairs


def given_row(name: str, path: str, seeds: Sequence[int]) -> ModelRow:
    """Return the row of models that exist already.

    Args:
        name: of the row.
        path: what :func:`~beir_cocodr.resampling.regimes.rankers.load_ranker` takes. In it,
            ``{set}`` is replaced by the name of a training set (``interpolation``,
            ``size-45k/extrapolation``, ``bucket-1``), and ``{seed}`` by a seed. Without ``{set}``,
            one model is evaluated in both regimes.
        seeds: used if the path has ``{seed}``.
    """

    def model(unit: TrainingUnit, seed: int) -> str:
        return path.replace(SET, unit.name).replace(SEED, str(seed))

    used_seeds = seeds
    if SEED not in path:
        used_seeds = seeds[:1]
    return ModelRow(name, tuple(used_seeds), model, path)


def model_folder(
    output: Path,
    unit: TrainingUnit,
    name: str,
    seed: int,
) -> Path:
    """Return the folder of a trained model."""
    return output / "models" / unit.name / f"{name}-{seed}"
