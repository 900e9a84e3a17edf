"""Say what an ``apidocs`` folder holds."""

from __future__ import annotations

import json
from pathlib import Path


def describe_apidocs(folder: Path) -> str:
    """The key and the counts of a folder from ``apidocs_folder``, as text for a terminal.

    Args:
        folder: the folder; its ``statistics.json`` is read.

    Returns:
        One line with the key, then per domain one line with what was kept and one with what was left out.
    """
    statistics = json.loads((folder / "statistics.json").read_text(encoding="utf-8"))
    key = statistics["key"]
    packages = {"Python": key["python"], **key["packages"]}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    lines = [f"{folder.name}: {versions}, format {key['format']}, split seed {key['split_seed']}"]
    for domain, counts in statistics["domains"].items():
        left_out = ", ".join(f"{reason} {count:,}" for reason, count in counts["left_out"].items())
        modules = ", ".join(f"{count:,} {state}" for state, count in counts["modules"].items())
        lines += [
            f"  {domain}: {counts['kept']:,} of {counts['docstrings']:,} texts kept,"
            f" {counts['train_queries']:,} train and {counts['test_queries']:,} test queries;"
            f" words per query {counts['query_words']:.1f}, per passage {counts['passage_words']:.1f}",
            f"    modules: {modules}; left out: {left_out or 'nothing'}",
        ]
    return "\n".join(lines)
