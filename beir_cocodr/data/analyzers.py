"""How the words of a language are read: BM25's terms, the languages there are, and which words of a
text match a query. Stemmers, stop words and sentences come from PyStemmer, bm25s and sentencex,
imported when they are used.
"""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from beir_cocodr.errors import InputError

#: ISO 639 codes of the languages that Snowball has stemmers for, and what Snowball calls them.
STEMMED = {
    "ar": "arabic", "hy": "armenian", "eu": "basque", "ca": "catalan", "cs": "czech", "da": "danish", "nl": "dutch",
    "en": "english", "eo": "esperanto", "et": "estonian", "fi": "finnish", "fr": "french", "de": "german",
    "el": "greek", "hi": "hindi", "hu": "hungarian", "id": "indonesian", "ga": "irish", "it": "italian",
    "lt": "lithuanian", "ne": "nepali", "no": "norwegian", "fa": "persian", "pl": "polish", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "sr": "serbian", "st": "sesotho", "es": "spanish", "sv": "swedish",
    "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip

#: Languages without stemmers, whose words are not spaced (all but Korean): read as pairs of
#: neighbouring characters.
UNSTEMMED = {
    "zh": "chinese", "ja": "japanese", "ko": "korean", "th": "thai", "lo": "lao", "km": "khmer", "my": "burmese"
}  # fmt: skip

_STOP_WORDS = frozenset(
    "english german dutch french spanish portuguese italian russian swedish norwegian turkish danish korean".split()
)

#: Of any language: words as they are, those of scripts without spaces as pairs of characters.
WORDS_ALONE = "words"

#: How BM25 reads texts. The first two are older than the others, and read words of two characters
#: or more.
ANALYZERS = (
    "english",
    "none",
    WORDS_ALONE,
    *(name for name in STEMMED.values() if name != "english"),
    "korean",
)

ANALYZER_HELP = (
    "Analyse texts for BM25 by the rules of english (stop words removed, words stemmed), german, "
    "french or another language of Snowball's, as words (of any language, unspaced ones as pairs "
    "of characters), or by none (words as they are)."
)

# What bm25s takes for a word by default; and for many texts at once: what beyond ASCII is no part
# of a word, and the bytes of UTF-8 with spaces for what within it is none.
_TWO_CHARACTERS = re.compile(r"\w\w+")
_BETWEEN = re.compile(r"[^\w\x00-\x7f]+")
_SPACED = bytes(
    code if code > 0x7F or chr(code).isalnum() or chr(code) == "_" else 0x20
    for code in range(0x100)
)


@dataclass(frozen=True)
class Language:
    """A language of a corpus.

    Args:
        code: ISO 639, for the sentence splitter.
        analyzer: of BM25, one of :data:`ANALYZERS`.
    """

    code: str
    analyzer: str

    @classmethod
    def parse(cls, name: str) -> "Language":
        """A language by its code or English name; any code of two or three letters is taken, else
        an InputError.
        """
        known = STEMMED | UNSTEMMED
        given = name.strip().lower()
        code = next((code for code, full in known.items() if full == given), given)
        if code not in known and not re.fullmatch("[a-z]{2,3}", code):
            close = difflib.get_close_matches(given, known.values(), n=1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else "give an ISO 639 code such as de, or a name such as german"
            )
            raise InputError(f"unknown language {name!r}; {hint}")
        return cls(code, known[code] if known.get(code) in ANALYZERS else WORDS_ALONE)

    def describe(self) -> str:
        """How it is read, and what is used in place of what there is not."""
        name = (STEMMED | UNSTEMMED).get(self.code, self.code)
        if self.code in UNSTEMMED and self.code != "ko":
            return f"language {name}: not spaced, so BM25 reads pairs of neighbouring characters; no stop words"
        stems = (
            f"Snowball's {name} stemmer"
            if self.code in STEMMED
            else "no stemmer is known, words are not stemmed"
        )
        stops = (
            "bm25s' stop words"
            if name in _STOP_WORDS
            else "no stop words are known, none are left out"
        )
        return f"language {name}: {stems}; {stops}; sentences by sentencex, as in {self.code} or the one next to it"


class Analyzer:
    """How BM25 reads a text: its terms, in order, as often as they stand there. An InputError:
    there is no such analyzer, or the installed PyStemmer does not have it.

    Args:
        name: one of :data:`ANALYZERS`. "english" takes out English stop words and stems by Porter's
            second algorithm (PyStemmer), "none" does neither; words, stop words and stems are those
            of bm25s. The others read words as :func:`~beir_cocodr.data.text.words` does; a language
            takes out bm25s's stop words, and stems by Snowball.

    Attributes:
        stop_words: what is left out.
        split: a lowercased text to its words.
        stemmer: PyStemmer's; None for none.

    Example:
        >>> from beir_cocodr.data.analyzers import Analyzer
        >>> Analyzer("english")("Return the sorted arrays.")
        ['return', 'sort', 'array']
        >>> Analyzer("german")("Die Häuser der Stadt")
        ['haus', 'stadt']
    """

    def __init__(self, name: str) -> None:
        import Stemmer  # not needed to read a collection, and neither is bm25s
        from bm25s.tokenization import Tokenizer

        from beir_cocodr.data.text import word_ranges, words

        if name not in ANALYZERS:
            raise InputError(f"unknown BM25 analyzer {name!r}; there are {', '.join(ANALYZERS)}")
        stemmed = name in STEMMED.values()
        if stemmed and name not in Stemmer.algorithms():
            raise InputError(
                f"the installed PyStemmer has no stemmer for {name}; pip install --upgrade PyStemmer"
            )
        self.name, plain = name, name in ("english", "none")
        self.stop_words = frozenset(
            Tokenizer(stopwords=name if name in _STOP_WORDS else []).stopwords
        )
        self.stemmer: Any = (
            Stemmer.Stemmer(name, 0) if stemmed else None
        )  # its cache is slower than none
        self.split: Callable[[str], list[str]] = _TWO_CHARACTERS.findall if plain else words
        self._ranges = _two_characters if plain else word_ranges
        self._shortest = 2 if plain else 1

    def __call__(self, text: str) -> list[str]:
        return self._terms(self.split(text.lower()))

    def split_all(self, texts: Iterable[str]) -> Any:
        """Texts to a ``pyarrow.ListArray`` of their words, lowercased, with some that :meth:`read`
        leaves out; in less time than one by one.
        """
        import pyarrow as pa
        from pyarrow import compute as pc

        lowered = [text.lower() for text in texts]
        if self._ranges is not _two_characters:
            return pa.array(map(self.split, lowered), pa.list_(pa.large_string()))
        plain = pa.array(
            [t if t.isascii() else _BETWEEN.sub(" ", t) for t in lowered], pa.large_string()
        )
        _, offsets, held = plain.buffers()
        spaced = pa.py_buffer(held.to_pybytes().translate(_SPACED) if held else b"")
        return pc.ascii_split_whitespace(
            pa.LargeStringArray.from_buffers(len(plain), offsets, spaced)
        )

    def read(self, words: list[str]) -> list[str | None]:
        """The term of each word, None for what is left out."""
        terms = words if self.stemmer is None else self.stemmer.stemWords(words)
        left_out = [len(word) < self._shortest or word in self.stop_words for word in words]
        return [None if out else term for term, out in zip(terms, left_out, strict=True)]

    def matches(self, text: str, terms: Iterable[str]) -> Iterator[tuple[int, int, str]]:
        """The words of a text that are read as one of the terms: first character, the one after the
        last, the term.
        """
        wanted = frozenset(terms)
        for start, end in self._ranges(text):
            found = self._terms([text[start:end].lower()])
            if found and found[0] in wanted:
                yield start, end, found[0]

    def __reduce__(self) -> "tuple[type[Analyzer], tuple[str]]":
        return Analyzer, (self.name,)

    def _terms(self, words: list[str]) -> list[str]:
        kept = [word for word in words if word not in self.stop_words]
        return kept if self.stemmer is None else list(self.stemmer.stemWords(kept))


def _two_characters(text: str) -> Iterator[tuple[int, int]]:
    return (match.span() for match in _TWO_CHARACTERS.finditer(text))


#: Characters of a document that words which match are looked for in.
SEARCHED = 200_000

# Line ends become spaces, and a terminal is sent no control character of a text.
_CONTROLS = dict.fromkeys(
    (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), " "
)


@dataclass(frozen=True)
class Snippet:
    """The part of a text that says most about a query, in one line.

    Args:
        text: the part, with an ellipsis where it was cut.
        matches: ranges in it, first character and the one after the last, of words that match the
        query.
    """

    text: str
    matches: tuple[tuple[int, int], ...]

    def marked(self, before: str, after: str) -> str:
        """The text with marks around the words that match."""
        return "".join(
            f"{before}{part}{after}" if matched else part for part, matched in self.parts()
        )

    def parts(self) -> Iterator[tuple[str, bool]]:
        """The text in parts, and of each whether it is a word that matches; none is empty."""
        end = 0
        for start, stop in self.matches:
            yield from [(self.text[end:start], False)] if end < start else []
            yield self.text[start:stop], True
            end = stop
        if end < len(self.text):
            yield self.text[end:], False


def snippet(text: str, query: str, analyzer: Analyzer, length: int = 240) -> Snippet:
    """The part of about ``length`` characters with most of the query's terms, and of those the most
    words; the beginning where there are none.

    Example:
        >>> from beir_cocodr.data.analyzers import Analyzer, snippet
        >>> snippet("Return a sorted copy of an array.", "sort arrays", Analyzer("english")).marked("[", "]")
        'Return a [sorted] copy of an [array].'
    """
    line = one_line(text[:SEARCHED])
    found = list(analyzer.matches(line, analyzer(query)))
    start, end = _window(line, found, length)
    before, after = "… " if start else "", " …" if end < len(line) or len(text) > SEARCHED else ""
    shift = len(before) - start
    inside = [
        (first + shift, last + shift) for first, last, _ in found if first >= start and last <= end
    ]
    return Snippet(before + line[start:end] + after, tuple(_joined(inside)))


def mark_words(text: str, query: str, analyzer: Analyzer) -> Snippet:
    """A whole text as it stands, with the words that match a query."""
    found = analyzer.matches(text[:SEARCHED], analyzer(query))
    return Snippet(text, tuple(_joined([(start, end) for start, end, _ in found])))


def one_line(text: str) -> str:
    """A text for a terminal: in one line, and without control characters."""
    return " ".join(text.translate(_CONTROLS).split())


def _window(line: str, found: list[tuple[int, int, str]], length: int) -> tuple[int, int]:
    """Where to cut, between words where there are spaces."""
    best, left, inside = (0, 0, 0, 0), 0, Counter[str]()
    for start, end, term in found:
        inside[term] += 1
        while found[left][0] < end - length and found[left][0] < start:
            inside[found[left][2]] -= 1
            left += 1
        score = (len(+inside), inside.total(), -found[left][0], end)
        best = max(best, score)
    first, last = -best[2], best[3]
    start = max(0, min(first - (length - (last - first)) // 2, len(line) - length))
    end = min(len(line), max(start + length, last))
    if start and (space := line.find(" ", start, first)) >= 0:
        start = space + 1
    if end < len(line) and (space := line.rfind(" ", max(start, last), end + 1)) >= 0:
        end = space
    return start, end


def _joined(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges that overlap, as pairs of characters do, as one."""
    while ranges:
        start, end = ranges.pop(0)
        while ranges and ranges[0][0] < end:
            end = max(end, ranges.pop(0)[1])
        yield start, end
