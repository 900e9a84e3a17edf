"""Services that log a training while it runs, by the host's own callbacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

#: The folder of TensorBoard's files in the folder of the model.
LOG_FOLDER = "logs"

_TENSORBOARD = "tensorboard"


def report_arguments(services: Sequence[str], output: Path) -> dict[str, Any]:
    """Return the host's arguments for services, except for TensorBoard.

    Args:
        services: Their names.
        output: The folder of the model, by whose name a run is called.
    """
    others = [name for name in services if name != _TENSORBOARD]
    return {"report_to": others or "none", "run_name": output.name}


def report_callbacks(services: Sequence[str], output: Path) -> list[TrainerCallback]:
    """Return the callback of TensorBoard, which writes to the folder ``logs`` of the model.

    The host would write to the folder of checkpoints, which is removed at the end. The environment
    variable TENSORBOARD_LOGGING_DIR names another folder, as in the host.
    """
    if _TENSORBOARD not in services:
        return []
    callback = TensorBoardCallback()
    if callback.logging_dir is None:
        callback.logging_dir = str(output / LOG_FOLDER)
    return [callback]


@contextmanager
def closing_reports(services: Sequence[str]) -> Iterator[None]:
    """End what the host leaves open, so that the next training begins a run of its own."""
    try:
        yield
    finally:
        if "wandb" in services:
            import wandb

            wandb.finish()
