"""Units of training and evaluation: a training set with its test sets."""

from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.resampling.manifest import Manifest, ResttestParameters, check_sets

REGIMES = ("interpolation", "extrapolation")


@dataclass(frozen=True)
class TrainingUnit:
    """One training set with its test sets.

    Attributes:
        name: of the set, as a path below the output of ``resample``.
        group: what becomes one row: a size or k of ReSTrain, all buckets of ReSTTest.
        train: folder with the split "train".
        tests: regime to the folder with the split "test".
    """

    name: str
    group: str
    train: Path
    tests: dict[str, Path]


def training_units(folder: Path, manifest: Manifest) -> list[TrainingUnit]:
    """Return the units of an output of ``resample``.

    They are every set of ReSTrain, or every bucket of ReSTTest, whose regimes have the same
    training queries.

    Raises:
        InputError: A set is not what the manifest says.
    """
    check_sets(folder, manifest)
    units: dict[str, TrainingUnit] = {}
    for record in manifest.sets:
        name = record.folder
        group = record.label
        if isinstance(manifest.parameters, ResttestParameters):
            name = f"bucket-{record.bucket}"
            group = f"{manifest.parameters.buckets} buckets"
        if name not in units:
            units[name] = TrainingUnit(
                name=name,
                group=group,
                train=folder / record.train.folder,
                tests={},
            )
        units[name].tests[record.regime] = folder / record.test.folder
    return list(units.values())
