"""Evaluate models with MTEB: collections as its tasks, beside tasks of its own.

python examples/mteb_evaluation.py --dataset apidocs/numpy --model bm25 --model minilm
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mteb
from beir_cocodr.plugins.mteb import register, task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset",
        action="append",
        default=[],
        help="BEIR folder or name, irds:ID, apidocs/DOMAIN",
    )
    parser.add_argument(
        "--task", action="append", default=[], help="a task of MTEB, such as SciFact; downloaded"
    )
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        help="bm25, minilm, hybrid:M, a folder, a hub name",
    )
    parser.add_argument(
        "--cache", type=Path, default=Path("runs/mteb"), help="folder that keeps MTEB's results"
    )
    given = parser.parse_args()

    tasks = [
        *map(task, given.dataset or ["apidocs/numpy"] * (not given.task)),
        *map(mteb.get_task, given.task),
    ]
    names = register(*given.model)
    cache = mteb.ResultCache(given.cache)
    print("| model | " + " | ".join(task.metadata.name for task in tasks) + " |")
    print("| --- |" + " ---: |" * len(tasks))
    for name in names:
        found = mteb.evaluate(
            mteb.get_model_meta(name), tasks, cache=cache, show_progress_bar=False
        )
        print(
            f"| {name} | "
            + " | ".join(f"{result.get_score():.4f}" for result in found.task_results)
            + " |"
        )


if __name__ == "__main__":
    main()
