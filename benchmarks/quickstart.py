"""The quickstart over several seeds: mean and spread of every row of its table.

Each seed is a cell that is kept in --output and not run again. Writes
benchmarks/results/quickstart.json and puts its table into the documentation.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from machine import PAGE, machine, write_table

from beir_cocodr.evaluation.measures import compare
from beir_cocodr.io import write_text
from beir_cocodr.records import versions
from beir_cocodr.training.adapt import quickstart

RESULTS = Path(__file__).parent / "results" / "quickstart.json"
START, END = "<!-- quickstart table -->", "<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[13, 42, 97])
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-quickstart"))
    arguments = parser.parse_args()
    if len(arguments.seeds) < 2:
        parser.error("a spread needs at least two seeds")
    cells = [run(arguments.output / f"seed-{seed}", seed) for seed in arguments.seeds]
    write_text(
        RESULTS, json.dumps(summarize(cells, arguments.seeds, arguments.output), indent=2) + "\n"
    )
    table = markdown(json.loads(RESULTS.read_text()))
    write_table(PAGE, START, END, table)
    print(table)


def run(folder: Path, seed: int) -> dict[str, Any]:
    """One seed, kept when it is complete; a part of one is made again, since its wall time would be
    wrong.
    """
    clock = folder / "seconds.json"
    if not clock.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        start, processor = time.perf_counter(), time.process_time()
        quickstart(folder, seed=seed)
        spent = {
            "wall_seconds": time.perf_counter() - start,
            "processor_seconds": time.process_time() - processor,
        }
        write_text(clock, json.dumps(spent))
    report: dict[str, Any] = json.loads((folder / "adapt.json").read_text())
    return report | dict(json.loads(clock.read_text()))


def summarize(cells: list[dict[str, Any]], seeds: list[int], output: Path) -> dict[str, Any]:
    first = cells[0]["results"]
    measures = list(first["models"]["base"]["measures"])
    rows = {}
    for label in first["models"]:
        rows[label] = {}
        for measure in measures:
            values = [cell["results"]["models"][label]["measures"][measure] for cell in cells]
            rows[label][measure] = {
                "mean": np.mean(values),
                "sd": np.std(values, ddof=1),
                "seeds": values,
            }
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "seeds": seeds,
        "corpus": cells[0]["corpus"],
        "source": cells[0]["source"],
        "documents": first["documents"],
        "queries": first["queries"],
        **{
            name: [round(cell[name]) for cell in cells]
            for name in ("wall_seconds", "processor_seconds")
        },
        "rows": rows,
        "mean_over_seeds_against_base": against_base(output, seeds, list(first["models"])),
        "recommended": [cell["recommendation"]["model"] for cell in cells],
        "verdicts": [cell["recommendation"]["verdicts"] for cell in cells],
        "versions": versions(),
    }


def against_base(output: Path, seeds: list[int], labels: list[str]) -> list[dict[str, Any]]:
    """Paired tests of per-query nDCG@10 averaged over seeds, every row against the base alone."""
    scores = {}
    for label in labels:
        runs = []
        for seed in seeds:
            record = json.loads((output / f"seed-{seed}" / "results.json").read_text())["models"][
                label
            ]
            lines = (output / f"seed-{seed}" / record["per_query"]).read_text().splitlines()
            column = lines[0].split("\t").index("nDCG@10")
            runs.append([float(line.split("\t")[column]) for line in lines[1:]])
        scores[label] = {"nDCG@10": np.mean(runs, axis=0)}
    pairs = [("base", label) for label in labels if label != "base"]
    return [asdict(test) for test in compare(scores, {"everything against the base alone": pairs})]


def markdown(results: dict[str, Any]) -> str:
    tests = {test["b"]: test for test in results["mean_over_seeds_against_base"]}
    lines = ["| model | nDCG@10 | R@100 | against base, nDCG@10 |", "| --- | --- | --- | --- |"]
    for label, row in results["rows"].items():
        cells = [
            f"{row[measure]['mean']:.3f} ± {row[measure]['sd']:.3f}"
            for measure in ("nDCG@10", "R@100")
        ]
        test = tests.get(label)
        told = "" if test is None else f"{test['difference']:+.3f} (p {_p(test['t_p_holm'])})"
        lines.append(f"| {label} | {' | '.join(cells)} | {told} |")
    machine = results["machine"]
    lines += [
        "",
        f"{results['documents']:,} documents, {results['queries']} queries; mean ± standard deviation over "
        f"{len(results['seeds'])} seeds; p from a paired t-test over queries (scores averaged over seeds) "
        f"after Holm's correction; {results['date']}, {machine['cores']} cores of {machine['cpu']}.",
    ]
    return "\n".join(lines)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


if __name__ == "__main__":
    main()
