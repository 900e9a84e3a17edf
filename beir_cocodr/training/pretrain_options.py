"""Settings of pre-training, with the paper's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.training.options import TrainingOptions

#: COCO and its rivals (COCO-DR, Table 3), which learn from documents alone.
OBJECTIVES = ("coco", "mlm", "condenser", "cocondenser", "simcse", "ict", "tsdae")
#: Those that learn from passages and queries generated for them (query-as-context pre-training).
QUERY_OBJECTIVES = ("qc", "cotmae")
#: Those that contrast a text with the other documents of its batch.
CONTRASTIVE = ("coco", "cocondenser", "simcse", "ict", "qc")
#: Those with the language-model losses of a Condenser head.
MASKED = ("coco", "mlm", "condenser", "cocondenser", "qc")

# Stands for the objective's own default, which is filled in at once.
_OWN: Any = None
# The most tokens of a generated query's passage, special tokens included.
_PASSAGE = {"max_length": 144}
_DEFAULTS: dict[str, Any] = {
    "batch_size": 2048,
    "learning_rate": 1e-4,
    "max_length": 128,
    "mask_probability": 0.15,
}
_OWN_DEFAULTS: dict[str, dict[str, Any]] = {
    "qc": _PASSAGE,
    "cotmae": _PASSAGE | {"batch_size": 16_384, "learning_rate": 4e-4, "mask_probability": 0.3},
}
_SHARES = (
    "flush_probability",
    "mask_probability",
    "keep_query",
    "deletion",
    "mix",
    "decoder_mask_probability",
)


@dataclass(frozen=True)
class PretrainOptions(TrainingOptions):
    """COCO, section 4.1 of the paper and appendix B: 8 epochs at 1e-4, global batches of about 2,048.

    Query-as-context pre-training, section 4.1 of its paper: the objective qc at 1e-4 and 2,048, cotmae at
    4e-4 and 16,384.

    Args:
        objective: one of :data:`OBJECTIVES` or :data:`QUERY_OBJECTIVES`, see
            ``beir_cocodr.training.objectives``.
        batch_size, learning_rate: None means the paper's, as above.
        span_tokens: the most tokens of a span (published code: 30).
        flush_probability: chance that a span ends early after a sentence (published code: 0.1).
        max_length: tokens a sequence is cut to when encoded. None means 128, for qc and cotmae 144.
        mask_probability: share of masked tokens. None means 0.15, for cotmae 0.3.
        mlm_weight: weight of the language-model losses beside the contrastive one, and of the encoder's
            beside the decoder's of cotmae; 0 leaves them out.
        n_head_layers, skip_from, late_mlm: the Condenser head; the objective mlm has its late loss alone.
        encoder_dropout: keep the encoder's dropout on. None means off for coco (published COCO-DR) and on
            for the others.
        scale: factor on scores; None means 1 for dot product and 20 for cosine.
        keep_query: of ict, the share of queries that stay in their passage (Lee et al.: 0.1).
        deletion: of tsdae, the share of words that are deleted (Wang et al.: 0.6).
        per_passage: of qc and cotmae, C, the most queries of a passage that are used; None means all.
        mix: of qc and cotmae, the chance that a passage meets another passage of its document instead of a
            query (paper: 0; its Table 4: 0.5).
        decoder: of cotmae, "autoregressive" or "masked".
        decoder_layers: its transformer layers; None means 1 autoregressive or 2 masked ones.
        decoder_window: attention window of the autoregressive decoder.
        decoder_mask_probability: share of tokens that are masked for the masked decoder (CoT-MAE: 0.45).
    """

    objective: str = "coco"
    epochs: float = 8
    batch_size: int = _OWN
    learning_rate: float = _OWN
    span_tokens: int = 30
    flush_probability: float = 0.1
    max_length: int = _OWN
    mask_probability: float = _OWN
    mlm_weight: float = 1.0
    n_head_layers: int = 2
    skip_from: int | None = None
    late_mlm: bool = True
    encoder_dropout: bool | None = None
    scale: float | None = None
    keep_query: float = 0.1
    deletion: float = 0.6
    per_passage: int | None = None
    mix: float = 0.0
    decoder: str = "autoregressive"
    decoder_layers: int | None = None
    decoder_window: int = 3
    decoder_mask_probability: float = 0.45

    def __post_init__(self) -> None:
        for name, value in (_DEFAULTS | _OWN_DEFAULTS.get(self.objective, {})).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        if self.objective not in OBJECTIVES + QUERY_OBJECTIVES:
            names = ", ".join(OBJECTIVES + QUERY_OBJECTIVES)
            raise InputError(f"unknown objective {self.objective!r}; there are {names}")
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
        for name in _SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is a share between 0 and 1, not {getattr(self, name)}")
        self._check_contexts()

    def _check_contexts(self) -> None:
        if self.decoder not in ("autoregressive", "masked"):
            raise InputError(f"decoder is autoregressive or masked, not {self.decoder!r}")
        for name in ("per_passage", "decoder_layers", "decoder_window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, it is {value}")

    @property
    def keeps_dropout(self) -> bool:
        """Whether the encoder's dropout is on: as asked, else the objective's own default."""
        return self.objective != "coco" if self.encoder_dropout is None else self.encoder_dropout
