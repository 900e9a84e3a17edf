"""Claim: the gate notices faults that cost more than 0.02 nDCG@10, and passes harmless changes.

Systems are changed in known ways (``gate_changes.py``) on labelled collections. The coefficients of
the rule are fitted to some families of collections; the error rates are measured on others, without
their labels, which only say what a change cost. Every decision is made by the package's own rule.

The script prints the fitted coefficients and the rates, and writes
``benchmarks/results/gate.json``:

    python benchmarks/gate.py --folder DIR --work DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gate_changes import ENCODERS, Change, Changes, Encoded, Size, encoded_file, load_encoded
from harness.script import add_work, option_parser, origin, settings_of, write_results
from scipy.optimize import minimize

from beir_cocodr.evaluation.gate_rule import (
    CANNOT_TELL,
    GENERATED,
    REAL,
    RULE,
    SPANS,
    WORSE,
    GateEvidence,
    assess,
)
from beir_cocodr.evaluation.label_free.agreement import rank_distance

Floats = npt.NDArray[np.floating]

#: Families by collection; a collection without one is a family of its own.
FAMILIES = {
    "cisi": "library science",
    "lisa": "library science",
    "scifact": "medicine",
    "nfcorpus": "medicine",
    "med": "medicine",
    "liveqa-medquad": "medicine",
}
#: The collections to which the rule is fitted, and those on which it is measured.
FITTED = ("cisi", "lisa", "cacm", "npl", "dbpedia-pool", "msmarco-pool", "anthropic-docs")
MEASURED = (
    "cranfield",
    "time",
    "scifact",
    "nfcorpus",
    "liveqa-medquad",
    "financebench-pages",
    "csfcube",
    "cosqa-test500",
)

#: A fault that costs more than this counts.
COST = 0.02
_MARGIN = 0.01
#: Numbers of queries of a collection, at which the rule is measured as well.
FEW = (10, 20, 50)
_DRAWS = 10
_SEED = 42
_DISCOUNTS = 1 / np.log2(2 + np.arange(10))


@dataclass(frozen=True)
class Case:
    """One change of one collection.

    Attributes:
        collection: its name.
        encoder: its encoding.
        kind: "fault", "harmless" or "other".
        name: of the change.
        cost: the loss in nDCG@10 by the labels.
        error: the standard error of the cost.
        evidence: what the gate sees.
        distances: (Q,) distances of the lists for the collection's queries.
    """

    collection: str
    encoder: str
    kind: str
    name: str
    cost: float
    error: float
    evidence: list[GateEvidence]
    distances: Floats

    @property
    def decision(self) -> str:
        """Return the gate's decision at its default margin."""
        return assess(self.evidence, _MARGIN).decide()

    def describe(self) -> dict[str, Any]:
        """Return the case for the results file."""
        assessment = assess(self.evidence, _MARGIN)
        return {
            "collection": self.collection,
            "encoder": self.encoder,
            "kind": self.kind,
            "change": self.name,
            "difference": round(-self.cost, 4),
            "standard_error": round(self.error, 4),
            "estimate": round(assessment.estimate, 4),
            "loses_documents": assessment.loses_documents,
            "loses_unasked_documents": assessment.loses_unasked_documents,
            "spans": round(self.evidence[0].difference or 0.0, 4),
            "generated": round(self.evidence[1].difference or 0.0, 4),
            "distance": round(self.evidence[2].distance, 4),
            "decision": assessment.decide(),
        }


def cases_of(encoded: Encoded) -> list[Case]:
    """Return all changes of a collection with their costs."""
    changes = Changes(encoded)
    before = _ndcg(changes.unchanged["real"], encoded.qrels)
    return [_case(encoded, changes, change, before) for change in changes.all()]


def _case(encoded: Encoded, changes: Changes, change: Change, before: Floats) -> Case:
    differences = _ndcg(change.lists["real"], encoded.qrels) - before
    evidence = []
    for kind, name in ((SPANS, "crops"), (GENERATED, "gen")):
        target = encoded.vectors["crop_rows" if name == "crops" else "gen_rows"]
        old, new = (
            (lists[name] == target[:, None]) @ _DISCOUNTS
            for lists in (changes.unchanged, change.lists)
        )
        distances = rank_distance(changes.unchanged[name], change.lists[name])
        evidence.append(GateEvidence.of(kind, distances, (old, new)))
    distances = rank_distance(changes.unchanged["real"], change.lists["real"])
    evidence.append(GateEvidence.of(REAL, distances))
    return Case(
        encoded.collection,
        encoded.encoder,
        change.kind,
        change.name,
        -float(differences.mean()),
        float(differences.std() / len(differences) ** 0.5),
        evidence,
        distances,
    )


def _ndcg(rows: npt.NDArray[np.int64], qrels: Sequence[dict[int, int]]) -> Floats:
    values = []
    for ranked, grades in zip(rows.tolist(), qrels, strict=True):
        gain = sum(d * grades.get(row, 0) for d, row in zip(_DISCOUNTS, ranked, strict=True))
        best = sorted(grades.values(), reverse=True)
        values.append(gain / sum(d * grade for d, grade in zip(_DISCOUNTS, best, strict=False)))
    return np.array(values)


def fit(cases: Sequence[Case]) -> dict[str, float]:
    """Fit the coefficients by maximum likelihood, each family weighing the same."""
    rows = []
    for case in cases:
        spans, generated, real = case.evidence
        queries = spans.queries + generated.queries
        shares = (spans.queries / queries, generated.queries / queries)
        parts = list(zip(shares, (spans, generated), strict=True))
        known = sum(share * (figures.difference or 0.0) for share, figures in parts)
        variance = sum((share * (figures.standard_error or 0.0)) ** 2 for share, figures in parts)
        t = known / variance**0.5 if variance else np.sign(known) * 100
        direction = real.distance * np.tanh(t / 2)
        # One further query that differs by 0.3, as the gate counts it.
        noise = case.error**2 + (0.3 / real.queries) ** 2
        rows.append((known, direction, real.distance, -case.cost, noise))
    known, direction, distance, true, noise = np.array(rows).T
    families = [FAMILIES.get(case.collection, case.collection) for case in cases]
    weights = np.array([1 / families.count(family) for family in families])

    def loss(values: Floats) -> float:
        residuals = true - values[0] * known - values[1] * direction
        variances = np.exp(2 * values[2]) + (values[3] * distance) ** 2 + noise
        return float(weights @ (np.log(variances) + residuals**2 / variances))

    minimum = minimize(
        loss, [0.5, 0.2, -6.0, 0.15], method="Nelder-Mead", options={"maxiter": 5000}
    )
    names = ("known", "direction", "error", "error_by_distance")
    fitted = dict(zip(names, minimum.x.tolist(), strict=True))
    fitted["error"] = float(np.exp(fitted["error"]))
    apart = true / np.maximum(distance, 0.05)
    return fitted | {"unknown_direction": float((apart**2).mean() ** 0.5)}


def rates(cases: Sequence[Case], queries: int = Size.queries, draws: int = 1) -> dict[str, Any]:
    """Return the error rates over some cases.

    Args:
        cases: the cases.
        queries: the most queries of a collection that were asked.
        draws: how often each case is among them, with other queries.
    """
    faults = [case for case in cases if case.kind == "fault" and case.cost > COST]
    harmless = [case for case in cases if case.kind == "harmless"]
    return {
        "margin": _MARGIN,
        "collections": len({case.collection for case in cases}),
        "faults": len(faults) // draws,
        "found": _share(faults, WORSE),
        "faults_undecided": _share(faults, CANNOT_TELL),
        "changes": len(harmless) // draws,
        "false_alarms": _share(harmless, WORSE),
        "changes_undecided": _share(harmless, CANNOT_TELL),
        "queries": queries,
    }


def _share(cases: Sequence[Case], decision: str) -> float:
    if not cases:
        return 0.0
    return round(sum(case.decision == decision for case in cases) / len(cases), 4)


def without_queries(cases: Sequence[Case]) -> list[Case]:
    """Return the cases as the gate sees them on a corpus that has no queries of its own."""
    return [
        replace(case, evidence=[figures for figures in case.evidence if figures.kind != REAL])
        for case in cases
    ]


def with_few_queries(cases: Sequence[Case], queries: int) -> list[Case]:
    """Return the cases as the gate sees them with few of the queries, drawn anew ten times."""
    rng = np.random.default_rng(_SEED)
    few = []
    for _ in range(_DRAWS):
        for case in cases:
            drawn = rng.choice(case.distances, min(queries, len(case.distances)), replace=False)
            evidence = [*case.evidence[:2], GateEvidence.of(REAL, drawn)]
            few.append(replace(case, evidence=evidence))
    return few


def by_kind(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the number of costly faults, and of those noticed, for each kind of fault."""
    table: dict[str, dict[str, int]] = {}
    for case in cases:
        if case.kind == "fault":
            row = table.setdefault(
                case.name.partition(":")[0], {"costly": 0, "noticed": 0, "all": 0}
            )
            row["all"] += 1
            row["costly"] += case.cost > COST
            row["noticed"] += case.cost > COST and case.decision == WORSE
    return table


def replacements(cases: Sequence[Case]) -> dict[str, Any]:
    """Return how the gate decides between other systems, which may be better or worse."""
    others = [case for case in cases if case.kind == "other"]
    better = [case for case in others if case.cost < -2 * case.error]
    worse = [case for case in others if case.cost > max(COST, 2 * case.error)]
    return {
        "better": len(better),
        "better_called_worse": _share(better, WORSE),
        "worse": len(worse),
        "worse_noticed": _share(worse, WORSE),
        "worse_undecided": _share(worse, CANNOT_TELL),
    }


def main() -> None:
    """Encode what is missing, fit the rule, and measure it on the other families."""
    parser = option_parser(__doc__, "gate")
    add_work(parser)
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        metavar="DIR",
        help="Read the labelled collections, BEIR folders, from this folder.",
    )
    parser.add_argument(
        "--documents",
        type=int,
        default=Size.documents,
        metavar="N",
        help="Encode at most this many documents of each collection, all relevant ones if they "
        "are at most three quarters.",
    )
    parser.add_argument(
        "--bfloat16",
        action="store_true",
        help="Let MiniLM compute in bfloat16.",
    )
    parser.add_argument(
        "--encoded-only",
        action="store_true",
        help="Use only the collections that --work has encoded.",
    )
    options = parser.parse_args()
    cases = []
    for collection in (*FITTED, *MEASURED):
        for encoder in ENCODERS:
            cases += _cases(collection, encoder, options)
    fitted = fit([case for case in cases if case.collection in FITTED])
    measured = [case for case in cases if case.collection in MEASURED]
    results = {
        **origin("faiss-cpu", threads=1),
        "settings": settings_of(options),
        "fitted": fitted,
        "rule": vars(RULE),
        "rates": rates(measured),
        "rates_by_encoder": {
            encoder: rates([case for case in measured if case.encoder == encoder])
            for encoder in ENCODERS
        },
        "rates_without_queries": rates(without_queries(measured), 0),
        "rates_with_few_queries": {
            str(queries): rates(with_few_queries(measured, queries), queries, _DRAWS)
            for queries in FEW
        },
        "rates_where_fitted": rates([case for case in cases if case.collection in FITTED]),
        "faults": by_kind(measured),
        "replacements": replacements(measured),
        "cases": [case.describe() for case in cases],
    }
    print(fitted, results["rates"], results["rates_by_encoder"], results["faults"], sep="\n")
    print(results["rates_without_queries"], results["rates_with_few_queries"], sep="\n")
    print(results["rates_where_fitted"], results["replacements"], sep="\n")
    write_results(options.results, results)


def _cases(collection: str, encoder: str, options: argparse.Namespace) -> list[Case]:
    size = Size(options.documents, bfloat16=options.bfloat16)
    is_encoded = encoded_file(collection, encoder, options.work, size).is_file()
    if options.encoded_only and not is_encoded:
        print(f"{collection} is not encoded by {encoder}")
        return []
    print(f"{collection} by {encoder}", flush=True)
    encoded = load_encoded(collection, options.folder, encoder, options.work, size)
    return cases_of(encoded)


if __name__ == "__main__":
    main()
