"""An experiment over seeds: its targets, its cells, their spread, and paired tests.

A cell is one model's evaluation on one target. Models and cells are kept in the working folder of
the script and not computed again, so that an interrupted experiment continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.evaluation.evaluate import EvaluateOptions, evaluate
from beir_cocodr.evaluation.measures import paired_tests
from beir_cocodr.evaluation.results import EvaluationRecord
from beir_cocodr.io import write_text
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from harness.page import markdown_table
from harness.script import (
    add_collections,
    add_seeds,
    add_work,
    option_parser,
    origin,
    read_json,
    settings_of,
)

COLLECTIONS = ("cranfield", "cisi", "npl", "time")


@dataclass(frozen=True)
class Cell:
    """The evaluation of one model on one target.

    Attributes:
        measures: The mean of each measure.
        per_query: nDCG@10 of each query.
        queries: The number of queries.
        documents: The number of documents.
    """

    measures: dict[str, float]
    per_query: dict[str, float]
    queries: int
    documents: int


#: The cells of every row on every target: row to target to one cell for each seed.
Rows = dict[str, dict[str, list[Cell]]]

#: A question of an experiment to the pairs (a, b) of rows that answer it.
Families = Mapping[str, list[tuple[str, str]]]


def load_targets(
    names: Sequence[str],
    collections: Path | None,
    work: Path,
    documents: int,
) -> dict[str, str]:
    """Return the datasets of an experiment by their names.

    Args:
        names: Datasets that are used whole.
        collections: The folder of :data:`COLLECTIONS`, which are cut; None leaves them out.
        work: The folder of the experiment, which keeps the cut collections.
        documents: The most documents of a cut collection, except where more are judged.
    """
    targets = {name: name for name in names}
    if collections is not None:
        for name in COLLECTIONS:
            cut = work / "collections" / name
            cut_collection(collections / name, cut, documents)
            targets[name] = str(cut)
    return targets


def cut_collection(
    source: Path,
    folder: Path,
    documents: int,
) -> None:
    """Copy a BEIR folder with all judged documents and a random sample of the others."""
    if (folder / "qrels" / "test.tsv").is_file():
        return
    (folder / "qrels").mkdir(
        parents=True,
        exist_ok=True,
    )
    qrels = (source / "qrels" / "test.tsv").read_text()
    judged = {line.split("\t")[1] for line in qrels.splitlines()[1:]}
    lines = (source / "corpus.jsonl").read_text().splitlines()
    others = [row for row, line in enumerate(lines) if json.loads(line)["_id"] not in judged]
    room = documents - (len(lines) - len(others))
    count = min(max(0, room), len(others))
    left_out = set(others) - set(random.Random(42).sample(others, count))
    kept = [line for row, line in enumerate(lines) if row not in left_out]
    write_text(folder / "corpus.jsonl", "\n".join(kept) + "\n")
    write_text(folder / "queries.jsonl", (source / "queries.jsonl").read_text())
    write_text(folder / "qrels" / "test.tsv", qrels)


def study_parser(description: str | None, results: str) -> argparse.ArgumentParser:
    """Create the parser of a script that trains models over seeds and judges them on targets.

    Args:
        description: The docstring of the script.
        results: The name of its results file, after which the working folder is named too.
    """
    parser = option_parser(description, results)
    add_seeds(parser)
    add_work(parser, f"runs/benchmark-{results.replace('_', '-')}")
    add_collections(parser)
    return parser


class TargetStudy:
    """The base of a study of models on several targets; each cell is computed once.

    Attributes:
        options: The options of the script: ``work``, ``collections``, ``seeds``, and the most
            ``documents`` and ``queries`` of a target.
        encoder: The options with which models are trained and judged.
        targets: The datasets by their names.
    """

    #: Encode the documents of targets in bfloat16.
    in_bfloat16 = False

    def __init__(
        self,
        options: argparse.Namespace,
        targets: Sequence[str],
        encoder: EncoderOptions,
    ) -> None:
        """Cut the collections, unless they are cut already."""
        self.options = options
        self.work: Path = options.work
        self.encoder = encoder
        self.targets = load_targets(targets, options.collections, self.work, options.documents)

    def model_folder(self, name: str, seed: int) -> Path:
        """Return the folder of a model."""
        return self.work / "models" / f"{name}-{seed}"

    def judge(
        self,
        model: str,
        name: str,
        target: str,
    ) -> Cell:
        """Evaluate a model on a target, unless its results are in the working folder.

        Args:
            model: The model's name or folder.
            name: The name of its results.
            target: The name of the target.
        """
        folder = self.work / "results" / name.replace(" ", "-") / target.replace("/", "-")
        if not (folder / "results.json").is_file():
            self._evaluate(model, self.targets[target], folder)
        return read_cell(folder)

    def _evaluate(
        self,
        model: str,
        dataset: str,
        folder: Path,
    ) -> None:
        stores: tuple[Path, ...] = ()
        if self.in_bfloat16:
            stores = (folder / "store",)
            encode(
                dataset,
                model,
                stores[0],
                EncodeOptions(backend="bf16"),
                encoder=self.encoder,
            )
        evaluate(
            {"model": model},
            dataset,
            output=folder,
            search=SearchOptions(self.encoder, progress=True, stores=stores),
            options=EvaluateOptions(queries=self.options.queries),
        )
        shutil.rmtree(folder / "store", ignore_errors=True)

    def judge_untrained(
        self,
        rows: Rows,
        row: str,
        model: str,
    ) -> None:
        """Add a row of a model that seeds do not change."""
        cells = rows.setdefault(row, {})
        for target in self.targets:
            cells[target] = [self.judge(model, row, target)] * len(self.options.seeds)

    def judge_trained(
        self,
        rows: Rows,
        row: str,
        seed: int,
        model: str,
    ) -> None:
        """Add the cells of a model that was trained with a seed."""
        cells = rows.setdefault(row, {})
        for target in self.targets:
            cells.setdefault(target, []).append(self.judge(model, f"{row}-{seed}", target))

    def results(
        self,
        rows: Rows,
        families: Families,
        settings: Mapping[str, object],
    ) -> dict[str, Any]:
        """Return what the results files of such studies begin with.

        Args:
            rows: The cells.
            families: The pairs of rows to compare.
            settings: What is fixed in the script, beside its options.
        """
        return origin() | {
            "seconds_of_all_cells": round(seconds_of_cells(self.work)),
            "settings": settings_of(self.options) | dict(settings),
            "targets": judge_targets(rows, families),
        }


def read_cell(folder: Path) -> Cell:
    """Read the evaluation of one model from a folder that ``evaluate`` wrote."""
    record = EvaluationRecord.read(folder / "results.json")
    result = record.models["model"]
    return Cell(
        measures=result.measures,
        per_query=read_per_query(folder / str(result.per_query), "nDCG@10"),
        queries=record.queries,
        documents=record.documents,
    )


def read_per_query(path: Path, measure: str) -> dict[str, float]:
    """Read a measure of every query from a file that ``evaluate`` wrote."""
    header, *lines = path.read_text().splitlines()
    column = header.split("\t").index(measure)
    values = {}
    for line in lines:
        cells = line.split("\t")
        values[cells[0]] = float(cells[column])
    return values


def seconds_of_cells(work: Path) -> float:
    """Add up the seconds of all trainings and evaluations, whenever they ran."""
    total = 0.0
    for file in work.glob("*/*/training.json"):
        total += read_json(file)["seconds"]
    for file in work.glob("results/*/*/results.json"):
        for record in read_json(file)["models"].values():
            total += record["seconds"]
    return total


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, standard deviation and every value of the seeds."""
    return {
        "mean": np.mean(values),
        "sd": np.std(values, ddof=1),
        "seeds": list(values),
    }


def spread_of_measures(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the spread of every measure over the cells of the seeds."""
    spreads = {}
    for measure in cells[0].measures:
        spreads[measure] = spread([cell.measures[measure] for cell in cells])
    return spreads


def judge_targets(rows: Rows, families: Families) -> dict[str, Any]:
    """Summarise an experiment by target: spreads over seeds, and paired tests.

    The tests compare nDCG@10 of the queries, averaged over seeds.

    Args:
        rows: The cells.
        families: The pairs of rows to compare.
    """
    summaries = {}
    for target, cells in next(iter(rows.values())).items():
        scores = {}
        spreads = {}
        for row, targets in rows.items():
            per_query = [list(cell.per_query.values()) for cell in targets[target]]
            scores[row] = {"nDCG@10": np.mean(per_query, axis=0)}
            spreads[row] = spread_of_measures(targets[target])
        summaries[target] = {
            "queries": cells[0].queries,
            "documents": cells[0].documents,
            "rows": spreads,
            "comparisons": [asdict(test) for test in paired_tests(scores, families)],
        }
    return summaries


def describe_targets(targets: Mapping[str, Any], rows: Sequence[str]) -> list[str]:
    """Return the lines of a table of nDCG@10, row by target, and a line for every test."""
    cells = []
    for target, summary in targets.items():
        means = [f"{summary['rows'][row]['nDCG@10']['mean']:.3f}" for row in rows]
        cells.append([target, *means])
    lines = [markdown_table(["target", *rows], cells), ""]
    for target, summary in targets.items():
        for test in summary["comparisons"]:
            difference = f"{test['difference']:+.4f} (p {test['t_p_holm']:.3g})"
            lines.append(f"{target}: {test['b']} against {test['a']}: {difference}")
    return lines
