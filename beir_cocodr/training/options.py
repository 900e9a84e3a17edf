"""What every training command takes, with the papers' defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from beir_cocodr.errors import InputError


@dataclass(frozen=True)
class TrainingOptions:
    """Settings that all training stages share.

    Args:
        max_steps: optimiser steps; -1 trains for ``epochs``.
        epochs: passes over the data.
        batch_size: examples per step.
        mini_batch_size: texts embedded at a time by gradient caching; a batch that fits is not cached.
        learning_rate: peak of a linear schedule.
        warmup: share of the steps that the schedule rises.
        weight_decay, max_grad_norm: AdamW's decay and the gradient norm that is clipped to.
        seed: of data order, sampling and dropout.
        save_steps: steps between checkpoints; None means a tenth of the run, at most 500.
    """

    max_steps: int = -1
    epochs: float = 1
    batch_size: int = 32
    mini_batch_size: int = 32
    learning_rate: float = 2e-5
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    seed: int = 42
    save_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "mini_batch_size", "learning_rate"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("seed", "warmup", "weight_decay", "max_grad_norm"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, it is {getattr(self, name)}")
        if self.max_steps == 0 or self.max_steps < -1:
            raise InputError(f"max_steps must be positive, or -1 for whole epochs, not {self.max_steps}")

    def with_overrides(self, **overrides: Any) -> Self:
        """A copy in which every override that is not None stands."""
        return type(self)(**asdict(self) | {k: v for k, v in overrides.items() if v is not None})
