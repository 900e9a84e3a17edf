"""Which of several models is better on a collection, with labels or without."""

import itertools
import logging
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.judgements import Judgements, load_judgements, write_annotation_candidates
from beir_cocodr.errors import SEEDS, InputError, check_count, check_names, listed
from beir_cocodr.evaluation.annotation import (
    LABELS_FILE,
    annotation_candidates,
    draw_candidates,
    with_texts,
)
from beir_cocodr.evaluation.evaluate import ALL_PAIRS, evaluate, score_run
from beir_cocodr.evaluation.label_free.evidence import Gatherer
from beir_cocodr.evaluation.label_free.verdict import compare_label_free
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, compare, parse_measures
from beir_cocodr.evaluation.results import (
    AnnotationCandidates,
    Best,
    ComparisonRecord,
    EvaluationRecord,
    Findings,
    indistinguishable,
)
from beir_cocodr.evaluation.runs import identical_ids, ranked_run
from beir_cocodr.io import file_sha256
from beir_cocodr.models.spec import ModelSpec, SearchOptions, check_device, ways_to_use
from beir_cocodr.provenance import contamination_statement
from beir_cocodr.records import versions
from beir_cocodr.retrieval.ranking import Results
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.run_folder import results_folder

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
    judgements: Path | None = None,
    gatherer: Gatherer | None = None,
) -> ComparisonRecord:
    """Compare two or more models: "better", "worse", "no difference" or "cannot tell" for each
    pair, b against a. An InputError: fewer than two models, one named twice, or what has to be
    corrected in the collection, the models, the runs or the measures.

    With labels "better" and "worse" need a two-tailed paired t-test with p < 0.05 after Holm's
    correction over all pairs. Without, the difference in nDCG@10 is estimated with a 90% interval,
    by a model that was fitted to labelled collections, from held-out crops, generated queries and
    agreement with BM25: "no difference" where the interval lies within 0.01, and nothing is decided
    on a collection unlike those.

    Args:
        models: model names, or, with labels, TREC run files.
        dataset, split: the collection.
        output: folder for comparison.json, labels_wanted.tsv, runs and, with labels, what
            ``evaluate`` writes; nothing is kept without it.
        measures: with labels; the first one decides.
        labels: False does without the labels that there are, True insists on them; by default they
            are used where the split has some.
        policy: for documents whose id is the query's, see
            :func:`~beir_cocodr.evaluation.runs.identical_ids`.
        queries: look at only that many queries of the collection, evenly spaced.
        samples, seed: of crops and of generated queries.
        wanted: how many pairs to ask labels for.
        against: ask for those that tell this model from the best of the others, not the two best
            models.
        overwrite: replace the results of another run in ``output``, see
            :func:`~beir_cocodr.run_folder.results_folder`.
        judgements: a file of some judged queries, see
            :func:`~beir_cocodr.data.judgements.load_judgements`. Estimates without labels are then
            joined with them, and labels of the split are not looked at. A single encoder stands for
            every use of it that needs no training (:func:`~beir_cocodr.models.spec.ways_to_use`).
        gatherer: of the same corpus, models and settings, where it is asked more than once.

    Example:
        >>> from beir_cocodr import compare
        >>> comparison = compare(["bm25", "minilm"], "apidocs/numpy", queries=20)
        >>> comparison.pairs[0].verdict in ("better", "worse", "no difference", "cannot tell")  # of minilm
        True
    """
    models = list(models)
    if judgements is not None and len(models) == 1:
        against = against or models[0]
        models = uses_of(models[0], len(load_collection(dataset, labels="none").documents))
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
    if judgements is not None and labels:
        raise InputError("either labels of the split judge or judgements of a file: leave one out")
    collection = load_collection(dataset, split, labels="required" if labels else "optional")
    judged = (
        None
        if judgements is None
        else load_judgements(judgements).of(collection.queries, collection.documents)
    )
    if output is not None:
        check_judgements_kept(output / LABELS_FILE, judgements)
    if labels is None and judged is None and not collection.qrels:
        log.warning(
            "%s has no judgements of split %r: the verdict is an estimate without labels",
            dataset,
            split,
        )
    labelled = bool(collection.qrels) and labels is not False and judged is None
    if not labelled and (file := next((model for model in models if Path(model).is_file()), None)):
        raise InputError(
            f"{file}: a run cannot be judged without labels, nothing can be searched with it; name models"
        )
    settings = {
        "dataset": dataset,
        "split": split,
        "models": models,
        "measures": measures,
        "labels": labelled,
    }
    settings |= {
        "samples": samples,
        "seed": seed,
        "wanted": wanted,
        "against": against,
        "queries": queries,
    }
    settings |= {"identical_ids": policy, "search": search.describe()}
    settings |= {} if judgements is None else {"judgements": file_sha256(judgements)}
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        if output is not None:
            folder = stack.enter_context(
                results_folder(output, {"command": "compare", **settings}, overwrite)
            )
        if labelled:
            found, results = _compare_labelled(
                models, collection, folder, measures, policy, queries, search
            )
        else:
            place = Path(
                stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=".embeddings-"))
            )
            if gatherer is None:
                gatherer = Gatherer(
                    Resources(collection.documents, place, search),
                    models,
                    samples=samples,
                    seed=seed,
                    drop_identical_ids=policy == "drop",
                )
            found, results = compare_label_free(
                gatherer, collection, folder, queries, judged, against
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
            labels_wanted=_candidates(
                found.ranking, against, results, collection, wanted, labelled, judged
            ),
            seen=contamination_statement(
                [name for name in models if not Path(name).is_file()], collection
            ),
            versions=versions(),
        )
        done = (
            [] if judged is None else [pair for pair in judged.rows if pair.judgement is not None]
        )
        write_annotation_candidates(folder / LABELS_FILE, [*done, *record.labels_wanted.pairs])
        record.write(folder / COMPARISON_FILE)
    return record


def _candidates(
    ranking: list[str],
    against: str | None,
    results: dict[str, Results],
    collection: Collection,
    count: int,
    labelled: bool,
    judged: Judgements | None,
) -> AnnotationCandidates:
    """Pairs to label: between the two best models, or between ``against`` and the best of the
    others. Without labels they are drawn by chance; what a table of judgements left blank comes
    first.
    """
    a = against or ranking[0]
    b = next(model for model in ranking if model != a)
    if not results:
        return AnnotationCandidates(a, b, [], "the collection has no queries: write some first")
    if labelled:
        pairs = annotation_candidates(results[a], results[b], collection.qrels, count)
    else:
        pairs = (
            []
            if judged is None
            else [pair for pair in judged.rows if pair.judgement is None][:count]
        )
        begun = {pair.query_id for pair in pairs} | (
            set() if judged is None else judged.queries.keys()
        )
        pairs += draw_candidates(results, a, b, begun, count - len(pairs))
    remark = "" if pairs else "the two rank the same documents at the same ranks, or all are judged"
    texts = collection.queries | (
        {} if judged is None else {id: query.text for id, query in judged.queries.items()}
    )
    return AnnotationCandidates(a, b, with_texts(pairs, texts, collection.documents), remark)


#: The most documents for which one vector in place of two is tried without making it.
MOST_FOR_VECTORS = 50_000


def uses_of(encoder: str, documents: int) -> list[str]:
    """What a single encoder stands for, on a corpus of so many documents; BM25 first."""
    if ModelSpec.parse(encoder).kind != "dense" or Path(encoder).is_file():
        raise InputError(
            f"{encoder} is no encoder: name one, whose uses are compared, or two models or more"
        )
    ways = ways_to_use(encoder)
    if documents > MOST_FOR_VECTORS:
        log.info("%d documents: hybrid encoders are not tried before they are fused", documents)
        ways = [name for name in ways if ModelSpec.parse(name).kind != "vector"]
    return ways


def check_judgements_kept(table: Path, judgements: Path | None) -> None:
    """Check that a table that is about to be written over holds no judgement that is not read
    first.
    """
    if not table.is_file() or (judgements is not None and judgements.samefile(table)):
        return
    try:
        found = load_judgements(table).queries
    except InputError:  # of an earlier version, which had no such column
        return
    read = {} if judgements is None else load_judgements(judgements).qrels
    if lost := [
        id for id, query in found.items() if not query.grades.keys() <= read.get(id, {}).keys()
    ]:
        raise InputError(
            f"{table} holds judgements of {len(lost)} queries, and would be written over: name it with "
            "--judgements, or move it away"
        )


def _compare_labelled(
    models: Sequence[str],
    collection: Collection,
    folder: Path,
    measures: str,
    policy: str,
    queries: int | None,
    search: SearchOptions,
) -> tuple[Findings, dict[str, Results]]:
    """Evaluate all models, or score all TREC run files, test all against all, and rank them by the
    first measure: what was found, and each model's results. An InputError for what has to be
    corrected, other queries, runs and models.
    """
    files = [model for model in models if Path(model).is_file()]
    if files and (others := [model for model in models if model not in files]):
        raise InputError(
            f"{files[0]} is a run file and {others[0]} is not; compare run files or models"
        )
    if files:
        record, results = _judge_runs(files, collection, measures)
    else:
        split = str(collection.split)
        record = evaluate(
            collection.name, models, folder, measures, split, policy, queries=queries, search=search
        )
        runs = {name: folder / record.models[name].run for name in models}
        # A model that finds nothing for any query has an empty run.
        results = {
            name: ranked_run(run) if run.stat().st_size else {} for name, run in runs.items()
        }
    measure = record.measures[0]
    value = {model: record.models[model].measures[measure] for model in models}
    best, *_ = ranking = sorted(models, key=lambda model: -value[model])
    open_pairs = indistinguishable(
        best, [test for test in record.comparisons if test.measure == measure]
    )
    reason = f"{best} has the highest {measure}, {value[best]:.4f}"
    reason += (
        f", but cannot be told from {', '.join(open_pairs)}." if open_pairs else ", significantly."
    )
    chosen = Best(best, reason, open_pairs)
    return Findings(
        ranking=ranking, best=chosen, measure=measure, evaluation=record, pairs=record.comparisons
    ), results


def _judge_runs(
    files: list[str], collection: Collection, measures: str
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
        if lacking := [
            query for query in collection.qrels if query in others and query not in queries
        ]:
            raise InputError(
                f"{file} has no results for queries that {other} answers: {listed(lacking)}; runs of different query "
                "sets cannot be paired, so search the same queries"
            )
