"""Queries of a collection: its own, and several kinds that are made of its documents.

Queries that are cut out of documents are searched for in the corpus without them. Everything is
drawn by one seed, and kept in a file.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import Documents, open_corpus, write_arrow
from beir_cocodr.data.text import TextFormat
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    PseudoQueries,
    hold_out_crops,
    lexical_queries,
    verbatim_share,
)
from beir_cocodr.io import write_text
from collecting.parents import Limits, Parent

Ints = npt.NDArray[np.int64]

QUERIES = "queries"
CROPS = "crops"
MATCHED = "matched crops"
GENERATED = "generated"
TITLES = "titles"
#: Sets of queries: the collection's own, and those that are made of documents.
SETS = (QUERIES, CROPS, GENERATED, MATCHED, TITLES)
MADE = SETS[1:]

_FILE = "query-sets.json"

# A character of a script without spaces, or a run of others.
_SCRIPTS = "\u3040-\u30ff\u3400-\u9fff"
_UNIT = re.compile(rf"[{_SCRIPTS}]|[^\s{_SCRIPTS}]+")

# A heading is a line of this many units, with at least as many units below it as are given.
_HEADING = (2, 14)
_BELOW = 20

# The fewest queries of a set, and the most documents that are looked at for each of them.
_FEWEST = 30
_LOOKS = 20

#: Cuts a query out of a document, and returns it with the rest, or nothing.
Cut = Callable[[dict[str, str]], tuple[str, dict[str, str]] | None]


@dataclass(frozen=True)
class QuerySet:
    """Queries of one kind.

    Attributes:
        name: One of :data:`SETS`.
        ids: Their ids.
        texts: Their texts.
        rows: The document that each was made of; empty for the collection's own.
        verbatim: The mean share of a query's words that its document has.
        changed: The documents of ``rows`` without their queries; empty if the corpus is as it is.
    """

    name: str
    ids: list[str]
    texts: list[str]
    rows: Ints
    verbatim: float | None
    changed: list[dict[str, str]]

    @property
    def queries(self) -> dict[str, str]:
        """Return id to text."""
        return dict(zip(self.ids, self.texts, strict=True))

    def pseudo(self) -> PseudoQueries:
        """Return the queries as the package describes those that it makes."""
        return PseudoQueries(self.texts, self.rows, self.verbatim, {})

    def corpus(self, documents: Documents, folder: Path) -> Documents:
        """Return the corpus in which the queries are searched for.

        Args:
            documents: The corpus as it is.
            folder: For the changed corpus.
        """
        if not self.changed:
            return documents
        path = folder / f"{self.name}.arrow"
        replaced = dict(zip(self.rows.tolist(), self.changed, strict=True))
        rows = []
        for row, identifier in enumerate(documents):
            document = replaced.get(row, documents[identifier])
            rows.append((row, identifier, document["title"], document["text"]))
        write_arrow(path, rows)
        return open_corpus(path)


def query_sets(parent: Parent, limits: Limits) -> dict[str, QuerySet]:
    """Return the sets of queries of a collection by name, from its file if it has one."""
    file = parent.folder / _FILE
    if not file.is_file():
        sets = make_query_sets(parent.load(), limits)
        write_text(file, json.dumps([_plain(one) for one in sets], ensure_ascii=False))
    loaded = {}
    for content in json.loads(file.read_text()):
        rows = np.array(content["rows"], np.int64)
        loaded[content["name"]] = QuerySet(**content | {"rows": rows})
    return loaded


def _plain(queries: QuerySet) -> dict[str, object]:
    return vars(queries) | {"rows": queries.rows.tolist()}


def make_query_sets(collection: Collection, limits: Limits) -> list[QuerySet]:
    """Make all sets of queries that a collection can give."""
    documents = collection.documents
    own = {query: collection.queries[query] for query in collection.qrels}
    no_rows = np.zeros(0, np.int64)
    sets = [QuerySet(QUERIES, list(own), list(own.values()), no_rows, None, [])]
    with tempfile.TemporaryDirectory() as folder:
        crops, rest = hold_out_crops(documents, Path(folder), limits.samples, limits.seed)
        changed = rest.take(crops.rows)
        parts = [{"title": one["title"], "text": one["text"]} for one in changed]
        sets.append(_of_pseudo(CROPS, crops, parts))
        generated = lexical_queries(documents, Path(folder), limits.samples, limits.seed)
        sets.append(_of_pseudo(GENERATED, generated, []))
    rng = np.random.default_rng(limits.seed + 1)
    lengths = np.array([len(_UNIT.findall(text)) for text in own.values()])
    sets.append(_cut_out(MATCHED, documents, _matched_cut(lengths, rng), limits, rng))
    sets.append(_cut_out(TITLES, documents, _title_cut(documents), limits, rng))
    return [one for one in sets if one.name == QUERIES or len(one.texts) >= _FEWEST]


def _of_pseudo(name: str, made: PseudoQueries, changed: list[dict[str, str]]) -> QuerySet:
    ids = list(made.queries)
    return QuerySet(name, ids, made.texts, made.rows, made.verbatim, changed)


def _cut_out(
    name: str,
    documents: Documents,
    cut: Cut,
    limits: Limits,
    rng: np.random.Generator,
) -> QuerySet:
    """Cut one query out of each of some documents in a random order."""
    texts = []
    rows = []
    changed = []
    for row in rng.permutation(len(documents))[: _LOOKS * limits.samples].tolist():
        if len(texts) == limits.samples:
            break
        [document] = documents.take(np.array([row]))
        parts = cut(document)
        if parts is not None:
            texts.append(parts[0])
            rows.append(row)
            changed.append(parts[1])
    indexed = [TextFormat().document(document) for document in changed]
    return QuerySet(
        name=name,
        ids=[str(number) for number in range(len(texts))],
        texts=texts,
        rows=np.array(rows, np.int64),
        verbatim=verbatim_share(texts, indexed),
        changed=changed,
    )


def _matched_cut(lengths: Ints, rng: np.random.Generator) -> Cut:
    """Return what cuts spans whose lengths are those of real queries.

    A span is at most half of its document.
    """

    def cut(document: dict[str, str]) -> tuple[str, dict[str, str]] | None:
        text = document["text"]
        units = list(_UNIT.finditer(text))
        length = min(int(rng.choice(lengths)), len(units) // 2)
        if length < 2:
            return None
        first = int(rng.integers(len(units) - length + 1))
        start = units[first].start()
        end = units[first + length - 1].end()
        rest = f"{text[:start].rstrip()} {text[end:].lstrip()}".strip()
        return text[start:end], {"title": document["title"], "text": rest}

    return cut


def _title_cut(documents: Documents) -> Cut:
    """Return what takes a document's title as a query, or a heading in its text.

    Titles that several documents have are no queries.
    """
    counts = Counter(document["title"].strip() for document in documents.values())

    def cut(document: dict[str, str]) -> tuple[str, dict[str, str]] | None:
        title = document["title"].strip()
        text = document["text"]
        if title:
            if counts[title] > 1 or len(_UNIT.findall(title)) < 2:
                return None
            rest = text.replace(title, " ").strip()
            is_long = len(_UNIT.findall(rest)) >= _BELOW
            return (title, {"title": "", "text": rest}) if is_long else None
        for heading, rest in _headings(text):
            return heading, {"title": "", "text": rest}
        return None

    return cut


def _headings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text that look like headings, with the text without each."""
    lines = text.split("\n")
    fewest, most = _HEADING
    for number, line in enumerate(lines):
        heading = line.strip().lstrip("#").strip()
        units = len(_UNIT.findall(heading))
        rest = "\n".join(lines[:number] + lines[number + 1 :])
        below = "\n".join(lines[number + 1 :])
        ends_open = heading[-1:].isalnum()
        is_short = fewest <= units <= most
        if is_short and ends_open and len(_UNIT.findall(below)) >= _BELOW:
            yield heading, rest.replace(heading, " ")
