"""Figures of hosts beside ours, measured by their tests and collected by `benchmarks/hosts.py`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from beir_cocodr.records import installed_version

RECORDED = Path(__file__).parents[1] / "benchmarks" / "results" / "hosts.json"

#: Names of hosts to their distributions; what is not installed is read and written in its form
#: alone.
HOSTS = {
    "BEIR": "beir",
    "sentence-transformers": "sentence-transformers",
    "MTEB": "mteb",
    "PyTerrier": "pyterrier",
    "Pyserini": "pyserini",
    "ir_datasets": "ir-datasets",
    "FAISS": "faiss-cpu",
    "Qdrant": "qdrant-client",
    "GPL": "gpl",
    "Tevatron": "tevatron",
}


def recorded() -> list[dict[str, str | float]]:
    return json.loads(RECORDED.read_text())["figures"] if RECORDED.is_file() else []


@pytest.fixture
def assert_same_figure(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function that asserts that a host's figure is ours and the documented one.

    It is called with host, script, measure, and the figures there and here. The documented figure
    counts where host and torch have the versions that it was measured with. COCODR_HOSTS names a
    file to which the figures go instead, a line of JSON each.
    """

    def check(host: str, script: str, measure: str, there: float, here: float) -> None:
        assert here == pytest.approx(there, abs=1e-4)
        key = {"host": host, "script": script, "measure": measure}
        versions = {"version": installed_version(HOSTS[host]), "torch": installed_version("torch")}
        figures = {"there": round(float(there), 5), "here": round(float(here), 5)}
        if file := os.environ.get("COCODR_HOSTS"):
            test = request.node.nodeid.partition("[")[0]
            with Path(file).open("a") as out:
                out.write(json.dumps(key | versions | figures | {"test": test}) + "\n")
            return
        [row] = [row for row in recorded() if key.items() <= row.items()] or [{}]
        assert row, f"run benchmarks/hosts.py: {RECORDED.name} lacks {key}"
        if versions.items() <= row.items():
            assert {name: row[name] for name in figures} == pytest.approx(figures, abs=2e-5)

    return check
