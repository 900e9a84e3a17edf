"""The kinds of queries that a generator can be asked for, each with its prompt's parts.

A new kind is a row of :data:`QUERY_KINDS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from beir_cocodr.errors import InputError
from beir_cocodr.io import text_sha256


@dataclass(frozen=True)
class QueryKind:
    """A kind of query.

    Args:
        instruction: What a language model is asked to write.
        label: The word before a query in a prompt that is continued.
        examples: A query of this kind for each passage of
            :data:`~beir_cocodr.generation.question_prompt.EXAMPLES`.
        lexical: What the generator without a model takes for it, "" if it has nothing.
    """

    instruction: str
    label: str
    examples: tuple[str, str, str]
    lexical: str = ""


_OWN_WORDS = "Use the language of the passage, and do not mention the passage."

#: The kinds of queries by the name that selects them.
QUERY_KINDS: dict[str, QueryKind] = {
    "questions": QueryKind(
        instruction=f"Write a question that the passage answers. {_OWN_WORDS}",
        label="Question",
        examples=(
            "Why does my boiler use more gas when the radiators run very hot?",
            "How much notice do I have to give to end the rental early?",
            "Why does oily fish turn bad so fast?",
        ),
    ),
    "claims": QueryKind(
        instruction="Write a claim in one sentence that the passage supports or refutes. "
        + _OWN_WORDS,
        label="Claim",
        examples=(
            "A boiler saves the most energy when its radiators stay lukewarm.",
            "A tenant cannot end the contract before five years have passed.",
            "Ice alone is enough to keep fatty fish fresh.",
        ),
        lexical="sentences",
    ),
    "keywords": QueryKind(
        instruction="Write the few keywords by which someone would look for the passage, without "
        "a sentence around them.",
        label="Keywords",
        examples=(
            "boiler efficiency low temperature heating",
            "early end of rental notice",
            "storing oily fish rancid",
        ),
        lexical="terms",
    ),
    "titles": QueryKind(
        instruction="Write a short title for the passage.",
        label="Title",
        examples=(
            "Why condensing boilers prefer cool radiators",
            "Ending a tenancy early",
            "How to keep oily fish fresh",
        ),
        lexical="titles",
    ),
}


def parse_kinds(names: str | None) -> tuple[str, ...]:
    """Return the kinds that are named, separated by commas.

    Raises:
        InputError: A kind is unknown, or named twice.
    """
    if names is None:
        return ()
    kinds = tuple(name.strip() for name in names.split(","))
    for kind in kinds:
        if kind not in QUERY_KINDS:
            raise InputError(
                f"query_kinds: {kind!r} is not a kind of query; choose from {','.join(QUERY_KINDS)}"
            )
        if kinds.count(kind) > 1:
            raise InputError(f"query_kinds names {kind} twice; name each kind once")
    return kinds


def kinds_in_turn(kinds: Sequence[str], text: str, count: int) -> list[str]:
    """Return the kind of each query of a passage.

    Every kind comes as often; with which kind the rest begins is decided by a hash of the text. So
    all kinds are about as frequent over many passages with one query each, too, and a passage keeps
    its kinds when other documents are added to the corpus or removed.

    Args:
        kinds: At least one kind.
        text: The passage.
        count: Queries of the passage.
    """
    rounds, rest = divmod(count, len(kinds))
    first = int(text_sha256(text), 16)
    remaining = [kinds[(first + turn) % len(kinds)] for turn in range(rest)]
    return list(kinds) * rounds + remaining
