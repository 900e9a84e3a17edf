"""How numbers are written on the page."""

from __future__ import annotations

from collections.abc import Sequence

MINUS = "−"


def signed(value: float, digits: int = 3) -> str:
    """With its sign, and a true minus."""
    return f"{value:+.{digits}f}".replace("-", MINUS)


def span(interval: Sequence[float] | None, digits: int = 3) -> str:
    """An interval of a difference; a dash where there is none."""
    if interval is None:
        return "–"
    return f"{signed(interval[0], digits)} to {signed(interval[1], digits)}"


def p_value(p: float | None, name: bool = False) -> str:
    """A p value; with ``name``, as in a sentence."""
    if p is None:
        return "one query, no test" if name else "–"
    if p < 0.001:
        return "p < 0.001" if name else "< 0.001"
    return f"p = {p:.3f}" if name else f"{p:.3f}"
