"""The commands in the pages of ``docs/reproduce/``, which are those of the plans.

``python benchmarks/reproduce/pages.py`` puts them there.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import shlex
from collections.abc import Iterator

from beir_cocodr.io import write_text
from reproduce.commands import shown
from reproduce.runner import PAPERS, Workshop
from reproduce.scales import PaperScale

DOCS = Path(__file__).parents[2] / "docs" / "reproduce"

START, END = "<!-- commands -->", "<!-- end of commands -->"

#: Kinds of steps of which a page shows one: they are made for every task, and for every model and collection.
ONE_OF_MANY = ("judged/", "genq/", "qgen/", "gpl/", "gpl-tsdae/", "target/", "qpp/", "overlap/", "start-", "mrl-beta-")


def block(paper: str) -> str:
    """The commands of all steps of a paper, of a kind that there are many of the first, as the plans have them."""
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


def wrapped(words: list[str], width: int = 110) -> Iterator[str]:
    """A command on lines that fit a page, an option and its value on one."""
    parts: list[str] = []
    for word in map(shlex.quote, shown(words, 8)):
        if parts and parts[-1].startswith("--") and " " not in parts[-1] and not word.startswith("-"):
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
        page = DOCS / f"{paper}.md"
        before, rest = page.read_text().split(START)
        write_text(page, f"{before}{START}\n{block(paper)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
