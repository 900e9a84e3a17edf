"""What is trained once, and which test queries then judge it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

REGIMES = ("interpolation", "extrapolation")


@dataclass(frozen=True)
class TrainingUnit:
    """One training set with its test sets.

    Attributes:
        name: of the set, as a path below the output of `resample`.
        group: what is put together in one row: a size or k of ReSTrain, all buckets of ReSTTest.
        train: folder with the split "train".
        tests: regime to the folder with the split "test" that judges in it.
    """

    name: str
    group: str
    train: Path
    tests: dict[str, Path]


def training_units(folder: Path, manifest: dict[str, Any]) -> list[TrainingUnit]:
    """The units of an output of `resample`: every set of ReSTrain, every bucket of ReSTTest.

    Both regimes of a bucket have the same training queries and are one unit.

    Args:
        folder: the output.
        manifest: its content, see `read_manifest`.
    """
    buckets = manifest["method"] == "resttest"
    found: dict[str, TrainingUnit] = {}
    for record in manifest["sets"]:
        name = f"bucket-{record['bucket']}" if buckets else record["folder"]
        group = f"{manifest['parameters']['buckets']} buckets" if buckets else record["label"]
        unit = found.setdefault(name, TrainingUnit(name, group, folder / record["train"]["folder"], {}))
        unit.tests[record["regime"]] = folder / record["test"]["folder"]
    return list(found.values())
