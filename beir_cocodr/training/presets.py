"""The papers' settings, and small ones, as data; the stages of an adaptation; and from these and
what a user says to the options of a stage. Nothing here imports torch: the command line's help is
made from these tables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from beir_cocodr.errors import InputError
from beir_cocodr.io import parse_json
from beir_cocodr.models.spec import FuseOptions
from beir_cocodr.records import Json
from beir_cocodr.training.options import (
    DistillOptions,
    FinetuneOptions,
    PretrainOptions,
    TrainingOptions,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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
}
_IDRO |= {"max_steps": 45_000, "learning_rate": 5e-6, "warmup": 3_000, "gradient_layers": 3}

# Query-as-context pre-training, sections 4.1 and 4.2; its code cuts queries to 32 and passages to
# 144 tokens. With gradient caching, as in the published runs, the code's language-model losses add
# up to twice that without: weight 2.
_QUERIES: Json = _PRETRAINED | {"objective": "qc", "mlm_weight": 2.0, "max_steps": 120_000}

_COTMAE: Json = _QUERIES | {
    "objective": "cotmae",
    "mlm_weight": 1.0,
    "max_steps": 50_000,
    "batch_size": 16_384,
}
_COTMAE |= {"learning_rate": 4e-4, "mask_probability": 0.3}

_TWO_STAGES: Json = {
    "stages": 2,
    "loss": "infonce",
    "negatives": 15,
    "negative_depth": 200,
    "mining_keep": 200,
}
_TWO_STAGES |= {"batch_size": 64, "epochs": 3, "query_length": 32, "document_length": 144}

_SMALL: Json = {"max_steps": 40, "learning_rate": 2e-5, "warmup": 0.1}
_SMALL_PASSAGES: Json = _SMALL | {"batch_size": 32, "mini_batch_size": 16}

# As published: batches are those of one GPU; K-means of 5 runs of 500 iterations on 256 queries a
# centroid; iDRO as in the code, which resets the weights of absent clusters. Ours is AdamW, as in
# the paper, where the code's README has LAMB; spans have at most 30 tokens, as in the code, where
# the paper says 128 (tokens of a sequence).
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
    _IDRO | _KMEANS | {"batch_size": _PerProcess(64), "idro_mode": "published", "absent": "reset"}
)

# MRL, section 6.2; rate and beta are chosen from grids on held-out queries there, and what was
# chosen is not printed.
_MRL: Json = {"student": "mrl", "loss": "lambdarank", "batch_size": 512, "candidates": 100}
_MRL |= {"warmup": 4_000, "refresh_steps": 5_000}

# Extrapolation, section 5.1.2: BERT, BM25's 1,000 best reranked, all others from the whole corpus;
# hard negatives as in section 5.2.2. Epochs, batch, rate and lengths are not printed: as usual for
# MS MARCO. The best of every second epoch is kept by queries that are held out, where the paper has
# the development set.
_EXTRAPOLATION: Json = {
    "start": "bert-base-uncased",
    "epochs": 20,
    "batch_size": 128,
    "learning_rate": 1e-5,
}
_EXTRAPOLATION |= {
    "rerank": 1_000,
    "candidates": "tokens",
    "hard_negatives": "mined",
    "teacher": "cross-encoder",
}
_EXTRAPOLATION |= {
    "query_length": 32,
    "document_length": 128,
    "held_out": 0.05,
    "select_epochs": 2.0,
}

#: Preset to stage to settings; what is not named keeps its default. Stages are the commands
#: "pretrain", "finetune" and "distill", those of ``adapt`` that are not one of these as it is, and
#: "resample evaluate".
PRESETS: dict[str, dict[str, Json]] = {
    "cocodr-base": {"pretrain": _COCODR_COCO, "finetune": _COCODR_IDRO},
    "cocodr-large": {
        "pretrain": _COCODR_COCO | {"learning_rate": 1e-5},
        "finetune": _COCODR_IDRO | {"max_steps": 30_000, "gradient_layers": 2},
    },
    "mrl": {"distill": _MRL},
    "extrapolation": {"resample evaluate": _EXTRAPOLATION},
    # Whole batches of about the same size, whatever the number of GPUs, and iDRO's stable mode.
    "base": {"pretrain": _COCO, "finetune": _IDRO},
    "large": {
        "pretrain": _COCO | {"learning_rate": 1e-5},
        "finetune": _IDRO | {"max_steps": 30_000, "gradient_layers": 2},
    },
    "qc": {"pretrain": _QUERIES, "finetune": _TWO_STAGES},
    "cotmae": {"pretrain": _COTMAE, "finetune": _TWO_STAGES},
    # The whole recipe on two cores in minutes, to see it work; not a setting of the paper's.
    "cpu": {
        "pretrain": _COCO | _SMALL | {"batch_size": 64, "mini_batch_size": 32},
        "finetune": _IDRO
        | _SMALL
        | {"clusters": 8, "episodes": 1, "batch_size": 16, "gradient_layers": None},
        "cotmae": _SMALL_PASSAGES,
        "qc": _SMALL_PASSAGES,
        "qgen": _SMALL | {"batch_size": 16},
        "gpl": _SMALL | {"batch_size": 16, "refresh_steps": 40},
        "hybrid-distill": _SMALL | {"refresh_steps": 40},
    },
}


Options = TypeVar("Options", bound="DataclassInstance")


def stage_options(
    kind: type[Options],
    stage: str,
    preset: str | None,
    assignments: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Options:
    """The defaults, over them a preset, over it ``name=value`` assignments, over them overrides
    that are not None.

    Args:
        kind: the options' class.
        stage: of a preset: "pretrain", "finetune", or a stage of ``adapt``.
        preset: one of :data:`PRESETS`, or None; an InputError for one without this stage, an
            unknown setting or type.
        assignments: values as JSON, or plain words.
        defaults: what stands below the preset, over the class's own.
    """
    if preset is not None and stage not in PRESETS.get(preset, {}):
        known = [name for name, stages in PRESETS.items() if stage in stages]
        raise InputError(
            f"preset {preset!r} has nothing for {stage}; those that have are {', '.join(known)}"
        )
    chosen = dict(defaults or {}) | (PRESETS[preset][stage] if preset else {})
    processes = int(
        os.environ.get("WORLD_SIZE", 1)
    )  # as torchrun sets it; torch is not imported here
    chosen = {
        name: v * processes if isinstance(v, _PerProcess) else v for name, v in chosen.items()
    }
    chosen |= dict(_assigned(kind, assignment) for assignment in assignments)
    return kind(**chosen | {name: value for name, value in overrides.items() if value is not None})


def _assigned(kind: type[DataclassInstance], assignment: str) -> tuple[str, Any]:
    name, equals, text = assignment.partition("=")
    names = [field.name for field in fields(kind)]
    if not equals or name not in names:
        raise InputError(f"--set {assignment}: give NAME=VALUE with a name of {', '.join(names)}")
    try:
        value = parse_json(text)
    except ValueError:
        value = text
    hint = get_type_hints(kind)[name]
    allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if float in allowed and type(value) is int:
        value = float(value)
    if type(value) not in allowed:
        wanted = " or ".join("null" if kind is NoneType else kind.__name__ for kind in allowed)
        raise InputError(f"--set {assignment}: {name} has to be {wanted}")
    return name, value


@dataclass(frozen=True)
class AdaptStage:
    """One stage of an adaptation.

    Args:
        name: in folders.
        label: in tables.
        train: ``module:object`` of what trains it as a
            :class:`~beir_cocodr.training.adapt.StageRun` says and returns the record of the
            training.
        kind: class of its options.
        settings: what differs from that class's defaults.
        needs_queries: whether it cannot do without generated queries.
    """

    name: str
    label: str
    train: str
    kind: type[TrainingOptions] | type[FuseOptions]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs_queries: bool = False


_AT = "beir_cocodr.training.adapt"

# Ma et al., 2021 (QGen): in-batch negatives alone.
_QGEN: Json = {"loss": "infonce", "negatives": 0}

# Wang et al., 2022 (GPL), section 4.1: one mined negative a query, 50 of each miner, 140,000 steps.
# Held-out generated queries must not stop this stage and the next or choose among their weights:
# they tell how well a query finds the passage that it was made from, and not whether the retriever
# got better.
_GPL: Json = {
    "loss": "margin_mse",
    "positives": 1,
    "m_bm25": 0,
    "m_hard": 1,
    "candidates": 50,
    "held_out": 0.0,
}
_GPL |= {
    "batch_size": 32,
    "learning_rate": 2e-5,
    "max_steps": 140_000,
    "warmup": 1_000,
    "refresh_steps": 140_000,
}

_HYBRID: Json = {
    "loss": "kl",
    "anchors": "fused",
    "positives": 5,
    "m_bm25": 3,
    "m_hard": 3,
    "candidates": 20,
}
_HYBRID |= {"held_out": 0.0, "batch_size": 8, "learning_rate": 3e-5, "warmup": 0.1}

#: Stage to what it is, in the order that is right: unsupervised before supervised, as pre-training
#: on a small corpus hurts an encoder that was fine-tuned (ALGORITHMS, section 7), pseudo labels of
#: the target after, BM25 last.
ADAPT_STAGES: dict[str, AdaptStage] = {
    "coco": AdaptStage("coco", "COCO", f"{_AT}:pretrain_stage", PretrainOptions),
    "cotmae": AdaptStage(
        "cotmae", "CoT-MAE", f"{_AT}:pretrain_stage", PretrainOptions, {"objective": "cotmae"}, True
    ),
    "qc": AdaptStage(
        "qc", "QC", f"{_AT}:pretrain_stage", PretrainOptions, {"objective": "qc"}, True
    ),
    "finetune": AdaptStage("source", "source", f"{_AT}:source_stage", FinetuneOptions),
    "qgen": AdaptStage("qgen", "QGen", f"{_AT}:qgen_stage", FinetuneOptions, _QGEN, True),
    "gpl": AdaptStage("gpl", "GPL", f"{_AT}:gpl_stage", DistillOptions, _GPL, True),
    "hybrid-distill": AdaptStage(
        "hybrid-distill", "hybrid-distill", f"{_AT}:hybrid_stage", DistillOptions, _HYBRID, True
    ),
    "fuse": AdaptStage("fuse", "fuse", f"{_AT}:fuse_stage", FuseOptions),
}


def adapt_options(stage: str, preset: str | None = None, **overrides: Any) -> Any:
    """A stage's options: its own settings, over them a preset, over it overrides that are not
    None.
    """
    found = ADAPT_STAGES[stage]
    given = {name: value for name, value in overrides.items() if value is not None}
    if found.kind is FuseOptions:  # nothing is trained, so that it has no steps and no batches
        given = {
            name: value for name, value in given.items() if name in FuseOptions.__dataclass_fields__
        }
    key = _preset_key(preset, stage)
    if key is None and preset in PRESETS:
        preset = None  # it is of other stages of the chain
    return stage_options(found.kind, key or stage, preset, defaults=found.settings, **given)


def _preset_key(preset: str | None, stage: str) -> str | None:
    """What a preset calls a stage of ``adapt``, None where it has none; its "pretrain" is of one
    objective.
    """
    found, settings = ADAPT_STAGES[stage], PRESETS.get(preset or "", {})
    if stage in settings or found.kind is not PretrainOptions or "pretrain" not in settings:
        return stage if stage in settings else None
    objectives = (
        given.get("objective", "coco") for given in (settings["pretrain"], found.settings)
    )
    return "pretrain" if len(set(objectives)) == 1 else None


def check_preset(preset: str | None, stages: Sequence[str]) -> None:
    """Check that a preset is of some stage of a chain; else an InputError names those that are."""
    known = [name for name in PRESETS if any(_preset_key(name, stage) for stage in stages)]
    if preset is not None and preset not in known:
        raise InputError(
            f"preset {preset!r} has nothing for {', '.join(stages)}; those that have: {', '.join(known)}"
        )


#: What is done unless stages are named.
DEFAULT_STAGES = ("coco", "finetune")

#: The cross-encoder of GPL.
GPL_TEACHER = "cross-encoder/ms-marco-MiniLM-L-6-v2"


def chosen_stages(stages: Sequence[str]) -> list[str]:
    """The stages in the order that is right; an InputError where there is none, or one is
    unknown.
    """
    unknown = [stage for stage in stages if stage not in ADAPT_STAGES]
    if unknown or not stages:
        found = f"unknown stages: {', '.join(unknown)}" if unknown else "no stages are named"
        raise InputError(f"{found}; there are {', '.join(ADAPT_STAGES)}")
    return [stage for stage in ADAPT_STAGES if stage in stages]
