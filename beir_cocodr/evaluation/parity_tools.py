"""One run scored by BEIR, ir-measures and pytrec_eval as users call them, and their names of measures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import ir_measures
import pytrec_eval
from ir_measures import Measure

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import check_cutoff
from beir_cocodr.evaluation.runs import Run

Qrels = dict[str, dict[str, int]]

#: BEIR has no measure without a cutoff; this is the largest of its default ones.
BEIR_DEPTH = 1000

PARITY_MEASURES = "nDCG@10 AP@100 R@100 R_cap@100 RR@10"

#: ir-measures' name to BEIR's, and to pytrec_eval's with a cutoff and without.
_NAMES = {
    "nDCG": ("NDCG", "ndcg_cut_{}", "ndcg"),
    "AP": ("MAP", "map_cut_{}", "map"),
    "R": ("Recall", "recall_{}", None),
    "P": ("P", "P_{}", None),
    "RR": ("MRR", "recip_rank", "recip_rank"),
    "Success": ("Accuracy", "success_{}", None),
}

_CUSTOM = {"MRR": "mrr", "Accuracy": "accuracy", "R_cap": "r_cap"}


@dataclass(frozen=True)
class ParityMeasure:
    """A measure that the tools have in common, or R_cap: recall divided by at most the cutoff, which only BEIR has."""

    measure: Measure
    capped: bool = False

    @property
    def name(self) -> str:
        return f"R_cap@{self.cutoff}" if self.capped else str(self.measure)

    @property
    def cutoff(self) -> int | None:
        return self.measure.params.get("cutoff")  # type: ignore[no-any-return]

    @property
    def beir_cutoff(self) -> int:
        return self.cutoff or BEIR_DEPTH

    @property
    def beir_name(self) -> str:
        return f"{'R_cap' if self.capped else _NAMES[self.measure.NAME][0]}@{self.beir_cutoff}"

    @property
    def beir_custom(self) -> str | None:
        """The metric of BEIR's ``evaluate_custom``; None for one that its ``evaluate`` returns."""
        return _CUSTOM.get(self.beir_name.split("@")[0])

    @property
    def pytrec_name(self) -> str:
        _, with_cutoff, without = _NAMES[self.measure.NAME]
        return str(without) if self.cutoff is None else with_cutoff.format(self.cutoff)


def parse_parity_measures(text: str) -> list[ParityMeasure]:
    """Measures of ir-measures, and BEIR's ``R_cap@k``, by name; InputError: none, unknown, or not in BEIR."""
    names = text.replace(",", " ").split()
    if not names:
        raise InputError(f"no measure named; the default is '{PARITY_MEASURES}'")
    return list({measure.name: measure for measure in map(_parse, names)}.values())


def _parse(name: str) -> ParityMeasure:
    capped = re.fullmatch(r"R_cap@([1-9]\d*)", name)
    try:
        measure = ir_measures.parse_measure(f"R@{capped.group(1)}" if capped else name)
        # Measures are made without looking at what they need: R and P need a cutoff.
        known = measure.NAME in _NAMES and set(measure.params) <= {"cutoff"}
        known = known and int(measure.params.get("cutoff", 1)) > 0 and ir_measures.DefaultPipeline.supports(measure)
    except Exception:
        known = False
    if not known:
        raise InputError(
            f"measure {name!r} is none that BEIR, ir-measures and pytrec_eval share; they share nDCG, AP and "
            "RR with a cutoff or without, R, P and Success with one (such as nDCG@10); BEIR adds R_cap@k"
        )
    check_cutoff(name, measure.params.get("cutoff"))
    return ParityMeasure(measure, capped is not None)


def ir_measures_values(measures: Sequence[ParityMeasure], qrels: Qrels, run: Run) -> dict[str, float]:
    """``ir_measures.calc_aggregate``: the mean over all judged queries."""
    values = ir_measures.calc_aggregate([measure.measure for measure in measures], qrels, run)
    return {measure.name: float(values[measure.measure]) for measure in measures}


def pytrec_eval_values(measures: Sequence[ParityMeasure], qrels: Qrels, run: Run) -> dict[str, float]:
    """``pytrec_eval.RelevanceEvaluator``, and the mean over the queries that it returns."""
    names = {measure.pytrec_name for measure in measures}
    scores = pytrec_eval.RelevanceEvaluator(qrels, names).evaluate(run)
    means = {name: sum(query[name] for query in scores.values()) / len(scores) for name in names}
    return {measure.name: means[measure.pytrec_name] for measure in measures}


def beir_values(measures: Sequence[ParityMeasure], qrels: Qrels, run: Run) -> dict[str, float]:
    """``EvaluateRetrieval.evaluate``, then ``evaluate_custom`` on the same results, as BEIR's examples do.

    ``evaluate_custom`` cannot take results of queries that are not judged, nor can its R_cap those of queries without
    relevant documents: it gets the others.
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
