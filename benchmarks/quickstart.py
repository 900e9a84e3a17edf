"""Claim: training without labels of the target makes the packaged MiniLM better on it.

The script runs ``quickstart`` once with each seed and summarises its table: mean and spread of
every row, and paired tests against the base. The run of a seed is kept in ``--work`` and not
repeated. It writes ``benchmarks/results/quickstart.json``, puts the table into ``docs/results.md``
and prints it:

    python benchmarks/quickstart.py [--seeds 13 42 97]
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from harness.measure import timed
from harness.page import PAGE, Marks, markdown_table
from harness.script import (
    add_seeds,
    add_work,
    option_parser,
    origin,
    read_json,
    results_file,
    write_results,
)
from harness.study import read_per_query, spread

from beir_cocodr.evaluation.measures import paired_tests
from beir_cocodr.io import write_text
from beir_cocodr.training.quickstart import quickstart

MARKS = Marks("<!-- quickstart table -->", "<!-- end -->")
MEASURES = ("nDCG@10", "R@100")

# Minutes in which every machine runs the whole quickstart.
_IN_FULL = 10_000.0


def run(folder: Path, seed: int) -> dict[str, Any]:
    """Return the record of one seed, with its seconds.

    A run that was interrupted starts again, since its seconds would be wrong.
    """
    clock = folder / "seconds.json"
    if not clock.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        _, timing = timed(lambda: quickstart(folder, seed=seed, minutes=_IN_FULL))
        seconds = {
            "wall_seconds": timing.wall,
            "processor_seconds": timing.processor,
        }
        write_text(clock, json.dumps(seconds))
    return read_json(folder / "adapt.json") | read_json(clock)


def summarize(
    cells: list[dict[str, Any]],
    seeds: list[int],
    work: Path,
) -> dict[str, Any]:
    """Summarise the records of all seeds."""
    first = cells[0]["results"]
    labels = list(first["models"])
    rows: dict[str, dict[str, Any]] = {}
    for label in labels:
        rows[label] = {}
        for measure in first["models"]["base"]["measures"]:
            models = [cell["results"]["models"] for cell in cells]
            rows[label][measure] = spread([model[label]["measures"][measure] for model in models])
    recommendations = [cell["recommendation"] for cell in cells]
    return {
        "seeds": seeds,
        "corpus": cells[0]["corpus"],
        "source": cells[0]["source"],
        "documents": first["documents"],
        "queries": first["queries"],
        "wall_seconds": [round(cell["wall_seconds"]) for cell in cells],
        "processor_seconds": [round(cell["processor_seconds"]) for cell in cells],
        "rows": rows,
        "mean_over_seeds_against_base": against_base(work, seeds, labels),
        "recommended": [one["model"] for one in recommendations],
        "verdicts": [one["verdicts"] for one in recommendations],
    }


def against_base(
    work: Path,
    seeds: list[int],
    labels: list[str],
) -> list[dict[str, Any]]:
    """Test every row against the base, by nDCG@10 of the queries averaged over seeds."""
    scores = {}
    for label in labels:
        runs = []
        for seed in seeds:
            folder = work / f"seed-{seed}"
            record = read_json(folder / "results.json")["models"][label]
            per_query = read_per_query(folder / record["per_query"], "nDCG@10")
            runs.append(list(per_query.values()))
        scores[label] = {"nDCG@10": np.mean(runs, axis=0)}
    pairs = [("base", label) for label in labels if label != "base"]
    families = {"everything against the base alone": pairs}
    return [asdict(test) for test in paired_tests(scores, families)]


def markdown(results: dict[str, Any]) -> str:
    """Format the table of all rows, and the line below it."""
    tests = {test["b"]: test for test in results["mean_over_seeds_against_base"]}
    rows = []
    for label, row in results["rows"].items():
        cells = [f"{row[name]['mean']:.3f} ± {row[name]['sd']:.3f}" for name in MEASURES]
        rows.append([label, *cells, _describe_test(tests.get(label))])
    header = ["model", *MEASURES, "against base, nDCG@10"]
    machine = results["machine"]
    footer = (
        f"{results['documents']:,} documents, {results['queries']} queries; "
        f"mean ± standard deviation over {len(results['seeds'])} seeds; "
        "p from a paired t-test over queries (scores averaged over seeds) "
        f"after Holm's correction; {results['date'][:10]}, "
        f"{machine['cores']} cores of {machine['cpu']}."
    )
    return "\n".join([markdown_table(header, rows), "", footer])


def _describe_test(test: dict[str, Any] | None) -> str:
    if test is None:
        return ""
    p = test["t_p_holm"]
    chance = "< 0.001" if p < 0.001 else f"= {p:.3f}"
    return f"{test['difference']:+.3f} (p {chance})"


def main() -> None:
    parser = option_parser(__doc__, "quickstart")
    add_seeds(parser)
    add_work(parser, "runs/benchmark-quickstart")
    options = parser.parse_args()
    cells = [run(options.work / f"seed-{seed}", seed) for seed in options.seeds]
    results = origin() | summarize(cells, options.seeds, options.work)
    write_results(options.results, results)
    table = markdown(read_json(options.results))
    if options.results == results_file("quickstart"):
        MARKS.write(PAGE, table)
    print(table)


if __name__ == "__main__":
    main()
