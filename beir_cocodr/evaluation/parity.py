"""One run under BEIR, ir-measures and pytrec_eval, every difference explained by a tool's habits,
one after another.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import ir_measures
import numpy as np
import pytrec_eval
from ir_measures import Measure

from beir_cocodr.data.collection import join_labels, resolve_source
from beir_cocodr.data.defects import StrictReport
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import check_cutoff, measure_names
from beir_cocodr.evaluation.runs import Run, read_trec_run
from beir_cocodr.records import Record, versions

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
    """A measure that the tools have in common, or R_cap: recall divided by at most the cutoff,
    which only BEIR has.

    ``beir_custom`` is the metric of BEIR's ``evaluate_custom``, None for one that its ``evaluate``
    returns.
    """

    measure: Measure
    name: str
    cutoff: int | None
    capped: bool
    beir_cutoff: int
    beir_name: str
    beir_custom: str | None
    pytrec_name: str


def parse_parity_measures(text: str) -> list[ParityMeasure]:
    """Measures of ir-measures, and BEIR's ``R_cap@k``, by name; InputError: none, unknown, or not
    in BEIR.
    """
    names = measure_names(text, PARITY_MEASURES)
    return list({measure.name: measure for measure in map(_parse, names)}.values())


def _parse(name: str) -> ParityMeasure:
    capped = re.fullmatch(r"R_cap@([1-9]\d*)", name)
    try:
        measure = ir_measures.parse_measure(f"R@{capped.group(1)}" if capped else name)
        # Measures are made without looking at what they need: R and P need a cutoff.
        known = measure.NAME in _NAMES and set(measure.params) <= {"cutoff"}
        known = (
            known
            and int(measure.params.get("cutoff", 1)) > 0
            and ir_measures.DefaultPipeline.supports(measure)
        )
    except Exception:
        known = False
    if not known:
        raise InputError(
            f"measure {name!r} is none that BEIR, ir-measures and pytrec_eval share; they share nDCG, AP and "
            "RR with a cutoff or without, R, P and Success with one (such as nDCG@10); BEIR adds R_cap@k"
        )
    cutoff = measure.params.get("cutoff")
    check_cutoff(name, cutoff)
    beir, with_cutoff, without = _NAMES[measure.NAME]
    beir, depth = "R_cap" if capped else beir, cutoff or BEIR_DEPTH
    pytrec = str(without) if cutoff is None else with_cutoff.format(cutoff)
    shown = f"R_cap@{cutoff}" if capped else str(measure)
    return ParityMeasure(
        measure, shown, cutoff, bool(capped), depth, f"{beir}@{depth}", _CUSTOM.get(beir), pytrec
    )


def pytrec_eval_values(
    measures: Sequence[ParityMeasure], qrels: Qrels, run: Run
) -> dict[str, float]:
    """``pytrec_eval.RelevanceEvaluator``, and the mean over the queries that it returns."""
    names = {measure.pytrec_name for measure in measures}
    scores = pytrec_eval.RelevanceEvaluator(qrels, names).evaluate(run)
    means = {name: sum(query[name] for query in scores.values()) / len(scores) for name in names}
    return {measure.name: means[measure.pytrec_name] for measure in measures}


def beir_values(measures: Sequence[ParityMeasure], qrels: Qrels, run: Run) -> dict[str, float]:
    """``EvaluateRetrieval.evaluate``, then ``evaluate_custom`` on the same results, as BEIR's
    examples do.

    ``evaluate_custom`` cannot take results of queries that are not judged, nor can its R_cap those
    of queries without relevant documents: it gets the others.
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


Tool = Literal["beir", "pytrec_eval"]
Order = Literal["trec_eval", "msmarco", "file"]

#: How equal scores are ordered, in words.
ORDERS: dict[Order, str] = {
    "trec_eval": "the larger document id first, scores compared in float32",
    "msmarco": "the smaller document id first",
    "file": "the order of the file",
}

#: Decimals that BEIR rounds its means to.
BEIR_DECIMALS = 5
_CHANGE = 1e-12

#: What may remain of a difference once its causes are taken into account.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Cause:
    """What one habit changes: the mean before and after it, and their difference; how many queries
    it concerns, and whose part in the mean it changes.
    """

    cause: str
    reason: str
    queries: int
    queries_changed: int
    before: float
    after: float
    effect: float


@dataclass(frozen=True)
class Difference:
    """A tool's number less the reference's: effects of causes and what remains, explained if within
    the tolerance.
    """

    tool: str
    against: str
    difference: float
    causes: list[Cause]
    remaining: float
    explained: bool


@dataclass(frozen=True)
class ToolValue:
    """What a tool calls a measure, and its number."""

    name: str
    value: float


@dataclass(frozen=True)
class MeasureParity:
    """One measure by tools."""

    measure: str
    tools: dict[str, ToolValue]
    differences: list[Difference]


@dataclass(frozen=True)
class ParityRecord(Record):
    """parity.json: one run by three tools; ``queries`` are counts by kind, ``explained`` is whether
    nothing remains.
    """

    run: str
    dataset: str
    split: str
    queries: dict[str, int]
    measures: list[MeasureParity]
    notes: list[str]
    explained: bool
    tolerance: float
    versions: dict[str, str]


class _Account:
    """Of a tool's number: the reference's scoring of judged queries, to which one habit of the tool
    after another is applied. The mean is over ``queries``; ``capped`` divides recall by at most the
    cutoff.
    """

    def __init__(self, measure: ParityMeasure, qrels: Qrels, run: Run) -> None:
        self.run = {query: found for query, found in run.items() if query in qrels}
        self.queries, self.qrels, self.measure, self.capped = (
            list(qrels),
            qrels,
            measure.measure,
            False,
        )
        self.causes: list[Cause] = []
        self.parts = self._score()

    @property
    def mean(self) -> float:
        return sum(self.parts.values()) / len(self.parts)

    def apply(self, cause: str, reason: str, concerned: Collection[str], **changes: object) -> None:
        """Apply a habit, where it concerns any query: what it changes of the run, the queries or
        the measure.
        """
        if concerned:
            before, parts = self.mean, self.parts
            vars(self).update(changes)
            self.parts = self._score()
            changed = sum(
                abs(self.parts.get(query, np.inf) - part) > _CHANGE for query, part in parts.items()
            )
            effect = self.mean - before
            self.causes.append(
                Cause(cause, reason, len(concerned), changed, before, self.mean, effect)
            )

    def reorder(self, order: Order, who: str) -> None:
        """Where the tool puts equal scores in another order: scores that leave no doubt about its
        order.
        """
        # ir-measures computes reciprocal rank with a cutoff as for MS MARCO.
        reference: Order = (
            "trec_eval" if ir_measures.pytrec_eval.supports(self.measure) else "msmarco"
        )
        ranked = {query: ranked_documents(found, order) for query, found in self.run.items()}
        concerned = [
            query
            for query in ranked
            if ranked[query] != ranked_documents(self.run[query], reference)
        ]
        run = {
            q: {document: float(-rank) for rank, document in enumerate(found)}
            for q, found in ranked.items()
        }
        reason = f"equal scores: {who} takes {ORDERS[order]}, ir-measures {ORDERS[reference]}"
        self.apply("ties", reason, concerned, run=run)

    def leave_out(self, who: str) -> None:
        """Queries without results."""
        missing = [query for query in self.queries if query not in self.run]
        reason = f"{who} takes the mean over the queries that the run has; ir-measures scores the others 0"
        self.apply(
            "queries without results",
            reason,
            missing,
            queries=[*filter(self.run.__contains__, self.queries)],
        )

    def longer_than(self, depth: int) -> list[str]:
        return [query for query, found in self.run.items() if len(found) > depth]

    def _score(self) -> dict[str, float]:
        """Each query's part, for those that the mean is taken over."""
        found = ir_measures.iter_calc([self.measure], self.qrels, self.run)
        scores = {metric.query_id: float(metric.value) for metric in found}
        return {query: scores[query] * self._factor(self.qrels[query]) for query in self.queries}

    def _factor(self, grades: dict[str, int]) -> float:
        relevant = sum(grade > 0 for grade in grades.values())
        return (
            relevant / min(relevant, self.measure.params["cutoff"])
            if self.capped and relevant
            else 1.0
        )


def explain(tool: Tool, measure: ParityMeasure, qrels: Qrels, run: Run, value: float) -> Difference:
    """Account for the value that a tool gave for a run, starting from ir-measures'."""
    account = _Account(measure, qrels, run)
    start = account.mean
    (_apply_beir if tool == "beir" else _apply_pytrec_eval)(account, measure)
    causes, now = account.causes, account.mean
    if tool == "beir" and abs((rounded := _rounded(now, value)) - now) > _CHANGE:
        reason = f"BEIR rounds its means to {BEIR_DECIMALS} decimals"
        causes.append(Cause("rounding", reason, len(account.parts), 0, now, rounded, rounded - now))
        now = rounded
    return Difference(
        tool, "ir_measures", value - start, causes, value - now, abs(value - now) <= TOLERANCE
    )


def _apply_beir(account: _Account, measure: ParityMeasure) -> None:
    identical = [query for query, found in account.run.items() if query in found]
    without = {
        q: {d: score for d, score in found.items() if d != q} for q, found in account.run.items()
    }
    reason = "BEIR's evaluate removes documents with the query's id (ignore_identical_ids), also for later metrics"
    account.apply("identical ids", reason, identical, run=without)
    if measure.beir_custom:
        account.reorder("file", f"BEIR's {measure.beir_name}")
    if measure.cutoff is None:
        reason = (
            f"BEIR has {measure.name} with a cutoff only, here at {measure.beir_cutoff} documents"
        )
        deep = account.longer_than(measure.beir_cutoff)
        account.apply("cutoff", reason, deep, measure=measure.measure @ measure.beir_cutoff)
    if measure.capped:
        many = [
            q
            for q, grades in account.qrels.items()
            if sum(g > 0 for g in grades.values()) > measure.beir_cutoff
        ]
        reason = f"R_cap divides by {measure.cutoff} where a query has more relevant documents, recall by all"
        account.apply("capping", reason, many, capped=True)
    if not measure.beir_custom:
        account.leave_out("BEIR's evaluate")


def _apply_pytrec_eval(account: _Account, measure: ParityMeasure) -> None:
    account.reorder("trec_eval", "pytrec_eval")
    if measure.pytrec_name == "recip_rank" and measure.cutoff is not None:
        reason = f"pytrec_eval's recip_rank has no cutoff, {measure.name} ends at {measure.cutoff}"
        account.apply("cutoff", reason, account.longer_than(measure.cutoff), measure=ir_measures.RR)
    account.leave_out("pytrec_eval")


def ranked_documents(found: dict[str, float], order: Order) -> list[str]:
    """Document ids, best score first."""
    if order == "trec_eval":
        scores = dict(zip(found, _float32(found), strict=True))
        return sorted(found, key=lambda document: (scores[document], document), reverse=True)
    documents = sorted(found) if order == "msmarco" else list(found)
    return sorted(documents, key=found.__getitem__, reverse=True)


def _rounded(mean: float, value: float) -> float:
    # A sum over queries, added up in another order, may fall on the other side of a rounding
    # boundary.
    candidates = (round(mean + shift, BEIR_DECIMALS) for shift in (0.0, -1e-9, 1e-9))
    return min(candidates, key=lambda candidate: abs(candidate - value))


def parity(
    run: str | Path, dataset: str, split: str = "test", measures: str = PARITY_MEASURES
) -> ParityRecord:
    """Score a TREC run with three tools and explain why their numbers differ. An InputError: a run
    or collection that cannot be read, no query in common, or a measure that is not shared.

    The reference is ir-measures: its mean is over all judged queries, with 0 for those without
    results. Each habit of another tool that concerns this run is applied to it in turn; by how much
    the tool's own number differs from the last mean is reported as remaining.

    Args:
        run: a TREC run file.
        dataset, split: the collection whose judgements count; its documents are not read.
        measures: names of ir-measures that BEIR has as well, and ``R_cap@k``.
    """
    wanted, found = parse_parity_measures(measures), read_trec_run(Path(run))
    qrels, counts = _judgements(dataset, split)
    if not found.keys() & qrels.keys():
        raise InputError(
            f"none of the queries of {run} is judged in {dataset} ({split}); check the split"
        )
    reference = ir_measures.calc_aggregate([measure.measure for measure in wanted], qrels, found)
    beir, trec = beir_values(wanted, qrels, found), pytrec_eval_values(wanted, qrels, found)
    rows = []
    for measure in wanted:
        tools = {
            "ir_measures": ToolValue(str(measure.measure), float(reference[measure.measure])),
            "beir": ToolValue(measure.beir_name, beir[measure.name]),
            "pytrec_eval": ToolValue(measure.pytrec_name, trec[measure.name]),
        }
        differences = [
            explain(tool, measure, qrels, found, tools[tool].value) for tool in get_args(Tool)
        ]
        rows.append(MeasureParity(measure.name, tools, differences))
    queries = _counts(qrels, found)
    return ParityRecord(
        run=str(run),
        dataset=dataset,
        split=split,
        queries=queries,
        measures=rows,
        notes=[*_notes(wanted, queries, found), *(f"{kind}: {n}" for kind, n in counts.items())],
        explained=all(difference.explained for row in rows for difference in row.differences),
        tolerance=TOLERANCE,
        versions=versions(),
    )


def _judgements(dataset: str, split: str) -> tuple[Qrels, dict[str, int]]:
    source = resolve_source(dataset, split)
    report = StrictReport(source.name)
    source.missing(report, "required")
    # Whether judged documents exist does not matter here, and finding out would take reading the
    # corpus.
    _, qrels = join_labels(
        source,
        "required",
        lambda ids: np.ones(len(ids), dtype=bool),
        report,
        report_duplicates=None,
    )
    counts = dict(report.counts)
    if negative := sum(grade < 0 for grades in qrels.values() for grade in grades.values()):
        # With a negative grade pytrec_eval, on which all three tools stand, may never return.
        counts["grades below 0, read as 0, which means not relevant as well"] = negative
    return {
        q: {d: max(grade, 0) for d, grade in grades.items()} for q, grades in qrels.items()
    }, counts


def _counts(qrels: Qrels, run: Run) -> dict[str, int]:
    judged = [found for query, found in run.items() if query in qrels]
    return {
        "judged": len(qrels),
        "judged_with_results": len(judged),
        "judged_without_results": len(qrels) - len(judged),
        "judged_without_relevant_documents": sum(
            max(grades.values()) <= 0 for grades in qrels.values()
        ),
        "not_judged": len(run) - len(judged),
        "with_own_id_in_results": sum(q in found for q, found in run.items() if q in qrels),
        "with_equal_scores": sum(len(set(_float32(found))) < len(found) for found in judged),
        "with_lines_out_of_order": sum(
            ranked_documents(found, "file") != list(found) for found in judged
        ),
    }


def _float32(found: dict[str, float]) -> list[float]:
    return np.array(list(found.values()), dtype=np.float32).tolist()  # type: ignore[no-any-return]


def _notes(measures: Sequence[ParityMeasure], queries: dict[str, int], run: Run) -> Iterator[str]:
    custom = [measure.beir_name for measure in measures if measure.beir_custom]
    capped = [measure.beir_name for measure in measures if measure.capped]
    if count := queries["not_judged"]:
        fails = _fails(custom, "KeyError")
        yield f"{count} queries of the run are not judged: no tool counts them{fails}"
    if count := queries["judged_without_relevant_documents"]:
        fails = _fails(capped, "ZeroDivisionError")
        yield f"{count} judged queries have no relevant document: every tool scores them 0{fails}"
    if count := queries["with_lines_out_of_order"]:
        yield f"{count} queries have lines that do not descend by score: tools sort by score, none looks at the ranks"
    longest = max(map(len, run.values()))
    if short := [measure.name for measure in measures if (measure.cutoff or 0) > longest]:
        yield f"no query has more than {longest} documents, {', '.join(short)} would look at more"


def _fails(names: list[str], error: str) -> str:
    return (
        f"; BEIR's {', '.join(names)} fail on them ({error}) and were given the others"
        if names
        else ""
    )
