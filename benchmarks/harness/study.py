"""An experiment over seeds: its targets, its cells, their spread, and paired tests.

A cell is one trained model or one evaluation. It is kept in the working folder of the script and
not computed again, so that an interrupted experiment continues where it stopped.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
from harness.script import read_json

COLLECTIONS = ("cranfield", "cisi", "npl", "time")

#: The cells of every row on every target: row to target to one cell for each seed.
Rows = dict[str, dict[str, list[dict[str, Any]]]]

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


def judge(
    model: str,
    collection: str,
    folder: Path,
    queries: int,
    encoder: EncoderOptions,
    *,
    in_bfloat16: bool = False,
) -> dict[str, Any]:
    """Evaluate a model on a collection, unless a folder has the results already.

    Args:
        model: The model's name or folder.
        collection: The dataset.
        folder: The folder of the evaluation.
        queries: The most queries to evaluate.
        encoder: Options of the encoder.
        in_bfloat16: Encode documents in bfloat16.

    Returns:
        The mean ``measures``, nDCG@10 ``per_query`` of the ``query_ids``, and the numbers of
        ``queries`` and ``documents``.
    """
    file = folder / "results.json"
    if not file.is_file():
        stores: tuple[Path, ...] = ()
        if in_bfloat16:
            stores = (folder / "store",)
            encode(
                collection,
                model,
                stores[0],
                EncodeOptions(backend="bf16"),
                encoder=encoder,
            )
        search = SearchOptions(
            encoder,
            progress=True,
            stores=stores,
        )
        evaluate(
            {"model": model},
            collection,
            output=folder,
            search=search,
            options=EvaluateOptions(queries=queries),
        )
        shutil.rmtree(folder / "store", ignore_errors=True)
    record = EvaluationRecord.read(file)
    result = record.models["model"]
    per_query = read_per_query(folder / str(result.per_query), "nDCG@10")
    return {
        "measures": result.measures,
        "per_query": list(per_query.values()),
        "query_ids": list(per_query),
        "queries": record.queries,
        "documents": record.documents,
    }


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


def spread_of_measures(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the spread of every measure over the cells of the seeds."""
    spreads = {}
    for measure in cells[0]["measures"]:
        spreads[measure] = spread([cell["measures"][measure] for cell in cells])
    return spreads


def judge_targets(rows: Rows, families: Families) -> dict[str, Any]:
    """Summarise an experiment by target: spreads over seeds, and paired tests.

    The tests compare nDCG@10 of the queries, averaged over seeds.

    Args:
        rows: The cells, as :func:`judge` returns them.
        families: The pairs of rows to compare.
    """
    summaries = {}
    for target, cells in next(iter(rows.values())).items():
        scores = {}
        spreads = {}
        for row, targets in rows.items():
            per_query = [cell["per_query"] for cell in targets[target]]
            scores[row] = {"nDCG@10": np.mean(per_query, axis=0)}
            spreads[row] = spread_of_measures(targets[target])
        summaries[target] = {
            "queries": cells[0]["queries"],
            "documents": cells[0]["documents"],
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
