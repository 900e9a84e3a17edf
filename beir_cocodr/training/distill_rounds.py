"""Rounds of distillation: the student searches, lists are drawn, the teacher scores them."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import TrainerCallback

from beir_cocodr.data.collection import Collection
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.files import write_text
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.training.distill_options import DistillOptions
from beir_cocodr.training.processes import on_main
from beir_cocodr.training.teacher_scores import TeacherScores
from beir_cocodr.training.training_lists import LIST_COUNTS, count_lists, draw_list, round_queries

log = logging.getLogger(__name__)

# Queries searched at a time; their results are all that is held of a search.
_QUERY_BLOCK = 10_000
_MEASURE = "RR@10"


@dataclass(frozen=True)
class Round:
    """What the steps between two refreshes train on.

    Args:
        queries: (S,) numbers of the training queries, S = steps times batch size.
        lists: (S, n) corpus rows.
        scores: (S, n) of the teacher, −inf in empty places.
    """

    queries: npt.NDArray[np.int64]
    lists: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]


class Rounds(TrainerCallback):
    """Makes a round at the start of every epoch, and stops when MRR@10 of held-out queries no longer grows.

    An epoch of the trainer is a round: ``steps`` batches over queries in a random order by (seed, round).
    Rounds are kept in ``folder``, so that a run that is killed goes on with the same ones; the best model so
    far is kept beside them.

    Args:
        collection: the corpus.
        model: the student.
        train: training query id to text.
        held_out: held-out query id to text; may be empty.
        anchors: query id to the corpus rows that its lists are built around; of the queries that come up.
        known: query id to the corpus rows that are not drawn beside its anchors: these and the relevant ones.
        bm25: query id to corpus rows, none of them known; of the queries that come up.
        teacher: its scores.
        options: see :class:`DistillOptions`.
        steps: of a round.
        folder: of the rounds.
    """

    def __init__(
        self,
        collection: Collection,
        model: Any,
        train: Mapping[str, str],
        held_out: Mapping[str, str],
        anchors: Mapping[str, npt.NDArray[np.int64]],
        known: Mapping[str, npt.NDArray[np.int64]],
        bm25: Mapping[str, npt.NDArray[np.int64]],
        teacher: TeacherScores,
        options: DistillOptions,
        steps: int,
        folder: Path,
    ) -> None:
        self.collection, self.model, self.train, self.held_out = collection, model, train, held_out
        self.anchors, self.known, self.bm25, self.teacher = anchors, known, bm25, teacher
        self.options, self.steps, self.folder = options, steps, folder
        #: MRR@10 of the held-out queries at the start of every round, and at the end.
        self.measured: list[float] = []
        #: Lists drawn so far, and those in which the teacher prefers nothing to anything.
        self.counted: dict[str, int] = {}
        self.current: Round | None = None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        number = int((state.epoch or 0) + 1e-6)
        on_main(lambda: self._make(number))
        self.current = self._read(number)
        if self.held_out and number - int(np.argmax(self.measured)) >= self.options.patience:
            log.info("MRR@10 has not grown for %d rounds; stopped", self.options.patience)
            control.should_training_stop = True

    def finish(self, folder: Path) -> None:
        """After training, on the first process: put the weights of the best round back."""
        if not self.held_out:
            return
        last = self._search(self.folder / "last")[1]
        self.measured.append(last)
        shutil.rmtree(self.folder / "last")
        best = int(np.argmax(self.measured))
        log.info("MRR@10 of held-out queries: %s", ", ".join(f"{value:.4f}" for value in self.measured))
        if best < len(self.measured) - 1:
            from safetensors.torch import load_file

            self.model.load_state_dict(load_file(self.folder / "best.safetensors"))

    def _make(self, number: int) -> None:
        place = self.folder / str(number)
        if (place / "round.json").is_file():
            return
        unfinished = self.folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        size = self.steps * self.options.batch_size
        queries = round_queries(self.options.seed, number, size, len(self.train))
        asked, places = np.unique(queries, return_inverse=True)
        hard, measured = self._search(unfinished, asked)
        if measured > max(self._measures(number), default=-1.0):
            self._keep_best()
        lists = self._draw(number, queries, hard, places)
        np.save(unfinished / "queries.npy", queries)
        np.save(unfinished / "lists.npy", lists)
        scores = self.teacher.score(queries, lists)
        np.save(unfinished / "scores.npy", scores)
        told = {_MEASURE: measured, **count_lists(scores)}
        write_text(unfinished / "round.json", json.dumps(told))
        shutil.rmtree(place, ignore_errors=True)
        unfinished.rename(place)

    def _read(self, number: int) -> Round:
        self.measured[:] = self._measures(number + 1)
        rounds = self._rounds(number + 1)
        self.counted.update({name: sum(told[name] for told in rounds) for name in LIST_COUNTS})
        names = ("queries", "lists", "scores")
        return Round(*(np.load(self.folder / str(number) / f"{name}.npy", mmap_mode="r") for name in names))

    def _measures(self, before: int) -> list[float]:
        return [told[_MEASURE] for told in self._rounds(before)]

    def _rounds(self, before: int) -> list[dict[str, Any]]:
        files = [self.folder / str(number) / "round.json" for number in range(before)]
        return [json.loads(file.read_text()) for file in files]

    def _search(
        self, folder: Path, asked: npt.NDArray[np.int64] | None = None
    ) -> tuple[npt.NDArray[np.int64], float]:
        """(A, candidates) best corpus rows of the training queries with the numbers ``asked``, without known
        ones, −1 where there are fewer; and MRR@10 of the held-out ones."""
        folder.mkdir(parents=True, exist_ok=True)
        mode = self.model.training
        dense = Dense(self.model.eval(), self.collection.documents, folder / "corpus.npy", progress=True)
        options, every = self.options, list(self.train)
        names = [every[number] for number in (asked if asked is not None and self.options.m_hard else ())]
        most = max(len(rows) for rows in self.known.values())
        hard = np.full((len(names), options.candidates), -1, np.int64)
        for start in range(0, len(names), _QUERY_BLOCK):
            block = {name: self.train[name] for name in names[start : start + _QUERY_BLOCK]}
            found = dense.search(block, options.candidates + most).rows
            for i, (name, rows) in enumerate(zip(block, found, strict=True)):
                kept = rows[~np.isin(rows, self.known[name])][: options.candidates]
                hard[start + i, : len(kept)] = kept
        measured = 0.0
        if self.held_out:
            ranking = dense.search(dict(self.held_out), 10)
            judged = {query: self.collection.qrels[query] for query in self.held_out}
            results = ranking.results(self.collection.documents, drop_identical_ids=False, depth=10)
            measured = float(score_queries(parse_measures(_MEASURE), judged, results)[_MEASURE].mean())
        self.model.train(mode)
        (folder / "corpus.npy").unlink(missing_ok=True)
        return hard, measured

    def _draw(
        self,
        number: int,
        queries: npt.NDArray[np.int64],
        hard: npt.NDArray[np.int64],
        places: npt.NDArray[np.intp],
    ) -> npt.NDArray[np.int64]:
        """(S, n) lists of the round's queries, whose own candidates are the rows ``places`` of ``hard``."""
        names, lists = list(self.train), []
        for slot, (query, place) in enumerate(zip(queries.tolist(), places.tolist(), strict=True)):
            own = hard[place][hard[place] >= 0] if len(hard) else hard.reshape(-1)
            rng = np.random.default_rng((self.options.seed, number, slot, 1))
            name = names[query]
            lists.append(draw_list(self.anchors[name], self.bm25[name], own, self.options, rng))
        return np.stack(lists)

    def _keep_best(self) -> None:
        from safetensors.torch import save_file

        state = {name: weight.detach().cpu().clone() for name, weight in self.model.state_dict().items()}
        save_file(state, self.folder / "unfinished.safetensors")
        (self.folder / "unfinished.safetensors").replace(self.folder / "best.safetensors")
