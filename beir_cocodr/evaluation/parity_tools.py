"""One run scored by each of three tools, as their users call them."""

from __future__ import annotations

from collections.abc import Sequence

from beir_cocodr.evaluation.parity_measures import ParityMeasure
from beir_cocodr.evaluation.trec_run import Run

Qrels = dict[str, dict[str, int]]


def ir_measures_values(measures: Sequence[ParityMeasure], qrels: Qrels, run: Run) -> dict[str, float]:
    """``ir_measures.calc_aggregate``: the mean over all judged queries."""
    import ir_measures

    values = ir_measures.calc_aggregate([measure.measure for measure in measures], qrels, run)
    return {measure.name: float(values[measure.measure]) for measure in measures}


def pytrec_eval_values(measures: Sequence[ParityMeasure], qrels: Qrels, run: Run) -> dict[str, float]:
    """``pytrec_eval.RelevanceEvaluator``, and the mean over the queries that it returns."""
    import pytrec_eval

    names = {measure.pytrec_name for measure in measures}
    scores = pytrec_eval.RelevanceEvaluator(qrels, names).evaluate(run)
    means = {name: sum(query[name] for query in scores.values()) / len(scores) for name in names}
    return {measure.name: means[measure.pytrec_name] for measure in measures}


def beir_values(measures: Sequence[ParityMeasure], qrels: Qrels, run: Run) -> dict[str, float]:
    """``EvaluateRetrieval.evaluate``, then ``evaluate_custom`` on the same results, as BEIR's examples do.

    ``evaluate_custom`` cannot take results of queries that are not judged, nor can its R_cap those of queries
    without relevant documents: it gets the others.
    """
    from beir.retrieval.evaluation import EvaluateRetrieval

    results = {query: dict(found) for query, found in run.items()}
    cutoffs = sorted({measure.beir_cutoff for measure in measures})
    values: dict[str, float] = {}
    for part in EvaluateRetrieval.evaluate(qrels, results, cutoffs):
        values |= part
    judged = {query: found for query, found in results.items() if query in qrels}
    relevant = {query: found for query, found in judged.items() if max(qrels[query].values()) > 0}
    for metric in {measure.beir_custom for measure in measures} - {None}:
        given = relevant if metric == "r_cap" else judged
        values |= EvaluateRetrieval.evaluate_custom(qrels, given, cutoffs, metric)
    return {measure.name: float(values[measure.beir_name]) for measure in measures}
