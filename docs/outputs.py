"""The steps of a tutorial: its commands and snippets in order, each with its printed output.

A test runs them and compares what they print with the page. This writes the outputs anew:

    python docs/outputs.py
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from beir_cocodr.cli.__main__ import main

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))

#: The collections that the tutorials name, copied to where they run.
COLLECTIONS = ("handbook", "handbook-beir")

#: Above commands that need what tests do not have.
NEEDS = "<!-- commands: need "

#: Above an output whose figures differ between machines, or with a new calibration.
VARIES = "<!-- output: figures vary -->"

_FIGURE = re.compile(r"[+-]?\d+(\.\d+)?")

_STEP = re.compile(
    rf"(?P<needs>{NEEDS}[^\n]*\n)?```(?P<language>python|)\n(?P<code>.*?)^```\n"
    rf"(?:\n(?P<varies>{VARIES}\n)?```text\n(?P<output>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Step:
    """A block of a tutorial that runs.

    Attributes:
        code: a snippet of Python, or command lines.
        is_python: tell them apart.
        output: what the page shows below it; None if it shows nothing.
        varies: compare the output without its figures.
        span: the place of the output in the page.
    """

    code: str
    is_python: bool
    output: str | None
    varies: bool
    span: tuple[int, int]


def steps(page: str) -> list[Step]:
    """Return the steps of a page that can run in tests."""
    return [
        Step(
            code=match["code"],
            is_python=match["language"] == "python",
            output=match["output"],
            varies=match["varies"] is not None,
            span=match.span("output"),
        )
        for match in _STEP.finditer(page)
        if match["needs"] is None
    ]


def run(step: Step, namespace: dict[str, object]) -> str:
    """Run a step and return what it prints on stdout."""
    printed = StringIO()
    with redirect_stdout(printed):
        if step.is_python:
            exec(compile(step.code, "tutorial", "exec"), namespace)
        else:
            _run_commands(step.code)
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def _run_commands(code: str) -> None:
    for line in code.replace("\\\n", "").splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program == "beir-cocodr", line
        try:
            main(words)
        except SystemExit as status:
            if status.code:
                raise RuntimeError(f"{line}: exit status {status.code}") from None


def comparable(output: str, varies: bool) -> str | list[list[str]]:
    """Return an output as it is compared: whole, or the words of each line without figures."""
    if not varies:
        return output
    return [_FIGURE.sub("#", line).split() for line in output.splitlines()]


def copy_collections(folder: Path) -> None:
    """Copy the collections of the tutorials into a folder."""
    for name in COLLECTIONS:
        shutil.copytree(ROOT / "examples" / name, folder / name)


def written(page: str) -> str:
    """Return a page with the outputs of its steps, which run in the working folder."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    parts = []
    position = 0
    for step in steps(page):
        output = run(step, namespace)
        if step.output is not None:
            start, end = step.span
            parts += [page[position:start], output]
            position = end
    return "".join([*parts, page[position:]])


def write_pages() -> None:
    """Write the outputs of the pages that are named after the script, or of all."""
    for path in PAGES:
        if len(sys.argv) > 1 and path.stem not in sys.argv[1:]:
            continue
        with TemporaryDirectory() as folder:
            copy_collections(Path(folder))
            os.chdir(folder)
            path.write_text(written(path.read_text()))
            os.chdir(ROOT)


if __name__ == "__main__":
    write_pages()
