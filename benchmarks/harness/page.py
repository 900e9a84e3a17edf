"""How the documentation shows results: the line of a benchmark, and tables between marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beir_cocodr.io import write_text
from harness.script import ROOT, read_json, results_file

#: The page of the documentation with all measured results.
PAGE = ROOT / "docs" / "results.md"


def measured(name: str) -> str:
    """Say in one line which script made a results file, when, where and with which seeds.

    Args:
        name: The name of the results file. If a script made several files, then they are named
            after the script, ``_``, and what differs.
    """
    results = read_json(results_file(name))
    if "machine" not in results:
        results |= next(iter(results["shapes"].values()))
    computer = results["machine"]
    hardware = f"{computer['cores']} cores of {computer['cpu']}, {computer['memory_gib']} GiB"
    date = results["date"][:10]
    return f"*`{_script_of(name)}`, {date}; {hardware}{_describe_seeds(results)}.*"


def _script_of(name: str) -> str:
    """Return the path, from the root, of the script or package that writes a results file."""
    for stem in (name, name.rpartition("_")[0]):
        for path in (f"benchmarks/{stem}.py", f"benchmarks/{stem}"):
            if stem and (ROOT / path).exists():
                return path
    raise LookupError(f"no script in benchmarks/ writes the results file {name}.json")


def _describe_seeds(results: dict[str, Any]) -> str:
    settings = results | results.get("settings", {})
    seeds = settings.get("seeds")
    if not seeds:
        seeds = [settings[name] for name in ("seed", "other_seed") if name in settings]
    if not seeds:
        return ""
    noun = "seeds" if len(seeds) > 1 else "seed"
    return f"; {noun} {', '.join(map(str, seeds))}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table in Markdown."""
    lines = [_row(header), "| --- " * len(header) + "|"]
    lines += [_row(row) for row in rows]
    return "\n".join(lines)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


@dataclass(frozen=True)
class Marks:
    """The two comments between which a script writes its table.

    Attributes:
        start: The comment above the table.
        end: The comment below it.
    """

    start: str
    end: str

    def read(self, text: str) -> str:
        """Return the text between the marks of a page."""
        return text.split(self.start)[1].split(self.end)[0].strip()

    def write(self, page: Path, table: str) -> None:
        """Replace the text between the marks of a page."""
        before, rest = page.read_text().split(self.start)
        after = rest.split(self.end)[1]
        write_text(page, f"{before}{self.start}\n{table}\n{self.end}{after}")
