"""What a language model wrote, as a query: without marks around it, or refused."""

import re

from beir_cocodr.data.text import without_thoughts, words

# Marks that models put around a query, a passage that the query speaks of, and the fewest words of
# a query.
_AROUND = re.compile(
    r"^(?:query|question|claim|keywords|title|q)\s*[:.]\s*|^[\"'`*\-\s]+|[\"'`*\s]+$",
    re.IGNORECASE,
)
_ABOUT_THE_TEXT = re.compile(
    r"\b(?:this|the|above|given|following) (?:passage|text|paragraph|excerpt|article)\b",
    re.IGNORECASE,
)
_FEWEST_WORDS = 2


def clean_question(text: str) -> str:
    """Return the query in what a model wrote, without thoughts, labels and marks around it."""
    lines = without_thoughts(text).splitlines()
    line = next((line for line in lines if line.strip()), "")
    before = ""
    while line != before:
        before = line
        line = _AROUND.sub("", line)
    return line


def is_question(text: str) -> bool:
    """Return false for a text that is too short or speaks of the passage that it was made from."""
    return len(words(text)) >= _FEWEST_WORDS and not _ABOUT_THE_TEXT.search(text)
