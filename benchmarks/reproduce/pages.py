"""The commands in the pages of ``docs/reproduce/``, which are those of the plans.

``python benchmarks/reproduce/pages.py`` puts them there.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import json
import shlex
from collections.abc import Iterator

from machine import write_table

from reproduce.commands import shown
from reproduce.runner import PAPERS, TABLES, Workshop
from reproduce.scales import PaperScale

DOCS = Path(__file__).parents[2] / "docs" / "reproduce"

START, END = "<!-- commands -->", "<!-- end of commands -->"
HERE = ("<!-- run here -->", "<!-- end of what was run here -->")
RESULTS = Path(__file__).parents[1] / "results" / "reproduce"

#: Kinds of steps of which a page shows one: they are made for every task, and for every model and
#: collection.
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
)


def block(paper: str) -> str:
    """The commands of all steps of a paper, of a kind that there are many of the first, as the
    plans have them.
    """
    place = Workshop(PAPERS[paper], PaperScale(Path("DATA")), Path("runs/reproduce/paper") / paper)
    lines: list[str] = []
    seen: dict[str, int] = {}
    for name in place.steps:
        kind = next((kind for kind in ONE_OF_MANY if name.startswith(kind)), name)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] == 1:
            lines += [
                "",
                f"`{name}`",
                "",
                "```",
                *(line for words in place.words(name) for line in wrapped(words)),
                "```",
            ]
            lines += [f"<!-- more of {kind} -->"]
    text = "\n".join(lines).strip()
    for kind, count in seen.items():
        more = f"\nand {count - 1} more of this kind." if count > 1 else ""
        text = text.replace(f"<!-- more of {kind} -->", more)
    return text.replace("```\n\n\n", "```\n\n").strip()


def run_here() -> str:
    """What ``--scale here`` made of every table: cells with a figure of ours, and the seconds of
    their steps.
    """
    lines = [
        "| table | cells | with a figure of ours | seconds | date |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for name in TABLES:
        found = json.loads((RESULTS / f"{name}.here.json").read_text())
        cells = [cell for row in found["cells"].values() for cell in row.values()]
        ours, seconds = sum(cell["ours"] is not None for cell in cells), found["seconds"]["all"]
        lines.append(f"| {name} | {len(cells)} | {ours} | {seconds:.0f} | {found['date']} |")
    on = found["machine"]
    return "\n".join(
        [*lines, "", f"On {on['cores']} cores of {on['cpu']}, with {on['memory_gib']} GiB."]
    )


def wrapped(words: list[str], width: int = 110) -> Iterator[str]:
    """A command on lines that fit a page, an option and its value on one."""
    parts: list[str] = []
    for word in map(shlex.quote, shown(words, 8)):
        if (
            parts
            and parts[-1].startswith("--")
            and " " not in parts[-1]
            and not word.startswith("-")
        ):
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
        write_table(DOCS / f"{paper}.md", START, END, block(paper))
    write_table(DOCS / "index.md", *HERE, run_here())


if __name__ == "__main__":
    main()
