"""Claim: merged with its start, distillation without labels nowhere loses significantly.

MiniLM is distilled from the ranking of ``rm3`` on generated queries of several kinds, as the stage
``distill`` of ``adapt`` does, and merged with MiniLM by the share that queries of another kind
choose and confirm. Each model is judged by labels before and after merging, and with a half of the
trained weights, alone and fused with BM25. Queries are made without a language model, and training
is without dropout, which makes a step faster on a CPU.

With ``--generated``, the queries are those that ``generate-queries`` has written before, by a
language model, and the results are listed apart.

Models and figures are kept in ``--work``, so that a killed run continues. The script first prints
what is missing and what it costs, as far as it has measured a collection. It writes
``benchmarks/results/distillation.json`` and a table of ``docs/adaptation.md``:

    OMP_NUM_THREADS=1 python benchmarks/distillation.py --collections DIR --work DIR --only npl
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from beir_small import Task
from beir_small_results import ARMS, Cell
from beir_small_tables import ALONE, BASE, FUSED
from harness.page import Marks, markdown_table
from harness.script import (
    ROOT,
    add_beir_folders,
    add_work,
    machine,
    option_parser,
    origin,
    read_json,
    results_file,
    settings_of,
    write_results,
)
from scipy import stats

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.measures import holm
from beir_cocodr.generation.query_kinds import QUERY_KINDS
from beir_cocodr.io import write_text
from beir_cocodr.training.shared_options import PRECISIONS

#: Two tasks of BEIR, and classic test collections.
COLLECTIONS = ("scifact", "nfcorpus", "npl", "cacm", "dbpedia-pool", "msmarco-pool")
COLLECTIONS += ("time", "cranfield", "cisi", "med", "lisa", "anthropic-docs", "aila-statutes")
COLLECTIONS += ("financebench-pages", "legalquad-de", "liveqa-medquad", "csfcube", "cosqa-test500")
#: The table of this script on the page.
PAGE = ROOT / "docs" / "adaptation.md"
MARKS = Marks("<!-- distillation -->", "<!-- end of distillation -->")
MODEL_MARKS = Marks("<!-- distillation on written queries -->", "<!-- end of written queries -->")

#: The part of the results, and of the work folder, for queries that a language model wrote.
LANGUAGE_MODEL = "language model"

[MERGED, UNMERGED] = (arm.name for arm in ARMS if arm.unlabelled)
#: A row that no evidence chose.
HALF = "distilled without labels, a half merged"
_ROWS = (BASE, UNMERGED, HALF, MERGED)
# The folder of what was measured.
_CELLS = "cells"


def measure(
    task: Task, seed: int, kept: Path, merge_on: str | None, generated: Path | None
) -> dict[str, Any]:
    """Return the cells of a collection and the record of merging, from the file if it is there."""
    if not kept.is_file():
        cells = [task.free(BASE)]
        for arm in ARMS:
            if arm.unlabelled:
                cell = task.train_without_labels(
                    arm, seed, generated, dropout=0.0, merge_on=merge_on
                )
                cells.append(cell)
        model = task.work / f"adapted-{seed}" / "models" / "distill"
        record = read_json(model / "training.json")
        folder = generated or task.work / f"adapted-{seed}" / "queries"
        generation = read_json(folder / "generation.json")
        unmerged = task.work / f"unmerged-{seed}"
        cells.append(half_merged(task, seed, unmerged if unmerged.is_dir() else model))
        content = {
            "machine": machine(),
            "generated queries": generation["counts"]["queries"],
            "generation": {
                "generator": Path(generation["generator"]["name"]).name,
                **{part: generation[part] for part in ("counts", "seconds", "selection")},
            },
            "documents": len(load_collection(task.dataset).documents),
            "queries": len(cells[0].scores[ALONE]),
            "merging": record.get("merging"),
            "cells": [asdict(cell) for cell in cells],
        }
        write_text(kept, json.dumps(content))
    content = dict(read_json(kept))
    check_kept(content, kept, seed, task.steps_without_labels)
    return content


def check_kept(content: Mapping[str, Any], kept: Path, seed: int, steps: int) -> None:
    """Refuse figures that were measured with another seed or another number of steps."""
    trained = [cell for cell in content["cells"] if cell["seed"] is not None]
    others = [cell for cell in trained if (cell["seed"], cell["steps"]) != (seed, steps)]
    if others:
        raise SystemExit(
            f"{kept} has figures of seed {others[0]['seed']} after {others[0]['steps']} steps, not "
            f"of seed {seed} after {steps}; name another --work"
        )


def half_merged(task: Task, seed: int, trained_folder: Path) -> Cell:
    """Merge a half of the trained weights with MiniLM's, and judge the model."""
    folder = task.half_merged(str(trained_folder), task.work / f"half-{seed}")
    cell = task.judge(HALF, seed, {ALONE: folder, FUSED: f"hybrid:{folder}"}, 0.0)
    return replace(cell, steps=task.steps_without_labels)


def summarize(collections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means of every collection, and the tests against MiniLM.

    The tests of a row and a use are corrected by Holm over all collections.
    """
    means: dict[str, Any] = {name: {} for name in collections}
    for name, content in collections.items():
        for cell in content["cells"]:
            means[name][cell["row"]] = {
                use: round(float(np.mean(scores)), 4) for use, scores in cell["scores"].items()
            }
    tests: dict[str, Any] = {row: {} for row in _ROWS[1:]}
    for row, use in itertools.product(tests, (ALONE, FUSED)):
        values = [p_value(content["cells"], row, use) for content in collections.values()]
        tests[row][use] = dict(zip(collections, holm(values), strict=True))
    return {"means": means, "p": tests}


def p_value(cells: Sequence[Mapping[str, Any]], row: str, use: str) -> float:
    """Return p of the paired t-test of a row against MiniLM; 1 where the two are the same."""
    scores = {cell["row"]: cell["scores"][use] for cell in cells}
    if scores[row] == scores[BASE]:
        return 1.0
    return float(stats.ttest_rel(scores[BASE], scores[row]).pvalue)


def markdown(results: Mapping[str, Any]) -> str:
    """Return the table of the page; a star marks a significant difference from MiniLM."""
    header = ["collection", "documents", "test queries", "minutes of training", "held out"]
    for use in (ALONE, FUSED):
        names = ("MiniLM", "trained", "a half", "kept")
        header += [f"{name}, {use}" for name in names]
    rows = []
    for name, content in results["collections"].items():
        merging = content["merging"]
        [seconds] = (c["train_seconds"] for c in content["cells"] if c["row"] == UNMERGED)
        row = [name, f"{content['documents']:,}", str(content["queries"]), f"{seconds / 60:.0f}"]
        row.append(merging["kind"] if merging else "none")
        for use in (ALONE, FUSED):
            row += [_figure(results, name, part, use) for part in _ROWS]
        row.append(f"{merging['share']:g}" if merging else "1")
        confidence = confidence_of_half(content)
        row.append("" if confidence is None else f"{confidence:.2f}")
        rows.append(row)
    return markdown_table([*header, "kept share", "confidence of a half"], rows)


def confidence_of_half(content: Mapping[str, Any]) -> float | None:
    """Return how sure the held-out queries are that a half gains; None if it was not recorded."""
    merging = content["merging"] or {}
    return merging.get("confidence_on_all", {}).get("0.5")


def _figure(results: Mapping[str, Any], name: str, row: str, use: str) -> str:
    text = f"{results['means'][name][row][use]:.3f}"
    is_clear = row != BASE and results["p"][row][use][name] < 0.05
    return f"{text} *" if is_clear else text


def measured(kept: Path) -> dict[str, Any]:
    """Return the collections of a folder of cells, in the order of the table."""
    files = {name: kept / f"{name}.json" for name in COLLECTIONS}
    return {name: read_json(file) for name, file in files.items() if file.is_file()}


def report_cost(names: Sequence[str], kept: Path) -> None:
    """Print what is missing, and the hours that it takes by what was measured already."""
    measured = [read_json(file) for file in sorted(kept.glob("*.json"))]
    missing = [name for name in names if not (kept / f"{name}.json").is_file()]
    cost = "a cost that the first one shows"
    if measured:
        seconds = [sum(_seconds(cell) for cell in content["cells"]) for content in measured]
        hours = float(np.mean(seconds)) * len(missing) / 3600
        cost = f"about {hours:.1f} hours, as others took on average"
    print(f"{len(missing)} collections are missing: {cost}", flush=True)


def _seconds(cell: Mapping[str, Any]) -> float:
    """Return the seconds of a cell; the unmerged one is trained along with the merged one."""
    trained = 0.0 if cell["row"] == UNMERGED else cell["train_seconds"]
    return float(trained + cell["judge_seconds"])


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = option_parser(__doc__, "distillation")
    add_work(parser)
    add_beir_folders(parser)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=COLLECTIONS,
        default=list(COLLECTIONS),
        help="Train on these collections. Default: all.",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=300,
        help="Train for a third of so many steps. Default: 300.",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="Train in this precision. Default: that of the device.",
    )
    parser.add_argument("--seed", type=int, default=13, help="Train with this seed. Default: 13.")
    parser.add_argument(
        "--merge-on",
        choices=QUERY_KINDS,
        help="Hold out this kind of queries, and list the results apart. Default: as the stage.",
    )
    parser.add_argument(
        "--generated",
        type=Path,
        metavar="DIR",
        help="Train on the queries that generate-queries wrote by a language model to the folder "
        "DIR/COLLECTION, and list the results apart.",
    )
    return parser.parse_args()


def main() -> None:
    """Measure what is missing, and print and write the results."""
    options = parse_options()
    work = options.work / (options.merge_on or "")
    if options.generated:
        work = options.work / LANGUAGE_MODEL
    kept = work / _CELLS
    kept.mkdir(parents=True, exist_ok=True)
    report_cost(options.only, kept)
    for name in options.only:
        task = Task(options.collections / name, work, options.steps, options.precision)
        generated = options.generated / name if options.generated else None
        content = measure(task, options.seed, kept / f"{name}.json", options.merge_on, generated)
        print(name, content["merging"], flush=True)
    results = origin() | {"settings": settings_of(options), "seeds": [options.seed]}
    collections = measured(options.work / _CELLS)
    results |= {"collections": collections} | summarize(collections)
    results["held out by name"] = {}
    for kind in QUERY_KINDS:
        if collections := measured(options.work / kind / _CELLS):
            part = {"collections": collections} | summarize(collections)
            results["held out by name"][kind] = part
    collections = measured(options.work / LANGUAGE_MODEL / _CELLS)
    results[LANGUAGE_MODEL] = {"collections": collections} | summarize(collections)
    write_results(options.results, results)
    print(markdown(results))
    print(markdown(results[LANGUAGE_MODEL]))
    if options.results == results_file("distillation"):
        MARKS.write(PAGE, markdown(results))
        MODEL_MARKS.write(PAGE, markdown(results[LANGUAGE_MODEL]))


if __name__ == "__main__":
    main()
