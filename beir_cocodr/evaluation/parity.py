"""One run scored by BEIR, ir-measures and pytrec_eval, with an explanation of every difference.

A difference is explained by the habits of a tool, which are applied to the run one after another.
"""

import itertools
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import ir_measures
import numpy as np
import pytrec_eval
from ir_measures import Measure

from beir_cocodr.arrays import Bools
from beir_cocodr.data.collection import join_labels, resolve_source
from beir_cocodr.data.defects import StrictReport
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import check_cutoff, measure_names
from beir_cocodr.evaluation.runs import Run, read_trec_run, warn_of_lacking
from beir_cocodr.records import Record, versions

Qrels = dict[str, dict[str, int]]

log = logging.getLogger(__name__)

#: The cutoff for measures without one, which BEIR does not have: the largest of its default ones.
BEIR_DEPTH = 1000
PARITY_MEASURES = "nDCG@10 AP@100 R@100 R_cap@100 RR@10"

# ir-measures' name of a measure to BEIR's, and to pytrec_eval's with a cutoff and without.
_NAMES = {
    "nDCG": ("NDCG", "ndcg_cut_{}", "ndcg"),
    "AP": ("MAP", "map_cut_{}", "map"),
    "R": ("Recall", "recall_{}", None),
    "P": ("P", "P_{}", None),
    "RR": ("MRR", "recip_rank", "recip_rank"),
    "Success": ("Accuracy", "success_{}", None),
}

# BEIR's name of a measure to the metric of its ``evaluate_custom``.
_CUSTOM = {"MRR": "mrr", "Accuracy": "accuracy", "R_cap": "r_cap"}


@dataclass(frozen=True)
class ParityMeasure:
    """A measure that the tools have in common, or R_cap, which only BEIR has.

    R_cap is recall divided by at most the cutoff.

    Attributes:
        measure: the measure of ir-measures.
        name: the name to show.
        cutoff: its cutoff, None if it has none.
        capped: True for R_cap.
        beir_cutoff: the cutoff that BEIR is asked for.
        beir_name: BEIR's name for its value.
        beir_custom: the metric of BEIR's ``evaluate_custom``; None if ``evaluate`` returns it.
        pytrec_name: pytrec_eval's name for it.
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
    """Parse names of ir-measures' measures and of BEIR's ``R_cap@k``.

    Raises:
        InputError: If there is no name, or one is unknown or not in BEIR.
    """
    by_name = {}
    for name in measure_names(text, PARITY_MEASURES):
        measure = _parse(name)
        by_name[measure.name] = measure
    return list(by_name.values())


def _parse(name: str) -> ParityMeasure:
    capped = re.fullmatch(r"R_cap@([1-9]\d*)", name)
    shared_name = name
    if capped:
        shared_name = f"R@{capped.group(1)}"
    measure = _shared_measure(shared_name)
    if measure is None:
        raise InputError(
            f"measure {name!r} is not one that BEIR, ir-measures and pytrec_eval share; they "
            "share nDCG, AP and RR with or without a cutoff, and R, P and Success with one (as "
            "in R@100); BEIR adds R_cap@k"
        )
    cutoff = measure.params.get("cutoff")
    check_cutoff(name, cutoff)
    beir_name, with_cutoff, without_cutoff = _NAMES[measure.NAME]
    shown_name = str(measure)
    if capped:
        beir_name = "R_cap"
        shown_name = f"R_cap@{cutoff}"
    pytrec_name = str(without_cutoff)
    if cutoff is not None:
        pytrec_name = with_cutoff.format(cutoff)
    beir_cutoff = cutoff or BEIR_DEPTH
    return ParityMeasure(
        measure=measure,
        name=shown_name,
        cutoff=cutoff,
        capped=bool(capped),
        beir_cutoff=beir_cutoff,
        beir_name=f"{beir_name}@{beir_cutoff}",
        beir_custom=_CUSTOM.get(beir_name),
        pytrec_name=pytrec_name,
    )


def _shared_measure(name: str) -> Measure | None:
    """Return the measure of a name if all tools have it, else None."""
    try:
        measure = ir_measures.parse_measure(name)
        other_params = set(measure.params) - {"cutoff"}
        if measure.NAME not in _NAMES or other_params:
            return None
        cutoff = int(measure.params.get("cutoff", 1))
        if cutoff <= 0:
            return None
        # The host parses R and P without the cutoff that they need.
        if ir_measures.DefaultPipeline.supports(measure):
            return measure
        return None
    except Exception:
        return None


def pytrec_eval_values(
    measures: Sequence[ParityMeasure], qrels: Qrels, run: Run
) -> dict[str, float]:
    """Return the means of ``pytrec_eval.RelevanceEvaluator`` over the queries that it returns."""
    names = {measure.pytrec_name for measure in measures}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, names)
    scores = evaluator.evaluate(run)
    means: dict[str, float] = {}
    for name in names:
        total = sum(query[name] for query in scores.values())
        means[name] = total / len(scores)
    return {measure.name: means[measure.pytrec_name] for measure in measures}


def beir_values(measures: Sequence[ParityMeasure], qrels: Qrels, run: Run) -> dict[str, float]:
    """Return the values of BEIR's ``evaluate`` and then ``evaluate_custom``, as in its examples.

    Both get the same results. ``evaluate_custom`` fails on queries that are not judged, and its
    R_cap on queries without relevant documents, so it gets only the others.
    """
    from beir.retrieval.evaluation import EvaluateRetrieval

    results = {query: dict(ranking) for query, ranking in run.items()}
    cutoffs = sorted({measure.beir_cutoff for measure in measures})
    values: dict[str, float] = {}
    for part in EvaluateRetrieval.evaluate(qrels, results, cutoffs):
        values |= part
    judged = {query: ranking for query, ranking in results.items() if query in qrels}
    with_relevant = {}
    for query, ranking in judged.items():
        best_grade = max(qrels[query].values())
        if best_grade > 0:
            with_relevant[query] = ranking
    custom_metrics = {measure.beir_custom for measure in measures}
    for metric in custom_metrics - {None}:
        subset = with_relevant if metric == "r_cap" else judged
        values |= EvaluateRetrieval.evaluate_custom(
            qrels,
            subset,
            cutoffs,
            metric,
        )
    return {measure.name: float(values[measure.beir_name]) for measure in measures}


Tool = Literal["beir", "pytrec_eval"]
Order = Literal["trec_eval", "msmarco", "file"]

#: Order of equal scores to its description.
ORDERS: dict[Order, str] = {
    "trec_eval": "document id, the larger one first, with scores compared in float32",
    "msmarco": "document id, the smaller one first",
    "file": "the order of the file",
}

#: Decimals that BEIR rounds its means to.
BEIR_DECIMALS = 5

# Smaller changes of a score are none.
_CHANGE = 1e-12

#: The part of a difference that may remain once its causes are taken into account.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Cause:
    """The effect of one habit of a tool.

    Attributes:
        cause: the habit in a few words.
        reason: the habit in a sentence.
        queries: the number of queries that it concerns.
        queries_changed: the number of queries whose part in the mean it changes.
        before: the mean before it.
        after: the mean after it.
        effect: their difference.
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
    """The value of a tool less that of the reference.

    Attributes:
        tool: the tool.
        against: the reference.
        difference: the difference.
        causes: the habits of the tool that concern this run.
        remaining: the part of the difference that they leave.
        explained: True if that part is within the tolerance.
    """

    tool: str
    against: str
    difference: float
    causes: list[Cause]
    remaining: float
    explained: bool


@dataclass(frozen=True)
class ToolValue:
    """The value of a tool, under the tool's name for the measure."""

    name: str
    value: float


@dataclass(frozen=True)
class MeasureParity:
    """The values of all tools for one measure, and their differences."""

    measure: str
    tools: dict[str, ToolValue]
    differences: list[Difference]


@dataclass(frozen=True)
class ParityRecord(Record):
    """The record of one run under three tools, parity.json.

    Attributes:
        run: the run file.
        dataset: the collection.
        split: the split of its judgements.
        queries: kind of query to their number.
        measures: the values by measure.
        notes: remarks on the run and the judgements.
        explained: True if no difference remains.
        tolerance: the difference that may remain.
        versions: package to version.
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
    """The reference's scores of judged queries, to which the habits of a tool are applied.

    Attributes:
        run: the results of judged queries.
        queries: the queries that the mean is taken over.
        qrels: the judgements.
        measure: the measure.
        capped: True if recall is divided by at most the cutoff.
        causes: the effects of the habits so far.
        parts: query to its score, for the queries of the mean.
    """

    def __init__(self, measure: ParityMeasure, qrels: Qrels, run: Run) -> None:
        self.run = {query: ranking for query, ranking in run.items() if query in qrels}
        self.queries = list(qrels)
        self.qrels = qrels
        self.measure = measure.measure
        self.capped = False
        self.causes: list[Cause] = []
        self.parts = self._score()

    @property
    def mean(self) -> float:
        """Return the mean over the queries that count."""
        return sum(self.parts.values()) / len(self.parts)

    def apply(self, cause: str, reason: str, concerned: Collection[str], **changes: object) -> None:
        """Apply a habit, if it concerns any query.

        Args:
            cause: the habit in a few words.
            reason: the habit in a sentence.
            concerned: the queries that it concerns.
            **changes: new values of attributes.
        """
        if not concerned:
            return
        before = self.mean
        earlier_parts = self.parts
        vars(self).update(changes)
        self.parts = self._score()
        changed = 0
        for query, part in earlier_parts.items():
            change = abs(self.parts.get(query, np.inf) - part)
            if change > _CHANGE:
                changed += 1
        after = self.mean
        self.causes.append(
            Cause(
                cause,
                reason,
                queries=len(concerned),
                queries_changed=changed,
                before=before,
                after=after,
                effect=after - before,
            )
        )

    def reorder(self, order: Order, tool: str) -> None:
        """Give queries whose equal scores the tool orders differently scores in its order."""
        # ir-measures computes reciprocal rank with a cutoff as for MS MARCO.
        is_trec_eval = ir_measures.pytrec_eval.supports(self.measure)
        reference: Order = "trec_eval" if is_trec_eval else "msmarco"
        concerned = []
        reordered: Run = {}
        for query, scores in self.run.items():
            ranking = ranked_documents(scores, order)
            if ranking != ranked_documents(scores, reference):
                concerned.append(query)
            descending = {document: float(-rank) for rank, document in enumerate(ranking)}
            reordered[query] = descending
        of_tool = ORDERS[order]
        of_reference = ORDERS[reference]
        reason = f"equal scores: {tool} ranks by {of_tool}, ir-measures by {of_reference}"
        self.apply("ties", reason, concerned, run=reordered)

    def leave_out(self, tool: str) -> None:
        """Leave queries without results out of the mean."""
        missing = [query for query in self.queries if query not in self.run]
        answered = [query for query in self.queries if query in self.run]
        reason = (
            f"{tool} averages over the queries that the run contains; ir-measures scores the "
            "others 0"
        )
        self.apply("queries without results", reason, missing, queries=answered)

    def longer_than(self, depth: int) -> list[str]:
        """Return the queries with more than ``depth`` documents."""
        return [query for query, ranking in self.run.items() if len(ranking) > depth]

    def _score(self) -> dict[str, float]:
        metrics = ir_measures.iter_calc([self.measure], self.qrels, self.run)
        scores = {metric.query_id: float(metric.value) for metric in metrics}
        parts: dict[str, float] = {}
        for query in self.queries:
            factor = self._factor(self.qrels[query])
            parts[query] = scores[query] * factor
        return parts

    def _factor(self, grades: dict[str, int]) -> float:
        """Return what turns the recall of a query into capped recall, or 1."""
        relevant = sum(grade > 0 for grade in grades.values())
        if not self.capped or not relevant:
            return 1.0
        cutoff = int(self.measure.params["cutoff"])
        return relevant / min(relevant, cutoff)


def explain(
    tool: Tool,
    measure: ParityMeasure,
    qrels: Qrels,
    run: Run,
    value: float,
) -> Difference:
    """Explain the value of a tool for a run, starting from that of ir-measures."""
    account = _Account(measure, qrels, run)
    reference = account.mean
    if tool == "beir":
        _apply_beir(account, measure)
    else:
        _apply_pytrec_eval(account, measure)
    causes = account.causes
    mean = account.mean
    if tool == "beir":
        rounded = _rounded(mean, value)
        effect = rounded - mean
        if abs(effect) > _CHANGE:
            rounding = Cause(
                cause="rounding",
                reason=f"BEIR rounds its means to {BEIR_DECIMALS} decimals",
                queries=len(account.parts),
                queries_changed=0,
                before=mean,
                after=rounded,
                effect=effect,
            )
            causes.append(rounding)
            mean = rounded
    remaining = value - mean
    return Difference(
        tool,
        against="ir_measures",
        difference=value - reference,
        causes=causes,
        remaining=remaining,
        explained=abs(remaining) <= TOLERANCE,
    )


def _apply_beir(account: _Account, measure: ParityMeasure) -> None:
    identical = [query for query, ranking in account.run.items() if query in ranking]
    without: Run = {}
    for query, ranking in account.run.items():
        without[query] = {id: score for id, score in ranking.items() if id != query}
    reason = (
        "BEIR's evaluate removes documents with the query's id (ignore_identical_ids), also for "
        "later metrics"
    )
    account.apply("identical ids", reason, identical, run=without)
    if measure.beir_custom:
        account.reorder("file", f"BEIR's {measure.beir_name}")
    if measure.cutoff is None:
        reason = (
            f"BEIR has {measure.name} with a cutoff only, here at {measure.beir_cutoff} documents"
        )
        deep = account.longer_than(measure.beir_cutoff)
        with_cutoff = measure.measure @ measure.beir_cutoff
        account.apply("cutoff", reason, deep, measure=with_cutoff)
    if measure.capped:
        reason = (
            f"R_cap divides by {measure.cutoff} where a query has more relevant documents, recall "
            "by all"
        )
        many_relevant = _with_many_relevant(account, measure)
        account.apply("capping", reason, many_relevant, capped=True)
    if not measure.beir_custom:
        account.leave_out("BEIR's evaluate")


def _with_many_relevant(account: _Account, measure: ParityMeasure) -> list[str]:
    """Return the queries with more relevant documents than the cutoff."""
    queries = []
    for query, grades in account.qrels.items():
        relevant = sum(grade > 0 for grade in grades.values())
        if relevant > measure.beir_cutoff:
            queries.append(query)
    return queries


def _apply_pytrec_eval(account: _Account, measure: ParityMeasure) -> None:
    account.reorder("trec_eval", "pytrec_eval")
    if measure.pytrec_name == "recip_rank" and measure.cutoff is not None:
        reason = f"pytrec_eval's recip_rank has no cutoff, {measure.name} ends at {measure.cutoff}"
        deep = account.longer_than(measure.cutoff)
        account.apply("cutoff", reason, deep, measure=ir_measures.RR)
    account.leave_out("pytrec_eval")


def ranked_documents(scores: dict[str, float], order: Order) -> list[str]:
    """Return document ids, best score first, with equal scores in the given order."""
    if order == "trec_eval":
        narrow = dict(zip(scores, _float32(scores), strict=True))
        return sorted(
            scores,
            key=lambda document: (narrow[document], document),
            reverse=True,
        )
    documents = sorted(scores) if order == "msmarco" else list(scores)
    return sorted(documents, key=scores.__getitem__, reverse=True)


def _rounded(mean: float, value: float) -> float:
    """Round a mean as BEIR does.

    A sum over queries in another order may fall on the other side of a rounding boundary, so the
    candidate nearest to BEIR's own value is taken.
    """
    candidates = [round(mean + shift, BEIR_DECIMALS) for shift in (0.0, -1e-9, 1e-9)]
    return min(candidates, key=lambda candidate: abs(candidate - value))


def parity(
    run: str | Path,
    dataset: str,
    split: str = "test",
    measures: str = PARITY_MEASURES,
) -> ParityRecord:
    """Score a TREC run with three tools and explain why their values differ.

    The reference is ir-measures: its mean is over all judged queries, with 0 for those without
    results. The habits of another tool that concern this run are applied one after another. The
    difference between the tool's own value and the last mean is reported as remaining.

    Args:
        run: a TREC run file.
        dataset: the collection with the judgements. Its documents are not read.
        split: the split of the judgements.
        measures: names of ir-measures' measures that BEIR has as well, and ``R_cap@k``.

    Raises:
        InputError: If the run or the collection cannot be read, they have no query in common, or a
            measure is not shared.
    """
    parsed = parse_parity_measures(measures)
    results = read_trec_run(Path(run))
    qrels, counts = _judgements(dataset, split)
    if not results.keys() & qrels.keys():
        raise InputError(
            f"none of the queries of {run} is judged in {dataset} ({split}); check the split"
        )
    effect = "some tools count them as 0, and others leave them out"
    warn_of_lacking(str(run), results, qrels, effect)
    rows = _measure_rows(parsed, qrels, results)
    differences = itertools.chain.from_iterable(row.differences for row in rows)
    explained = all(difference.explained for difference in differences)
    queries = _counts(qrels, results)
    notes = list(_notes(parsed, queries, results))
    for kind, count in counts.items():
        log.info("%s: %s: %d", dataset, kind, count)
        notes.append(f"{kind}: {count}")
    return ParityRecord(
        run=str(run),
        dataset=dataset,
        split=split,
        queries=queries,
        measures=rows,
        notes=notes,
        explained=explained,
        tolerance=TOLERANCE,
        versions=versions(),
    )


def _measure_rows(measures: Sequence[ParityMeasure], qrels: Qrels, run: Run) -> list[MeasureParity]:
    shared_measures = [measure.measure for measure in measures]
    of_ir_measures = ir_measures.calc_aggregate(shared_measures, qrels, run)
    of_beir = beir_values(measures, qrels, run)
    of_pytrec_eval = pytrec_eval_values(measures, qrels, run)
    rows = []
    for measure in measures:
        reference = float(of_ir_measures[measure.measure])
        tools = {
            "ir_measures": ToolValue(str(measure.measure), reference),
            "beir": ToolValue(measure.beir_name, of_beir[measure.name]),
            "pytrec_eval": ToolValue(measure.pytrec_name, of_pytrec_eval[measure.name]),
        }
        differences = []
        for tool in get_args(Tool):
            value = tools[tool].value
            differences.append(explain(tool, measure, qrels, run, value))
        rows.append(MeasureParity(measure.name, tools, differences))
    return rows


def _judgements(dataset: str, split: str) -> tuple[Qrels, dict[str, int]]:
    """Return the judgements with grades of at least 0, and what was counted when they were read."""
    source = resolve_source(dataset, split)
    report = StrictReport(source.name)
    source.missing(report, "required")

    def all_known(ids: Sequence[str]) -> Bools:
        """Take every judged document as known: to find out would take reading the corpus."""
        return np.ones(len(ids), dtype=bool)

    _, qrels = join_labels(
        source,
        "required",
        all_known,
        report,
        report_duplicates=None,
    )
    counts = dict(report.counts)
    negative = 0
    clipped: Qrels = {}
    for query, grades in qrels.items():
        negative += sum(grade < 0 for grade in grades.values())
        clipped[query] = {document: max(grade, 0) for document, grade in grades.items()}
    if negative:
        # With a negative grade pytrec_eval, which all three tools use, may never return.
        counts["grades below 0, read as 0, which means not relevant as well"] = negative
    return clipped, counts


def _counts(qrels: Qrels, run: Run) -> dict[str, int]:
    judged = {query: ranking for query, ranking in run.items() if query in qrels}
    best_grades = [max(grades.values()) for grades in qrels.values()]
    without_relevant = sum(grade <= 0 for grade in best_grades)
    with_id = 0
    with_ties = 0
    out_of_order = 0
    for query, ranking in judged.items():
        different_scores = set(_float32(ranking))
        with_id += query in ranking
        with_ties += len(different_scores) < len(ranking)
        out_of_order += ranked_documents(ranking, "file") != list(ranking)
    return {
        "judged": len(qrels),
        "judged_with_results": len(judged),
        "judged_without_results": len(qrels) - len(judged),
        "judged_without_relevant_documents": without_relevant,
        "not_judged": len(run) - len(judged),
        "with_own_id_in_results": with_id,
        "with_equal_scores": with_ties,
        "with_lines_out_of_order": out_of_order,
    }


def _float32(scores: dict[str, float]) -> list[float]:
    return np.array(list(scores.values()), dtype=np.float32).tolist()  # type: ignore[no-any-return]


def _notes(measures: Sequence[ParityMeasure], queries: dict[str, int], run: Run) -> Iterator[str]:
    custom = [measure.beir_name for measure in measures if measure.beir_custom]
    capped = [measure.beir_name for measure in measures if measure.capped]
    not_judged = queries["not_judged"]
    if not_judged:
        failure = _failure(custom, "KeyError")
        yield f"{not_judged} queries of the run are not judged: no tool counts them{failure}"
    without_relevant = queries["judged_without_relevant_documents"]
    if without_relevant:
        failure = _failure(capped, "ZeroDivisionError")
        yield (
            f"{without_relevant} judged queries have no relevant document: every tool scores them "
            f"0{failure}"
        )
    out_of_order = queries["with_lines_out_of_order"]
    if out_of_order:
        yield (
            f"{out_of_order} queries have lines that do not descend by score: tools sort by score, "
            "none looks at the ranks"
        )
    longest = max(len(ranking) for ranking in run.values())
    deeper = [measure.name for measure in measures if (measure.cutoff or 0) > longest]
    if deeper:
        names = ", ".join(deeper)
        yield f"no query has more than {longest} documents, but {names} would look at more"


def _failure(names: list[str], error: str) -> str:
    if not names:
        return ""
    return f"; BEIR's {', '.join(names)} fail on them ({error}) and were given the others"
