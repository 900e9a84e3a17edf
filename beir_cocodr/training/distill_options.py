"""Settings of distillation, with the paper's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from beir_cocodr.errors import InputError
from beir_cocodr.training.options import TrainingOptions

STUDENTS, LOSSES = ("dot", "mrl"), ("lambdarank", "kl", "margin_mse")
ANCHORS = ("relevant", "fused")


@dataclass(frozen=True)
class DistillOptions(TrainingOptions):
    """Listwise distillation of a teacher's scores (MRL, section 4.2 and 5.1).

    Args:
        student: "dot", the encoder as it is, or "mrl", means and variances started from it.
        loss: "lambdarank" (MRL, Eq. 12), or sentence-transformers' "kl" or "margin_mse".
        reduction: of lambdarank, "sum" or "mean".
        anchors: what a list is built around: "relevant", the documents that labels call relevant, or "fused"
            (ours, for queries that were generated), the best of the fusion of BM25 and the start encoder,
            without the relevant ones: that a query leads to the passage it was made from teaches nothing.
        positives: most anchors in a query's list; of more, so many are drawn at random.
        m_bm25, m_hard: documents of BM25's and of the student's own best ``candidates`` in a list (ours; the
            paper does not say).
        candidates: 100.
        refresh_steps: steps after which the student's own candidates are searched anew (5,000).
        held_out: share of the queries that are kept from training, at most ``most_held_out``, for MRR@10.
        patience: refreshes without a better MRR@10 after which training stops.
        k, beta: of the student mrl; None is its own default.
    """

    batch_size: int = 512
    learning_rate: float = 5e-6
    warmup: float = 4_000
    weight_decay: float = 0.0
    student: str = "dot"
    loss: str = "lambdarank"
    reduction: str = "sum"
    anchors: str = "relevant"
    positives: int = 4
    m_bm25: int = 4
    m_hard: int = 4
    candidates: int = 100
    refresh_steps: int = 5_000
    held_out: float = 0.1
    most_held_out: int = 500
    patience: int = 3
    k: int | None = None
    beta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (
            ("student", STUDENTS),
            ("loss", LOSSES),
            ("reduction", ("sum", "mean")),
            ("anchors", ANCHORS),
        ):
            if getattr(self, name) not in choices:
                raise InputError(f"{name} is {getattr(self, name)!r}; there are {', '.join(choices)}")
        for name in ("positives", "candidates", "refresh_steps", "patience", "most_held_out"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.m_bm25 < 0 or self.m_hard < 0 or max(self.m_bm25, self.m_hard) > self.candidates:
            raise InputError(
                f"m_bm25 {self.m_bm25} and m_hard {self.m_hard} must lie between 0 and candidates, "
                f"{self.candidates}"
            )
        if self.m_bm25 + self.m_hard == 0:
            raise InputError("a list needs documents that are not relevant: raise m_bm25 or m_hard")
        if not 0 <= self.held_out < 1:
            raise InputError(f"held_out is a share from 0 to below 1, not {self.held_out}")

    @property
    def list_size(self) -> int:
        """n, documents in a query's list."""
        return self.positives + self.m_bm25 + self.m_hard
