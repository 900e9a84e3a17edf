"""Texts in any number, from the documentation of the packages that are installed."""

from __future__ import annotations

import importlib.metadata
import json
import random
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.apidocs import DOMAINS, apidocs_folder
from beir_cocodr.data.apidocs.docstrings import read_docstrings
from beir_cocodr.data.collection import load_collection
from beir_cocodr.io import write_text

#: The documentation from which pieces are cut.
SOURCES = "apidocs/stdlib+numpy+pandas+scipy+sklearn+torch"

#: Corpora with about 2,900 documents in all, which are long enough for two spans.
CORPORA = ("apidocs/torch", "apidocs/scipy", "apidocs/pandas", "apidocs/numpy", "apidocs/sklearn")


def source_words() -> list[list[str]]:
    """Return the words of every document of :data:`SOURCES`."""
    documents = load_collection(SOURCES, labels="none").documents
    return [document["text"].split() for document in documents.values()]


def cut_pieces(
    words: list[list[str]],
    count: int,
    lengths: tuple[int, int],
    seed: int,
) -> Iterator[str]:
    """Cut pieces of documents at random.

    Args:
        words: The words of each document.
        count: The number of pieces.
        lengths: The fewest and the most words of a piece.
        seed: The seed of the draws.
    """
    shortest, longest = lengths
    rng = np.random.default_rng(seed)
    for _ in range(count):
        document = words[int(rng.integers(len(words)))]
        length = int(rng.integers(shortest, longest + 1))
        start = int(rng.integers(max(1, len(document) - length)))
        yield " ".join(document[start : start + length])


def pieces_with_ids(count: int) -> Iterator[str]:
    """Cut pieces of 20 to 80 words, and append to each a word that no other piece has."""
    for number, piece in enumerate(
        cut_pieces(
            source_words(),
            count,
            (20, 80),
            seed=0,
        )
    ):
        yield f"{piece} id{number}"


def write_corpus(path: Path, texts: Iterable[str]) -> None:
    """Write texts as a corpus file, whose ids are their numbers."""
    with path.open("w") as file:
        for number, text in enumerate(texts):
            file.write(
                json.dumps(
                    {
                        "_id": str(number),
                        "text": text,
                    }
                )
                + "\n"
            )


@dataclass(frozen=True)
class Windows:
    """Texts of equal length in tokens.

    Attributes:
        texts: The windows.
        queries: Queries about some of them.
        sources: The number of windows by their origin.
    """

    texts: list[str]
    queries: list[str]
    sources: dict[str, int]


def windows(
    count: int,
    tokens: int,
    tokenizer: Any,
    cache: Path,
    seed: int = 0,
) -> Windows:
    """Return different windows of real text in random order.

    The passages of apidocs come first, and their queries are the queries. The other docstrings and
    long descriptions of installed packages and the standard library follow, file by file in an
    order that is drawn from the seed.

    Args:
        count: The number of windows.
        tokens: Their length in tokens.
        tokenizer: The tokenizer that counts tokens.
        cache: The folder that keeps the windows.
        seed: The seed of the order.
    """
    file = cache / f"windows-{count}-of-{tokens}.json"
    if file.is_file():
        return Windows(**json.loads(file.read_text()))
    folder = apidocs_folder("+".join(DOMAINS))
    origins: dict[str, str] = {}
    for origin, text in _texts_with_origin(folder, seed):
        for window in _cut_windows(text, tokens, tokenizer):
            origins.setdefault(window, origin)
        if len(origins) >= count:
            break
    if len(origins) < count:
        raise SystemExit(
            f"--windows {count}: the installed packages have only {len(origins)} windows of "
            f"{tokens} tokens; lower --windows"
        )
    texts = list(origins)[:count]
    random.Random(seed).shuffle(texts)
    queries = _read_texts(folder / "queries.jsonl")
    random.Random(seed).shuffle(queries)
    sources = Counter(origins[window] for window in texts)
    result = Windows(texts, queries, dict(sources))
    write_text(file, json.dumps(asdict(result)) + "\n")
    return result


def _texts_with_origin(folder: Path, seed: int) -> Iterator[tuple[str, str]]:
    for text in _read_texts(folder / "corpus.jsonl"):
        yield "apidocs", text
    distributions = importlib.metadata.distributions()
    for distribution in sorted(distributions, key=lambda one: one.metadata["Name"]):
        yield "long descriptions", str(distribution.metadata.get_payload() or "")
    files: set[Path] = set()
    for name in ("stdlib", "purelib"):
        files.update(Path(sysconfig.get_path(name)).rglob("*.py"))
    paths = sorted(files)
    random.Random(seed).shuffle(paths)
    for path in paths:
        source = read_docstrings(path, path.stem)
        for docstring in source.docstrings if source else ():
            if docstring.text:
                yield "docstrings", docstring.text


def _cut_windows(
    text: str,
    tokens: int,
    tokenizer: Any,
) -> Iterator[str]:
    """Cut consecutive windows; the rest at the end is too short and is left out."""
    encoding = tokenizer(
        text,
        add_special_tokens=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    offsets = encoding["offset_mapping"]
    for first in range(0, len(offsets) - tokens + 1, tokens):
        start = offsets[first][0]
        end = offsets[first + tokens - 1][1]
        yield text[start:end]


def _read_texts(path: Path) -> list[str]:
    with path.open() as file:
        return [json.loads(line)["text"] for line in file]
