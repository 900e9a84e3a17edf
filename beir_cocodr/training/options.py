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


@dataclass(frozen=True)
class PretrainOptions(TrainingOptions):
    """COCO, section 4.1 of the paper and appendix B: 8 epochs at 1e-4, global batches of about 2,048.

    Args:
        span_tokens: the most tokens of a span (published code: 30).
        flush_probability: chance that a span ends early after a sentence (published code: 0.1).
        max_length: tokens a span is cut to when encoded.
        mask_probability: share of masked tokens.
        mlm_weight: weight of the language-model losses beside the contrastive one; 0 leaves them out.
        n_head_layers, skip_from, late_mlm: the Condenser head.
        encoder_dropout: keep the encoder's dropout on (published COCO-DR: off).
        scale: factor on scores; None means 1 for dot product and 20 for cosine.
    """

    epochs: float = 8
    batch_size: int = 2048
    learning_rate: float = 1e-4
    span_tokens: int = 30
    flush_probability: float = 0.1
    max_length: int = 128
    mask_probability: float = 0.15
    mlm_weight: float = 1.0
    n_head_layers: int = 2
    skip_from: int | None = None
    late_mlm: bool = True
    encoder_dropout: bool = False
    scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 2:
            raise InputError("batch_size must be at least 2: spans are contrasted with other documents'")
        if not 1 <= self.span_tokens <= self.max_length - 2:
            raise InputError(
                f"span_tokens {self.span_tokens} must lie between 1 and max_length less two special tokens, "
                f"{self.max_length - 2}"
            )


@dataclass(frozen=True)
class FinetuneOptions(TrainingOptions):
    """InfoNCE over in-batch and BM25 negatives, redrawn each epoch.

    Args:
        negatives: hard negatives per query and step; 0 leaves in-batch negatives only.
        negative_depth: BM25 results that they are drawn from, known positives removed.
        scale: factor on scores; None means 1 for dot product and 20 for cosine.
    """

    negatives: int = 1
    negative_depth: int = 30
    scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.negatives < 0 or self.negative_depth < 1:
            raise InputError(
                f"negatives must be at least 0 and negative_depth at least 1, "
                f"not {self.negatives} and {self.negative_depth}"
            )
        if self.batch_size == 1 and not self.negatives:
            raise InputError("a batch of one query needs hard negatives: raise batch_size or negatives")
