"""The table of ``beir_small.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.page import Marks, markdown_table

MARKS = Marks("<!-- small beir -->", "<!-- end of small beir -->")

#: How a model is used: its vectors alone, or fused with BM25.
ALONE = "alone"
FUSED = "fused"

#: Rows of what needs no training.
BASE = "MiniLM"
BM25 = "BM25"
RM3 = "MiniLM, rm3"
VECTOR = "MiniLM, fuse"
FEEDBACK = "MiniLM, fuse with feedback"
FREE = (BM25, BASE, RM3, VECTOR, FEEDBACK)


def markdown(results: Mapping[str, Any], trained: Sequence[str]) -> str:
    """Return the table of the page: row by task, alone and fused, beside the published figures.

    Args:
        results: The content of the results file.
        trained: The names of the rows that are trained, in order.
    """
    tasks = sorted(results["tasks"], reverse=True)
    header = ["", "seeds"]
    for task in tasks:
        header += [f"{task}, alone", f"{task}, fused", f"{task}, minutes"]
    rows = []
    for row in (*FREE, *trained):
        summaries = {task: results["tasks"][task]["rows"].get(row) for task in tasks}
        if not any(summaries.values()):
            continue
        seeds = max(len(one["seeds"]) for one in summaries.values() if one)
        cells = [row, str(seeds or "")]
        for task, summary in summaries.items():
            tests = results["tasks"][task]["tests"]
            cells += [_figure(summary, tests[use], row, use) for use in (ALONE, FUSED)]
            cells.append(_minutes(summary["minutes"]) if summary else "")
        rows.append(cells)
    for name, figures in results["published"].items():
        row = [f"{name}, published", ""]
        for task in tasks:
            row += [f"{figures[task]:.3f}", "", ""]
        rows.append(row)
    return markdown_table(header, rows)


def _minutes(by_device: Mapping[str, float]) -> str:
    """Return the minutes of training on a CPU, or those on a GPU where no CPU was used."""
    if "cpu" in by_device:
        return f"{by_device['cpu']:.0f}"
    return "".join(f"{minutes:.1f} (GPU)" for minutes in by_device.values())


def _figure(
    summary: Mapping[str, Any] | None,
    tests: list[dict[str, Any]],
    row: str,
    use: str,
) -> str:
    """Return a mean with its spread, and a star where it differs from MiniLM's."""
    if summary is None or use not in summary:
        return ""
    figure = summary[use]
    text = f"{figure['mean']:.3f}"
    if "sd" in figure:
        text += f" ± {figure['sd']:.3f}"
    for test in tests:
        if (test["a"], test["b"]) == (BASE, row) and test["t_p_holm"] < 0.05:
            return f"{text} *"
    return text
