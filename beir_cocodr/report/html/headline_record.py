"""The record of the top of the page, which every kind of output has."""

from collections.abc import Sequence
from dataclasses import dataclass

CANNOT_TELL = "cannot tell"
NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Headline:
    """The top of the page.

    Attributes:
        verdict: "better", "worse", "no difference", "not worse", "better bet", "cannot tell" or
            "not judged".
        sentence: the verdict in one sentence.
        facts: the same as terms and values.
        notes: sentences that qualify it.
        reasons: the reasons of a recommendation.
        pair: labels a and b of the models that it is about.
    """

    verdict: str
    sentence: str
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    reasons: Sequence[str] = ()
    pair: tuple[str, str] | None = None
