"""What every training command takes, with the papers' defaults: pre-training, fine-tuning, distillation.

The help of an option that the command line has stands beside its default. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import option
from beir_cocodr.records import Json
from beir_cocodr.training.objectives import OBJECTIVES, WEIGHTINGS


def choices(names: Iterable[str], first: str, last: str = "") -> str:
    """Names for a help text, with a remark on the first: "coco (default), mlm or ict"."""
    listed = list(names)
    listed[0] += f" ({first})"
    if not last:
        return ", ".join(listed)
    return f"{', '.join(listed[:-1])} {last} {listed[-1]}"


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

    max_steps: int = option(-1, "Optimiser steps; without it, whole epochs.")
    epochs: float = option(1, "Passes over the data.")
    batch_size: int = option(32, "Examples per step.")
    mini_batch_size: int = option(32, "Texts in memory at a time; larger batches are cached.")
    learning_rate: float = option(2e-5, "Peak learning rate.")
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    seed: int = option(42, "Seed of data order, sampling and dropout.")
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


_ON_DOCUMENTS = choices([name for name, found in OBJECTIVES.items() if not found.on_queries], "default", "or")

_ON_QUERIES = " or ".join(name for name, found in OBJECTIVES.items() if found.on_queries)

# Stands for the objective's own default, which is filled in at once.
_OWN: Any = None

_DEFAULTS: Mapping[str, float] = {
    "batch_size": 2048,
    "learning_rate": 1e-4,
    "max_length": 128,
    "mask_probability": 0.15,
}

_SHARES = ("flush_probability", "mask_probability", "keep_query", "deletion", "mix", "decoder_mask_probability")


@dataclass(frozen=True)
class PretrainOptions(TrainingOptions):
    """COCO, section 4.1 of the paper and appendix B: 8 epochs at 1e-4, global batches of about 2,048.

    Query-as-context pre-training, section 4.1 of its paper: the objective qc at 1e-4 and 2,048, cotmae at 4e-4 and
    16,384.

    Args:
        objective: one of :data:`~beir_cocodr.training.objectives.OBJECTIVES`.
        batch_size, learning_rate: None means the paper's, as above.
        span_tokens: the most tokens of a span (published code: 30).
        flush_probability: chance that a span ends early after a sentence (published code: 0.1).
        max_length: tokens a sequence is cut to when encoded. None means 128, for qc and cotmae 144.
        mask_probability: share of masked tokens. None means 0.15, for cotmae 0.3.
        mlm_weight: weight of the language-model losses beside the contrastive one, and of the encoder's beside the
            decoder's of cotmae; 0 leaves them out.
        n_head_layers, skip_from, late_mlm: the Condenser head; the objective mlm has its late loss alone.
        encoder_dropout: keep the encoder's dropout on. None means off for coco (published COCO-DR) and on for the
            others.
        scale: factor on scores; None means 1 for dot product and 20 for cosine.
        keep_query: of ict, the share of queries that stay in their passage (Lee et al.: 0.1).
        deletion: of tsdae, the share of words that are deleted (Wang et al.: 0.6).
        per_passage: of qc and cotmae, C, the most queries of a passage that are used; None means all.
        mix: of qc and cotmae, the chance that a passage meets another passage of its document instead of a query
            (paper: 0; its Table 4: 0.5).
        decoder: of cotmae, "autoregressive" or "masked".
        decoder_layers: its transformer layers; None means 1 autoregressive or 2 masked ones.
        decoder_window: attention window of the autoregressive decoder.
        decoder_mask_probability: share of tokens that are masked for the masked decoder (CoT-MAE: 0.45).
    """

    objective: str = option("coco", f"What to train: {_ON_DOCUMENTS}; with --queries {_ON_QUERIES}.")
    epochs: float = 8
    batch_size: int = _OWN
    learning_rate: float = _OWN
    span_tokens: int = option(30, "The most tokens of a span.")
    flush_probability: float = 0.1
    max_length: int = option(_OWN, "Tokens a sequence is cut to.")
    mask_probability: float = _OWN
    mlm_weight: float = option(1.0, "Weight of the language-model losses; 0 leaves them out.")
    n_head_layers: int = 2
    skip_from: int | None = option(None, "Layer the head takes its tokens from; default: half the depth.")
    late_mlm: bool = True
    encoder_dropout: bool | None = option(None, "Dropout of the encoder; default: off for coco, else on.")
    scale: float | None = None
    keep_query: float = 0.1
    deletion: float = 0.6
    per_passage: int | None = option(None, "The most queries of a passage that are used; default: all.")
    mix: float = option(0.0, "Chance that a passage meets another passage instead of a query (0).")
    decoder: str = option("autoregressive", "Of cotmae: autoregressive (default) or masked.")
    decoder_layers: int | None = None
    decoder_window: int = 3
    decoder_mask_probability: float = 0.45

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"unknown objective {self.objective!r}; there are {', '.join(OBJECTIVES)}")
        found = OBJECTIVES[self.objective]
        for name, value in {**_DEFAULTS, **found.defaults}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        if self.batch_size < 2 and found.contrastive:
            raise InputError("batch_size must be at least 2: texts are contrasted with other documents'")
        if not 1 <= self.span_tokens <= self.max_length - 2:
            raise InputError(
                f"span_tokens {self.span_tokens} must lie between 1 and max_length less two special tokens, "
                f"{self.max_length - 2}"
            )
        if self.n_head_layers < 0:
            raise InputError(f"n_head_layers must not be negative, it is {self.n_head_layers}")
        masked_only = found.masked and not found.contrastive and not found.decoder
        if self.mlm_weight < 0 or (self.mlm_weight == 0 and masked_only):
            raise InputError(f"mlm_weight {self.mlm_weight} leaves {self.objective} nothing to train")
        if found.needs_dropout and self.encoder_dropout is False:
            raise InputError(f"{self.objective} needs encoder_dropout: dropout is all that tells its two copies apart")
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
        asked = self.encoder_dropout
        return OBJECTIVES[self.objective].dropout if asked is None else asked

    @property
    def masked(self) -> bool:
        """Whether texts are masked for language-model losses."""
        found = OBJECTIVES[self.objective]
        return found.decoder or (found.masked and self.mlm_weight > 0)


@dataclass(frozen=True)
class WeightingOptions:
    """Which loss of an example is trained on, and how clusters of queries are weighted.

    Args:
        loss: "triplet" (own positive against own hard negatives; COCO-DR, Eq. 2) or "infonce" (against all documents of
            the batch). None: infonce for erm without episodes, else triplet.
        weighting: "erm" (all examples alike), "idro", "groupdro" or "cvar".
        clusters: K, of k-means over the training queries' embeddings by the model that is trained (50).
        min_cluster_size: smaller clusters are folded into their nearest neighbour (a cluster of one query would give it
            as much weight as hundreds of others).
        idro_mode: "stable", "published" or "paper", see :class:`~beir_cocodr.losses.dro.IDROLoss`.
        alpha, rho, ema, eps, absent, renormalize_present: of iDRO's modes stable and published.
        beta, tau: of its mode paper; tau None is clusters / rho.
        gram: how cluster gradients are compared: one_backward, sketch, k_calls, batched.
        gradient_layers: last layers whose gradients are compared; None is 3 of 12, else 2.
        sketch_size: dimensions a side of the sketch.
        eta: step size of groupdro.
        cvar_alpha: share of the queries that counts fully in cvar.
        log_clusters: steps between lines of cluster_weights.jsonl.
    """

    loss: str | None = option(None, "triplet or infonce; default: infonce for erm without episodes, else triplet.")
    weighting: str = option("erm", f"How clusters of queries are weighted: {choices(WEIGHTINGS, 'alike; default')}.")
    clusters: int = option(50, "Clusters of queries (50).")
    min_cluster_size: int = 2
    idro_mode: str = "stable"
    alpha: float = 0.25
    rho: float = 0.05
    ema: float = 0.1
    eps: float = 0.01
    absent: str | None = None
    renormalize_present: bool | None = None
    beta: float = 0.25
    tau: float | None = None
    gram: str = "one_backward"
    gradient_layers: int | None = None
    sketch_size: int = 64
    eta: float = 0.01
    cvar_alpha: float = 0.5
    log_clusters: int = 10

    def __post_init__(self) -> None:
        if self.weighting not in WEIGHTINGS:
            raise InputError(f"unknown weighting {self.weighting!r}; there are {', '.join(WEIGHTINGS)}")
        if self.loss not in (None, "triplet", "infonce"):
            raise InputError(f"unknown loss {self.loss!r}; there are triplet, infonce")
        for name in ("clusters", "min_cluster_size", "sketch_size", "log_clusters"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("alpha", "rho", "ema", "beta", "eta"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, it is {getattr(self, name)}")
        if not 0 < self.eps < 1 or not 0 < self.cvar_alpha <= 1 or (self.tau is not None and self.tau <= 0):
            raise InputError(
                f"eps must lie between 0 and 1, cvar_alpha above 0 and up to 1, tau above 0, "
                f"not {self.eps}, {self.cvar_alpha} and {self.tau}"
            )


@dataclass(frozen=True)
class NegativeFilters:
    """What a candidate must not be to stay a negative. All are off by default, as in COCO-DR and ANCE.

    They apply in the order below, each to what the earlier ones left. The two on scores are those of
    sentence-transformers' ``mine_hard_negatives``, except that with several positives the margin is taken from the best
    scored one; the host takes the worst scored, and one positive that the model cannot find then removes every
    candidate of its query.

    Args:
        relative_margin: m in [0, 1); with p the score of the best scored positive, a candidate scoring above p − m·|p|
            is removed. That is p·(1 − m) for a positive p.
        max_score: a candidate that scores above it is removed.
        duplicates: a candidate whose text (title and text, as the encoder reads them) is that of a positive or of a
            better scored candidate that is left is removed.

    Source: sentence-transformers, ``mine_hard_negatives``; the relative margin is NV-Retriever's (Moreira et al., 2024,
    "TopK-PercPos"; 0.05 there).
    """

    relative_margin: float | None = None
    max_score: float | None = None
    duplicates: bool = False

    def __post_init__(self) -> None:
        if self.relative_margin is not None and not 0 <= self.relative_margin < 1:
            raise InputError(f"relative_margin must be at least 0 and below 1, or none, not {self.relative_margin}")
        if self.max_score is not None and not math.isfinite(self.max_score):
            raise InputError(f"max_score must be a finite number, or none, not {self.max_score}")

    @property
    def active(self) -> Json:
        """The filters that are on, by name, with their values, in the order they apply."""
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False}


@dataclass(frozen=True)
class FinetuneOptions(WeightingOptions, TrainingOptions):
    """Fine-tuning on labelled queries with hard negatives: in one go, in episodes (ANCE) or in two stages.

    Steps, epochs and schedule are those of one episode, the BM25 warm-up being episode 0, or of one stage.

    Args:
        negatives: hard negatives per query and step, redrawn each epoch; 0 leaves in-batch negatives only.
        negative_depth: BM25 results that they are drawn from, known positives removed.
        scale: factor on scores; None means 1 for dot product and 20 for cosine.
        episodes: after the BM25 warm-up, how often negatives are mined by the model itself, the queries clustered anew,
            and trained on (paper: 3); 0 trains on BM25 negatives only.
        stages: 2 trains two retrievers, both from the same start: the first on in-batch and BM25's negatives, the
            second on negatives that the first has mined (query-as-context pre-training, section 3.2). 1 trains one.
        stage2_negatives: of the second, "both" (drawn from BM25's negatives and the mined ones together, as in the
            paper) or "mined" (from these alone, as in the published script).
        mining_depth: documents retrieved for a query (published: 200).
        mining_keep: of them, known positives removed, so many are kept at random (published: 30).
        relative_margin, max_score, duplicates: filters of likely false negatives, off by default; see
            :class:`NegativeFilters`.
        query_length, document_length: tokens that queries and documents are cut to, in training and in what is saved;
            None means the model's own.
    """

    negatives: int = option(1, "Hard negatives a query and step.")
    negative_depth: int = 30
    scale: float | None = None
    episodes: int = option(0, "Times that negatives are mined by the model itself, after BM25's (0).")
    stages: int = option(1, "2: a second retriever starts anew on negatives that the first one mines (1).")
    stage2_negatives: str = option("both", "Of the second: both (BM25's and mined ones; default) or mined.")
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
                f"mining_depth {self.mining_depth} must be at least mining_keep {self.mining_keep}, and that at least 1"
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


STUDENTS, LOSSES = ("dot", "mrl"), ("lambdarank", "kl", "margin_mse")

ANCHORS = ("relevant", "fused")


@dataclass(frozen=True)
class DistillOptions(TrainingOptions):
    """Listwise distillation of a teacher's scores (MRL, section 4.2 and 5.1).

    Args:
        student: "dot", the encoder as it is, or "mrl", means and variances started from it.
        loss: "lambdarank" (MRL, Eq. 12), or sentence-transformers' "kl" or "margin_mse".
        reduction: of lambdarank, "sum" or "mean".
        anchors: what a list is built around: "relevant", the documents that labels call relevant, or "fused" (ours, for
            queries that were generated), the best of the fusion of BM25 and the start encoder, without the relevant
            ones: that a query leads to the passage it was made from teaches nothing.
        positives: most anchors in a query's list; of more, so many are drawn at random.
        m_bm25, m_hard: documents of BM25's and of the student's own best ``candidates`` in a list (ours; the paper does
            not say).
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
    student: str = option("dot", "dot (default), or mrl: means and variances.")
    loss: str = option("lambdarank", f"{choices(LOSSES, 'default', 'or')}.")
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
                f"m_bm25 {self.m_bm25} and m_hard {self.m_hard} must lie between 0 and candidates, {self.candidates}"
            )
        if self.m_bm25 + self.m_hard == 0:
            raise InputError("a list needs documents that are not relevant: raise m_bm25 or m_hard")
        if not 0 <= self.held_out < 1:
            raise InputError(f"held_out is a share from 0 to below 1, not {self.held_out}")

    @property
    def list_size(self) -> int:
        """n, documents in a query's list."""
        return self.positives + self.m_bm25 + self.m_hard
