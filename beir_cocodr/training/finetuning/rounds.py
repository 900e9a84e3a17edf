"""Fine-tuning in rounds, episodes or two stages.

Each round can be evaluated on target collections, and the last one's model is left.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from beir_cocodr import io as files
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.distributed import on_main, world_size
from beir_cocodr.errors import UNFINISHED, InputError
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.evaluation.measures import DEFAULT_MEASURES, parse_measures
from beir_cocodr.evaluation.results import EvaluationRecord
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.io import sole_writer
from beir_cocodr.models.card import write_card
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.provenance import (
    LOGGED,
    RECORD_FILE,
    TrainingPlan,
    TrainingRecord,
    collection_provenance,
    read_record,
    write_record,
)
from beir_cocodr.records import Json, versions
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.training.checkpoints import CHECKPOINTS
from beir_cocodr.training.options import FinetuneOptions
from beir_cocodr.training.start import ModelLike

#: Subfolders of the rounds.
EPISODES = "episodes"
STAGES = "stages"

#: The points of all models on all targets.
CURVES_FILE = "curves.json"

#: The label of the model before training.
BASE_LABEL = "base"

# Counts of a round that the record of all rounds repeats.
_KEPT = ("mining", "pairs", "pairs_without_negative", "selection", LOGGED)


@dataclass(frozen=True)
class FinetuneRound:
    """One training of a fine-tuning.

    Attributes:
        label: its name in curves and messages.
        start: the encoder that is trained.
        output: folder for it.
        options: options with the seed of the round.
        episode: number from 0; negatives are BM25's in 0, and mined from 1 on.
        miner: the encoder that mines; None means ``start`` as it is before training.
    """

    label: str
    start: ModelLike
    output: Path
    options: FinetuneOptions
    episode: int = 0
    miner: Path | None = None


def rounds_of(
    model: ModelLike,
    output: Path,
    options: FinetuneOptions,
) -> list[FinetuneRound]:
    """Return the rounds of a fine-tuning in their order."""
    if options.mining.episodes:
        return _episodes(model, output, options)
    return _two_stages(model, output, options)


def _episodes(
    model: ModelLike,
    output: Path,
    options: FinetuneOptions,
) -> list[FinetuneRound]:
    """Return a warm-up on BM25's negatives, then the episodes.

    Each episode has negatives and clusters from the model of the one before, and an optimiser, a
    schedule and cluster weights of its own. :class:`~beir_cocodr.training.options.EpisodeOptions`
    says in what else they differ.

    References:
        COCO-DR, section 4.2 and figures 4 and 6; ANCE (Xiong et al., 2021).
    """
    rounds: list[FinetuneRound] = []
    start = model
    for episode in range(options.mining.episodes + 1):
        folder = output / EPISODES / str(episode)
        seeded = replace(options, seed=options.seed + episode, targets=())
        of_episode = _episode_options(seeded, episode)
        rounds.append(
            FinetuneRound(
                label=f"episode {episode}",
                start=start,
                output=folder,
                options=of_episode,
                episode=episode,
            )
        )
        start = str(folder)
    return rounds


def _episode_options(options: FinetuneOptions, episode: int) -> FinetuneOptions:
    """Return the options of one episode, with the rate, length and weighting that are its own.

    Raises:
        InputError: The decay of the peaks needs ``max_steps``.
    """
    own_options = options.episode_options
    if episode == 0:
        if own_options.bm25_plain:
            options = replace(options, weighting="erm", weighting_options=None)
        return replace(options, **own_options.warm_up_budget())
    if own_options.peak_steps is None:
        return options
    if options.max_steps < 0:
        raise InputError(
            "peak_steps counts the steps of earlier episodes; set max_steps, or leave peak_steps "
            "out"
        )
    share = own_options.peak_share((episode - 1) * options.max_steps)
    return replace(options, learning_rate=options.learning_rate * share)


def _two_stages(
    model: ModelLike,
    output: Path,
    options: FinetuneOptions,
) -> list[FinetuneRound]:
    """Return retriever 1 on BM25's negatives, and retriever 2 on those that retriever 1 mines.

    Both start from the same model, with the same options and seed.

    References:
        Query-as-context pre-training (Wu et al., 2023), section 3.2.
    """
    first = output / STAGES / "1"
    second = output / STAGES / "2"
    return [
        FinetuneRound(
            label="stage 1",
            start=model,
            output=first,
            options=options,
        ),
        FinetuneRound(
            label="stage 2",
            start=model,
            output=second,
            options=options,
            episode=1,
            miner=first,
        ),
    ]


class TargetEvaluator:
    """Evaluates one model after another on every target, by labels of its split "test".

    What was evaluated before is not evaluated again. Runs go to the folder ``curves`` of the
    output.

    Args:
        output: the output of the training.
        options: targets, measures, and how encoders are loaded.

    Attributes:
        points: a record for each model and target, in the order of the calls.
        seen: the targets by content.

    Raises:
        InputError: There is no such target or measure.
    """

    def __init__(self, output: Path, options: FinetuneOptions) -> None:
        """Load the targets."""
        self.measures = DEFAULT_MEASURES if options.measures is None else options.measures
        parse_measures(self.measures)
        self.output = output
        self.encoder = options.encoder
        self.points: list[Json] = []
        self.targets: list[Collection] = on_main(
            lambda: [load_collection(target, "test") for target in options.targets]
        )
        self.seen = tuple(collection_provenance(target, queries=True) for target in self.targets)

    def evaluate(self, model: str, label: str) -> None:
        """Evaluate a model on every target."""
        names = file_names([target.name for target in self.targets])
        for target in self.targets:
            name = names[target.name]
            folder = self.output / "curves" / label.replace(" ", "-") / name
            store = folder.with_name(f"{UNFINISHED}{name}")
            stores = self._stores(model, target, folder, store)
            self.points.append(on_main(partial(self._point, model, label, target, folder, stores)))
            on_main(partial(shutil.rmtree, store, ignore_errors=True))

    def _stores(
        self,
        model: str,
        target: Collection,
        folder: Path,
        store: Path,
    ) -> tuple[str, ...]:
        """Return the store that all processes of a run write of a large target together.

        One process needs none.
        """
        if world_size() == 1 or on_main((folder / "results.json").is_file):
            return ()
        encoder = load_encoder(model, self.encoder)
        dense = Dense(encoder, target.documents, store, progress=True, shared=True)
        if isinstance(dense.embeddings, EmbeddingStore):
            return (str(store),)
        return ()

    def _point(
        self, model: str, label: str, target: Collection, folder: Path, stores: tuple[str, ...]
    ) -> Json:
        if (folder / "results.json").is_file():
            with sole_writer(folder):  # which removes what a run that was killed then left
                results = EvaluationRecord.read(folder / "results.json")
        else:
            search = SearchOptions(self.encoder, progress=True, stores=stores)
            results = evaluate(
                {label: model}, target, measures=self.measures, output=folder, search=search
            )
        return {"model": label, "dataset": target.name, **results.models[label].measures}


def finish_rounds(
    last: Path,
    output: Path,
    plan: TrainingPlan,
    kind: str,
    records: Sequence[TrainingRecord],
    points: list[Json],
) -> TrainingRecord:
    """Copy the model of the last round to ``output``, with the record of all rounds.

    Args:
        last: the folder of the last round.
        output: the output of the training.
        plan: the plan of all rounds.
        kind: what the rounds are called.
        records: the records of the rounds.
        points: the points of :class:`TargetEvaluator`, for ``curves.json``.

    Returns:
        The record of all rounds.
    """
    record = TrainingRecord(
        **vars(plan),
        steps=sum(round_record.steps or 0 for round_record in records),
        seconds=round(sum(round_record.seconds or 0.0 for round_record in records), 1),
        details={kind: [_summary(round_record) for round_record in records], "curves": points},
        versions=versions(),
        parent=read_record(str(plan.base)),
        rehearsed=_joined([round_record.rehearsed for round_record in records]),
        citations=_joined([round_record.citations for round_record in records]),
    )

    def finish() -> TrainingRecord:
        files.write_text(output / CURVES_FILE, json.dumps(points, indent=2) + "\n")
        without_record = shutil.ignore_patterns(RECORD_FILE)
        shutil.copytree(last, output, dirs_exist_ok=True, ignore=without_record)
        write_card(output, record)
        written = write_record(output, record)
        shutil.rmtree(output / CHECKPOINTS)
        return written

    return on_main(finish)


def _summary(record: TrainingRecord) -> Json:
    """Return what the record of all rounds says of one."""
    summary: Json = {
        "episode": record.episode,
        "steps": record.steps,
        "training_loss": record.training_loss,
        "seconds": record.seconds,
    }
    return summary | {name: record.details.get(name) for name in _KEPT}


def _joined(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Join names of several records, each once."""
    return tuple(dict.fromkeys(chain.from_iterable(parts)))
