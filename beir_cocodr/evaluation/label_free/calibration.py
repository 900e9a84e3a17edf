"""What labelled collections have taught about verdicts without labels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError

CALIBRATION_FILE = Path(__file__).with_name("calibration.json")
#: Counts that a calibration carries for pairs of one kind and of different kinds of models.
SAME_KIND, DIFFERENT_KINDS = "models of one kind", "models of different kinds"


@dataclass(frozen=True)
class Calibration:
    """Weights and threshold, and how often the rule was right.

    Attributes:
        weights: feature to weight.
        threshold: the least P for a verdict.
        collections: names of the labelled collections.
        corpora: content hashes of their documents.
        trust: :data:`SAME_KIND` and :data:`DIFFERENT_KINDS` to counts of pairs: ``right``, ``wrong``,
            ``cannot tell`` where labels tell a difference (paired t-test, p < 0.05), ``claimed``, ``silent``
            where they tell none; each collection was judged by a rule fitted to the others.
        date: of the measurement.
    """

    weights: dict[str, float]
    threshold: float
    collections: list[str]
    corpora: list[str]
    trust: dict[str, dict[str, int]]
    date: str

    def statement(self, family: str, corpus_sha256: str | None = None) -> str:
        """How far to trust a verdict, for a person."""
        found = self.trust.get(family, {})
        right, wrong, silent = (found.get(name, 0) for name in ("right", "wrong", "cannot tell"))
        claimed, rightly_silent = found.get("claimed", 0), found.get("silent", 0)
        told = (
            f"For {family}, on {len(self.collections)} labelled collections, each judged by a rule fitted "
            f"to the others, the verdict was right in {right} of {right + wrong} pairs that it decided and "
            f"labels can tell apart, and left {silent} such pairs open; of {claimed + rightly_silent} pairs "
            f"that labels cannot tell apart it decided {claimed} ({self.date})."
        )
        if corpus_sha256 in self.corpora:
            told += " This collection is one of them, so the verdict here is no independent test."
        return told


NOT_CALIBRATED = (
    "The rule has not been calibrated on labelled collections, so nothing is known of how often it is right: "
    "estimators vote, and a verdict needs two votes and none against it."
)


def load_calibration(path: Path = CALIBRATION_FILE) -> Calibration | None:
    """The calibration in a file; None where the file says that there is none yet.

    Raises:
        InputError: the file is missing or not one of ours.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not content["calibrated"]:
            return None
        return Calibration(
            content["weights"],
            content["threshold"],
            content["collections"],
            content["corpora"],
            content["trust"],
            content["date"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no calibration ({error!r}); make it with benchmarks/verdict.py"
        ) from error
