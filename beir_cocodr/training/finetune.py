"""Supervised fine-tuning on labelled queries with hard negatives: in one go, in episodes or in two stages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES
from beir_cocodr.training.episodes import finetune_in_episodes
from beir_cocodr.training.finetune_options import FinetuneOptions
from beir_cocodr.training.finetune_stage import finetune_stage
from beir_cocodr.training.processes import join_processes
from beir_cocodr.training.two_stages import finetune_in_two_stages


def finetune(
    dataset: str,
    base: str,
    output: Path,
    options: FinetuneOptions | None = None,
    split: str = "train",
    resume: bool = False,
    targets: Sequence[str] = (),
    measures: str = DEFAULT_MEASURES,
    **encoder: Any,
) -> dict[str, Any]:
    """Fine-tune ``base`` on the labelled queries of one collection and save it to ``output``.

    By default each query has to find its positive among all positives and hard negatives of the batch
    (InfoNCE), by the model's own similarity; no text stands twice in a batch, and no document in it is
    relevant to another of its queries. With a weighting other than "erm", or in episodes, each query is
    contrasted with its own hard negatives (triplets). In two stages the first retriever mines the negatives
    of the second.

    Under ``torchrun`` the batch is split over the processes, and the result is that of one process.

    Args:
        dataset, split: the labelled collection.
        base: what ``COCODR`` loads, or ``minilm``.
        output: folder for the model.
        options: see :class:`FinetuneOptions`.
        resume: go on from the last checkpoint; a finished output is left as it is.
        targets: collections with labels in their split "test" that base and model are evaluated on after
            every episode or stage; needs episodes or two stages.
        measures: for the targets.
        **encoder: overrides for loading ``base`` (lengths, prompts, separator, device), None meaning none;
            lengths given here go before those of the options.

    Returns:
        The content of training.json.

    Raises:
        InputError: no labelled pair, no negative, more clusters than queries, or ``output`` is taken.
        NonFiniteTraining: a loss or gradient is NaN or infinite.

    Source: COCO-DR, section 4.2; query-as-context pre-training, sections 3.2 and 4.2.
    """
    join_processes(encoder.get("device"))
    options = options or FinetuneOptions()
    lengths = {"query_length": options.query_length, "document_length": options.document_length}
    encoder = lengths | {name: value for name, value in encoder.items() if value is not None}
    collection = load_collection(dataset, split)
    if options.episodes or options.stages == 2:
        train = finetune_in_episodes if options.episodes else finetune_in_two_stages
        return train(collection, base, output, options, resume, targets, measures, encoder)
    if targets:
        raise InputError(
            "targets are evaluated after every episode or stage: set episodes to 1 or more, or stages to 2"
        )
    return finetune_stage(collection, base, output, options, resume, encoder)
