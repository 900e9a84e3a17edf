"""Queries of a collection: its own, and several kinds that are made of its documents.

Queries that are cut out of documents are searched for in the corpus without them. Everything is
drawn by one seed, and kept in a file.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.documents import Documents, open_corpus, write_arrow
from beir_cocodr.data.text import TextFormat
from beir_cocodr.evaluation.label_free.estimators import WRITTEN
from beir_cocodr.evaluation.label_free.held_out_queries import hold_out_crops
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    PseudoQueries,
    lexical_queries,
    nothing_is_known,
    verbatim_share,
)
from beir_cocodr.evaluation.label_free.written_questions import QuestionOptions, write_questions
from beir_cocodr.io import write_text
from collecting.parents import Limits, Parent

Ints = npt.NDArray[np.int64]

QUERIES = "queries"
CROPS = "crops"
MATCHED = "matched crops"
GENERATED = "generated"
TITLES = "titles"
#: Sets of queries: the collection's own, those that are made of documents, and the questions that a
#: language model wrote, if one was asked.
SETS = (QUERIES, CROPS, GENERATED, MATCHED, TITLES, WRITTEN)
MADE = SETS[1:]

_FILE = "query-sets.json"
_WRITTEN_FILE = "written-questions.json"

# A character of a script without spaces, or a run of others.
_SCRIPTS = "\u3040-\u30ff\u3400-\u9fff"
_UNIT = re.compile(rf"[{_SCRIPTS}]|[^\s{_SCRIPTS}]+")

# The fewest units of a query, the range of those of a heading, and the fewest of the text below it.
_SHORTEST = 2
_HEADING = (2, 14)
_BELOW = 20

#: The fewest queries of a set; a smaller one is left out.
FEWEST = 30

# The most documents that are looked at for each query.
_LOOKS = 20

#: A document: its title and text.
Document = dict[str, str]


@dataclass(frozen=True)
class Piece:
    """A query that was cut out of a document.

    Attributes:
        query: The query.
        rest: The document without it.
    """

    query: str
    rest: Document


#: Cuts a query out of a document, if it can.
Cut = Callable[[Document], Piece | None]


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
    changed: list[Document]

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
        _write_sets(file, make_query_sets(parent.load(), limits))
    sets = _read_sets(file)
    written = parent.folder / _WRITTEN_FILE
    if written.is_file():
        sets += _read_sets(written)
    return {queries.name: queries for queries in sets}


def let_write_questions(
    parent: Parent,
    options: QuestionOptions,
    limits: Limits,
    *,
    bf16: bool,
) -> None:
    """Let a language model write questions about a collection, unless it has.

    They are no set of queries where fewer than 30 were written that can be used.
    """
    file = parent.folder / _WRITTEN_FILE
    if file.is_file():
        return
    documents = parent.load().documents
    questions = write_questions(documents, options, limits.seed, nothing_is_known, bf16=bf16)
    sets = [_of_package(WRITTEN, questions, [])]
    _write_sets(file, [queries for queries in sets if len(queries.texts) >= FEWEST])


def has_questions(parent: Parent) -> bool:
    """Return true if a language model has been asked for questions about a collection."""
    return (parent.folder / _WRITTEN_FILE).is_file()


def _write_sets(file: Path, sets: list[QuerySet]) -> None:
    plain = [vars(queries) | {"rows": queries.rows.tolist()} for queries in sets]
    write_text(file, json.dumps(plain, ensure_ascii=False))


def _read_sets(file: Path) -> list[QuerySet]:
    sets = []
    for content in json.loads(file.read_text()):
        rows = np.array(content["rows"], np.int64)
        sets.append(QuerySet(**content | {"rows": rows}))
    return sets


def make_query_sets(collection: Collection, limits: Limits) -> list[QuerySet]:
    """Make all sets of queries that a collection can give."""
    documents = collection.documents
    real = _real_queries(collection)
    rng = np.random.default_rng(limits.seed + 1)
    lengths = np.array([_units(text) for text in real.texts])
    sets = [real, *_package_queries(documents, limits)]
    sets.append(_cut_out(MATCHED, documents, _matched_cut(lengths, rng), limits, rng))
    sets.append(_cut_out(TITLES, documents, _title_cut(documents), limits, rng))
    return [queries for queries in sets if queries is real or len(queries.texts) >= FEWEST]


def _real_queries(collection: Collection) -> QuerySet:
    ids = list(collection.qrels)
    return QuerySet(
        name=QUERIES,
        ids=ids,
        texts=[collection.queries[query] for query in ids],
        rows=np.zeros(0, np.int64),
        verbatim=None,
        changed=[],
    )


def _package_queries(documents: Documents, limits: Limits) -> list[QuerySet]:
    """Return the crops and the generated queries of the package itself."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        crops, rest = hold_out_crops(documents, folder, limits.samples, limits.seed)
        changed = []
        for document in rest.take(crops.rows):
            changed.append({"title": document["title"], "text": document["text"]})
        generated = lexical_queries(documents, folder, limits.samples, limits.seed)
    return [_of_package(CROPS, crops, changed), _of_package(GENERATED, generated, [])]


def _of_package(name: str, pseudo: PseudoQueries, changed: list[Document]) -> QuerySet:
    return QuerySet(
        name=name,
        ids=list(pseudo.queries),
        texts=pseudo.texts,
        rows=pseudo.rows,
        verbatim=pseudo.verbatim,
        changed=changed,
    )


def _cut_out(
    name: str,
    documents: Documents,
    cut: Cut,
    limits: Limits,
    rng: np.random.Generator,
) -> QuerySet:
    """Cut one query out of each of some documents in a random order."""
    pieces = []
    rows = []
    order = rng.permutation(len(documents))
    for row in order[: _LOOKS * limits.samples].tolist():
        if len(rows) == limits.samples:
            break
        [document] = documents.take(np.array([row]))
        piece = cut(document)
        if piece is not None:
            pieces.append(piece)
            rows.append(row)
    texts = [piece.query for piece in pieces]
    indexed = [TextFormat().document(piece.rest) for piece in pieces]
    return QuerySet(
        name=name,
        ids=list(map(str, range(len(texts)))),
        texts=texts,
        rows=np.array(rows, np.int64),
        verbatim=verbatim_share(texts, indexed),
        changed=[piece.rest for piece in pieces],
    )


def _units(text: str) -> int:
    """Count the words of a text, and the characters of scripts without spaces."""
    return len(_UNIT.findall(text))


def _matched_cut(lengths: Ints, rng: np.random.Generator) -> Cut:
    """Return what cuts spans whose lengths are those of real queries.

    A span is at most half of its document.
    """

    def cut(document: Document) -> Piece | None:
        text = document["text"]
        units = list(_UNIT.finditer(text))
        length = min(int(rng.choice(lengths)), len(units) // 2)
        if length < _SHORTEST:
            return None
        first = int(rng.integers(len(units) - length + 1))
        last = first + length - 1
        start = units[first].start()
        end = units[last].end()
        before = text[:start].rstrip()
        after = text[end:].lstrip()
        rest = f"{before} {after}".strip()
        return Piece(text[start:end], {"title": document["title"], "text": rest})

    return cut


def _title_cut(documents: Documents) -> Cut:
    """Return what takes a document's title as a query, or a heading where it has no title.

    Titles that several documents have are no queries.
    """
    counts = Counter(document["title"].strip() for document in documents.values())

    def cut(document: Document) -> Piece | None:
        title = document["title"].strip()
        text = document["text"]
        if not title:
            return _cut_heading(text)
        rest = text.replace(title, " ").strip()
        is_query = counts[title] == 1 and _units(title) >= _SHORTEST
        if is_query and _units(rest) >= _BELOW:
            return Piece(title, {"title": "", "text": rest})
        return None

    return cut


def _cut_heading(text: str) -> Piece | None:
    """Cut out the first line that looks like a heading."""
    lines = text.split("\n")
    fewest, most = _HEADING
    for number, line in enumerate(lines):
        heading = line.strip().lstrip("#").strip()
        below = lines[number + 1 :]
        is_short = fewest <= _units(heading) <= most
        ends_open = heading[-1:].isalnum()
        if is_short and ends_open and _units("\n".join(below)) >= _BELOW:
            rest = "\n".join(lines[:number] + below)
            return Piece(heading, {"title": "", "text": rest.replace(heading, " ")})
    return None
