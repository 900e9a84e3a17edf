"""The guard that stops a training at the first loss, gradient or weight that is not finite."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from beir_cocodr.distributed import rank
from beir_cocodr.errors import InputError, listed
from beir_cocodr.io import write_text


class NonFiniteTraining(InputError):
    """A loss, gradient or weight is NaN or infinite; nothing after it would mean anything."""


class FiniteGuard(TrainerCallback):
    """Checks every loss before its backward, and every gradient before the weights move by it.

    The message names the step, the examples of the batch, and the newest complete checkpoint, if
    there is one; ``nonfinite.json`` in the output folder lists all examples.

    Args:
        output: the output folder.
        checkpoint: gives the newest complete checkpoint.
        names: gives the ids of examples by row number; None if they have none.
    """

    def __init__(
        self,
        output: Path,
        checkpoint: Callable[[], Path | None],
        names: Callable[[Sequence[int]], list[str]] | None,
    ) -> None:
        """Start before the first step."""
        self.output = output
        self.checkpoint = checkpoint
        self.names = names
        self.step = 0
        self.rows: list[int] = []
        self.scaled = False

    def check_loss(self, loss: torch.Tensor) -> None:
        """Check the loss of a batch.

        Raises:
            NonFiniteTraining: It is NaN or infinite.
        """
        if not torch.isfinite(loss.detach()).all():
            self._stop(f"the loss is {loss.detach().float().mean().item()}")

    def on_step_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Take over the number of the step."""
        self.step = state.global_step + 1

    def on_pre_optimizer_step(
        self, args: object, state: object, control: object, model: Any = None, **kwargs: object
    ) -> None:
        """Check the gradients."""
        if self.scaled:
            return  # float16's loss scaler looks for overflows itself, and skips such a step
        norms = [p.grad.detach().norm() for p in model.parameters() if p.grad is not None]
        if norms and not torch.isfinite(torch.stack(norms)).all():
            self._stop("the loss is finite, but its gradient is not")

    def on_step_end(
        self,
        args: object,
        state: object,
        control: TrainerControl,
        model: Any = None,
        **kwargs: object,
    ) -> None:
        """Check the weights before they are saved."""
        if not control.should_save:
            return
        if not all(weight.isfinite().all() for weight in model.parameters()):
            self._stop(
                "the loss and its gradient are finite, but the weights after the step are not"
            )

    def _stop(self, reason: str) -> None:
        examples = []
        if self.names is not None:
            examples = self.names(self.rows)
        last = self.checkpoint()
        suffix = ""
        if rank():
            suffix = f"-{rank()}"
        file = self.output / f"nonfinite{suffix}.json"
        report = {
            "step": self.step,
            "what": reason,
            "examples": examples,
            "last_good_checkpoint": None if last is None else str(last),
        }
        write_text(file, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        batch = ""
        if examples:
            batch = f", for the batch {listed(examples)}"
        saved = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        raise NonFiniteTraining(
            f"step {self.step}: {reason}{batch} (all in {file}); {saved}: "
            "start again with a lower learning rate, or look at these texts"
        )
