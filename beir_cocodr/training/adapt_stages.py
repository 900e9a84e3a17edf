"""The stages of an adaptation: what each is called, learns from, and takes as settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beir_cocodr.training.distill import distill
from beir_cocodr.training.distill_options import DistillOptions
from beir_cocodr.training.finetune import finetune
from beir_cocodr.training.finetune_options import FinetuneOptions
from beir_cocodr.training.options import TrainingOptions
from beir_cocodr.training.pretrain import pretrain
from beir_cocodr.training.pretrain_options import PretrainOptions
from beir_cocodr.training.settings import stage_options


@dataclass(frozen=True)
class Data:
    """What the stages of one adaptation learn from.

    Args:
        corpus: the target.
        source, source_split: a labelled collection, for ``finetune``.
        queries: the folder of queries generated for the corpus, for the stages that need one.
        teacher: a cross-encoder, for ``gpl``.
    """

    corpus: str
    source: str | None
    source_split: str
    queries: str | None
    teacher: str


#: (data, start, output, options, resume, encoder overrides) to training.json.
Train = Callable[[Data, str, Path, Any, bool, Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class AdaptStage:
    """One stage.

    Args:
        name: in folders.
        label: in tables.
        train: trains it.
        kind: class of its options.
        settings: what differs from that class's defaults.
        needs_source, needs_queries: what it cannot do without.
    """

    name: str
    label: str
    train: Train
    kind: type[TrainingOptions]
    settings: dict[str, Any] = field(default_factory=dict)
    needs_source: bool = False
    needs_queries: bool = False


def _coco(data: Data, start: str, output: Path, options: Any, resume: bool, encoder: Any) -> dict[str, Any]:
    return pretrain([data.corpus], start, output, options, resume, **encoder)


def _contexts(
    data: Data, start: str, output: Path, options: Any, resume: bool, encoder: Any
) -> dict[str, Any]:
    return pretrain([data.corpus], start, output, options, resume, [str(data.queries)], **encoder)


def _source(data: Data, start: str, output: Path, options: Any, resume: bool, encoder: Any) -> dict[str, Any]:
    return finetune(str(data.source), start, output, options, data.source_split, resume, **encoder)


def _qgen(data: Data, start: str, output: Path, options: Any, resume: bool, encoder: Any) -> dict[str, Any]:
    return finetune(str(data.queries), start, output, options, "train", resume, **encoder)


def _gpl(data: Data, start: str, output: Path, options: Any, resume: bool, encoder: Any) -> dict[str, Any]:
    return distill(str(data.queries), start, data.teacher, output, options, "train", resume, **encoder)


def _hybrid(data: Data, start: str, output: Path, options: Any, resume: bool, encoder: Any) -> dict[str, Any]:
    return distill(str(data.queries), start, "hybrid", output, options, "train", resume, **encoder)


# Held-out generated queries must not stop these or choose among their weights: they tell how well a query
# finds the passage that it was made from, and not whether the retriever got better.
_NOT_HELD_OUT: dict[str, Any] = {"held_out": 0.0, "warmup": 0.1}

#: Stage to what it is, in the order that is right: unsupervised before supervised, as pre-training on a small
#: corpus hurts an encoder that was fine-tuned (ALGORITHMS, section 7), and pseudo labels of the target last.
ADAPT_STAGES: dict[str, AdaptStage] = {
    "coco": AdaptStage("coco", "COCO", _coco, PretrainOptions),
    "cotmae": AdaptStage(
        "cotmae", "CoT-MAE", _contexts, PretrainOptions, {"objective": "cotmae"}, needs_queries=True
    ),
    "qc": AdaptStage("qc", "QC", _contexts, PretrainOptions, {"objective": "qc"}, needs_queries=True),
    "finetune": AdaptStage("source", "source", _source, FinetuneOptions, needs_source=True),
    # Ma et al., 2021 (QGen): in-batch negatives alone.
    "qgen": AdaptStage(
        "qgen", "QGen", _qgen, FinetuneOptions, {"loss": "infonce", "negatives": 0}, needs_queries=True
    ),
    # Wang et al., 2022 (GPL), section 4.1: one mined negative a query, 50 of each miner, 140,000 steps.
    "gpl": AdaptStage(
        "gpl",
        "GPL",
        _gpl,
        DistillOptions,
        _NOT_HELD_OUT
        | {
            "loss": "margin_mse",
            "positives": 1,
            "m_bm25": 0,
            "m_hard": 1,
            "candidates": 50,
            "batch_size": 32,
            "learning_rate": 2e-5,
            "max_steps": 140_000,
            "warmup": 1_000,
            "refresh_steps": 140_000,
        },
        needs_queries=True,
    ),
    "hybrid-distill": AdaptStage(
        "hybrid-distill",
        "hybrid-distill",
        _hybrid,
        DistillOptions,
        _NOT_HELD_OUT
        | {
            "loss": "kl",
            "anchors": "fused",
            "positives": 5,
            "m_bm25": 3,
            "m_hard": 3,
            "candidates": 20,
            "batch_size": 8,
            "learning_rate": 3e-5,
        },
        needs_queries=True,
    ),
}


def adapt_options(stage: str, preset: str | None = None, **overrides: Any) -> Any:
    """A stage's options: its own settings, over them a preset, over it overrides that are not None."""
    found = ADAPT_STAGES[stage]
    given = {name: value for name, value in overrides.items() if value is not None}
    key = {"coco": "pretrain"}.get(stage, stage)
    return stage_options(found.kind, key, preset, defaults=found.settings, **given)
