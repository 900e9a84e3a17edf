"""Trained models below an output folder, with what their training has left."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError

_RECORD, _CLUSTERS = "training.json", "cluster_weights.jsonl"
#: Where rounds of one training lie.
_ROUNDS = ("episodes", "stages")


@dataclass(frozen=True)
class Trained:
    """A model that one of our commands has trained.

    Attributes:
        name: of its folder.
        folder: where it is.
        record: its training.json.
        clusters: title to the lines of a cluster_weights.jsonl; one for each round that has one.
        files: what was read.
    """

    name: str
    folder: Path
    record: dict[str, Any]
    clusters: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


def trained_models(folder: Path) -> list[Trained]:
    """The model in ``folder`` itself and those in ``folder/models``, by name.

    Raises:
        InputError: a training.json or cluster_weights.jsonl that cannot be read.
    """
    places = [folder, *sorted(path for path in (folder / "models").glob("*") if path.is_dir())]
    return [_trained(place) for place in places if (place / _RECORD).is_file()]


def _trained(place: Path) -> Trained:
    try:
        record = json.loads((place / _RECORD).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{place / _RECORD} cannot be read ({error}); train again, or take it away"
        ) from error
    if not isinstance(record, dict) or "stage" not in record:
        raise InputError(f"{place / _RECORD} is no record of a training: it has no stage")
    name = place.resolve().name
    logs: dict[str, Path] = {}
    for rounds in _ROUNDS:
        numbered = [path for path in (place / rounds).glob("*") if (path / _CLUSTERS).is_file()]
        for path in sorted(numbered, key=lambda path: (len(path.name), path.name)):
            logs[f"{name}, {rounds.removesuffix('s')} {path.name}"] = path / _CLUSTERS
    if not logs and (place / _CLUSTERS).is_file():  # after rounds, this is a copy of the last one's
        logs[name] = place / _CLUSTERS
    clusters = {title: lines for title, file in logs.items() if (lines := _lines(file))}
    return Trained(name, place, record, clusters, [place / _RECORD, *logs.values()])


def _lines(file: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            if not line["weights"] or len(line["weights"]) != len((lines or [line])[0]["weights"]):
                raise ValueError("another number of clusters than in the line before")
            lines.append({"step": int(line["step"]), "weights": [float(w) for w in line["weights"]]})
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{file}:{number}: no line of cluster weights ({error}); take it away"
            ) from error
    return lines
