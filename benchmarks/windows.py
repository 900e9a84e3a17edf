"""Windows of real text in any number: documentation and docstrings of what is installed."""

from __future__ import annotations

import importlib.metadata
import json
import random
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from beir_cocodr.data.apidocs import DOMAINS, apidocs_folder
from beir_cocodr.data.apidocs.docstrings import read_docstrings
from beir_cocodr.io import write_text


class Windows(NamedTuple):
    """Texts of equal length, queries on them, and how many windows came from where."""

    texts: list[str]
    queries: list[str]
    sources: dict[str, int]


def windows(count: int, tokens: int, tokenizer: Any, cache: Path, seed: int = 0) -> Windows:
    """``count`` different windows of ``tokens`` tokens each, in random order; kept in the folder
    ``cache``.

    First the passages of apidocs, all domains, whose queries are the queries; then the other
    docstrings and long descriptions of installed packages and the standard library, file by file in
    a seeded order.
    """
    file = cache / f"windows-{count}-of-{tokens}.json"
    if file.is_file():
        return Windows(**json.loads(file.read_text()))
    folder = apidocs_folder("+".join(DOMAINS))
    found: dict[str, str] = {}
    for name, text in _texts(folder, seed):
        for window in _cut(text, tokens, tokenizer):
            found.setdefault(window, name)
        if len(found) >= count:
            break
    if len(found) < count:
        raise SystemExit(
            f"the installed packages have {len(found)} windows, not {count}: lower --windows"
        )
    kept = list(found)[:count]
    random.Random(seed).shuffle(kept)
    queries = _column(folder / "queries.jsonl")
    random.Random(seed).shuffle(queries)
    made = Windows(kept, queries, dict(Counter(found[window] for window in kept)))
    write_text(file, json.dumps(made._asdict()) + "\n")
    return made


def _texts(folder: Path, seed: int) -> Iterator[tuple[str, str]]:
    for text in _column(folder / "corpus.jsonl"):
        yield "apidocs", text
    for distribution in sorted(
        importlib.metadata.distributions(), key=lambda one: one.metadata["Name"]
    ):
        yield "long descriptions", str(distribution.metadata.get_payload() or "")
    roots = {name: Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")}
    files = sorted({path for root in roots.values() for path in root.rglob("*.py")})
    random.Random(seed).shuffle(files)
    for path in files:
        source = read_docstrings(path, path.stem)
        for docstring in source.docstrings if source else []:
            if docstring.text:
                yield "docstrings", docstring.text


def _cut(text: str, tokens: int, tokenizer: Any) -> Iterator[str]:
    """Consecutive windows; what is left at the end is too short for one."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    places = offsets["offset_mapping"]
    for start in range(0, len(places) - tokens + 1, tokens):
        yield text[places[start][0] : places[start + tokens - 1][1]]


def _column(path: Path) -> list[str]:
    with path.open() as file:
        return [json.loads(line)["text"] for line in file]
