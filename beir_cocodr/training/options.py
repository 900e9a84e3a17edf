"""What every training command takes, with the papers' defaults: pre-training, fine-tuning,
distillation.

What has a flag is described beside its default, other fields in the docstrings. Nothing here
imports torch.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from beir_cocodr.errors import SEED_MAX, InputError
from beir_cocodr.models.spec import BM25_WEIGHT, Options, option
from beir_cocodr.records import Json
from beir_cocodr.training.objectives import OBJECTIVES, WEIGHTINGS


def choices(names: Iterable[str], first: str, last: str = "") -> str:
    """Names for a help text, with a remark on the first: "coco (default), mlm or ict"."""
    one, *others = names
    listed = [f"{one} ({first})", *others]
    return f"{', '.join(listed[:-1])} {last} {listed[-1]}" if last else ", ".join(listed)


@dataclass(frozen=True)
class Budget(Options):
    """How long and how fast is trained.

    Args:
        max_steps: -1 trains for ``epochs``.
        learning_rate: peak of a linear schedule.
        warmup: share of the steps that the schedule rises.
    """

    max_steps: int = option(
        -1, "Stop after this many optimiser steps. Default: train for whole epochs.", min=-1
    )
    epochs: float = option(1, "Train for this many passes over the data.", above=0)
    batch_size: int = option(32, "Train on this many examples per step.", min=1)
    learning_rate: float = option(2e-5, "Peak learning rate.", above=0)
    warmup: float = option(0.1, min=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_steps == 0:
            raise InputError(
                f"max_steps must be positive, or -1 for whole epochs, not {self.max_steps}"
            )


@dataclass(frozen=True)
class TrainingOptions(Budget):
    """Settings that all training stages share.

    Args:
        mini_batch_size: texts embedded at a time by gradient caching; a batch that fits is not
            cached.
        weight_decay, max_grad_norm: AdamW's decay and the gradient norm that is clipped to.
        save_steps: steps between checkpoints; None means a tenth of the run, at most 500.
        loader_workers: of each process; None means none on a CPU, and on a GPU as many as there are
            free cores, at most
            4. They change no result.
    """

    mini_batch_size: int = option(
        32,
        "Keep this many texts in memory at a time; the gradients of larger batches are cached.",
        min=1,
    )
    weight_decay: float = option(0.01, min=0)
    max_grad_norm: float = option(1.0, min=0)
    seed: int = option(42, "Seed of data order, sampling and dropout.", min=0, max=SEED_MAX)
    save_steps: int | None = option(None, min=1)
    loader_workers: int | None = option(
        None, "Prepare batches in this many processes. Default: up to 4 on a GPU.", min=0
    )

    def cached_mini_batch(self) -> int | None:
        """Texts embedded at a time by gradient caching; None where a process's share of a batch
        fits.
        """
        from beir_cocodr.distributed import world_size

        return (
            self.mini_batch_size if self.batch_size // world_size() > self.mini_batch_size else None
        )

    def with_overrides(self, **overrides: Any) -> Self:
        """A copy in which every override that is not None stands."""
        return type(self)(**asdict(self) | {k: v for k, v in overrides.items() if v is not None})


_ON_DOCUMENTS = choices(
    [name for name, found in OBJECTIVES.items() if not found.on_queries], "default", "or"
)
_ON_QUERIES = " or ".join(name for name, found in OBJECTIVES.items() if found.on_queries)

# Stands for the objective's own default, which is filled in at once.
_OWN: Any = None
_DEFAULTS: Json = {
    "batch_size": 2048,
    "learning_rate": 1e-4,
    "max_length": 128,
    "mask_probability": 0.15,
}


@dataclass(frozen=True)
class PretrainOptions(TrainingOptions):
    """COCO, section 4.1 of the paper and appendix B: 8 epochs at 1e-4, global batches of about
    2,048.

    Query-as-context pre-training, section 4.1: the objective qc at 1e-4 and 2,048, cotmae at 4e-4
    and 16,384.

    Args:
        objective: one of :data:`~beir_cocodr.training.objectives.OBJECTIVES`.
        batch_size, learning_rate: None means the paper's, as above.
        span_tokens: published code: 30.
        flush_probability: chance that a span ends early after a sentence (published code: 0.1).
        single_spans: of coco and cocondenser; the published code would pair such a document with
            itself as well, but its preparation leaves it out.
        max_length: None means 128, for qc and cotmae 144.
        mask_probability: share of masked tokens. None means 0.15, for cotmae 0.3.
        mlm_weight: beside the contrastive loss; of cotmae, that of the encoder's loss beside the
            decoder's.
        n_head_layers, skip_from, late_mlm: the Condenser head; the objective mlm has its late loss
            alone.
        encoder_dropout: off for coco as in published COCO-DR.
        scale: factor on scores; None means 1 for dot product and 20 for cosine.
        keep_query: of ict, the share of queries that stay in their passage (Lee et al.: 0.1).
        deletion: of tsdae, the share of words that are deleted (Wang et al.: 0.6).
        per_passage: C of qc and cotmae.
        mix: of qc and cotmae; the other passage is one of the same document (paper: 0; its Table 4:
            0.5).
        decoder_layers: transformer layers of cotmae's decoder; None means 1 autoregressive or 2
            masked ones.
        decoder_window: attention window of the autoregressive decoder.
        decoder_mask_probability: share of tokens that are masked for the masked decoder (CoT-MAE:
        0.45).
    """

    objective: str = option(
        "coco",
        f"Train this objective: {_ON_DOCUMENTS}; with --queries {_ON_QUERIES}.",
        choices=OBJECTIVES,
    )
    epochs: float = 8
    batch_size: int = _OWN
    learning_rate: float = _OWN
    span_tokens: int = option(30, "Take at most this many tokens in a span.", min=1)
    flush_probability: float = option(0.1, min=0, max=1)
    single_spans: bool = option(
        False, "Use documents of a single span, too, paired with themselves."
    )
    max_length: int = option(_OWN, "Cut sequences to this many tokens.", min=3)
    mask_probability: float = option(_OWN, min=0, max=1)
    mlm_weight: float = option(
        1.0, "Weight of the language-model losses; 0 leaves them out.", min=0
    )
    n_head_layers: int = option(2, min=0)
    skip_from: int | None = option(
        None, "Take the head's tokens from this layer. Default: half the depth.", min=0
    )
    late_mlm: bool = option(True)
    encoder_dropout: bool | None = option(
        None, "Use dropout in the encoder. Default: off for coco, else on."
    )
    scale: float | None = option(None, above=0)
    keep_query: float = option(0.1, min=0, max=1)
    deletion: float = option(0.6, min=0, max=1)
    per_passage: int | None = option(
        None, "Use at most this many queries of a passage. Default: all.", min=1
    )
    mix: float = option(
        0.0,
        "Probability that a passage is paired with another passage instead of a query. Default: 0.",
        min=0,
        max=1,
    )
    decoder: str = option(
        "autoregressive",
        "Decoder of cotmae: autoregressive (default) or masked.",
        choices=("autoregressive", "masked"),
    )
    decoder_layers: int | None = option(None, min=1)
    decoder_window: int = option(3, min=1)
    decoder_mask_probability: float = option(0.45, min=0, max=1)

    def __post_init__(self) -> None:
        known = OBJECTIVES[self.objective].defaults if self.objective in OBJECTIVES else {}
        for name, value in (_DEFAULTS | dict(known)).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        found = OBJECTIVES[self.objective]
        if self.batch_size < 2 and found.contrastive:
            raise InputError(
                "batch_size must be at least 2: texts are contrasted with other documents'"
            )
        if self.span_tokens > self.max_length - 2:
            raise InputError(
                f"span_tokens {self.span_tokens} must lie between 1 and max_length less two "
                "special tokens, "
                f"{self.max_length - 2}"
            )
        if self.single_spans and self.objective not in ("coco", "cocondenser"):
            raise InputError(
                f"single_spans is for coco and cocondenser: {self.objective} draws no two spans "
                "to pair"
            )
        masked_only = found.masked and not found.contrastive and not found.decoder
        if self.mlm_weight == 0 and masked_only:
            raise InputError(
                f"mlm_weight {self.mlm_weight} leaves {self.objective} nothing to train"
            )
        if found.needs_dropout and self.encoder_dropout is False:
            raise InputError(
                f"{self.objective} needs encoder_dropout: dropout is all that tells its two "
                "copies apart"
            )

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
class NegativeFilters(Options):
    """What a candidate must not be to stay a negative. All are off by default, as in COCO-DR and
    ANCE.

    They apply in the order below, each to what the earlier ones left. The two on scores are those
    of sentence-transformers' ``mine_hard_negatives``, except that with several positives the margin
    is taken from the best scored one; the host takes the worst scored, and one positive that cannot
    be found removes every candidate then.

    Args:
        relative_margin: m in [0, 1); with p the score of the best scored positive, a candidate
            scoring above p − m·|p| is removed. That is p·(1 − m) for a positive p.
        max_score: a candidate that scores above it is removed.
        duplicates: a candidate whose text (title and text, as the encoder reads them) is that of a
            positive or of a better scored candidate that is left is removed.

    Source: sentence-transformers, ``mine_hard_negatives``; the relative margin is NV-Retriever's
    (Moreira et al., 2024, "TopK-PercPos"; 0.05 there).
    """

    relative_margin: float | None = option(None, min=0, below=1)
    max_score: float | None = option(None)
    duplicates: bool = option(False)

    @property
    def active(self) -> Json:
        """The filters that are on, by name, with their values, in the order they apply."""
        values = {field.name: getattr(self, field.name) for field in fields(NegativeFilters)}
        return {
            name: value
            for name, value in values.items()
            if value is not None and value is not False
        }


@dataclass(frozen=True)
class HeldOut(Options):
    """Queries that are kept from training and choose its checkpoint.

    Args:
        held_out: drawn by the seed, at most ``most_held_out`` of them.
        select_split: at most ``most_held_out`` of its queries choose, and none is held out; they
            count as trained on.
        select_epochs: passes over the data, or a part of one, between two measures of the held-out
            queries, MRR@10 among their relevant documents and BM25's 100 best others; the best
            checkpoint is kept. None means 1.
    """

    held_out: float = option(
        0.0,
        "Choose the checkpoint by this share of the training queries, which are not trained on.",
        min=0,
        below=1,
    )
    most_held_out: int = option(500, min=1)
    select_split: str | None = option(
        None, "Split of the dataset, such as dev, whose queries choose the checkpoint."
    )
    select_epochs: float | None = option(None, above=0)


@dataclass(frozen=True)
class FinetuneOptions(NegativeFilters, HeldOut, TrainingOptions):
    """Fine-tuning on labelled queries with hard negatives: in one go, in episodes (ANCE) or in two
    stages.

    Steps, epochs and schedule are those of one episode, the BM25 warm-up being episode 0, or of one
    stage.

    Args:
        loss: "triplet" (own positive against own hard negatives; COCO-DR, Eq. 2) or "infonce"
            (against all documents of the batch).
        weighting: one of :data:`~beir_cocodr.training.objectives.WEIGHTINGS`.
        clusters: K, of k-means over the training queries' embeddings by the model that is trained.
        min_cluster_size: smaller clusters are folded into their nearest neighbour (a cluster of one
            query would give it as much weight as hundreds of others).
        kmeans_iterations, kmeans_restarts, kmeans_points: of k-means, the last a centroid, see
            :func:`~beir_cocodr.data.clusters.cluster_queries` (published: 500, 5, 256).
        idro_mode: "stable", "published" or "paper", see :class:`~beir_cocodr.losses.dro.IDROLoss`.
        alpha, rho, ema, eps, absent, renormalize_present: of iDRO's modes stable and published.
        beta, tau: of its mode paper; tau None is clusters / rho.
        gram: how cluster gradients are compared: one_backward, sketch, k_calls.
        gradient_layers: last layers whose gradients are compared; None is 3 of 12, else 2.
        sketch_size: dimensions a side of the sketch.
        eta: step size of groupdro.
        cvar_alpha: share of the queries that counts fully in cvar.
        log_clusters: steps between lines of cluster_weights.jsonl.
        negatives: redrawn each epoch; 0 leaves in-batch negatives only.
        negative_depth: BM25 results that they are drawn from, known positives removed.
        hard_negatives: a file of hard negatives, which are taken in place of BM25's: GPL's form,
            columns of texts as sentence-transformers has them, or a TREC run
            (:func:`~beir_cocodr.training.pairs.read_hard_negatives`).
        scale: factor on scores; None means 1 for dot product and 20 for cosine.
        episodes: after the BM25 warm-up; in each the queries are clustered anew, too (paper: 3).
        stages: with 2, both retrievers start from the same model (query-as-context pre-training,
            section 3.2).
        stage2_negatives: "both" draws from BM25's and the mined ones together, as in the paper,
            "mined" from these alone, as in the published script.
        mining_depth: documents retrieved for a query (published: 200).
        mining_keep: of them, known positives removed, so many are kept at random (published: 30).
        query_length, document_length: tokens that queries and documents are cut to, in training and
            in what is saved; None means the model's own.
    """

    loss: str | None = option(
        None,
        "Train by this loss: triplet or infonce. Default: infonce for erm without episodes, else "
        "triplet.",
        choices=("triplet", "infonce"),
    )
    weighting: str = option(
        "erm",
        f"Weight clusters of queries by {choices(WEIGHTINGS, 'alike; default')}.",
        choices=WEIGHTINGS,
    )
    clusters: int = option(50, "Divide the queries into this many clusters. Default: 50.", min=1)
    min_cluster_size: int = option(2, min=1)
    kmeans_iterations: int = option(25, min=1)
    kmeans_restarts: int = option(1, min=1)
    kmeans_points: int = option(16_384, min=1)
    idro_mode: str = option("stable", choices=("stable", "published", "paper"))
    alpha: float = option(0.25, min=0)
    rho: float = option(0.05, min=0)
    ema: float = option(0.1, min=0)
    eps: float = option(0.01, above=0, below=1)
    absent: str | None = option(None, choices=("reset", "keep"))
    renormalize_present: bool | None = option(None)
    beta: float = option(0.25, min=0)
    tau: float | None = option(None, above=0)
    gram: str = option("one_backward", choices=("one_backward", "sketch", "k_calls"))
    gradient_layers: int | None = option(None, min=1)
    sketch_size: int = option(64, min=1)
    eta: float = option(0.01, min=0)
    cvar_alpha: float = option(0.5, above=0, max=1)
    log_clusters: int = option(10, min=1)
    negatives: int = option(1, "Draw this many hard negatives for a query and step.", min=0)
    negative_depth: int = option(30, min=1)
    hard_negatives: str | None = option(
        None,
        "Read hard negatives from this file instead of mining BM25's: hard-negatives.jsonl as "
        "export and GPL write it, columns of texts, or a TREC run.",
    )
    scale: float | None = option(None, above=0)
    episodes: int = option(
        0,
        "Train this many times again, on negatives that the model itself mines after BM25's. "
        "Default: 0.",
        min=0,
    )
    stages: int = option(
        1,
        "With 2, train a second retriever from the start on the negatives that the first one "
        "mines. Default: 1.",
        min=1,
        max=2,
    )
    stage2_negatives: str = option(
        "both",
        "Negatives of the second stage: both (BM25's and mined ones; default) or mined.",
        choices=("both", "mined"),
    )
    mining_depth: int = option(200, min=1)
    mining_keep: int = option(30, min=1)
    query_length: int | None = option(None, min=3)
    document_length: int | None = option(None, min=3)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.idro_mode == "paper" and self.tau is None and not self.rho:
            raise InputError(
                "rho 0 leaves idro_mode paper without a temperature, clusters / rho: set tau"
            )
        if self.seed + self.episodes > SEED_MAX:  # each episode has the next seed
            raise InputError(
                f"seed {self.seed} and episodes {self.episodes} lead beyond the largest seed, "
                f"{SEED_MAX}"
            )
        if self.stages == 2 and self.episodes:
            raise InputError(
                f"stages 2 and episodes {self.episodes} are two ways to mine negatives: leave one "
                "out"
            )
        needing = {
            "a batch of one query": self.batch_size == 1,
            "the loss triplet": self.trained_loss == "triplet",
            "a fine-tuning in episodes": self.episodes > 0,
            "a fine-tuning in stages 2": self.stages == 2,
            "a file of hard_negatives": self.hard_negatives is not None,
        }
        for what, asked in needing.items():
            if asked and not self.negatives:
                raise InputError(
                    f"{what} needs hard negatives a query: set negatives to 1 or more, or change it"
                )
        if self.mining_depth < self.mining_keep:
            raise InputError(
                f"mining_depth {self.mining_depth} must be at least mining_keep {self.mining_keep}"
            )

    @property
    def trained_loss(self) -> str:
        """The loss in force: "triplet" or "infonce"."""
        return self.loss or (
            "infonce" if self.weighting == "erm" and not self.episodes else "triplet"
        )


LOSSES = ("lambdarank", "kl", "margin_mse")


@dataclass(frozen=True)
class DistillOptions(HeldOut, TrainingOptions):
    """Listwise distillation of a teacher's scores (MRL, section 4.2 and 5.1).

    Args:
        student: "dot", the encoder as it is, or "mrl", started from it.
        loss: "lambdarank" (MRL, Eq. 12), or sentence-transformers' "kl" or "margin_mse".
        reduction: of lambdarank, "sum" or "mean".
        anchors: what a list is built around: "relevant", the documents that labels call relevant,
            or "fused" (ours, for queries that were generated), the best of the fusion of BM25 and
            the start encoder, without the relevant ones: that a query leads to the passage it was
            made from teaches nothing.
        positives: most anchors in a query's list; of more, so many are drawn at random.
        m_bm25, m_hard: documents of BM25's and of the student's own best ``candidates`` in a list
            (ours; the paper does not say).
        bm25_weight: of BM25 in the teachers hybrid and feedback, against 1 of the encoder.
        refresh_steps: steps after which the student's own candidates are searched anew.
        held_out: share of the queries that are kept from training, at most ``most_held_out``.
        select_epochs: None measures them at every refresh by a search of the whole corpus, and
            stops by ``patience``; a number is as in fine-tuning, and all steps are made.
        patience: refreshes without a better MRR@10 after which training stops.
        k, beta: of the student mrl; None is its own default.
    """

    batch_size: int = 512
    learning_rate: float = 5e-6
    warmup: float = 4_000
    weight_decay: float = 0.0
    student: str = option(
        "dot",
        "Train this student: dot (default), or mrl, which has means and variances.",
        choices=("dot", "mrl"),
    )
    loss: str = option(
        "lambdarank", f"Train by this loss: {choices(LOSSES, 'default', 'or')}.", choices=LOSSES
    )
    reduction: str = option("sum", choices=("sum", "mean"))
    anchors: str = option("relevant", choices=("relevant", "fused"))
    positives: int = option(4, min=1)
    m_bm25: int = option(4, min=0)
    m_hard: int = option(4, min=0)
    candidates: int = option(100, min=1)
    bm25_weight: float = option(BM25_WEIGHT, min=0, max=1000)
    refresh_steps: int = option(5_000, min=1)
    held_out: float = 0.1
    patience: int = option(3, min=1)
    k: int | None = option(None, min=1)
    beta: float | None = option(None, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.m_bm25, self.m_hard) > self.candidates:
            raise InputError(
                f"m_bm25 {self.m_bm25}, m_hard {self.m_hard}: at most {self.candidates}, the "
                "candidates"
            )
        if self.m_bm25 + self.m_hard == 0:
            raise InputError("a list needs documents that are not relevant: raise m_bm25 or m_hard")

    @property
    def list_size(self) -> int:
        """n, documents in a query's list."""
        return self.positives + self.m_bm25 + self.m_hard
