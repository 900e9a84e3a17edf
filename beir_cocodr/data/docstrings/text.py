"""Split a documentation text into a query (its summary) and a passage (all the rest)."""

from __future__ import annotations

import inspect
import re

MIN_QUERY_WORDS = 3
MAX_QUERY_WORDS = 40  # longer "summaries" are lists and run-on texts
MIN_PASSAGE_WORDS = 20

_ROLE = re.compile(r":([a-z]+(?::[a-z]+)*):`([^`]*)`", re.IGNORECASE)
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?")
_LITERAL = re.compile(r"(`{1,2})([^`]+)\1_?")
_DIRECTIVE = re.compile(r"^(\s*)\.\. +([\w-]+(?::[\w-]+)?)::?(?:\s+(.*))?$")
_LEADING_DIRECTIVE = re.compile(r"\.\. +[\w-]+::.*(?:\n[ \t]+.*|\n(?=\s))*(?:\n|\Z)")
_SILENT_DIRECTIVES = ("version", "math", "code", "plot", "index")  # their argument is for machines
_RULE = re.compile(r"^\s*([-=~^*#])\1{2,}\s*$")
_PLACEHOLDER = re.compile(r"^\s*(%\(\w+\)s|\$?\{\w*\})\s*$")
_TARGET = re.compile(r"^\s*\.\. (?:_[^:]+:|\|)")
# The object itself is deprecated: said first, or by a directive before the first section.
_DEPRECATED = re.compile(r"\A\W*deprecated\b|^\.\. deprecated::", re.IGNORECASE | re.MULTILINE)
_SECTION_RULE = re.compile(r"^-{3,}\s*$", re.MULTILINE)
_CALL = re.compile(r"\s*[A-Za-z_][\w.]*\s*\(")
_SIGNATURE_TAIL = re.compile(r"\s*(?:[-=]>.*|:|--)?\s*")
# Words whose full stop does not end a sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|eqs?|fig|resp|approx|incl|no|al|[A-Z])\.$", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s)")
_SECTION = re.compile(
    r"^(parameters?|args?|arguments?|keyword arg(ument)?s|attributes|methods|inputs?|outputs?|returns?"
    r"|yields?|raises?|warnings?|notes?|examples?|references?|see also|usage|shape|todo|summary)\s*:{0,2}$",
    re.IGNORECASE,
)


def split_docstring(text: str) -> tuple[str, str] | str:
    """Split a text into its summary and the rest.

    The summary is the first sentence of the first paragraph that is neither a call signature nor a
    section; a directive that opens the text (a warning, a note) goes to the end of the passage. Both sides
    read as on the rendered page: without underlines, role and directive names, back quotes, link targets
    and placeholders on lines of their own. White space inside the summary is folded; the passage keeps its
    lines.

    Args:
        text: a documentation text as written in the source.

    Returns:
        (query, passage), or the reason for leaving the text out: ``deprecated``, ``no summary``,
        ``short summary`` (under 3 words), ``long summary`` (over 40 words), ``short passage`` (under 20
        words), ``summary in passage`` (the passage says the summary again, word for word), ``not Unicode``
        (half a surrogate pair, which UTF-8 cannot hold).
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "not Unicode"
    text = inspect.cleandoc(text)
    if _DEPRECATED.search(_SECTION_RULE.split(text, maxsplit=1)[0]):
        return "deprecated"
    summary, passage = _first_sentence(_without_marks(_sentence_first(_without_signatures(text))).strip())
    if not summary:
        return "no summary"
    if len(summary.split()) < MIN_QUERY_WORDS:
        return "short summary"
    if len(summary.split()) > MAX_QUERY_WORDS:
        return "long summary"
    if len(passage.split()) < MIN_PASSAGE_WORDS:
        return "short passage"
    return "summary in passage" if fold(summary) in fold(passage) else (summary, passage)


def fold(text: str) -> str:
    """Text as it counts for equality: one space between words, no case, no full stop at the end."""
    return " ".join(text.split()).casefold().rstrip(".")


def _without_marks(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if _RULE.match(line) or _PLACEHOLDER.match(line) or _TARGET.match(line):
            continue
        if directive := _DIRECTIVE.match(line):
            indent, kind, argument = directive.groups()
            line = "" if kind.startswith(_SILENT_DIRECTIVES) else f"{indent}{argument or ''}"
        lines.append(re.sub(r"^(\s*)\.\. \[", r"\1[", line.rstrip()))
    text = _ROLE.sub(_shown, "\n".join(lines))
    text = _LINK.sub(lambda link: link[1], text)
    text = _LITERAL.sub(lambda literal: literal[2].removeprefix("~"), text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text)


def _shown(role: re.Match[str]) -> str:
    """What a reader sees of ``:role:`text <target>``` or ``:role:`~package.name```."""
    if role[1] == "math":
        return role[2]
    text = re.sub(r"\s*<[^<>]*>$", "", role[2])
    return text.rpartition(".")[2] if text.startswith("~") else text.lstrip(".!")


def _without_signatures(text: str) -> str:
    """Text without leading call signatures, ``name(...) -> type``, as C objects carry them."""
    while opening := _CALL.match(text):
        end = _closing(text, opening.end())
        tail, _, rest = text[end:].partition("\n")
        if end < 0 or not _SIGNATURE_TAIL.fullmatch(tail):
            break
        text = re.sub(r"\A--\n", "", rest)  # the line that ends a signature for the C compiler
    return text


def _closing(text: str, start: int) -> int:
    """Position after the bracket that closes the one before ``start``; -1 where none does."""
    depth = 1
    for position in range(start, len(text)):
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if depth == 0:
            return position + 1
    return -1


def _sentence_first(text: str) -> str:
    """Text with the directives that open it (a warning, a note) moved to its end."""
    text, directives = text.lstrip(), []
    while opening := _LEADING_DIRECTIVE.match(text):
        directives.append(opening[0].rstrip())
        text = text[opening.end() :].lstrip()
    return "\n\n".join([text.rstrip(), *directives]) if text else ""


def _first_sentence(text: str) -> tuple[str, str]:
    """The first sentence on one line, and all that follows it; "" where the text opens with no sentence."""
    block, rest = _first_block(text)
    if not block or block.count("=") > 2:  # a list of arguments with their defaults
        return "", text
    for end in _SENTENCE_END.finditer(block):
        if not _ABBREVIATION.search(block[: end.start() + 1]):
            return " ".join(block[: end.end()].split()), f"{block[end.end() :]}{rest}".strip()
    return " ".join(block.split()).rstrip(":").rstrip(), rest.strip()


def _first_block(text: str) -> tuple[str, str]:
    """Lines up to the first that is blank, opens a section or is a doctest; and all that follows."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        bare = line.strip()
        if not bare or bare.startswith(">>>") or _SECTION.match(bare):
            return "".join(lines[:number]), "".join(lines[number:])
    return text, ""
