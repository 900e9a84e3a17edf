"""Queries without a model, in any language: titles, salient sentences and terms by tf-idf."""

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
from beir_cocodr.data.languages import DEFAULT
from beir_cocodr.data.passages import Passage, fitting_prefix, sentence_ranges
from beir_cocodr.data.text import TextFormat, word_counter, words
from beir_cocodr.errors import InputError
from beir_cocodr.generation.generators import Generated, Query
from beir_cocodr.generation.query_kinds import QUERY_KINDS, kinds_in_turn
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.io import save_array
from beir_cocodr.records import Json

#: Counts of documents by the hash of a word.
Frequencies = npt.NDArray[np.uint32]

# 16 MiB of counters. Two words that share one look as frequent as both together.
_BUCKETS = 1 << 22

# Documents that are read at a time.
_CHUNK = 1000

_FREQUENCIES_FILE = "document_frequencies.npy"

# Terms are drawn from so many best ones, and so many at a time.
_TOP_TERMS = 10
_FEWEST_TERMS = 2
_MOST_TERMS = 5

# Comes before a kind in the name of its count.
_GENERATED = "generated_"

# Draws in a row that repeat earlier ones, after which no new one is to be expected.
_FRUITLESS_DRAWS = 20

log = logging.getLogger(__name__)


def count_document_frequencies(documents: Documents, text_format: TextFormat) -> Frequencies:
    """Count the documents that have a word, in a stream over the corpus.

    Returns:
        (2^22,) document frequencies by the hash of a word.
    """
    counts = np.zeros(_BUCKETS, np.uint32)
    for chunk in documents.chunks(_CHUNK):
        # Two words of a document that share a counter count once.
        buckets = []
        for document in chunk:
            distinct = set(words(text_format.document(document)))
            buckets.append(np.unique(_buckets(distinct)))
        np.add.at(counts, np.concatenate(buckets), 1)
    return counts


def inverse_document_frequencies(
    counts: Frequencies,
    documents: int,
    terms: Collection[str],
) -> Doubles:
    """Return ln(1 + N/df) of some terms, which is positive even for a word of every document.

    Args:
        counts: What :func:`count_document_frequencies` returned.
        documents: N, the number of documents.
        terms: n terms.

    Returns:
        (n,) float64.
    """
    frequencies = np.maximum(counts[_buckets(terms)], 1)
    return np.asarray(np.log1p(documents / frequencies))


def _buckets(terms: Iterable[str]) -> Ints:
    hashes = (crc32(term.encode()) for term in terms)
    return np.fromiter(hashes, np.int64) % _BUCKETS


def build(
    name: str,
    documents: Documents,
    options: GenerationOptions,
    device: str | None,
) -> "LexicalGenerator":
    """Build the generator, for its row in the table of generators."""
    return LexicalGenerator(documents, options)


class LexicalGenerator:
    """A generator that needs no model.

    For each query one of three kinds is chosen at random, or in rotation where the options name
    kinds: the title of the document, a salient sentence of the passage, or some of the passage's
    best terms by tf-idf, (1 + ln tf) · ln(1 + N/df). Sentences are taken in the order of their
    salience, the sum of their words' tf-idf over the square root of the number of words. Two to
    five terms are drawn from the best ten in proportion to their tf-idf, and keep the order of the
    passage.

    A passage never gets the same query twice, nor one with exactly the words of the entire passage,
    so a short passage may get fewer queries than are asked for.

    The corpus is read once for document frequencies, in a stream and 16 MiB of memory; no stop
    words are needed. Beside texts and options, the queries of a passage depend on its document's
    row and its number only.

    Args:
        documents: The corpus.
        options: ``title_separator``, ``per_passage``, ``language``, ``seed``, and ``max_length``,
            the most words of a query, as :func:`~beir_cocodr.data.text.count_units` counts them; a
            longer query is cut.
    """

    def __init__(self, documents: Documents, options: GenerationOptions) -> None:
        """Make the generator; :meth:`prepare` reads the corpus.

        Raises:
            InputError: It has no queries of a kind that the options ask for.
        """
        for kind in options.kinds:
            if not QUERY_KINDS[kind].lexical:
                raise InputError(
                    f"the generator lexical writes no {kind}; leave {kind} out of query_kinds, or "
                    "name a language model with --generator"
                )
        self.documents = documents
        self.options = options
        self.counter = word_counter()
        self._frequencies: Frequencies | None = None

    def describe(self) -> Json:
        """Return the generator's name and kind."""
        return {"name": "lexical", "kind": "lexical"}

    def prepare(self, folder: Path) -> None:
        """Count document frequencies, unless another process has written them to a folder."""
        file = folder / _FREQUENCIES_FILE
        if not file.is_file():
            log.info("counting the words of %d documents", len(self.documents))
            counted = count_document_frequencies(self.documents, self.options.text_format)
            save_array(file, counted)
        self._frequencies = np.load(file)

    def generate(self, passages: Sequence[Passage], shard: int) -> Generated:
        """Return the queries of a shard's passages, and how many there are of each kind.

        The counts are ``generated_titles``, ``generated_sentences`` and ``generated_terms``: those
        of queries that are kept have the names of the kinds that were asked for.
        """
        queries: list[list[Query]] = []
        counts: Counter[str] = Counter()
        for passage in passages:
            of_passage: list[Query] = []
            for kind, text in self._queries(passage):
                counts[f"{_GENERATED}{kind}"] += 1
                of_passage.append(self._limited(text))
            queries.append(of_passage)
        return Generated(queries, dict(counts))

    def _limited(self, text: str) -> Query:
        """Return a query of at most ``max_length`` words."""
        count = self.counter.count
        most = self.options.max_length
        [length] = count([text])
        if length <= most:
            return Query(text)
        return Query(fitting_prefix(text, count, most), cut=True)

    def _queries(self, passage: Passage) -> list[tuple[str, str]]:
        """Return the kind and the text of each query of a passage."""
        seed = (self.options.seed, passage.row, passage.number)
        rng = np.random.default_rng(seed)
        passage_words = words(passage.text)
        weights = self._weights(passage_words)
        kinds: dict[str, Iterator[str]] = {
            "titles": iter([passage.title]),
            "sentences": self._sentences(passage, weights),
            "terms": _term_queries(passage_words, weights, rng),
        }
        used: set[tuple[str, ...]] = {tuple(passage_words), ()}
        if self.options.kinds:
            return self._in_turn(passage, kinds, used)
        queries: list[tuple[str, str]] = []
        while kinds and len(queries) < self.options.per_passage:
            drawn = int(rng.integers(len(kinds)))
            kind = list(kinds)[drawn]
            text = _next_unused(kinds[kind], used)
            if text is None:
                del kinds[kind]
            else:
                used.add(tuple(words(text)))
                queries.append((kind, text))
        return queries

    def _in_turn(
        self, passage: Passage, kinds: dict[str, Iterator[str]], used: set[tuple[str, ...]]
    ) -> list[tuple[str, str]]:
        """Return queries of the kinds in rotation, "" where a kind has no other one left."""
        turns = kinds_in_turn(self.options.kinds, passage.text, self.options.per_passage)
        queries: list[tuple[str, str]] = []
        for turn in turns:
            kind = QUERY_KINDS[turn].lexical
            text = _next_unused(kinds[kind], used) or ""
            used.add(tuple(words(text)))
            queries.append((kind, text))
        return queries

    def _weights(self, terms: list[str]) -> dict[str, float]:
        """Return the tf-idf of the distinct words of a passage, in order of first occurrence."""
        assert self._frequencies is not None, "prepare() comes first"
        counts = Counter(terms)
        idf = inverse_document_frequencies(
            self._frequencies,
            len(self.documents),
            counts,
        )
        weights: dict[str, float] = {}
        idf_of_terms = zip(counts.items(), idf.tolist(), strict=True)
        for (term, count), idf_of_term in idf_of_terms:
            term_frequency = 1 + float(np.log(count))
            weights[term] = term_frequency * idf_of_term
        return weights

    def _sentences(self, passage: Passage, weights: dict[str, float]) -> Iterator[str]:
        """Yield the sentences of a passage except for the title, the most salient first."""
        text = passage.text
        is_first = passage.start == 0
        if is_first and passage.title and text.startswith(passage.title):
            text = text[len(passage.title) :]
        ranges = sentence_ranges(text, self.options.language or DEFAULT)
        sentences = [text[start:end] for start, end in ranges]
        sentences.sort(key=lambda sentence: -_salience(sentence, weights))
        yield from sentences


def _next_unused(texts: Iterator[str], used: Collection[tuple[str, ...]]) -> str | None:
    """Return the next text whose words are not those of a used one."""
    for text in texts:
        if tuple(words(text)) not in used:
            return text
    return None


def _salience(sentence: str, weights: dict[str, float]) -> float:
    # A dictionary, as the order of a set, and so the sum, changes from process to process.
    distinct = dict.fromkeys(words(sentence))
    # A pair of characters at the border of two sentences is no word of either.
    total = sum(weights.get(term, 0.0) for term in distinct)
    return total / math.sqrt(max(1, len(distinct)))


def _term_queries(
    passage_words: list[str],
    weights: dict[str, float],
    rng: np.random.Generator,
) -> Iterator[str]:
    """Yield draws of terms, until draws repeat earlier ones."""
    ranked = sorted(weights, key=lambda term: -weights[term])
    best = ranked[:_TOP_TERMS]
    best.sort(key=passage_words.index)
    probabilities = np.array([weights[term] for term in best])
    probabilities /= probabilities.sum()
    earlier: set[tuple[int, ...]] = set()
    fruitless = 0
    while best and fruitless < _FRUITLESS_DRAWS:
        wanted = int(rng.integers(_FEWEST_TERMS, _MOST_TERMS + 1))
        size = min(len(best), wanted)
        draw = rng.choice(len(best), size, replace=False, p=probabilities)
        numbers = tuple(np.sort(draw).tolist())
        if numbers in earlier:
            fruitless += 1
        else:
            fruitless = 0
            earlier.add(numbers)
            yield " ".join(best[number] for number in numbers)
