"""Two-stage fine-tuning: one retriever finds the hard negatives of the next."""

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
STAGES = "stages"


def finetune_in_two_stages(
    collection: Collection,
    base: str,
    output: Path,
    options: FinetuneOptions,
    resume: bool,
    targets: Sequence[str],
    measures: str,
    encoder: dict[str, Any],
) -> dict[str, Any]:
    """Train retriever 1 on BM25's negatives, and retriever 2 on those that retriever 1 mines.

    Both start from ``base``, with the same options and seed. They stand in ``output/stages/1`` and
    ``output/stages/2``; the second is also saved to ``output``, and ``output/curves.json`` has the measures
    of the base and of both on every target.

    Args, returns, raises: as for :func:`~beir_cocodr.training.finetune.finetune`.

    Source: query-as-context pre-training (Wu et al., 2023), section 3.2.
    """
    judge = Judge(output, targets, measures, encoder)
    set_seed(options.seed)  # a checkpoint may lack layers, which are then drawn at random
    model = load_encoder(base, **encoder)
    plan = training_plan("finetune", base, model, encoder, options, [seen(collection, queries=True)])
    if (record := claim_output(output, resume, plan)) is not None:
        return record
    first, second = (output / STAGES / str(number) for number in (1, 2))
    with started(output, plan):
        judge(base, "base")
        log.info("retriever 1 of 2")
        records = [finetune_stage(collection, base, first, options, resume, encoder)]
        judge(str(first), "stage 1")
        log.info("retriever 2 of 2")
        records.append(
            finetune_stage(collection, base, second, options, resume, encoder, 1, miner=str(first))
        )
        judge(str(second), "stage 2")
    return finish_rounds(output, second, plan, STAGES, records, judge.points)
