"""Which of several models is better on a collection, with labels or without."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import SEEDS, InputError, check_count, check_names
from beir_cocodr.evaluation.evaluate import ALL_PAIRS, evaluate, score_run
from beir_cocodr.evaluation.label_free.verdict import compare_label_free
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, compare, parse_measures
from beir_cocodr.evaluation.recommendation import (
    LABELS_FILE,
    annotation_candidates,
    with_texts,
    write_annotation_candidates,
)
from beir_cocodr.evaluation.records import (
    AnnotationCandidates,
    Best,
    ComparisonRecord,
    EvaluationRecord,
    Findings,
    indistinguishable,
)
from beir_cocodr.evaluation.runs import identical_ids, ranked_run
from beir_cocodr.io import results_folder
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.provenance import contamination_statement
from beir_cocodr.records import versions
from beir_cocodr.retrieval.ranking import Results

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
    overwrite: bool = False,
) -> ComparisonRecord:
    """Compare two or more models: "better", "worse", "no difference" or "cannot tell" for each pair, b against a.

    With labels "better" and "worse" need a two-tailed paired t-test with p < 0.05 after Holm's correction over all
    pairs. Without, the difference in nDCG@10 is estimated with a 90% interval, by a model that was fitted to labelled
    collections, from held-out crops, generated queries and agreement with BM25: "no difference" where the interval lies
    within 0.01, and nothing is decided on a collection unlike those.

    Args:
        models: model names, or, with labels, TREC run files.
        dataset, split: the collection.
        output: folder for comparison.json, labels_wanted.tsv, runs and, with labels, what ``evaluate`` writes; nothing
            is kept without it.
        measures: with labels; the first one decides.
        labels: False does without the labels that there are, True insists on them; by default they are used where the
            split has some.
        policy: for documents whose id is the query's, see :func:`~beir_cocodr.evaluation.runs.identical_ids`.
        queries: look at only that many queries of the collection, evenly spaced.
        samples, seed: of crops and of generated queries.
        wanted: how many pairs to ask labels for.
        against: ask for those that tell this model from the best of the others, not the two best models.
        overwrite: replace the results of another run in ``output``, see :func:`~beir_cocodr.io.results_folder`.

    Raises:
        InputError: fewer than two models, one named twice, or what has to be corrected in the collection, the models,
            the runs or the measures.

    Example:
        >>> from beir_cocodr import compare
        >>> comparison = compare(["bm25", "minilm"], "apidocs/numpy", queries=20)
        >>> comparison.pairs[0].verdict in ("better", "worse", "no difference", "cannot tell")  # of minilm
        True
    """
    models = list(models)
    if len(models) < 2:
        raise InputError(f"a comparison needs two models, not {len(models)}; name another")
    check_names("model", models)
    if against is not None and against not in models:
        raise InputError(f"{against} is none of the models {', '.join(models)}")
    check_count("wanted", wanted, least=0)
    check_count("samples", samples)
    SEEDS.check("seed", seed)
    check_device(search.encoder.device, [model for model in models if not Path(model).is_file()])
    parse_measures(measures)
    policy = identical_ids(dataset, policy)
    collection = load_collection(dataset, split, labels="required" if labels else "optional")
    if labels is None and not collection.qrels:
        log.warning("%s has no judgements of split %r: the verdict is an estimate without labels", dataset, split)
    labelled = bool(collection.qrels) and labels is not False
    settings = {"dataset": dataset, "split": split, "models": models, "measures": measures, "labels": labelled}
    settings |= {"samples": samples, "seed": seed, "wanted": wanted, "against": against, "queries": queries}
    settings |= {"identical_ids": policy, "search": search.describe()}
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        if output is not None:
            folder = stack.enter_context(results_folder(output, {"command": "compare", **settings}, overwrite))
        if labelled:
            found, results = compare_labelled(
                models, collection, folder, measures, policy=policy, queries=queries, search=search
            )
        else:
            found, results = compare_label_free(
                models, collection, folder, policy == "drop", queries, samples, seed, search=search
            )
        record = ComparisonRecord(
            **vars(found),
            dataset=dataset,
            split=split,
            labels=labelled,
            documents=len(collection.documents),
            queries=len(collection.queries),
            corpus_sha256=collection.documents.content_hash,
            identical_ids=policy,
            models=models,
            labels_wanted=_candidates(found.ranking, against, results, collection, wanted, labelled),
            seen=contamination_statement([name for name in models if not Path(name).is_file()], collection),
            versions=versions(),
        )
        write_annotation_candidates(folder / LABELS_FILE, record.labels_wanted.pairs)
        record.write(folder / COMPARISON_FILE)
    return record


def _candidates(
    ranking: list[str],
    against: str | None,
    results: dict[str, Results],
    collection: Collection,
    count: int,
    labelled: bool,
) -> AnnotationCandidates:
    """Pairs to label: between the two best models, or between ``against`` and the best of the others."""
    a = against or ranking[0]
    b = next(model for model in ranking if model != a)
    if not results:
        return AnnotationCandidates(a, b, [], "the collection has no queries: write some first")
    pairs = annotation_candidates(results[a], results[b], collection.qrels if labelled else None, count)
    remark = "" if pairs else "the two rank the same documents at the same ranks, or all are judged"
    return AnnotationCandidates(a, b, with_texts(pairs, collection.queries, collection.documents), remark)


def compare_labelled(
    models: Sequence[str],
    collection: Collection,
    folder: Path,
    measures: str,
    policy: str = "auto",
    queries: int | None = None,
    search: SearchOptions = SearchOptions(),
) -> tuple[Findings, dict[str, Results]]:
    """Evaluate all models, or score all TREC run files, test all against all, and rank them by the first measure.

    Args:
        collection: with labels.
        folder: for results.json, runs and per-query scores.
        policy, queries, search: see :func:`~beir_cocodr.evaluation.evaluate.evaluate`.

    Returns:
        What was found, and each model's results.

    Raises:
        InputError: what has to be corrected in models or measures; runs of different query sets; runs and models.
    """
    files = [model for model in models if Path(model).is_file()]
    if files and (others := [model for model in models if model not in files]):
        raise InputError(f"{files[0]} is a run file and {others[0]} is not; compare run files or models")
    if files:
        record, results = _judge_runs(files, collection, measures)
    else:
        split = str(collection.split)
        record = evaluate(collection.name, models, folder, measures, split, policy, queries=queries, search=search)
        runs = {name: folder / record.models[name].run for name in models}
        # A model that finds nothing for any query has an empty run.
        results = {name: ranked_run(run) if run.stat().st_size else {} for name, run in runs.items()}
    measure = record.measures[0]
    value = {model: record.models[model].measures[measure] for model in models}
    best, *_ = ranking = sorted(models, key=lambda model: -value[model])
    open_pairs = indistinguishable(best, [test for test in record.comparisons if test.measure == measure])
    reason = f"{best} has the highest {measure}, {value[best]:.4f}"
    reason += f", but cannot be told from {', '.join(open_pairs)}." if open_pairs else ", significantly."
    chosen = Best(best, reason, open_pairs)
    return Findings(ranking=ranking, best=chosen, measure=measure, evaluation=record, pairs=record.comparisons), results


def _judge_runs(
    files: Sequence[str], collection: Collection, measures: str
) -> tuple[EvaluationRecord, dict[str, Results]]:
    wanted = parse_measures(measures)
    results = {file: ranked_run(Path(file)) for file in files}
    _same_queries(results, collection)
    figures, scores = {}, {}
    for file, found in results.items():
        figures[file], scores[file] = score_run(file, file, found, collection.qrels, wanted)
        listed = {name: np.round(values, 6).tolist() for name, values in scores[file].items()}
        figures[file] = replace(figures[file], scores=listed)
    record = EvaluationRecord(
        dataset=collection.name,
        split=collection.split,
        documents=len(collection.documents),
        queries=len(collection.qrels),
        models=figures,
        comparisons=compare(scores, {ALL_PAIRS: list(itertools.combinations(files, 2))}),
    )
    return record, results


def _same_queries(results: dict[str, Results], collection: Collection) -> None:
    """Check that no run answers judged queries that another does not."""
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
