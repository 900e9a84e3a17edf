"""Evaluating models on one collection: runs, measures, per-query scores, paired tests."""

import itertools
import logging
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.data.collection import Collection, check_labelled, load_collection
from beir_cocodr.data.judgements import load_judgements
from beir_cocodr.errors import InputError, check_count, check_names, explained
from beir_cocodr.evaluation.few_labels import judge
from beir_cocodr.evaluation.measures import (
    DEFAULT_MEASURES,
    Measures,
    compare,
    depth,
    interval,
    parse_measures,
    score_queries,
)
from beir_cocodr.evaluation.results import EvaluationRecord, ModelResult
from beir_cocodr.evaluation.runs import file_names, identical_ids, write_run
from beir_cocodr.io import atomic_writer, file_sha256
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.progress import step, steps
from beir_cocodr.records import Json, versions
from beir_cocodr.retrieval.ranking import Results
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.run_folder import results_folder

log = logging.getLogger(__name__)

#: The question of tests between all models.
ALL_PAIRS = "all against all"


def evaluate(
    dataset: str,
    models: Sequence[str] | Mapping[str, str],
    output: Path,
    measures: str = DEFAULT_MEASURES,
    split: str = "test",
    policy: str = "auto",
    top_k: int | None = None,
    families: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    queries: int | None = None,
    search: SearchOptions = SearchOptions(),
    overwrite: bool = False,
    judgements: Path | None = None,
) -> EvaluationRecord:
    """Search a collection with every model and judge the runs. An InputError names what has to be
    corrected in the collection, the models or the measures; results of another run.

    Args:
        dataset, split: the collection; it needs labels.
        models: model names, or a mapping from a label to a model name.
        output: folder for results.json, NAME.run and NAME.per_query.tsv; these of the same settings
            are replaced.
        measures: names that ir-measures knows.
        policy: for documents whose id is the query's, see :func:`identical_ids`.
        top_k: documents a query; by default what the measures need.
        families: questions, each by the (a, b) labels to test for it; by default all against all.
        queries: evaluate only that many queries, evenly spaced (stated in the results).
        overwrite: replace the results of another run in ``output``, see
            :func:`~beir_cocodr.run_folder.results_folder`.
        judgements: a file that judges in place of the labels, see
            :func:`~beir_cocodr.data.judgements.load_judgements`.

    Example:
        >>> from pathlib import Path
        >>> from beir_cocodr import evaluate
        >>> record = evaluate("apidocs/numpy", ["bm25", "minilm"], Path("judged"), queries=20)
        >>> sorted(record.models["minilm"].measures)
        ['R@100', 'nDCG@10']
        >>> [test.b for test in record.comparisons if test.measure == "nDCG@10"]
        ['minilm']
        >>> sorted(file.name for file in Path("judged").glob("bm25*"))
        ['bm25.per_query.tsv', 'bm25.run']
    """
    check_names("model", list(models))
    check_count("queries", queries)
    labels = models if isinstance(models, Mapping) else {model: model for model in models}
    wanted = parse_measures(measures)
    needed = depth(wanted)
    top_k = needed if top_k is None else top_k
    check_count("top_k", top_k)
    check_device(search.encoder.device, labels.values())
    if top_k < needed:
        log.warning("runs hold %d documents a query, the measures look at up to %d", top_k, needed)
    policy = identical_ids(dataset, policy)
    if judgements is None:
        check_labelled(dataset, split)
    collection = load_collection(
        dataset, split, labels="required" if judgements is None else "optional"
    )
    few = None
    if judgements is not None:
        few = load_judgements(judgements).of(collection.queries, collection.documents)
        if few.drawn:
            log.warning(
                "%s: pairs were drawn, which the measures do not know; nDCG@10 by few_labels does",
                judgements,
            )
        texts = {id: query.text for id, query in few.queries.items()}
        collection = replace(collection, queries=texts, qrels=few.qrels)
    judged = {query: collection.qrels[query] for query in spaced(collection.qrels, queries)}
    if few is not None:
        few = replace(few, queries={query: few.queries[query] for query in judged})
    names = file_names(labels)
    pairs = families or {ALL_PAIRS: list(itertools.combinations(labels, 2))}
    results: dict[str, ModelResult] = {}
    scores: dict[str, dict[str, np.ndarray]] = {}
    settings: Json = {
        "dataset": dataset,
        "split": split,
        "models": dict(labels),
        "measures": measures,
    }
    settings |= {
        "identical_ids": policy,
        "top_k": top_k,
        "queries": queries,
        "search": search.describe(),
    }
    settings |= {} if judgements is None else {"judgements": file_sha256(judgements)}
    found_by: dict[str, Results] = {}
    with results_folder(
        output, {"command": "evaluate", **settings, "families": pairs}, overwrite
    ) as folder:
        made = _search(collection, judged, labels, folder, top_k, policy == "drop", search)
        for label, found, retrieval, prepared, searched in made:
            run, per_query = f"{names[label]}.run", f"{names[label]}.per_query.tsv"
            result, scores[label] = score_run(labels[label], run, found, judged, wanted)
            write_run(folder / run, found, names[label])
            found_by |= {} if few is None else {label: found}
            write_per_query(folder / per_query, list(judged), scores[label])
            results[label] = replace(
                result,
                documents=len(collection.documents),
                identical_ids=policy,
                retrieval=retrieval,
                index_seconds=prepared,
                search_seconds=searched,
                seconds=round(prepared + searched, 3),
                per_query=per_query,
            )
        record = EvaluationRecord(
            dataset=dataset,
            split=split,
            documents=len(collection.documents),
            queries=len(judged),
            corpus_sha256=collection.documents.content_hash,
            identical_ids=policy,
            top_k=top_k,
            counts=collection.counts,
            models=results,
            comparisons=compare(scores, pairs),
            few_labels=None if few is None else judge(few, found_by)[0],
        )
        record.write(folder / "results.json")
    return record


def score_run(
    model: str,
    run: str,
    results: Results,
    judged: Mapping[str, Mapping[str, int]],
    measures: Measures,
) -> tuple[ModelResult, dict[str, np.ndarray]]:
    """What a model's results are worth: the figures for a record, and each measure's (Q,)
    scores.
    """
    scores = score_queries(measures, judged, results)
    figures = ModelResult(
        model=model,
        measures={name: float(values.mean()) for name, values in scores.items()},
        intervals={name: interval(values) for name, values in scores.items()},
        queries=len(judged),
        queries_without_results=sum(not results.get(query) for query in judged),
        run=run,
        versions=versions(),
    )
    return figures, scores


def spaced(queries: Iterable[str], most: int | None) -> list[str]:
    """All queries, or ``most`` of them, evenly spaced."""
    ids = list(queries)
    return ids if most is None else [ids[i] for i in spaced_rows(len(ids), most)]


def _search(
    collection: Collection,
    judged: Mapping[str, object],
    labels: Mapping[str, str],
    output: Path,
    top_k: int,
    drop: bool,
    search: SearchOptions,
) -> Iterator[tuple[str, Results, Json, float, float]]:
    """Search with one model after the other: what it found, what describes its retriever, and how
    long preparing and searching took. Embeddings are kept until all have searched.
    """
    queries = {query: collection.queries[query] for query in judged}
    with tempfile.TemporaryDirectory(dir=output, prefix=".embeddings-") as folder:
        retrievers = Resources(collection.documents, Path(folder), search)
        made = {label: retrievers.ranker(model) for label, model in labels.items()}
        retrievers.check_stores_used()
        with steps(dict.fromkeys(made)):
            for label, retriever in made.items():
                step(label)
                start = time.perf_counter()
                retriever.prepare()
                ready = time.perf_counter()
                results = retriever.search(queries, top_k + drop).results(
                    collection.documents, drop, top_k
                )
                searched = time.perf_counter() - ready
                yield (
                    label,
                    results,
                    retriever.describe(),
                    round(ready - start, 3),
                    round(searched, 3),
                )


def write_per_query(
    path: Path, queries: Sequence[str], scores: Mapping[str, Sequence[float] | np.ndarray]
) -> None:
    """Write a table of (Q,) scores by name, one query a line, for :func:`read_per_query`."""
    with atomic_writer(path) as file:
        file.write("\t".join(["query_id", *scores]) + "\n")
        for i, query in enumerate(queries):
            file.write(
                "\t".join([query, *(repr(float(values[i])) for values in scores.values())]) + "\n"
            )


def read_per_query(path: Path, measures: Sequence[str]) -> dict[str, list[float]]:
    """Query id to its scores, of a NAME.per_query.tsv; an InputError where file, measures or a line
    do not fit.
    """
    with explained(
        f"{path} cannot be read", "give a per_query.tsv of evaluate", OSError, UnicodeDecodeError
    ):
        header, *lines = path.read_text(encoding="utf-8").split("\n")
    names = header.split("\t")
    if lacking := [name for name in ("query_id", *measures) if name not in names]:
        raise InputError(
            f"{path} has no {', '.join(lacking)}, only {', '.join(names[1:]) or 'nothing'}"
        )
    columns = [names.index(measure) for measure in measures]
    scores: dict[str, list[float]] = {}
    for number, cells in (
        (number, line.split("\t")) for number, line in enumerate(lines, 2) if line
    ):
        if len(cells) != len(names):
            raise InputError(f"{path}:{number}: {len(cells)} columns, not {len(names)}")
        if cells[0] in scores:
            raise InputError(f"{path}:{number}: query {cells[0]!r} a second time")
        with explained(f"{path}:{number}: a score is not a number", "evaluate again", ValueError):
            scores[cells[0]] = [float(cells[column]) for column in columns]
        if not np.isfinite(scores[cells[0]]).all():
            raise InputError(
                f"{path}:{number}: a score of query {cells[0]!r} is not finite; evaluate again"
            )
    return scores
