"""Comparing models, or runs, on a collection with labels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.collection import Collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.evaluation.protocol import evaluate
from beir_cocodr.evaluation.ranked_run import ranked_run
from beir_cocodr.evaluation.recommendation import verdict
from beir_cocodr.evaluation.significance import compare, interval
from beir_cocodr.retrieval.ranking import Results


def compare_labelled(
    models: Sequence[str], collection: Collection, folder: Path, measures: str, **evaluation: Any
) -> tuple[dict[str, Any], dict[str, Results]]:
    """Evaluate all models, test all against all, and say of each pair whether b is better than a.

    "better" and "worse" need a two-tailed paired t-test with p < 0.05 after Holm's correction over all pairs,
    in the first measure.

    Args:
        models: model names, or TREC run files; not both.
        collection: with labels.
        folder: for results.json, runs and per-query scores.
        measures: names that ir-measures knows.
        **evaluation: passed on to :func:`~beir_cocodr.evaluation.protocol.evaluate`.

    Returns:
        ``evaluation``, ``pairs``, ``ranking`` and ``best``, and each model's results.

    Raises:
        InputError: what has to be corrected in models or measures; runs of different query sets.
    """
    files = [model for model in models if Path(model).is_file()]
    if files and len(files) < len(models):
        other = next(model for model in models if model not in files)
        raise InputError(f"{files[0]} is a run file and {other} is not; compare run files or models")
    if files:
        report, results = _judge_runs(files, collection, measures)
    else:
        assert collection.split is not None
        report = evaluate(collection.name, models, folder, measures, collection.split, **evaluation)
        runs = {name: folder / report["models"][name]["run"] for name in models}
        # A model that finds nothing for any query has an empty run.
        results = {name: ranked_run(run) if run.stat().st_size else {} for name, run in runs.items()}
    measure = next(iter(report["models"][models[0]]["measures"]))
    pairs = [test | {"verdict": verdict(test)} for test in report["comparisons"]]
    value = {model: report["models"][model]["measures"][measure] for model in models}
    ranking = sorted(models, key=lambda model: -value[model])
    open_pairs = [
        pair["b"] if pair["a"] == ranking[0] else pair["a"]
        for pair in pairs
        if pair["measure"] == measure and ranking[0] in (pair["a"], pair["b"])
        if pair["verdict"] == "cannot tell"
    ]
    told = f"{ranking[0]} has the highest {measure}, {value[ranking[0]]:.4f}"
    told += f", but cannot be told from {', '.join(open_pairs)}." if open_pairs else ", significantly."
    best = {"model": ranking[0], "reason": told, "indistinguishable": open_pairs}
    return {
        "evaluation": report,
        "measure": measure,
        "pairs": pairs,
        "ranking": ranking,
        "best": best,
    }, results


def _judge_runs(
    files: Sequence[str], collection: Collection, measures: str
) -> tuple[dict[str, Any], dict[str, Results]]:
    wanted = parse_measures(measures)
    results = {file: ranked_run(Path(file)) for file in files}
    _same_queries(results, collection)
    scores = {file: score_queries(wanted, collection.qrels, found) for file, found in results.items()}
    records = {
        file: {
            "model": file,
            "measures": {name: float(values.mean()) for name, values in found.items()},
            "intervals": {name: interval(values) for name, values in found.items()},
            "queries": len(collection.qrels),
            "queries_without_results": sum(not results[file].get(query) for query in collection.qrels),
            "retrieval": {},
            "seconds": 0.0,
            "run": file,
            "per_query": None,
            "scores": {name: np.round(values, 6).tolist() for name, values in found.items()},
        }
        for file, found in scores.items()
    }
    families = {"all against all": list(itertools.combinations(files, 2))}
    report = {
        "dataset": collection.name,
        "split": collection.split,
        "documents": len(collection.documents),
        "queries": len(collection.qrels),
        "models": records,
        "comparisons": [test.as_dict() for test in compare(scores, families)],
    }
    return report, results


def _same_queries(results: dict[str, Results], collection: Collection) -> None:
    """Refuse runs of which one answers judged queries that another does not."""
    answered = {file: results[file].keys() & collection.qrels.keys() for file in results}
    for file, queries in answered.items():
        if not queries:
            raise InputError(
                f"{file} answers none of the {len(collection.qrels)} queries judged in "
                f"{collection.name} ({collection.split}); give a run of these queries, or the right split"
            )
    for (file, queries), (other, others) in itertools.permutations(answered.items(), 2):
        if lacking := [query for query in collection.qrels if query in others and query not in queries]:
            shown = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
            raise InputError(
                f"{file} has no results for queries that {other} answers: {shown}; runs of different query "
                "sets cannot be paired, so search the same queries"
            )
