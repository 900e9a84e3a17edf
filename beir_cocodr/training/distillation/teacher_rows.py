"""Teachers and students of distillation: what each is called, its options, and its papers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.models.spec import BM25_WEIGHT, Options, option
from beir_cocodr.training.rows import Row


@dataclass(frozen=True)
class HybridTeacherOptions(Options):
    """Options of the teachers that fuse BM25 and an encoder.

    Args:
        bm25_weight: weight of BM25 in the fusion, against 1 of the encoder.
    """

    bm25_weight: float = option(BM25_WEIGHT, min=0, max=1000)


@dataclass(frozen=True)
class MRLOptions(Options):
    """Options of the student ``mrl``, see :class:`~beir_cocodr.models.mrl.MRL`.

    Args:
        k: numbers of a mean and of a variance; None means the model's own default.
        beta: β of the softplus that makes variances; None means the model's own default.
    """

    k: int | None = option(None, min=1)
    beta: float | None = option(None, above=0)


@dataclass(frozen=True, kw_only=True)
class TeacherKind(Row):
    """A kind of teacher, whose scores the student learns.

    ``build`` is called with a :class:`~beir_cocodr.training.distillation.teachers.TeacherSetting`;
    ``help`` is what ``--teacher`` is then.

    Attributes:
        means: tells if a value of ``--teacher`` means this kind. None takes what no other takes.
    """

    means: Callable[[str], bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Student(Row):
    """A kind of student.

    ``build`` is called with the model that it starts from and the
    :class:`~beir_cocodr.training.options.DistillOptions`, and returns a
    :class:`~beir_cocodr.training.start.Start` of the encoder that is trained.
    """


_TEACHERS = "beir_cocodr.training.distillation.teachers"

#: Name to kind of teacher; a value means the first kind that takes it. Add a row for your own.
TEACHERS: dict[str, TeacherKind] = {
    "bm25": TeacherKind(
        build=f"{_TEACHERS}:BM25Teacher.of",
        help="bm25",
        means="bm25".__eq__,
        citations=("robertson2009bm25",),
    ),
    "hybrid": TeacherKind(
        build=f"{_TEACHERS}:HybridTeacher.of",
        help="hybrid (BM25 and the encoder)",
        options=HybridTeacherOptions,
        means="hybrid".__eq__,
        citations=("robertson2009bm25",),
    ),
    "feedback": TeacherKind(
        build=f"{_TEACHERS}:HybridTeacher.of_feedback",
        help="feedback (hybrid with relevance feedback)",
        options=HybridTeacherOptions,
        means="feedback".__eq__,
        citations=("robertson2009bm25",),
    ),
    "rm3": TeacherKind(
        build=f"{_TEACHERS}:HybridTeacher.of_rm3",
        help="rm3 (hybrid with BM25's query expanded)",
        options=HybridTeacherOptions,
        means="rm3".__eq__,
        citations=("robertson2009bm25", "lavrenko2001relevance"),
    ),
    "file": TeacherKind(
        build=f"{_TEACHERS}:FileTeacher.of",
        help="a file of scores",
        means=lambda name: Path(name).is_file(),
    ),
    "cross-encoder": TeacherKind(
        build=f"{_TEACHERS}:CrossEncoderTeacher.of", help="a cross-encoder"
    ),
}

#: Name to kind of student. Add a row for your own.
STUDENTS: dict[str, Student] = {
    "dot": Student(build=f"{_TEACHERS}:plain_student", help="the encoder as it is"),
    "mrl": Student(
        build=f"{_TEACHERS}:mrl_student",
        help="means and variances, started from the encoder",
        options=MRLOptions,
        citations=("zamani2023mrl",),
    ),
}


def teacher_kind(name: str) -> TeacherKind:
    """Return the row of :data:`TEACHERS` that a value of ``--teacher`` means."""
    for kind in TEACHERS.values():
        if kind.means is not None and kind.means(name):
            return kind
    return TEACHERS["cross-encoder"]
