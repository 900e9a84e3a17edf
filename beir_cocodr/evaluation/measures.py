"""Measures by name, and per-query scores, through ir-measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ir_measures
import numpy as np

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.ranking import Results

DEFAULT_MEASURES = "nDCG@10 R@100"

#: Depth of a run for measures without a cutoff.
_DEPTH_WITHOUT_CUTOFF = 1000


def parse_measures(text: str) -> list[Any]:
    """Measures from their names, separated by white space or commas.

    Raises:
        InputError: a name that ir-measures does not know or cannot compute here.
    """
    names = text.replace(",", " ").split()
    if not names:
        raise InputError(f"no measure named; the default is '{DEFAULT_MEASURES}'")
    measures = []
    for name in names:
        try:
            measure = ir_measures.parse_measure(name)
            # Some measures need programs or data that are not there: better known before hours of encoding.
            list(ir_measures.iter_calc([measure], {"q": {"d": 1}}, {"q": {"d": 1.0}}))
        except Exception as error:
            raise InputError(
                f"measure {name!r} is unknown or cannot be computed here; ir-measures has such as nDCG@10, "
                "R@100, AP, RR@10"
            ) from error
        measures.append(measure)
    return measures


def depth(measures: Sequence[Any]) -> int:
    """How many documents a run needs for these measures."""
    return max(int(measure.params.get("cutoff", _DEPTH_WITHOUT_CUTOFF)) for measure in measures)


def score_queries(
    measures: Sequence[Any], qrels: dict[str, dict[str, int]], results: Results
) -> dict[str, np.ndarray]:
    """Each measure's score of every judged query, (Q,) in the order of ``qrels``; 0 without results.

    Grades below 0 count as 0: trec_eval calls both not relevant, and its Python binding may hang on them.
    """
    judged = {query: {d: max(grade, 0) for d, grade in grades.items()} for query, grades in qrels.items()}
    run = {query: dict(found) for query, found in results.items() if found}
    position = {query: i for i, query in enumerate(qrels)}
    scores = {str(measure): np.zeros(len(qrels)) for measure in measures}
    if run:
        for metric in ir_measures.iter_calc(list(measures), judged, run):
            if metric.query_id in position:
                scores[str(metric.measure)][position[metric.query_id]] = metric.value
    return scores
