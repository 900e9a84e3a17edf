"""Comparing models on a collection without looking at labels."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.collection import Collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.calibration import (
    DIFFERENT_KINDS,
    NOT_CALIBRATED,
    SAME_KIND,
    Calibration,
    load_calibration,
)
from beir_cocodr.evaluation.label_free.estimates import estimate_pair, kind
from beir_cocodr.evaluation.label_free.evidence import LIST_DEPTH, Evidence, gather_evidence
from beir_cocodr.evaluation.label_free.rule import choose, decide, features
from beir_cocodr.evaluation.runs import file_names, write_run
from beir_cocodr.retrieval.ranking import Results

log = logging.getLogger(__name__)
#: The most real queries that are searched for.
MOST_QUERIES = 1_000


def compare_label_free(
    models: Sequence[str],
    collection: Collection,
    folder: Path,
    drop_identical_ids: bool = False,
    queries: int | None = None,
    samples: int = 300,
    seed: int = 42,
    calibration: Calibration | None = None,
    **retrieval: Any,
) -> tuple[dict[str, Any], dict[str, Results]]:
    """Estimate how models differ, and say of each pair whether b is better than a.

    Args:
        models: model names.
        collection: with or without queries; its labels are not looked at.
        folder: gets NAME.run for real queries.
        drop_identical_ids: leave documents whose id is the query's out of lists.
        queries: the most real queries, evenly spaced (1,000).
        samples: held-out crops, and generated queries.
        seed: of both.
        calibration: by default the packaged one.
        **retrieval: passed on to :class:`~beir_cocodr.retrieval.retrievers.Retrievers`.

    Returns:
        ``pairs``, ``ranking``, ``best``, ``pseudo_queries``, ``calibration``, ``retrieval``; and each model's
        results for real queries.

    Raises:
        InputError: a run file, which cannot be judged without labels, or a model that cannot be found.
    """
    if file := next((model for model in models if Path(model).is_file()), None):
        raise InputError(
            f"{file}: a run cannot be judged without labels, as nothing more can be searched with it; name "
            "models"
        )
    if samples < 1:
        raise InputError(f"samples is {samples}: ask for at least one pseudo-query")
    calibration = calibration or load_calibration()
    asked = _spaced(collection.queries, MOST_QUERIES if queries is None else queries)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".embeddings-") as place:
        evidence = gather_evidence(
            collection.documents, asked, models, Path(place), samples, seed, drop_identical_ids, **retrieval
        )
    pairs = [
        _pair(evidence, a, b, collection.documents.content_hash, calibration)
        for a, b in itertools.combinations(models, 2)
    ]
    ranking = choose(models, pairs)
    results: dict[str, Results] = {}
    for name, file_name in file_names(models).items() if evidence.real else ():
        found = evidence.rankings[name].results(collection.documents, drop_identical_ids, LIST_DEPTH)
        write_run(folder / f"{file_name}.run", found, file_name)
        results[name] = found
    report = {
        "pairs": pairs,
        "ranking": ranking,
        "best": _best(ranking, pairs, calibration),
        "pseudo_queries": evidence.describe(),
        "samples": samples,
        "seed": seed,
        "retrieval": {name: evidence.retrieval[name] for name in models},
        "calibration": NOT_CALIBRATED if calibration is None else _told(calibration),
    }
    return report, results


def _pair(evidence: Evidence, a: str, b: str, corpus: str, calibration: Calibration | None) -> dict[str, Any]:
    estimates = estimate_pair(evidence, a, b)
    family = SAME_KIND if kind(a) == kind(b) else DIFFERENT_KINDS
    return {
        "a": a,
        "b": b,
        "family": family,
        **decide(estimates, a, b, calibration),
        "trust": NOT_CALIBRATED if calibration is None else calibration.statement(family, corpus),
        "features": features(estimates, a, b),
        "estimates": [estimate.as_dict() for estimate in estimates],
    }


def _best(ranking: list[str], pairs: list[dict[str, Any]], calibration: Calibration | None) -> dict[str, Any]:
    best = ranking[0]
    open_pairs = [
        pair["b"] if pair["a"] == best else pair["a"]
        for pair in pairs
        if best in (pair["a"], pair["b"]) and pair["verdict"] == "cannot tell"
    ]
    told = f"{best} has the best estimates"
    told += f", but cannot be told from {', '.join(open_pairs)}." if open_pairs else "."
    if calibration is None:
        told += " The rule has not been calibrated."
    return {"model": best, "reason": told, "indistinguishable": open_pairs}


def _told(calibration: Calibration) -> dict[str, Any]:
    return {
        "weights": calibration.weights,
        "threshold": calibration.threshold,
        "collections": calibration.collections,
        "trust": calibration.trust,
        "date": calibration.date,
    }


def _spaced(queries: dict[str, str], most: int) -> dict[str, str]:
    """All queries, or ``most`` of them, evenly spaced."""
    ids = list(queries)
    if most < len(ids):
        log.info("%d of %d queries are searched for, evenly spaced", most, len(ids))
        ids = [ids[int(i)] for i in np.linspace(0, len(ids) - 1, most)]
    return {query: queries[query] for query in ids}
