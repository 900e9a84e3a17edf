"""Teachers of distillation, which say which document suits a query better, and the students."""

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from transformers import set_seed

from beir_cocodr.arrays import Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat, cut_text
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import read_trec_run
from beir_cocodr.io import cache_folder
from beir_cocodr.models.checkpoints.loading import load_cross_encoder, model_source
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import BM25_WEIGHT, EncoderOptions, Options
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion import (
    RM3,
    FusedFeedback,
    Hybrid,
)
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.training.distillation.teacher_rows import (
    HybridTeacherOptions,
    MRLOptions,
    teacher_kind,
)
from beir_cocodr.training.options import DistillOptions
from beir_cocodr.training.start import ModelLike, Start, load_start, untrained

log = logging.getLogger(__name__)


class Teacher(Protocol):
    """Scores documents for a query; only scores of one query are compared."""

    def score(self, query_id: str, query: str, rows: Ints) -> np.ndarray:
        """Return (m,) scores of (m,) corpus rows, higher for what suits the query better."""
        ...


def score_lists(teacher: Teacher, lists: Sequence[tuple[str, str, Ints]]) -> Sequence[np.ndarray]:
    """Return :meth:`Teacher.score` of many queries, at once if the teacher has ``score_lists``."""
    many = getattr(teacher, "score_lists", None)
    if many is None:
        return [teacher.score(query_id, query, rows) for query_id, query, rows in lists]
    scores: Sequence[np.ndarray] = many(lists)
    return scores


def scored_rows(teacher: Teacher, query_id: str, rows: Ints) -> Ints:
    """Return those of (m,) rows that a teacher can score, in their order.

    A teacher with a method ``scored`` can score what that returns, and any other can score all.
    """
    scored = getattr(teacher, "scored", None)
    if scored is None:
        return rows
    return rows[np.isin(rows, scored(query_id))]


@dataclass(frozen=True)
class TeacherSetting:
    """The parts that a teacher may be made from.

    Attributes:
        name: the value of ``--teacher``.
        documents: the corpus.
        text_format: how the student reads documents.
        start: what the student starts from.
        encoder: how that is loaded.
        folder: a folder for embeddings that lasts as long as the training.
        options: the teacher's own options.
    """

    name: str
    documents: Documents
    text_format: TextFormat
    start: ModelLike
    encoder: EncoderOptions
    folder: Path
    options: Options | None = None

    def bm25(self) -> BM25:
        """Return BM25 over the corpus.

        It is kept in the cache, where all processes of a run make it together and share it.
        """
        bm25 = BM25(self.documents, self.text_format)
        if self.documents.content_hash:
            bm25.keep(cache_folder("bm25"))
        return bm25


def find_teacher(setting: TeacherSetting) -> Teacher:
    """Return the teacher that a name means."""
    teacher: Teacher = teacher_kind(setting.name).load()(setting)
    return teacher


class CrossEncoderTeacher:
    """A cross-encoder's raw scores, without the sigmoid that some have.

    Args:
        name: hub name or folder.
        documents: the corpus.
        text_format: how documents are read.
        batch_size: pairs at a time.
        device: device of the cross-encoder.

    Attributes:
        texts_cut: queries and documents that may have lost words, cut before tokenisation.

    Raises:
        InputError: The cross-encoder cannot be loaded whole, has no trained classifier, or gives
            more than one score.
    """

    def __init__(
        self,
        name: str,
        documents: Documents,
        text_format: TextFormat,
        batch_size: int = 64,
        device: str | None = None,
    ) -> None:
        """Load the cross-encoder."""
        self.model, self._literally = load_cross_encoder(name, device)
        self.documents = documents
        self.text_format = text_format
        self.batch_size = batch_size
        self.texts_cut = 0

    @classmethod
    def of(cls, setting: TeacherSetting) -> Self:
        """Return the teacher of a setting."""
        device = setting.encoder.device
        return cls(setting.name, setting.documents, setting.text_format, device=device)

    def score(self, query_id: str, query: str, rows: Ints) -> np.ndarray:
        """Return (m,) scores of (m,) rows."""
        [scores] = self.score_lists([(query_id, query, rows)])
        return scores

    def score_lists(self, lists: Sequence[tuple[str, str, Ints]]) -> list[np.ndarray]:
        """Return scores of (m,) rows for each of many queries; in bfloat16 on a GPU."""
        pairs: list[tuple[str, str]] = []
        lengths: list[int] = []
        for _, query, rows in lists:
            pairs += self._pairs(query, rows)
            lengths.append(len(rows))
        device = torch.device(self.model.device).type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            raw: Any = self.model.predict(
                pairs,
                batch_size=self.batch_size,
                activation_fn=torch.nn.Identity(),
                show_progress_bar=False,
            )
        ends = np.cumsum(lengths)
        scores = np.asarray(raw, np.float32)
        return np.split(scores, ends[:-1])

    def _pairs(self, query: str, rows: Ints) -> list[tuple[str, str]]:
        documents = self.documents.take(rows)
        texts = [self.text_format.document(document) for document in documents]
        cut = [cut_text(text) for text in [query, *texts]]
        lost = [text for text, loses_words in cut if loses_words]
        if lost and not self.texts_cut:
            log.warning(
                "the teacher reads only the first %d characters of %.60r; further ones are counted",
                len(lost[0]),
                lost[0],
            )
        self.texts_cut += len(lost)
        query, *texts = (self._literally(text) for text, _ in cut)
        return [(query, text) for text in texts]


class BM25Teacher:
    """BM25's scores.

    Args:
        bm25: BM25 over the corpus.
    """

    def __init__(self, bm25: BM25) -> None:
        """Keep BM25 at hand."""
        self.bm25 = bm25

    @classmethod
    def of(cls, setting: TeacherSetting) -> Self:
        """Return the teacher of a setting."""
        return cls(setting.bm25())

    def score(self, query_id: str, query: str, rows: Ints) -> np.ndarray:
        """Return (m,) scores of (m,) rows."""
        [terms] = self.bm25.terms([query])
        return self.bm25.postings.scores_of(terms, rows)


class HybridTeacher:
    """The weighted mean of an encoder's and BM25's scores, each z-normalised over all documents.

    With feedback the encoder scores for the query that the fusion's best documents move.

    Args:
        dense: the encoder over the corpus; it stays as it is while the student moves.
        bm25: BM25 over the same corpus.
        bm25_weight: weight of BM25, against 1 of the encoder.
        kind: the fusion; :class:`~beir_cocodr.retrieval.hybrid.fusion.FusedFeedback` moves the
            query, and :class:`~beir_cocodr.retrieval.hybrid.fusion.RM3` expands BM25's.

    Attributes:
        fusion: searches as the teacher scores.
    """

    def __init__(
        self,
        dense: Dense,
        bm25: BM25,
        bm25_weight: float = BM25_WEIGHT,
        kind: type[Hybrid] = Hybrid,
    ) -> None:
        """Build the fusion."""
        self.dense = dense
        self.fusion: Hybrid = kind(dense, bm25, bm25_weight=bm25_weight)

    @classmethod
    def of(cls, setting: TeacherSetting, kind: type[Hybrid] = Hybrid) -> Self:
        """Return the teacher of a setting."""
        setting.folder.mkdir(parents=True, exist_ok=True)
        options = setting.options or HybridTeacherOptions()
        assert isinstance(options, HybridTeacherOptions)
        dense = Dense(
            untrained(setting.start, setting.encoder),
            setting.documents,
            setting.folder / "teacher-corpus",
            progress=True,
            shared=True,
        )
        if isinstance(setting.start, Start):
            dense.pool = setting.start.pool
        dense.prepare()  # by all processes of a run together
        return cls(dense, setting.bm25(), options.bm25_weight, kind)

    @classmethod
    def of_feedback(cls, setting: TeacherSetting) -> Self:
        """Return the teacher of a setting, with feedback."""
        return cls.of(setting, FusedFeedback)

    @classmethod
    def of_rm3(cls, setting: TeacherSetting) -> Self:
        """Return the teacher of a setting, with BM25's query expanded."""
        return cls.of(setting, RM3)

    def score(self, query_id: str, query: str, rows: Ints) -> np.ndarray:
        """Return (m,) scores of (m,) rows."""
        [scores] = self.score_lists([(query_id, query, rows)])
        return scores

    def score_lists(self, lists: Sequence[tuple[str, str, Ints]]) -> list[np.ndarray]:
        """Return scores of (m,) rows for each of many queries.

        One pass over the corpus serves many queries; beyond it only the listed documents are read.
        """
        queries = {query_id: query for query_id, query, _ in lists}
        vector_of = dict(zip(queries, self._query_vectors(queries), strict=True))
        vectors = torch.stack([vector_of[query_id] for query_id, _, _ in lists])
        texts = [query for _, query, _ in lists]
        return self.fusion.list_scores(texts, vectors, [rows for _, _, rows in lists])

    def _query_vectors(self, queries: dict[str, str]) -> torch.Tensor:
        """Return the (Q, d) vectors of queries, id to text, moved if there is feedback."""
        if isinstance(self.fusion, FusedFeedback):
            return self.fusion.move(queries)
        return self.dense.encode_queries(list(queries.values()))


class FileTeacher:
    """Scores that were computed before.

    Args:
        file: a TREC run, or lines of query id, document id and score, separated by tabs.
        documents: the corpus.

    Raises:
        InputError: The file is neither, a score is no number, or a pair has two scores.
    """

    def __init__(self, file: Path, documents: Documents) -> None:
        """Read the scores."""
        self.file = file
        self.documents = documents
        self.scores = read_trec_run(file, table=True)

    @classmethod
    def of(cls, setting: TeacherSetting) -> Self:
        """Return the teacher of a setting."""
        return cls(Path(setting.name), setting.documents)

    def warn_of_unknown(self, queries: Container[str]) -> None:
        """Log how many of the file's documents and queries the dataset does not have."""
        documents = list(dict.fromkeys(id for scores in self.scores.values() for id in scores))
        is_unknown = self.documents.rows(documents) < 0
        unknown = {
            "documents": [documents[i] for i in np.flatnonzero(is_unknown)],
            "queries": [query for query in self.scores if query not in queries],
        }
        for kind, ids in unknown.items():
            if ids:
                log.warning(
                    "%s: the dataset does not have %d of the %s, and their scores are ignored; "
                    "the first is %r",
                    self.file,
                    len(ids),
                    kind,
                    ids[0],
                )

    def scored(self, query_id: str) -> Ints:
        """Return the corpus rows that have a score, in the order of the file.

        Training lists hold no others.
        """
        rows = self.documents.rows(self.scores.get(query_id, {}))
        return rows[rows >= 0]

    def usable(self, queries: Mapping[str, str], relevant: Mapping[str, Ints]) -> dict[str, str]:
        """Return the queries with scores for a relevant row and for another document.

        The others are counted.

        Raises:
            InputError: No query has both.
        """
        usable: dict[str, str] = {}
        for query, text in queries.items():
            scored = self.scores.get(query, {})
            if 0 < len(relevant[query]) < len(scored):
                usable[query] = text
        left_out = (
            f"{len(queries) - len(usable)} of {len(queries)} training queries have no scores of a "
            "relevant document"
        )
        if not usable:
            raise InputError(
                f"{self.file}: {left_out} and of another document; add them, or choose another "
                "teacher"
            )
        if len(usable) < len(queries):
            log.warning("%s: %s and of another document, and are left out", self.file, left_out)
        return usable

    def pool(
        self,
        query_id: str,
        best: Ints,
        known: Ints,
        count: int,
    ) -> Ints:
        """Return BM25's ``best`` rows that have a score, then others that are not ``known``."""
        scored = self.scored(query_id)
        first = best[np.isin(best, scored)]
        is_known = np.isin(scored, known)
        is_first = np.isin(scored, first)
        others = scored[~is_known & ~is_first]
        return np.concatenate([first, others])[:count]

    def score(self, query_id: str, query: str, rows: Ints) -> np.ndarray:
        """Return (m,) scores of (m,) rows.

        Raises:
            InputError: A row has no score.
        """
        known = self.scores.get(query_id, {})
        ids = self.documents.ids(rows)
        missing = [document for document in ids if document not in known]
        if missing:
            raise InputError(
                f"{self.file} has no score for query {query_id!r} and document {missing[0]!r}, "
                "which are in the training lists; add the score, or choose another teacher"
            )
        return np.array([known[document] for document in ids], np.float32)


def plain_student(model: ModelLike, options: DistillOptions) -> Start:
    """Return the encoder as it is, as a student."""
    return load_start(model, options.encoder, options.seed)


def mrl_student(model: ModelLike, options: DistillOptions) -> Start:
    """Return a student of means and variances that starts from an encoder."""
    own_options = options.student_options
    assert isinstance(own_options, MRLOptions)
    if isinstance(model, str | Path):
        name = str(model)
        source = model_source(name)
    else:
        start = load_start(model, options.encoder, options.seed)
        name = start.name
        source = start.source
    set_seed(options.seed)  # new layers are drawn at random
    student = MRL(
        source,
        k=own_options.k,
        beta=own_options.beta,
        seed=options.seed,
        **options.encoder.overrides(),
    )
    return Start(name, source, student)
