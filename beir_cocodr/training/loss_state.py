"""The state of a loss in checkpoints, where the host keeps only the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainerCallback

from beir_cocodr.ranks import rank

LOSS_FILE = "loss_state.safetensors"


class LossState(TrainerCallback):
    """Saves what a loss knows beside each checkpoint, and gives it back when training goes on.

    Args:
        loss: its own buffers and parameters are kept, those of its ``model`` are in the checkpoint already.
        checkpoint: where to go on from.
    """

    def __init__(self, loss: nn.Module, checkpoint: Path | None) -> None:
        self.loss, self.checkpoint = loss, checkpoint

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.checkpoint is not None:
            self.loss.load_state_dict(load_file(self.checkpoint / LOSS_FILE), strict=False)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if finish_step := getattr(self.loss, "finish_step", None):
            finish_step()
        if rank() == 0:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            unfinished = folder / f".{LOSS_FILE}"
            save_file(self._state(), unfinished)
            unfinished.replace(folder / LOSS_FILE)

    def _state(self) -> dict[str, Tensor]:
        whole = self.loss.state_dict()
        return {k: v.detach().cpu().clone() for k, v in whole.items() if not k.startswith("model.")}
