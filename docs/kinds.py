"""The tables of docs/choosing.md, made from the rows of the package.

A test compares the page with them. This writes them anew after a row has changed:

    python docs/kinds.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path

from beir_cocodr.models.papers import bibtex
from beir_cocodr.models.spec import FUSIONS
from beir_cocodr.training.distillation.teacher_rows import STUDENTS, TEACHERS
from beir_cocodr.training.finetuning.loss_rows import DISTILLATION_LOSSES, LOSSES
from beir_cocodr.training.finetuning.weightings import WEIGHTINGS
from beir_cocodr.training.pretraining.objectives import OBJECTIVES
from beir_cocodr.training.rows import Row

PAGE = Path(__file__).parent / "choosing.md"

#: What a loss gets as its labels.
_NUMBERS = "the number of each pair"
_SCORES = "the teacher's score of each document"


def tables() -> dict[str, str]:
    """Return each table of the page by its name."""
    return {
        "objectives": _with_inputs(OBJECTIVES, "none"),
        "losses": _with_inputs(LOSSES, _NUMBERS),
        "distillation": _with_inputs(DISTILLATION_LOSSES, _SCORES),
        "weightings": _without_inputs(WEIGHTINGS, "what it does"),
        "teachers": _without_inputs(TEACHERS, "what it is"),
        "students": _without_inputs(STUDENTS, "what it is"),
        "fusions": _fusions(),
    }


def _with_inputs(kinds: Mapping[str, Row], labels: str) -> str:
    """Return the table of kinds that are trained with, with the columns that they take."""
    header = ["name", "inputs", "labels", "what it does", "options", "paper"]
    rows = []
    for name, row in kinds.items():
        inputs = [f"{column} ({task})" for column, task in row.columns.items()]
        facts = [row.help, _options(row.options), _papers(row.citations)]
        rows.append([f"`{name}`", ", ".join(inputs), labels, *facts])
    return _table(header, rows)


def _without_inputs(kinds: Mapping[str, Row], meaning: str) -> str:
    """Return the table of other kinds, whose help is under a heading."""
    rows = []
    for name, row in kinds.items():
        rows.append([f"`{name}`", row.help, _options(row.options), _papers(row.citations)])
    return _table(["name", meaning, "options", "paper"], rows)


def _options(options: type | None) -> str:
    """Return the fields of a class of options with their defaults."""
    if options is None:
        return ""
    texts = []
    for field in fields(options):
        is_chosen = field.default is MISSING or field.default is None
        default = "(automatic)" if is_chosen else field.default
        texts.append(f"`{field.name}` {default}")
    return ", ".join(texts)


def _papers(citations: Iterable[str]) -> str:
    """Return the authors and years of papers."""
    texts = []
    for citation in citations:
        entry = bibtex(citation)
        authors = _value(entry, "author").split(" and ")
        others = " et al." if len(authors) > 1 else ""
        texts.append(f"{_family_name(authors[0])}{others} ({_value(entry, 'year')})")
    return "; ".join(texts)


def _family_name(author: str) -> str:
    family, comma, _ = author.partition(",")
    return family if comma else author.split()[-1]


def _value(entry: str, key: str) -> str:
    """Return the value of a key of a BibTeX entry, without its marks."""
    pattern = rf"\b{key}\s*=\s*[{{\"](.*?)[}}\"],?\s*$"
    [value] = re.findall(pattern, entry, re.MULTILINE)
    return re.sub(r"[{}\\\"']", "", value)


def _fusions() -> str:
    rows = []
    for name, fusion in FUSIONS.items():
        weight = f"`{name}@0.3:M`" if fusion.weighted and name != "vector" else ""
        citation = [fusion.citation] if fusion.citation else []
        rows.append([f"`{name}:M`", fusion.help, weight, _papers(citation)])
    return _table(["name", "what it does", "BM25's weight in the name", "paper"], rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = []
    for cells in [header, ["---"] * len(header), *rows]:
        content = " | ".join(cells)
        lines.append(f"| {content} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """Return the page with its tables made anew."""
    for name, table in tables().items():
        start = f"<!-- {name} -->\n"
        end = f"<!-- end of {name} -->"
        before, _, rest = page.partition(start)
        after = rest.partition(end)[2]
        page = f"{before}{start}{table}\n{end}{after}"
    return page


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(written(PAGE.read_text()) != PAGE.read_text())
    PAGE.write_text(written(PAGE.read_text()))
