"""ANCE-style fine-tuning: negatives and clusters anew from the model itself, several times over."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import set_seed

from beir_cocodr.data.collection import Collection
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.training.claim import claim_output, started, training_plan
from beir_cocodr.training.finetune_options import FinetuneOptions
from beir_cocodr.training.finetune_stage import finetune_stage
from beir_cocodr.training.record import seen
from beir_cocodr.training.rounds import Judge, finish_rounds

log = logging.getLogger(__name__)
EPISODES = "episodes"


def finetune_in_episodes(
    collection: Collection,
    base: str,
    output: Path,
    options: FinetuneOptions,
    resume: bool,
    targets: Sequence[str],
    measures: str,
    encoder: dict[str, Any],
) -> dict[str, Any]:
    """Warm up on BM25 negatives, then mine, cluster and train ``options.episodes`` times.

    Each episode is a stage of its own in ``output/episodes/N``, with its own optimiser, schedule and cluster
    weights, and starts from the model of the one before. The last model is also saved to ``output``, and
    ``output/curves.json`` has the measures of the base and of every episode on every target.

    Args, returns, raises: as for :func:`~beir_cocodr.training.finetune.finetune`.

    Source: COCO-DR, section 4.2 and figures 4 and 6; ANCE (Xiong et al., 2021).
    """
    judge = Judge(output, targets, measures, encoder)
    set_seed(options.seed)  # a checkpoint may lack layers, which are then drawn at random
    plan = training_plan(
        "finetune",
        base,
        load_encoder(base, **encoder),
        encoder,
        options,
        [seen(collection, queries=True)],
    )
    if (record := claim_output(output, resume, plan)) is not None:
        return record
    with started(output, plan):
        judge(base, "base")
        start, records = base, []
        for episode in range(options.episodes + 1):
            folder = output / EPISODES / str(episode)
            log.info("episode %d of %d", episode, options.episodes)
            settings = options.with_overrides(seed=options.seed + episode)
            records.append(finetune_stage(collection, start, folder, settings, resume, encoder, episode))
            start = str(folder)
            judge(start, f"episode {episode}")
    return finish_rounds(output, Path(start), plan, "episodes", records, judge.points)
