"""One run under BEIR, ir-measures and pytrec_eval, with every difference accounted for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.files.strict_report import StrictReport
from beir_cocodr.data.labels import join_labels
from beir_cocodr.data.resolve import resolve_source
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.parity_causes import Tool, explain, ranked_documents
from beir_cocodr.evaluation.parity_measures import PARITY_MEASURES, ParityMeasure, parse_parity_measures
from beir_cocodr.evaluation.parity_tools import Qrels, beir_values, ir_measures_values, pytrec_eval_values
from beir_cocodr.evaluation.trec_run import Run, read_trec_run
from beir_cocodr.versions import versions

#: What may remain of a difference once its causes are taken into account.
TOLERANCE = 1e-6


def parity(
    run: str | Path, dataset: str, split: str = "test", measures: str = PARITY_MEASURES
) -> dict[str, Any]:
    """Score a TREC run with three tools and say why their numbers differ.

    The reference is ir-measures: its mean is over all judged queries, with 0 for those without results. Each
    habit of another tool that concerns this run is applied to the reference in turn and the mean computed
    again; what the last mean and the tool's own number still differ by is reported as remaining.

    Args:
        run: a TREC run file.
        dataset, split: the collection whose judgements count; its documents are not read.
        measures: names of ir-measures that BEIR has as well, and ``R_cap@k``.

    Returns:
        ``run``, ``dataset``, ``split``; ``queries``: counts by kind; ``measures``: for each its ``measure``,
        ``tools`` (tool to the ``name`` it has there and its ``value``) and ``differences`` (see
        :func:`explain`, with ``tool`` and ``against``); ``notes``: what else has to be known; ``explained``:
        whether nothing remains; ``tolerance`` and ``versions``.

    Raises:
        InputError: a run or collection that cannot be read, no query in common, or a measure that the
            tools do not share.
    """
    wanted = parse_parity_measures(measures)
    found = read_trec_run(Path(run))
    qrels, counts = _judgements(dataset, split)
    if not set(found) & set(qrels):
        raise InputError(f"none of the queries of {run} is judged in {dataset} ({split}); check the split")
    reference = ir_measures_values(wanted, qrels, found)
    others: dict[Tool, dict[str, float]] = {
        "beir": beir_values(wanted, qrels, found),
        "pytrec_eval": pytrec_eval_values(wanted, qrels, found),
    }
    rows = [_row(measure, reference, others, qrels, found) for measure in wanted]
    queries = _counts(qrels, found)
    return {
        "run": str(run),
        "dataset": dataset,
        "split": split,
        "queries": queries,
        "measures": rows,
        "notes": [*_notes(wanted, queries, found), *(f"{kind}: {n}" for kind, n in counts.items())],
        "explained": all(difference["explained"] for row in rows for difference in row["differences"]),
        "tolerance": TOLERANCE,
        "versions": versions(),
    }


def _judgements(dataset: str, split: str) -> tuple[Qrels, dict[str, int]]:
    source = resolve_source(dataset, split)
    report = StrictReport(source.name)
    source.missing(report, "required")
    # Whether judged documents exist does not matter here, and finding out would take reading the corpus.
    joined = join_labels(source, "required", lambda ids: np.ones(len(ids), dtype=bool), report)
    counts = dict(report.counts)
    if negative := sum(grade < 0 for grades in joined.qrels.values() for grade in grades.values()):
        # With a negative grade pytrec_eval, on which all three tools stand, may never return.
        counts["grades below 0, read as 0, which means not relevant as well"] = negative
    return {
        query: {document: max(grade, 0) for document, grade in grades.items()}
        for query, grades in joined.qrels.items()
    }, counts


def _row(
    measure: ParityMeasure,
    reference: dict[str, float],
    others: dict[Tool, dict[str, float]],
    qrels: Qrels,
    run: Run,
) -> dict[str, Any]:
    names: dict[Tool, str] = {"beir": measure.beir_name, "pytrec_eval": measure.pytrec_name}
    tools: dict[str, dict[str, Any]] = {
        "ir_measures": {"name": str(measure.measure), "value": reference[measure.name]}
    }
    differences = []
    for tool, values in others.items():
        value = values[measure.name]
        tools[tool] = {"name": names[tool], "value": value}
        told = explain(tool, measure, qrels, run, value, TOLERANCE)
        differences.append({"tool": tool, "against": "ir_measures", **told})
    return {"measure": measure.name, "tools": tools, "differences": differences}


def _counts(qrels: Qrels, run: Run) -> dict[str, int]:
    judged = [found for query, found in run.items() if query in qrels]
    return {
        "judged": len(qrels),
        "judged_with_results": len(judged),
        "judged_without_results": len(qrels) - len(judged),
        "judged_without_relevant_documents": sum(max(grades.values()) <= 0 for grades in qrels.values()),
        "not_judged": len(run) - len(judged),
        "with_own_id_in_results": sum(q in found for q, found in run.items() if q in qrels),
        "with_equal_scores": sum(len(set(_float32(found))) < len(found) for found in judged),
        "with_lines_out_of_order": sum(ranked_documents(found, "file") != list(found) for found in judged),
    }


def _float32(found: dict[str, float]) -> list[float]:
    scores: list[float] = np.array(list(found.values()), dtype=np.float32).tolist()
    return scores


def _notes(measures: Sequence[ParityMeasure], queries: dict[str, int], run: Run) -> Iterator[str]:
    custom = [measure.beir_name for measure in measures if measure.beir_custom]
    capped = [measure.beir_name for measure in measures if measure.capped]
    if queries["not_judged"]:
        yield (
            f"{queries['not_judged']} queries of the run are not judged: no tool counts them"
            + _fails(custom, "KeyError")
        )
    if without := queries["judged_without_relevant_documents"]:
        yield (
            f"{without} judged queries have no relevant document: every tool scores them 0"
            + _fails(capped, "ZeroDivisionError")
        )
    if queries["with_lines_out_of_order"]:
        yield (
            f"{queries['with_lines_out_of_order']} queries have lines that do not descend by score: every "
            "tool sorts by score, and none looks at the ranks"
        )
    longest = max(map(len, run.values()))
    if short := [measure.name for measure in measures if (measure.cutoff or 0) > longest]:
        yield f"no query has more than {longest} documents, {', '.join(short)} would look at more"


def _fails(names: list[str], error: str) -> str:
    return f"; BEIR's {', '.join(names)} fail on them ({error}) and were given the others" if names else ""
