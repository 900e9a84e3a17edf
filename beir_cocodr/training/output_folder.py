"""The output folder of a training: which plan it belongs to, and what training in rounds leaves
there.

An output belongs to one :class:`~beir_cocodr.provenance.TrainingPlan`: it is resumed under the same
one, and never written over.
"""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import sort_checkpoints

from beir_cocodr import io as files
from beir_cocodr.data.collection import load_collection
from beir_cocodr.distributed import on_main, rank, world_size
from beir_cocodr.errors import UNFINISHED, InputError
from beir_cocodr.evaluation.chains import Chain
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.evaluation.label_free.choice import label_pairs
from beir_cocodr.evaluation.measures import parse_measures
from beir_cocodr.evaluation.results import AdaptationRecord, EvaluationRecord
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.models.card import write_card
from beir_cocodr.models.loading import fingerprint, load_encoder
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.provenance import (
    LOGGED,
    RECORD_FILE,
    TrainingPlan,
    TrainingRecord,
    collection_provenance,
    read_record,
    write_record,
)
from beir_cocodr.records import CollectionProvenance, Json, versions
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.same_run import check_same_run
from beir_cocodr.training.options import TrainingOptions

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"

_PLAN_FILE = "plan.json"


def training_plan(
    stage: str,
    base: str,
    model: Any,
    encoder: EncoderOptions,
    options: TrainingOptions,
    seen: Sequence[CollectionProvenance],
) -> TrainingPlan:
    """The plan of a stage that starts from ``base``, which ``model`` is as it was loaded."""
    parts = fingerprint(model)
    weights = parts.pop("weights")
    parts["text_format"] = files.json_sha256(
        [model.text_format.as_dict(), model.similarity_fn_name]
    )
    settings = {name: value for name, value in asdict(options).items() if name != "loader_workers"}
    plan = TrainingPlan(stage, base, weights, encoder.describe(), settings, tuple(seen))
    return replace(plan, base_parts=parts, precision=training_precision(model.device))


def training_precision(device: torch.device) -> str:
    """What training computes in: bfloat16 on GPUs that have it, else float16 there, and float32 on
    a CPU.
    """
    if device.type != "cuda":
        return "float32"
    return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"


@contextmanager
def lock_output(output: Path, resume: bool, plan: TrainingPlan) -> Iterator[TrainingRecord | None]:
    """Hold ``output`` for a plan, by all processes of a run; gives None where there is something to
    train, else the record of the model that is already there. An InputError: it holds files and
    ``resume`` is off, or it followed another plan, or is not from here, or another run holds it.
    """
    with ExitStack() as stack:
        yield on_main(lambda: _lock(stack, output, resume, plan))


def _lock(
    stack: ExitStack, output: Path, resume: bool, plan: TrainingPlan
) -> TrainingRecord | None:
    stack.enter_context(files.sole_writer(files.output_folder(output, utf8=True)))
    record = read_record(output)
    started = output / CHECKPOINTS / _PLAN_FILE
    if record is not None:
        if not resume:
            raise InputError(
                f"{output} already holds a trained model; choose another --output, or --resume to keep it"
            )
        # A model that is there is the same wherever it would be trained now.
        now = replace(plan, precision=record.precision)
        check_same_run(output, record.settings(), now.settings())
        if (output / CHECKPOINTS).is_dir():  # of a run that died as it finished
            shutil.rmtree(output / CHECKPOINTS)
        return record
    if started.is_file() and resume:
        try:
            before = TrainingPlan.read(started)
        except InputError as error:
            raise InputError(
                f"{error}, as nothing in {output} can be resumed; empty it or choose another"
            ) from error
        check_same_run(output, before.settings(), plan.settings())
    elif files.files_below(output):
        way = "nothing in it can be resumed" if resume else "or --resume if it was interrupted"
        raise InputError(f"{output} is not empty; choose another --output, {way}")
    return None


@contextmanager
def started(output: Path, plan: TrainingPlan) -> Iterator[None]:
    """Mark an output that :func:`lock_output` took as begun, so that what is prepared in it can be
    resumed.

    Bad input found on the way empties the folder again, if nothing was trained in it yet.
    """
    mark = output / CHECKPOINTS / _PLAN_FILE
    on_main(lambda: plan.write(mark))
    try:
        yield
    except InputError:
        if rank() == 0 and not any([*output.rglob("checkpoint-*"), *output.rglob(RECORD_FILE)]):
            for path in (path for path in output.iterdir() if not files.is_incidental(path)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


#: In a checkpoint: the checksums of its files, and what a loss knows.
SEAL_FILE, LOSS_FILE = "complete.json", "loss_state.safetensors"


def checkpoint_to_resume(folder: Path) -> Path | None:
    """The newest complete checkpoint; later ones were being written when the run died, or are
    damaged, and are deleted.

    What is gone on from further back, even from the start, gives the same weights.
    """
    found, last = _checkpoints(folder), last_checkpoint(folder)
    later = found if last is None else found[: found.index(last)]
    if later:
        start = "the start" if last is None else last.name
        log.warning(
            "%s: %s is not complete; training goes on from %s", folder, later[0].name, start
        )
    for checkpoint in later:
        shutil.rmtree(checkpoint)
    return last


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint."""
    return next(filter(is_complete, _checkpoints(folder)), None)


def is_complete(checkpoint: Path) -> bool:
    """Whether every file is as the seal, which is written last, says."""
    try:
        sealed = files.parse_json((checkpoint / SEAL_FILE).read_text())
        return all(files.file_sha256(checkpoint / name) == hash for name, hash in sealed.items())
    except (OSError, ValueError, AttributeError):
        return False


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    return [Path(found) for found in reversed(sort_checkpoints(str(folder)))]


CURVES_FILE = "curves.json"

# Of a round's own counts, those that the record of the whole repeats.
_KEPT = ("mining", "pairs", "pairs_without_negative", "selection", LOGGED)


class TargetEvaluator:
    """The measures of one model after another on every target, by labels of its split "test"; what
    was judged before is not judged again. Runs go to the folder ``curves`` of the output, and
    ``points`` holds a record for each model and target, in the order of calls. An InputError: a
    target or measure that there is not.
    """

    def __init__(
        self, output: Path, targets: Sequence[str], measures: str, encoder: EncoderOptions
    ) -> None:
        parse_measures(measures)
        self.output, self.targets, self.measures, self.encoder = output, targets, measures, encoder
        self.points: list[Json] = []
        self.seen = on_main(
            lambda: tuple(
                collection_provenance(load_collection(target, "test"), queries=True)
                for target in targets
            )
        )

    def __call__(self, model: str, label: str) -> None:
        for target, name in file_names(self.targets).items():
            folder = self.output / "curves" / label.replace(" ", "-") / name
            store = folder.with_name(f"{UNFINISHED}{name}")
            stores = self._stores(model, target, folder, store)
            self.points.append(on_main(partial(self._point, model, label, target, folder, stores)))
            on_main(partial(shutil.rmtree, store, ignore_errors=True))

    def _stores(self, model: str, target: str, folder: Path, store: Path) -> tuple[str, ...]:
        """The store that all processes of a run write of a large target together; none on one
        process.
        """
        if world_size() == 1 or on_main((folder / "results.json").is_file):
            return ()
        documents, encoder = (
            load_collection(target, labels="none").documents,
            load_encoder(model, self.encoder),
        )
        found = Dense(encoder, documents, store, progress=True, shared=True).embeddings
        return (str(store),) if isinstance(found, EmbeddingStore) else ()

    def _point(
        self, model: str, label: str, target: str, folder: Path, stores: tuple[str, ...]
    ) -> Json:
        if (folder / "results.json").is_file():
            results = EvaluationRecord.read(folder / "results.json")
        else:
            search = SearchOptions(self.encoder, progress=True, stores=stores)
            results = evaluate(
                {label: model}, target, measures=self.measures, output=folder, search=search
            )
        return {"model": label, "dataset": target, **results.models[label].measures}


def figures_of(found: AdaptationRecord, chain: Chain) -> Json:
    """Return what an adaptation measured of a trained encoder, for its card.

    Each use is compared with that of the base.

    Args:
        found: The record of the adaptation.
        chain: The encoder, used alone.
    """
    pairs: Mapping[tuple[str, str], object] = {}
    results = found.results
    if results is not None:
        pairs = {
            (test.a, test.b): test
            for test in results.comparisons
            if test.measure == results.measures[0]
        }
    elif found.comparison is not None:
        pairs = label_pairs(found.comparison, found.candidates)
    uses = {}
    for mode in chain.modes:
        labels = (Chain().used(mode).label, chain.used(mode).label)
        if labels in pairs:
            uses[mode] = pairs[labels]
    recommended = found.chains.get(found.recommendation.model)
    return {
        "adapted": found,
        "labels": {mode: chain.used(mode).label for mode in uses},
        "uses": uses,
        "is_recommended": recommended is not None and recommended.encoder == chain,
    }


def _joined(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Join names of several records, each once."""
    return tuple(dict.fromkeys(chain.from_iterable(parts)))


def finish_rounds(
    output: Path,
    last: Path,
    plan: TrainingPlan,
    rounds: str,
    records: Sequence[TrainingRecord],
    points: list[Json],
) -> TrainingRecord:
    """Copy the model in ``last`` to ``output``, with ``curves.json`` (the points of
    :class:`TargetEvaluator`) and the record of the whole, which has those of the rounds under the
    name ``rounds``; returns it.
    """
    each = [
        {
            "episode": r.episode,
            "steps": r.steps,
            "training_loss": r.training_loss,
            "seconds": r.seconds,
        }
        | {name: r.details.get(name) for name in _KEPT}
        for r in records
    ]
    record = TrainingRecord(
        **vars(plan),
        steps=sum(found.steps or 0 for found in records),
        seconds=round(sum(found.seconds or 0.0 for found in records), 1),
        details={rounds: each, "curves": points},
        versions=versions(),
        parent=read_record(str(plan.base)),
        rehearsed=_joined([found.rehearsed for found in records]),
        citations=_joined([found.citations for found in records]),
    )

    def finish() -> TrainingRecord:
        files.write_text(output / CURVES_FILE, json.dumps(points, indent=2) + "\n")
        shutil.copytree(
            last, output, dirs_exist_ok=True, ignore=shutil.ignore_patterns(RECORD_FILE)
        )
        write_card(output, record)
        written = write_record(output, record)
        shutil.rmtree(output / CHECKPOINTS)
        return written

    return on_main(finish)
