"""Adapt a base to a corpus: the stages in their right order, the ablation, and a recommendation."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, parse_measures
from beir_cocodr.evaluation.protocol import evaluate
from beir_cocodr.evaluation.recommendation import BASE, MODES, TRAINED, ablation_families, recommend
from beir_cocodr.files import output_folder, write_text
from beir_cocodr.training.finetune import finetune
from beir_cocodr.training.finetune_options import FinetuneOptions
from beir_cocodr.training.pretrain import pretrain
from beir_cocodr.training.pretrain_options import PretrainOptions

log = logging.getLogger(__name__)

#: The stages in the order that is right: unsupervised before supervised (ALGORITHMS, section 7).
STAGES = ("coco", "finetune")


def adapt(
    corpus: str,
    source: str | None,
    base: str,
    output: Path,
    stages: Sequence[str] = STAGES,
    split: str = "test",
    source_split: str = "train",
    measures: str = DEFAULT_MEASURES,
    pretrain_options: PretrainOptions | None = None,
    finetune_options: FinetuneOptions | None = None,
    resume: bool = False,
    queries: int | None = None,
    encoder: dict[str, Any] | None = None,
    **retrieval: Any,
) -> dict[str, Any]:
    """Adapt ``base`` to ``corpus`` with labels from ``source``, and tell whether it got better.

    Trains ``output/models/source`` (base fine-tuned on the source), ``output/models/coco`` (base
    pre-trained on the corpus) and ``output/models/coco+source`` (both, in this order). If the corpus has
    labels in ``split``, base and trained models are each evaluated alone, with hybrid feedback and fused
    with BM25, beside BM25 itself; no label of the corpus is used in training.

    Args:
        corpus: the target collection, with or without queries and labels.
        source: a labelled collection; needed by the stage ``finetune``.
        base: what ``COCODR`` loads, or ``minilm``.
        output: folder for models, runs, results.json and adapt.json.
        stages: any of :data:`STAGES`; their order here does not matter.
        split, source_split: which labels to evaluate on, and which to train on.
        measures: the first one decides the recommendation.
        pretrain_options, finetune_options: of the two stages.
        resume: keep finished models and go on with interrupted ones.
        queries: evaluate only that many queries of the target, evenly spaced.
        encoder: overrides for loading encoders (lengths, prompts, separator, device), in training and
            evaluation alike.
        **retrieval: passed on to the retrievers.

    Returns:
        The content of adapt.json.

    Raises:
        InputError: an unknown stage, no source, a bad collection or model.
    """
    chosen = _check(stages, source)
    parse_measures(measures)
    target = load_collection(corpus, split, labels="optional")
    if not target.qrels and any((Path(corpus) / "qrels").glob("*")):
        load_collection(corpus, split)  # it has labels, but not these: say which there are
    output_folder(output)
    if any(output.iterdir()) and not resume:
        raise InputError(f"{output} is not empty; choose another --output, or --resume to go on with it")
    trained: dict[str, str] = {}
    records: dict[str, Any] = {}
    encoder = encoder or {}

    def train_source(start: str, name: str) -> None:
        folder = output / "models" / name
        records[name] = finetune(
            str(source), start, folder, finetune_options, source_split, resume, **encoder
        )
        trained[name] = str(folder)

    if "finetune" in chosen:
        train_source(base, "source")
    if "coco" in chosen:
        folder = output / "models" / "coco"
        records["coco"] = pretrain([corpus], base, folder, pretrain_options, resume, **encoder)
        trained["coco"] = str(folder)
        if "finetune" in chosen:
            train_source(str(folder), "coco+source")
    report: dict[str, Any] = {
        "corpus": corpus,
        "source": source,
        "base": base,
        "stages": chosen,
        "models": {BASE: base, **trained},
        "seconds": {name: record.get("seconds") for name, record in records.items()},
    }
    encoders = {BASE: base} | {TRAINED[name]: path for name, path in trained.items()}
    candidates, results = _candidates(encoders), None
    if target.qrels:
        results = evaluate(
            corpus,
            candidates,
            output,
            measures,
            split,
            families=ablation_families(list(encoders)),
            queries=queries,
            **encoder,
            **retrieval,
        )
    recommendation = recommend(results)
    report |= {
        "results": results,
        "recommendation": recommendation,
        "path": candidates[recommendation["model"]],
    }
    write_text(output / "adapt.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report


def _check(stages: Sequence[str], source: str | None) -> list[str]:
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown or not stages:
        raise InputError(
            f"unknown stage {', '.join(unknown) or 'list (empty)'}; there are {', '.join(STAGES)}"
        )
    if "finetune" in stages and source is None:
        raise InputError(
            "the stage finetune needs a labelled collection: name it with --source, or leave the stage out"
        )
    return [stage for stage in STAGES if stage in stages]


def _candidates(encoders: dict[str, str]) -> dict[str, str]:
    """Label to model name: BM25, and each encoder alone, with feedback, and fused."""
    kinds = dict(zip(MODES, ("", "feedback:", "hybrid:"), strict=True))
    return {"bm25": "bm25"} | {
        label + mode: kinds[mode] + path for label, path in encoders.items() for mode in MODES
    }
