"""Settings of pre-training, with the paper's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from beir_cocodr.errors import InputError
from beir_cocodr.training.options import TrainingOptions

#: COCO and its rivals (COCO-DR, Table 3).
OBJECTIVES = ("coco", "mlm", "condenser", "cocondenser", "simcse", "ict", "tsdae")
#: Those that contrast a text with the other documents of its batch.
CONTRASTIVE = ("coco", "cocondenser", "simcse", "ict")
#: Those that train language-model losses.
MASKED = ("coco", "mlm", "condenser", "cocondenser")


@dataclass(frozen=True)
class PretrainOptions(TrainingOptions):
    """COCO, section 4.1 of the paper and appendix B: 8 epochs at 1e-4, global batches of about 2,048.

    Args:
        objective: one of :data:`OBJECTIVES`, see ``beir_cocodr.training.objectives``.
        span_tokens: the most tokens of a span (published code: 30).
        flush_probability: chance that a span ends early after a sentence (published code: 0.1).
        max_length: tokens a sequence is cut to when encoded.
        mask_probability: share of masked tokens.
        mlm_weight: weight of the language-model losses beside the contrastive one; 0 leaves them out.
        n_head_layers, skip_from, late_mlm: the Condenser head; the objective mlm has its late loss alone.
        encoder_dropout: keep the encoder's dropout on. None means off for coco (published COCO-DR) and on
            for the others.
        scale: factor on scores; None means 1 for dot product and 20 for cosine.
        keep_query: of ict, the share of queries that stay in their passage (Lee et al.: 0.1).
        deletion: of tsdae, the share of words that are deleted (Wang et al.: 0.6).
    """

    objective: str = "coco"
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
    encoder_dropout: bool | None = None
    scale: float | None = None
    keep_query: float = 0.1
    deletion: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective not in OBJECTIVES:
            raise InputError(f"unknown objective {self.objective!r}; there are {', '.join(OBJECTIVES)}")
        if self.batch_size < 2 and self.objective in CONTRASTIVE:
            raise InputError("batch_size must be at least 2: texts are contrasted with other documents'")
        if not 1 <= self.span_tokens <= self.max_length - 2:
            raise InputError(
                f"span_tokens {self.span_tokens} must lie between 1 and max_length less two special tokens, "
                f"{self.max_length - 2}"
            )
        if self.n_head_layers < 0:
            raise InputError(f"n_head_layers must not be negative, it is {self.n_head_layers}")
        if self.mlm_weight < 0 or (self.mlm_weight == 0 and self.objective in ("mlm", "condenser")):
            raise InputError(f"mlm_weight {self.mlm_weight} leaves {self.objective} nothing to train")
        if self.objective == "simcse" and self.encoder_dropout is False:
            raise InputError("simcse needs encoder_dropout: dropout is all that tells its two copies apart")
        if self.scale is not None and self.scale <= 0:
            raise InputError(f"scale must be positive, not {self.scale}")
        for name in ("flush_probability", "mask_probability", "keep_query", "deletion"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is a share between 0 and 1, not {getattr(self, name)}")

    @property
    def keeps_dropout(self) -> bool:
        """Whether the encoder's dropout is on: as asked, else the objective's own default."""
        return self.objective != "coco" if self.encoder_dropout is None else self.encoder_dropout
