"""Cluster weights, losses and sizes over the course of training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from beir_cocodr.files import write_text
from beir_cocodr.losses.cluster_loss import ClusterLoss
from beir_cocodr.ranks import rank

CLUSTER_LOG = "cluster_weights.jsonl"


class ClusterLog(TrainerCallback):
    """Writes a line of JSON every ``every`` steps: ``step``, and for each cluster its ``weights`` then, and
    since the line before the mean of its ``losses`` (null where it did not occur) and its ``examples``.

    Args:
        loss: whose clusters.
        file: the file; going on with a run drops its lines after the checkpoint.
        every: steps between lines.
    """

    def __init__(self, loss: ClusterLoss, file: Path, every: int) -> None:
        self.loss, self.file, self.every = loss, file, every

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if rank() == 0:
            lines = self.file.read_text().splitlines() if self.file.is_file() else []
            write_text(self.file, "".join(f"{line}\n" for line in lines if _before(line, state.global_step)))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.loss.finish_step()
        if state.global_step % self.every and state.global_step < state.max_steps:
            return
        loss = self.loss
        steps = loss.steps_seen.tolist()
        means = [total / n if n else None for total, n in zip(loss.loss_sums.tolist(), steps, strict=True)]
        line = {
            "step": state.global_step,
            "weights": loss.weights.tolist(),
            "losses": means,
            "examples": loss.examples_seen.tolist(),
        }
        for since in (loss.loss_sums, loss.steps_seen, loss.examples_seen):
            since.zero_()
        if rank() == 0:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _before(line: str, step: int) -> bool:
    """False for lines after ``step``, and for one that was being written when the run died."""
    try:
        return bool(json.loads(line)["step"] <= step)
    except ValueError:
        return False
