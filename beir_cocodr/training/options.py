"""Options of pre-training, fine-tuning and distillation, with the papers' defaults.

An option that one loss, weighting, objective or teacher has alone is a field of that row's own
options class. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from beir_cocodr.errors import SEED_MAX, InputError, check_options_type
from beir_cocodr.generation.query_kinds import QUERY_KINDS
from beir_cocodr.io import Keywords
from beir_cocodr.models.spec import Options, option
from beir_cocodr.records import Json
from beir_cocodr.training.distillation.teacher_rows import STUDENTS, TEACHERS
from beir_cocodr.training.finetuning.loss_rows import DISTILLATION_LOSSES, LOSSES, ScaleOptions
from beir_cocodr.training.finetuning.weightings import WEIGHTINGS, ClusterOptions
from beir_cocodr.training.pretraining.objectives import (
    OBJECTIVES,
    LanguageModelOptions,
    SpanPairOptions,
)
from beir_cocodr.training.rows import Row, Tables, choices
from beir_cocodr.training.shared_options import TrainingOptions, Workload

# A default that depends on other options, and that the class fills in at once.
_FILLED_IN: Any = None
_DEFAULTS: Json = {"batch_size": 2048, "learning_rate": 1e-4, "max_length": 128}


def _objectives_help() -> str:
    """Return the help of ``--objective``."""
    on_documents = [name for name, row in OBJECTIVES.items() if not row.on_queries]
    on_queries = [name for name, row in OBJECTIVES.items() if row.on_queries]
    listed = choices(on_documents, "default", "or")
    return f"Train with this objective: {listed}; with --queries, {' or '.join(on_queries)}."


def _names_help(prefix: str, table: Mapping[str, Row], remark: str = "default") -> str:
    """Return the help of an option that chooses a row of a table."""
    return f"{prefix}: {choices(table, remark, 'or')}."


@dataclass(frozen=True)
class PretrainOptions(TrainingOptions):
    """Options of pre-training on a corpus without labels.

    The defaults are those of COCO (COCO-DR, section 4.1 and appendix B): 8 epochs at 1e-4 with
    global batches of about 2,048. Query-as-context pre-training (section 4.1) trains qc at 1e-4
    with 2,048, and cotmae at 4e-4 with 16,384.

    Args:
        objective: name of a row of :data:`~beir_cocodr.training.pretraining.objectives.OBJECTIVES`.
        objective_options: the row's own options; None means their defaults.
        epochs: passes over the data.
        batch_size: examples of a step; None means the objective's default.
        learning_rate: peak of the schedule; None means the objective's default.
        span_tokens: most tokens of a span (published code: 30).
        whole_sentences: whether a sentence of more than ``span_tokens`` tokens stays whole, and
            documents need two sentences (published code). False divides such a sentence.
        flush_probability: chance that a span ends early after a sentence (published code: 0.1).
        max_length: tokens that a sequence is cut to. None means 128, and 144 for qc and cotmae.
        encoder_dropout: whether the encoder has dropout. None means off for coco, as in published
            COCO-DR, and on for the others.
    """

    TABLES: ClassVar[Tables] = {"objective": OBJECTIVES}

    objective: str = option("coco", _objectives_help, choices=OBJECTIVES)
    objective_options: Options | None = None
    epochs: float = 8
    batch_size: int = _FILLED_IN
    learning_rate: float = _FILLED_IN
    span_tokens: int = option(30, "Use at most this many tokens in a span.", min=1)
    whole_sentences: bool = option(False)
    flush_probability: float = option(0.1, min=0, max=1)
    max_length: int = option(_FILLED_IN, "Cut sequences to this many tokens.", min=3)
    encoder_dropout: bool | None = option(
        None, "Use dropout in the encoder. Default: off for coco, on otherwise."
    )

    def __post_init__(self) -> None:
        """Fill in the objective's defaults, and check the options, also against each other."""
        is_known = isinstance(self.objective, str) and self.objective in OBJECTIVES
        own_options = OBJECTIVES[self.objective].defaults if is_known else {}
        for name, value in (_DEFAULTS | dict(own_options)).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        objective = self.row("objective")
        if self.batch_size < 2 and objective.contrastive:
            raise InputError(
                "batch_size must be at least 2: a text is compared with those of other documents"
            )
        if self.span_tokens > self.max_length - 2:
            raise InputError(
                f"span_tokens {self.span_tokens} must lie between 1 and max_length minus two "
                f"special tokens, {self.max_length - 2}"
            )
        masked_only = objective.masked and not objective.contrastive and not objective.decoder
        if masked_only and self.language_model_weight == 0:
            raise InputError(
                f"mlm_weight {self.language_model_weight} leaves {self.objective} nothing to train"
            )
        if objective.needs_dropout and self.encoder_dropout is False:
            raise InputError(
                f"{self.objective} needs encoder_dropout: its two copies differ by dropout alone"
            )

    def longest_text(self) -> int:
        """Return the most tokens of a text in training."""
        if isinstance(self.objective_options, SpanPairOptions) and not self.whole_sentences:
            return self.span_tokens + 2  # and the special tokens
        return self.max_length

    @property
    def language_model(self) -> LanguageModelOptions:
        """Return the own options of an objective with language-model losses."""
        assert isinstance(self.objective_options, LanguageModelOptions)
        return self.objective_options

    @property
    def language_model_weight(self) -> float:
        """Return the weight of the language-model losses; 0 if the objective has none."""
        own_options = self.objective_options
        if isinstance(own_options, LanguageModelOptions):
            return own_options.mlm_weight
        return 0.0

    @property
    def keeps_dropout(self) -> bool:
        """Return true if the encoder trains with dropout."""
        if self.encoder_dropout is not None:
            return self.encoder_dropout
        default: bool = self.row("objective").dropout
        return default

    @property
    def masked(self) -> bool:
        """Return true if texts are masked for language-model losses."""
        return self.row("objective").decoder or self.language_model_weight > 0


@dataclass(frozen=True)
class NegativeFilters(Options):
    """Filters that remove likely false negatives from mined candidates.

    All are off by default, as in COCO-DR and ANCE. They apply in the order below, each to what the
    earlier ones left. The two on scores are those of sentence-transformers'
    ``mine_hard_negatives``, except for queries with several positives: the margin is taken from
    the positive with the best score. The host takes the one with the worst score, and a single
    positive that the model does not find then removes every candidate.

    Args:
        relative_margin: m in [0, 1). With p the score of the best positive, a candidate that
            scores above p − m·|p| is removed; for a positive p that is p·(1 − m).
        max_score: a candidate that scores above it is removed.
        duplicates: a candidate is removed if its text (title and text, as the encoder reads them)
            is that of a positive, or of a candidate with a better score.

    References:
        sentence-transformers, ``mine_hard_negatives``; the relative margin is that of NV-Retriever
        (Moreira et al., 2024, "TopK-PercPos"; 0.05 there).
    """

    relative_margin: float | None = option(None, min=0, below=1)
    max_score: float | None = option(None)
    duplicates: bool = option(False)

    @property
    def active(self) -> Json:
        """Return the filters that are on, with their values, in the order in which they apply."""
        active: Json = {}
        for option_field in fields(NegativeFilters):
            value = getattr(self, option_field.name)
            if value is not None and value is not False:
                active[option_field.name] = value
        return active


@dataclass(frozen=True)
class MiningOptions(NegativeFilters):
    """When and how the model that is trained mines hard negatives itself.

    Args:
        episodes: trainings after the BM25 warm-up, each on negatives and clusters from the model
            of the one before (paper: 3).
        stages: with 2, a second retriever starts again from the base, on negatives that the first
            one mined (query-as-context pre-training, section 3.2).
        stage2_negatives: "both" draws from BM25's and the mined negatives together, as in the
            paper; "mined" from the mined ones alone, as in the published script.
        depth: documents retrieved for a query (published: 200).
        keep: negatives drawn of them at random, known positives removed (published: 30).
    """

    episodes: int = option(
        0,
        "After training on BM25's negatives, train this many more times, on negatives that the "
        "model itself mines. Default: 0.",
        min=0,
        max=1_000,
    )
    stages: int = option(
        1,
        "With 2, train a second retriever from the same start, on negatives that the first one "
        "mines. Default: 1.",
        min=1,
        max=2,
    )
    stage2_negatives: str = option(
        "both",
        "Use these negatives in the second stage: both (BM25's and mined ones; default) or mined.",
        choices=("both", "mined"),
    )
    depth: int = option(200, min=1)
    keep: int = option(30, min=1)

    @property
    def rounds(self) -> bool:
        """Return true if the model is trained several times."""
        return self.episodes > 0 or self.stages == 2

    def __post_init__(self) -> None:
        """Check the options, also against each other."""
        super().__post_init__()
        if self.stages == 2 and self.episodes:
            raise InputError(
                f"stages 2 and episodes {self.episodes} are two ways to mine negatives; "
                "leave one of them out"
            )
        if self.depth < self.keep:
            raise InputError(f"mining_depth {self.depth} must be at least mining_keep {self.keep}")


@dataclass(frozen=True)
class EpisodeOptions(Options):
    """Options in which the episodes of a fine-tuning differ; None means as in the others.

    Args:
        bm25_plain: whether the warm-up on BM25's negatives, episode 0, counts all queries alike
            whatever the weighting (published code).
        bm25_learning_rate: peak of the schedule in the warm-up (published: 2e-4, in its script
            1e-4).
        bm25_batch_size: examples of a step of the warm-up (published: 256 a GPU).
        bm25_max_steps: steps of the warm-up.
        bm25_warmup: steps of the warm-up in which the rate rises (published: 1,000).
        peak_steps: N, with which the peak rate of an episode is multiplied by max(0.2, 1 − s/N)
            where s are the steps of the episodes before it, the warm-up not counted (published:
            300,000).
    """

    bm25_plain: bool = option(False)
    bm25_learning_rate: float | None = option(None, above=0)
    bm25_batch_size: int | None = option(None, min=1)
    bm25_max_steps: int | None = option(None, min=1)
    bm25_warmup: float | None = option(None, min=0)
    peak_steps: int | None = option(None, min=1)

    def warm_up_budget(self) -> Keywords:
        """Return the options of length and rate that the warm-up sets for itself, by name."""
        changed = {
            "learning_rate": self.bm25_learning_rate,
            "batch_size": self.bm25_batch_size,
            "max_steps": self.bm25_max_steps,
            "warmup": self.bm25_warmup,
        }
        return {name: value for name, value in changed.items() if value is not None}

    def peak_share(self, steps_before: int) -> float:
        """Return the share of the peak rate that is left after the steps of earlier episodes."""
        if self.peak_steps is None:
            return 1.0
        return max(_LEAST_PEAK, 1 - steps_before / self.peak_steps)


# Least share of the peak rate in the episodes of the published code.
_LEAST_PEAK = 0.2


@dataclass(frozen=True)
class HeldOut(Options):
    """Queries that choose the checkpoint instead of being trained on.

    Args:
        held_out: share of the training queries, drawn by the seed.
        most_held_out: most queries that choose.
        select_split: a split of the dataset whose queries choose. None of the training queries is
            held out then, and those of the split count as trained on.
        select_epochs: passes over the data, or a part of one, between two measurements of the
            held-out queries: MRR@10 among their relevant documents and BM25's 100 best others. The
            best checkpoint is kept. None means 1.
    """

    held_out: float = option(
        0.0,
        "Choose the checkpoint by this share of the training queries, which are not trained on.",
        min=0,
        below=1,
    )
    most_held_out: int = option(500, min=1)
    select_split: str | None = option(
        None, "Choose the checkpoint by the queries of this split, such as dev.", is_name=True
    )
    select_epochs: float | None = option(None, above=0)


@dataclass(frozen=True)
class FinetuneOptions(HeldOut, TrainingOptions):
    """Options of fine-tuning on labelled queries with hard negatives.

    Steps, epochs and schedule are those of one episode, where the BM25 warm-up is episode 0, or of
    one stage.

    Args:
        loss: name of a row of :data:`~beir_cocodr.training.finetuning.loss_rows.LOSSES`. None means
            infonce for the weighting erm without episodes, else triplet (COCO-DR, Eq. 2).
        loss_options: the loss's own options; None means their defaults.
        weighting: name of a row of :data:`~beir_cocodr.training.finetuning.weightings.WEIGHTINGS`.
        weighting_options: the weighting's own options; None means their defaults.
        negatives: hard negatives of a query in a step, drawn again each epoch; 0 leaves in-batch
            negatives only.
        negative_depth: results of BM25 that negatives are drawn from, known positives removed.
        hard_negatives: a file of hard negatives that replaces BM25's: GPL's form, columns of texts
            as sentence-transformers has them, or a TREC run, see
            :func:`~beir_cocodr.training.hard_negatives.negative_files.read_hard_negatives`.
        consecutive: triplets of a pair, each with negatives of its own, that come one after the
            other (published: 6). The others are shuffled.
        mining: negatives that the model mines itself, in episodes or stages.
        episode_options: what differs between the episodes.
        targets: collections with labels in their split "test" that base and model are evaluated on
            after every episode or stage.
        measures: the measures of that evaluation, see
            :func:`~beir_cocodr.evaluation.evaluate.evaluate`. None means nDCG@10 and R@100.
    """

    TABLES: ClassVar[Tables] = {"loss": LOSSES, "weighting": WEIGHTINGS}
    UNRECORDED: ClassVar[tuple[str, ...]] = ("targets", "measures")

    loss: str = option(
        _FILLED_IN,
        lambda: (
            f"Train with this loss: {' or '.join(LOSSES)}. Default: infonce for erm without "
            "episodes, triplet otherwise."
        ),
        choices=LOSSES,
    )
    loss_options: Options | None = None
    weighting: str = option(
        "erm",
        lambda: (
            f"Weight clusters of queries by {choices(WEIGHTINGS, 'equal weights; default', 'or')}."
        ),
        choices=WEIGHTINGS,
    )
    weighting_options: Options | None = None
    negatives: int = option(1, "Draw this many hard negatives for each query in each step.", min=0)
    negative_depth: int = option(30, min=1)
    hard_negatives: str | None = option(
        None,
        "Read hard negatives from this file instead of mining BM25's: hard-negatives.jsonl as "
        "export and GPL write it, columns of texts, or a TREC run.",
        is_name=True,
    )
    consecutive: int = option(1, min=1, max=1_000)
    mining: MiningOptions = MiningOptions()
    episode_options: EpisodeOptions = EpisodeOptions()
    targets: tuple[object, ...] = ()
    measures: Any = None

    def __post_init__(self) -> None:
        """Fill in the loss, and check the options, also against each other."""
        check_options_type(self.mining, MiningOptions, "mining")
        if not isinstance(self.targets, list | tuple):
            object.__setattr__(self, "targets", (self.targets,))
        if self.loss is None:
            plain = str(self.weighting) == "erm" and not self.mining.episodes
            object.__setattr__(self, "loss", "infonce" if plain else "triplet")
        super().__post_init__()
        if self.seed + self.mining.episodes > SEED_MAX:  # each episode has the next seed
            raise InputError(
                f"seed {self.seed} and episodes {self.mining.episodes} lead beyond the largest "
                f"seed, {SEED_MAX}"
            )
        if self.targets and not self.mining.rounds:
            raise InputError(
                "targets are evaluated after every episode or stage: set episodes to 1 or stages "
                "to 2"
            )
        self._check_loss_fits_weighting()
        self._check_negatives()
        self._check_consecutive()

    def _check_loss_fits_weighting(self) -> None:
        if self.weighted and not self.row("loss").weighable:
            weighable = [name for name, loss in LOSSES.items() if loss.weighable]
            raise InputError(
                f"the weighting {self.weighting} cannot weight the loss {self.loss}; choose "
                f"{' or '.join(weighable)}, or the weighting erm"
            )

    def _check_consecutive(self) -> None:
        if self.consecutive > 1 and self.row("loss").in_batch:
            raise InputError(
                f"consecutive {self.consecutive} puts a query into a batch several times, where "
                f"the loss {self.loss} compares it with itself; choose the loss triplet, or leave "
                "consecutive out"
            )

    def _check_negatives(self) -> None:
        needing = {
            "a batch of one query": self.batch_size == 1,
            "the loss triplet": self.loss == "triplet",
            "a fine-tuning in episodes": self.mining.episodes > 0,
            "a fine-tuning in stages 2": self.mining.stages == 2,
            "a file of hard_negatives": self.hard_negatives is not None,
        }
        for what_needs, needed in needing.items():
            if needed and not self.negatives:
                raise InputError(
                    f"{what_needs} needs hard negatives for each query: set negatives to 1 or "
                    "more, or change it"
                )

    @property
    def weighted(self) -> bool:
        """Return true if clusters of queries are weighted."""
        return self.row("weighting").build is not None

    @property
    def clustering(self) -> ClusterOptions:
        """Return the own options of a weighting of clusters."""
        assert isinstance(self.weighting_options, ClusterOptions)
        return self.weighting_options

    @property
    def scale(self) -> float | None:
        """Return the factor on scores of a contrastive loss; None means the model's own."""
        own_options = self.loss_options
        if isinstance(own_options, ScaleOptions):
            return own_options.scale
        return None

    def workload(self, examples: int) -> Workload:
        """Return what a training over so many examples reads, in all rounds."""
        searches = self.mining.episodes + self.mining.stages - 1
        rows = examples * self.consecutive
        steps = self.steps_for(rows) * (1 + searches)
        warm_up = self.episode_options.warm_up_budget()
        if self.mining.episodes and warm_up:
            steps += replace(self, **warm_up).steps_for(rows) - self.steps_for(rows)
        return Workload(steps, 2 + self.negatives, searches)


@dataclass(frozen=True)
class DistillOptions(HeldOut, TrainingOptions):
    """Options of listwise distillation of a teacher's scores (MRL, sections 4.2 and 5.1).

    Args:
        batch_size: queries of a step.
        learning_rate: peak of the schedule.
        warmup: steps in which the rate rises.
        weight_decay: AdamW's weight decay.
        student: name of a row of :data:`~beir_cocodr.training.distillation.teacher_rows.STUDENTS`.
        student_options: the student's own options; None means their defaults.
        loss: name of a row of
            :data:`~beir_cocodr.training.finetuning.loss_rows.DISTILLATION_LOSSES`.
        loss_options: the loss's own options; None means their defaults.
        teacher_options: the teacher's own options; None means their defaults.
        anchors: the documents that a list is built around. "relevant" are those that labels call
            relevant. "fused", for generated queries, are the best of the fusion of BM25 and the
            start encoder without the relevant ones: that a query leads to the passage it was made
            from teaches nothing.
        positives: most anchors in a query's list; if there are more, they are drawn at random.
        m_bm25: documents of BM25's best ``candidates`` in a list (the paper does not say).
        m_hard: documents of the student's own best ``candidates`` in a list.
        m_easy: documents in a list that are drawn from the whole corpus.
        merge_on: kind of generated queries that is not trained on, and on which the share of the
            distilled weights in a mean with those of the start is chosen; "crops" are runs of words
            that are cut out of documents. None merges nothing.
        candidates: documents that each of the two finds.
        refresh_steps: steps after which the student's own candidates are searched again.
        held_out: share of the queries that are not trained on, at most ``most_held_out``.
        select_epochs: None measures the held-out queries at every refresh by a search of the whole
            corpus, and stops by ``patience``. A number is as in fine-tuning, and all steps are
            made.
        patience: refreshes without a better MRR@10 after which training stops.
    """

    TABLES: ClassVar[Tables] = {"student": STUDENTS, "loss": DISTILLATION_LOSSES}
    FREE_TABLES: ClassVar[Tables] = {"teacher": TEACHERS}

    batch_size: int = 512
    learning_rate: float = 5e-6
    warmup: float = 4_000
    weight_decay: float = 0.0
    student: str = option(
        "dot",
        lambda: _names_help("Train this student", STUDENTS),
        choices=STUDENTS,
    )
    student_options: Options | None = None
    loss: str = option(
        "lambdarank",
        lambda: _names_help("Train with this loss", DISTILLATION_LOSSES),
        choices=DISTILLATION_LOSSES,
    )
    loss_options: Options | None = None
    teacher_options: Options | None = None
    anchors: str = option("relevant", choices=("relevant", "fused"))
    positives: int = option(4, min=1)
    m_bm25: int = option(4, min=0)
    m_hard: int = option(4, min=0)
    m_easy: int = option(0, min=0)
    merge_on: str | None = option(None, choices=(*QUERY_KINDS, "crops"))
    candidates: int = option(100, min=1)
    refresh_steps: int = option(5_000, min=1)
    held_out: float = 0.1
    patience: int = option(3, min=1)

    def __post_init__(self) -> None:
        """Check the options, also against each other."""
        super().__post_init__()
        if max(self.m_bm25, self.m_hard) > self.candidates:
            raise InputError(
                f"m_bm25 {self.m_bm25}, m_hard {self.m_hard}: a list takes at most the "
                f"{self.candidates} candidates of each"
            )
        if self.m_bm25 + self.m_hard == 0:
            raise InputError("a list needs documents that are not relevant: raise m_bm25 or m_hard")

    @property
    def list_size(self) -> int:
        """Return n, the documents in a query's list."""
        return self.positives + self.m_bm25 + self.m_hard + self.m_easy

    def cached_mini_batch(self) -> int | None:
        """Return the texts that gradient caching embeds at a time; None if a batch fits."""
        from beir_cocodr.distributed import world_size

        cached = super().cached_mini_batch()
        if cached is not None or not self.row("loss").caches_columns:
            return cached
        lists = self.batch_size // world_size()
        if lists * (1 + self.list_size) <= self.mini_batch_size:
            return None
        return lists

    def workload(self, examples: int) -> Workload:
        """Return what a training over so many queries reads."""
        steps = self.steps_for(examples)
        lists = steps * self.batch_size
        return Workload(
            steps=steps,
            texts=1 + self.list_size,
            searches=-(-steps // self.refresh_steps),
            lists=lists,
            pairs=lists * self.list_size,
            merged_on=0 if self.merge_on is None else min(self.most_held_out, examples),
        )
