"""The language of a corpus, detected by py3langid, which needs no network."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from itertools import islice
from typing import Any

from beir_cocodr.data.analyzers import ENGLISH_PAIRS, STEMMED, UNSTEMMED, Language
from beir_cocodr.data.text import unspaced_runs

log = logging.getLogger(__name__)

#: Characters of a text that its language is detected from.
SAMPLE = 1_000

#: The code of a corpus in several languages, none with half of the text (ISO 639-2).
SEVERAL = "mul"

#: The code where too little text shows its language.
DEFAULT = "en"

# Text of fewer characters shows no language, and that of fewer in all files leaves the default.
_LEAST = 20
_LEAST_IN_ALL = 200

# A text whose language is less probable is not counted.
_LEAST_PROBABILITY = 0.5

# Shares of the text below this are not named.
_NAMED_SHARE = 0.005

# The names that the library has for text without a language, and for text that it is unsure of.
_NO_LANGUAGES = ("zxx", "und")


@cache
def _identifier() -> Any:
    """Return the detector, None where the library is not installed: the corpus is still read."""
    if find_spec("py3langid") is None:
        log.warning("languages are not detected: pip install py3langid")
        return None
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # loading takes a second

    return LanguageIdentifier.from_model_file(
        MODEL_FILE,
        norm_probs=True,
        min_confidence=_LEAST_PROBABILITY,
    )


def detect_language(text: str) -> str | None:
    """Return the language of a text.

    Args:
        text: the text; only its first 1,000 characters count.

    Returns:
        Its ISO 639 code; None where the text is too short, or does not show its language.

    Example:
        >>> from beir_cocodr.data.languages import detect_language
        >>> detect_language("Der Flügel eines Flugzeugs erzeugt Auftrieb.")
        'de'
    """
    sample = text[:SAMPLE]
    # A character of a script such as Chinese says as much as several letters.
    if len(sample.encode("utf-8", "replace")) < _LEAST:
        return None
    identifier = _identifier()
    if identifier is None:
        return None
    code, _ = identifier.classify(sample)
    return None if code in _NO_LANGUAGES else str(code)


def language_shares(characters: Mapping[str, int]) -> dict[str, float]:
    """Return the share of each language in the text of a corpus, largest first.

    Args:
        characters: language to the characters of the texts that are written in it.
    """
    total = sum(characters.values())
    counts = Counter(dict(sorted(characters.items()))).most_common()
    return {code: round(count / total, 4) for code, count in counts}


def main_language(characters: Mapping[str, int]) -> str:
    """Return the language by which a corpus is read.

    Args:
        characters: as for :func:`language_shares`.

    Returns:
        The language of half of the text or more; "mul" where there is none; "en" where too little
        text shows its language.
    """
    if sum(characters.values()) < _LEAST_IN_ALL:
        return DEFAULT
    code, share = next(iter(language_shares(characters).items()))
    return code if share >= 0.5 else SEVERAL


def language_name(code: str) -> str:
    """Return the English name of a language; its code where no name is known."""
    if code == SEVERAL:
        return "several languages"
    name = (STEMMED | UNSTEMMED).get(code)
    return code if name is None else name.capitalize()


def describe_shares(shares: Mapping[str, float]) -> str:
    """Describe the languages of a corpus, such as "71% English, 29% German"."""
    descriptions = [
        f"{share:.0%} {language_name(code)}"
        for code, share in shares.items()
        if share >= _NAMED_SHARE
    ]
    return ", ".join(descriptions)


def count_characters(samples: Iterable[tuple[str | None, int]]) -> dict[str, int]:
    """Add up the characters of each language.

    Args:
        samples: the language of each text, None where it does not show, and its characters.
    """
    counts = Counter[str]()
    for code, characters in samples:
        if code is not None:
            counts[code] += characters
    return dict(counts)


def corpus_analyzer(analyzer: str, language: str | None) -> str:
    """Return the analyzer that BM25 reads a corpus by.

    Args:
        analyzer: the one that was asked for.
        language: the language of the corpus; None where it is not known.

    Returns:
        That of the language, unless an analyzer other than the default "english" was asked for;
        in English, the one that also reads text in scripts without spaces.
    """
    if language is None or analyzer != "english":
        return analyzer
    of_language = Language.parse(language).analyzer
    return ENGLISH_PAIRS if of_language == "english" else of_language


# Texts whose scripts are looked at, and the share of characters without spaces that is much.
_LOOKED_AT = 50
_MUCH = 0.3


def warn_of_unspaced_text(texts: Iterable[str], analyzer: str) -> None:
    """Warn, once in a process, if BM25 finds no words in much of a corpus.

    The analyzers english and none read a run of Chinese or Thai between two signs as one word.

    Args:
        texts: texts of the corpus; the first 50 count.
        analyzer: BM25's analyzer.
    """
    if analyzer not in ("english", "none"):
        return
    characters = unspaced = 0
    for text in islice(texts, _LOOKED_AT):
        sample = text[:SAMPLE]
        characters += len(sample)
        unspaced += sum(end - start for start, end in unspaced_runs(sample))
    if unspaced > _MUCH * characters:
        _warn_of_unspaced_text()


@cache
def _warn_of_unspaced_text() -> None:
    log.warning(
        "much of the text is written without spaces, and BM25 finds no words in it: add "
        "--bm25-analyzer %s (in Python, SearchOptions(analyzer=%r))",
        ENGLISH_PAIRS,
        ENGLISH_PAIRS,
    )
