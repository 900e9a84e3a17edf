"""Who may generate into a folder: an output belongs to one plan."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from beir_cocodr.data.generation.record import GENERATION_FILE, read_generation
from beir_cocodr.data.generation.shards import SHARDS
from beir_cocodr.errors import InputError
from beir_cocodr.files import output_folder, write_text

_PLAN_FILE, _LOCK = "plan.json", ".generation.lock"
# Names and paths may change while the content stays: hashes stand beside them.
_NAMES = {"dataset": ("name", "counts"), "generator": ("name",), "settings": ("tokenizer",)}


def claim_generation(output: Path, plan: dict[str, Any]) -> dict[str, Any] | None:
    """Take ``output`` for a plan, together with other processes that follow the same one.

    A plan has ``dataset``, ``generator``, ``tokenizer_sha256`` and ``settings``, which decide what is
    generated, and ``selection``, which only decides what stays: unfinished work goes on under another one.

    Returns:
        None where there is something to do, else the record of what is already there.

    Raises:
        InputError: the folder holds something else, or was begun or finished under another plan.
    """
    output_folder(output)
    if (output / GENERATION_FILE).is_file():
        record = read_generation(output)
        _same(output, record, plan, [*_generating(plan), "selection"])
        tidy(output)  # after a run that died as it finished
        return record
    begun = output / SHARDS / _PLAN_FILE
    if not begun.is_file() and _strangers(output):
        raise InputError(
            f"{output} is not empty, and no queries were generated in it; choose another --output"
        )
    with one_at_a_time(output):
        if begun.is_file():
            _same(output, json.loads(begun.read_text(encoding="utf-8")), plan, _generating(plan))
        else:
            write_text(begun, json.dumps(plan, indent=2, ensure_ascii=False) + "\n")
    return None


def _strangers(output: Path) -> bool:
    """Whether a folder without a plan holds anything that is not of a process that just begins or died so."""
    return any(path.name not in (SHARDS, _LOCK) for path in output.iterdir()) or any(
        not path.name.startswith(f".{_PLAN_FILE}.") for path in (output / SHARDS).glob("*")
    )


@contextmanager
def one_at_a_time(output: Path) -> Iterator[None]:
    """Hold an output against other processes; one that dies lets go."""
    with FileLock(output / _LOCK):
        yield


def tidy(output: Path) -> None:
    """Remove what only unfinished work needs."""
    shutil.rmtree(output / SHARDS, ignore_errors=True)
    (output / _LOCK).unlink(missing_ok=True)


def _generating(plan: dict[str, Any]) -> list[str]:
    return [key for key in plan if key != "selection"]


def _same(output: Path, before: dict[str, Any], plan: dict[str, Any], keys: list[str]) -> None:
    changed = []
    for key in keys:
        then, now = before.get(key), json.loads(json.dumps(plan[key]))
        if isinstance(now, dict) and isinstance(then, dict):
            names = [name for name in now if name not in _NAMES.get(key, ())]
            changed += [f"{key}: {name}" for name in names if then.get(name) != now[name]]
        elif then != now:
            changed.append(key)
    if changed:
        raise InputError(
            f"{output} was begun with another plan ({', '.join(changed)}); use the same one, "
            "or choose another --output"
        )
