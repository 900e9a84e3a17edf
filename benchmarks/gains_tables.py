"""What gains.py makes of its measurements: means by group, worst cases, tests, and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import beir_small_tables
import numpy as np
import numpy.typing as npt
from harness.page import Marks, markdown_table
from harness.script import ROOT, read_json, results_file
from scipy import stats

from beir_cocodr.evaluation.measures import holm

Doubles = npt.NDArray[np.float64]

PAGE = ROOT / "docs" / "adaptation.md"

DENSE = "dense"
HYBRID = "hybrid"
RM3_LABEL = "rm3"
VECTOR = "fuse"
FEEDBACK = "fuse, feedback"
#: A method with BM25's weight 0.2.
LIGHT = "{}, w 0.2"
#: A method with the weight that the estimate chose.
BY_ESTIMATE = "{}, w by estimate"

#: Methods in the order of the tables. What is trained adds its rows here.
METHODS = (
    DENSE,
    "bm25",
    HYBRID,
    BY_ESTIMATE.format(HYBRID),
    RM3_LABEL,
    VECTOR,
    FEEDBACK,
    BY_ESTIMATE.format(FEEDBACK),
)

#: Collections by the part that they had in the choice of the methods.
GROUPS = {
    "chosen on": (
        "time",
        "cranfield",
        "cisi",
        "npl",
        "med",
        "cacm",
        "lisa",
        "msmarco-pool",
        "dbpedia-pool",
    ),
    "new": (
        "scifact",
        "nfcorpus",
        "anthropic-docs",
        "financebench-pages",
        "aila-statutes",
        "legalquad-de",
        "liveqa-medquad",
        "csfcube",
        "cosqa-test500",
    ),
    "API documentation": (
        "apidocs/numpy",
        "apidocs/pandas",
        "apidocs/sklearn",
        "apidocs/stdlib",
    ),
}

#: Methods of the COCO-DR paper's Table 1, with what each is.
PUBLISHED = {
    "bm25": ("BM25", "published by BEIR"),
    "gpl": ("GPL", "published; 66M parameters, trained on queries generated from each corpus"),
    "coco-dr-base": (
        "COCO-DR Base",
        "published; 110M parameters, pre-trained on the corpora of BEIR",
    ),
    "coco-dr-large": (
        "COCO-DR Large",
        "published; 335M parameters, pre-trained on the corpora of BEIR",
    ),
}

#: nDCG@10 of Naver Labs' SPLADE-distil CoCodenser Medium (so spelled there) by Anserini's
#: regressions: github.com/castorini/anserini, commits 096236b4 (SciFact) and 06b6a007 (NFCorpus),
#: docs/regressions-beir-v1.0.0-{scifact,nfcorpus}-splade-distil-cocodenser-medium.md.
SPLADE = {"scifact": 0.6992, "nfcorpus": 0.3454}

#: What the study aimed at: the mean over the collections that the methods were chosen on, and the
#: largest loss against the encoder on any collection.
LEAST_MEAN = 0.60
LARGEST_LOSS = 0.01

_ALPHA = 0.05

# The tables of encoders other than MiniLM, and their encoders.
_OTHERS = {"gains with glove": "glove", "gains with mpnet": "mpnet", "gains with e5": "e5"}

MARKS = {
    name: Marks(f"<!-- {name} -->", f"<!-- end of {name} -->")
    for name in ("beir", "gains", "aims", "collections", *_OTHERS)
}

Cells = Mapping[str, Mapping[str, Any]]


def summarize(
    cells: Mapping[str, Cells],
    estimates: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Return all figures.

    Args:
        cells: Encoder to collection to what was measured.
        estimates: Encoder to collection to the estimated lead of the fusion over the encoder.
    """
    encoders = {}
    for encoder, of_encoder in cells.items():
        scores = {}
        for name, cell in of_encoder.items():
            estimate = estimates.get(encoder, {}).get(name, 0.0)
            scores[name] = _with_estimate(cell["per_query"], estimate)
        encoders[encoder] = {
            "collections": _by_collection(of_encoder, scores),
            "groups": {group: _of_group(scores, names) for group, names in GROUPS.items()},
            "estimates": estimates.get(encoder, {}),
            "query_ms": _mean_times(of_encoder),
            "bytes_per_document": _largest_sizes(of_encoder),
        }
    return {"encoders": encoders}


def _largest_sizes(cells: Cells) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for cell in cells.values():
        for label, size in cell["bytes_per_document"].items():
            sizes[label] = max(size, sizes.get(label, 0))
    return sizes


def _with_estimate(per_query: Mapping[str, Sequence[float]], estimate: float) -> dict[str, Doubles]:
    """Return method to (Q,) scores, with the methods whose weight the estimate chooses."""
    scores = {label: np.array(values) for label, values in per_query.items()}
    for label in (HYBRID, FEEDBACK):
        chosen = LIGHT.format(label) if estimate < 0 else label
        scores[BY_ESTIMATE.format(label)] = scores[chosen]
    return scores


def _by_collection(cells: Cells, scores: Mapping[str, Mapping[str, Doubles]]) -> dict[str, Any]:
    by_collection = {}
    for name, cell in cells.items():
        means = {label: round(float(v.mean()), 4) for label, v in scores[name].items()}
        by_collection[name] = {
            "family": cell["family"],
            "documents": cell["documents"],
            "of": cell["total"],
            "queries": cell["queries"],
            "means": means,
        }
    return by_collection


def _of_group(
    scores: Mapping[str, Mapping[str, Doubles]], names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return method to its mean, its worst case against the encoder, and its tests."""
    measured = {name: scores[name] for name in names if name in scores}
    tests = {base: _tests(measured, base) for base in (DENSE, HYBRID)}
    figures = {}
    for label in next(iter(measured.values()), {}):
        means = {name: float(of_name[label].mean()) for name, of_name in measured.items()}
        ratios = {}
        for name, mean in means.items():
            ratios[name] = mean / float(measured[name][DENSE].mean()) - 1
        worst = min(ratios, key=lambda name: ratios[name])
        figures[label] = {
            "mean": round(float(np.mean(list(means.values()))), 4),
            "worst against dense": [worst, round(ratios[worst], 4)],
            **{f"against {base}": of_base.get(label) for base, of_base in tests.items()},
        }
    return figures


def _tests(scores: Mapping[str, Mapping[str, Doubles]], base: str) -> dict[str, dict[str, int]]:
    """Count the collections on which each method is better or worse than another one.

    By paired t-tests over queries at 0.05, after Holm's correction over the collections.
    """
    counts = {}
    for label in next(iter(scores.values()), {}):
        if label == base:
            continue
        differences = [of_name[label] - of_name[base] for of_name in scores.values()]
        values = []
        for difference in differences:
            values.append(float(stats.ttest_1samp(difference, 0).pvalue) if difference.any() else 1)
        corrected = holm(values)
        better = 0
        worse = 0
        for difference, p in zip(differences, corrected, strict=True):
            if p is not None and p < _ALPHA:
                better += difference.mean() > 0
                worse += difference.mean() < 0
        counts[label] = {"better": int(better), "worse": int(worse)}
    return counts


def _mean_times(cells: Cells) -> dict[str, float]:
    labels = next(iter(cells.values()))["query_ms"]
    times = {}
    for label in labels:
        values = [cell["query_ms"][label] for cell in cells.values()]
        times[label] = round(float(np.median(values)), 1)
    return times


def markdown(name: str, results: Mapping[str, Any]) -> str:
    """Return a table of the page."""
    if name == "beir":
        return _beir()
    if name == "collections":
        return _collections(results["encoders"]["minilm"])
    if name == "aims":
        return _aims(results["encoders"]["minilm"]["groups"])
    return _gains(results["encoders"][_OTHERS.get(name, "minilm")])


def _beir() -> str:
    ours = {
        DENSE: "MiniLM alone",
        HYBRID: "MiniLM, `hybrid`",
        RM3_LABEL: "MiniLM, `rm3`",
        VECTOR: "MiniLM, `fuse`",
        FEEDBACK: "MiniLM, `fuse` with feedback",
    }
    on_both = [_measured_on(task) for task in ("scifact", "nfcorpus")]
    rows = []
    for label, shown in ours.items():
        figures = [_figure(of_task[label]) for of_task in on_both]
        rows.append([shown, *figures, "22M parameters, no training here"])
    scores = read_json(ROOT / "benchmarks" / "published" / "cocodr.json")["table1"]["scores"]
    for method, (shown, what) in PUBLISHED.items():
        scifact = _figure(scores["scifact"][method])
        rows.append([shown, scifact, _figure(scores["nfcorpus"][method]), what])
    scifact, nfcorpus = (_figure(SPLADE[name]) for name in ("scifact", "nfcorpus"))
    rows.append(["SPLADE", scifact, nfcorpus, "measured by Anserini; a sparse vector, distilled"])
    return markdown_table(["", "SciFact", "NFCorpus", "what it is"], rows)


def _measured_on(task: str) -> dict[str, float]:
    """Return the means on all of a task of BEIR, which ``beir_small.py`` measured."""
    rows = read_json(results_file("beir_small"))["tasks"][task]["rows"]
    uses = {
        DENSE: (beir_small_tables.BASE, beir_small_tables.ALONE),
        HYBRID: (beir_small_tables.BASE, beir_small_tables.FUSED),
        RM3_LABEL: (beir_small_tables.RM3, beir_small_tables.FUSED),
        VECTOR: (beir_small_tables.VECTOR, beir_small_tables.FUSED),
        FEEDBACK: (beir_small_tables.FEEDBACK, beir_small_tables.FUSED),
    }
    return {label: rows[row][use]["mean"] for label, (row, use) in uses.items()}


def _figure(value: float) -> str:
    return f"{value:.3f}"


def _gains(encoder: Mapping[str, Any]) -> str:
    rows = []
    sizes = encoder["bytes_per_document"]
    groups = encoder["groups"]
    by_estimate = [BY_ESTIMATE.format(label) for label in (HYBRID, FEEDBACK)]
    for label in METHODS:
        if label in by_estimate and not encoder["estimates"]:
            continue
        means = [f"{figures[label]['mean']:.3f}" for figures in groups.values()]
        name, ratio = groups["new"][label]["worst against dense"]
        new = groups["new"][label]
        against = new["against dense"] or {"better": 0, "worse": 0}
        on_fusion = new["against hybrid"] or {"better": 0, "worse": 0}
        size = sizes["one vector"] if label.startswith(VECTOR) else sizes["dense"]
        times = encoder["query_ms"]
        time = times.get(label, times.get(label.split(", w by")[0]))
        rows.append(
            [
                label,
                *means,
                f"{ratio:+.1%} ({name})",
                f"{against['better']} / {against['worse']}",
                f"{on_fusion['better']} / {on_fusion['worse']}",
                "" if label == "bm25" else f"{size:,}",
                time,
            ]
        )
    header = ["method", *groups, "worst of new against dense", "new: better / worse than dense"]
    header += ["than hybrid", "bytes", "ms"]
    return markdown_table(header, rows)


def _aims(groups: Mapping[str, Any]) -> str:
    """Return the table of what the study aimed at, and what the methods reach.

    Args:
        groups: Part in the choice to method to its figures.
    """
    labels = (FEEDBACK, BY_ESTIMATE.format(FEEDBACK), BY_ESTIMATE.format(HYBRID))
    old = groups["chosen on"]
    new = groups["new"]
    row = [f"mean over the nine collections at least {LEAST_MEAN:.2f}"]
    for label in labels:
        mean = old[label]["mean"]
        row.append(f"{mean:.3f}: {_met(mean >= LEAST_MEAN)}")
    rows = [row]
    for figures, which in ((old, "these nine"), (new, "the nine new ones")):
        row = [f"on none of {which} more than {LARGEST_LOSS:.0%} below MiniLM alone"]
        for label in labels:
            name, ratio = figures[label]["worst against dense"]
            row.append(f"{ratio:+.1%} ({name}): {_met(ratio >= -LARGEST_LOSS)}")
        rows.append(row)
    row = ["lead over `hybrid` on the new ones at least that on the nine"]
    for label in labels:
        leads = [figures[label]["mean"] - figures[HYBRID]["mean"] for figures in (new, old)]
        reached = "{:+.3f} against {:+.3f}".format(*leads)
        row.append(f"{reached}: {_met(leads[0] >= leads[1])}")
    rows.append(row)
    return markdown_table(["aim", *labels], rows)


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def _collections(encoder: Mapping[str, Any]) -> str:
    shown = (DENSE, "bm25", HYBRID, RM3_LABEL, VECTOR, FEEDBACK)
    estimates = encoder["estimates"]
    rows = []
    for group, names in GROUPS.items():
        for name in names:
            cell = encoder["collections"].get(name)
            if cell is None:
                continue
            means = [f"{cell['means'][label]:.3f}" for label in shown]
            size = f"{cell['documents']:,} of {cell['of']:,}"
            row = [name, group, size, cell["queries"], *means]
            if estimates:
                row.append(f"{estimates[name]:+.3f}" if name in estimates else "")
            rows.append(row)
    header = ["collection", "part", "documents", "queries", *shown]
    if estimates:
        header.append("estimate")
    return markdown_table(header, rows)
