"""Supervised fine-tuning on labelled queries with hard negatives."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Ints
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.deprecation import former_signature
from beir_cocodr.distributed import join_processes
from beir_cocodr.errors import check_flag, check_options_type
from beir_cocodr.io import output_path
from beir_cocodr.losses.dro import ClusterLoss
from beir_cocodr.models.checkpoints.loading import weights_sha256
from beir_cocodr.models.spec import check_device
from beir_cocodr.progress import step, steps
from beir_cocodr.provenance import TrainingPlan, TrainingRecord
from beir_cocodr.training.checkpoints import CHECKPOINTS
from beir_cocodr.training.finetuning.loss_builders import weighted
from beir_cocodr.training.finetuning.pairs import TrainingPairs
from beir_cocodr.training.finetuning.query_clusters import CLUSTER_LOG, ClusterLog, pair_clusters
from beir_cocodr.training.finetuning.rounds import (
    BASE_LABEL,
    EPISODES,
    STAGES,
    FinetuneRound,
    TargetEvaluator,
    finish_rounds,
    rounds_of,
)
from beir_cocodr.training.hard_negatives.bm25_negatives import (
    bm25_negatives,
    check_negatives,
)
from beir_cocodr.training.hard_negatives.mined_negatives import (
    MinedNegatives,
    MiningDraw,
    mine_negatives,
)
from beir_cocodr.training.hard_negatives.negative_files import read_hard_negatives
from beir_cocodr.training.held_out import (
    CheckpointSelection,
    hold_out,
    labelled_collections,
    selecting_collection,
)
from beir_cocodr.training.options import FinetuneOptions
from beir_cocodr.training.output_folder import lock_output, started, training_plan
from beir_cocodr.training.rows import joined_citations
from beir_cocodr.training.start import ModelLike, Start, load_start
from beir_cocodr.training.trainer import Stage, run_stage

# Papers of mining in episodes and in stages.
_EPISODES_PAPER = "xiong2021ance"
_STAGES_PAPER = "wu2023qc"


@former_signature(
    order=("dataset", "model", "output", "options", "split", "resume"),
    base="model",
    targets="options.targets",
    measures="options.measures",
    encoder="options.encoder",
)
def finetune(
    model: ModelLike,
    dataset: object,
    *,
    output: str | Path,
    options: FinetuneOptions = FinetuneOptions(),
    split: str = "train",
    resume: bool = False,
) -> TrainingRecord:
    """Fine-tune an encoder on the labelled queries of one collection, and save it to ``output``.

    By default each query finds its positive among all positives and hard negatives of the batch
    (InfoNCE), by the model's own similarity; no text comes twice in a batch, and no document in it
    is relevant to another of its queries. With a weighting other than "erm", or in episodes, each
    query is compared with its own hard negatives (triplets). In two stages the first retriever
    mines the negatives of the second. With ``held_out``, some queries choose the checkpoint of
    every round instead (:class:`~beir_cocodr.training.held_out.CheckpointSelection`).

    Under ``torchrun`` the batch is split over the processes, and the result is that of one process.

    Args:
        model: a name, a folder, or a loaded encoder, which stays as it is.
        dataset: the labelled collection, as
            :func:`~beir_cocodr.data.collection.load_collection` takes it.
        output: folder for the model.
        options: how it is trained.
        split: the split of the judgements.
        resume: go on from the last checkpoint; a finished output is kept.

    Returns:
        The content of training.json.

    Raises:
        InputError: There is no labelled pair, no negative, or fewer queries than clusters, or
            ``output`` is taken.
        NonFiniteTraining: A loss or gradient is NaN or infinite.

    Example:
        >>> from beir_cocodr import FinetuneOptions, finetune
        >>> options = FinetuneOptions(max_steps=1, batch_size=2, negatives=0)
        >>> record = finetune("minilm", "apidocs/numpy", output="tuned", options=options)
        >>> record.steps
        1

    References:
        COCO-DR, section 4.2; query-as-context pre-training, sections 3.2 and 4.2.
    """
    check_options_type(options, FinetuneOptions)
    check_flag("resume", resume)
    check_device(options.encoder.device)
    join_processes(options.encoder.device)
    collection = load_collection(dataset, split)
    check_negatives("negatives", options.negatives, collection)
    data = FinetuneData(collection, selecting_collection(collection, options))
    if options.mining.rounds:
        return _finetune_in_rounds(data, model, output_path(output), options, resume)
    round_ = FinetuneRound(
        label="finetune",
        start=model,
        output=output_path(output),
        options=options,
    )
    return finetune_round(data, round_, resume)


@dataclass(frozen=True)
class FinetuneData:
    """The data that all rounds of a fine-tuning learn from.

    Attributes:
        collection: a corpus with queries and judgements.
        selecting: another split of it, whose queries choose the checkpoint.
    """

    collection: Collection
    selecting: Collection | None


def _finetune_in_rounds(
    data: FinetuneData, model: ModelLike, output: Path, options: FinetuneOptions, resume: bool
) -> TrainingRecord:
    """Train every round in its own folder below the output, and keep the last one's model.

    The measures of the base and of every round on every target go to ``curves.json``.
    """
    evaluator = TargetEvaluator(output, options)
    start, plan = _start(data, model, options)
    plan = replace(plan, targets=evaluator.seen, measures=evaluator.measures)
    with lock_output(output, resume, plan) as record:
        if record is not None:
            return record
        rounds = rounds_of(model, output, options)
        records = []
        with started(output, plan), steps({round_.label: None for round_ in rounds}):
            evaluator.evaluate(start.name, BASE_LABEL)
            for round_ in rounds:
                step(round_.label)
                records.append(finetune_round(data, round_, resume))
                evaluator.evaluate(str(round_.output), round_.label)
        kind = EPISODES if options.mining.episodes else STAGES
        return finish_rounds(
            last=rounds[-1].output,
            output=output,
            plan=plan,
            kind=kind,
            records=records,
            points=evaluator.points,
        )


def _start(
    data: FinetuneData, model: ModelLike, options: FinetuneOptions
) -> tuple[Start, TrainingPlan]:
    """Return the encoder to be trained, and the plan of its training."""
    start = load_start(model, options.encoder, options.seed)
    seen = labelled_collections(data.collection, data.selecting)
    return start, training_plan("finetune", start, options, seen)


def finetune_round(
    data: FinetuneData,
    round_: FinetuneRound,
    resume: bool,
) -> TrainingRecord:
    """Train one round, or return the record of the model that is already there."""
    output = round_.output
    options = round_.options
    start, plan = _start(data, round_.start, options)
    miner = None
    if round_.miner is not None:
        miner = str(round_.miner)
    plan = replace(plan, episode=round_.episode, miner=miner)
    with lock_output(output, resume, plan) as record:
        if record is not None:
            return record
        # The same queries in all rounds: episodes have the next seeds.
        seed = options.seed - (round_.episode if options.mining.episodes else 0)
        rest, held = hold_out(data.collection, data.selecting, options, seed)
        with started(output, plan):
            stage = _RoundStage(
                data=data,
                training=rest,
                round=round_,
                start=start,
                plan=plan,
            ).build()
            if held is not None:
                selection = CheckpointSelection(
                    held=held,
                    model=start.model,
                    text_format=start.model.text_format,
                    options=options,
                    output=output,
                    examples=len(stage.dataset),
                )
                stage = selection.added_to(stage)
        return run_stage(stage, options, output, resume)


@dataclass(frozen=True)
class _RoundStage:
    """The stage of a round: pairs, their negatives and clusters, and the loss."""

    data: FinetuneData
    training: Collection
    round: FinetuneRound
    start: Start
    plan: TrainingPlan

    def build(self) -> Stage:
        """Mine, draw and cluster what the stage is trained on."""
        options = self.round.options
        model = self.start.model
        mined = self._mine() if self.round.episode else None
        pool = self._pool(mined)
        pairs = TrainingPairs(self.training, model.text_format, options, pool)
        callbacks = [pairs.clock]
        sizes = None
        if options.weighted:
            clusters = pair_clusters(pairs, model, self.round.output, mined)
            sizes = clusters.bincount(minlength=options.clustering.clusters).tolist()
            loss = weighted(model, options, clusters)
            assert isinstance(loss, ClusterLoss)
            file = self.round.output / CLUSTER_LOG
            callbacks.append(ClusterLog(loss, file, options.clustering.log_clusters))
        else:
            loss = options.row("loss").load()(model, options, len(pairs.positives))
        return Stage(
            plan=self.plan,
            model=model,
            loss=loss,
            dataset=pairs.dataset(),
            column_tasks=pairs.column_tasks,
            callbacks=callbacks,
            consecutive=options.consecutive,
            batch_keys=pairs.batch_keys() if options.row("loss").in_batch else None,
            names=pairs.names,
            details={
                "pairs": len(pairs.positives),
                "pairs_without_document": pairs.unknown,
                "pairs_without_negative": pairs.without_negative,
                "truncated": pairs.truncated(model),
                "mining": mined.counts if mined is not None else None,
                "pairs_of_clusters": sizes,
            },
            rehearsed=tuple(fact for row in options.rows() for fact in row.rehearses),
            citations=self._citations(),
        )

    def _citations(self) -> tuple[str, ...]:
        mining = self.round.options.mining
        papers = list(joined_citations(self.round.options.rows()))
        if mining.episodes:
            papers.append(_EPISODES_PAPER)
        if mining.stages == 2:
            papers.append(_STAGES_PAPER)
        return tuple(papers)

    def _mine(self) -> MinedNegatives:
        """Mine the negatives of this round, by all processes together."""
        round_ = self.round
        options = round_.options
        miner = self.start.model
        content = self.plan.to_json()
        key = {name: content[name] for name in ("base_sha256", "encoder", "seen")}
        if round_.miner is not None:
            miner = load_start(round_.miner, options.encoder, options.seed).model
            key["base_sha256"] = weights_sha256(miner)
        return mine_negatives(
            collection=self.training,
            model=miner,
            folder=round_.output / CHECKPOINTS,
            options=options.mining,
            draw=MiningDraw(options.seed, round_.episode),
            key=key,
            progress=True,
        )

    def _pool(self, mined: MinedNegatives | None) -> Mapping[str, Ints] | None:
        """Return query id to the rows that its negatives are drawn from, if there are any."""
        options = self.round.options
        mining = options.mining
        both = mining.stages == 2 and mining.stage2_negatives == "both"
        if mined is not None and not both:
            return mined.pools()
        if not options.negatives:
            return None
        if options.hard_negatives is not None:
            pool = read_hard_negatives(options.hard_negatives, self.training)
        else:
            text_format = self.start.model.text_format
            pool = bm25_negatives(self.training, text_format, options.negative_depth)
        if mined is not None:
            for query, rows in mined.pools().items():
                pool[query] = np.union1d(pool.get(query, rows), rows)
        return pool
