"""What kind of question a query asks, by its first word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_QUESTION_WORDS = ("what", "when", "who", "how", "where", "why", "which")
# The paper's list ends in "small", which opens no question; "shall" is one letter away.
_YES_NO_WORDS = frozenset("is was are were do does did have has had should can could would am shall".split())
YES_NO, DECLARATIVE = "yes/no", "declarative"

#: The nine types, in the order of the paper.
QUERY_TYPES = (*_QUESTION_WORDS, YES_NO, DECLARATIVE)

_FIRST_WORD = re.compile(r"[^\W_]+")


def query_type(query: str) -> str:
    """One of :data:`QUERY_TYPES`.

    The first word decides: the first run of letters and digits, in any case. So "What's new?" is "what", and
    a mark before it does not count. The list decides and not grammar: "isn't it" and "may I" open with none
    of its words and are declarative, as is everything in another language than English. Where the paper
    prints "small" among the words that open a yes-no question, "shall" is meant here ("may" would be as good
    a guess by grammar, but not by letters), and "small" opens none.

    Source: COCO-DR, appendix C.1; Ren et al., A Thorough Examination on Zero-shot Dense Retrieval, 2022.
    """
    found = _FIRST_WORD.search(query)
    word = found.group().lower() if found else ""
    if word in _QUESTION_WORDS:
        return word
    return YES_NO if word in _YES_NO_WORDS else DECLARATIVE


def query_type_counts(queries: Iterable[str]) -> dict[str, int]:
    """How many queries are of each of the nine types, in their order, with those that no query is of."""
    counts = Counter(map(query_type, queries))
    return {name: counts[name] for name in QUERY_TYPES}
