"""Are the figures of hosts with our parts their own? Their tests measure both sides, and this
collects them.

python benchmarks/hosts.py
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from machine import PAGE, machine, measured, write_table

from beir_cocodr.io import write_text

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "hosts.json"
START, END = "<!-- hosts table -->", "<!-- end of hosts -->"

#: The tests that measure something twice, in a host and here.
TESTS = [
    "tests/plugins/test_beir_examples.py",
    "tests/plugins/test_mteb.py",
    "tests/plugins/test_pyterrier.py",
    "tests/plugins/test_pyserini_commands.py",
    "tests/plugins/test_irds_folder.py",
    "tests/training/test_pairs_exchange.py",
    "tests/test_hosts.py",
]


def markdown(found: dict[str, Any]) -> str:
    """The line with machine and date, and the table."""
    rows = [
        "| host | version | script | measure | there | here |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in found["figures"]:
        figures = [
            f"{row[where]:.4f}" if row[where] % 1 else f"{row[where]:.0f}"
            for where in ("there", "here")
        ]
        cells = [
            row["host"],
            row["version"] or "its form",
            f"`{row['script']}`",
            row["measure"],
            *figures,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([measured("hosts"), "", *rows])


def main() -> None:
    with TemporaryDirectory() as folder:
        lines = Path(folder) / "figures.jsonl"
        run = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            "not the_page_has",
            *TESTS,
        ]
        if status := subprocess.run(
            run, cwd=ROOT, env=os.environ | {"COCODR_HOSTS": str(lines)}
        ).returncode:
            sys.exit(f"the tests of hosts ended with status {status}; nothing is written")
        figures = [json.loads(line) for line in lines.read_text().splitlines()]
    hosts = list(dict.fromkeys(row["host"] for row in figures))
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version()},
        "figures": sorted(
            figures, key=lambda row: (hosts.index(row["host"]), row["script"], row["measure"])
        ),
    }
    write_text(RESULTS, json.dumps(found, indent=1) + "\n")
    write_table(PAGE, START, END, markdown(found))


if __name__ == "__main__":
    main()
