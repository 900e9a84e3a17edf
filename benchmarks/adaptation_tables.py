"""The summary and the tables of ``adaptation.py``: means over collections, tests, and aims."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness.page import Marks, markdown_table
from scipy import stats

from beir_cocodr.evaluation.measures import holm, parse_measures

MARKS = Marks("<!-- adaptation table -->", "<!-- end of adaptation -->")
SHORT_MARKS = Marks("<!-- short table -->", "<!-- end of short -->")

#: Methods of the README's table, to the names that commands take.
USES = {
    "bm25": "`bm25`",
    "dense": "`minilm`",
    "feedback": "`feedback:minilm`",
    "fusion, w 0.5": "`hybrid:minilm`",
    "RM3 fusion": "`rm3:minilm`",
    "hybrid auto": "`fuse`: one vector",
}
MEASURES = parse_measures("nDCG@10 R@100")
NDCG, RECALL = map(str, MEASURES)

#: Methods that are measured with seeds after the first.
FEW = ("dense", "fusion, w 0.5", "feedback", "hybrid auto")

#: Methods that the results have and the documentation's table leaves out.
DETAILS = (
    "hybrid auto, fp16",
    "hybrid auto, w by length",
    "hybrid svd 1024",
    "hybrid svd 512 + hash 512, 1",
)

#: The figures of each collection, by the collection's name.
Cells = dict[str, dict[str, Any]]


def summarize(
    base: Cells,
    trained: list[Cells],
    prose: list[str],
) -> dict[str, Any]:
    """Return means over collections, paired tests of each collection, and the aims.

    Args:
        base: The figures of the untrained encoder.
        trained: The figures of each seed; the first has all collections of the others.
        prose: The collections for which the aims are stated.
    """
    first = trained[0] if trained else {}
    last = trained[-1] if trained else {}
    every_method = {}
    for label in method_names(base):
        every_method[label] = {name: mean(base, label, name) for name in (NDCG, RECALL)}
    after_training = {}
    for label in method_names(first):
        untrained = mean({name: base[name] for name in first}, label)
        after_training[label] = {
            "untrained": untrained,
            "trained": mean(first, label),
        }
    over_seeds = {}
    for label in FEW if last else ():
        untrained = mean({name: base[name] for name in last}, label)
        of_seeds = [mean({name: run[name] for name in last}, label) for run in trained]
        over_seeds[label] = {
            "untrained": untrained,
            "trained": of_seeds,
        }
    return {
        "means": every_method,
        "after training": {
            "collections": list(first),
            "means": after_training,
        },
        "over seeds": {
            "collections": list(last),
            "means": over_seeds,
        },
        "aims": check_aims(base, prose),
        "tests": {name: test_collection(name, base, trained) for name in base},
    }


def check_aims(base: Cells, prose: list[str]) -> dict[str, Any]:
    """Return the gain of one vector over the encoder, and its loss against the exact fusion."""
    on_prose = {name: base[name] for name in prose}
    gain = mean(on_prose, "hybrid auto") / mean(on_prose, "dense") - 1
    losses = {}
    for name, figures in base.items():
        cell = {name: figures}
        losses[name] = round(mean(cell, "hybrid auto") - mean(cell, "fusion, w 0.5"), 4)
    return {
        "hybrid over dense on prose": round(gain, 4),
        "hybrid less the exact fusion": losses,
    }


def test_collection(
    name: str,
    base: Cells,
    trained: list[Cells],
) -> dict[str, Any]:
    """Test the methods on one collection by families of comparisons."""
    per_query = base[name]["per_query"]
    scores = {label: np.array(values) for label, values in per_query.items()}
    hybrids = [label for label in scores if label.startswith("hybrid auto")]
    families = {
        "against dense": [("dense", label) for label in scores if label != "dense"],
        "against the exact fusion, w 0.5": [("fusion, w 0.5", label) for label in hybrids],
    }
    seeds = [run[name]["per_query"] for run in trained if name in run]
    if seeds:
        for label in FEW:
            scores[f"{label}, trained"] = np.mean([seed[label] for seed in seeds], axis=0)
        families["trained against untrained"] = [(label, f"{label}, trained") for label in FEW]
    return {family: paired_tests(scores, pairs) for family, pairs in families.items()}


def paired_tests(
    scores: dict[str, np.ndarray], pairs: list[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Test b against a over queries by paired t-tests, with Holm's correction over all pairs."""
    values = []
    for a, b in pairs:
        differ = bool((scores[a] != scores[b]).any())
        values.append(stats.ttest_rel(scores[b], scores[a]).pvalue if differ else 1.0)
    tests = []
    for (a, b), p in zip(pairs, holm(values), strict=True):
        difference = round(float((scores[b] - scores[a]).mean()), 4)
        tests.append(
            {
                "a": a,
                "b": b,
                "difference": difference,
                "p_holm": round(float(p), 5),
            }
        )
    return tests


def method_names(cells: Cells) -> list[str]:
    """Return the methods of the first collection."""
    for figures in cells.values():
        return list(figures["methods"])
    return []


def mean(
    cells: Cells,
    label: str,
    measure: str = NDCG,
) -> float:
    """Return the mean of a method over collections."""
    values = [figures["methods"][label][measure] for figures in cells.values()]
    return round(float(np.mean(values)), 4)


def group_means(results: dict[str, Any], label: str) -> list[str]:
    """Format the means of a method over prose, documentation and all, and its recall."""
    base = results["encoders"]["base"]
    prose = {name: base[name] for name in results["prose"]}
    documentation = {name: base[name] for name in base if name not in prose}
    cells = [f"{mean(group, label):.3f}" for group in (prose, documentation, base)]
    return [*cells, f"{mean(base, label, RECALL):.3f}"]


def markdown(results: dict[str, Any]) -> str:
    """Format the documentation's table."""
    base = results["encoders"]["base"]
    after = results["after training"]["means"]
    header = ["method", "prose", "documentation", "all", "R@100", "bytes", "ms"]
    if after:
        header += ["untrained", "fine-tuned"]
    rows = []
    for label in method_names(base):
        if label in DETAILS:
            continue
        figures = [cell["methods"][label] for cell in base.values()]
        size = max(one["bytes_per_document"] or 0 for one in figures)
        milliseconds = np.mean([one["query_ms"] for one in figures])
        row = [label, *group_means(results, label)]
        row += [f"{size:,}" if size else "", f"{milliseconds:.0f}"]
        if after:
            means = after.get(label)
            for name in ("untrained", "trained"):
                row.append("" if means is None else f"{means[name]:.3f}")
        rows.append(row)
    return markdown_table(header, rows)


def short_table(results: dict[str, Any]) -> str:
    """Format the README's table, with the number of collections on which dense search loses."""
    header = ["model", "prose", "documentation", "all", "R@100", "better than `minilm` on"]
    rows = []
    for label, name in USES.items():
        tests = []
        for families in results["tests"].values():
            tests += [test for test in families["against dense"] if test["b"] == label]
        better = [test for test in tests if test["p_holm"] < 0.05 and test["difference"] > 0]
        count = f"{len(better)} of {len(tests)}" if tests else ""
        rows.append([name, *group_means(results, label), count])
    return markdown_table(header, rows)
