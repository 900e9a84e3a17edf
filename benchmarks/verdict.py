"""Claim: on a corpus never seen, 90% intervals without labels hold, and decide what matters.

Labelled collections were searched by many systems (``collect.py``). Each collection is judged by a
model of differences that was fitted without it and without its family: priors, slopes, widths,
widening and quantile, nothing has seen the family that is judged. Pairs of undamaged systems are
counted: BM25, an encoder, its fusion, RM3 and feedback, and encoders against each other, on
collections on which BM25 is below 0.9. Encoders with a known defect, against themselves without it,
have a table of their own. Last, a model is fitted to all collections, which is the calibration that
the package carries.

The script prints and writes how often intervals hold and decide, by kind of collection, by encoder
and by evidence, what picking the best bet costs, and which aims are missed:

    python benchmarks/verdict.py --work runs/collect

``label_free_fitting.py`` refits the calibration with an estimator of your own, on collections that
everyone has.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from collecting.searched import Searched, load_searched
from harness.page import markdown_table
from harness.script import add_work, option_parser, origin, settings_of, write_results
from label_free_fitting import (
    Kinds,
    LabelledPairs,
    Predicted,
    calibration_of,
    count_trust,
    leave_families_out,
    pairs_of,
    reliability,
)

from beir_cocodr.evaluation.few_labels import NORMAL
from beir_cocodr.evaluation.label_free.estimates import LEXICAL, MIDDLE
from beir_cocodr.evaluation.label_free.estimators import CROPS
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.label_free.likeness import figures_of
from beir_cocodr.evaluation.label_free.verdict import (
    CALIBRATION_FILE,
    CORPUS_ALONE,
    GIVEN_QUERIES,
)

REGIMES = (GIVEN_QUERIES, CORPUS_ALONE)

#: Kinds of queries that the collector makes, beside those of the package's estimators.
MATCHED = "matched crops"
TITLES = "titles"

#: On a collection where BM25 reaches this, systems hardly differ.
_EASY = 0.9

#: Uses of an encoder that are counted, and further ones that take part in the fit.
COUNTED = ("bm25", "dense", "hybrid@0.5", "rm3", "feedback")
FITTED = (*COUNTED, "hybrid@0.2", "hybrid@1", "rrf")
FUSED = "hybrid@0.5"

#: Queries made of documents whose nDCG@10 is evidence.
DERIVED = (MATCHED, TITLES)

#: The features of the calibration.
FEATURES = (CROPS, MATCHED, LEXICAL, MIDDLE)

#: Evidence to the features that it gives; the fits without some show what each adds.
EVIDENCE = {
    "what usually wins alone": (),
    "crops": (CROPS,),
    "crops of both kinds": (CROPS, MATCHED),
    "agreement": (LEXICAL, MIDDLE),
}

# Documents and queries whose words are counted.
_LOOKED_AT = 500


@dataclass(frozen=True)
class Aim:
    """A figure that the verdicts should reach.

    Attributes:
        name: What it is.
        low: Its least value.
        high: Its largest value.
    """

    name: str
    low: float
    high: float

    def is_met(self, value: float) -> bool:
        """Return true if a value reaches the aim."""
        return self.low <= value <= self.high


COVERAGE = Aim("90% intervals hold", 0.85, 0.95)
LEAST_COVERAGE = Aim("90% intervals hold, in the worst kind of collection", 0.75, 1.0)
WIDTH = Aim("mean width", 0.0, 0.14)
RIGHT = Aim("sign right among decided pairs", 0.97, 1.0)
VERY_LARGE_DECIDED = Aim("decided where labels differ by more than 0.05", 0.6, 1.0)
LARGE_DECIDED = Aim("decided where labels differ by more than 0.03", 0.45, 1.0)
EQUAL_DECIDED = Aim("decided where labels are within 0.01", 0.0, 0.1)
REGRET = Aim("picks below the best of each collection", 0.0, 0.01)
GAIN = Aim("picks above always taking the fusion", 0.0, 1.0)


@dataclass(frozen=True)
class Collection:
    """A labelled collection with all pairs of systems that were searched on it.

    Attributes:
        searched: What was searched.
        pairs: Regime to the pairs of undamaged systems.
        defects: Regime to the pairs of a system and the same with a defect.
    """

    searched: Searched
    pairs: dict[str, LabelledPairs]
    defects: dict[str, LabelledPairs]

    @classmethod
    def of(cls, searched: Searched) -> Collection:
        """Return the pairs of a collection."""
        pairs = {}
        defects = {}
        for regime, evidence in zip(REGIMES, (searched.with_queries, searched.alone), strict=True):
            pairs[regime] = _pairs(searched, evidence, is_undamaged(searched))
            defects[regime] = _pairs(searched, evidence, is_defect_of(searched))
        return cls(searched, pairs, defects)

    @property
    def is_easy(self) -> bool:
        """Return true if BM25 alone finds nearly everything."""
        return float(self.searched.scores["bm25"].mean()) >= _EASY

    def counted(self, regime: str) -> LabelledPairs:
        """Return the pairs that are counted."""
        pairs = self.pairs[regime]
        uses = {name: use_of(self.searched, name) for name in self.searched.systems}
        rows = [uses[a] in COUNTED and uses[b] in COUNTED for a, b in pairs.models]
        return pairs.take(np.array(rows, bool))


def use_of(searched: Searched, name: str) -> str:
    """Return how a system uses its encoder, with BM25's weight in a fusion."""
    system = searched.systems[name]
    return f"{system.use}@{system.weight:g}" if system.use == "hybrid" else system.use


#: Returns true for a pair of systems that is compared.
IsCompared = Callable[[str, str], bool]


def is_undamaged(searched: Searched) -> IsCompared:
    """Return the pairs of systems without a defect, of one encoder or of one use."""
    systems = searched.systems

    def is_compared(a: str, b: str) -> bool:
        if systems[a].is_defect or systems[b].is_defect:
            return False
        if not {use_of(searched, a), use_of(searched, b)} <= {*FITTED}:
            return False
        encoders = {systems[a].encoder, systems[b].encoder} - {""}
        return len(encoders) < 2 or use_of(searched, a) == use_of(searched, b)

    return is_compared


def is_defect_of(searched: Searched) -> IsCompared:
    """Return the pairs of a system and the same system with a defect."""
    systems = searched.systems

    def is_compared(a: str, b: str) -> bool:
        if systems[a].is_defect == systems[b].is_defect:
            return False
        same_encoder = systems[a].encoder == systems[b].encoder
        return same_encoder and use_of(searched, a) == use_of(searched, b)

    return is_compared


def _pairs(searched: Searched, evidence: Evidence, is_compared: IsCompared) -> LabelledPairs:
    texts = searched.documents[:_LOOKED_AT]
    queries = list(evidence.queries.values()) if evidence.real else []
    figures = figures_of(len(searched.documents), texts, queries[:_LOOKED_AT], evidence)
    chosen = [(a, b) for a, b in itertools.combinations(searched.systems, 2) if is_compared(a, b)]
    pairs = pairs_of(searched.name, searched.family, evidence, searched.scores, figures, chosen)
    return replace(pairs, features=list(_with_derived(searched, pairs)))


def _with_derived(searched: Searched, pairs: LabelledPairs) -> Iterator[dict[str, float]]:
    """Yield the features of pairs with the leads on derived queries that evidence lacks."""
    names = [name for name in DERIVED if name in searched.query_sets]
    values = {name: searched.ndcg(name) for name in names}
    for (a, b), features in zip(pairs.models, pairs.features, strict=True):
        leads = {name: float((values[name][b] - values[name][a]).mean()) for name in names}
        kept = {name: value for name, value in (leads | features).items() if name in FEATURES}
        yield kept


# What is counted.


def summarize(predictions: Sequence[Predicted]) -> dict[str, Any]:
    """Return counts of pairs, widths, errors, and how much of the estimates is prior."""
    differences = [one for predicted in predictions for one in predicted.differences]
    if not differences:
        return {"collections": 0, "counts": {}}
    errors = [predicted.expected - predicted.pairs.differences for predicted in predictions]
    return {
        "collections": len({predicted.pairs.name for predicted in predictions}),
        "counts": count_trust(predictions),
        "width": float(np.mean([2 * NORMAL * one.deviation for one in differences])),
        "error": float(np.sqrt(np.mean(np.concatenate(errors) ** 2))),
        "prior": float(np.mean([one.prior_share for one in differences])),
    }


def share(summary: Mapping[str, Any], part: str, of: str) -> float:
    """Return the share of some counted pairs among others; 0 of none."""
    counts = summary["counts"]
    return counts.get(part, 0) / max(1, counts.get(of, 0))


def grouped(
    predictions: Sequence[Predicted],
    group_of: Callable[[LabelledPairs, int], str],
) -> dict[str, dict[str, Any]]:
    """Return the summaries of groups of pairs.

    Args:
        predictions: The predictions.
        group_of: Returns the group of a pair by its collection's pairs and its row.
    """
    groups: dict[str, list[Predicted]] = {}
    for predicted in predictions:
        pairs = predicted.pairs
        names = np.array([group_of(pairs, row) for row in range(len(pairs.models))])
        for name in dict.fromkeys(names.tolist()):
            rows = names == name
            kept = [predicted.differences[row] for row in np.flatnonzero(rows).tolist()]
            groups.setdefault(name, []).append(Predicted(pairs.take(rows), kept))
    return {name: summarize(of_group) for name, of_group in sorted(groups.items())}


def judge_regime(
    collections: Sequence[Collection], regime: str
) -> tuple[dict[str, Any], list[Predicted]]:
    """Judge all collections without their families, with all evidence and with parts of it.

    Returns:
        The figures, and the predictions of the pairs that are counted.
    """
    hard = [one for one in collections if not one.is_easy]
    fitted = [one.pairs[regime] for one in collections]
    searched = {one.searched.name: one.searched for one in collections}
    counted = [one.counted(regime) for one in hard]
    planted = [one.defects[regime] for one in hard if one.defects[regime].models]
    predictions = leave_families_out(fitted, [*counted, *planted])
    left_out = predictions[: len(counted)]
    defects = predictions[len(counted) :]
    by_evidence = {}
    for name, features in EVIDENCE.items() if regime == GIVEN_QUERIES else ():
        reduced = [with_features(pairs, features) for pairs in fitted]
        judged = [with_features(pairs, features) for pairs in counted]
        by_evidence[name] = summarize(leave_families_out(reduced, judged))
    by_evidence["all"] = summarize(left_out)
    guaranteed = leave_families_out(fitted, counted, further=1)
    figures = {
        "all": summarize(left_out),
        "by kind of collection": grouped(left_out, lambda pairs, _: searched[pairs.name].kind),
        "by kind of pair": grouped(left_out, lambda pairs, row: kinds_of(pairs.kinds[row])),
        "by encoder": grouped(
            left_out, lambda pairs, row: encoders_of(searched[pairs.name], pairs.models[row])
        ),
        "by evidence": by_evidence,
        "with a guarantee": summarize(guaranteed),
        "defects": grouped(
            defects, lambda pairs, row: defect_of(searched[pairs.name], pairs.models[row])
        ),
        "picks": picks(left_out, searched),
        "reliability": reliability(left_out),
    }
    return figures, left_out


def with_features(pairs: LabelledPairs, names: Sequence[str]) -> LabelledPairs:
    """Return the pairs with some of their features."""
    features = []
    for values in pairs.features:
        features.append({name: values[name] for name in names if name in values})
    return replace(pairs, features=features)


def kinds_of(kinds: Kinds) -> str:
    """Return a pair of kinds in one order."""
    return " and ".join(sorted(map(str, kinds)))


def encoders_of(searched: Searched, pair: tuple[str, str]) -> str:
    """Return the encoders of a pair."""
    encoders = {searched.systems[name].encoder for name in pair} - {""}
    return " and ".join(sorted(encoders))


def defect_of(searched: Searched, pair: tuple[str, str]) -> str:
    """Return the defect of one of a pair."""
    return next(searched.systems[name].defect for name in pair if searched.systems[name].defect)


def picks(predictions: Sequence[Predicted], searched: Mapping[str, Searched]) -> dict[str, Any]:
    """Return what the best bets among the uses of an encoder reach, on each collection.

    The best bet has the highest expected value. It is compared with the best of all by labels,
    and with always taking the fusion.
    """
    rows = []
    for predicted in predictions:
        of_collection = searched[predicted.pairs.name]
        encoders = {system.encoder for system in of_collection.systems.values()} - {""}
        for encoder in sorted(encoders):
            values = _values(predicted, of_collection, encoder)
            if values:
                rows.append({"collection": predicted.pairs.name, "encoder": encoder} | values)
    names = ("picked", "best", "fusion", "encoder alone", "bm25")
    means = {}
    for name in names:
        means[name] = float(np.mean([row[name] for row in rows])) if rows else 0.0
    return {"means": means, "rows": rows}


def _values(predicted: Predicted, searched: Searched, encoder: str) -> dict[str, float]:
    """Return nDCG@10 of the pick and of fixed choices among an encoder's uses and BM25."""
    leads: dict[str, float] = {}
    for (a, b), difference in zip(predicted.pairs.models, predicted.differences, strict=True):
        if {searched.systems[a].encoder, searched.systems[b].encoder} <= {encoder, ""}:
            leads[b] = leads.get(b, 0.0) + difference.mean
            leads[a] = leads.get(a, 0.0) - difference.mean
    uses = {use_of(searched, name): name for name in leads}
    if not {"dense", FUSED, "bm25"} <= uses.keys():
        return {}
    values = {name: float(searched.scores[name].mean()) for name in leads}
    return {
        "picked": values[max(leads, key=lambda name: leads[name])],
        "best": max(values.values()),
        "fusion": values[uses[FUSED]],
        "encoder alone": values[uses["dense"]],
        "bm25": values[uses["bm25"]],
    }


def check_aims(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each aim with its value and whether it is met."""
    summary = results["all"]
    kinds = results["by kind of collection"].values()
    means = results["picks"]["means"]
    values = {
        COVERAGE: share(summary, "covered", "pairs"),
        LEAST_COVERAGE: min(share(of_kind, "covered", "pairs") for of_kind in kinds),
        WIDTH: summary["width"],
        RIGHT: share(summary, "right", "decided"),
        VERY_LARGE_DECIDED: share(summary, "very_large_decided", "very_large"),
        LARGE_DECIDED: share(summary, "large_decided", "large"),
        EQUAL_DECIDED: share(summary, "equal_decided", "equal"),
        REGRET: means["best"] - means["picked"],
        GAIN: means["picked"] - means["fusion"],
    }
    checked = []
    for aim, value in values.items():
        checked.append({**vars(aim), "value": value, "met": aim.is_met(value)})
    return checked


# What is printed.

_HEADER = ["", "collections", "pairs", "held", "width", "prior", "decided", "sign right"]
_HEADER += ["> 0.05 decided", "> 0.03 decided", "within 0.01 decided"]


def _row(name: str, summary: Mapping[str, Any]) -> list[str]:
    return [
        name,
        str(summary["collections"]),
        str(summary["counts"].get("pairs", 0)),
        f"{share(summary, 'covered', 'pairs'):.0%}",
        f"{summary['width']:.3f}",
        f"{summary['prior']:.0%}",
        f"{share(summary, 'decided', 'pairs'):.0%}",
        _of(summary, "right", "decided"),
        _of(summary, "very_large_decided", "very_large"),
        _of(summary, "large_decided", "large"),
        _of(summary, "equal_decided", "equal"),
    ]


def _of(summary: Mapping[str, Any], part: str, total: str) -> str:
    counts = summary["counts"]
    return f"{counts.get(part, 0)} of {counts.get(total, 0)}"


def _rows(summaries: Mapping[str, Mapping[str, Any]]) -> Iterator[list[str]]:
    for name, summary in summaries.items():
        if summary["collections"]:
            yield _row(name, summary)


def describe(results: Mapping[str, Any]) -> str:
    """Return the tables that the script prints."""
    parts = []
    for regime in REGIMES:
        of_regime = results[regime]
        parts.append(f"## {regime}")
        for part in ("by kind of collection", "by kind of pair", "by encoder", "by evidence"):
            rows = [*_rows(of_regime[part]), _row("all", of_regime["all"])]
            parts += [f"### {part}", markdown_table(_HEADER, rows)]
        parts += ["### known defects", markdown_table(_HEADER, list(_rows(of_regime["defects"])))]
        guaranteed = _row("with the mass of a further family", of_regime["with a guarantee"])
        parts += ["### with a guarantee", markdown_table(_HEADER, [guaranteed])]
        means = of_regime["picks"]["means"]
        described = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        parts.append(f"Picks, mean nDCG@10: {described}.")
        parts.append(markdown_table(["aim", "", "", ""], _aim_rows(of_regime["aims"])))
    return "\n\n".join(parts)


def _aim_rows(aims: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    for aim in aims:
        wanted = f"{aim['low']:.3g} to {aim['high']:.3g}"
        rows.append([aim["name"], wanted, f"{aim['value']:.3f}", "met" if aim["met"] else "missed"])
    return rows


def documented(results: Mapping[str, Any]) -> str:
    """Return the tables of docs/verdicts.md."""
    rows = []
    for with_queries, alone in zip(*(results[regime]["aims"] for regime in REGIMES), strict=True):
        wanted = _aim_rows([with_queries])[0][1]
        marks = ["" if aim["met"] else " (missed)" for aim in (with_queries, alone)]
        values = [f"{aim['value']:.2f}" for aim in (with_queries, alone)]
        cells = [value + mark for value, mark in zip(values, marks, strict=True)]
        rows.append([with_queries["name"], wanted, *cells])
    aims = markdown_table(["", "aim", *REGIMES], rows)
    kinds = []
    for name, summary in results[GIVEN_QUERIES]["by kind of collection"].items():
        kinds.append(
            [
                name,
                str(summary["collections"]),
                _of(summary, "covered", "pairs"),
                f"{summary['width']:.2f}",
                _of(summary, "right", "decided"),
                _of(summary, "very_large_decided", "very_large"),
            ]
        )
    header = ["with queries", "collections", "intervals hold", "width", "sign right"]
    return "\n\n".join([aims, markdown_table([*header, "> 0.05 decided"], kinds)])


def parse_options() -> argparse.Namespace:
    """Return the options of the script."""
    parser = option_parser(__doc__, "verdict")
    add_work(parser, "runs/benchmark-collect")
    parser.add_argument(
        "--encoders",
        nargs="*",
        default=[],
        help="Read the results of these encoders. Default: all.",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        default=CALIBRATION_FILE,
        help="Write the calibration to this file. Default: the packaged one.",
    )
    return parser.parse_args()


def main() -> None:
    """Judge all collections, print and write the results, and write the calibration."""
    options = parse_options()
    collections = []
    for searched in load_searched(options.work, tuple(options.encoders)):
        if not searched.facts.pooled:
            collections.append(Collection.of(searched))
            print(f"{searched.name}: {len(searched.systems)} systems", flush=True)
    results: dict[str, Any] = origin() | {"settings": settings_of(options)}
    left_out = {}
    for regime in REGIMES:
        results[regime], left_out[regime] = judge_regime(collections, regime)
        results[regime]["aims"] = check_aims(results[regime])
    results["collections"] = {one.searched.name: vars(one.searched.facts) for one in collections}
    write_results(options.results, results)
    by_regime = {regime: [one.pairs[regime] for one in collections] for regime in REGIMES}
    corpora = {one.searched.name: one.searched.corpus_sha256 for one in collections}
    calibration_of(by_regime, corpora, left_out[GIVEN_QUERIES]).write(options.calibration)
    print(describe(results))
    print(documented(results))


if __name__ == "__main__":
    main()
