"""Which of several models is better on a collection, with labels or without."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.comparison import compare_label_free
from beir_cocodr.evaluation.labelled_comparison import compare_labelled
from beir_cocodr.evaluation.labels_wanted import (
    LABELS_FILE,
    labels_wanted,
    with_texts,
    write_labels_wanted,
)
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, parse_measures
from beir_cocodr.evaluation.protocol import identical_ids
from beir_cocodr.evaluation.seen import statement_of_seen
from beir_cocodr.files import output_folder, write_text
from beir_cocodr.retrieval.ranking import Results
from beir_cocodr.versions import versions

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
    **retrieval: Any,
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
            :func:`~beir_cocodr.evaluation.protocol.identical_ids`.
        queries: look at only that many queries of the collection, evenly spaced.
        samples, seed: of crops and of generated queries.
        wanted: how many pairs to ask labels for.
        against: ask for those that tell this model from the best of the others, not the two best models.
        **retrieval: passed on to :class:`~beir_cocodr.retrieval.retrievers.Retrievers`.

    Returns:
        The content of comparison.json: ``dataset``, ``split``, ``labels``, counts, ``pairs`` with a
        ``verdict`` each, ``ranking`` (best first), ``best`` (``model``, ``reason``), ``labels_wanted`` (the
        heaviest first), ``seen`` (see
        :func:`~beir_cocodr.evaluation.seen.statement_of_seen`); with labels also ``evaluation`` (the content
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
            given = {"policy": policy, "queries": queries, **retrieval}
            told, results = compare_labelled(models, collection, folder, measures, **given)
        else:
            given = {"queries": queries, "samples": samples, "seed": seed, **retrieval}
            told, results = compare_label_free(models, collection, folder, policy == "drop", **given)
    labelled = "evaluation" in told
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
        "seen": statement_of_seen([name for name in models if not Path(name).is_file()], collection),
        "versions": versions(),
    }
    if output is not None:
        write_labels_wanted(output / LABELS_FILE, report["labels_wanted"]["pairs"])
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
    rows = labels_wanted(results[a], results[b], collection.qrels if labelled else None, count)
    remark = "" if rows else "the two rank the same documents at the same ranks, or all are judged"
    pairs = with_texts(rows, collection.queries, collection.documents)
    return {"a": a, "b": b, "pairs": pairs, "remark": remark}
