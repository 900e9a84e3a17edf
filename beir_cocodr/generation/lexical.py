"""Queries without a model, in any language: titles, salient sentences and terms by tf-idf, in
constant memory.
"""

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.passages import Passage, fitting_prefix, sentence_ranges
from beir_cocodr.data.text import TextFormat, word_counter, words
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.generation.shards import Generated, Query
from beir_cocodr.io import save_array
from beir_cocodr.records import Json

# 16 MiB of counters. Words of which two share one look as frequent as both together.
_BUCKETS = 1 << 22
_CHUNK = 1000


def count_document_frequencies(
    documents: Documents, text_format: TextFormat
) -> npt.NDArray[np.uint32]:
    """(2^22,) document frequencies by hash of a word; the corpus is streamed."""
    counts = np.zeros(_BUCKETS, np.uint32)
    for chunk in documents.chunks(_CHUNK):
        found = [_buckets(set(words(text_format.document(document)))) for document in chunk]
        # Two words of a document that share a counter count once.
        np.add.at(counts, np.concatenate([np.unique(buckets) for buckets in found]), 1)
    return counts


def inverse_document_frequencies(
    counts: npt.NDArray[np.uint32], documents: int, terms: Collection[str]
) -> Doubles:
    """(n,) ln(1 + N/df) of n terms, positive even where a word is everywhere; N is the number of
    documents.
    """
    return np.asarray(np.log1p(documents / np.maximum(counts[_buckets(terms)], 1)))


def _buckets(terms: Iterable[str]) -> Ints:
    return np.fromiter((crc32(term.encode()) % _BUCKETS for term in terms), np.int64)


log = logging.getLogger(__name__)
_FREQUENCIES = "document_frequencies.npy"

#: Query terms are drawn from so many best ones, and so many at a time.
_TOP_TERMS, _FEWEST, _MOST = 10, 2, 5

# A draw that gave nothing new so many times in a row will hardly do so again.
_FRUITLESS = 20


class LexicalGenerator:
    """For each query one of three is chosen at random: the title of the document, a salient
    sentence of the passage, or some of its best terms by tf-idf.

    A passage never gets the same query twice, nor one with just the words of the whole passage; a
    short one may so get fewer than asked for. Sentences come in the order of their salience, the
    tf-idf of their words summed, over the square root of their number. Between two and five terms
    are drawn from the best ten in proportion to their tf-idf, and keep the order of the passage.
    tf-idf is (1 + ln tf) · ln(1 + N/df).

    The corpus is read once for document frequencies, streamed, in 16 MiB; no stop words are needed.
    What a passage gets depends on the seed, its document's row and its number only.

    Args:
        documents: the corpus.
        options: title_separator, per_passage, language, seed, and max_length, the most words of a
            query, as :func:`count_units` counts them; a longer one is cut.
    """

    def __init__(self, documents: Documents, options: GenerationOptions) -> None:
        self.documents, self.options = documents, options
        self._frequencies: npt.NDArray[np.uint32] | None = None

    def describe(self) -> Json:
        return {"name": "lexical", "kind": "lexical"}

    def prepare(self, folder: Path) -> None:
        """Count document frequencies, or take those that another process has put into
        ``folder``.
        """
        saved = folder / _FREQUENCIES
        if not saved.is_file():
            log.info("counting the words of %d documents", len(self.documents))
            save_array(saved, count_document_frequencies(self.documents, self.options.text_format))
        self._frequencies = np.load(saved)

    def generate(self, passages: Sequence[Passage], shard: int) -> Generated:
        """See :class:`~beir_cocodr.generation.shards.Generator`; counts the draws of each kind."""
        made = [self._queries(passage) for passage in passages]
        kinds = Counter(kind for found in made for kind, _ in found)
        return Generated(
            [[self._limited(text) for _, text in found] for found in made], dict(kinds)
        )

    def _limited(self, text: str) -> Query:
        count = word_counter().count
        if count([text])[0] <= self.options.max_length:
            return Query(text)
        return Query(fitting_prefix(text, count, self.options.max_length), cut=True)

    def _queries(self, passage: Passage) -> list[tuple[str, str]]:
        """The queries of one passage, each behind its kind."""
        rng = np.random.default_rng((self.options.seed, passage.row, passage.number))
        whole = words(passage.text)
        weights = self._weights(whole)
        kinds = {
            "titles": iter([passage.title]),
            "sentences": self._sentences(passage, weights),
            "terms": _term_queries(whole, weights, rng),
        }
        given: set[tuple[str, ...]] = {tuple(whole), ()}
        queries: list[tuple[str, str]] = []
        while kinds and len(queries) < self.options.per_passage:
            kind = list(kinds)[int(rng.integers(len(kinds)))]
            text = next((text for text in kinds[kind] if tuple(words(text)) not in given), None)
            if text is None:
                del kinds[kind]
            else:
                given.add(tuple(words(text)))
                queries.append((kind, text))
        return queries

    def _weights(self, terms: list[str]) -> dict[str, float]:
        """tf-idf of the distinct words of a passage, in order of their first places."""
        assert self._frequencies is not None, "prepare() comes first"
        counts = Counter(terms)
        idf = inverse_document_frequencies(self._frequencies, len(self.documents), counts).tolist()
        return {
            term: (1 + float(np.log(tf))) * weight
            for (term, tf), weight in zip(counts.items(), idf, strict=True)
        }

    def _sentences(self, passage: Passage, weights: dict[str, float]) -> Iterator[str]:
        """The sentences of a passage, the most salient first; the title is none of them."""
        text = passage.text
        if passage.start == 0 and passage.title and text.startswith(passage.title):
            text = text[len(passage.title) :]
        found = [text[start:end] for start, end in sentence_ranges(text, self.options.language)]
        yield from sorted(found, key=lambda sentence: -_salience(sentence, weights))


def _salience(sentence: str, weights: dict[str, float]) -> float:
    # A dictionary, as the order of a set, and with it the sum, changes from process to process.
    distinct = dict.fromkeys(words(sentence))
    # A pair of characters at the border of two sentences is no word of either.
    return sum(weights.get(term, 0.0) for term in distinct) / math.sqrt(max(1, len(distinct)))


def _term_queries(
    whole: list[str], weights: dict[str, float], rng: np.random.Generator
) -> Iterator[str]:
    """Draws of terms, endless but for those that give nothing new."""
    best = sorted(weights, key=lambda term: -weights[term])[:_TOP_TERMS]
    best.sort(key=whole.index)
    drawn: set[tuple[int, ...]] = set()
    fruitless = 0
    probabilities = np.array([weights[term] for term in best])
    probabilities /= probabilities.sum()
    while best and fruitless < _FRUITLESS:
        size = min(len(best), int(rng.integers(_FEWEST, _MOST + 1)))
        chosen = tuple(
            np.sort(rng.choice(len(best), size, replace=False, p=probabilities)).tolist()
        )
        fruitless = fruitless + 1 if chosen in drawn else 0
        if not fruitless:
            drawn.add(chosen)
            yield " ".join(best[i] for i in chosen)
