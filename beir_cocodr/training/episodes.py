"""ANCE-style fine-tuning: negatives and clusters anew from the model itself, several times over."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import set_seed

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.evaluation.measures import parse_measures
from beir_cocodr.evaluation.protocol import evaluate
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.files import write_text
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.training.claim import CHECKPOINTS, claim_output, started, training_plan
from beir_cocodr.training.finetune_options import FinetuneOptions
from beir_cocodr.training.finetune_stage import finetune_stage
from beir_cocodr.training.processes import on_main
from beir_cocodr.training.record import RECORD_FILE, read_record, seen, write_record
from beir_cocodr.versions import versions

log = logging.getLogger(__name__)
EPISODES, CURVES_FILE = "episodes", "curves.json"


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
    parse_measures(measures)
    on_main(lambda: _check(targets))
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
        curves = _judge(base, "base", output, targets, measures, encoder)
        start, records = base, []
        for episode in range(options.episodes + 1):
            folder = output / EPISODES / str(episode)
            log.info("episode %d of %d", episode, options.episodes)
            settings = options.with_overrides(seed=options.seed + episode)
            records.append(finetune_stage(collection, start, folder, settings, resume, encoder, episode))
            start = str(folder)
            curves += _judge(start, f"episode {episode}", output, targets, measures, encoder)
    kept = ("episode", "steps", "training_loss", "seconds", "mining", "pairs", "pairs_without_negative")
    record = {
        **plan,
        "steps": sum(found["steps"] for found in records),
        "seconds": round(sum(found["seconds"] for found in records), 1),
        "episodes": [{name: found[name] for name in kept} for found in records],
        "curves": curves,
        "versions": versions(),
        "parent": read_record(base),
    }
    return on_main(lambda: _finish(output, Path(start), record))


def _check(targets: Sequence[str]) -> None:
    for target in targets:
        load_collection(target, "test")


def _judge(
    model: str,
    label: str,
    output: Path,
    targets: Sequence[str],
    measures: str,
    encoder: dict[str, Any],
) -> list[dict[str, Any]]:
    """The measures of one model on every target; what was judged before an interruption is kept."""

    def judge() -> list[dict[str, Any]]:
        points = []
        for target, name in file_names(targets).items():
            folder = output / "curves" / label.replace(" ", "-") / name
            if (folder / "results.json").is_file():
                report = json.loads((folder / "results.json").read_text())
            else:
                report = evaluate(target, {label: model}, folder, measures, progress=True, **encoder)
            points.append({"model": label, "dataset": target, **report["models"][label]["measures"]})
        return points

    return on_main(judge)


def _finish(output: Path, last: Path, record: dict[str, Any]) -> dict[str, Any]:
    write_text(output / CURVES_FILE, json.dumps(record["curves"], indent=2) + "\n")
    shutil.copytree(last, output, dirs_exist_ok=True, ignore=shutil.ignore_patterns(RECORD_FILE))
    write_record(output, record)
    shutil.rmtree(output / CHECKPOINTS)
    return record
