"""Rounds of distillation: the student searches, lists are drawn, and the teacher scores them."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerControl, TrainerState

from beir_cocodr import io as files
from beir_cocodr.arrays import Array, Floats, Ints
from beir_cocodr.data.collection import Collection
from beir_cocodr.distributed import gather, on_main, rank, world_size
from beir_cocodr.errors import UNFINISHED, explained
from beir_cocodr.records import Json
from beir_cocodr.retrieval.vectors.dense import Dense, EmbeddingPool
from beir_cocodr.training.distillation.distill_lists import (
    LIST_COUNTS,
    best_others,
    count_lists,
    draw_easy,
    draw_list,
    round_queries,
)
from beir_cocodr.training.distillation.teacher_scores import TeacherScores
from beir_cocodr.training.held_out import MEASURE, held_out_scores, keep_weights
from beir_cocodr.training.options import DistillOptions

log = logging.getLogger(__name__)

# The store of a large corpus while it is searched.
_STORE = f"{UNFINISHED}corpus"
_TRAIN_AGAIN = "this distillation cannot be resumed: train again in another --output"

# Files of a round.
_ARRAYS = ("queries", "lists", "scores")
_RECORD = "round.json"
_BEST = "best.safetensors"


@dataclass(frozen=True)
class DistillRound:
    """The lists that the steps between two refreshes train on; S is steps times batch size.

    Attributes:
        queries: (S,) numbers of the training queries.
        lists: (S, n) corpus rows.
        scores: (S, n) the teacher's scores, −inf in empty places.
    """

    queries: Ints
    lists: Ints
    scores: Floats


@dataclass(frozen=True)
class DistillTask:
    """The data that all rounds draw from.

    Attributes:
        collection: the corpus and its judgements.
        train: training queries, id to text.
        held_out: held-out queries that stop the training, id to text; may be empty.
        anchors: query id to the corpus rows that its lists are built around, for queries that any
            round takes.
        known: query id to the corpus rows that are not drawn beside its anchors: these and the
            relevant ones.
        bm25: query id to BM25's candidates, none of them known, for queries that any round takes.
        embeddings: the embeddings that the stages of an adaptation share; None outside of one.
    """

    collection: Collection
    train: Mapping[str, str]
    held_out: Mapping[str, str]
    anchors: Mapping[str, Ints]
    known: Mapping[str, Ints]
    bm25: Mapping[str, Ints]
    embeddings: EmbeddingPool | None = None


@dataclass(eq=False, repr=False)
class Rounds(TrainerCallback):
    """Makes a round at the start of every epoch, and stops when held-out queries gain no more.

    An epoch of the trainer is a round: ``steps`` batches over queries in a random order by seed and
    round. Rounds are kept in ``folder`` with their checksums, so that a resumed run takes the same
    ones; the best model so far is kept beside them.

    Attributes:
        task: what rounds draw from.
        model: the student.
        teacher: scores the lists.
        options: the options of the distillation.
        steps: steps of a round.
        folder: folder of the rounds.
        measured: MRR@10 of the held-out queries at the start of every round, and at the end.
        counted: lists drawn so far, and those that hold no order, by kind.
        current: the running round.
        rounds: the number of rounds, once training has ended.
    """

    task: DistillTask
    model: Any
    teacher: TeacherScores
    options: DistillOptions
    steps: int
    folder: Path

    def __post_init__(self) -> None:
        """Start without a round."""
        self.measured: list[float] = []
        self.counted: dict[str, int] = {}
        self.current: DistillRound | None = None
        self.rounds = 0

    def on_epoch_begin(
        self, args: object, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Make or read the round, and stop if the last ones were no better."""
        epoch = state.epoch or 0
        number = int(epoch + 1e-6)
        record = self.folder / str(number) / _RECORD
        is_made = on_main(record.is_file)
        if not is_made:
            self._make_round(number)
        self.current = self._read(number)
        if self._gains_no_more():
            log.info("MRR@10 has not improved for %d rounds; stopped", self.options.patience)
            control.should_training_stop = True

    def _gains_no_more(self) -> bool:
        """Return true if ``patience`` rounds have passed since the best one."""
        if not self.task.held_out:
            return False
        best = int(np.argmax(self.measured))
        last = len(self.measured) - 1
        return last - best >= self.options.patience

    def on_train_end(self, *args: object, **kwargs: object) -> None:
        """Measure what came out of the last round, all processes together."""
        # From the disk: a run that resumes after the last round has made none.
        records = on_main(lambda: list(self.folder.glob(f"*/{_RECORD}")))
        self.rounds = len(records)
        self._recall(self.rounds)
        # The host makes one more step when it is stopped, and another one when it resumes from
        # there: neither counts.
        if self.task.held_out and not self._gains_no_more():
            _, measured = self._search()
            self.measured.append(measured)

    def finish(self, folder: Path) -> Json:
        """Put the weights of the best round back after training, on the first process.

        Returns:
            ``held_out_mrr`` of every round and, unless training stopped at the last one, of the
            end; the counts of ``lists``; and ``teacher_texts_cut`` of a cross-encoder, for what
            this run asked it.
        """
        if self.task.held_out:
            self._restore_best_round()
        details: Json = {"held_out_mrr": self.measured, "lists": self.counted}
        if hasattr(self.teacher.teacher, "texts_cut"):
            details["teacher_texts_cut"] = self.teacher.texts_cut
        return details

    def _restore_best_round(self) -> None:
        values = ", ".join(f"{value:.4f}" for value in self.measured)
        log.info("MRR@10 of held-out queries: %s", values)
        best = int(np.argmax(self.measured))
        if best < self.rounds:
            weights = self.folder / _BEST
            digest = self._record(best).get("best")
            self._check_file(weights, digest)
            self.model.load_state_dict(load_file(weights))

    def _make_round(self, number: int) -> None:
        """Search, draw the lists and score them, all processes together; the first one writes."""
        size = self.steps * self.options.batch_size
        queries = round_queries(self.options.seed, number, size, len(self.task.train))
        names = list(self.task.train)
        searched = [names[query] for query in np.unique(queries)]
        hard, measured = self._search(searched)
        drawn_for = [names[query] for query in queries]
        lists = self._draw(number, drawn_for, hard)
        scores = self.teacher.score(queries, lists)
        drawn = DistillRound(queries, lists, scores)
        on_main(lambda: self._write(number, drawn, measured))

    def _write(self, number: int, drawn: DistillRound, measured: float) -> None:
        self._recall(number)
        best = None
        if measured > max(self.measured, default=-1.0):
            best = keep_weights(self.model, self.folder / _BEST)
        folder = self.folder / str(number)
        with files.draft_folder(folder, replace=True) as draft:
            for name in _ARRAYS:
                array = getattr(drawn, name)
                np.save(draft / f"{name}.npy", array)
            record = {
                MEASURE: measured,
                "best": best,
                **asdict(count_lists(drawn.scores)),
                "files": files.files_sha256(draft),
            }
            files.write_text(draft / _RECORD, json.dumps(record))

    def _read(self, number: int) -> DistillRound:
        self._recall(number + 1)
        folder = self.folder / str(number)
        digests = self._record(number).get("files") or {}
        arrays: dict[str, Any] = {}
        for name in _ARRAYS:
            file = folder / f"{name}.npy"
            self._check_file(file, digests.get(file.name))
            arrays[name] = np.load(file, mmap_mode="r")
        return DistillRound(**arrays)

    def _recall(self, rounds: int) -> None:
        """Take measures and counts of the first rounds from their records."""
        records = [self._record(number) for number in range(rounds)]
        self.measured[:] = [record[MEASURE] for record in records]
        for name in LIST_COUNTS:
            total = sum(record[name] for record in records)
            self.counted[name] = int(total)

    def _record(self, number: int) -> dict[str, Any]:
        file = self.folder / str(number) / _RECORD
        kinds = (OSError, ValueError, KeyError, TypeError)
        with explained(f"{file} is damaged", _TRAIN_AGAIN, *kinds):
            record: dict[str, Any] = files.parse_json(file.read_text())
            for name in (MEASURE, *LIST_COUNTS):
                if not isinstance(record[name], (int, float)):
                    raise ValueError("a count is not a number")
        return record

    def _check_file(self, file: Path, digest: str | None) -> None:
        with explained(f"{file} is damaged", _TRAIN_AGAIN, OSError, ValueError):
            if files.file_sha256(file) != digest:
                raise ValueError("its checksum differs")

    def _search(self, names: Sequence[str] = ()) -> tuple[dict[str, Array], float]:
        """Search with the student, all processes together, each for its share of the queries.

        Returns:
            Its candidates for some training queries, and MRR@10 of the held-out ones.
        """
        on_main(lambda: files.remove_unfinished(self.folder))  # left by a killed run
        mode = self.model.training
        dense = Dense(
            self.model.eval(),
            self.task.collection.documents,
            self.folder / _STORE,
            progress=True,
            shared=True,
        )
        dense.pool = self.task.embeddings
        queries = {}
        if self.options.m_hard:
            queries = {name: self.task.train[name] for name in names}
        if queries or self.task.held_out:
            dense.prepare()
        hard = best_others(
            ranker=dense,
            queries=queries,
            known=self.task.known,
            count=min(self.options.candidates, len(self.task.collection.documents)),
            teacher=self.teacher.teacher,
        )
        measured = self._measure(dense)
        self.model.train(mode)
        on_main(lambda: files.remove_unfinished(self.folder))
        return hard, measured

    def _measure(self, dense: Dense) -> float:
        """Return MRR@10 of the held-out queries; 0 if there are none."""
        held_out = list(self.task.held_out)
        share = held_out[rank() :: world_size()]
        scores = self._reciprocal_ranks(dense, share)
        for more in gather(scores):
            scores |= more
        if not held_out:
            return 0.0
        reciprocal_ranks = [scores[query] for query in held_out]
        return float(np.mean(reciprocal_ranks))

    def _reciprocal_ranks(self, dense: Dense, held_out: list[str]) -> dict[str, float]:
        """Return RR@10 of some of the held-out queries."""
        if not held_out:
            return {}
        queries = {query: self.task.held_out[query] for query in held_out}
        ranking = dense.search(queries, 10)
        scores = held_out_scores(self.task.collection, ranking)
        return dict(zip(held_out, scores.tolist(), strict=True))

    def _draw(
        self,
        number: int,
        names: Sequence[str],
        hard: Mapping[str, Ints],
    ) -> Ints:
        """Draw (S, n) lists for the queries of a round.

        Args:
            number: the round.
            names: the queries.
            hard: the student's own candidates, if any are drawn.
        """
        nothing = np.empty(0, np.int64)
        lists = []
        for slot, name in enumerate(names):
            seed = (self.options.seed, number, slot, 1)
            rng = np.random.default_rng(seed)
            anchors = self.task.anchors[name]
            bm25 = self.task.bm25[name]
            own_candidates = hard.get(name, nothing)
            easy = nothing
            if self.options.m_easy:
                known = self.task.known[name]
                documents = len(self.task.collection.documents)
                easy = draw_easy(known, documents, self.options, rng)
            drawn = draw_list(
                anchors=anchors,
                bm25=bm25,
                hard=own_candidates,
                options=self.options,
                rng=rng,
                easy=easy,
            )
            lists.append(drawn)
        return np.stack(lists)
