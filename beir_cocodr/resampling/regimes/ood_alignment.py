"""Whether a regime orders models as collections outside the distribution do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

# Two points always lie on a line.
_FEWEST = 3


def ood_alignment(regime: Sequence[float], outside: Sequence[float]) -> dict[str, Any]:
    """Spearman's ρ and Kendall's τ-b, with two-sided p-values, over a set of models.

    Args:
        regime: (m,) scores of the models in a regime.
        outside: (m,) their scores on another collection.

    Returns:
        ``models``, ``spearman``, ``spearman_p``, ``kendall``, ``kendall_p``; None where fewer than three
        models or constant scores leave nothing to correlate.

    Source: Zhan et al., 2022, section 4.2 and Table 5.
    """
    if len(regime) != len(outside):
        raise ValueError(f"{len(regime)} scores in the regime and {len(outside)} outside")
    found: dict[str, Any] = {"models": len(regime)}
    found |= dict.fromkeys(("spearman", "spearman_p", "kendall", "kendall_p"))
    if len(regime) >= _FEWEST and np.ptp(regime) > 0 and np.ptp(outside) > 0:
        for name, test in (("spearman", stats.spearmanr), ("kendall", stats.kendalltau)):
            result = test(regime, outside)
            found[name], found[f"{name}_p"] = float(result.statistic), float(result.pvalue)
    return found
