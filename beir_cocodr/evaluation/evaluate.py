"""Models evaluated on one collection: runs, measures, scores of queries, paired tests."""

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Array, spaced_rows
from beir_cocodr.data.collection import (
    Collection,
    Dataset,
    check_apart,
    is_dataset,
    load_collection,
    load_labelled,
)
from beir_cocodr.data.judgements import Judgements, judgements_file, load_judgements
from beir_cocodr.deprecation import former_signature
from beir_cocodr.errors import InputError, check_options_type, explained, listed
from beir_cocodr.evaluation.few_labels import judge
from beir_cocodr.evaluation.measures import (
    DEFAULT_MEASURES,
    Families,
    MeasureNames,
    Measures,
    depth,
    interval,
    measure_names,
    paired_tests,
    parse_measures,
    score_queries,
)
from beir_cocodr.evaluation.results import EvaluationRecord, ModelResult
from beir_cocodr.evaluation.runs import (
    file_names,
    identical_ids,
    identity_of_model,
    run_results,
    write_run,
)
from beir_cocodr.io import atomic_writer, file_sha256, output_path
from beir_cocodr.models.spec import RUN, ModelSpec, Options, SearchOptions, check_device, option
from beir_cocodr.progress import step, steps
from beir_cocodr.records import Json, versions
from beir_cocodr.retrieval.ranking import Ranker, Results
from beir_cocodr.retrieval.resolve import Models, resolve_models
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.run_folder import results_folder

log = logging.getLogger(__name__)

#: The question of tests between all models.
ALL_PAIRS = "all against all"

#: Query id to {document id: grade}.
Qrels = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """Options of an evaluation of models.

    Args:
        identical_ids: "keep" or "drop" documents whose id is the query's; "auto" drops them on
            ArguAna and Quora, see :func:`~beir_cocodr.evaluation.runs.identical_ids`.
        top_k: documents of a query in a run; by default as many as the measures need.
        queries: evaluate only this many queries, evenly spaced; the record says so.
        judgements: a file that judges in place of the labels, see
            :func:`~beir_cocodr.data.judgements.load_judgements`.
        overwrite: replace the results of another run in the output folder, see
            :func:`~beir_cocodr.io.results_folder`.
    """

    identical_ids: str = "auto"
    top_k: int | None = option(None, min=1)
    queries: int | None = option(None, min=1)
    judgements: str | Path | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class EvaluationTask:
    """The task of an evaluation, apart from its models and its collection.

    Attributes:
        measures: parsed; the first one decides.
        measure_text: their names, as the user gave them.
        split: the split that was asked for.
        options: see :class:`EvaluateOptions`.
        families: questions, each with the (a, b) labels to test for it; None tests all pairs.
    """

    measures: Measures
    measure_text: str
    split: str = "test"
    options: EvaluateOptions = EvaluateOptions()
    families: Families | None = None

    @classmethod
    def of(
        cls,
        measures: MeasureNames,
        split: str = "test",
        options: EvaluateOptions = EvaluateOptions(),
        families: Families | None = None,
    ) -> "EvaluationTask":
        """Return the task of unparsed measures.

        Raises:
            InputError: If ir-measures does not know one, or the identical ids are unknown.
        """
        text = measures if isinstance(measures, str) else " ".join(measure_names(measures))
        identical_ids("", options.identical_ids)
        return cls(parse_measures(measures), text, split, options, families)

    @property
    def top_k(self) -> int:
        """Return the number of documents of a query in a run."""
        needed = depth(self.measures)
        if self.options.top_k is None:
            return needed
        return self.options.top_k


@former_signature(
    order=(
        "dataset",
        "models",
        "output",
        "measures",
        "split",
        "options.identical_ids",
        "options.top_k",
        "",
        "options.queries",
        "search",
        "options.overwrite",
        "options.judgements",
    ),
    swapped=lambda first, second: is_dataset(first) and not is_dataset(second),
    policy="options.identical_ids",
)
def evaluate(
    models: Models,
    dataset: Dataset,
    *,
    measures: MeasureNames = DEFAULT_MEASURES,
    split: str = "test",
    output: str | Path | None = None,
    options: EvaluateOptions = EvaluateOptions(),
    search: SearchOptions = SearchOptions(),
) -> EvaluationRecord:
    """Search a labelled collection with every model and judge the runs.

    Args:
        models: one model, several, or a mapping from labels to models. A model is a name ("bm25",
            "minilm", "hybrid:minilm", a folder), a loaded ``SentenceTransformer``, any object with
            ``encode``, any :class:`~beir_cocodr.retrieval.resolve.Retriever`, a TREC run file, or
            a run {query id: {document id: score}}.
        dataset: as for :func:`~beir_cocodr.data.collection.load_collection`; it needs labels.
        measures: names that ir-measures knows, in one string or a list, or its measures.
        split: the split of the labels.
        output: folder for results.json, NAME.run and NAME.per_query.tsv; nothing is written
            without it.
        options: identical ids, depth of runs, number of queries, judgements of a file.
        search: how models that are named by strings are loaded and search.

    Returns:
        The measures of each model with intervals, and paired tests between all models. It shows as
        a table in notebooks; ``to_frame()`` gives a pandas frame.

    Raises:
        InputError: If the collection, a model or a measure must be corrected, or ``output`` holds
            the results of another run.

    Example:
        >>> from beir_cocodr import EvaluateOptions, evaluate
        >>> twenty = EvaluateOptions(queries=20)
        >>> record = evaluate(["bm25", "minilm"], "apidocs/numpy", output="judged", options=twenty)
        >>> sorted(record.models["minilm"].measures)
        ['R@100', 'nDCG@10']
        >>> [test.b for test in record.comparisons if test.measure == "nDCG@10"]
        ['minilm']
        >>> from pathlib import Path
        >>> sorted(file.name for file in Path("judged").glob("bm25*"))
        ['bm25.per_query.tsv', 'bm25.run']
    """
    check_options_type(options, EvaluateOptions)
    check_apart(output, dataset)
    check_options_type(search, SearchOptions, "search")
    specs = resolve_models(models)
    check_device(search.encoder.device, specs.values())
    task = EvaluationTask.of(measures, split, options)
    if options.judgements is None:
        collection = load_labelled(dataset, split)
    else:
        collection = load_collection(dataset, split, labels="optional")
    return evaluate_collection(specs, collection, task, output, search)


def evaluate_collection(
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    task: EvaluationTask,
    output: str | Path | None = None,
    search: SearchOptions = SearchOptions(),
    resources: Resources | None = None,
) -> EvaluationRecord:
    """Evaluate resolved models on a loaded collection.

    Args:
        specs: label to model.
        collection: has labels, unless the task has judgements.
        task: measures and options.
        output: folder for the results, None to write nothing.
        search: how models search, if there are no resources.
        resources: what the models share with other stages of a run.

    Returns:
        What results.json holds.
    """
    if resources is not None:
        search = resources.options
    with ExitStack() as stack:
        folder = None
        if output is not None:
            run = _settings(specs, collection, task, search)
            folder = stack.enter_context(
                results_folder(output_path(output), run, task.options.overwrite)
            )
        if resources is None:
            temporary = Resources.temporary(collection.documents, search, folder)
            resources = stack.enter_context(temporary)
        record, _ = evaluate_into(folder, specs, collection, task, resources)
    return record


def _settings(
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    task: EvaluationTask,
    search: SearchOptions,
) -> Json:
    """Return what makes two evaluations the same run."""
    settings: Json = {
        "command": "evaluate",
        "dataset": collection.name,
        "split": task.split,
        "models": {label: identity_of_model(spec) for label, spec in specs.items()},
        "measures": task.measure_text,
        "identical_ids": identical_ids(collection.name, task.options.identical_ids),
        "top_k": task.top_k,
        "queries": task.options.queries,
        "search": search.describe(),
        "families": _families(specs, task),
    }
    if task.options.judgements is not None:
        settings["judgements"] = file_sha256(judgements_file(task.options.judgements))
    return settings


def _families(specs: Iterable[str], task: EvaluationTask) -> Families:
    return task.families or {ALL_PAIRS: list(itertools.combinations(specs, 2))}


@dataclass(frozen=True)
class _Judged:
    """The queries that are evaluated, and the labels that judge them.

    Attributes:
        queries: query id to text.
        qrels: query id to {document id: grade}.
        few: the judgements of a file, None where the collection's labels judge.
    """

    queries: dict[str, str]
    qrels: Qrels
    few: Judgements | None

    @classmethod
    def of(cls, collection: Collection, options: EvaluateOptions) -> "_Judged":
        if options.judgements is None:
            kept = spaced(collection.qrels, options.queries)
            queries = {id: collection.queries[id] for id in kept}
            return cls(queries, {id: collection.qrels[id] for id in kept}, None)
        file = Path(options.judgements)
        judgements = load_judgements(file).of(collection.queries, collection.documents)
        if judgements.drawn:
            log.warning(
                "%s: its pairs were drawn at random, which the measures ignore; the nDCG@10 of "
                "few_labels takes it into account",
                file,
            )
        kept = spaced(judgements.qrels, options.queries)
        few = replace(judgements, queries={id: judgements.queries[id] for id in kept})
        queries = {id: few.queries[id].text for id in kept}
        return cls(queries, {id: judgements.qrels[id] for id in kept}, few)


@dataclass(frozen=True)
class _Searched:
    """The results of one model, and how they were obtained; a run was not searched."""

    results: Results
    retrieval: Json | None = None
    index_seconds: float = 0.0
    search_seconds: float = 0.0


def evaluate_into(
    folder: Path | None,
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    task: EvaluationTask,
    resources: Resources,
) -> tuple[EvaluationRecord, dict[str, Results]]:
    """Evaluate models and write results to a folder, if there is one.

    Returns:
        What results.json holds, and label to the results of its run.
    """
    if task.top_k < depth(task.measures):
        log.warning(
            "runs contain %d documents per query, but the measures look at up to %d",
            task.top_k,
            depth(task.measures),
        )
    judged = _Judged.of(collection, task.options)
    policy = identical_ids(collection.name, task.options.identical_ids)
    names = file_names(specs, specs)
    models: dict[str, ModelResult] = {}
    scores: dict[str, dict[str, Array]] = {}
    results: dict[str, Results] = {}
    for label, searched in _search(specs, judged.queries, task.top_k, policy == "drop", resources):
        spec = specs[label]
        results[label] = searched.results
        scores[label] = score_queries(task.measures, judged.qrels, searched.results)
        figures = _figures(spec, searched, judged, scores[label])
        if searched.retrieval is not None:
            documents = len(collection.documents)
            figures = replace(figures, documents=documents, identical_ids=policy)
        if folder is None or (spec.kind == RUN and spec.loaded is None):
            # A run file remains where it is; its scores are part of the record.
            figures = replace(figures, run=_run_file(spec), scores=_rounded(scores[label]))
        else:
            figures = _write_files(folder, names[label], figures, searched.results)
            write_per_query(
                folder / str(figures.per_query),
                list(judged.queries),
                scores[label],
            )
        models[label] = figures
    _check_same_queries(specs, results, judged, collection)
    record = EvaluationRecord(
        dataset=collection.name,
        split=task.split,
        documents=len(collection.documents),
        queries=len(judged.queries),
        corpus_sha256=collection.documents.content_hash,
        identical_ids=policy,
        top_k=task.top_k,
        counts=collection.counts,
        left_out=list(collection.documents.facts.left_out) or None,
        models=models,
        comparisons=paired_tests(scores, _families(specs, task)),
        few_labels=None if judged.few is None else judge(judged.few, results)[0],
    )
    if folder is not None:
        record.write(folder / "results.json")
    return record, results


def _search(
    specs: Mapping[str, ModelSpec],
    queries: dict[str, str],
    top_k: int,
    drop: bool,
    resources: Resources,
) -> Iterator[tuple[str, _Searched]]:
    """Yield each label with the results of its model; runs are read.

    All models are loaded first, so that a wrong name fails before anything is encoded. Embeddings
    are kept until all have searched.
    """
    rankers: dict[str, Ranker] = {
        label: resources.ranker(spec) for label, spec in specs.items() if spec.kind != RUN
    }
    resources.check_stores_used()
    with steps(dict.fromkeys(specs)):
        for label, spec in specs.items():
            step(label)
            if spec.kind == RUN:
                yield label, _Searched(run_results(spec))
                continue
            ranker = rankers[label]
            start = time.perf_counter()
            ranker.prepare()
            prepared = time.perf_counter()
            # One document more than is kept: the query's own may be dropped.
            ranking = ranker.search(queries, top_k + 1 if drop else top_k)
            results = ranking.results(resources.documents, drop, top_k)
            searched = time.perf_counter()
            yield (
                label,
                _Searched(
                    results,
                    ranker.describe(),
                    round(prepared - start, 3),
                    round(searched - prepared, 3),
                ),
            )


def _figures(
    spec: ModelSpec,
    searched: _Searched,
    judged: _Judged,
    scores: Mapping[str, Array],
) -> ModelResult:
    """Return the figures of a model for a record."""
    without_results = [id for id in judged.queries if not searched.results.get(id)]
    return ModelResult(
        model=spec.name,
        measures={name: float(values.mean()) for name, values in scores.items()},
        intervals={name: interval(values) for name, values in scores.items()},
        queries=len(judged.queries),
        queries_without_results=len(without_results),
        retrieval=searched.retrieval or {},
        index_seconds=searched.index_seconds,
        search_seconds=searched.search_seconds,
        seconds=round(searched.index_seconds + searched.search_seconds, 3),
        run="",
        versions=versions(),
    )


def _run_file(spec: ModelSpec) -> str:
    if spec.kind == RUN and spec.loaded is None:
        return spec.encoder
    return ""


def _rounded(scores: Mapping[str, Array]) -> dict[str, list[float]]:
    return {name: np.round(values, 6).tolist() for name, values in scores.items()}


def _write_files(
    folder: Path,
    name: str,
    figures: ModelResult,
    results: Results,
) -> ModelResult:
    """Write the run of a model, and return its figures with the names of its files."""
    run = f"{name}.run"
    write_run(folder / run, results, name)
    return replace(figures, run=run, per_query=f"{name}.per_query.tsv")


def _check_same_queries(
    specs: Mapping[str, ModelSpec],
    results: Mapping[str, Results],
    judged: _Judged,
    collection: Collection,
) -> None:
    """Check that no run lacks queries that another run answers: they could not be paired.

    Raises:
        InputError: If one does, or a run answers no judged query at all.
    """
    answered = {
        label: results[label].keys() & judged.qrels.keys()
        for label, spec in specs.items()
        if spec.kind == RUN
    }
    for label, queries in answered.items():
        if not queries:
            raise InputError(
                f"model {label!r}: the run answers none of the {len(judged.qrels)} queries judged "
                f"in {collection.name} ({collection.split}); give a run of these queries, "
                "or the right split"
            )
    for (label, queries), (other, others) in itertools.permutations(answered.items(), 2):
        lacking = [query for query in judged.qrels if query in others and query not in queries]
        if lacking:
            raise InputError(
                f"{label} has no results for queries that {other} answers: {listed(lacking)}; "
                "runs of different query sets cannot be paired, so search the same queries"
            )


def spaced(queries: Iterable[str], most: int | None) -> list[str]:
    """Return all queries, or ``most`` of them, evenly spaced."""
    ids = list(queries)
    if most is None:
        return ids
    return [ids[i] for i in spaced_rows(len(ids), most)]


def write_per_query(
    path: Path,
    queries: Sequence[str],
    scores: Mapping[str, Sequence[float] | np.ndarray],
) -> None:
    """Write a table of (Q,) scores by name, one query a line, for :func:`read_per_query`."""
    with atomic_writer(path) as file:
        file.write("\t".join(["query_id", *scores]) + "\n")
        for i, query in enumerate(queries):
            cells = [repr(float(values[i])) for values in scores.values()]
            file.write("\t".join([query, *cells]) + "\n")


def read_per_query(path: Path, measures: Sequence[str]) -> dict[str, list[float]]:
    """Read query id to its scores in some measures from a NAME.per_query.tsv.

    Raises:
        InputError: If the file cannot be read, lacks a measure, or has a damaged line.
    """
    with explained(
        f"{path} cannot be read", "give a per_query.tsv of evaluate", OSError, UnicodeDecodeError
    ):
        header, *lines = path.read_text(encoding="utf-8").split("\n")
    if [header, *lines][-1]:
        raise InputError(f"{path} ends in the middle of a line; evaluate again")
    names = header.split("\t")
    lacking = [name for name in ("query_id", *measures) if name not in names]
    if lacking:
        raise InputError(
            f"{path} has no {', '.join(lacking)}, only {', '.join(names[1:]) or 'nothing'}"
        )
    columns = [names.index(measure) for measure in measures]
    scores: dict[str, list[float]] = {}
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        cells = line.split("\t")
        if len(cells) != len(names):
            raise InputError(f"{path}:{number}: {len(cells)} columns, not {len(names)}")
        query = cells[0]
        if query in scores:
            raise InputError(f"{path}:{number}: query {query!r} occurs a second time")
        with explained(f"{path}:{number}: a score is not a number", "evaluate again", ValueError):
            scores[query] = [float(cells[column]) for column in columns]
        if not np.isfinite(scores[query]).all():
            raise InputError(
                f"{path}:{number}: a score of query {query!r} is not finite; evaluate again"
            )
    return scores
