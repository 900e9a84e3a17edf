"""Names of models that fit into a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

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
    kind = re.match(r"(lucene-)?(hybrid|rrf|feedback):", label)
    prefix = kind.group(0) if kind else ""
    rest = label[len(prefix) :]
    if "/" in rest and " " not in rest:
        rest = rest.rstrip("/").rsplit("/", 1)[-1] or rest
    name = prefix + rest
    return name if len(name) <= _MOST else f"{name[: _MOST // 2]}…{name[-_MOST // 2 + 1 :]}"
