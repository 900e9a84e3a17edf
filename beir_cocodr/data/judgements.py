"""Judgements that a person makes: qrels, a filled table of pairs to judge, or a log of judgements.

They come a few at a time, and pairs may have been drawn, each with a known probability;
:class:`Judgements` keeps both.
"""

import errno
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from beir_cocodr.data.defects import raise_errors
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.readers import RecordChecker, json_records, numbered_lines, read_judgements
from beir_cocodr.errors import InputError, naming_full_disk
from beir_cocodr.io import (
    atomic_path,
    atomic_writer,
    locked,
    parse_json,
    text_cell,
    text_sha256,
    write_qrels,
)
from beir_cocodr.records import Record

#: The log of judgements in a folder, and the same judgements as qrels.
LOG_FILE = "judgements.jsonl"
QRELS_FILE = "qrels.tsv"

#: Ends the name of the file beside a log that keeps its damaged lines.
DAMAGED = ".damaged"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoggedJudgement(Record):
    """A line of a log of judgements (jsonl); where several judge one pair, the last counts.

    Attributes:
        time: ISO 8601, with its zone.
        document_id: id of the document.
        grade: 0 for not relevant, or higher; None takes back what was judged before.
        query_id: None for a query that was typed, whose id is then :func:`typed_id`.
        query: text of the query; may be empty where there is an id.
        query_probability: see :class:`AnnotationCandidate`.
        document_probability: see :class:`AnnotationCandidate`.
        drawn: number of documents of the query that were drawn; the query counts as blank until
            all of them are judged.
    """

    time: str
    document_id: str
    grade: int | None
    query_id: str | None = None
    query: str = ""
    query_probability: float | None = None
    document_probability: float | None = None
    drawn: int | None = None


_TYPED = "typed-"


def typed_id(query: str) -> str:
    """Return the id of a query that was typed and has none."""
    return f"{_TYPED}{text_sha256(_normalised(query))[:12]}"


def _normalised(text: str) -> str:
    return " ".join(text.split())


def log_judgement(
    path: Path,
    document_id: str,
    grade: int | None,
    query: str,
    **more: object,
) -> LoggedJudgement:
    """Append a judgement to a log; it is on the disk when this returns.

    Several processes may append to one log. A line that cannot be written whole is taken back.

    Args:
        path: the log.
        document_id: id of the judged document.
        grade: 0 for not relevant, or higher; None takes back what was judged before.
        query: text of the query.
        **more: other fields of :class:`LoggedJudgement`.

    Raises:
        DiskFull: there is no room; the log is as it was before.
    """
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    judgement = LoggedJudgement(
        time=time,
        document_id=document_id,
        grade=grade,
        query=query,
        **more,  # type: ignore[arg-type]
    )
    line = (json.dumps(judgement.to_json(), ensure_ascii=False) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming_full_disk(path.parent), locked(path.parent):
        _append(path, line)
    return judgement


def _append(path: Path, line: bytes) -> None:
    """Append a line with one unbuffered write; cut the file back if that fails or is short.

    A line that another process left unfinished stays a line of its own.
    """
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size > 0:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                line = b"\n" + line
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def repair_log(path: Path) -> None:
    """Move the damaged lines of a log to a file beside it, and log one line that says so.

    A kill or a full disk may leave a part of a line. All judgements before and after it stay. A
    last line that lacks only its end gets one.
    """
    if not path.is_file():
        return
    with naming_full_disk(path.parent), locked(path.parent):
        lines = _lines(path)
        damaged = [row for row, line in enumerate(lines) if not _is_json(line)]
        if not damaged:
            if lines and not path.read_bytes().endswith(b"\n"):
                _append(path, b"")
            return
        aside = path.with_name(path.name + DAMAGED)
        before = _lines(aside) if aside.is_file() else []
        intact = [line for line in lines if _is_json(line)]
        _write_lines(aside, before + [lines[row] for row in damaged])
        _write_lines(path, intact)
    log.warning(
        "%s:%d: %d damaged line(s) moved to %s; the other %d judgements count",
        path,
        damaged[0] + 1,
        len(damaged),
        aside.name,
        len(intact),
    )


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file without their ends."""
    lines = path.read_bytes().split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _write_lines(path: Path, lines: list[bytes]) -> None:
    with atomic_path(path) as draft:
        draft.write_bytes(b"".join(line + b"\n" for line in lines))


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line.decode())
    except ValueError:
        return False
    return True


class Asked(NamedTuple):
    """A query: of the collection where it has an id, else typed by the user."""

    text: str
    query_id: str | None = None

    @property
    def id(self) -> str:
        """Return the id of the query."""
        return typed_id(self.text) if self.query_id is None else self.query_id


class _Step(NamedTuple):
    """A judgement that can be undone, and the grade of its pair before it."""

    pair: tuple[str, str]
    judgement: LoggedJudgement
    grade_before: int | None


class JudgementLog:
    """The log of judgements of a folder, and what follows from it: grades, qrels, undoing.

    Others may append to the same log, in this process or in another: the log alone counts.

    Attributes:
        grades: query id to document id to grade.
        pairs: all pairs that were ever judged.
        version: number of the judgements in the log.
        lock: for threads that read these.
    """

    def __init__(self, folder: Path) -> None:
        """Open the log of a folder; damaged lines are set aside, see :func:`repair_log`."""
        self.file = folder / LOG_FILE
        self._qrels = folder / QRELS_FILE
        self.lock = threading.RLock()
        self._forget()
        repair_log(self.file)
        self.refresh()

    def refresh(self) -> None:
        """Read what was appended, and bring the qrels up to date."""
        with self.lock:
            size = self.file.stat().st_size if self.file.is_file() else 0
            if size < self._read:
                self._forget()
            if size > self._read and not self._read_on():
                repair_log(self.file)  # a writer was killed, and others appended after that
                self._read_on()
            if self._qrels_version != self.version:
                self._write_qrels()

    def judge(
        self,
        asked: Asked,
        document: str,
        grade: int | None,
        **drawn: object,
    ) -> None:
        """Append a judgement, unless the log says the same already.

        Args:
            asked: the query.
            document: id of the document.
            grade: the grade; None takes the judgement back.
            **drawn: other fields of :class:`LoggedJudgement`.
        """
        with self.lock:
            self.refresh()
            if self.grades.get(asked.id, {}).get(document) != grade:
                log_judgement(
                    self.file,
                    document,
                    grade,
                    asked.text,
                    query_id=asked.query_id,
                    **drawn,
                )
                self.refresh()

    def undo(self, version: int) -> None:
        """Take the last judgement back; the one that it replaced counts again.

        Args:
            version: the version in which the person saw it; nothing happens in another one.
        """
        with self.lock:
            self.refresh()
            if version != self.version or not self._undo:
                return
            step = self._undo[-1]
            fields = {**vars(step.judgement), "grade": step.grade_before}
            del fields["time"]
            log_judgement(self.file, **fields)
            self.refresh()

    @property
    def can_undo(self) -> bool:
        """Return whether there is a judgement to undo."""
        return bool(self._undo)

    def _forget(self) -> None:
        self.version = 0
        self.grades: dict[str, dict[str, int]] = {}
        self.pairs: set[tuple[str, str]] = set()
        self._read = 0
        self._qrels_version = 0
        self._undo: list[_Step] = []

    def _read_on(self) -> bool:
        """Apply the complete lines that were not read yet; return False at a damaged one."""
        with self.file.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    break
                if not _is_json(line):
                    return False
                self._read += len(line)
                self._apply(line)
        return True

    def _apply(self, line: bytes) -> None:
        self.version += 1
        where = f"{self.file}:{self.version}"
        judgement = LoggedJudgement.from_json(parse_json(line.decode()), where)
        query = Asked(judgement.query, judgement.query_id).id
        document = judgement.document_id
        self.pairs.add((query, document))
        grades = self.grades.setdefault(query, {})
        before = grades.pop(document, None)
        if judgement.grade is not None:
            grades[document] = judgement.grade
        if not grades:
            del self.grades[query]
        step = _Step((query, document), judgement, before)
        if self._undo and self._takes_back(step):
            self._undo.pop()
        else:
            self._undo.append(step)

    def _takes_back(self, step: _Step) -> bool:
        last = self._undo[-1]
        return last.pair == step.pair and last.grade_before == step.judgement.grade

    def _write_qrels(self) -> None:
        rows = []
        for query, grades in self.grades.items():
            for document, grade in grades.items():
                rows.append((query, document, grade))
        write_qrels(self._qrels, rows)
        self._qrels_version = self.version


@dataclass(frozen=True)
class AnnotationCandidate:
    """A query-document pair to judge: a line of ``labels_wanted.tsv``.

    The columns of the file are these fields.

    Attributes:
        query_id: id of the query.
        document_id: id of the document.
        judgement: filled by the person who judges: 0 for not relevant, 1 or higher for relevant;
            None is not judged.
        weight: by how much the difference of the two models' DCG@10 changes if the document is
            relevant.
        rank_a: the document's rank by the first model, None beyond rank 10.
        rank_b: the same by the second model.
        query: text of the query.
        document: the beginning of the document's text.
        query_probability: probability that a single draw takes this query; None if it was not
            drawn.
        document_probability: probability that the document is drawn once its query is.
    """

    query_id: str
    document_id: str
    judgement: int | None = None
    weight: float = 0.0
    rank_a: int | None = None
    rank_b: int | None = None
    query: str = ""
    document: str = ""
    query_probability: float | None = None
    document_probability: float | None = None


COLUMNS = tuple(field.name for field in fields(AnnotationCandidate))


def write_annotation_candidates(
    path: Path,
    pairs: list[AnnotationCandidate],
) -> None:
    """Write pairs to judge as TSV with a header.

    Ids are written as they are, texts by :func:`~beir_cocodr.io.text_cell`.
    """
    with atomic_writer(path) as file:
        file.write("\t".join(COLUMNS) + "\n")
        for pair in pairs:
            values = dict(vars(pair))
            values["query"] = text_cell(pair.query or "")
            values["document"] = text_cell(pair.document or "")
            cells = []
            for value in values.values():
                cells.append("" if value is None else str(value))
            file.write("\t".join(cells) + "\n")


@dataclass(frozen=True)
class JudgedQuery:
    """The judgements of one query.

    Attributes:
        grades: document id to grade.
        probabilities: document id to the probability that it was drawn, 1 where it was not left to
            chance.
        probability: probability, relative to that of other queries, that this one was drawn.
        text: the text; "" where only the id is known.
        blank: number of its pairs that were to be judged and were not.
    """

    grades: dict[str, int] = field(default_factory=dict)
    probabilities: dict[str, float] = field(default_factory=dict)
    probability: float | None = None
    text: str = ""
    blank: int = 0

    def with_judgement(
        self,
        document: str,
        grade: int,
        probability: float,
    ) -> "JudgedQuery":
        """Return the query with a further judgement."""
        return replace(
            self,
            grades={**self.grades, document: grade},
            probabilities={**self.probabilities, document: probability},
        )

    def joined(self, later: "JudgedQuery", text: str) -> "JudgedQuery":
        """Return the judgements of one query that was recorded under two ids."""
        probability = self.probability if later.probability is None else later.probability
        return JudgedQuery(
            grades={**self.grades, **later.grades},
            probabilities={**self.probabilities, **later.probabilities},
            probability=probability,
            text=text,
            blank=later.blank,
        )


# The reasons why judgements are left out or do not count in full, as they are reported.
_NOT_IN_COLLECTION = "judged queries that the collection does not have"
_BLANK = "judged queries with pairs left blank (write 0 for what is not relevant)"
_NOT_IN_CORPUS = "judged documents that the corpus does not have (kept, as in trec_eval)"


@dataclass(frozen=True)
class Judgements:
    """Judgements in the order in which queries were first judged.

    Attributes:
        file: the file that they were read from.
        queries: query id to its judgements.
        rows: rows of a table of pairs whose queries were begun.
        counts: what was left out or does not exist, by kind.
    """

    file: str
    queries: dict[str, JudgedQuery]
    rows: list[AnnotationCandidate] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def qrels(self) -> dict[str, dict[str, int]]:
        """Return query id to document id to grade."""
        return {id: query.grades for id, query in self.queries.items()}

    @property
    def drawn(self) -> bool:
        """Return whether some pair was left to chance."""
        for query in self.queries.values():
            if query.probability is not None:
                return True
            if any(probability < 1 for probability in query.probabilities.values()):
                return True
        return False

    def of(
        self,
        queries: Mapping[str, str],
        documents: Documents | None = None,
    ) -> "Judgements":
        """Return the judgements of queries that a collection has, or that were typed.

        The others are counted, and so are judged documents that the corpus does not have; these
        stay, as in trec_eval. A query that was typed and has the text of one in the collection is
        that one. Queries with blank pairs are left out: what is not judged there is not known to be
        irrelevant.

        Raises:
            InputError: no judgement is left.
        """
        counts = Counter(self.counts)
        kept: dict[str, JudgedQuery] = {}
        ids = {_normalised(text): id for id, text in queries.items() if text.strip()}
        for id, query in self.queries.items():
            if id not in queries:
                id = ids.get(_normalised(query.text), id)
            is_typed = bool(query.text) and id.startswith(_TYPED)
            if id not in queries and not is_typed:
                counts[_NOT_IN_COLLECTION] += 1
            elif query.blank:
                counts[_BLANK] += 1
            else:
                first = kept.get(id, JudgedQuery())
                kept[id] = first.joined(query, queries.get(id, query.text))
        if not kept:
            reasons = [f"{count} {reason}" for reason, count in counts.items()]
            reason = "; ".join(reasons) or "nothing is judged"
            raise InputError(f"{self.file}: no judged query can be used: {reason}")
        if documents is not None:
            judged = [document for query in kept.values() for document in query.grades]
            counts[_NOT_IN_CORPUS] += int((documents.rows(judged) < 0).sum())
        positive = {reason: count for reason, count in counts.items() if count > 0}
        for reason, count in positive.items():
            log.info("%s: %s: %d", self.file, reason, count)
        return replace(self, queries=kept, counts=positive)


def load_judgements(path: Path) -> Judgements:
    """Read judgements.

    Args:
        path: qrels (TREC's or BEIR's), a table of pairs such as ``labels_wanted.tsv``, or a log of
            judgements.

    Raises:
        InputError: there is no such file, or a line is damaged; the first one is named.
    """
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; give qrels, a filled labels_wanted.tsv, or a log of judgements"
        )
    first = next((text for _, text in numbered_lines(path, raise_errors)), "")
    if first.lstrip().startswith("{"):
        return _load_log(path)
    header = first.rstrip("\r").split("\t")
    if {"query_id", "document_id"} <= set(header):
        return _join_pairs(path, _table_pairs(path, header))
    return replace(_join_pairs(path, _qrels_pairs(path)), rows=[])


#: A pair and the line that it was read from.
_NumberedPair = tuple[int, AnnotationCandidate]


def _load_log(path: Path) -> Judgements:
    drawn: dict[str, int] = {}
    judgements = _join_pairs(path, _log_pairs(path, drawn))
    queries = dict(judgements.queries)
    for id, query in judgements.queries.items():
        if id in drawn:
            blank = max(0, drawn[id] - len(query.grades))
            queries[id] = replace(query, blank=blank)
    return replace(judgements, queries=queries)


def _join_pairs(
    path: Path,
    pairs: Iterator[_NumberedPair],
) -> Judgements:
    """Join the pairs of each query; where a pair is judged twice, the last judgement counts."""
    last: dict[tuple[str, str], AnnotationCandidate] = {}
    for line, pair in pairs:
        for name in ("query_probability", "document_probability"):
            share = getattr(pair, name)
            if share is not None and not 0 < share <= 1:
                raise InputError(
                    f"{path}:{line}: {name} is {share}, not above 0 and at most 1; correct the line"
                )
        last[pair.query_id, pair.document_id] = pair
    queries: dict[str, JudgedQuery] = {}
    for pair in last.values():
        new = JudgedQuery(probability=pair.query_probability, text=pair.query)
        query = queries.get(pair.query_id, new)
        if pair.judgement is None:
            queries[pair.query_id] = replace(query, blank=query.blank + 1)
        else:
            share = 1.0 if pair.document_probability is None else pair.document_probability
            queries[pair.query_id] = query.with_judgement(
                pair.document_id,
                pair.judgement,
                share,
            )
    judged = {id: query for id, query in queries.items() if query.grades}
    rows = [pair for pair in last.values() if pair.query_id in judged]
    return Judgements(str(path), judged, rows)


def _qrels_pairs(path: Path) -> Iterator[_NumberedPair]:
    for line, query, document, grade in read_judgements(path, raise_errors):
        yield line, AnnotationCandidate(query, document, grade)


def _table_pairs(
    path: Path,
    header: list[str],
) -> Iterator[_NumberedPair]:
    from pydantic import TypeAdapter, ValidationError  # only this needs it, and it takes a while

    adapter = TypeAdapter(AnnotationCandidate)
    if "judgement" not in header:
        raise InputError(
            f"{path}:1: no column judgement; add it, with 0 for not relevant and 1 for relevant"
        )
    checker = RecordChecker(str(path), raise_errors)
    for line, text in numbered_lines(path, raise_errors):
        cells = text.split("\t")
        if cells == header:
            continue
        if len(cells) != len(header):
            raise InputError(
                f"{path}:{line}: {len(cells)} columns, and the header has {len(header)}; "
                "correct the line"
            )
        fields = _table_fields(
            checker,
            line,
            dict(zip(header, cells, strict=True)),
        )
        try:
            yield line, adapter.validate_python(fields)
        except ValidationError as cause:
            error = cause.errors()[0]
            raise InputError(
                f"{path}:{line}: {error['loc'][0]} is {error['input']!r}: {error['msg'].lower()}"
            ) from None


def _table_fields(
    checker: RecordChecker,
    line: int,
    cells: dict[str, str],
) -> dict[str, object]:
    """Return the fields of a pair from the cells of its line; an empty cell leaves a default."""
    values = {name: cell.strip() for name, cell in cells.items() if name in COLUMNS}
    judgement = checker.judgement(
        line,
        values["query_id"],
        values["document_id"],
        values["judgement"] or "0",
    )
    assert judgement is not None  # errors are raised
    _, query, document, grade = judgement
    fields: dict[str, object] = {name: value for name, value in values.items() if value}
    fields["query_id"] = query
    fields["document_id"] = document
    if values["judgement"]:
        fields["judgement"] = grade
    return fields


def _log_pairs(
    path: Path,
    drawn: dict[str, int],
) -> Iterator[_NumberedPair]:
    """Stream the pairs of a log.

    What was taken back is left out, and what was judged after that counts again.

    Args:
        path: the log.
        drawn: gets the number of documents that were drawn, by query id.
    """
    pairs: dict[tuple[str, str], _NumberedPair] = {}
    checker = RecordChecker(str(path), raise_errors)
    for line, content in json_records(path, raise_errors):
        judged = LoggedJudgement.from_json(content, f"{path}:{line}")
        if judged.query_id is None and not judged.query.strip():
            raise InputError(
                f"{path}:{line}: query_id and query are both missing; give one of them"
            )
        id = Asked(judged.query, judged.query_id).id
        judgement = checker.judgement(
            line,
            id,
            judged.document_id,
            judged.grade or 0,
        )
        assert judgement is not None  # errors are raised
        _, query, document, grade = judgement
        if judged.grade is None:
            pairs.pop((query, document), None)
            continue
        if judged.drawn is not None:
            drawn[query] = judged.drawn
        pair = AnnotationCandidate(
            query,
            document,
            grade,
            query=judged.query,
            query_probability=judged.query_probability,
            document_probability=judged.document_probability,
        )
        pairs[query, document] = (line, pair)
    yield from pairs.values()
