"""What a command has left in its output folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.report.html.trained_models import Trained, trained_models

ADAPTATION, COMPARISON, RESULTS, CURVES = "adapt.json", "comparison.json", "results.json", "curves.json"
_KEYS = {
    ADAPTATION: ("recommendation", "models", "results"),
    COMPARISON: ("dataset", "labels", "pairs", "ranking", "best", "models"),
    RESULTS: ("dataset", "documents", "queries", "models", "comparisons"),
}
_COMMANDS = {ADAPTATION: "adapt", COMPARISON: "compare", RESULTS: "evaluate"}


@dataclass(frozen=True)
class Found:
    """The files of an output folder, read.

    Attributes:
        folder: the output folder.
        adaptation, comparison, results: content of adapt.json, comparison.json, results.json; None where
            there is none. Of an adaptation without labels the comparison is its own.
        trained: models with a training.json, in the folder itself or in ``models/``.
        curves: name of a model to the points of its curves.json.
        files: what was read, as paths below the folder.
    """

    folder: Path
    adaptation: dict[str, Any] | None
    comparison: dict[str, Any] | None
    results: dict[str, Any] | None
    trained: list[Trained]
    curves: dict[str, list[dict[str, Any]]]
    files: list[Path] = field(default_factory=list)


def find_files(folder: Path) -> Found:
    """Read what is there.

    Raises:
        InputError: no such folder, nothing of ours in it, or a file that cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; name the --output folder of a command")
    contents = {name: _content(folder / name, keys) for name, keys in _KEYS.items()}
    trained = trained_models(folder)
    curves = {
        model.name: points for model in trained if (points := _curves(model.folder / CURVES)) is not None
    }
    if not trained and not any(contents.values()):
        raise InputError(f"{folder} {_lack(folder)}")
    files = [Path(name) for name, content in contents.items() if content is not None]
    # An adaptation to a corpus without labels holds a comparison of its own.
    comparison = (contents[ADAPTATION] or {}).get("comparison") or contents[COMPARISON]
    for model in trained:
        files += [file.relative_to(folder) for file in model.files]
        if model.name in curves:
            files.append((model.folder / CURVES).relative_to(folder))
    return Found(folder, contents[ADAPTATION], comparison, contents[RESULTS], trained, curves, files)


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        InputError: it is none.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); write it again, or take it away") from error


def _content(path: Path, keys: Sequence[str]) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    content = read_json(path)
    lacking = [key for key in keys if key not in content] if isinstance(content, dict) else list(keys)
    if lacking:
        command = _COMMANDS[path.name]
        raise InputError(f"{path} is not what {command} writes: it lacks {', '.join(lacking)}; run it again")
    evaluated = content.get("evaluation") or content.get("results") or content
    if path.name != ADAPTATION and isinstance(evaluated.get("models"), dict) and not evaluated["models"]:
        raise InputError(f"{path} has no model; run {_COMMANDS[path.name]} again")
    found: dict[str, Any] = content
    return found


def _curves(path: Path) -> list[dict[str, Any]] | None:
    """The points, or None where no target was named."""
    points = read_json(path) if path.is_file() else None
    if points is not None and not (
        isinstance(points, list) and all(isinstance(point, dict) and "model" in point for point in points)
    ):
        raise InputError(f"{path} is not what training in rounds writes: a list of points")
    return points or None


def _lack(folder: Path) -> str:
    if any(folder.glob("*.run")):
        return (
            f"holds runs but no {RESULTS}: judge them first, with "
            "beir-cocodr compare A.run B.run --dataset D --output O, and report O"
        )
    what = "is empty" if not any(folder.iterdir()) else "holds nothing that this command knows"
    return (
        f"{what}; name the --output folder of evaluate, compare, adapt, quickstart or of a training command"
    )
