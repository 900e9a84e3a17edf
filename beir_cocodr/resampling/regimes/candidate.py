"""What is judged: an architecture that is trained on every set, or models that are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from beir_cocodr.errors import InputError
from beir_cocodr.resampling.regimes.architecture import Architecture
from beir_cocodr.resampling.regimes.architectures import find_architectures
from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.resampling.regimes.training_units import TrainingUnit

#: Placeholders in the path of given models.
SET, SEED = "{set}", "{seed}"
#: The architecture that can be the teacher of another on the same set.
TEACHER = "cross-encoder"


@dataclass(frozen=True)
class Candidate:
    """One row of the table.

    Attributes:
        name: of the row.
        seeds: of its models.
        model: trains or finds the model of a set and a seed.
        where: of what is given, its path; None for what is trained.
    """

    name: str
    seeds: tuple[int, ...]
    model: Callable[[TrainingUnit, int], str]
    where: str | None = None


def trained(architecture: Architecture, recipe: Recipe, seeds: Sequence[int], output: Path) -> Candidate:
    """An architecture; its models go to ``output/models/SET/NAME-SEED``.

    An architecture without anything random has one model, of the first seed.
    """

    def model(unit: TrainingUnit, seed: int) -> str:
        own = recipe
        if architecture.name == "dense-distilled" and recipe.teacher == TEACHER:
            [teacher] = find_architectures([TEACHER])
            own = replace(recipe, teacher=trained(teacher, recipe, [seed], output).model(unit, seed))
        folder = model_folder(output, unit, architecture.name, seed)
        shared = output / "shared"
        shared.mkdir(parents=True, exist_ok=True)
        return str(architecture.train(str(unit.train), folder, own, seed, shared))

    return Candidate(architecture.name, tuple(seeds if architecture.seeded else seeds[:1]), model)


def given(name: str, path: str, seeds: Sequence[int]) -> Candidate:
    """Models that are there already.

    Args:
        name: of the row.
        path: what `load_retriever` takes, in which ``{set}`` stands for the name of a training set
            (``interpolation``, ``size-45k/extrapolation``, ``bucket-1``), and ``{seed}`` for a seed. Without
            ``{set}`` one model is judged in both regimes.
        seeds: used where the path has ``{seed}``.
    """

    def model(unit: TrainingUnit, seed: int) -> str:
        return path.replace(SET, unit.name).replace(SEED, str(seed))

    return Candidate(name, tuple(seeds if SEED in path else seeds[:1]), model, path)


def given_by_options(options: Sequence[str], seeds: Sequence[int]) -> list[Candidate]:
    """Given models from NAME=PATH.

    Raises:
        InputError: an option that is not of this form.
    """
    found = []
    for option in options:
        name, equals, path = option.partition("=")
        if not (name and equals and path) or "/" in name:
            raise InputError(
                f"--model {option!r}: give NAME=PATH, where PATH may hold {SET} and {SEED}, as in "
                "mine=runs/{set}-{seed}"
            )
        found.append(given(name, path, seeds))
    return found


def model_folder(output: Path, unit: TrainingUnit, name: str, seed: int) -> Path:
    """Where a trained model goes."""
    return output / "models" / unit.name / f"{name}-{seed}"
