"""The parts of ``docs/reproduce/`` that are made: the commands of the plans, and what was run here.

python benchmarks/reproduce/pages.py
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import json
import shlex
from collections.abc import Iterator

from harness.page import Marks, markdown_table

from reproduce.commands import command_line
from reproduce.runner import PAPERS, TABLES
from reproduce.scales import PaperScale
from reproduce.settings import TABLES as SETTINGS_TABLES
from reproduce.settings import settings_header, settings_rows
from reproduce.workshop import Workshop

DOCS = Path(__file__).parents[2] / "docs" / "reproduce"
RESULTS = Path(__file__).parents[1] / "results" / "reproduce"

COMMANDS = Marks("<!-- commands -->", "<!-- end of commands -->")
RUN_HERE = Marks("<!-- run here -->", "<!-- end of what was run here -->")

#: Beginnings of names that many steps share, so that a page shows the first one.
ONE_OF_MANY = (
    "judged/",
    "genq/",
    "qgen/",
    "gpl/",
    "gpl-tsdae/",
    "target/",
    "qpp/",
    "overlap/",
    "start-",
    "mrl-beta-",
    "coco-dr-base-K",
    "coco-dr-base-tau",
)


def command_blocks(paper: str) -> str:
    """Format the commands of a paper's steps, the first of each kind, as the plans have them."""
    output = Path("runs/reproduce/paper") / paper
    shop = Workshop(PAPERS[paper], PaperScale(Path("DATA")), output)
    steps_by_kind: dict[str, list[str]] = {}
    for name in shop.steps:
        kind = next((kind for kind in ONE_OF_MANY if name.startswith(kind)), name)
        steps_by_kind.setdefault(kind, []).append(name)
    blocks = []
    for names in steps_by_kind.values():
        lines = [f"`{names[0]}`", "", "```"]
        for words in shop.words(names[0]):
            lines += wrap_command(words)
        lines.append("```")
        if len(names) > 1:
            lines += ["", f"and {len(names) - 1} more of this kind."]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def settings_marks(name: str) -> Marks:
    """Return the marks around a table of settings; a page may have several."""
    of = "" if name == SETTINGS_TABLES[name].page else f" of {name}"
    return Marks(f"<!-- settings{of} -->", f"<!-- end of settings{of} -->")


def settings_table(name: str) -> str:
    """Format what a paper, its code and our presets do."""
    return markdown_table(settings_header(name), settings_rows(name))


def describe_runs() -> str:
    """Format what ``--scale here`` made of every table: cells, figures, seconds and dates."""
    rows = []
    machine = None
    for name, (_, table) in TABLES.items():
        file = RESULTS / f"{name}.here.json"
        if not file.is_file():
            rows.append([name, len(table.cells), "", "", "not run yet"])
            continue
        results = json.loads(file.read_text())
        machine = results["machine"]
        cells = []
        for row in results["cells"].values():
            cells += row.values()
        with_figure = [cell for cell in cells if cell["ours"] is not None]
        seconds = f"{results['seconds']['all']:.0f}"
        rows.append([name, len(cells), len(with_figure), seconds, results["date"][:10]])
    header = ["table", "cells", "with a figure of ours", "seconds", "date"]
    lines = markdown_table(header, rows).splitlines()
    lines[1] = "| --- | ---: | ---: | ---: | --- |"
    assert machine is not None
    hardware = f"On {machine['cores']} cores of {machine['cpu']}, with {machine['memory_gib']} GiB."
    return "\n".join([*lines, "", hardware])


def wrap_command(words: list[str], width: int = 110) -> Iterator[str]:
    """Yield a command in lines that fit a page, with an option and its value in one line."""
    parts: list[str] = []
    for word in map(shlex.quote, command_line(words, 8)):
        follows_option = bool(parts) and parts[-1].startswith("--") and " " not in parts[-1]
        if follows_option and not word.startswith("-"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    line = ""
    for part in parts:
        if line and len(line) + len(part) > width:
            yield f"{line} \\"
            line = "   "
        line = f"{line} {part}" if line else part
    yield line


def main() -> None:
    for paper in PAPERS:
        COMMANDS.write(DOCS / f"{paper}.md", command_blocks(paper))
    for name, table in SETTINGS_TABLES.items():
        settings_marks(name).write(DOCS / f"{table.page}.md", settings_table(name))
    RUN_HERE.write(DOCS / "index.md", describe_runs())


if __name__ == "__main__":
    main()
