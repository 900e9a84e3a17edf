"""How far targets are from a source, in the words of documents and in the kinds of queries."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.analysis.jaccard import weighted_jaccard
from beir_cocodr.analysis.judged import Judged, read_judged
from beir_cocodr.analysis.qpp import correlations
from beir_cocodr.analysis.query_types import query_type_counts
from beir_cocodr.analysis.unigrams import Unigrams
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.files import output_folder, write_text
from beir_cocodr.report.labelled_scatter import Panel, write_labelled_scatter
from beir_cocodr.report.will_draw import will_draw
from beir_cocodr.versions import versions

log = logging.getLogger(__name__)

#: The two similarities, as report and picture call them.
SIMILARITIES = {"document_jaccard": "document similarity", "query_type_jaccard": "query type similarity"}


def shift(
    source: str,
    targets: Sequence[str],
    split: str | None = None,
    source_split: str | None = None,
    output: Path | None = None,
    results: Sequence[Path] = (),
    measure: str = "nDCG@10",
    baseline: str | None = None,
    picture: bool | None = None,
) -> dict[str, Any]:
    """Compare the unigrams of documents and the types of queries of targets with those of a source.

    The source is read once, however many targets there are; of each corpus only its words and their counts
    are held, and of the targets one after another.

    Args:
        source, targets: datasets as the command line names them; queries are optional.
        split: of the targets' queries: the judged queries of that split. By default test, and all queries
            where there is no such split, which is said; a split that was asked for has to be there.
        source_split: the same for the source; by default train.
        output: folder for shift.json and, with ``results``, shift.png.
        results: results.json files of `evaluate` over targets: then every model's scores stand against the
            similarities, with correlations.
        measure: of the results.
        baseline: a model in the results; scores are then differences to its own, as in Figure 2 (BM25 there).
        picture: draw the scatter; by default where there are results, an output and matplotlib.

    Returns:
        The content of shift.json. ``document_jaccard`` and ``query_type_jaccard`` are numbers where there is
        one target, and mappings from target to number where there are several; ``targets`` has a record for
        each in any case. A number is None where one side has no words, or no queries.

    Raises:
        InputError: what has to be corrected in a collection, a split or the results.

    Source: COCO-DR, section 3.2, appendices C and D.
    """
    targets = _checked(targets)
    if output is not None:
        output_folder(output)
    judged = read_judged(results, targets, measure) if results else None
    if judged is not None and baseline is not None:
        judged = _differences(judged, baseline)
    drawn = will_draw(picture, output is not None and judged is not None, "give --results and --output")

    home = _side(source, source_split, "train")
    records = [_against(home, _side(target, split, "test")) for target in targets]
    values = {key: {record["dataset"]: record[key] for record in records} for key in SIMILARITIES}
    report: dict[str, Any] = {
        key: found if len(targets) > 1 else found[targets[0]] for key, found in values.items()
    }
    report |= {"source": home.record, "targets": records}
    if judged is not None:
        report |= {"measure": measure, "baseline": baseline, "scores": judged.scores}
        report["correlations"] = {
            label: _correlated(values, scores) for label, scores in judged.scores.items()
        }
    report |= {"picture": "shift.png" if drawn else None, "versions": versions()}
    if output is not None:
        if judged is not None and drawn:
            _draw(output / "shift.png", source, values, judged, report["correlations"], baseline)
        write_text(output / "shift.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report


@dataclass(frozen=True)
class _Side:
    """What is kept of a collection: its counts, and what the report says of it."""

    unigrams: Unigrams
    query_types: dict[str, int]
    record: dict[str, Any]


def _side(dataset: str, split: str | None, default: str) -> _Side:
    collection = load_collection(dataset, split or default, labels="optional")
    _say_split(collection, split, default)
    log.info("words of %s", dataset)
    unigrams = Unigrams.of(collection.documents)
    counts = query_type_counts(collection.queries.values())
    queries = len(collection.queries)
    record = {
        "dataset": dataset,
        "split": collection.split,
        "documents": len(collection.documents),
        "corpus_sha256": collection.documents.content_hash,
        "words": int(unigrams.counts.sum()),
        "different_words": len(unigrams.counts),
        "queries": queries,
        "query_types": {name: count / queries for name, count in counts.items()} if queries else None,
    }
    return _Side(unigrams, counts, record)


def _say_split(collection: Collection, asked: str | None, default: str) -> None:
    if not collection.queries:
        log.info("%s has no queries: their types cannot be compared", collection.name)
    elif collection.split is None:
        if asked is not None:
            raise InputError(
                f"{collection.name} has no split {asked!r}; choose one that it has, or none for all queries"
            )
        log.info(
            "%s has no split %s: all its %d queries are counted",
            collection.name,
            default,
            len(collection.queries),
        )


def _against(home: _Side, there: _Side) -> dict[str, Any]:
    documents = queries = None
    if len(home.unigrams.counts) and len(there.unigrams.counts):
        documents = weighted_jaccard(*home.unigrams.aligned(there.unigrams))
    else:
        log.warning("%s: one side has no words, so no similarity of documents", there.record["dataset"])
    if home.record["queries"] and there.record["queries"]:
        queries = weighted_jaccard(*(np.array([*side.query_types.values()]) for side in (home, there)))
    return there.record | {"document_jaccard": documents, "query_type_jaccard": queries}


def _correlated(values: dict[str, dict[str, float | None]], scores: dict[str, float]) -> list[dict[str, Any]]:
    """Pearson's r and Kendall's tau of both similarities with the scores, over targets that have both."""
    finite = {
        name: {target: math.nan if value is None else value for target, value in found.items()}
        for name, found in values.items()
    }
    rows = correlations(finite, scores)
    return [
        {"similarity": row.pop("predictor"), "targets": row.pop("queries"), **row}  # a point is a target here
        for row in rows
    ]


def _draw(
    path: Path,
    source: str,
    values: dict[str, dict[str, float | None]],
    judged: Judged,
    rows: dict[str, list[dict[str, Any]]],
    baseline: str | None,
) -> None:
    panels = []
    # Points and axes have no room for paths.
    targets = file_names(values["document_jaccard"])
    models = file_names([*judged.scores, *([] if baseline is None else [baseline])])
    for label, scores in judged.scores.items():
        against = "" if baseline is None else f" − {models[baseline]}"
        y = {targets[target]: score for target, score in scores.items()}
        for row in rows[label]:
            x = {targets[target]: value for target, value in values[row["similarity"]].items()}
            told = "" if row["pearson"] is None else f"r = {row['pearson']:+.3f}, τ = {row['kendall']:+.3f}"
            y_label = f"{judged.measure}, {models[label]}{against}"
            panels.append(Panel(x, y, SIMILARITIES[row["similarity"]], y_label, told))
    write_labelled_scatter(path, panels, f"similarity with {source}")


def _checked(targets: Sequence[str]) -> list[str]:
    if not targets:
        raise InputError("no target; name at least one with --target")
    twice = [target for target in targets if targets.count(target) > 1]
    if twice:
        raise InputError(f"target {twice[0]!r} is named twice")
    return list(targets)


def _differences(judged: Judged, baseline: str) -> Judged:
    """Every other model's scores less the baseline's on the same target."""
    base = judged.of(baseline)
    scores = {}
    for label, found in judged.scores.items():
        if found is base:
            continue
        for target in found:
            if target not in base:
                raise InputError(
                    f"the results judge {label!r} on {target!r}, but not the baseline {baseline!r}"
                )
        scores[label] = {target: value - base[target] for target, value in found.items()}
    if not scores:
        raise InputError(f"the results judge nothing but the baseline {baseline!r}")
    return replace(judged, scores=scores)
