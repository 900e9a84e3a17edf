"""Scores of a teacher, asked once and kept on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.training.teachers import Teacher
from beir_cocodr.training.training_lists import EMPTY

# Pairs scored between two files; a run that is killed asks for at most so many again.
_CHUNK = 20_000
_PAIR = np.dtype([("key", "<i8"), ("score", "<f4")])


class TeacherScores:
    """A teacher with a memory in a folder of npy files.

    Args:
        teacher: who is asked for what is not known yet.
        queries: id to text, in the order that numbers them.
        documents: the corpus.
        folder: of the files; made where missing.
    """

    def __init__(
        self, teacher: Teacher, queries: Mapping[str, str], documents: Documents, folder: Path
    ) -> None:
        self.teacher, self.documents, self.folder = teacher, documents, folder
        self.size = len(documents)
        self.ids, self.texts = list(queries), list(queries.values())
        folder.mkdir(parents=True, exist_ok=True)
        parts = [np.load(file) for file in sorted(folder.glob("*.npy"))]
        self._known = np.sort(np.concatenate([np.empty(0, _PAIR), *parts]), order="key")

    def score(self, queries: npt.NDArray[np.int64], lists: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """(S,) numbers of queries and (S, n) corpus rows to (S, n) scores, −inf in empty places.

        Raises:
            InputError: the teacher gives a score that is NaN or infinite.
        """
        keys = queries[:, None] * self.size + lists  # (S, n)
        there = lists != EMPTY
        wanted = np.unique(keys[there])
        self._ask(wanted[~np.isin(wanted, self._known["key"], assume_unique=True)])
        scores = np.full(lists.shape, -np.inf, np.float32)
        scores[there] = self._known["score"][np.searchsorted(self._known["key"], keys[there])]
        return scores

    def _ask(self, keys: npt.NDArray[np.int64]) -> None:
        for start in tqdm(range(0, len(keys), _CHUNK), desc="teacher", disable=None):
            chunk = keys[start : start + _CHUNK]
            owners = chunk // self.size  # ascending, so that a query's documents stand together
            groups = np.split(chunk % self.size, np.flatnonzero(np.diff(owners)) + 1)
            scores = [
                self.teacher.score(self.ids[query], self.texts[query], rows)
                for query, rows in zip(np.unique(owners), groups, strict=True)
            ]
            pairs = np.empty(len(chunk), _PAIR)
            pairs["key"], pairs["score"] = chunk, np.concatenate(scores)
            self._check(pairs)
            self._keep(pairs)

    def _check(self, pairs: np.ndarray) -> None:
        wrong = pairs[~np.isfinite(pairs["score"])]
        if len(wrong):
            query, row = divmod(int(wrong[0]["key"]), self.size)
            (document,) = self.documents.ids(np.array([row]))
            raise InputError(
                f"the teacher scores query {self.ids[query]!r} and document {document!r} with "
                f"{wrong[0]['score']} ({len(wrong)} such scores so far); it has to give a finite number"
            )

    def _keep(self, pairs: np.ndarray) -> None:
        number = sum(1 for _ in self.folder.glob("*.npy"))
        unfinished = self.folder / "unfinished"
        with unfinished.open("wb") as file:
            np.save(file, pairs)
        unfinished.replace(self.folder / f"{number:06d}.npy")
        self._known = np.sort(np.concatenate([self._known, pairs]), order="key")
