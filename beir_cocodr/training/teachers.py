"""Teachers: who says which document suits a query better, for distillation."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch

from beir_cocodr import load_object
from beir_cocodr.arrays import Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat, cut_text
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import read_trec_run
from beir_cocodr.io import cache_folder
from beir_cocodr.models.loading import load_cross_encoder, load_encoder
from beir_cocodr.models.spec import BM25_WEIGHT, EncoderOptions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.retrieval.fusion import FusedFeedback, Hybrid, weighted_mean, z_normalize
from beir_cocodr.training.objectives import TEACHERS

log = logging.getLogger(__name__)
_ROUNDING = 1e-6


class Teacher(Protocol):
    """Scores documents for a query; only scores of one query are compared."""

    def score(self, query_id: str, query: str, rows: np.ndarray) -> np.ndarray:
        """(m,) corpus rows to (m,) scores, higher for what suits the query better."""
        ...


def score_lists(teacher: Teacher, asked: Sequence[tuple[str, str, Ints]]) -> list[np.ndarray]:
    """:meth:`Teacher.score` for many queries, all at once by a teacher with a method
    ``score_lists``.
    """
    many = getattr(teacher, "score_lists", None)
    found: list[np.ndarray] = (
        [teacher.score(*one) for one in asked] if many is None else many(asked)
    )
    return found


def scored_rows(teacher: Teacher, query_id: str, rows: Ints) -> Ints:
    """Those of (m,) rows that a teacher can score, in their order: of one with a method ``scored``,
    what it gives.
    """
    scored = getattr(teacher, "scored", None)
    return rows if scored is None else rows[np.isin(rows, scored(query_id))]


@dataclass(frozen=True)
class TeacherSetting:
    """What a teacher of this name may be made from: the corpus, the student's text format and what
    it starts from, a folder for embeddings that lasts as long as the training, and BM25's weight in
    a fusion, against 1 of the encoder.
    """

    name: str
    documents: Documents
    text_format: TextFormat
    base: str
    encoder: EncoderOptions
    folder: Path
    bm25_weight: float = BM25_WEIGHT

    def bm25(self) -> BM25:
        """Over the corpus; in the cache, where all processes of a run make it together and share
        it.
        """
        found = BM25(self.documents, self.text_format)
        if self.documents.content_hash:
            found.keep(cache_folder("bm25"))
        return found


def find_teacher(setting: TeacherSetting) -> Teacher:
    """The teacher that a name means, by :data:`~beir_cocodr.training.objectives.TEACHERS`."""
    fitting = (
        kind for kind in TEACHERS.values() if kind.means is not None and kind.means(setting.name)
    )
    kind = next(fitting, TEACHERS["cross-encoder"])
    teacher: Teacher = load_object(kind.build)(setting)
    return teacher


class CrossEncoderTeacher:
    """A cross-encoder's raw scores, without the sigmoid that some have; ``batch_size`` pairs at a
    time.

    An InputError where the one of this hub name or folder cannot be loaded whole, has no trained
    classifier, or more than one score. ``texts_cut`` counts scored queries and documents that may
    have lost words, cut before tokenisation.
    """

    def __init__(
        self,
        name: str,
        documents: Documents,
        text_format: TextFormat,
        batch_size: int = 64,
        device: str | None = None,
    ) -> None:
        self.model, self._literally = load_cross_encoder(name, device)
        self.documents, self.text_format, self.batch_size = documents, text_format, batch_size
        self.texts_cut = 0

    @classmethod
    def of(cls, setting: TeacherSetting) -> Self:
        return cls(
            setting.name, setting.documents, setting.text_format, device=setting.encoder.device
        )

    def score(self, query_id: str, query: str, rows: np.ndarray) -> np.ndarray:
        [found] = self.score_lists([(query_id, query, rows)])
        return found

    def score_lists(self, asked: Sequence[tuple[str, str, Ints]]) -> list[np.ndarray]:
        """Scores of (m,) rows for each of many queries; in bfloat16 on a GPU."""
        pairs = [pair for _, query, rows in asked for pair in self._pairs(query, rows)]
        device = torch.device(self.model.device).type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            raw: Any = self.model.predict(
                pairs,
                batch_size=self.batch_size,
                activation_fn=torch.nn.Identity(),
                show_progress_bar=False,
            )
        ends = np.cumsum([len(rows) for _, _, rows in asked])
        return np.split(np.asarray(raw, np.float32), ends[:-1])

    def _pairs(self, query: str, rows: Ints) -> list[tuple[str, str]]:
        found = [self.text_format.document(document) for document in self.documents.take(rows)]
        cut = [cut_text(text) for text in [query, *found]]
        lost = [text for text, loses in cut if loses]
        if lost and not self.texts_cut:
            log.warning("the teacher reads only the first %d characters of %.60r; further texts are counted",
                        len(lost[0]), lost[0])  # fmt: skip
        self.texts_cut += len(lost)
        query, *texts = (self._literally(text) for text, _ in cut)
        return [(query, text) for text in texts]


class BM25Teacher:
    """BM25's scores."""

    def __init__(self, bm25: BM25) -> None:
        self.bm25 = bm25

    @classmethod
    def of(cls, setting: TeacherSetting) -> Self:
        return cls(setting.bm25())

    def score(self, query_id: str, query: str, rows: np.ndarray) -> np.ndarray:
        [terms] = self.bm25.terms([query])
        return self.bm25.postings.scores_of(terms, rows)


class HybridTeacher:
    """The weighted mean of an encoder's and BM25's scores, each z-normalised over all documents;
    with feedback those of the encoder for the query that the fusion's best documents move.

    Args:
        dense: the encoder over the corpus; it stays as it is while the student moves.
        bm25: BM25 over the same corpus.
        bm25_weight: of BM25, against 1 of the encoder.
        feedback: whether the query is moved, as :class:`~beir_cocodr.retrieval.fusion.Feedback`
            does.

    Attributes:
        fusion: searches as the teacher scores.
    """

    def __init__(
        self, dense: Dense, bm25: BM25, bm25_weight: float = BM25_WEIGHT, feedback: bool = False
    ) -> None:
        self.dense, self.bm25, self.bm25_weight = dense, bm25, bm25_weight
        kind = FusedFeedback if feedback else Hybrid
        self.fusion: Hybrid = kind(dense, bm25, bm25_weight=bm25_weight)

    @classmethod
    def of(cls, setting: TeacherSetting, feedback: bool = False) -> Self:
        setting.folder.mkdir(parents=True, exist_ok=True)
        start, file = load_encoder(setting.base, setting.encoder), setting.folder / "teacher-corpus"
        dense = Dense(start, setting.documents, file, progress=True, shared=True)
        dense.prepare()  # by all processes of a run together
        return cls(dense, setting.bm25(), setting.bm25_weight, feedback)

    @classmethod
    def of_feedback(cls, setting: TeacherSetting) -> Self:
        return cls.of(setting, feedback=True)

    def score(self, query_id: str, query: str, rows: np.ndarray) -> np.ndarray:
        moved = (
            self.fusion.move({query_id: query}) if isinstance(self.fusion, FusedFeedback) else None
        )
        vector = (
            (self.dense.encode_queries([query]) if moved is None else moved)[0].double().numpy()
        )
        mean, second = self._moments
        square = vector @ second @ vector  # the mean of the squared scores over all documents
        deviation = np.sqrt(max(square - (vector @ mean) ** 2, 0.0))
        dense = (self.dense.embeddings.rows(rows).double().numpy() - mean) @ vector
        # What is left of equal scores after rounding is no deviation.
        dense = (
            dense / deviation if deviation > _ROUNDING * np.sqrt(square) else np.zeros(len(rows))
        )
        lexical = z_normalize(self.bm25.scores(query)[None])[0, rows]
        return weighted_mean(dense, lexical, self.bm25_weight).astype(np.float32)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (d,) and mean outer product (d, d) of all documents, float64, for a query's mean and
        deviation.
        """
        width = self.dense.embeddings.dimensions
        total, outer = np.zeros(width), np.zeros((width, width))
        for chunk in self.dense.embeddings.chunks():
            rows = chunk.double().numpy()
            total += rows.sum(axis=0)
            outer += rows.T @ rows
        return total / len(self.dense.documents), outer / len(self.dense.documents)


class FileTeacher:
    """Scores that were computed before: a TREC run, or lines of query id, document id and score by
    tabs; else an InputError, as for a score that is no number, or a pair that has no score or two.
    """

    def __init__(self, file: Path, documents: Documents) -> None:
        self.file, self.documents, self.scores = file, documents, read_trec_run(file, table=True)

    @classmethod
    def of(cls, setting: TeacherSetting) -> Self:
        return cls(Path(setting.name), setting.documents)

    def scored(self, query_id: str) -> Ints:
        """The corpus rows that have a score, in the order of the file; training lists hold no
        others.
        """
        rows = self.documents.rows(self.scores.get(query_id, {}))
        return rows[rows >= 0]

    def usable(self, queries: Mapping[str, str], relevant: Mapping[str, Ints]) -> dict[str, str]:
        """The queries with a score for one of their relevant rows and another document; the others
        are counted, and an InputError where there are none.
        """
        found = {
            query: text
            for query, text in queries.items()
            if 0 < len(relevant[query]) < len(self.scores.get(query, {}))
        }
        left_out = f"{len(queries) - len(found)} of {len(queries)} training queries have no scores of a relevant document"
        if not found:
            raise InputError(
                f"{self.file}: {left_out} and another one; add them, or take another teacher"
            )
        if len(found) < len(queries):
            log.warning("%s: %s and another one, and are left out", self.file, left_out)
        return found

    def pool(self, query_id: str, best: Ints, known: Ints, count: int) -> Ints:
        """Of BM25's ``best`` those that have a score, then others that have one and are not
        ``known``.
        """
        scored = self.scored(query_id)
        first = best[np.isin(best, scored)]
        return np.concatenate([first, scored[~np.isin(scored, known) & ~np.isin(scored, first)]])[
            :count
        ]

    def score(self, query_id: str, query: str, rows: np.ndarray) -> np.ndarray:
        known = self.scores.get(query_id, {})
        ids = self.documents.ids(rows)
        if missing := [document for document in ids if document not in known]:
            raise InputError(
                f"{self.file} has no score for query {query_id!r} and document {missing[0]!r}, which the "
                "training lists hold; add it, or take another teacher"
            )
        return np.array([known[document] for document in ids], np.float32)
