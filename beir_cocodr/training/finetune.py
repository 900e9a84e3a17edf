"""Supervised fine-tuning on labelled queries with hard negatives: in one go, in episodes or in two
stages.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerState, set_seed

from beir_cocodr import load_object
from beir_cocodr.arrays import Floats
from beir_cocodr.data.clusters import KMeans, cluster_queries
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.distributed import do_each, join_processes, on_main, rank, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES
from beir_cocodr.io import atomic_writer, parse_json, write_text
from beir_cocodr.losses.coco import infonce
from beir_cocodr.losses.dro import ClusterLoss
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.loading import load_encoder, weights_sha256
from beir_cocodr.models.spec import EncoderOptions, check_device
from beir_cocodr.progress import step, steps
from beir_cocodr.provenance import TrainingPlan, TrainingRecord
from beir_cocodr.training import output_folder
from beir_cocodr.training.held_out import CheckpointSelection, given_queries, hold_out
from beir_cocodr.training.negatives import (
    MinedNegatives,
    bm25_negatives,
    check_negatives,
    mine_negatives,
)
from beir_cocodr.training.objectives import WEIGHTINGS
from beir_cocodr.training.options import FinetuneOptions
from beir_cocodr.training.pairs import TrainingPairs, read_hard_negatives
from beir_cocodr.training.trainer import Stage, run_stage

#: Subfolders of the rounds.
EPISODES, STAGES = "episodes", "stages"
CLUSTERS_FILE, CENTROIDS_FILE, CLUSTER_LOG = (
    "clusters.tsv",
    "cluster_centroids.npy",
    "cluster_weights.jsonl",
)


def finetune(
    dataset: str,
    base: str,
    output: Path,
    options: FinetuneOptions | None = None,
    split: str = "train",
    resume: bool = False,
    targets: Sequence[str] = (),
    measures: str = DEFAULT_MEASURES,
    encoder: EncoderOptions = EncoderOptions(),
) -> TrainingRecord:
    """Fine-tune ``base`` on the labelled queries of one collection and save it to ``output``.

    By default each query has to find its positive among all positives and hard negatives of the
    batch (InfoNCE), by the model's own similarity; no text stands twice in a batch, and no document
    in it is relevant to another of its queries. With a weighting other than "erm", or in episodes,
    each query is contrasted with its own hard negatives (triplets). In two stages the first
    retriever mines the negatives of the second. With ``held_out``, some queries choose the
    checkpoint of every round instead (:class:`~beir_cocodr.training.held_out.CheckpointSelection`).

    Under ``torchrun`` the batch is split over the processes, and the result is that of one process.

    Args:
        dataset, split: the labelled collection.
        base: what ``COCODR`` loads, or ``minilm``.
        output: folder for the model.
        options: see :class:`FinetuneOptions`.
        resume: go on from the last checkpoint; a finished output is left as it is.
        targets: collections with labels in their split "test" that base and model are evaluated on,
            by ``measures``, after every episode or stage.
        encoder: how ``base`` is loaded; lengths given here go before those of the options.

    Raises:
        InputError: no labelled pair, no negative, more clusters than queries, or ``output`` is
            taken.
        NonFiniteTraining: a loss or gradient is NaN or infinite.

    Source: COCO-DR, section 4.2; query-as-context pre-training, sections 3.2 and 4.2.
    """
    check_device(encoder.device)
    join_processes(encoder.device)
    options = options or FinetuneOptions()
    encoder = encoder.over(EncoderOptions(options.query_length, options.document_length))
    collection = load_collection(dataset, split)
    check_negatives("negatives", options.negatives, collection)
    if options.episodes or options.stages == 2:
        evaluator = output_folder.TargetEvaluator(output, targets, measures, encoder)
        return _finetune_in_rounds(collection, base, options, resume, evaluator)
    if targets:
        raise InputError(
            "targets are evaluated after every episode or stage: set episodes to 1 or stages to 2"
        )
    return finetune_stage(
        collection, FinetuneRound("finetune", base, output, options), resume, encoder
    )


@dataclass(frozen=True)
class FinetuneRound:
    """One training of a fine-tuning.

    Attributes:
        label: in curves and messages.
        start: the encoder that is trained.
        output: folder for it.
        options: with the seed of the round.
        episode: from 0; negatives are BM25's in 0, and mined from 1 on.
        miner: the encoder that mines; by default ``start`` as it is before training.
    """

    label: str
    start: str
    output: Path
    options: FinetuneOptions
    episode: int = 0
    miner: str | None = None


def _episodes(base: str, output: Path, options: FinetuneOptions) -> list[FinetuneRound]:
    """A warm-up on BM25's negatives; then in each episode negatives and clusters anew from the
    model of the one before, with an optimiser, a schedule and cluster weights of its own.

    Source: COCO-DR, section 4.2 and figures 4 and 6; ANCE (Xiong et al., 2021).
    """
    folders = [output / EPISODES / str(episode) for episode in range(options.episodes + 1)]
    return [
        FinetuneRound(
            f"episode {episode}",
            start,
            folder,
            options.with_overrides(seed=options.seed + episode),
            episode,
        )
        for episode, (start, folder) in enumerate(
            zip([base, *map(str, folders)], folders, strict=False)
        )
    ]


def _two_stages(base: str, output: Path, options: FinetuneOptions) -> list[FinetuneRound]:
    """Retriever 1 on BM25's negatives, and retriever 2 on those that retriever 1 mines; both start
    from ``base``, with the same options and seed.

    Source: query-as-context pre-training (Wu et al., 2023), section 3.2.
    """
    first, second = (output / STAGES / str(number) for number in (1, 2))
    return [
        FinetuneRound("stage 1", base, first, options),
        FinetuneRound("stage 2", base, second, options, 1, miner=str(first)),
    ]


def _finetune_in_rounds(
    collection: Collection,
    base: str,
    options: FinetuneOptions,
    resume: bool,
    evaluator: output_folder.TargetEvaluator,
) -> TrainingRecord:
    """Train every round in its own folder below the output; the last one's model is also saved to
    the output, and the measures of the base and of every round on every target to its
    ``curves.json``.
    """
    output, encoder = evaluator.output, evaluator.encoder
    _, plan = _start(collection, base, options, encoder)
    plan = replace(plan, targets=evaluator.seen, measures=evaluator.measures)
    with output_folder.lock_output(output, resume, plan) as record:
        if record is not None:
            return record
        rounds = (_episodes if options.episodes else _two_stages)(base, output, options)
        records = []
        with output_folder.started(output, plan), steps({round_.label: None for round_ in rounds}):
            evaluator(base, "base")
            for round_ in rounds:
                step(round_.label)
                records.append(finetune_stage(collection, round_, resume, encoder))
                evaluator(str(round_.output), round_.label)
        kind = EPISODES if options.episodes else STAGES
        return output_folder.finish_rounds(
            output, rounds[-1].output, plan, kind, records, evaluator.points
        )


def _start(
    collection: Collection, base: str, options: FinetuneOptions, encoder: EncoderOptions
) -> tuple[COCODR, TrainingPlan]:
    """The model to be trained, and the plan of its training."""
    set_seed(options.seed)  # a checkpoint may lack layers, which are then drawn at random
    model = load_encoder(base, encoder)
    given = given_queries(collection, options)
    return model, output_folder.training_plan("finetune", base, model, encoder, options, given)


def finetune_stage(
    collection: Collection, round_: FinetuneRound, resume: bool, encoder: EncoderOptions
) -> TrainingRecord:
    """Train one round on queries and qrels of ``collection``; resume and encoder as for
    :func:`finetune`.
    """
    output, options = round_.output, round_.options
    model, plan = _start(collection, round_.start, options, encoder)
    plan = replace(plan, episode=round_.episode, miner=round_.miner)
    with output_folder.lock_output(output, resume, plan) as record:
        if record is not None:
            return record
        # Of all rounds the same ones: episodes have the next seeds.
        seed = options.seed - (round_.episode if options.episodes else 0)
        rest, held = hold_out(collection, options, seed)
        with output_folder.started(output, plan):
            stage = _stage(rest, round_, model, plan, encoder)
            if held is not None:
                selection = CheckpointSelection(
                    held, model, model.text_format, options, output, len(stage.dataset)
                )
                stage = selection.added_to(stage)
        return run_stage(stage, options, output, resume)


def _stage(
    collection: Collection,
    round_: FinetuneRound,
    model: COCODR,
    plan: TrainingPlan,
    encoder: EncoderOptions,
) -> Stage:
    """What a round trains: pairs, their negatives and clusters, and the loss."""
    output, options = round_.output, round_.options
    weighted = WEIGHTINGS[options.weighting].loss is not None
    with output_folder.started(output, plan):
        mined = _mine(collection, model, round_, plan, encoder) if round_.episode else None
        pairs = TrainingPairs(
            collection, model.text_format, options, _pool(collection, model, options, mined)
        )
        clusters = _clusters(pairs, model, output, options, mined) if weighted else None
        loss = training_loss(model, options, clusters, len(pairs.positives))
    sizes = None if clusters is None else clusters.bincount(minlength=options.clusters).tolist()
    return Stage(
        plan=plan,
        model=model,
        loss=loss,
        dataset=pairs.dataset(),
        column_tasks={c: "query" if c == "query" else "document" for c in pairs.columns},
        callbacks=[
            pairs.clock,
            *([ClusterLog(loss, output / CLUSTER_LOG, options.log_clusters)] if weighted else []),
        ],
        batch_keys=pairs.batch_keys() if options.trained_loss == "infonce" else None,
        names=pairs.names,
        details={
            "pairs": len(pairs.positives),
            "pairs_without_document": pairs.unknown,
            "pairs_without_negative": pairs.without_negative,
            "truncated": pairs.truncated(model),
            "mining": mined.counts if mined is not None else None,
            "pairs_of_clusters": sizes,
        },
    )


def training_loss(
    model: Any, options: FinetuneOptions, clusters: torch.Tensor | None, pairs: int
) -> Any:
    """The loss that ``options`` name; ``clusters`` are (pairs,) those of the training examples,
    None for erm.
    """
    in_batch = options.trained_loss == "infonce"
    if clusters is None and in_batch:
        return infonce(model, options.scale, options.cached_mini_batch())
    if clusters is None:
        alike = torch.zeros(pairs, dtype=torch.int64)
        return ClusterLoss(model, 1, alike, scale=options.scale, in_batch=in_batch)
    found = WEIGHTINGS[options.weighting]
    assert found.loss is not None  # only erm has none, and erm has no clusters
    own = {parameter: getattr(options, name) for parameter, name in found.options.items()}
    shared = {
        "n_clusters": options.clusters,
        "clusters": clusters,
        "scale": options.scale,
        "in_batch": in_batch,
    }
    return load_object(found.loss)(model, **shared, **own)


def _mine(
    collection: Collection,
    model: Any,
    round_: FinetuneRound,
    plan: TrainingPlan,
    encoder: EncoderOptions,
) -> MinedNegatives:
    """Negatives of this episode, made by all processes together."""
    miner, content = model, plan.to_json()
    key = {name: content[name] for name in ("base_sha256", "encoder", "seen")}
    if round_.miner is not None:
        miner = load_encoder(round_.miner, encoder)
        key["base_sha256"] = weights_sha256(miner)
    place = round_.output / output_folder.CHECKPOINTS
    return mine_negatives(
        collection, miner, place, round_.options, round_.episode, key, progress=True
    )


def _pool(
    collection: Collection, model: Any, options: FinetuneOptions, mined: MinedNegatives | None
) -> dict[str, np.ndarray] | None:
    """Query id to the corpus rows that its negatives are drawn from; None where there are none."""
    both = options.stages == 2 and options.stage2_negatives == "both"
    if mined is not None and not both:
        return mined.pools()
    if not options.negatives:
        return None
    if options.hard_negatives is not None:
        pool = read_hard_negatives(options.hard_negatives, collection)
    else:
        pool = bm25_negatives(collection, model.text_format, options.negative_depth)
    for query, rows in mined.pools().items() if mined is not None else ():
        pool[query] = np.union1d(pool.get(query, rows), rows)
    return pool


def _clusters(
    pairs: TrainingPairs,
    model: Any,
    output: Path,
    options: FinetuneOptions,
    mined: MinedNegatives | None,
) -> torch.Tensor:
    """(pairs,) the cluster of each training pair."""
    ids = list(dict.fromkeys(pairs.queries))
    parts: list[Floats] = []
    if mined is None and not on_main((output / CLUSTERS_FILE).is_file):
        mine = [pairs.collection.queries[query] for query in ids[rank() :: world_size()]]
        parts = do_each(
            lambda: model.encode_queries(mine, convert_to_numpy=True, show_progress_bar=False)
        )

    def cluster() -> dict[str, int]:
        if mined is not None:
            row = {query: i for i, query in enumerate(mined.queries)}
            embeddings = mined.embeddings[[row[query] for query in ids]]
        else:  # none where clusters are there already
            embeddings = np.empty((len(ids), parts[0].shape[1] if parts else 0), np.float32)
            for number, part in enumerate(parts):
                if len(part):  # there may be fewer queries than processes
                    embeddings[number :: len(parts)] = part
        normalize = model.similarity_fn_name == "cosine"
        return training_clusters(
            ids, np.asarray(embeddings, np.float32), options, normalize, output
        )

    found = on_main(cluster)
    return torch.tensor([found[query] for query in pairs.queries])


def training_clusters(
    ids: list[str], embeddings: Floats, options: FinetuneOptions, normalize: bool, folder: Path
) -> dict[str, int]:
    """Query id to cluster: k-means over the queries, or what an interrupted run left in ``folder``.
    An InputError: more clusters than distinct queries, or a saved file that is not of these
    queries.

    Writes clusters.tsv (query id and cluster) last, and cluster_centroids.npy, (K, d). ``ids`` and
    ``embeddings`` are (Q,) and (Q, d), by the model that is going to be trained; those of one that
    compares by cosine are normalised.
    """
    file = folder / CLUSTERS_FILE
    if file.is_file():
        saved = [line.rsplit("\t", 1) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
        if [query for query, _ in saved] != ids:
            raise InputError(
                f"{file} has other queries than this run; delete it, or choose another --output"
            )
        return {query: int(cluster) for query, cluster in saved}
    clusters = cluster_queries(
        embeddings,
        options.clusters,
        options.seed,
        normalize=normalize,
        ids=ids,
        min_size=options.min_cluster_size,
        kmeans=KMeans(
            max_points_per_centroid=options.kmeans_points,
            iterations=options.kmeans_iterations,
            restarts=options.kmeans_restarts,
        ),
    )
    np.save(folder / CENTROIDS_FILE, clusters.centroids)
    with atomic_writer(file) as out:
        out.write("query_id\tcluster\n")
        out.writelines(
            f"{query}\t{label}\n" for query, label in zip(ids, clusters.labels, strict=True)
        )
    return dict(zip(ids, clusters.labels.tolist(), strict=True))


class ClusterLog(TrainerCallback):
    """Writes a line of JSON every ``every`` steps: ``step``, and for each cluster of the loss its
    ``weights`` then, and since the line before the mean of its ``losses`` (null where it did not
    occur) and its ``examples``. Going on with a run drops the lines of ``file`` after the
    checkpoint.
    """

    def __init__(self, loss: ClusterLoss, file: Path, every: int) -> None:
        self.loss, self.file, self.every = loss, file, every

    def on_train_begin(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        if rank() == 0:
            lines = self.file.read_text().splitlines() if self.file.is_file() else []
            write_text(
                self.file,
                "".join(f"{line}\n" for line in lines if _before(line, state.global_step)),
            )

    def on_step_end(
        self, args: object, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        self.loss.finish_step()
        if state.global_step % self.every and state.global_step < state.max_steps:
            return
        sums, steps, examples = self.loss.loss_sums, self.loss.steps_seen, self.loss.examples_seen
        means = [
            total / n if n else None for total, n in zip(sums.tolist(), steps.tolist(), strict=True)
        ]
        weights = self.loss.weights.tolist()
        line = {
            "step": state.global_step,
            "weights": weights,
            "losses": means,
            "examples": examples.tolist(),
        }
        for since in (sums, steps, examples):
            since.zero_()
        if rank() == 0:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _before(line: str, step: int) -> bool:
    """False for lines after ``step``, and for one that was being written when the run died."""
    try:
        return bool(parse_json(line)["step"] <= step)
    except ValueError:
        return False
