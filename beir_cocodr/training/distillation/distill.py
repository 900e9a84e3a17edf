"""Listwise distillation of a teacher into an encoder: means and variances, or plain vectors."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from datasets import Dataset

from beir_cocodr.arrays import Ints
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.documents import open_corpus
from beir_cocodr.data.text import TextFormat
from beir_cocodr.deprecation import former_signature
from beir_cocodr.distributed import join_processes, on_main
from beir_cocodr.errors import InputError, check_flag, check_name, check_options_type
from beir_cocodr.evaluation.label_free.held_out_queries import CORPUS_FILE
from beir_cocodr.io import content_sha256, output_path
from beir_cocodr.models.spec import check_device
from beir_cocodr.provenance import TrainingPlan, TrainingRecord
from beir_cocodr.training.batches import drawn_dataset
from beir_cocodr.training.checkpoints import CHECKPOINTS
from beir_cocodr.training.distillation.distill_lists import fused_anchors, round_queries
from beir_cocodr.training.distillation.distill_rounds import DistillTask, Rounds
from beir_cocodr.training.distillation.merging import (
    Merging,
    cut_crops,
    drawn,
    practised_spans,
    split_for_merging,
    write_without_texts,
)
from beir_cocodr.training.distillation.teacher_rows import TEACHERS, teacher_kind
from beir_cocodr.training.distillation.teacher_scores import EMPTY, TeacherScores
from beir_cocodr.training.distillation.teachers import (
    FileTeacher,
    HybridTeacher,
    Teacher,
    TeacherSetting,
    find_teacher,
    scored_rows,
)
from beir_cocodr.training.hard_negatives.bm25_negatives import (
    bm25_negatives,
    check_negatives,
    relevant_rows,
)
from beir_cocodr.training.held_out import (
    CheckpointSelection,
    hold_out,
    labelled_collections,
    selecting_collection,
)
from beir_cocodr.training.options import DistillOptions
from beir_cocodr.training.output_folder import lock_output, started, training_plan
from beir_cocodr.training.rows import joined_citations
from beir_cocodr.training.start import ModelLike, Start
from beir_cocodr.training.trainer import Stage, run_stage

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

log = logging.getLogger(__name__)


@former_signature(
    order=("dataset", "model", "teacher", "output", "options", "split", "resume"),
    base="model",
    encoder="options.encoder",
)
def distill(
    model: ModelLike,
    dataset: object,
    *,
    teacher: str | Path,
    output: str | Path,
    options: DistillOptions = DistillOptions(),
    split: str = "train",
    resume: bool = False,
) -> TrainingRecord:
    """Train an encoder to rank documents as a teacher does, and save it to ``output``.

    Args:
        model: a name, a folder, or a loaded encoder, which stays as it is.
        dataset: a labelled collection, as
            :func:`~beir_cocodr.data.collection.load_collection` takes it. Relevant documents are
            in all lists; held-out queries stop the training or, with ``select_epochs``, choose the
            checkpoint.
        teacher: "bm25", "hybrid" (the fusion of BM25 and the model, which stays as it is),
            "feedback" (hybrid with its query moved by feedback), a file of scores, or a
            cross-encoder by hub name or folder.
        output: folder for the model.
        options: how it is trained.
        split: the split of the judgements.
        resume: go on from the last checkpoint; a finished output is kept.

    Returns:
        The content of training.json.

    Raises:
        InputError: There is no labelled query, the teacher cannot be loaded, or ``output`` is
            taken.
        NonFiniteTraining: A loss or gradient is NaN or infinite.

    Example:
        >>> from beir_cocodr import DistillOptions, distill
        >>> options = DistillOptions(max_steps=1, batch_size=2, held_out=0)
        >>> record = distill(
        ...     "minilm", "apidocs/numpy", teacher="bm25", output="taught", options=options
        ... )
        >>> record.teacher
        'bm25'

    References:
        MRL, sections 4.2 and 5.1.
    """
    check_options_type(options, DistillOptions)
    check_flag("resume", resume)
    check_device(options.encoder.device)
    join_processes(options.encoder.device)
    teacher = str(teacher)
    if not teacher.strip():
        raise InputError("the teacher has no name; give a ranking, a cross-encoder or a file")
    check_name("teacher", teacher)
    output = output_path(output)
    check_teacher(teacher, options)
    collection = load_collection(dataset, split)
    for name in ("positives", "m_bm25", "m_hard", "m_easy"):
        check_negatives(name, getattr(options, name), collection)
    selecting = selecting_collection(collection, options)
    student: Start = options.row("student").load()(model, options)
    seen = labelled_collections(collection, selecting)
    plan = training_plan("distill", student, options, seen)
    plan = replace(plan, teacher=teacher, teacher_sha256=on_main(lambda: content_sha256(teacher)))
    with lock_output(output, resume, plan) as record:
        if record is not None:
            return record
        setting = TeacherSetting(
            name=teacher,
            documents=collection.documents,
            text_format=student.model.text_format,
            start=model,
            encoder=options.encoder,
            folder=output / CHECKPOINTS,
            options=options.teacher_options,
        )
        rest, of_kind = split_for_merging(collection, options.merge_on)
        rest, held = hold_out(rest, selecting, options, options.seed)
        with started(output, plan):
            preparation = _Preparation(collection, rest, held, setting, options)
            rounds = preparation.rounds(student.model)
            stage = _stage(plan, student.model, rounds)
            if held is not None and not preparation.stops_early:
                examples = len(rounds.task.train)
                stage = _with_selection(stage, held, student.model, options, output, examples)
            # Merging takes the weights that held-out queries chose.
            if options.merge_on is not None:
                asked = _held_out_kind(collection, of_kind, options, output / CHECKPOINTS)
                merging = Merging.of(
                    asked, student.model, student.model.text_format, options, output
                )
                stage = merging.added_to(stage)
        # An epoch of the trainer is a round, so passes over the queries become steps.
        steps = options.steps_for(len(rounds.task.train))
        return run_stage(stage, replace(options, max_steps=steps), output, resume)


def _with_selection(
    stage: Stage,
    held: Collection,
    model: COCODR,
    options: DistillOptions,
    output: Path,
    examples: int,
) -> Stage:
    """Return the stage whose best checkpoint the held-out queries choose."""
    selection = CheckpointSelection(
        held=held,
        model=model,
        text_format=model.text_format,
        options=options,
        output=output,
        examples=examples,
    )
    return selection.added_to(stage)


def _held_out_kind(
    collection: Collection, of_kind: Collection | None, options: DistillOptions, folder: Path
) -> Collection:
    """Return the queries that merging is chosen on, and the corpus without their texts.

    Args:
        collection: All that the stage was given.
        of_kind: The held-out kind of its queries; None for crops of its documents.
        options: Options of the training.
        folder: Where the changed corpus is written.
    """
    if of_kind is None:
        count = options.most_held_out
        queries, qrels = on_main(lambda: cut_crops(collection, count, options.seed, folder))
        documents = open_corpus(folder / CORPUS_FILE)
        return replace(collection, queries=queries, qrels=qrels, documents=documents)
    asked = drawn(of_kind, options.most_held_out, options.seed)
    file = folder / "held-out-kind.arrow"
    on_main(lambda: write_without_texts(asked, file))
    return replace(asked, documents=open_corpus(file))


def check_teacher(teacher: str, options: DistillOptions) -> None:
    """Refuse options of another teacher, and lists of documents that a file need not score."""
    kind = teacher_kind(teacher)
    if kind is TEACHERS["file"] and (options.m_easy or options.anchors == "fused"):
        raise InputError(
            f"the teacher {teacher} scores only the documents that it lists, and lists with "
            f"m_easy {options.m_easy} and anchors {options.anchors} hold others; set m_easy to 0 "
            "and anchors to relevant"
        )
    own_options = options.teacher_options
    if own_options is None:
        return
    if kind.options is not None and isinstance(own_options, kind.options):
        return
    names = ", ".join(own_options.__dataclass_fields__)
    having = [name for name, row in TEACHERS.items() if row.options is type(own_options)]
    owners = ", ".join(having)
    raise InputError(
        f"the teacher {teacher} has no option {names}, which belongs to {owners}; "
        "leave it out, or choose such a teacher"
    )


def _stage(plan: TrainingPlan, model: COCODR, rounds: Rounds) -> Stage:
    options = rounds.options
    loss = options.row("loss")
    if loss.equal_lists and options.positives > 1 and options.anchors == "relevant":
        raise InputError(f"the loss {options.loss} needs lists of one length: set positives to 1")
    examples = ListExamples(rounds.task.collection, model.text_format, rounds)
    rows = [*options.rows(), teacher_kind(str(plan.teacher))]
    rehearsed = [fact for row in rows for fact in row.rehearses]
    rehearsed += practised_spans(rounds.task.collection)
    return Stage(
        plan=plan,
        model=model,
        loss=loss.load()(model, options),
        dataset=examples.dataset(),
        column_tasks=examples.column_tasks,
        callbacks=[rounds],
        finish=rounds.finish,
        details={
            "training_queries": len(rounds.task.train),
            "held_out_queries": len(rounds.task.held_out),
        },
        rehearsed=tuple(rehearsed),
        citations=joined_citations(rows),
    )


@dataclass
class ListExamples:
    """(query, document_1, ..., document_n) with the teacher's scores, from the running round.

    Attributes:
        collection: the corpus.
        text_format: how documents become texts.
        rounds: the rounds.
    """

    collection: Collection
    text_format: TextFormat
    rounds: Rounds

    @property
    def column_tasks(self) -> dict[str, str]:
        """Return column to task, "query" or "document", as the loss's row says."""
        options = self.rounds.options
        tasks: dict[str, str] = options.row("loss").column_tasks(options.list_size)
        return tasks

    def dataset(self) -> Dataset:
        """Return the examples, drawn when they are read."""
        slots = np.arange(self.rounds.steps * self.rounds.options.batch_size)
        return drawn_dataset("slot", slots, self._draw)

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, list[object]]:
        current = self.rounds.current
        assert current is not None  # the trainer starts an epoch before it draws
        texts = list(self.rounds.task.train.values())
        names = list(self.column_tasks)
        columns: dict[str, list[object]] = {name: [] for name in names}
        slots = batch["slot"]
        for slot in slots:
            query = texts[current.queries[slot]]
            documents = self._documents(np.asarray(current.lists[slot]))
            for name, text in zip(names, [query, *documents], strict=True):
                columns[name].append(text)
        labels = current.scores[slots].tolist()
        return columns | {"label": labels}

    def _documents(self, rows: Ints) -> list[str]:
        """Return the texts of a list, empty in empty places."""
        texts = [""] * len(rows)
        positions = np.flatnonzero(rows != EMPTY)
        documents = self.collection.documents.take(rows[positions])
        for position, document in zip(positions.tolist(), documents, strict=True):
            texts[position] = self.text_format.document(document)
        return texts


@dataclass(frozen=True)
class _Preparation:
    """The source of the rounds, made from a collection, its held-out queries and a teacher."""

    collection: Collection
    training: Collection
    held: Collection | None
    setting: TeacherSetting
    options: DistillOptions

    @property
    def stops_early(self) -> bool:
        """Return true if the held-out queries stop the training."""
        return self.options.select_epochs is None

    def rounds(self, model: COCODR) -> Rounds:
        """Return the rounds of a student."""
        options = self.options
        held_out: dict[str, str] = {}
        if self.held is not None and self.stops_early:
            held_out = self.held.queries
        relevant = relevant_rows(self.collection)
        names = sorted(relevant_rows(self.training))
        train = {name: self.training.queries[name] for name in names}
        teacher = find_teacher(self.setting)
        scored: dict[str, Ints] = {}
        if isinstance(teacher, FileTeacher):
            teacher.warn_of_unknown(self.collection.queries)
            scored = {name: scored_rows(teacher, name, relevant[name]) for name in train}
            train = teacher.usable(train, scored)
        total = options.steps_for(len(train))
        steps = min(options.refresh_steps, total)
        if held_out:
            self._warn_of_patience(total, steps)
        number_of_rounds = math.ceil(total / steps)
        used = self._used(train, steps, number_of_rounds)
        anchors: Mapping[str, Ints] = relevant
        known: Mapping[str, Ints] = relevant
        if options.anchors == "fused":
            anchors, known = self._fused(teacher, used, relevant)
        pools = self._pools(model, used, known)
        if isinstance(teacher, FileTeacher):
            anchors = scored
            pools = {
                name: teacher.pool(name, pools[name], known[name], options.candidates)
                for name in used
            }
        folder = self.setting.folder
        scores = TeacherScores(teacher, train, self.collection.documents, folder / "teacher")
        start = self.setting.start
        embeddings = start.pool if isinstance(start, Start) else None
        task = DistillTask(self.collection, train, held_out, anchors, known, pools, embeddings)
        return Rounds(
            task=task,
            model=model,
            teacher=scores,
            options=options,
            steps=steps,
            folder=folder / "rounds",
        )

    def _warn_of_patience(self, total: int, steps: int) -> None:
        options = self.options
        needed = options.patience * steps
        if total <= needed:
            log.warning(
                "training of %d steps with refreshes every %d can never stop early, as that takes "
                "%d refreshes without a better MRR@10 (%d steps); lower refresh_steps or patience",
                total,
                steps,
                options.patience,
                needed,
            )

    def _used(self, train: dict[str, str], steps: int, rounds: int) -> dict[str, str]:
        """Return the training queries that any round takes; no other is searched for."""
        names = list(train)
        size = steps * self.options.batch_size
        seed = self.options.seed
        drawn = [round_queries(seed, number, size, len(names)) for number in range(rounds)]
        used_numbers = np.unique(np.concatenate(drawn))
        used = [names[number] for number in used_numbers]
        return {name: train[name] for name in used}

    def _fused(
        self, teacher: Teacher, used: dict[str, str], relevant: Mapping[str, Ints]
    ) -> tuple[Mapping[str, Ints], Mapping[str, Ints]]:
        """Return the best fused documents of each query, and these with the relevant ones."""
        ranker = teacher if isinstance(teacher, HybridTeacher) else self._ranking_teacher()
        anchors = fused_anchors(ranker.fusion, used, relevant, self.options.positives)
        known: dict[str, Ints] = {}
        for name, rows in anchors.items():
            known[name] = np.union1d(rows, relevant[name])
        return anchors, known

    def _ranking_teacher(self) -> HybridTeacher:
        """Return the best ranking without labels, for the lists of a teacher that cannot search."""
        return HybridTeacher.of_rm3(replace(self.setting, options=None))

    def _pools(
        self, model: COCODR, used: dict[str, str], known: Mapping[str, Ints]
    ) -> dict[str, Ints]:
        """Return BM25's candidates of each query, without the known ones."""
        searched = replace(self.collection, queries=used)
        bm25 = bm25_negatives(searched, model.text_format, self.options.candidates)
        pools: dict[str, Ints] = {}
        for name in used:
            rows = bm25[name]
            is_known = np.isin(rows, known[name])
            pools[name] = rows[~is_known]
        return pools
