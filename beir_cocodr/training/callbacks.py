"""What training tells: its epoch to the data, its progress to a person."""

from __future__ import annotations

from typing import Any

from transformers import ProgressCallback, TrainerCallback


class EpochClock(TrainerCallback):
    """Holds the number of the running epoch for whoever draws data by it, also after a resume."""

    def __init__(self) -> None:
        self.epoch = 0

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.epoch = int((state.epoch or 0) + 1e-6)


class StderrProgress(ProgressCallback):
    """The host's progress bar with the loss beside it; the host itself prints losses to stdout."""

    training_bar: Any

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if self.training_bar is not None and logs and "loss" in logs:
            self.training_bar.set_postfix(loss=f"{float(logs['loss']):.4f}")

    def close(self) -> None:
        """End the bar's line, so that a message after it stands in a line of its own."""
        if self.training_bar is not None:
            self.training_bar.close()
            self.training_bar = None
