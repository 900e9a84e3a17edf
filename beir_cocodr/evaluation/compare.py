"""Which of several models is better on a collection, with labels or without.

Comparing models, or runs, on a collection with labels.
"""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.evaluation.label_free.verdict import compare_label_free
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, parse_measures, score_queries
from beir_cocodr.evaluation.recommendation import (
    LABELS_FILE,
    annotation_candidates,
    verdict,
    with_texts,
    write_annotation_candidates,
)
from beir_cocodr.evaluation.runs import identical_ids, ranked_run
from beir_cocodr.evaluation.significance import compare, interval
from beir_cocodr.io import output_folder, write_text
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.provenance import contamination_statement
from beir_cocodr.records import versions
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
        **evaluation: passed on to :func:`~beir_cocodr.evaluation.evaluate.evaluate`.

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


log = logging.getLogger(__name__)

COMPARISON_FILE = "comparison.json"


def compare_models(
    models: Sequence[str],
    dataset: str,
    output: Path | None = None,
    split: str = "test",
    measures: str = DEFAULT_MEASURES,
    labels: bool | None = None,
    policy: str = "auto",
    queries: int | None = None,
    samples: int = 300,
    seed: int = 42,
    wanted: int = 50,
    against: str | None = None,
    search: SearchOptions = SearchOptions(),
) -> dict[str, Any]:
    """Compare two or more models: "better", "worse" or "cannot tell" for each pair, b against a.

    With labels: paired tests, bootstrap intervals, wins, ties and losses, Holm's correction over all pairs.
    Without: estimates from held-out crops, generated queries and agreement with BM25 and with the fusion,
    by a rule that was calibrated on labelled collections, or says that it was not.

    Args:
        models: model names, or, with labels, TREC run files.
        dataset, split: the collection.
        output: folder for comparison.json, labels_wanted.tsv, runs and, with labels, what ``evaluate``
            writes; nothing is kept without it.
        measures: with labels; the first one decides.
        labels: False does without the labels that there are, True insists on them; by default they are used
            where the split has some.
        policy: for documents whose id is the query's, see
            :func:`~beir_cocodr.evaluation.runs.identical_ids`.
        queries: look at only that many queries of the collection, evenly spaced.
        samples, seed: of crops and of generated queries.
        wanted: how many pairs to ask labels for.
        against: ask for those that tell this model from the best of the others, not the two best models.
        search: how models are loaded and search.

    Returns:
        The content of comparison.json: ``dataset``, ``split``, ``labels``, counts, ``pairs`` with a
        ``verdict`` each, ``ranking`` (best first), ``best`` (``model``, ``reason``), ``labels_wanted`` (the
        heaviest first), ``seen`` (see
        :func:`~beir_cocodr.provenance.contamination_statement`); with labels also ``evaluation`` (the content
        of results.json) and ``measure``, without them ``pseudo_queries`` and ``calibration``.

    Raises:
        InputError: fewer than two models, one named twice, or what has to be corrected in the collection,
            the models, the runs or the measures.
    """
    models = list(models)
    if len(models) < 2:
        raise InputError(f"a comparison needs two models, not {len(models)}; name another")
    if len(set(models)) < len(models):
        raise InputError(f"a model is named twice: {', '.join(models)}")
    if against is not None and against not in models:
        raise InputError(f"{against} is none of the models {', '.join(models)}")
    if wanted < 0:
        raise InputError(f"wanted is {wanted}: ask for labels of no pair or more")
    parse_measures(measures)
    policy = identical_ids(dataset, policy)
    collection = _collection(dataset, split, labels)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if output is None else output_folder(output)
        if collection.qrels and labels is not False:
            told, results = compare_labelled(
                models, collection, folder, measures, policy=policy, queries=queries, search=search
            )
        else:
            told, results = compare_label_free(
                models, collection, folder, policy == "drop", queries, samples, seed, search=search
            )
    labelled = "evaluation" in told
    given = contamination_statement([name for name in models if not Path(name).is_file()], collection)
    report = {
        "dataset": dataset,
        "split": split,
        "labels": labelled,
        "documents": len(collection.documents),
        "queries": len(collection.queries),
        "corpus_sha256": collection.documents.content_hash,
        "identical_ids": policy,
        "models": models,
        **told,
        "labels_wanted": _wanted(
            _asked_about(told["ranking"], against), results, collection, wanted, labelled
        ),
        "seen": {name: asdict(found) for name, found in given.items()},
        "versions": versions(),
    }
    if output is not None:
        write_annotation_candidates(output / LABELS_FILE, report["labels_wanted"]["pairs"])
        write_text(output / COMPARISON_FILE, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report


def _collection(dataset: str, split: str, labels: bool | None) -> Collection:
    if labels:
        return load_collection(dataset, split)
    collection = load_collection(dataset, split, labels="optional")
    if labels is None and not collection.qrels:
        log.warning(
            "%s has no judgements of split %r: the verdict is an estimate without labels", dataset, split
        )
    return collection


def _asked_about(ranking: list[str], against: str | None) -> tuple[str, str]:
    """The two models that labels should tell apart."""
    if against is None:
        return ranking[0], ranking[1]
    return against, next(model for model in ranking if model != against)


def _wanted(
    models: tuple[str, str],
    results: dict[str, Results],
    collection: Collection,
    count: int,
    labelled: bool,
) -> dict[str, Any]:
    """Pairs to label, for two models."""
    a, b = models
    if not results:
        return {"a": a, "b": b, "pairs": [], "remark": "the collection has no queries: write some first"}
    rows = annotation_candidates(results[a], results[b], collection.qrels if labelled else None, count)
    remark = "" if rows else "the two rank the same documents at the same ranks, or all are judged"
    pairs = with_texts(rows, collection.queries, collection.documents)
    return {"a": a, "b": b, "pairs": pairs, "remark": remark}
