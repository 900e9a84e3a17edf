"""What is lost from interpolation to extrapolation."""

from __future__ import annotations


def gap(interpolation: float, extrapolation: float) -> float | None:
    """(extrapolation − interpolation) / interpolation, negative for a loss; None where interpolation is 0.

    Source: Zhan et al., 2022, Tables 6 to 9.
    """
    return None if interpolation == 0 else (extrapolation - interpolation) / interpolation
