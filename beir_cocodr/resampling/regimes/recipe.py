"""How the models of all architectures are trained, on equal budgets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from beir_cocodr.errors import InputError

#: What changes where and how fast a number is computed, not the number.
_UNTOLD = ("device", "encode_batch_size")


@dataclass(frozen=True)
class Recipe:
    """One start, one number of steps and one batch size for every architecture.

    Args:
        start: encoder that all architectures start from: minilm, a folder or a hub name.
        max_steps: optimiser steps; -1 trains for ``epochs``.
        epochs: passes over the training pairs.
        batch_size: training queries a step.
        learning_rate: peak of a linear schedule.
        warmup: share of the steps that the schedule rises.
        negatives: BM25 negatives a query, of hard negatives and of the cross-encoder; all others learn from
            the other documents of the batch alone, as the paper's base setting.
        negative_depth: BM25 results that they are drawn from, known positives removed.
        hard_negatives: "bm25", or "mined" by a first retriever that is trained on BM25's (twice the budget).
        teacher: of the distilled encoder: "hybrid" (BM25 and the start), "cross-encoder" (the one that is
            trained on the same set), or what `distill` takes.
        list_size: documents a query in distillation, one of them relevant, the others BM25's.
        query_length, document_length: tokens that texts are cut to; None means the start's own.
        mlm_steps: of masked language modelling on the corpus, before SPLADE, where the start has no head.
        mlm_learning_rate: of these steps.
        document_flops, query_flops: weights of SPLADE's two regularizers (sentence-transformers' defaults).
        rerank: documents of the first stage that the cross-encoder reranks (paper: 1,000).
        first_stage: "bm25", or an encoder.
        encode_batch_size: texts encoded at a time.
        device: of all models.

    Raises:
        InputError: a number that makes no training.

    Source: Zhan et al., 2022, sections 5.1.2 and 5.2.2.
    """

    start: str = "minilm"
    max_steps: int = -1
    epochs: float = 1
    batch_size: int = 32
    learning_rate: float = 2e-5
    warmup: float = 0.1
    negatives: int = 4
    negative_depth: int = 30
    hard_negatives: str = "bm25"
    teacher: str = "hybrid"
    list_size: int = 8
    query_length: int | None = None
    document_length: int | None = None
    mlm_steps: int = 200
    mlm_learning_rate: float = 5e-4
    document_flops: float = 3e-5
    query_flops: float = 5e-5
    rerank: int = 100
    first_stage: str = "bm25"
    encode_batch_size: int = 64
    device: str | None = None

    def __post_init__(self) -> None:
        if self.max_steps == 0 or self.max_steps < -1:
            raise InputError(f"max_steps must be positive, or -1 for whole epochs, not {self.max_steps}")
        for name in ("epochs", "learning_rate", "mlm_learning_rate"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("negatives", "negative_depth", "rerank", "encode_batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("warmup", "mlm_steps", "document_flops", "query_flops"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, it is {getattr(self, name)}")
        if self.batch_size < 2 or self.list_size < 2:
            raise InputError(
                f"batch_size {self.batch_size} and list_size {self.list_size} must be at least 2, as a "
                "document is learned against others"
            )
        if self.hard_negatives not in ("bm25", "mined"):
            raise InputError(f"hard_negatives is bm25 or mined, not {self.hard_negatives!r}")

    def told(self) -> dict[str, Any]:
        """What a number depends on."""
        return {name: value for name, value in asdict(self).items() if name not in _UNTOLD}

    @property
    def encoder(self) -> dict[str, Any]:
        """What every encoder is loaded with."""
        return {
            "query_length": self.query_length,
            "document_length": self.document_length,
            "device": self.device,
        }
