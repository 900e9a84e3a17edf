"""How well can differences be told without labels?

All pairs of methods over labelled collections, and over others resampled from them
(``resampled.py``): estimators see no labels, labels tell the difference. A model of the one by the
other is fitted with each parent, and everything resampled from it, left out in turn; then
collections of another seed are judged by the same models; then one is fitted to all, which is the
calibration that the package carries. A collection is a cell that is kept in --output and not
searched again. Writes benchmarks/results/verdict.json and the calibration.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from label_free_fitting import (
    MARGIN,
    LabelledPairs,
    Predicted,
    count_trust,
    fit,
    fit_quantile,
    leave_parents_out,
    reliability,
)
from machine import machine
from resampled import kind_of, load_parent, resample, search
from study import targets

from beir_cocodr.data.collection import load_collection
from beir_cocodr.evaluation.label_free.agreement import rank_distance
from beir_cocodr.evaluation.label_free.estimates import features
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.label_free.likeness import text_figures
from beir_cocodr.evaluation.label_free.verdict import (
    CALIBRATION_FILE,
    CORPUS_ALONE,
    DIFFERENT_KINDS,
    GIVEN_QUERIES,
    SAME_KIND,
)
from beir_cocodr.evaluation.results import Calibration
from beir_cocodr.io import write_text
from beir_cocodr.records import versions

RESULTS = Path(__file__).parent / "results" / "verdict.json"
DOMAINS = ["stdlib", "numpy", "pandas", "torch", "scipy", "sklearn"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--domains", nargs="*", default=DOMAINS, help="of apidocs")
    parser.add_argument("--dataset", nargs="*", default=[], help="further labelled collections")
    parser.add_argument("--collections", type=Path, help="folder with cranfield, cisi, npl, time")
    parser.add_argument(
        "--documents", type=int, default=2500, help="most documents of a test collection"
    )
    parser.add_argument("--samples", type=int, default=200, help="crops, and generated queries")
    parser.add_argument("--seed", type=int, default=42, help="of these")
    parser.add_argument(
        "--other-seed", type=int, default=7, help="of the collections that are judged at the end"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark-verdict"))
    parser.add_argument("--vectors", type=Path, help="folder of embeddings (in --output)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--calibration", type=Path, default=CALIBRATION_FILE, help="where it is written"
    )
    arguments = parser.parse_args()
    own = [f"apidocs/{name}" for name in arguments.domains] + arguments.dataset
    parents = targets(own, arguments.collections, arguments.output, arguments.documents)
    cells = {name: Cells(name, source, arguments) for name, source in parents.items()}
    report, calibration = judge(list(cells.values()), arguments)
    write_text(arguments.results, json.dumps(report, indent=1) + "\n")
    calibration.write(arguments.calibration)
    print(markdown(report))


class Cells:
    """The collections of one parent, each searched once: regime to its pairs."""

    def __init__(self, name: str, source: str, arguments: argparse.Namespace) -> None:
        self.name, self.corpus = name, load_collection(source).documents.content_hash
        self.pairs: dict[tuple[int, str], list[LabelledPairs]] = {}
        self.figures: list[dict[str, float]] = []
        self.values: dict[str, dict[str, float]] = {}
        vectors = arguments.vectors or arguments.output / "vectors"
        for seed in (0, arguments.other_seed):
            file = arguments.output / "cells" / f"{name.replace('/', '-')}.{seed}.json"
            if not file.is_file():
                parent = load_parent(
                    name.removeprefix("apidocs/"),
                    source,
                    vectors,
                    arguments.samples,
                    arguments.seed,
                )
                file.parent.mkdir(parents=True, exist_ok=True)
                found = [
                    _cell(name, part.name, *search(parent, part, seed))
                    for part in resample(parent, seed)
                ]
                looks = [
                    text_figures(
                        len(part.documents),
                        [parent.texts["docs"][i] for i in part.documents[:500]],
                        [parent.texts["queries"][i] for i in part.queries],
                    )
                    for part in resample(parent, seed)
                ]
                for cell, look in zip(found, looks, strict=True):
                    cell["figures"] |= look
                write_text(file, json.dumps(found))
            for cell in json.loads(file.read_text()):
                self.values[f"{cell['name']} ({seed})"] = cell["values"]
                if not seed:
                    self.figures.append(cell["figures"])
                for regime, content in cell["regimes"].items():
                    arrays = {k: np.array(v) for k, v in content.items()}
                    made = LabelledPairs(
                        cell["name"], name, [tuple(pair) for pair in cell["models"]], cell["names"], **arrays,
                        differences=np.array(cell["differences"]), errors=np.array(cell["errors"]),
                        queries=cell["queries"],
                    )  # fmt: skip
                    self.pairs.setdefault((seed, regime), []).append(made)


def _cell(
    parent: str, part: str, given: Evidence, alone: Evidence, scores: dict[str, Any]
) -> dict[str, Any]:
    """What is seen of all pairs of methods on one collection, and what labels tell of them."""
    models = list(itertools.combinations(scores, 2))
    gaps = [scores[b] - scores[a] for a, b in models]
    regimes = {}
    for name, evidence in ((GIVEN_QUERIES, given), (CORPUS_ALONE, alone)):
        seen = [features(evidence, a, b) for a, b in models]
        regimes[name] = {
            "features": [list(found.values()) for found in seen],
            "distances": [
                float(rank_distance(evidence.lists[a], evidence.lists[b]).mean()) for a, b in models
            ],
        }
    return {
        "name": f"{parent} {part}",
        "models": models,
        "names": list(seen[0]),
        "regimes": regimes,
        "differences": [float(gap.mean()) for gap in gaps],
        "errors": [float(gap.std(ddof=1) / np.sqrt(len(gap))) for gap in gaps],
        "queries": len(gaps[0]),
        "values": {name: float(found.mean()) for name, found in scores.items()},
        "figures": {
            "BM25's nDCG@10 on held-out crops": float(given.crops["bm25"].mean()),
            "BM25's nDCG@10 on generated queries": float(given.generated["bm25"].mean()),
        },
    }


def judge(
    cells: Sequence[Cells], arguments: argparse.Namespace
) -> tuple[dict[str, Any], Calibration]:
    """The report, and the calibration."""
    report: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine()}
    report["settings"] = {k: v for k, v in vars(arguments).items() if not isinstance(v, Path)}
    models, trust = {}, {}
    for regime in (GIVEN_QUERIES, CORPUS_ALONE):
        fitted = [found for one in cells for found in one.pairs[0, regime]]
        unseen = [
            found for one in cells for found in one.pairs.get((arguments.other_seed, regime), [])
        ]
        made, others = leave_parents_out(fitted, unseen)
        models[regime] = fit(fitted, fit_quantile(made))
        report[regime] = {"left out": summary(made), "other seeds": summary(others)}
        report[regime]["model"] = vars(models[regime])
        if regime == GIVEN_QUERIES:
            trust = {
                SAME_KIND: count_trust(made, lambda a, b: kind_of(a) == kind_of(b)),
                DIFFERENT_KINDS: count_trust(made, lambda a, b: kind_of(a) != kind_of(b)),
            }
    looks = [look for one in cells for look in one.figures]
    ranges = {name: (min(x[name] for x in looks), max(x[name] for x in looks)) for name in looks[0]}
    report["collections"] = {name: values for one in cells for name, values in one.values.items()}
    report["versions"] = versions()
    corpora = [one.corpus for one in cells]
    names = [one.name for one in cells]
    reliable = report[GIVEN_QUERIES]["left out"]["reliability"]
    return report, Calibration(
        names, corpora, trust, report["date"], models, MARGIN, ranges, reliability=reliable
    )


def summary(made: Sequence[Predicted]) -> dict[str, Any]:
    """Counts of pairs, over all and by parent, the mean width of intervals, and how reliable
    chances are.
    """
    parents = dict.fromkeys(one.pairs.parent for one in made)
    return {
        "collections": len(made),
        "counts": count_trust(made),
        "width": float(np.mean([2 * one.half_widths.mean() for one in made])),
        "error": float(
            np.sqrt(
                np.mean(np.concatenate([one.expected - one.pairs.differences for one in made]) ** 2)
            )
        ),
        "reliability": reliability(made),
        "parents": {
            name: count_trust([one for one in made if one.pairs.parent == name]) for name in parents
        },
    }


def markdown(report: dict[str, Any]) -> str:
    lines = [
        "| | collections | pairs | covered | width | decided | sign right | large decided | equal decided |"
    ]
    lines.append("| --- " * 9 + "|")
    for regime in (GIVEN_QUERIES, CORPUS_ALONE):
        for name in ("left out", "other seeds"):
            found = report[regime][name]
            n = found["counts"]
            shares = [n["decided"] / n["pairs"], n["right"] / max(1, n["decided"])]
            more = [n[f"{size}_decided"] / max(1, n[size]) for size in ("large", "equal")]
            cells = [
                f"{n['covered'] / n['pairs']:.1%}",
                f"{found['width']:.3f}",
                *(f"{x:.1%}" for x in shares + more),
            ]
            lines.append(
                f"| {regime}, {name} | {found['collections']} | {n['pairs']} | {' | '.join(cells)} |"
            )
    lines += ["", "| P(better), predicted | observed | pairs |", "| --- | --- | --- |"]
    for row in report[GIVEN_QUERIES]["left out"]["reliability"]:
        lines.append(f"| {row['predicted']:.2f} | {row['observed']:.2f} | {row['pairs']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
