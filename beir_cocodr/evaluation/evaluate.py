"""Evaluating models on one collection: runs, measures, per-query scores, paired tests."""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, depth, parse_measures, score_queries
from beir_cocodr.evaluation.runs import file_names, identical_ids, write_run
from beir_cocodr.evaluation.significance import compare, interval
from beir_cocodr.io import atomic_writer, output_folder, write_text
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import versions
from beir_cocodr.retrieval.ranking import Results, Retriever
from beir_cocodr.retrieval.retrievers import Retrievers

log = logging.getLogger(__name__)


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
) -> dict[str, Any]:
    """Search a collection with every model and judge the runs.

    Args:
        dataset, split: the collection; it needs labels.
        models: model names, or a mapping from a label to a model name.
        output: folder for results.json, NAME.run and NAME.per_query.tsv.
        measures: names that ir-measures knows.
        policy: for documents whose id is the query's, see :func:`identical_ids`.
        top_k: documents a query; by default what the measures need.
        families: questions, each by the (a, b) labels to test for it; by default all against all.
        queries: evaluate only that many queries, evenly spaced (stated in the results).
        search: how models are loaded and search.

    Returns:
        The content of results.json.

    Raises:
        InputError: what has to be corrected in the collection, the models or the measures.
    """
    labels = dict(models) if isinstance(models, Mapping) else {model: model for model in models}
    if not labels:
        raise InputError("no model to evaluate; name at least one with --model")
    if len(labels) < len(models):
        raise InputError(f"a model is named twice: {', '.join(models)}")
    wanted = parse_measures(measures)
    needed = depth(wanted)
    top_k = needed if top_k is None else top_k
    if top_k < 1:
        raise InputError(f"top_k is {top_k}: ask for at least one document")
    if top_k < needed:
        log.warning("runs hold %d documents a query, the measures look at up to %d", top_k, needed)
    policy = identical_ids(dataset, policy)
    collection = load_collection(dataset, split)
    judged = _judged(collection, queries)
    names = file_names(labels)
    output_folder(output)
    records: dict[str, Any] = {}
    scores: dict[str, dict[str, np.ndarray]] = {}
    with tempfile.TemporaryDirectory(dir=output, prefix=".embeddings-") as folder:
        retrievers = Retrievers(collection.documents, Path(folder), search)
        made = {label: retrievers.get(model) for label, model in labels.items()}
        retrievers.check_stores_used()
        for label, retriever in made.items():
            log.info("searching %s with %s", dataset, label)
            start = time.perf_counter()
            retriever.prepare()
            ready = time.perf_counter()
            results = _search(retriever, collection, judged, top_k, policy == "drop")
            done = time.perf_counter()
            write_run(output / f"{names[label]}.run", results, names[label])
            scores[label] = score_queries(wanted, judged, results)
            _write_per_query(output / f"{names[label]}.per_query.tsv", list(judged), scores[label])
            records[label] = {
                "model": labels[label],
                "measures": {name: float(values.mean()) for name, values in scores[label].items()},
                "intervals": {name: interval(values) for name, values in scores[label].items()},
                "queries": len(judged),
                "queries_without_results": sum(not results.get(query) for query in judged),
                "documents": len(collection.documents),
                "identical_ids": policy,
                "retrieval": retriever.describe(),
                # What an earlier model has made, such as the same encoder's embeddings, costs nothing.
                "index_seconds": round(ready - start, 3),
                "search_seconds": round(done - ready, 3),
                "seconds": round(done - start, 3),
                "run": f"{names[label]}.run",
                "per_query": f"{names[label]}.per_query.tsv",
                "versions": versions(),
            }
    families = families or {"all against all": list(itertools.combinations(labels, 2))}
    report = {
        "dataset": dataset,
        "split": split,
        "documents": len(collection.documents),
        "queries": len(judged),
        "corpus_sha256": collection.documents.content_hash,
        "identical_ids": policy,
        "top_k": top_k,
        "counts": collection.counts,
        "models": records,
        "comparisons": [test.as_dict() for test in compare(scores, families)],
    }
    write_text(output / "results.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report


def _judged(collection: Collection, most: int | None) -> dict[str, dict[str, int]]:
    """The qrels of all queries, or of ``most`` of them, evenly spaced."""
    ids = list(collection.qrels)
    if most is not None and most < len(ids):
        ids = [ids[int(i)] for i in np.linspace(0, len(ids) - 1, most)]
    return {query: collection.qrels[query] for query in ids}


def _search(
    retriever: Retriever, collection: Collection, judged: dict[str, Any], top_k: int, drop: bool
) -> Results:
    queries = {query: collection.queries[query] for query in judged}
    ranking = retriever.search(queries, top_k + drop)
    return ranking.results(collection.documents, drop_identical_ids=drop, depth=top_k)


def _write_per_query(path: Path, queries: list[str], scores: dict[str, np.ndarray]) -> None:
    with atomic_writer(path) as file:
        file.write("\t".join(["query_id", *scores]) + "\n")
        for i, query in enumerate(queries):
            file.write("\t".join([query, *(repr(float(values[i])) for values in scores.values())]) + "\n")
