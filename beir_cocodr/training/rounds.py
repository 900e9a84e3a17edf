"""Training in several rounds: what is measured after each, and what is left at the end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.measures import parse_measures
from beir_cocodr.evaluation.protocol import evaluate
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.files import write_text
from beir_cocodr.training.claim import CHECKPOINTS
from beir_cocodr.training.processes import on_main
from beir_cocodr.training.record import RECORD_FILE, read_record, write_record
from beir_cocodr.versions import versions

CURVES_FILE = "curves.json"
_KEPT = ("episode", "steps", "training_loss", "seconds", "mining", "pairs", "pairs_without_negative")


class Judge:
    """The measures of one model after another on every target; what was judged before is not judged again.

    Args:
        output: the output folder; runs go to its subfolder ``curves``.
        targets: collections with labels in their split "test".
        measures: of the targets.
        encoder: overrides for loading encoders.

    Attributes:
        points: a record for each model and target, in the order of calls.

    Raises:
        InputError: a target or measure that there is not.
    """

    def __init__(self, output: Path, targets: Sequence[str], measures: str, encoder: dict[str, Any]) -> None:
        parse_measures(measures)
        self.output, self.targets, self.measures, self.encoder = output, targets, measures, encoder
        self.points: list[dict[str, Any]] = []
        on_main(self._check)

    def __call__(self, model: str, label: str) -> None:
        self.points += on_main(lambda: [self._point(model, label, *pair) for pair in self._names()])

    def _check(self) -> None:
        for target in self.targets:
            load_collection(target, "test")

    def _names(self) -> list[tuple[str, str]]:
        return list(file_names(self.targets).items())

    def _point(self, model: str, label: str, target: str, name: str) -> dict[str, Any]:
        folder = self.output / "curves" / label.replace(" ", "-") / name
        if (folder / "results.json").is_file():
            report = json.loads((folder / "results.json").read_text())
        else:
            models = {label: model}
            report = evaluate(target, models, folder, self.measures, progress=True, **self.encoder)
        return {"model": label, "dataset": target, **report["models"][label]["measures"]}


def finish_rounds(
    output: Path,
    last: Path,
    plan: dict[str, Any],
    rounds: str,
    records: Sequence[dict[str, Any]],
    points: list[dict[str, Any]],
) -> dict[str, Any]:
    """Copy the last round's model to ``output``, with ``curves.json`` and the record of the whole.

    Args:
        output: the output folder.
        last: folder of the last round.
        plan: of the whole.
        rounds: what the record calls the rounds.
        records: their records.
        points: see :class:`Judge`.

    Returns:
        The record that was written.
    """
    record = {
        **plan,
        "steps": sum(found["steps"] for found in records),
        "seconds": round(sum(found["seconds"] for found in records), 1),
        rounds: [{name: found[name] for name in _KEPT} for found in records],
        "curves": points,
        "versions": versions(),
        "parent": read_record(plan["base"]),
    }

    def finish() -> dict[str, Any]:
        write_text(output / CURVES_FILE, json.dumps(points, indent=2) + "\n")
        shutil.copytree(last, output, dirs_exist_ok=True, ignore=shutil.ignore_patterns(RECORD_FILE))
        write_record(output, record)
        shutil.rmtree(output / CHECKPOINTS)
        return record

    return on_main(finish)
