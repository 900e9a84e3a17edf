"""What a model must be made of, and what its training.json says that it was made of.

The expectation is stated beside the rows of a table and not read from the commands, so that a cell
which is wired to another step's folder fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
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
        data: A collection that one of them was given, or whose passages its queries were generated
            for, with a placeholder; "" if it does not matter.
        settings: Options of the trainings that tell the model from its neighbours in a table.
    """

    start: str
    trainings: tuple[str, ...] = ()
    data: str = ""
    settings: tuple[tuple[str, float], ...] = ()

    def then(self, *trainings: str) -> Making:
        """Return the making of a model that is trained further."""
        return replace(self, trainings=(*self.trainings, *trainings))


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


def mismatch(folder: Path, making: Making, resolved: Callable[[str], str]) -> str:
    """Say in what a model differs from its making; "" if in nothing.

    Args:
        folder: The model's folder.
        making: Its making.
        resolved: Fills placeholders.
    """
    record = read_record(folder)
    if record is None:
        return f"{folder} has no training.json"
    lineage = record.lineage()
    names = tuple(training_name(one) for one in lineage)
    if names != making.trainings:
        return f"{folder} was made by {', '.join(names)}, not by {', '.join(making.trainings)}"
    start = resolved(making.start)
    if str(lineage[0].base) != start:
        return f"{folder} was made from {lineage[0].base}, not from {start}"
    for name, value in making.settings:
        values: list[Any] = []
        for one in lineage:
            values += _values(one.options, name)
        if value not in values:
            return f"{folder} was made with {name} {values}, not {value}"
    data = resolved(making.data)
    if data and data not in set(_data_names(lineage)):
        return f"{folder} was made of {', '.join(_data_names(lineage))}, not of {data}"
    return ""


def _data_names(lineage: list[TrainingRecord]) -> list[str]:
    """Return the collections of all trainings, and those that queries were generated for."""
    names = []
    for record in lineage:
        for part in record.seen:
            names += [part.dataset, *_generated_from(part)]
    return list(dict.fromkeys(names))


def _generated_from(part: CollectionProvenance) -> list[str]:
    """Return the collection whose passages the queries of a collection were generated for."""
    file = Path(part.dataset) / GENERATION_FILE
    return [GenerationRecord.read(file).dataset.name] if file.is_file() else []


def _values(options: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield the values of an option, wherever it is among options within options."""
    for key, value in options.items():
        if key == name:
            yield value
        elif isinstance(value, Mapping):
            yield from _values(value, name)
