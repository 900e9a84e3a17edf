"""Generated queries made fit to be queries."""

from __future__ import annotations

import re
from collections.abc import Sequence

from beir_cocodr.data.generation.generated import Query

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# No tokenizer's tokens are so long on average; a text that is longer than its tokens allow is a defect.
_CHARACTERS_A_TOKEN = 16


def clean_queries(
    queries: Sequence[Sequence[Query]], max_length: int
) -> tuple[list[list[str]], dict[str, int]]:
    """The texts of generated queries on one line each, without control characters and surrounding space.

    A text of more than 16 characters a token is cut there.

    Args:
        queries: for each passage.
        max_length: the most tokens of a query.

    Returns:
        The texts, "" where nothing is left, and the counts ``generated`` (all), ``empty`` and ``cut`` (ended
        by a limit, the generator's or this one).
    """
    counts = {"generated": 0, "empty": 0, "cut": 0}
    cleaned: list[list[str]] = []
    for found in queries:
        texts = []
        for query in found:
            text = " ".join(_CONTROL.sub(" ", query.text).split())
            short = text[: _CHARACTERS_A_TOKEN * max_length].rstrip()
            counts["generated"] += 1
            counts["empty"] += not short
            counts["cut"] += bool(short) and (query.cut or short != text)
            texts.append(short)
        cleaned.append(texts)
    return cleaned, counts
