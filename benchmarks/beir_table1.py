"""The 18 tasks of COCO-DR's Table 1: ours beside everything that the table prints, in nDCG@10.

    python benchmarks/beir_table1.py --model OpenMatch/cocodr-base-msmarco --model bm25 --data datasets/

A task is taken from the folder --data (BEIR folders, named as BEIR names them; cqadupstack holds its 12 forums), else
from what ir_datasets has in its cache, with --download from wherever ir_datasets gets it. Queries and documents are cut
as the paper cuts them, task by task. What is not to be had, or fails, is listed with the reason, and averages are over
the tasks that ran: ours, and the published cells of the same tasks.

Writes --output/beir_table1.json, and a folder of runs and per-query scores for each task. With --resume, tasks judged
there with the same models, by name, are not judged again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import os
from pathlib import Path
from typing import Any

from machine import machine

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.evaluation.records import EvaluationRecord
from beir_cocodr.io import write_text
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.records import versions

PUBLISHED = json.loads((Path(__file__).parent / "published" / "cocodr.json").read_text())
TABLE, LENGTHS, SIZES = PUBLISHED["table1"], PUBLISHED["max_lengths"], PUBLISHED["table5"]["rows"]
TASKS: list[str] = TABLE["avg_datasets"]
AVERAGES = {"Avg": TASKS, "Avg CPT Sub": TABLE["avg_cpt_sub_datasets"]}
FORUMS = "android english gaming gis mathematica physics programmers stats tex unix webmasters wordpress".split()
#: Where ir_datasets has another name. The paper's sizes and its BM25 are those of the second version.
IRDS_NAMES = {"webis-touche2020": "webis-touche2020/v2"}
MEASURE = "nDCG@10"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, help="as for evaluate; repeat")
    parser.add_argument("--data", type=Path, help="folder of BEIR folders")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, metavar="TASK")
    parser.add_argument("--output", type=Path, default=Path("runs/beir-table1"))
    parser.add_argument("--download", action="store_true", help="let ir_datasets download what is missing")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--encode-batch-size", type=int, default=64)
    parser.add_argument("--device")
    given = parser.parse_args(arguments)
    if given.data is not None and not given.data.is_dir():
        parser.error(f"{given.data} is no folder")
    if len(set(given.model)) < len(given.model):
        parser.error("a model is named twice")
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    ran: dict[str, Any] = {}
    not_run: dict[str, str] = {}
    for task in given.tasks:
        try:
            ran[task] = run(task, given)
        except InputError as error:
            not_run[task] = str(error)
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "measure": MEASURE,
        "models": given.model,
        "tasks": ran,
        "not_run": not_run,
        "averages": {name: average(tasks, ran, given.model) for name, tasks in AVERAGES.items()},
        "versions": versions(),
    }
    write_text(given.output / "beir_table1.json", json.dumps(report, indent=2) + "\n")
    print(markdown(report))
    if not ran:
        parser.error("no task ran")


def run(task: str, given: argparse.Namespace) -> dict[str, Any]:
    """One task, the mean over its parts where it has several.

    Raises:
        InputError: a part is not to be had, or cannot be evaluated.
    """
    names = [f"{task}/{forum}" for forum in FORUMS] if task == "cqadupstack" else [task]
    datasets = {name: find(name, given.data, given.download) for name in names}
    parts = [judge(name, dataset, LENGTHS[task], given) for name, dataset in datasets.items()]
    sizes = {"documents": sum(part.documents for part in parts), "queries": sum(part.queries for part in parts)}
    published = {"documents": SIZES[task]["documents"], "queries": SIZES[task]["test_queries"]}
    return {
        "datasets": list(datasets.values()),
        **LENGTHS[task],
        **sizes,
        "published_sizes": None if sizes == published else published,
        "ours": {
            model: sum(part.models[model].measures[MEASURE] for part in parts) / len(parts) for model in given.model
        },
        "published": TABLE["scores"][task],
    }


def find(name: str, data: Path | None, download: bool) -> str:
    """What `evaluate` calls a collection.

    Raises:
        InputError: it is not to be had.
    """
    if data is not None and (data / name).is_dir():
        return str(data / name)
    identifier = IRDS_NAMES.get(name, name)
    if is_cached(identifier):
        return f"irds:beir/{identifier}"
    if download:
        from beir_cocodr.plugins.irds import is_registered

        if is_registered(f"beir/{identifier}"):
            return f"irds:beir/{identifier}"
        raise InputError(f"{name} is not to be had: no folder, and ir_datasets does not have it")
    raise InputError(f"{name} is not to be had: no folder, and not in the cache of ir_datasets")


def is_cached(identifier: str) -> bool:
    """Whether ir_datasets can serve a BEIR collection without a network."""
    home = Path(os.environ.get("IR_DATASETS_HOME", Path.home() / ".ir_datasets")) / "beir"
    unpacked = [home / identifier / part for part in ("docs.pklz4", "queries.json", "test.qrels")]
    archive = home / ("cqadupstack" if identifier.startswith("cqadupstack/") else identifier) / "source.zip"
    return all(part.exists() for part in unpacked) or archive.is_file()


def judge(name: str, dataset: str, lengths: dict[str, int], given: argparse.Namespace) -> EvaluationRecord:
    """A collection's results.json."""
    folder = given.output / name
    file = folder / "results.json"
    if given.resume and file.is_file():
        kept = EvaluationRecord.read(file)
        if kept.dataset == dataset and list(kept.models) == given.model:
            return kept
    return evaluate(
        dataset,
        given.model,
        folder,
        MEASURE,
        search=SearchOptions(
            EncoderOptions(lengths["query_max_len"], lengths["doc_max_len"], device=given.device),
            batch_size=given.encode_batch_size,
            progress=True,
        ),
    )


def average(tasks: list[str], ran: dict[str, Any], models: list[str]) -> dict[str, Any] | None:
    """Means over those of ``tasks`` that ran; None for a published method without all of their cells."""
    used = [task for task in tasks if task in ran]
    if not used:
        return None
    published = {}
    for method in TABLE["methods"]:
        cells = [TABLE["scores"][task][method] for task in used]
        published[method] = None if None in cells else sum(cells) / len(cells)
    ours = {model: sum(ran[task]["ours"][model] for task in used) / len(used) for model in models}
    return {"tasks": len(used), "of": len(tasks), "ours": ours, "published": published}


def markdown(report: dict[str, Any]) -> str:
    """The table, and what has to be known about it."""
    models, methods = report["models"], TABLE["methods"]
    lines = [
        f"{report['measure']}; ours: {', '.join(models)}; the other columns as published.",
        "",
        f"| task | {' | '.join(f'**{model}**' for model in models)} | {' | '.join(methods)} |",
        f"| --- {'| ---: ' * (len(models) + len(methods))}|",
    ]
    for task, row in report["tasks"].items():
        lines.append(_row(task, row))
    for name, row in report["averages"].items():
        if row is not None:
            lines.append(_row(f"{name} ({row['tasks']} of {row['of']} tasks)", row))
    lines.append("")
    for task, row in report["tasks"].items():
        if row["published_sizes"]:
            here = f"{row['documents']:,} documents and {row['queries']:,} queries"
            lines.append(f"- {task}: {here}, published {_sizes(row['published_sizes'])}: another version")
    lines += [f"- not run: {task}: {reason}" for task, reason in report["not_run"].items()]
    return "\n".join(lines)


def _row(name: str, row: dict[str, Any]) -> str:
    cells = [*row["ours"].values(), *(row["published"][method] for method in TABLE["methods"])]
    return f"| {name} | {' | '.join('–' if cell is None else f'{cell:.3f}' for cell in cells)} |"


def _sizes(sizes: dict[str, int]) -> str:
    return f"{sizes['documents']:,} and {sizes['queries']:,}"


if __name__ == "__main__":
    main()
