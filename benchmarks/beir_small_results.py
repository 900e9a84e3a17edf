"""What ``beir_small.py`` trains, and its results file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beir_small_tables import ALONE, BASE, FEEDBACK, FUSED, RM3, VECTOR
from harness.script import origin, read_json, write_results
from harness.study import spread

from beir_cocodr.evaluation.measures import paired_tests

TASKS = ("nfcorpus", "scifact")
MEASURE = "nDCG@10"

#: Published nDCG@10: system to its figures on SciFact and NFCorpus. MiniLM's are those of MTEB's
#: leaderboard; Anserini's those of its regressions ``beir-v1.0.0-scifact.flat`` and
#: ``beir-v1.0.0-nfcorpus.flat``; the others are quoted by COCO-DR, Table 1.
PUBLISHED = {
    "MiniLM (MTEB)": (0.645, 0.316),
    "BM25 (Anserini, one field)": (0.679, 0.322),
    "BM25 (BEIR, two fields)": (0.665, 0.325),
    "GPL": (0.674, 0.345),
    "COCO-DR Base": (0.709, 0.355),
    "COCO-DR Large": (0.722, 0.354),
}


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        name: Its row in the table.
        weighting: The weighting of fine-tuning; empty without fine-tuning.
        loss: The loss of fine-tuning.
        start: The objective of the pre-training before it; empty without one.
        distilled: Train an MRL on the rankings of the fusion.
        unlabelled: Adapt by the stage ``distill``, without labels and with its own settings.
        unmerged: Judge the weights of this stage before they are merged with the base.
        over_seeds: Train with every seed, not with the first alone.
        half_of: The arm whose weights are averaged with MiniLM's, a half each; empty for others.
    """

    name: str
    weighting: str = ""
    loss: str = "infonce"
    start: str = ""
    distilled: bool = False
    unlabelled: bool = False
    unmerged: bool = False
    over_seeds: bool = False
    half_of: str = ""

    @property
    def trained_as(self) -> str:
        """Return the name of the arm that is trained."""
        return self.half_of or self.name

    def half(self) -> Arm:
        """Return the arm whose weights are merged with MiniLM's."""
        return replace(self, name=f"{self.name}, a half merged", half_of=self.name)


_TRAINED = (
    Arm("ERM", weighting="erm", over_seeds=True),
    Arm("iDRO", weighting="idro", over_seeds=True),
    Arm("ERM, hard negatives alone", weighting="erm", loss="triplet"),
    Arm("COCO", start="coco"),
    Arm("COCO, ERM", weighting="erm", start="coco"),
    Arm("COCO, iDRO", weighting="idro", start="coco"),
    Arm("group DRO", weighting="groupdro"),
    Arm("CVaR", weighting="cvar"),
    Arm("query-as-context, ERM", weighting="erm", start="qc"),
    Arm("MRL", distilled=True),
    Arm("distilled without labels", unlabelled=True),
    Arm("distilled without labels, unmerged", unlabelled=True, unmerged=True),
)

#: Arms whose model is merged with MiniLM as well: it has MiniLM's layers, and was trained with
#: labels or on the corpus, and not with hard negatives alone, which destroyed it on one task.
HALVES = tuple(
    arm.half() for arm in _TRAINED if not (arm.unlabelled or arm.distilled or arm.loss == "triplet")
)

ARMS = (*_TRAINED, *HALVES)

#: A question to the pairs of rows that answer it.
FAMILIES = {
    "training against none": [(BASE, arm.name) for arm in _TRAINED],
    "merged training against none": [(BASE, arm.name) for arm in HALVES],
    "merged training against unmerged": [(arm.half_of, arm.name) for arm in HALVES],
    "other uses of MiniLM against its fusion": [(BASE, row) for row in (RM3, VECTOR, FEEDBACK)],
    "robust weightings against equal weights": [
        ("ERM", "iDRO"),
        ("ERM", "group DRO"),
        ("ERM", "CVaR"),
        ("COCO, ERM", "COCO, iDRO"),
    ],
    "pre-training before fine-tuning": [
        ("ERM", "COCO, ERM"),
        ("ERM", "query-as-context, ERM"),
    ],
}


@dataclass(frozen=True)
class Cell:
    """One model on one task.

    Attributes:
        row: The name of the arm, or one of :data:`~beir_small_tables.FREE`.
        seed: The seed; None for what is not trained.
        steps: Steps of each stage of training.
        device: The GPU that trained it, or "cpu".
        precision: What it was trained in; None for what is not trained.
        train_seconds: Seconds of training, all stages together.
        judge_seconds: Seconds of encoding and searching.
        scores: nDCG@10 of every test query: alone and fused with BM25.
    """

    row: str
    seed: int | None
    steps: int
    device: str
    precision: str | None
    train_seconds: float
    judge_seconds: float
    scores: dict[str, list[float]]


class Results:
    """The results file: what is measured already, and what follows from it."""

    def __init__(self, path: Path, settings: Mapping[str, object]) -> None:
        """Read the cells with the same settings, if there are any."""
        self.path = path
        self.settings = dict(settings)
        self.cells: dict[str, list[Cell]] = {task: [] for task in TASKS}
        self.resampled: dict[str, Any] = {}
        if path.is_file():
            before = read_json(path)
            if before["settings"] == self.settings:
                for task, cells in before["cells"].items():
                    self.cells[task] = [Cell(**cell) for cell in cells]
                self.resampled = before["resampled"]

    def has(self, task: str, row: str, seed: int | None) -> bool:
        """Return true if a cell is measured."""
        return any((cell.row, cell.seed) == (row, seed) for cell in self.cells[task])

    def merge(self, part: Path) -> None:
        """Add what another results file with the same settings has and this one lacks."""
        if not part.is_file():
            return
        other = Results(part, self.settings)
        for task, cells in other.cells.items():
            for cell in cells:
                if not self.has(task, cell.row, cell.seed):
                    self.add(task, cell)
        self.resampled = other.resampled | self.resampled
        write_results(self.path, self.content())

    def add(self, task: str, cell: Cell) -> None:
        """Add a cell, and write the file."""
        self.cells[task].append(cell)
        write_results(self.path, self.content())
        means = {use: round(float(np.mean(values)), 4) for use, values in cell.scores.items()}
        print(f"{task}: {cell.row} {cell.seed or ''} {means}", flush=True)

    def content(self) -> dict[str, Any]:
        """Return everything that the file says."""
        summaries = {task: summarize(cells) for task, cells in self.cells.items() if cells}
        cells = {task: [asdict(cell) for cell in of_task] for task, of_task in self.cells.items()}
        seeds = {cell.seed for of_task in self.cells.values() for cell in of_task}
        return origin() | {
            "seeds": sorted(seed for seed in seeds if seed is not None),
            "settings": self.settings,
            "published": {
                name: dict(zip(("scifact", "nfcorpus"), figures, strict=True))
                for name, figures in PUBLISHED.items()
            },
            "tasks": summaries,
            "resampled": self.resampled,
            "cells": cells,
        }

    def seconds_left(self, missing: list[tuple[str, Arm, int]]) -> float | None:
        """Estimate the seconds of what is missing; None if nothing was timed on this device yet."""
        here = device_name()
        trained = [
            cell
            for cells in self.cells.values()
            for cell in cells
            if cell.seed is not None and cell.device == here
        ]
        if not trained:
            return None
        of_row = {cell.row: cell.train_seconds + cell.judge_seconds for cell in trained}
        typical = float(np.median(list(of_row.values())))
        return sum(of_row.get(arm.name, typical) for _, arm, _ in missing)


def device_name() -> str:
    """Return the name of the GPU, or "cpu"."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def summarize(cells: list[Cell]) -> dict[str, Any]:
    """Return the spread over seeds of every row of a task, and the paired tests."""
    by_row: dict[str, list[Cell]] = {}
    for cell in cells:
        by_row.setdefault(cell.row, []).append(cell)
    rows: dict[str, dict[str, Any]] = {}
    for row, of_row in by_row.items():
        rows[row] = {
            use: _spread([float(np.mean(cell.scores[use])) for cell in of_row])
            for use in of_row[0].scores
        }
        rows[row]["seeds"] = [cell.seed for cell in of_row if cell.seed is not None]
        rows[row]["minutes"] = _minutes(of_row)
    tests = {}
    for use in (ALONE, FUSED):
        scores = {
            row: {MEASURE: np.mean([cell.scores[use] for cell in of_row], axis=0)}
            for row, of_row in by_row.items()
            if use in of_row[0].scores
        }
        families = {
            question: [(a, b) for a, b in pairs if a in scores and b in scores]
            for question, pairs in FAMILIES.items()
        }
        tests[use] = [asdict(test) for test in paired_tests(scores, families)]
    return {
        "queries": len(next(iter(cells[0].scores.values()))),
        "rows": rows,
        "tests": tests,
    }


def _minutes(cells: list[Cell]) -> dict[str, float]:
    """Return device to the median minutes of training there, all stages together."""
    seconds: dict[str, list[float]] = {}
    for cell in cells:
        if cell.train_seconds:
            seconds.setdefault(cell.device, []).append(cell.train_seconds)
    return {
        device: round(float(np.median(of_device)) / 60, 1) for device, of_device in seconds.items()
    }


def _spread(values: list[float]) -> dict[str, Any]:
    if len(values) > 1:
        return spread(values)
    return {"mean": values[0], "seeds": values}
