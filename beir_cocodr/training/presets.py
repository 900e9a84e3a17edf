"""Presets, the stages of an adaptation, and how a stage's options are made.

They are made from the papers' settings and small ones, as data, and from what a user sets. Nothing
here imports torch: the command line's help is made from these tables.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args

from beir_cocodr.errors import InputError, Limits, check_options_type, check_type, kind_of, quoted
from beir_cocodr.io import parse_json
from beir_cocodr.models.option_fields import type_hints
from beir_cocodr.models.spec import FuseOptions, Options
from beir_cocodr.records import Json
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions
from beir_cocodr.training.rows import Row
from beir_cocodr.training.shared_options import (
    FORMER_NAMES,
    TrainingOptions,
    options_of,
    setting_fields,
)


class _PerProcess(int):
    """A batch size of one process, to be multiplied by their number."""


# Only what differs from the defaults, which are the papers' too, or what depends on the objective.
# COCO-DR, section 5 and appendix B; warm-up and steps as published with the code. The paper's
# batches: 8 GPUs of 200 documents, and 64 triplets a GPU.
_PRETRAINED: Json = {"batch_size": 2048, "mini_batch_size": 64, "learning_rate": 1e-4}
_COCO: Json = _PRETRAINED | {"max_length": 128}

_IDRO: Json = {
    "loss": "triplet",
    "weighting": "idro",
    "episodes": 3,
    "negative_depth": 200,
    "batch_size": 64,
    "max_steps": 45_000,
    "learning_rate": 5e-6,
    "warmup": 3_000,
    "gradient_layers": 3,
}

# Query-as-context pre-training, sections 4.1 and 4.2; its code cuts queries to 32 and passages to
# 144 tokens. With gradient caching, as in the published runs, the code's language-model losses add
# up to twice that without: weight 2.
_QUERIES: Json = _PRETRAINED | {"objective": "qc", "mlm_weight": 2.0, "max_steps": 120_000}

_COTMAE: Json = _QUERIES | {
    "objective": "cotmae",
    "mlm_weight": 1.0,
    "max_steps": 50_000,
    "batch_size": 16_384,
    "learning_rate": 4e-4,
    "mask_probability": 0.3,
}

_TWO_STAGES: Json = {
    "stages": 2,
    "loss": "infonce",
    "negatives": 15,
    "negative_depth": 200,
    "keep": 200,
    "batch_size": 64,
    "epochs": 3,
    "query_length": 32,
    "document_length": 144,
}

_SMALL: Json = {"max_steps": 40, "learning_rate": 2e-5, "warmup": 0.1}
_SMALL_PASSAGES: Json = _SMALL | {"batch_size": 32, "mini_batch_size": 16}

# cocodr-*: what the paper's text states, and where it is silent what the code does. Batches are
# those of one GPU; K-means has 5 runs of 500 iterations on 256 queries a centroid. The text gives
# iDRO no temperature, so that its weights move as in the code, which resets those of absent
# clusters. Spans have at most 30 tokens, as in the code: few documents have two of the 128 tokens
# that the text allows a sequence.
_COCODR_COCO: Json = _COCO | {
    "batch_size": _PerProcess(200),
    "epochs": 8,
    "span_tokens": 30,
    "weight_decay": 0.01,
}
_KMEANS: Json = {
    "clusters": 50,
    "kmeans_restarts": 5,
    "kmeans_iterations": 500,
    "kmeans_points": 256,
}
_COCODR_IDRO: Json = (
    _IDRO
    | _KMEANS
    | {
        "batch_size": _PerProcess(64),
        "mode": "published",
        "absent": "reset",
        "query_length": 64,
        "document_length": 128,
    }
)

# cocodr-*-released: what the released commands and code do. The warm-up's steps are three passes
# over the 35 million triplets that its script expects, in batches of eight GPUs.
_RELEASED_COCO: Json = _COCODR_COCO | {"whole_sentences": True}
_RELEASED_IDRO: Json = _COCODR_IDRO | {
    "optimizer": "lamb",
    "weight_decay": 0.0,
    "scope": "rank",
    "consecutive": 6,
    "document_length": 256,
    "bm25_plain": True,
    "bm25_learning_rate": 2e-4,
    "bm25_batch_size": _PerProcess(256),
    "bm25_max_steps": 51_267,
    "bm25_warmup": 1_000.0,
    "peak_steps": 300_000,
}
_RELEASED_LARGE: Json = {
    "batch_size": _PerProcess(32),
    "bm25_learning_rate": 5e-5,
}

# MRL, section 6.2. The paper chooses rate and beta from grids on held-out queries, and does not
# print the choice.
_MRL: Json = {
    "student": "mrl",
    "loss": "lambdarank",
    "batch_size": 512,
    "candidates": 100,
    "warmup": 4_000,
    "refresh_steps": 5_000,
}

# Wang et al., 2022 (GPL), section 4.1: one mined negative a query, 50 of each miner, 140,000 steps.
# Held-out generated queries must not end this training or choose among its weights, nor those of
# distill: they tell how well a query finds the passage that it was made from, and not
# whether the retriever got better.
_GPL: Json = {
    "loss": "margin_mse",
    "positives": 1,
    "m_bm25": 0,
    "m_hard": 1,
    "candidates": 50,
    "held_out": 0.0,
    "batch_size": 32,
    "learning_rate": 2e-5,
    "max_steps": 140_000,
    "warmup": 1_000,
    "refresh_steps": 140_000,
}

# Extrapolation, section 5.1.2: BERT, BM25's 1,000 best reranked, all others from the whole corpus;
# hard negatives as in section 5.2.2. Epochs, batch, rate and lengths are not printed: as usual for
# MS MARCO. The best of every second epoch is kept by held-out queries, where the paper has the
# development set.
_EXTRAPOLATION: Json = {
    "start": "bert-base-uncased",
    "epochs": 20,
    "batch_size": 128,
    "learning_rate": 1e-5,
    "rerank": 1_000,
    "candidates": "tokens",
    "hard_negatives": "mined",
    "teacher": "cross-encoder",
    "query_length": 32,
    "document_length": 128,
    "held_out": 0.05,
    "select_epochs": 2.0,
}

_LARGE: Json = {"max_steps": 30_000, "gradient_layers": 2}
_SMALL_IDRO: Json = {"clusters": 8, "episodes": 1, "batch_size": 16, "gradient_layers": None}

#: Preset to stage to settings; what a preset does not name keeps its default. Stages are the
#: commands "pretrain", "finetune" and "distill", those of ``adapt`` that are not one of these as
#: it is ("adapt distill" for its ``distill``), and "resample evaluate".
PRESETS: dict[str, dict[str, Json]] = {
    "cocodr-base": {"pretrain": _COCODR_COCO, "finetune": _COCODR_IDRO},
    "cocodr-large": {
        "pretrain": _COCODR_COCO | {"learning_rate": 1e-5},
        "finetune": _COCODR_IDRO | _LARGE,
    },
    "cocodr-base-released": {"pretrain": _RELEASED_COCO, "finetune": _RELEASED_IDRO},
    "cocodr-large-released": {
        "pretrain": _RELEASED_COCO | {"learning_rate": 1e-5, "batch_size": _PerProcess(100)},
        "finetune": _RELEASED_IDRO | _LARGE | _RELEASED_LARGE,
    },
    "mrl": {"distill": _MRL},
    "gpl": {"distill": _GPL},
    "extrapolation": {"resample evaluate": _EXTRAPOLATION},
    # Whole batches of about the same size, whatever the number of GPUs, and iDRO's stable mode.
    "base": {"pretrain": _COCO, "finetune": _IDRO},
    "large": {"pretrain": _COCO | {"learning_rate": 1e-5}, "finetune": _IDRO | _LARGE},
    "qc": {"pretrain": _QUERIES, "finetune": _TWO_STAGES},
    "cotmae": {"pretrain": _COTMAE, "finetune": _TWO_STAGES},
    # The whole recipe on two cores in minutes, to see it work; not a setting of a paper.
    "cpu": {
        "pretrain": _COCO | _SMALL | {"batch_size": 64, "mini_batch_size": 32},
        "finetune": _IDRO | _SMALL | _SMALL_IDRO,
        "cotmae": _SMALL_PASSAGES,
        "qc": _SMALL_PASSAGES,
        "qgen": _SMALL | {"batch_size": 16},
        "gpl": _SMALL | {"batch_size": 16, "refresh_steps": 40},
        "adapt distill": _SMALL | {"refresh_steps": 40},
    },
}


#: Options of a stage of an adaptation.
StageOptions = TrainingOptions | FuseOptions

T = TypeVar("T", bound=Options)


def stage_options(
    kind: type[T],
    stage: str,
    preset: str | None,
    assignments: Sequence[str] = (),
    defaults: Mapping[str, object] | None = None,
    **overrides: object,
) -> T:
    """Return a stage's options from four layers.

    The layers, each over the ones before: the defaults, a preset, ``name=value`` assignments, and
    overrides that are not None.

    Args:
        kind: the class of the options.
        stage: the stage of a preset: "pretrain", "finetune", or a stage of ``adapt``.
        preset: a name of :data:`PRESETS`, or None.
        assignments: values as JSON, or plain words.
        defaults: settings below the preset, over the class's own defaults.
        **overrides: settings by name.

    Raises:
        InputError: The preset has nothing for the stage, or a setting is unknown, has a wrong
            value, or belongs to a loss, weighting or other row that is not chosen. Settings of the
            preset that do are left out.
    """
    if preset is not None and stage not in PRESETS.get(preset, {}):
        having = [name for name, stages in PRESETS.items() if stage in stages]
        raise InputError(
            f"preset {preset!r} has no settings for {stage}; choose one of {', '.join(having)}"
        )
    preset_settings = _for_all_processes(PRESETS[preset][stage] if preset else {})
    user_settings = dict(_assigned(kind, assignment) for assignment in assignments)
    user_settings |= {name: value for name, value in overrides.items() if value is not None}
    present = {FORMER_NAMES.get(name, name): value for name, value in user_settings.items()}
    of_preset = frozenset(preset_settings.keys() - present.keys())
    return options_of(kind, dict(defaults or {}) | preset_settings | present, of_preset)


def _for_all_processes(settings: Mapping[str, object]) -> dict[str, object]:
    """Return a preset's settings with the batches of all processes, as torchrun counts them."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    return {
        name: value * processes if isinstance(value, _PerProcess) else value
        for name, value in settings.items()
    }


def _assigned(kind: type[Options], assignment: str) -> tuple[str, Any]:
    """Return name and value of a ``name=value`` assignment."""
    name, equals, text = assignment.partition("=")
    owners = {option_field.name: owner for owner, option_field in setting_fields(kind)}
    owner = owners.get(FORMER_NAMES.get(name, name))
    if not equals or owner is None:
        known = ", ".join(sorted({*owners, *FORMER_NAMES}))
        raise InputError(f"--set {assignment}: give NAME=VALUE with a name of {known}")
    try:
        value = parse_json(text)
    except ValueError:
        value = text
    hint = type_hints(owner)[FORMER_NAMES.get(name, name)]
    allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if float in allowed and type(value) is int:
        value = float(value)
    if type(value) not in allowed:
        wanted = " or ".join("null" if one is NoneType else one.__name__ for one in allowed)
        raise InputError(f"--set {assignment}: {name} must be {wanted}")
    return name, value


@dataclass(frozen=True, kw_only=True)
class AdaptStage(Row):
    """A stage of an adaptation.

    ``build`` names what trains it: it is called with a
    :class:`~beir_cocodr.training.stages.StageRun` and returns the record of the training.

    Attributes:
        folder: its part of the names of model folders.
        title: its name in tables.
        options: the class of its options.
        settings: settings that differ from that class's defaults.
        needs_queries: whether it needs generated queries.
        needs_source: whether it trains on the labelled collection.
        needs_kinds: whether it learns from generated queries of several kinds.
        preset: what presets call it, if not by its name.
    """

    folder: str
    title: str
    options: type[TrainingOptions] | type[FuseOptions]
    settings: Mapping[str, object] = field(default_factory=dict)
    needs_queries: bool = False
    needs_source: bool = False
    needs_kinds: bool = False
    preset: str = ""

    @property
    def trains(self) -> bool:
        """Return true if the stage trains the encoder; ``fuse`` joins it with BM25."""
        return issubclass(self.options, TrainingOptions)


_STAGES = "beir_cocodr.training.stages"

# Ma et al., 2021 (QGen): in-batch negatives alone.
_QGEN: Json = {"loss": "infonce", "negatives": 0}

# Lists of 16: the best of the teacher's ranking, hard negatives of BM25 and the student, easy ones.
_DISTILL: Json = {
    "loss": "kl_margin",
    "anchors": "fused",
    "positives": 6,
    "m_bm25": 3,
    "m_hard": 4,
    "m_easy": 3,
    "candidates": 30,
    "held_out": 0.0,
    "batch_size": 8,
    "learning_rate": 2e-5,
    "warmup": 0.1,
    "most_held_out": 100,
}

#: Name to stage, in the right order: unsupervised before supervised, as pre-training on a small
#: corpus hurts an encoder that was fine-tuned; then pseudo labels of the target; BM25 last. Add a
#: row for your own.
ADAPT_STAGES: dict[str, AdaptStage] = {
    "coco": AdaptStage(
        build=f"{_STAGES}:pretrain_stage", folder="coco", title="COCO", options=PretrainOptions
    ),
    "cotmae": AdaptStage(
        build=f"{_STAGES}:pretrain_stage",
        folder="cotmae",
        title="CoT-MAE",
        options=PretrainOptions,
        settings={"objective": "cotmae"},
        needs_queries=True,
    ),
    "qc": AdaptStage(
        build=f"{_STAGES}:pretrain_stage",
        folder="qc",
        title="QC",
        options=PretrainOptions,
        settings={"objective": "qc"},
        needs_queries=True,
    ),
    "finetune": AdaptStage(
        build=f"{_STAGES}:source_stage",
        folder="source",
        title="source",
        options=FinetuneOptions,
        needs_source=True,
    ),
    "qgen": AdaptStage(
        build=f"{_STAGES}:qgen_stage",
        folder="qgen",
        title="QGen",
        options=FinetuneOptions,
        settings=_QGEN,
        needs_queries=True,
        citations=("ma2021qgen",),
    ),
    "gpl": AdaptStage(
        build=f"{_STAGES}:gpl_stage",
        folder="gpl",
        title="GPL",
        options=DistillOptions,
        settings=_GPL,
        needs_queries=True,
        citations=("wang2022gpl",),
    ),
    "distill": AdaptStage(
        build=f"{_STAGES}:distill_stage",
        folder="distill",
        title="distill",
        options=DistillOptions,
        settings=_DISTILL,
        needs_queries=True,
        needs_kinds=True,
        preset="adapt distill",
    ),
    "fuse": AdaptStage(
        build=f"{_STAGES}:fuse_stage",
        folder="fuse",
        title="fuse",
        options=FuseOptions,
        citations=("robertson2009bm25",),
    ),
}


def adapt_options(stage: str, preset: str | None = None, **overrides: Any) -> Any:
    """Return a stage's options: its own settings, over them a preset, over it the overrides.

    Args:
        stage: a name of :data:`ADAPT_STAGES`.
        preset: a name of :data:`PRESETS`; one of other stages of the chain changes nothing here.
        **overrides: settings by name; None keeps what the layers below say.
    """
    stage = FORMER_STAGES.get(stage, stage)
    row = ADAPT_STAGES[stage]
    settings = {name: value for name, value in overrides.items() if value is not None}
    if not row.trains:  # no steps and no batches
        known = row.options.__dataclass_fields__
        settings = {name: value for name, value in settings.items() if name in known}
    key = _preset_key(preset, stage)
    if key is None and preset in PRESETS:
        preset = None
    return stage_options(row.options, key or stage, preset, defaults=row.settings, **settings)


def _preset_key(preset: str | None, stage: str) -> str | None:
    """Return what a preset calls a stage of ``adapt``; None if it has nothing for the stage."""
    row = ADAPT_STAGES[stage]
    settings = PRESETS.get(preset or "", {})
    key = row.preset or stage
    if key in settings:
        return key
    if row.options is not PretrainOptions or "pretrain" not in settings:
        return None
    # The settings for "pretrain" are of one objective.
    same = settings["pretrain"].get("objective", "coco") == row.settings.get("objective", "coco")
    return "pretrain" if same else None


def check_preset(preset: str | None, stages: Sequence[str]) -> None:
    """Check that a preset has settings for some stage of a chain.

    Raises:
        InputError: It has none; the message names the presets that have.
    """
    having = [name for name in PRESETS if any(_preset_key(name, stage) for stage in stages)]
    if preset is not None and preset not in having:
        raise InputError(
            f"preset {preset!r} has no settings for {', '.join(stages)}; choose one of "
            f"{', '.join(having)}"
        )


#: Former names of stages, which go on working without being shown.
FORMER_STAGES = {"hybrid-distill": "distill"}

#: The teacher of the stage ``distill`` that needs no labels and no other model.
BEST_RANKING = "rm3"

#: The stages of an adaptation that names none.
DEFAULT_STAGES = ("coco", "finetune")

#: The cross-encoder of GPL.
GPL_TEACHER = "cross-encoder/ms-marco-MiniLM-L-6-v2"


def chosen_stages(stages: Sequence[str]) -> list[str]:
    """Return the stages in the right order.

    Raises:
        InputError: No stage is named, or one is unknown.
    """
    stages = [FORMER_STAGES.get(stage, stage) for stage in stages]
    for stage in stages:
        Limits(choices=list(ADAPT_STAGES)).check("name in stages", stage)
    if not stages:
        raise InputError(f"no stages are named; choose from {', '.join(ADAPT_STAGES)}")
    return [stage for stage in ADAPT_STAGES if stage in stages]


def chosen_options(
    stages: object, stage_options: Mapping[str, StageOptions]
) -> dict[str, StageOptions]:
    """Return the options of chosen stages, in the right order of the stages.

    Args:
        stages: names of stages, or one name.
        stage_options: stage to its options; the others have those of :func:`adapt_options`.

    Raises:
        InputError: No stage is named, one is unknown, or options are not those of their stage.
    """
    names = [stages] if isinstance(stages, str) else stages
    if not isinstance(names, Collection):
        raise InputError(f"stages is {kind_of(stages)}; give names of stages")
    for name in names:
        check_type("a name in stages", name, str, "a text")
    chosen = chosen_stages(list(names))
    options = {}
    for former, value in stage_options.items():
        stage = FORMER_STAGES.get(former, former)
        if stage not in chosen:
            raise InputError(
                f"stage_options has {quoted(former)}, which is not among the stages "
                f"{', '.join(chosen)}; name that stage in stages, or leave it out"
            )
        check_options_type(value, ADAPT_STAGES[stage].options, f"stage_options[{former!r}]")
        options[stage] = value
    return {stage: options.get(stage) or adapt_options(stage) for stage in chosen}
