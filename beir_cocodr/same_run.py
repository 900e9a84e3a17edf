"""The one answer to "is this the same run?", for everything that is resumed, kept or replaced.

A run is known by its settings, a mapping of names to whatever JSON can express. Collections and
models appear in it by the hashes of their content. Two runs are the same if these are equal.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from beir_cocodr.errors import InputError, listed

#: The settings of a run: names to values as JSON has them.
Settings = Mapping[str, object]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_VALUE = 60


def as_read(settings: Settings) -> dict[str, object]:
    """Return settings as they look when read back from JSON; other objects become strings."""
    content: dict[str, object] = json.loads(json.dumps(settings, default=str))
    return content


def differences(before: Settings, now: Settings) -> list[str]:
    """Return the names of settings that differ, nested ones as ``options: finetune: epochs``."""
    return list(_changes(as_read(before), as_read(now)))


def check_same_run(
    where: str | Path,
    before: Settings,
    now: Settings,
    way_out: str = "choose another --output",
) -> None:
    """Check that a folder or file belongs to the run that is asked for.

    Args:
        where: the folder or file, for the message.
        before: the settings on record there.
        now: the settings that are asked for.
        way_out: the alternative to asking for the same settings.

    Raises:
        InputError: settings differ; it names them, with both values.

    Example:
        >>> from beir_cocodr.same_run import check_same_run
        >>> try:
        ...     check_same_run("model", {"epochs": 1, "seed": 0}, {"epochs": 2, "seed": 0})
        ... except ValueError as error:
        ...     print(str(error).partition(";")[0])
        model was begun with other settings (epochs 1 there, 2 now)
    """
    changes = _changes(as_read(before), as_read(now))
    if changes:
        values = []
        for name, (then, value) in changes.items():
            values.append(f"{name} {then} there, {value} now")
        raise InputError(
            f"{where} was begun with other settings ({listed(values)}); "
            f"use the same ones, or {way_out}"
        )


def _changes(
    before: Settings,
    now: Settings,
) -> dict[str, tuple[str, str]]:
    """Return the settings that differ, each with both values as a message shows them."""
    changes = {}
    for name in {**before, **now}:
        then = before.get(name)
        value = now.get(name)
        if isinstance(then, Mapping) and isinstance(value, Mapping):
            for inner, values in _changes(then, value).items():
                changes[f"{name}: {inner}"] = values
        elif then != value:
            changes[name] = (_shown(then), _shown(value))
    return changes


def _shown(value: object) -> str:
    if isinstance(value, str) and _SHA256.fullmatch(value):
        return value[:16]
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[:_LONGEST_VALUE]}..."
