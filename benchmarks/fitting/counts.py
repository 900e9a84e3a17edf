"""Counts of how often intervals hold and decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from beir_cocodr.evaluation.few_labels import NORMAL
from fitting.labelled_pairs import Kinds
from fitting.left_out import MARGIN, Predicted

#: Differences beyond these are large and very large.
LARGE = 0.03
VERY_LARGE = 0.05

#: A labelled difference beyond so many standard errors is significant.
_SIGNIFICANT = 1.96


def count_trust(
    predictions: Iterable[Predicted], choose: Callable[[Kinds], bool] | None = None
) -> dict[str, int]:
    """Count how often intervals hold and decide, as a calibration records it.

    Args:
        predictions: The predictions.
        choose: Picks pairs by the kinds of a and b. Default: all pairs.
    """
    counts: Counter[str] = Counter()
    for predicted in predictions:
        pairs = predicted.pairs
        if choose is None:
            chosen = np.ones(len(pairs.models), bool)
        else:
            chosen = np.array([choose(kinds) for kinds in pairs.kinds], bool)
        counts.update(_count(predicted, chosen), collections=int(chosen.any()))
    return dict(counts)


def _count(predicted: Predicted, chosen: npt.NDArray[np.bool_]) -> dict[str, int]:
    pairs = predicted.pairs
    size = np.abs(pairs.differences)
    decided = predicted.decided & chosen
    is_right = np.sign(predicted.expected) == np.sign(pairs.differences)
    is_significant = size > _SIGNIFICANT * pairs.errors
    is_large = chosen & (size > LARGE) & is_significant
    is_very_large = chosen & (size > VERY_LARGE) & is_significant
    is_equal = chosen & (size <= MARGIN)
    nothing = predicted.no_difference & chosen & ~predicted.decided
    is_different = size > MARGIN + NORMAL * pairs.errors
    return {
        "pairs": int(chosen.sum()),
        "covered": int((predicted.covered & chosen).sum()),
        "decided": int(decided.sum()),
        "right": int((decided & is_right).sum()),
        "large": int(is_large.sum()),
        "large_decided": int((is_large & predicted.decided).sum()),
        "very_large": int(is_very_large.sum()),
        "very_large_decided": int((is_very_large & predicted.decided).sum()),
        "equal": int(is_equal.sum()),
        "equal_decided": int((is_equal & predicted.decided).sum()),
        "no_difference": int(nothing.sum()),
        "no_difference_wrong": int((nothing & is_different).sum()),
    }


def reliability(predictions: Sequence[Predicted], bins: int = 10) -> list[dict[str, float]]:
    """Compare P(better) with the share of pairs in which labels put b in front.

    Each pair counts in both directions.
    """
    chances = [difference.chance for one in predictions for difference in one.differences]
    chance = np.array(chances)
    true = np.concatenate([one.pairs.differences for one in predictions])
    chance = np.concatenate([chance, 1 - chance])
    is_better = np.concatenate([true > 0, true < 0])
    bin_of = np.minimum((chance * bins).astype(int), bins - 1)
    rows = []
    for number in range(bins):
        inside = bin_of == number
        if inside.any():
            rows.append(
                {
                    "predicted": float(chance[inside].mean()),
                    "observed": float(is_better[inside].mean()),
                    "pairs": int(inside.sum() // 2),
                }
            )
    return rows
