"""Evaluate models with MTEB on collections, which become its tasks, and on MTEB's own tasks.

python examples/mteb_evaluation.py --dataset apidocs/numpy --model bm25 --model minilm
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mteb
from beir_cocodr.plugins.mteb import register, task


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dataset",
        action="append",
        default=[],
        help="A BEIR folder or name, irds:ID, or apidocs/DOMAIN.",
    )
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        help="A task of MTEB, such as SciFact, which is downloaded.",
    )
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        help="A model: bm25, minilm, hybrid:M, a folder, or a hub name.",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("runs/mteb"),
        help="Keep MTEB's results in this folder.",
    )
    options = parser.parse_args()

    datasets = options.dataset
    if not datasets and not options.task:
        datasets = ["apidocs/numpy"]
    tasks = [task(dataset) for dataset in datasets]
    tasks += [mteb.get_task(name) for name in options.task]
    names = [task.metadata.name for task in tasks]
    print(f"| model | {' | '.join(names)} |")
    print("| --- |" + " ---: |" * len(tasks))
    cache = mteb.ResultCache(options.cache)
    for model in register(*options.model):
        meta = mteb.get_model_meta(model)
        results = mteb.evaluate(
            meta,
            tasks,
            cache=cache,
            show_progress_bar=False,
        )
        scores = [f"{result.get_score():.4f}" for result in results.task_results]
        print(f"| {model} | {' | '.join(scores)} |")


if __name__ == "__main__":
    main()
