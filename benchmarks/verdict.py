"""Claim: on a corpus never seen, 90% intervals without labels hold, and decide what matters.

Labelled collections were searched by many systems (``collect.py``). Each collection is judged by a
model of differences that was fitted without it and without its family: priors, slopes, widths,
widening and reaches, nothing has seen the family that is judged. Pairs of undamaged systems are
counted: BM25, an encoder, its fusion, RM3 and feedback, and encoders against each other, on
collections on which BM25 is below 0.9. Encoders with a known defect, against themselves without it,
have a table of their own. Last, a model is fitted to all collections, which is the calibration that
the package carries.

The form of the model was chosen on the same figures, which flatters them. Collections that were not
looked at while it was chosen (``--unseen``) have a table of their own.

The script prints and writes how often intervals hold and decide, by kind of collection, by kind of
pair, by encoder and by evidence, what picking the best bet costs, and which aims are missed:

    python benchmarks/verdict.py --work runs/collect --unseen apidocs/pandas lisa

``label_free_fitting.py`` refits the calibration with an estimator of your own, on collections that
everyone has.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collecting.searched import Searched, load_searched
from fitting.counted_calibration import calibration_of
from fitting.counts import reliability
from fitting.judged_collections import (
    EVIDENCE,
    FEATURES,
    REGIMES,
    JudgedCollection,
    use_of,
    with_features,
)
from fitting.labelled_pairs import LabelledPairs
from fitting.left_out import Predicted, leave_families_out, leave_kinds_out, leave_nothing_out
from fitting.moment_fit import CAUTION, USUAL_LOSS
from fitting.overlap_bias import COMPARED, overlap_bias
from fitting.summaries import (
    Summary,
    defect_of,
    encoders_of,
    grouped,
    name_of,
    picks,
    share,
    summarize,
    without_own_kind,
)
from harness.page import PAGE, Marks, markdown_table
from harness.script import (
    add_work,
    option_parser,
    origin,
    results_file,
    settings_of,
    write_results,
)

from beir_cocodr.evaluation.label_free.verdict import (
    CALIBRATION_FILE,
    CORPUS_ALONE,
    GIVEN_QUERIES,
    READ_QUERIES,
)

#: What is given, in the headers of tables.
SHORT = {
    GIVEN_QUERIES: "queries",
    READ_QUERIES: "and a language model",
    CORPUS_ALONE: "corpus alone",
}

#: Around the table of aims on docs/results.md.
AIM_MARKS = Marks("<!-- aims -->", "<!-- end of aims -->")
#: Around the tables of evidence and of defects there.
DETAIL_MARKS = Marks("<!-- evidence -->", "<!-- end of evidence -->")


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
class Study:
    """The collections of one regime.

    Attributes:
        regime: "given queries", "given queries and a language model" or "corpus alone".
        collections: All collections that take part in the fit.
        unseen: Names of collections that were not looked at while the model was chosen.
    """

    regime: str
    collections: Sequence[JudgedCollection]
    unseen: frozenset[str]

    @property
    def hard(self) -> list[JudgedCollection]:
        """Return the collections that are counted."""
        return [one for one in self.collections if not one.is_easy and one.name not in self.unseen]

    @property
    def fitted(self) -> list[LabelledPairs]:
        """Return the pairs that models are fitted to, of collections that were looked at."""
        return [one.fitted(self.regime) for one in self.collections if one.name not in self.unseen]

    @property
    def searched(self) -> dict[str, Searched]:
        """Return name to what was searched."""
        return {one.name: one.searched for one in self.collections}

    def judge(self) -> tuple[Summary, list[Predicted]]:
        """Judge all collections without their families.

        Returns:
            The figures, and the predictions of the pairs that are counted.
        """
        searched = self.searched
        left_out, defects = self._left_out()
        figures = {
            "all": summarize(left_out),
            "by kind of collection": grouped(left_out, lambda pairs, _: searched[pairs.name].kind),
            "by kind of pair": grouped(left_out, lambda pairs, row: name_of(pairs.kinds[row])),
            "by encoder": grouped(
                left_out, lambda pairs, row: encoders_of(searched[pairs.name], pairs.models[row])
            ),
            "by evidence": self.by_evidence(),
            "with a further family": summarize(self._predict(self._counted(), further_family=True)),
            "with nothing left out": self._judge_seen(),
            "defects": grouped(
                defects, lambda pairs, row: defect_of(searched[pairs.name], pairs.models[row])
            ),
            "picks": picks(left_out, searched),
            "reliability": reliability(left_out),
        }
        if self.regime == GIVEN_QUERIES:
            figures["bias by overlap"] = self.overlap_bias()
        figures["unseen"] = self.judge_unseen()
        return figures, left_out

    def judge_new_kinds(self) -> dict[str, list[Predicted]]:
        """Return kind to the predictions of its pairs by fits without the kind and the family."""
        return leave_kinds_out(self.fitted, self._counted(), CAUTION[self.regime])

    def overlap_bias(self) -> dict[str, Any]:
        """Return how far leads on crops and the like are too large, by the words of queries."""
        uses = {}
        for one in self.hard:
            uses[one.name] = {name: use_of(one.searched, name) for name in one.searched.systems}
        return overlap_bias(self._counted(), uses, USUAL_LOSS)

    def _predict(
        self, judged: Sequence[LabelledPairs], *, further_family: bool = False
    ) -> list[Predicted]:
        return leave_families_out(self.fitted, judged, further_family, CAUTION[self.regime])

    def _judge_seen(self) -> Summary:
        """Return what the same evidence gives if the judged families are fitted, too."""
        caution = CAUTION[self.regime]
        counted = [with_features(pairs, FEATURES[self.regime]) for pairs in self._counted()]
        return summarize(leave_nothing_out(self.fitted, counted, caution))

    def _counted(self) -> list[LabelledPairs]:
        return [one.counted(self.regime) for one in self.hard]

    def _left_out(self) -> tuple[list[Predicted], list[Predicted]]:
        """Return the predictions of counted pairs, and of pairs with a defect."""
        counted = self._counted()
        planted = [one.defects[self.regime] for one in self.hard]
        planted = [pairs for pairs in planted if pairs.models]
        predictions = self._predict([*counted, *planted])
        return predictions[: len(counted)], predictions[len(counted) :]

    def by_evidence(self) -> dict[str, Summary]:
        """Return the summaries of fits with parts of the evidence, as far as there is any."""
        seen: set[str] = set()
        for one in self.collections:
            seen = seen.union(*one.pairs[self.regime].features)
        summaries = {}
        for name, features in EVIDENCE.items():
            if not seen.issuperset(features):
                continue
            reduced = []
            for one in self.collections:
                if one.name not in self.unseen:
                    reduced.append(with_features(one.pairs[self.regime], features))
            judged = [with_features(pairs, features) for pairs in self._counted()]
            summaries[name] = summarize(
                leave_families_out(reduced, judged, caution=CAUTION[self.regime])
            )
        return summaries

    def judge_unseen(self) -> Summary:
        """Judge the collections that were not looked at, without their families."""
        counted = []
        for one in self.collections:
            if one.name in self.unseen and not one.is_easy:
                counted.append(one.counted(self.regime))
        predictions = self._predict(counted) if counted else []
        return {
            "all": summarize(predictions),
            "by collection": grouped(predictions, lambda pairs, _: pairs.name),
            "picks": picks(predictions, self.searched),
        }


def check_aims(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each aim with its value, None where nothing is decided, and whether it is met."""
    summary = results["all"]
    kinds = results["by kind of collection"].values()
    means = results["picks"]["means"]
    decided = summary["counts"].get("decided", 0)
    values = {
        COVERAGE: share(summary, "covered", "pairs"),
        LEAST_COVERAGE: min(share(of_kind, "covered", "pairs") for of_kind in kinds),
        WIDTH: summary["width"],
        RIGHT: share(summary, "right", "decided") if decided else None,
        VERY_LARGE_DECIDED: share(summary, "very_large_decided", "very_large"),
        LARGE_DECIDED: share(summary, "large_decided", "large"),
        EQUAL_DECIDED: share(summary, "equal_decided", "equal"),
        REGRET: means["best"] - means["picked"],
        GAIN: means["picked"] - means["fusion"],
    }
    checked = []
    for aim, value in values.items():
        is_met = value is not None and aim.is_met(value)
        checked.append({**vars(aim), "value": value, "met": is_met})
    return checked


# What is printed.

_HEADER = ["", "collections", "pairs", "held", "width", "spread", "error", "prior", "decided"]
_HEADER += ["sign right", "> 0.05 decided", "> 0.03 decided", "within 0.01 decided"]


def _row(name: str, summary: Mapping[str, Any]) -> list[str]:
    return [
        name,
        str(summary["collections"]),
        str(summary["counts"].get("pairs", 0)),
        f"{share(summary, 'covered', 'pairs'):.0%}",
        f"{summary['width']:.3f}",
        f"{summary['spread']:.3f}",
        f"{summary['error']:.3f}",
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


def _table(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    return markdown_table(_HEADER, list(_rows(summaries)))


def _described_picks(picked: Mapping[str, Any]) -> str:
    means = picked["means"]
    described = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
    return f"Picks, mean nDCG@10: {described}."


def regimes_of(results: Mapping[str, Any]) -> list[str]:
    """Return what was given in the verdicts that were judged."""
    return [regime for regime in REGIMES if regime in results]


def describe(results: Mapping[str, Any]) -> str:
    """Return the tables that the script prints."""
    parts = []
    for regime in regimes_of(results):
        of_regime = results[regime]
        parts.append(f"## {regime}")
        for part in ("by kind of collection", "by kind of pair", "by encoder", "by evidence"):
            parts += [f"### {part}", _table(of_regime[part] | {"all": of_regime["all"]})]
        parts += ["### known defects", _table(of_regime["defects"])]
        others = {
            "with the mass of a further family": of_regime["with a further family"],
            "with nothing left out": of_regime["with nothing left out"],
        }
        parts += ["### other fits", _table(others)]
        parts.append(_described_picks(of_regime["picks"]))
        parts.append(markdown_table(["aim", "", ""], _aim_rows(of_regime["aims"])))
        unseen = of_regime["unseen"]
        if unseen["all"]["collections"]:
            parts.append("### not looked at while the model was chosen")
            parts.append(_table(unseen["by collection"] | {"all": unseen["all"]}))
            parts.append(_described_picks(unseen["picks"]))
    return "\n\n".join(parts)


def _aim_rows(aims: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    for aim in aims:
        wanted = f"{aim['low']:.3g} to {aim['high']:.3g}"
        rows.append([aim["name"], wanted, _marked(aim)])
    return rows


def _marked(aim: Mapping[str, Any]) -> str:
    if aim["value"] is None:
        return "none decided"
    mark = "" if aim["met"] else " (missed)"
    return f"{aim['value']:.3f}{mark}"


def aims_table(results: Mapping[str, Any]) -> str:
    """Return the table of docs/results.md: each aim, what was measured, and whether it is met."""
    rows = []
    regimes = regimes_of(results)
    for aims in zip(*(results[regime]["aims"] for regime in regimes), strict=True):
        row = [aims[0]["name"], _wanted(aims[0])]
        for aim in aims:
            row += [_measured(aim), "yes" if aim["met"] else "no"]
        rows.append(row)
    header = ["", "aim"]
    for regime in regimes:
        header += [SHORT[regime], "met?"]
    return markdown_table(header, rows)


def _wanted(aim: Mapping[str, Any]) -> str:
    """Return the range of an aim in words."""
    if aim["high"] == 1.0:
        return f"at least {aim['low']:.3g}"
    if aim["low"] == 0.0:
        return f"at most {aim['high']:.3g}"
    return f"{aim['low']:.3g} to {aim['high']:.3g}"


def _measured(aim: Mapping[str, Any]) -> str:
    return "none decided" if aim["value"] is None else f"{aim['value']:.3f}"


def detail_tables(results: Mapping[str, Any]) -> str:
    """Return further tables of docs/results.md: evidence, its bias, encoders and defects."""
    of_regime = results[GIVEN_QUERIES]
    read = results.get(READ_QUERIES, {"by evidence": {}})["by evidence"]
    likelihood = {name: part for name, part in read.items() if "likelihood" in name}
    alone = {f"{name}, corpus alone": part for name, part in _parts_of_corpus_alone(results)}
    evidence = of_regime["by evidence"] | likelihood | alone
    return "\n\n".join(
        [
            _detail_table("evidence", evidence),
            _bias_table(of_regime["bias by overlap"]),
            _detail_table("uses of", of_regime["by encoder"]),
            _detail_table("known defect", of_regime["defects"]),
        ]
    )


def _parts_of_corpus_alone(results: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, summary in results[CORPUS_ALONE]["by evidence"].items():
        if name in ("what usually wins alone", "crops", "titles"):
            yield name, summary


def _detail_table(name: str, summaries: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for label, summary in summaries.items():
        if summary["collections"]:
            rows.append(
                [
                    label,
                    str(summary["collections"]),
                    _of(summary, "covered", "pairs"),
                    f"{summary['width']:.2f}",
                    f"{summary['error']:.3f}",
                    _of(summary, "right", "decided"),
                    _of(summary, "very_large_decided", "very_large"),
                ]
            )
    header = [name, "collections", "intervals hold", "width", "error", "sign right"]
    return markdown_table([*header, "> 0.05 decided"], rows)


def _bias_table(biases: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for estimator, by_pair in biases.items():
        row = [estimator]
        for part in by_pair.values():
            row += [_described_bias(part[name]) for name in ("usual", "few", "slope")]
        rows.append(row)
    header = ["lead too large by"]
    for a, b in COMPARED:
        over = f"{b} over {a}"
        header += [f"{over}, usual words", "few words", "slope"]
    return markdown_table(header, rows)


def _described_bias(part: Mapping[str, Any]) -> str:
    if part["value"] is None:
        return "–"
    error = "" if part["error"] is None else f" ± {part['error']:.2f}"
    return f"{part['value']:+.2f}{error}"


def documented(results: Mapping[str, Any]) -> str:
    """Return the tables of docs/verdicts.md."""
    rows = []
    regimes = regimes_of(results)
    for aims in zip(*(results[regime]["aims"] for regime in regimes), strict=True):
        wanted = _aim_rows(aims)[0][1]
        rows.append([aims[0]["name"], wanted, *map(_marked, aims)])
    return "\n\n".join(
        [
            markdown_table(["", "aim", *(SHORT[regime] for regime in regimes)], rows),
            _documented_kinds(results[GIVEN_QUERIES]["by kind of collection"]),
        ]
    )


def _documented_kinds(kinds: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of kinds of collections."""
    rows = []
    for name, summary in kinds.items():
        rows.append(
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
    return markdown_table([*header, "> 0.05 decided"], rows)


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
        "--unseen",
        nargs="*",
        default=[],
        help="Judge these collections apart, by models that were fitted to the others.",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        default=CALIBRATION_FILE,
        help="Write the calibration to this file. Default: the packaged one.",
    )
    return parser.parse_args()


def read_collections(options: argparse.Namespace) -> list[JudgedCollection]:
    """Return the searched collections that are not judged in pools."""
    collections = []
    for searched in load_searched(options.work, tuple(options.encoders)):
        if not searched.facts.pooled:
            collections.append(JudgedCollection.of(searched))
            print(f"{searched.name}: {len(searched.systems)} systems", flush=True)
    return collections


def measured_regimes(collections: Sequence[JudgedCollection]) -> list[str]:
    """Return what verdicts can be judged with; without a reader there is no language model."""
    is_read = any(one.searched.with_queries.pooled is not None for one in collections)
    return [regime for regime in REGIMES if is_read or regime != READ_QUERIES]


def describe_collection(searched: Searched) -> dict[str, Any]:
    """Return the facts of a collection, and how unlike documents its queries are."""
    evidence = searched.with_queries
    return vars(searched.facts) | {
        "lost_words": round(evidence.lost_words, 3),
        "nonletter_excess": round(evidence.nonletter_excess, 3),
    }


def main() -> None:
    """Judge all collections, print and write the results, and write the calibration."""
    options = parse_options()
    collections = read_collections(options)
    results: dict[str, Any] = origin() | {"settings": settings_of(options)}
    trusted = {}
    new_kinds = {}
    regimes = measured_regimes(collections)
    for regime in regimes:
        study = Study(regime, collections, frozenset(options.unseen))
        results[regime], left_out = study.judge()
        searched = study.searched
        trusted[regime] = [without_own_kind(one, searched[one.pairs.name]) for one in left_out]
        by_kind = study.judge_new_kinds()
        results[regime]["kinds left out"] = {
            kind: summarize(by_kind[kind]) for kind in sorted(by_kind)
        }
        new_kinds[regime] = list(itertools.chain.from_iterable(by_kind.values()))
        results[regime]["all kinds left out"] = summarize(new_kinds[regime])
        results[regime]["aims"] = check_aims(results[regime])
    results["collections"] = {one.name: describe_collection(one.searched) for one in collections}
    write_results(options.results, results)
    by_regime = {regime: [one.fitted(regime) for one in collections] for regime in regimes}
    corpora = {one.name: one.searched.corpora for one in collections}
    calibration = calibration_of(by_regime, corpora, trusted, new_kinds)
    calibration.write(options.calibration)
    print(describe(results))
    print(documented(results))
    if options.results == results_file("verdict"):
        AIM_MARKS.write(PAGE, aims_table(results))
        DETAIL_MARKS.write(PAGE, detail_tables(results))


if __name__ == "__main__":
    main()
