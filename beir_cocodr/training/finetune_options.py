"""Settings of fine-tuning, with the paper's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from beir_cocodr.errors import InputError
from beir_cocodr.training.negative_filters import NegativeFilters
from beir_cocodr.training.options import TrainingOptions
from beir_cocodr.training.weighting_options import WeightingOptions


@dataclass(frozen=True)
class FinetuneOptions(WeightingOptions, TrainingOptions):
    """Fine-tuning on labelled queries with hard negatives: in one go, in episodes (ANCE) or in two stages.

    Steps, epochs and schedule are those of one episode, the BM25 warm-up being episode 0, or of one stage.

    Args:
        negatives: hard negatives per query and step, redrawn each epoch; 0 leaves in-batch negatives only.
        negative_depth: BM25 results that they are drawn from, known positives removed.
        scale: factor on scores; None means 1 for dot product and 20 for cosine.
        episodes: after the BM25 warm-up, how often negatives are mined by the model itself, the queries
            clustered anew, and trained on (paper: 3); 0 trains on BM25 negatives only.
        stages: 2 trains two retrievers, both from the same start: the first on in-batch and BM25's
            negatives, the second on negatives that the first has mined (query-as-context pre-training,
            section 3.2). 1 trains one.
        stage2_negatives: of the second, "both" (drawn from BM25's negatives and the mined ones together, as
            in the paper) or "mined" (from these alone, as in the published script).
        mining_depth: documents retrieved for a query (published: 200).
        mining_keep: of them, known positives removed, so many are kept at random (published: 30).
        relative_margin, max_score, duplicates: filters of likely false negatives, off by default; see
            :class:`NegativeFilters`.
        query_length, document_length: tokens that queries and documents are cut to, in training and in what
            is saved; None means the model's own.
    """

    negatives: int = 1
    negative_depth: int = 30
    scale: float | None = None
    episodes: int = 0
    stages: int = 1
    stage2_negatives: str = "both"
    mining_depth: int = 200
    mining_keep: int = 30
    relative_margin: float | None = None
    max_score: float | None = None
    duplicates: bool = False
    query_length: int | None = None
    document_length: int | None = None

    def __post_init__(self) -> None:
        TrainingOptions.__post_init__(self)
        WeightingOptions.__post_init__(self)
        if self.negatives < 0 or self.negative_depth < 1:
            raise InputError(
                f"negatives must be at least 0 and negative_depth at least 1, "
                f"not {self.negatives} and {self.negative_depth}"
            )
        if self.batch_size == 1 and not self.negatives:
            raise InputError("a batch of one query needs hard negatives: raise batch_size or negatives")
        if self.trained_loss == "triplet" and not self.negatives:
            raise InputError("the loss triplet needs hard negatives: set negatives to 1 or more")
        if self.episodes < 0:
            raise InputError(f"episodes must not be negative, it is {self.episodes}")
        if self.episodes and not self.negatives:
            raise InputError("episodes mine hard negatives: set negatives to 1 or more, or episodes to 0")
        self._check_stages()
        if self.mining_keep < 1 or self.mining_depth < self.mining_keep:
            raise InputError(
                f"mining_depth {self.mining_depth} must be at least mining_keep {self.mining_keep}, "
                "and that at least 1"
            )
        _ = self.filters

    def _check_stages(self) -> None:
        if self.stages not in (1, 2):
            raise InputError(f"stages is 1 or 2, not {self.stages}")
        if self.stage2_negatives not in ("both", "mined"):
            raise InputError(f"stage2_negatives is both or mined, not {self.stage2_negatives!r}")
        if self.stages == 2 and self.episodes:
            raise InputError(
                f"stages 2 and episodes {self.episodes} are two ways to mine negatives: leave one of them out"
            )
        if self.stages == 2 and not self.negatives:
            raise InputError("stages 2 mines hard negatives: set negatives to 1 or more, or stages to 1")

    @property
    def trained_loss(self) -> str:
        """The loss in force: "triplet" or "infonce"."""
        if self.loss is not None:
            return self.loss
        return "infonce" if self.weighting == "erm" and not self.episodes else "triplet"

    @property
    def filters(self) -> NegativeFilters:
        return NegativeFilters(self.relative_margin, self.max_score, self.duplicates)
