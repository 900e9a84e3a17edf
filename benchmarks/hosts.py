"""Claim: hosts that use our parts give the figures that they give with their own.

The tests of the hosts measure both sides. This script runs them, collects their figures, writes
``benchmarks/results/hosts.json``, and puts the table into ``docs/results.md``:

    python benchmarks/hosts.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.page import PAGE, Marks, markdown_table, measured
from harness.script import ROOT, option_parser, origin, results_file, write_results

MARKS = Marks("<!-- hosts table -->", "<!-- end of hosts -->")

#: The tests that measure something twice, in a host and here.
TESTS = [
    "tests/plugins/test_beir_examples.py",
    "tests/plugins/test_mteb.py",
    "tests/plugins/test_pyterrier.py",
    "tests/plugins/test_pyserini_commands.py",
    "tests/plugins/test_irds_folder.py",
    "tests/plugins/test_qdrant.py",
    "tests/training/finetuning/test_pairs_exchange.py",
    "tests/models/test_cocodr_host_calls.py",
    "tests/test_hosts.py",
]


def markdown(figures: list[dict[str, Any]]) -> str:
    """Format the line with machine and date, and the table of figures."""
    header = ["host", "version", "script", "measure", "there", "here"]
    rows = []
    for row in figures:
        rows.append(
            [
                row["host"],
                row["version"] or "its form",
                f"`{row['script']}`",
                row["measure"],
                _figure(row["there"]),
                _figure(row["here"]),
            ]
        )
    return "\n".join([measured("hosts"), "", markdown_table(header, rows)])


def _figure(value: float) -> str:
    is_whole = value % 1 == 0
    return f"{value:.0f}" if is_whole else f"{value:.4f}"


def run_tests() -> list[dict[str, Any]]:
    """Run the tests, and return the figures that they measured."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "figures.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-k", "not the_page_has", *TESTS]
        environment = os.environ | {"COCODR_HOSTS": str(file)}
        status = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            check=False,
        ).returncode
        if status:
            sys.exit(f"the tests of hosts ended with status {status}; nothing was written")
        return [json.loads(line) for line in file.read_text().splitlines()]


def main() -> None:
    options = option_parser(__doc__, "hosts").parse_args()
    figures = run_tests()
    hosts = list(dict.fromkeys(row["host"] for row in figures))
    figures.sort(key=lambda row: (hosts.index(row["host"]), row["script"], row["measure"]))
    write_results(options.results, origin() | {"figures": figures})
    if options.results == results_file("hosts"):
        MARKS.write(PAGE, markdown(figures))


if __name__ == "__main__":
    main()
