"""Text that a document may hold.

What a collection is called on the page.

How numbers are written on the page.

Names of models that fit into a table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from beir_cocodr.models.spec import ModelSpec

# What neither HTML nor XML may hold, even as a reference.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def allowed_text(text: str) -> str:
    """The text with U+FFFD for every character that is not allowed, so that it is seen; keeps its type."""
    return type(text)(_FORBIDDEN.sub("\ufffd", text)) if _FORBIDDEN.search(text) else text


def collection_name(dataset: str) -> str:
    """The last part of a path; the name of a collection that has one (``irds:ID``, ``apidocs/DOMAIN``)."""
    if dataset.startswith(("irds:", "apidocs/")):
        return dataset
    path = Path(dataset)
    is_path = path.is_absolute() or dataset.startswith((".", "~")) or len(path.parts) > 2
    return path.name or dataset if is_path else dataset


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


_MOST = 40


def short_names(labels: Iterable[str]) -> dict[str, str]:
    """Label to a short name: of a path its last part, with ``hybrid:`` and the like before it.

    Names that would be equal stay as long as they are.
    """
    labels = list(labels)
    names = {label: _short(label) for label in labels}
    times = Counter(names.values())
    return {label: name if times[name] == 1 else label for label, name in names.items()}


def _short(label: str) -> str:
    spec = ModelSpec.parse(label)
    prefix, rest = spec.prefix, spec.encoder
    if "/" in rest and " " not in rest:
        rest = rest.rstrip("/").rsplit("/", 1)[-1] or rest
    name = prefix + rest
    return name if len(name) <= _MOST else f"{name[: _MOST // 2]}…{name[-_MOST // 2 + 1 :]}"
