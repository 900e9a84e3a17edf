"""Listwise distillation of a teacher into an encoder: means and variances, or plain vectors."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import util
from sentence_transformers.sentence_transformer import losses
from transformers import set_seed

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.distributed import join_processes, on_main
from beir_cocodr.errors import InputError
from beir_cocodr.io import content_sha256
from beir_cocodr.losses.lambdarank import LambdaRankDistillationLoss
from beir_cocodr.models.loading import load_encoder, model_source
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import EncoderOptions, check_device
from beir_cocodr.provenance import TrainingPlan, TrainingRecord
from beir_cocodr.training.distill_lists import (
    EMPTY,
    Rounds,
    TeacherScores,
    fused_anchors,
    round_queries,
)
from beir_cocodr.training.held_out import CheckpointSelection, given_queries, hold_out
from beir_cocodr.training.negatives import bm25_negatives, check_negatives, relevant_rows
from beir_cocodr.training.options import DistillOptions
from beir_cocodr.training.output_folder import CHECKPOINTS, lock_output, started, training_plan
from beir_cocodr.training.teachers import (
    FileTeacher,
    HybridTeacher,
    TeacherSetting,
    find_teacher,
    scored_rows,
)
from beir_cocodr.training.trainer import Stage, drawn_dataset, planned_steps, run_stage

log = logging.getLogger(__name__)


def distill(
    dataset: str,
    base: str,
    teacher: str,
    output: Path,
    options: DistillOptions | None = None,
    split: str = "train",
    resume: bool = False,
    encoder: EncoderOptions = EncoderOptions(),
) -> TrainingRecord:
    """Train ``base`` to rank documents as a teacher does, and save it to ``output``.

    Args:
        dataset, split: a labelled collection; relevant documents are in all lists, held-out queries
            tell when to stop or, with ``select_epochs``, which checkpoint is kept.
        base: what ``COCODR`` loads, or ``minilm``.
        teacher: "bm25", "hybrid" (the fusion of BM25 and ``base``, which stays as it is),
            "feedback" (the same with its query moved by feedback), a file of scores, or a
            cross-encoder by hub name or folder.
        output: folder for the model.
        resume: go on from the last checkpoint; a finished output is left as it is.
        encoder: how ``base`` is loaded.

    Raises:
        InputError: no labelled query, a teacher that cannot be had, or ``output`` is taken.
        NonFiniteTraining: a loss or gradient is NaN or infinite.

    Source: MRL, sections 4.2 and 5.1.
    """
    check_device(encoder.device)
    join_processes(encoder.device)
    options = options or DistillOptions()
    collection = load_collection(dataset, split)
    for name in ("positives", "m_bm25", "m_hard"):
        check_negatives(name, getattr(options, name), collection)
    set_seed(options.seed)  # a checkpoint may lack layers, which are then drawn at random
    if options.student == "dot":
        model: Any = load_encoder(base, encoder)
    else:
        model = MRL(
            model_source(base),
            k=options.k,
            beta=options.beta,
            seed=options.seed,
            **encoder.overrides(),
        )
    given = given_queries(collection, options)
    plan = training_plan("distill", base, model, encoder, options, given)
    plan = replace(plan, teacher=teacher, teacher_sha256=on_main(lambda: content_sha256(teacher)))
    with lock_output(output, resume, plan) as record:
        if record is not None:
            return record
        rest, held = hold_out(collection, options, options.seed)
        stopping = held if options.select_epochs is None else None
        form, weight, folder = model.text_format, options.bm25_weight, output / CHECKPOINTS
        setting = TeacherSetting(teacher, collection.documents, form, base, encoder, folder, weight)
        with started(output, plan):
            rounds = _rounds(collection, rest, stopping, model, setting, options)
            stage = _stage(plan, rounds)
            if held is not None and stopping is None:
                stage = CheckpointSelection(
                    held, model, form, options, output, len(rounds.train)
                ).added_to(stage)
        # An epoch of the trainer is a round, so what is meant in passes over the queries becomes
        # steps.
        whole = planned_steps(
            options.max_steps, options.epochs, len(rounds.train), options.batch_size
        )
        return run_stage(stage, options.with_overrides(max_steps=whole), output, resume)


def _stage(plan: TrainingPlan, rounds: Rounds) -> Stage:
    model = rounds.model
    examples = ListExamples(rounds.collection, model.text_format, rounds)
    return Stage(
        plan=plan,
        model=model,
        loss=_loss(model, rounds.options),
        dataset=examples.dataset(),
        column_tasks={c: "query" if c == "query" else "document" for c in examples.columns},
        callbacks=[rounds],
        finish=rounds.finish,
        details={"training_queries": len(rounds.train), "held_out_queries": len(rounds.held_out)},
    )


@dataclass
class ListExamples:
    """(query, document_1, ..., document_n) with the teacher's scores, from the running round."""

    collection: Collection
    text_format: TextFormat
    rounds: Rounds

    @property
    def columns(self) -> list[str]:
        return ["query", *(f"document_{i + 1}" for i in range(self.rounds.options.list_size))]

    def dataset(self) -> Dataset:
        slots = np.arange(self.rounds.steps * self.rounds.options.batch_size)
        return drawn_dataset("slot", slots, self._draw)

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        current = self.rounds.current
        assert current is not None  # the trainer starts an epoch before it draws
        texts = list(self.rounds.train.values())
        columns: dict[str, list[Any]] = {column: [] for column in self.columns}
        for slot in batch["slot"]:
            rows = np.asarray(current.lists[slot])
            there = rows != EMPTY
            found = iter(self.collection.documents.take(rows[there]))
            documents = [self.text_format.document(next(found)) if has else "" for has in there]
            for column, text in zip(
                self.columns, [texts[current.queries[slot]], *documents], strict=True
            ):
                columns[column].append(text)
        return columns | {"label": current.scores[batch["slot"]].tolist()}


def _rounds(
    collection: Collection,
    rest: Collection,
    stopping: Collection | None,
    model: Any,
    setting: TeacherSetting,
    options: DistillOptions,
) -> Rounds:
    """Rounds over the queries of ``rest``, stopped by those of ``stopping``; both are parts of the
    collection.
    """
    relevant = relevant_rows(collection)
    held_out = {} if stopping is None else stopping.queries
    train = {name: rest.queries[name] for name in sorted(relevant_rows(rest))}
    asked, folder = find_teacher(setting), setting.folder
    if isinstance(asked, FileTeacher):
        scored = {name: scored_rows(asked, name, relevant[name]) for name in train}
        train = asked.usable(train, scored)
    whole = planned_steps(options.max_steps, options.epochs, len(train), options.batch_size)
    steps = min(options.refresh_steps, whole)
    if held_out and whole <= (most := options.patience * steps):
        log.warning(
            "training of %d steps with refreshes every %d can never stop early, as that takes %d refreshes without a "
            "better MRR@10 (%d steps); lower refresh_steps or patience for it",
            *(whole, steps, options.patience, most),
        )
    used = _used(train, options, steps, -(-whole // steps))
    anchors, known = relevant, relevant
    if options.anchors == "fused":
        if not isinstance(asked, HybridTeacher):
            raise InputError("lists around fused documents need the teacher hybrid or feedback")
        anchors = fused_anchors(asked.fusion, used, relevant, options.positives)
        known = {name: np.union1d(rows, relevant[name]) for name, rows in anchors.items()}
    searched = replace(collection, queries=used)
    bm25 = bm25_negatives(searched, model.text_format, options.candidates)
    pools = {name: bm25[name][~np.isin(bm25[name], known[name])] for name in used}
    if isinstance(asked, FileTeacher):
        anchors = scored
        pools = {
            name: asked.pool(name, pools[name], known[name], options.candidates) for name in used
        }
    scores = TeacherScores(asked, train, collection.documents, folder / "teacher")
    return Rounds(
        collection,
        model,
        train,
        held_out,
        anchors,
        known,
        pools,
        scores,
        options,
        steps,
        folder / "rounds",
    )


def _used(
    train: dict[str, str], options: DistillOptions, steps: int, rounds: int
) -> dict[str, str]:
    """The training queries that come up in any round, so that no other is searched for."""
    names, size = list(train), steps * options.batch_size
    drawn = [round_queries(options.seed, number, size, len(names)) for number in range(rounds)]
    return {name: train[name] for name in (names[row] for row in np.unique(np.concatenate(drawn)))}


def _loss(model: Any, options: DistillOptions) -> torch.nn.Module:
    if options.loss == "lambdarank":
        reduction: Any = options.reduction
        return LambdaRankDistillationLoss(
            model, reduction=reduction, mini_batch_size=options.cached_mini_batch()
        )
    if options.positives > 1 and options.anchors == "relevant":
        raise InputError(f"the loss {options.loss} needs lists of one length: set positives to 1")
    scale = 0.5 if isinstance(model, MRL) else 20.0 if model.similarity_fn_name == "cosine" else 1.0
    pairwise = (
        util.pairwise_cos_sim if model.similarity_fn_name == "cosine" else util.pairwise_dot_score
    )

    def similarity(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        return scale * pairwise(queries, documents)

    host = losses.DistillKLDivLoss if options.loss == "kl" else losses.MarginMSELoss
    return host(model, similarity_fct=similarity)
