"""Languages: the terms that BM25 reads, and the words of a text that match a query.

Stemmers, stop words and sentences come from PyStemmer, bm25s and sentencex, which are imported when
they are used.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from beir_cocodr.errors import InputError

if TYPE_CHECKING:
    from bm25s.tokenization import Tokenizer

#: ISO 639 codes of the languages that Snowball has stemmers for, and their names in Snowball.
STEMMED = {
    "ar": "arabic",
    "hy": "armenian",
    "eu": "basque",
    "ca": "catalan",
    "cs": "czech",
    "da": "danish",
    "nl": "dutch",
    "en": "english",
    "eo": "esperanto",
    "et": "estonian",
    "fi": "finnish",
    "fr": "french",
    "de": "german",
    "el": "greek",
    "hi": "hindi",
    "hu": "hungarian",
    "id": "indonesian",
    "ga": "irish",
    "it": "italian",
    "lt": "lithuanian",
    "ne": "nepali",
    "no": "norwegian",
    "fa": "persian",
    "pl": "polish",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sr": "serbian",
    "st": "sesotho",
    "es": "spanish",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
    "yi": "yiddish",
}

#: Languages without stemmers. They put no space between words (except Korean), and are read as
#: pairs of neighbouring characters.
UNSTEMMED = {
    "zh": "chinese",
    "ja": "japanese",
    "ko": "korean",
    "th": "thai",
    "lo": "lao",
    "km": "khmer",
    "my": "burmese",
}

# Languages that bm25s has stop words for.
_STOP_WORDS = frozenset(
    {
        "english",
        "german",
        "dutch",
        "french",
        "spanish",
        "portuguese",
        "italian",
        "russian",
        "swedish",
        "norwegian",
        "turkish",
        "danish",
        "korean",
    }
)

#: The analyzer of any language: words as they are, those of scripts without spaces as pairs of
#: characters.
WORDS_ALONE = "words"

#: The analyzer of folders of files in English: as english, and text in scripts without spaces as
#: pairs of characters. It has a name of its own because english has to read what it always read:
#: indexes and models are known by the name of their analyzer.
ENGLISH_PAIRS = "english-pairs"

#: How BM25 reads texts. The first two are older than the others; like the third, they read words of
#: two characters or more. All except these two read text in scripts without spaces as pairs.
ANALYZERS = (
    "english",
    "none",
    ENGLISH_PAIRS,
    WORDS_ALONE,
    *(name for name in STEMMED.values() if name != "english"),
    "korean",
)

ANALYZER_HELP = (
    "Analyse texts for BM25 by the rules of english (stop words removed, words stemmed), german, "
    "french or another Snowball language; as english-pairs (english, and text without spaces such "
    "as Chinese as pairs of characters); as words (any language; where words are not spaced, as "
    "pairs of characters); or as none (words unchanged). In a folder of files, english means "
    "english-pairs, or the analyzer of the language that was detected."
)

# Words by bm25s's default; and for many texts at once: characters beyond ASCII that no word has,
# and a table of bytes that makes those of ASCII that no word has into spaces.
_TWO_CHARACTERS = re.compile(r"\w\w+")
_BETWEEN = re.compile(r"[^\w\x00-\x7f]+")
_SPACED = bytes(
    code if code > 0x7F or chr(code).isalnum() or chr(code) == "_" else 0x20
    for code in range(0x100)
)


@dataclass(frozen=True)
class Language:
    """A language of a corpus.

    Attributes:
        code: its ISO 639 code, for the sentence splitter.
        analyzer: the analyzer of BM25, one of :data:`ANALYZERS`.
    """

    code: str
    analyzer: str

    @classmethod
    def parse(cls, name: str) -> Language:
        """Return a language by its code or English name; any code of two or three letters is valid.

        Raises:
            InputError: the name is neither.
        """
        known = STEMMED | UNSTEMMED
        wanted = name.strip().lower()
        codes = {english: code for code, english in known.items()}
        code = codes.get(wanted, wanted)
        if code not in known and not re.fullmatch("[a-z]{2,3}", code):
            hint = "give an ISO 639 code such as de, or a name such as german"
            for close in difflib.get_close_matches(wanted, known.values(), n=1):
                hint = f"did you mean {close}?"
            raise InputError(f"unknown language {name!r}; {hint}")
        analyzer = known.get(code)
        return cls(code, analyzer if analyzer in ANALYZERS else WORDS_ALONE)

    def describe(self) -> str:
        """Describe how the language is read, and what is used where a tool does not know it."""
        name = (STEMMED | UNSTEMMED).get(self.code, self.code)
        if self.code in UNSTEMMED and self.code != "ko":
            return (
                f"language {name}: not spaced, so BM25 reads pairs of neighbouring characters; "
                "no stop words"
            )
        stems = "no stemmer is known, words are not stemmed"
        if self.code in STEMMED:
            stems = f"Snowball's {name} stemmer"
        stops = "no stop words are known, none are left out"
        if name in _STOP_WORDS:
            stops = "bm25s' stop words"
        sentences = f"sentences by sentencex, as in {self.code} or the nearest language it knows"
        return f"language {name}: {stems}; {stops}; {sentences}"


@cache
def bm25s_tokenizer() -> type[Tokenizer]:
    """Import bm25s, and return its tokenizer.

    bm25s imports JAX where that is installed, and JAX then takes three quarters of the memory of
    every GPU at once. Only its selection of the best would use JAX, which is not used here, so JAX
    is hidden from it.
    """
    jax = sys.modules.get("jax")
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        from bm25s.tokenization import Tokenizer
    finally:
        del sys.modules["jax"]
        if jax is not None:
            sys.modules["jax"] = jax
    tokenizer: type[Tokenizer] = Tokenizer
    return tokenizer


class Analyzer:
    """An analyzer of texts for BM25: it gives the terms of a text in order, as often as they occur.

    Attributes:
        name: the name of the analyzer.
        stop_words: the words that are left out.
        split: splits a lowercased text into words.
        stemmer: PyStemmer's stemmer; None for none.

    Example:
        >>> from beir_cocodr.data.analyzers import Analyzer
        >>> Analyzer("english")("Return the sorted arrays.")
        ['return', 'sort', 'array']
        >>> Analyzer("german")("Die Häuser der Stadt")
        ['haus', 'stadt']
    """

    def __init__(self, name: str) -> None:
        """Make an analyzer.

        Args:
            name: one of :data:`ANALYZERS`. "english" leaves out English stop words and stems by
                Porter's second algorithm (PyStemmer), "none" does neither; both read the words of
                bm25s's tokenizer. "english-pairs" reads as "english" does, and text in scripts
                without spaces as pairs of characters. The others read words as
                :func:`~beir_cocodr.data.text.words` does; a language leaves out bm25s's stop words,
                and stems by Snowball.

        Raises:
            InputError: there is no such analyzer, or the installed PyStemmer does not have it.
        """
        import Stemmer  # reading a collection needs neither this nor bm25s

        from beir_cocodr.data.text import word_ranges, words

        if name not in ANALYZERS:
            raise InputError(
                f"unknown BM25 analyzer {name!r}; choose one of {', '.join(ANALYZERS)}"
            )
        language = "english" if name == ENGLISH_PAIRS else name
        is_stemmed = language in STEMMED.values()
        if is_stemmed and language not in Stemmer.algorithms():
            raise InputError(
                f"the installed PyStemmer has no stemmer for {language}; "
                "pip install --upgrade PyStemmer"
            )
        self.name = name
        tokenizer = bm25s_tokenizer()(stopwords=language if language in _STOP_WORDS else [])
        self.stop_words = frozenset(tokenizer.stopwords)
        # PyStemmer's own cache is slower than none.
        self.stemmer: Any = Stemmer.Stemmer(language, 0) if is_stemmed else None
        self.split: Callable[[str], list[str]] = words
        self._ranges = word_ranges
        # Replaces the characters beyond ASCII that no word has; for the words of bm25s alone.
        self._spaced: Callable[[str], str] | None = None
        self._shortest = 1
        if name in ("english", "none"):
            self.split = _TWO_CHARACTERS.findall
            self._ranges = _two_character_ranges
            self._spaced = _spaced
            self._shortest = 2
        elif name == ENGLISH_PAIRS:
            self.split = _split_with_pairs
            self._ranges = _ranges_with_pairs
            self._spaced = _spaced_with_pairs
            self._shortest = 2

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text."""
        return self._terms(self.split(text.lower()))

    def split_all(self, texts: Iterable[str]) -> Any:
        """Split many texts into words, in less time than one by one.

        Returns:
            A ``pyarrow.ListArray`` of lowercased words, with some that :meth:`read` leaves out.
        """
        import numpy as np
        import pyarrow as pa
        from pyarrow import compute as pc

        lowered = [text.lower() for text in texts]
        if self._spaced is None:
            words = (self.split(text) for text in lowered)
            return pa.array(words, pa.list_(pa.large_string()))
        encoded = []
        for text in lowered:
            spaced = text if text.isascii() else self._spaced(text)
            encoded.append(spaced.encode())
        # Made of its buffers, because pa.array would import pandas, which outlasts a search.
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        content = b"".join(encoded).translate(_SPACED)
        array = pa.LargeStringArray.from_buffers(
            len(encoded), pa.py_buffer(offsets), pa.py_buffer(content)
        )
        return pc.ascii_split_whitespace(array)

    def read(self, words: list[str]) -> list[str | None]:
        """Return the term of each word; None for a word that is left out."""
        terms = words
        if self.stemmer is not None:
            terms = self.stemmer.stemWords(words)
        read: list[str | None] = []
        for word, term in zip(words, terms, strict=True):
            is_left_out = word in self.stop_words or self._is_short(word)
            read.append(None if is_left_out else term)
        return read

    def _is_short(self, word: str) -> bool:
        """Return whether a word has too few characters to be a term."""
        if len(word) >= self._shortest:
            return False
        return self.name != ENGLISH_PAIRS or not _is_unspaced(word)

    def matches(
        self,
        text: str,
        terms: Iterable[str],
    ) -> Iterator[tuple[int, int, str]]:
        """Stream the words of a text that are read as one of some terms.

        Returns:
            First character, the character after the last, and the term of each.
        """
        wanted = frozenset(terms)
        for start, end in self._ranges(text):
            for term in self._terms([text[start:end].lower()]):
                if term in wanted:
                    yield start, end, term

    def __reduce__(self) -> tuple[type[Analyzer], tuple[str]]:
        """Pickle the name."""
        return Analyzer, (self.name,)

    def _terms(self, words: list[str]) -> list[str]:
        kept = [word for word in words if word not in self.stop_words]
        if self.stemmer is None:
            return kept
        return list(self.stemmer.stemWords(kept))


def _two_character_ranges(text: str) -> Iterator[tuple[int, int]]:
    return (match.span() for match in _TWO_CHARACTERS.finditer(text))


def _spaced(text: str) -> str:
    """Return a text with a space for the characters beyond ASCII that no word has."""
    return _BETWEEN.sub(" ", text)


def _split_with_pairs(text: str) -> list[str]:
    """Return the words of two characters or more, and pairs in scripts without spaces."""
    return [text[start:end] for start, end in _ranges_with_pairs(text)]


def _ranges_with_pairs(text: str) -> Iterator[tuple[int, int]]:
    from beir_cocodr.data.text import pair_ranges, unspaced_runs

    last = 0
    for start, end in unspaced_runs(text):
        yield from (match.span() for match in _TWO_CHARACTERS.finditer(text, last, start))
        yield from pair_ranges(start, end)
        last = end
    yield from (match.span() for match in _TWO_CHARACTERS.finditer(text, last))


def _spaced_with_pairs(text: str) -> str:
    """Return a text with spaces between words, and between pairs in scripts without spaces."""
    from beir_cocodr.data.text import pair_ranges, unspaced_runs

    parts = []
    last = 0
    for start, end in unspaced_runs(text):
        parts.append(_spaced(text[last:start]))
        parts += [text[first:second] for first, second in pair_ranges(start, end)]
        last = end
    parts.append(_spaced(text[last:]))
    return " ".join(parts)


def _is_unspaced(word: str) -> bool:
    """Return whether a word is of a script that puts no space between words."""
    from beir_cocodr.data.text import unspaced_runs

    return next(unspaced_runs(word), None) is not None


#: The first characters of a document, in which words that match a query are looked for.
SEARCHED = 200_000

# Line ends become spaces, and a terminal is sent no control character of a text.
_CONTROLS = dict.fromkeys(
    (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
    " ",
)


@dataclass(frozen=True)
class Snippet:
    """The part of a text that says most about a query, in one line.

    Attributes:
        text: the part, with an ellipsis where it was cut.
        matches: ranges of the words in it that match the query: first character, and the one after
            the last.
    """

    text: str
    matches: tuple[tuple[int, int], ...]

    def marked(self, before: str, after: str) -> str:
        """Return the text with marks around the words that match."""
        marked = []
        for part, is_match in self.parts():
            marked.append(f"{before}{part}{after}" if is_match else part)
        return "".join(marked)

    def parts(self) -> Iterator[tuple[str, bool]]:
        """Stream the parts of the text, none empty, each with whether it is a word that matches."""
        end = 0
        for start, stop in self.matches:
            if end < start:
                yield self.text[end:start], False
            yield self.text[start:stop], True
            end = stop
        if end < len(self.text):
            yield self.text[end:], False


def snippet(
    text: str,
    query: str,
    analyzer: Analyzer,
    length: int = 240,
) -> Snippet:
    """Return the part of about ``length`` characters that has most of a query's terms.

    Among parts with as many terms it is the one with most words that match; where none matches, it
    is the beginning.

    Example:
        >>> from beir_cocodr.data.analyzers import Analyzer, snippet
        >>> text = "Return a sorted copy of an array."
        >>> snippet(text, "sort arrays", Analyzer("english")).marked("[", "]")
        'Return a [sorted] copy of an [array].'
    """
    line = one_line(text[:SEARCHED])
    matches = list(analyzer.matches(line, analyzer(query)))
    start, end = _window(line, matches, length)
    is_cut = end < len(line) or len(text) > SEARCHED
    before = "… " if start else ""
    after = " …" if is_cut else ""
    shift = len(before) - start
    inside = []
    for first, last, _ in matches:
        if first >= start and last <= end:
            inside.append((first + shift, last + shift))
    matched = tuple(_join_overlapping(inside))
    return Snippet(before + line[start:end] + after, matched)


def mark_words(
    text: str,
    query: str,
    analyzer: Analyzer,
) -> Snippet:
    """Return a text as it is, with the words that match a query."""
    matches = analyzer.matches(text[:SEARCHED], analyzer(query))
    ranges = [(start, end) for start, end, _ in matches]
    return Snippet(text, tuple(_join_overlapping(ranges)))


def one_line(text: str) -> str:
    """Return a text for a terminal: in one line, and without control characters."""
    return " ".join(text.translate(_CONTROLS).split())


class _Stretch(NamedTuple):
    """A stretch of a text from one match to another; the larger says more about the query."""

    terms: int = 0
    words: int = 0
    minus_start: int = 0
    end: int = 0


def _window(
    line: str,
    matches: list[tuple[int, int, str]],
    length: int,
) -> tuple[int, int]:
    """Return the range of the best part of a line, between words where there are spaces."""
    best = _best_stretch(matches, length)
    first = -best.minus_start
    last = best.end
    margin = (length - (last - first)) // 2
    start = max(0, min(first - margin, len(line) - length))
    end = min(len(line), max(start + length, last))
    if start > 0:
        space = line.find(" ", start, first)
        if space >= 0:
            start = space + 1
    if end < len(line):
        space = line.rfind(" ", max(start, last), end + 1)
        if space >= 0:
            end = space
    return start, end


def _best_stretch(
    matches: list[tuple[int, int, str]],
    length: int,
) -> _Stretch:
    """Return the stretch of at most ``length`` characters with most terms, then most words."""
    best = _Stretch()
    left = 0
    terms = Counter[str]()
    for start, end, term in matches:
        terms[term] += 1
        while matches[left][0] < min(end - length, start):
            _, _, term_left = matches[left]
            terms[term_left] -= 1
            left += 1
        first = matches[left][0]
        stretch = _Stretch(len(+terms), terms.total(), -first, end)
        best = max(best, stretch)
    return best


def _join_overlapping(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join ranges that overlap, as those of pairs of characters do."""
    while ranges:
        start, end = ranges.pop(0)
        while ranges and ranges[0][0] < end:
            _, next_end = ranges.pop(0)
            end = max(end, next_end)
        yield start, end
