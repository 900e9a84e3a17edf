"""Queries with known answers, made of documents of the corpus that is searched."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.languages import DEFAULT
from beir_cocodr.data.passages import Passage, PassageReader
from beir_cocodr.data.text import TextFormat, word_counter, words
from beir_cocodr.evaluation.results import TRAINED_ON, PseudoQueryFigures
from beir_cocodr.generation.lexical import LexicalGenerator
from beir_cocodr.generation.settings import GenerationOptions

#: Depth of the measure. A pseudo-query has one relevant document, so nDCG@10 is 1 / log2(1 + rank).
DEPTH = 10

# Documents that are read at a time.
_CHUNK = 256

#: Documents that are looked at for each query, so that a corpus of titles is not read to its end.
LOOKS = 20

# Words of a passage that queries are made of.
_PASSAGE_WORDS = 144

#: Returns true for a text that a model was trained on.
IsKnown = Callable[[str], bool]


def nothing_is_known(text: str) -> bool:
    """Return false: no model was trained on a text."""
    return False


@dataclass(frozen=True)
class PseudoQueries:
    """Queries made of documents.

    Attributes:
        texts: (S,) queries.
        rows: (S,) corpus rows of the documents that they have to find, all different.
        verbatim: Mean share of a query's distinct words that its document has in the index. It is 1
            if exact words give the answer away, and None without queries.
        counts: How many documents were looked at, and left out.
    """

    texts: list[str]
    rows: Ints
    verbatim: float | None
    counts: dict[str, int]

    @property
    def queries(self) -> dict[str, str]:
        """Return the queries by an id of their own."""
        return {str(number): text for number, text in enumerate(self.texts)}

    def score(self, rows: Ints) -> Doubles:
        """Return the (S,) nDCG@10 of the (S, k) rows of a search, best first, -1 for no result."""
        hits = rows[:, :DEPTH] == self.rows[:, None]
        discounts = 1 / np.log2(2 + np.arange(hits.shape[1]))
        return hits @ discounts  # type: ignore[no-any-return]

    def describe(self, bm25_scores: Doubles) -> PseudoQueryFigures:
        """Describe the queries for a record, with BM25's (S,) scores."""
        mean = float(bm25_scores.mean()) if len(bm25_scores) else None
        return PseudoQueryFigures(
            len(self.texts),
            self.verbatim,
            self.counts,
            mean,
            words=mean_words(self.texts),
        )


def mean_words(texts: Sequence[str]) -> float | None:
    """Return the mean number of words of some texts; None without texts."""
    if not texts:
        return None
    counts = [len(words(text)) for text in texts]
    return float(np.mean(counts))


def share_of_words(query: str, document: str) -> float | None:
    """Return the share of a query's distinct words in a document; None for a query without any."""
    query_words = set(words(query))
    if not query_words:
        return None
    shared = query_words & set(words(document))
    return len(shared) / len(query_words)


def verbatim_share(queries: Sequence[str], documents: Sequence[str]) -> float | None:
    """Return the mean share of a query's distinct words in its document; None without queries."""
    shares = []
    for query, document in zip(queries, documents, strict=True):
        share = share_of_words(query, document)
        if share is not None:
            shares.append(share)
    if not shares:
        return None
    return float(np.mean(shares))


@dataclass
class Drawing:
    """Queries from documents in a random order; some documents give none.

    Attributes:
        looked_at: How many were looked at.
        known: How many gave a query that a model was trained on.
        texts: The queries.
        rows: Rows of the documents that gave them.
    """

    looked_at: int = 0
    known: int = 0
    texts: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, row: int, text: str) -> None:
        """Take the query of a document."""
        self.texts.append(text)
        self.rows.append(row)

    def counts(self, without: str) -> dict[str, int]:
        """Return the counts for a record; ``without`` names documents that gave no query."""
        nothing = self.looked_at - self.known - len(self.texts)
        counts = {"documents_looked_at": self.looked_at, without: nothing}
        return counts | {TRAINED_ON: self.known} if self.known else counts

    def queries(self, documents: Sequence[str], without: str) -> PseudoQueries:
        """Return the drawn queries.

        Args:
            documents: Text of each query's document, as it is searched.
            without: Name of the count of documents that gave no query.
        """
        return PseudoQueries(
            texts=self.texts,
            rows=np.array(self.rows, np.int64),
            verbatim=verbatim_share(self.texts, documents),
            counts=self.counts(without),
        )


def lexical_queries(
    documents: Documents,
    folder: Path,
    size: int = 300,
    seed: int = 42,
    is_known: IsKnown = nothing_is_known,
) -> PseudoQueries:
    """Generate one query for each of ``size`` random documents, without a model.

    A query is the title, a sentence or some terms of a passage of its document, so nearly all of
    its words occur there: models that match words do better on it than on real queries. Queries
    that a model was trained on are left out and counted.

    Args:
        documents: The corpus.
        folder: For what the generator keeps; the caller removes it.
        size: The most queries.
        seed: Seed of the drawing.
        is_known: Returns true for a query that a model was trained on.
    """
    rng = np.random.default_rng(seed)
    text_format = TextFormat()
    language = documents.facts.language or DEFAULT
    reader = PassageReader(
        documents,
        text_format,
        word_counter().count,
        _PASSAGE_WORDS,
        language,
    )
    generator = LexicalGenerator(
        documents,
        GenerationOptions(per_passage=1, seed=seed, language=language),
    )
    generator.prepare(folder)
    order = rng.permutation(len(documents))[: LOOKS * size]
    drawing = Drawing()
    for start in range(0, len(order), _CHUNK):
        if len(drawing.texts) == size:
            break
        rows = order[start : start + min(_CHUNK, size - len(drawing.texts))]
        drawing.looked_at += len(rows)
        passages = _one_of_each_document(reader.read(rows.tolist())[0], rng)
        generated = generator.generate(passages, 0).queries
        for passage, queries in zip(passages, generated, strict=True):
            if queries and is_known(queries[0].text):
                drawing.known += 1
            elif queries and queries[0].text.strip():
                drawing.add(passage.row, queries[0].text)
    texts = [text_format.document(document) for document in documents.take(drawing.rows)]
    return drawing.queries(texts, "documents_without_query")


def _one_of_each_document(passages: list[Passage], rng: np.random.Generator) -> list[Passage]:
    """Draw one passage of each document."""
    drawn = []
    for _, group in itertools.groupby(passages, lambda passage: passage.row):
        of_document = list(group)
        drawn.append(of_document[int(rng.integers(len(of_document)))])
    return drawn
