"""Who may train into a folder: an output belongs to one plan."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.files import output_folder, write_text
from beir_cocodr.models.loading import weights_sha256
from beir_cocodr.ranks import rank
from beir_cocodr.training.options import TrainingOptions
from beir_cocodr.training.processes import on_main
from beir_cocodr.training.record import RECORD_FILE, read_record

CHECKPOINTS = "checkpoints"
_PLAN_FILE = "plan.json"


def training_plan(
    stage: str,
    base: str,
    model: Any,
    encoder: dict[str, Any],
    options: TrainingOptions,
    seen: list[dict[str, Any]],
) -> dict[str, Any]:
    """What makes two runs the same: stage, starting weights and how they are loaded, options, and data."""
    return {
        "stage": stage,
        "base": base,
        "base_sha256": weights_sha256(model),
        "encoder": {name: value for name, value in encoder.items() if value is not None and name != "device"},
        "options": asdict(options),
        "seen": seen,
    }


def claim_output(output: Path, resume: bool, plan: dict[str, Any]) -> dict[str, Any] | None:
    """Take ``output`` for a :func:`training_plan`; never writes over something else. To be called by all
    processes of a run.

    Returns:
        None where there is something to train, else the record of the model that is already there.

    Raises:
        InputError: the folder holds files and ``resume`` is off, or what it holds followed another plan, or
            is not from here.
    """
    return on_main(lambda: _claim(output, resume, plan))


def _claim(output: Path, resume: bool, plan: dict[str, Any]) -> dict[str, Any] | None:
    output_folder(output)
    record = read_record(output)
    if record is not None:
        if not resume:
            raise InputError(
                f"{output} already holds a trained model; choose another --output, or --resume to keep it"
            )
        _same_plan(output, record, plan)
        return record
    started = output / CHECKPOINTS / _PLAN_FILE
    if started.is_file() and resume:
        _same_plan(output, json.loads(started.read_text()), plan)
    elif any(path.is_file() for path in output.rglob("*")):
        way = "nothing in it can be resumed" if resume else "or --resume if it was interrupted"
        raise InputError(f"{output} is not empty; choose another --output, {way}")
    return None


@contextmanager
def started(output: Path, plan: dict[str, Any]) -> Iterator[None]:
    """Mark a claimed output as begun, so that what is prepared in it can be resumed.

    Bad input found on the way empties the folder again, if nothing was trained in it yet.
    """
    mark = output / CHECKPOINTS / _PLAN_FILE
    on_main(lambda: write_text(mark, json.dumps(plan, indent=2) + "\n"))
    try:
        yield
    except InputError:
        if rank() == 0 and not any([*output.rglob("checkpoint-*"), *output.rglob(RECORD_FILE)]):
            for path in output.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def _same_plan(output: Path, before: dict[str, Any], plan: dict[str, Any]) -> None:
    then, now = _content(before), _content(plan)
    if changed := [key for key in now if then.get(key) != now[key]]:
        raise InputError(
            f"{output} was started with other {', '.join(changed)}; "
            "resume with the same ones, or choose another --output"
        )


def _content(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without names and paths, which may change while the content stays."""
    kept = {key: plan.get(key) for key in ("stage", "episode", "base_sha256", "encoder", "options")}
    kept["seen"] = [{k: v for k, v in found.items() if k != "dataset"} for found in plan.get("seen", [])]
    content: dict[str, Any] = json.loads(json.dumps(kept))  # as it looks when read back
    return content
