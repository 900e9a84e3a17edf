"""What a model must be made of, and what its training.json says that it was made of.

The expectation is stated beside the rows of a table and not read from the commands, so that a cell
which is wired to another step's folder fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from beir_cocodr.generation.generation_record import GENERATION_FILE, GenerationRecord
from beir_cocodr.provenance import TrainingRecord, read_record
from beir_cocodr.records import CollectionProvenance


@dataclass(frozen=True)
class Making:
    """The making of a model.

    Attributes:
        start: The published weights at the beginning, with a placeholder.
        trainings: The trainings, oldest first, as :func:`training_name` names them.
        data: The collections that the trainings were given between them, with placeholders, and no
            others. Generated queries count as the collection whose passages they are for.
        settings: Options of the trainings that tell the model from its neighbours in a table, with
            the values of the papers; None for one that is left to its default.
        round: The number, from 0, of the round of fine-tuning that left the model; None for the
            finished model of several rounds, and of a training that has none.
    """

    start: str
    trainings: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    settings: tuple[tuple[str, float | None], ...] = ()
    round: int | None = None

    def then(
        self,
        *trainings: str,
        data: Iterable[str] = (),
        settings: Mapping[str, float | None] = MappingProxyType({}),
    ) -> Making:
        """Return the making of a model that is trained further.

        Args:
            trainings: The further trainings.
            data: The collections that they are given.
            settings: Their options that tell the model from its neighbours.
        """
        return replace(
            self,
            trainings=(*self.trainings, *trainings),
            data=tuple(dict.fromkeys((*self.data, *data))),
            settings=tuple({**dict(self.settings), **settings}.items()),
        )


def training_name(record: TrainingRecord) -> str:
    """Return a short name of a training: its objective, or the loss with the weighting or student.

    A pre-training is named by its objective ("coco"), a fine-tuning by loss and weighting
    ("triplet+idro"), and a distillation by student and loss ("mrl+lambdarank").
    """
    if record.stage == "finetune":
        return f"{record.options['loss']}+{record.options['weighting']}"
    if record.stage == "distill":
        return f"{record.options['student']}+{record.options['loss']}"
    return record.stage


def as_printed(name: str, value: float) -> float:
    """Return the value that a paper prints for a setting, which a smaller scale changes."""
    return value


def mismatch(
    folder: Path,
    making: Making,
    resolved: Callable[[str], str],
    setting: Callable[[str, float], float] = as_printed,
) -> str:
    """Say in what a model differs from its making; "" if in nothing.

    Args:
        folder: The model's folder.
        making: Its making.
        resolved: Fills placeholders.
        setting: Returns the value of a setting at the scale.
    """
    record = read_record(folder)
    if record is None:
        return f"{folder} has no training.json"
    lineage = record.lineage()
    names = tuple(training_name(one) for one in lineage)
    if names != making.trainings:
        return f"{folder} was made by {', '.join(names)}, not by {', '.join(making.trainings)}"
    if record.episode != making.round:
        return f"{folder} is of round {record.episode}, not {making.round}"
    start = resolved(making.start)
    if str(lineage[0].base) != start:
        return f"{folder} was made from {lineage[0].base}, not from {start}"
    for name, printed in making.settings:
        value = printed if printed is None else setting(name, printed)
        values: list[Any] = []
        for one in lineage:
            values += _values(one.options, name)
        if value not in values:
            return f"{folder} was made with {name} {values}, not {value}"
    return _other_data(folder, lineage, [resolved(name) for name in making.data])


def _other_data(folder: Path, lineage: list[TrainingRecord], expected: list[str]) -> str:
    """Say which collections were given to trainings and should not, or the reverse."""
    given = [_source(part) for record in lineage for part in record.seen]
    missing = [name for name in dict.fromkeys(expected) if name not in given]
    if missing:
        return f"{folder} was made of {', '.join(dict.fromkeys(given))}, not of {missing[0]}"
    others = [name for name in given if name not in expected]
    return f"{folder} was made of {others[0]}, too" if others else ""


def _source(part: CollectionProvenance) -> str:
    """Return a collection's name, of generated queries that of the collection they are for."""
    file = Path(part.dataset) / GENERATION_FILE
    return GenerationRecord.read(file).dataset.name if file.is_file() else part.dataset


def _values(options: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield the values of an option, wherever it is among options within options."""
    for key, value in options.items():
        if key == name:
            yield value
        elif isinstance(value, Mapping):
            yield from _values(value, name)
