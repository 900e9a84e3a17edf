"""The text of a docstring as a query, its summary, and a passage, the rest."""

import inspect
import re

# Longer "summaries" are lists and run-on texts.
MIN_QUERY_WORDS = 3
MAX_QUERY_WORDS = 40
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

# The object itself is deprecated: in the first word, or by a directive before the first section.
_DEPRECATED = re.compile(
    r"\A\W*deprecated\b|^\.\. deprecated::",
    re.IGNORECASE | re.MULTILINE,
)
_SECTION_RULE = re.compile(r"^-{3,}\s*$", re.MULTILINE)
_CALL = re.compile(r"\s*[A-Za-z_][\w.]*\s*\(")
_SIGNATURE_TAIL = re.compile(r"\s*(?:[-=]>.*|:|--)?\s*")

# Words whose full stop does not end a sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|eqs?|fig|resp|approx|incl|no|al|[A-Z])\.$",
    re.I,
)
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s)")
_SECTION = re.compile(
    r"^(parameters?|args?|arguments?|keyword arg(ument)?s|attributes|methods|inputs?|outputs?"
    r"|returns?|yields?|raises?|warnings?|notes?|examples?|references?|see also|usage|shape|todo"
    r"|summary)\s*:{0,2}$",
    re.IGNORECASE,
)


def split_docstring(text: str) -> tuple[str, str] | str:
    """Split a docstring into its summary and the rest.

    The summary is the first sentence of the first paragraph that is neither a call signature nor a
    section; a directive that opens the text (a warning, a note) goes to the end of the passage.
    Both sides read as on the rendered page: without underlines, role and directive names, back
    quotes, link targets and placeholders on lines of their own. White space inside the summary is
    folded; the passage keeps its lines.

    Returns:
        Query and passage, or the reason to leave the text out: ``deprecated``, ``no summary``,
        ``short summary`` (under 3 words), ``long summary`` (over 40 words), ``short passage``
        (under 20 words), ``summary in passage`` (the passage repeats it word for word), ``not
        Unicode`` (half a surrogate pair, which UTF-8 cannot hold).
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "not Unicode"
    text = inspect.cleandoc(text)
    if _DEPRECATED.search(_SECTION_RULE.split(text, maxsplit=1)[0]):
        return "deprecated"
    sentence_first = _move_directives_to_end(_drop_signatures(text))
    summary, passage = _split_first_sentence(_drop_marks(sentence_first).strip())
    summary_words = len(summary.split())
    if not summary:
        return "no summary"
    if summary_words < MIN_QUERY_WORDS:
        return "short summary"
    if summary_words > MAX_QUERY_WORDS:
        return "long summary"
    if len(passage.split()) < MIN_PASSAGE_WORDS:
        return "short passage"
    if fold(summary) in fold(passage):
        return "summary in passage"
    return summary, passage


def fold(text: str) -> str:
    """Return a text as equality compares it: without case, double spaces and last full stops."""
    return " ".join(text.split()).casefold().rstrip(". ")


def _drop_marks(text: str) -> str:
    """Remove the marks of reStructuredText, which the rendered page does not show."""
    lines = []
    for line in text.splitlines():
        is_mark = _RULE.match(line) or _PLACEHOLDER.match(line) or _TARGET.match(line)
        if is_mark:
            continue
        directive = _DIRECTIVE.match(line)
        if directive:
            indent, kind, argument = directive.groups()
            line = ""
            if not kind.startswith(_SILENT_DIRECTIVES):
                line = f"{indent}{argument or ''}"
        without_dots = re.sub(r"^(\s*)\.\. \[", r"\1[", line.rstrip())
        lines.append(without_dots)
    text = _ROLE.sub(_role_text, "\n".join(lines))
    text = _LINK.sub(lambda link: link[1], text)
    text = _LITERAL.sub(lambda literal: literal[2].removeprefix("~"), text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text)


def _role_text(role: re.Match[str]) -> str:
    """Return the visible text of ``:role:`text <target>``` or ``:role:`~package.name```."""
    if role[1] == "math":
        return role[2]
    text = re.sub(r"\s*<[^<>]*>$", "", role[2])
    if text.startswith("~"):
        return text.rpartition(".")[2]
    return text.lstrip(".!")


def _drop_signatures(text: str) -> str:
    """Remove leading call signatures, ``name(...) -> type``, which C objects have."""
    while True:
        opening = _CALL.match(text)
        if opening is None:
            return text
        end = _closing_bracket(text, opening.end())
        tail, _, rest = text[end:].partition("\n")
        if end < 0 or not _SIGNATURE_TAIL.fullmatch(tail):
            return text
        # This line ends a signature for the C compiler.
        text = re.sub(r"\A--\n", "", rest)


def _closing_bracket(text: str, start: int) -> int:
    """Return the position after the bracket that closes the one before ``start``; -1 for none."""
    depth = 1
    for position in range(start, len(text)):
        if text[position] in "([{":
            depth += 1
        elif text[position] in ")]}":
            depth -= 1
        if depth == 0:
            return position + 1
    return -1


def _move_directives_to_end(text: str) -> str:
    """Move the directives that open a text (a warning, a note) to its end."""
    text = text.lstrip()
    directives = []
    while True:
        opening = _LEADING_DIRECTIVE.match(text)
        if opening is None:
            break
        directives.append(opening[0].rstrip())
        text = text[opening.end() :].lstrip()
    if text:
        return "\n\n".join([text.rstrip(), *directives])
    return ""


def _split_first_sentence(text: str) -> tuple[str, str]:
    """Return the first sentence on one line, and all that follows it.

    The sentence is "" where the text begins with something else.
    """
    block, rest = _split_first_block(text)
    is_argument_list = block.count("=") > 2  # arguments with their defaults
    if not block or is_argument_list:
        return "", text
    for end in _SENTENCE_END.finditer(block):
        with_full_stop = block[: end.start() + 1]
        if _ABBREVIATION.search(with_full_stop):
            continue
        sentence = block[: end.end()]
        following = f"{block[end.end() :]}{rest}"
        return " ".join(sentence.split()), following.strip()
    sentence = " ".join(block.split())
    return sentence.rstrip(":").rstrip(), rest.strip()


def _split_first_block(text: str) -> tuple[str, str]:
    """Split a text before the first line that is blank, opens a section or is a doctest."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        content = line.strip()
        if not content or content.startswith(">>>") or _SECTION.match(content):
            block = "".join(lines[:number])
            rest = "".join(lines[number:])
            return block, rest
    return text, ""
