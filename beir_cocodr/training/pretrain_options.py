"""Settings of pre-training, with the paper's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from beir_cocodr.errors import InputError
from beir_cocodr.training.options import TrainingOptions


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
