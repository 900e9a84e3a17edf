"""Training stops at the first loss or gradient that is not a number."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from beir_cocodr.errors import InputError
from beir_cocodr.files import write_text
from beir_cocodr.ranks import rank

_NAMED = 5


class NonFiniteTraining(InputError):
    """A loss or gradient that is NaN or infinite; nothing after it would mean anything."""


class FiniteGuard(TrainerCallback):
    """Checks every loss before its backward, and every gradient before the weights move by it.

    The message names the step, the examples of the batch and the last good checkpoint; all examples stand in
    ``nonfinite.json`` in the output folder.

    Args:
        output: the output folder.
        checkpoint: gives the newest complete checkpoint, if any.
        names: ids of examples by row number.
    """

    def __init__(
        self,
        output: Path,
        checkpoint: Callable[[], Path | None],
        names: Callable[[Sequence[int]], list[str]] | None,
    ) -> None:
        self.output, self.checkpoint, self.names = output, checkpoint, names
        self.step = 0
        self.rows: list[int] = []
        self.scaled = False

    def check_loss(self, loss: torch.Tensor) -> None:
        if not torch.isfinite(loss.detach()).all():
            self._stop(f"the loss is {loss.detach().float().mean().item()}")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step = state.global_step + 1

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if self.scaled:
            return  # float16's loss scaler looks for overflows itself, and skips such a step
        norms = [p.grad.detach().norm() for p in model.parameters() if p.grad is not None]
        if norms and not torch.isfinite(torch.stack(norms)).all():
            self._stop("the loss is finite, its gradient is not")

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if control.should_save and not all(weight.isfinite().all() for weight in model.parameters()):
            self._stop("the loss and its gradient are finite, the weights after the step are not")

    def _stop(self, what: str) -> None:
        examples = self.names(self.rows) if self.names is not None else []
        last = self.checkpoint()
        place = self.output / f"nonfinite{f'-{rank()}' if rank() else ''}.json"
        found = {
            "step": self.step,
            "what": what,
            "examples": examples,
            "last_good_checkpoint": None if last is None else str(last),
        }
        write_text(place, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        more = f" and {len(examples) - _NAMED} more" * (len(examples) > _NAMED)
        batch = f", for the batch {', '.join(examples[:_NAMED])}{more}" if examples else ""
        good = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        raise NonFiniteTraining(
            f"step {self.step}: {what}{batch} (all in {place}); {good}: "
            "start again with a lower learning rate, or look at these texts"
        )
