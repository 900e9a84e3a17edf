"""Encodings of text files: a byte order mark, UTF-8, and else a guess by charset-normalizer.

The guess about a short file is seldom certain, because many encodings can read the same few bytes.
Among those that fit, the encoding that most other files of the folder have is taken.
"""

import codecs
import re
from collections import Counter
from collections.abc import Sequence

#: The encodings that a guess chooses from; among equals the earlier one is taken.
CANDIDATES = (
    "cp1252",
    "gb18030",
    "cp932",
    "big5",
    "cp949",
    "cp1251",
    "cp1250",
    "koi8_r",
    "euc_jp",
    "cp1253",
    "cp1254",
    "cp1255",
    "cp1256",
    "tis_620",
    "utf_16_le",
    "utf_16_be",
)

#: What is said of a file that has NUL characters.
NUL = "NUL characters, as UTF-16 and UTF-32 have; convert the file to UTF-8"

# The mark of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_WIDE = ("utf_16_le", "utf_16_be")

# Bytes of a file that a guess looks at.
_SAMPLE = 1 << 16

# Control characters that no text has; tab, line feed, form feed, return and escape may occur.
_CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]"
)

#: A file of fewer bytes is short: many encodings fit it.
SHORT = 200

# By so much the figures of two encodings may differ where neither is the better guess: the share of
# odd characters (less is better), and how much the letters are those of a language.
_EQUAL_NOISE = 0.1
_EQUAL_COHERENCE = 0.1


def marked_encoding(data: bytes) -> str | None:
    """Return the encoding that a byte order mark names; None without a mark."""
    return next((encoding for mark, encoding in _MARKS if data.startswith(mark)), None)


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8 without NUL characters."""
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def begins_as_utf8(data: bytes) -> bool:
    """Return whether bytes are the beginning of UTF-8 without NUL characters.

    The last character may be cut in two.
    """
    if b"\0" in data:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return True


def decode(data: bytes) -> str:
    """Decode UTF-8, or what a byte order mark names.

    Raises:
        ValueError: the bytes are something else.
    """
    return without_nul(data.decode(marked_encoding(data) or "utf-8"))


def without_nul(text: str) -> str:
    """Return a text as it is, unless it has NUL characters.

    Raises:
        ValueError: it has some: it is UTF-16 or UTF-32 without a byte order mark, or no text.
    """
    if "\0" in text:
        raise ValueError(NUL)
    return text


def likely_encodings(data: bytes) -> tuple[str, ...]:
    """Return the encodings that fit bytes equally well, the most common first.

    Args:
        data: the beginning of a file that is not UTF-8 and has no byte order mark, or all of it.

    Returns:
        Names of encodings; only the first where the file is not short; none where the bytes are
        no text.
    """
    if b"\0" in data:
        return _wide_encodings(data)
    sample = _whole_lines(data)
    if _CONTROL_BYTES.search(sample):
        return ()
    fitting = _best_matches(sample, CANDIDATES)
    return fitting if len(data) < SHORT else fitting[:1]


def _wide_encodings(data: bytes) -> tuple[str, ...]:
    """Return the encoding of two or four bytes a character that fits bytes with NULs."""
    sample = data[:_SAMPLE]
    if 4 * sample.count(0) < len(sample) and sample.isascii():
        return ()  # of Latin text half would be NULs, and other text is not ASCII
    for encoding in ("utf_32_le", "utf_32_be"):
        if len(sample) % 4 == 0 and _is_text(sample, encoding):
            return (encoding,)
    if len(sample) % 2:
        return ()
    return _best_matches(sample, [name for name in _WIDE if _is_text(sample, name)])


def _is_text(data: bytes, encoding: str) -> bool:
    try:
        return _CONTROLS.search(data.decode(encoding)) is None
    except UnicodeDecodeError:
        return False


def _whole_lines(data: bytes) -> bytes:
    """Return the beginning of a file, cut at the end of a line: no character is cut in two."""
    if len(data) <= _SAMPLE:
        return data
    end = data.rfind(b"\n", 0, _SAMPLE) + 1
    return data[: end or _SAMPLE]


def _best_matches(data: bytes, candidates: Sequence[str]) -> tuple[str, ...]:
    """Return the candidates that the library finds best, in the order of the candidates."""
    from charset_normalizer import from_bytes

    if not candidates:
        return ()
    matches = from_bytes(data, cp_isolation=list(candidates), enable_fallback=False)
    best = matches.best()
    if best is None:
        return ()
    fitting: set[str] = set()
    for match in matches:
        is_as_clean = match.chaos <= best.chaos + _EQUAL_NOISE
        is_as_coherent = match.coherence >= best.coherence - _EQUAL_COHERENCE
        if is_as_clean and is_as_coherent:
            fitting.update(match.could_be_from_charset)
    return tuple(name for name in candidates if name in fitting)


class EncodingVotes:
    """The encodings of the files of a folder that are certain; they decide about the others."""

    def __init__(self) -> None:
        """Begin with no votes."""
        self._votes = Counter[str]()

    def add(self, encoding: str) -> None:
        """Count a file whose encoding is certain."""
        self._votes[encoding] += 1

    def choose(self, likely: Sequence[str]) -> str:
        """Return the encoding of a file: of those that fit, the one that most files have.

        Args:
            likely: what :func:`likely_encodings` returned, not empty.
        """
        return max(likely, key=lambda name: (self._votes[name], -likely.index(name)))


def as_utf8(data: bytes, encoding: str) -> bytes:
    """Return a text in UTF-8.

    Args:
        data: the text.
        encoding: its encoding.

    Raises:
        ValueError: the bytes are no text of the encoding.
    """
    return without_nul(data.decode(encoding)).encode()


def display_name(encoding: str) -> str:
    """Return the name of an encoding as people write it, such as "UTF-16-LE"."""
    return encoding.upper().replace("_", "-")
