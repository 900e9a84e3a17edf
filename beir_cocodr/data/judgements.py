"""Judgements of one's own: qrels, the table of pairs to judge with its column filled, and a log
that is appended to.

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

#: A folder's log of judgements, and the same as qrels.
LOG_FILE = "judgements.jsonl"
QRELS_FILE = "qrels.tsv"

#: Ends the name of the file beside a log that keeps its damaged lines.
DAMAGED = ".damaged"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoggedJudgement(Record):
    """A line of a log of judgements (jsonl); of several on one pair the last counts.

    Attributes:
        time: ISO 8601, with its zone.
        query_id: None for a query that was typed; its id is then :func:`typed_id`.
        query: its text; may be empty where there is an id.
        grade: 0 for not relevant, or higher; None takes back what was judged before.
        query_probability, document_probability: see :class:`AnnotationCandidate`.
        drawn: how many documents of the query were drawn; until all are judged it counts as blank.
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
    """The id of a query that was typed and has none."""
    return f"{_TYPED}{text_sha256(' '.join(query.split()))[:12]}"


def log_judgement(
    path: Path, document_id: str, grade: int | None, query: str, **more: object
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
    """Append a line with one unbuffered write; cut the file back where that fails or falls short.

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

    A kill or a full disk may leave a part of a line. All judgements before and after it stay.
    """
    with naming_full_disk(path.parent), locked(path.parent):
        lines = _lines(path)
        damaged = [row for row, line in enumerate(lines) if not _is_json(line)]
        if not damaged:
            return
        aside = path.with_name(path.name + DAMAGED)
        intact = [line for line in lines if _is_json(line)]
        _write_lines(aside, _lines(aside) + [lines[row] for row in damaged])
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
    """Return the lines of a file without their ends; none where there is no file."""
    if not path.is_file():
        return []
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
    """A query: of the collection where it has an id, else typed."""

    text: str
    query_id: str | None = None

    @property
    def id(self) -> str:
        return typed_id(self.text) if self.query_id is None else self.query_id


class JudgementLog:
    """The log of judgements of a folder and what follows from it: grades, what can be undone, and
    qrels.

    Others may append to the same log, here or in another process: what counts is what stands in it.
    The version is the number of its lines.

    Attributes:
        grades: query id to document id to grade.
        pairs: all that were ever judged.
        lock: for threads that look at these.
    """

    def __init__(self, folder: Path) -> None:
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
                rows = ((id, *pair) for id, found in self.grades.items() for pair in found.items())
                write_qrels(self._qrels, rows)
                self._qrels_version = self.version

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

    def judge(self, asked: Asked, document: str, grade: int | None, **drawn: object) -> None:
        """Append a judgement, unless that is what the log says already; a grade of None takes back,
        and ``drawn`` are further fields of :class:`LoggedJudgement`.
        """
        with self.lock:
            self.refresh()
            if self.grades.get(asked.id, {}).get(document) != grade:
                log_judgement(
                    self.file, document, grade, asked.text, query_id=asked.query_id, **drawn
                )
                self.refresh()

    def undo(self, version: int) -> None:
        """Take the last judgement back, if it is the last in that version; what it replaced counts
        again.
        """
        with self.lock:
            self.refresh()
            if version == self.version and self._undo:
                _, last, before = self._undo[-1]
                fields = {name: value for name, value in vars(last).items() if name != "time"}
                log_judgement(self.file, **fields | {"grade": before})
                self.refresh()

    @property
    def can_undo(self) -> bool:
        return bool(self._undo)

    def _forget(self) -> None:
        self.version = 0
        self._read = 0
        self._qrels_version = 0
        self.grades: dict[str, dict[str, int]] = {}
        self.pairs: set[tuple[str, str]] = set()
        self._undo: list[tuple[tuple[str, str], LoggedJudgement, int | None]] = []

    def _apply(self, line: bytes) -> None:
        self.version += 1
        where = f"{self.file}:{self.version}"
        judged = LoggedJudgement.from_json(parse_json(line.decode()), where)
        key = Asked(judged.query, judged.query_id).id, judged.document_id
        self.pairs.add(key)
        grades = self.grades.setdefault(key[0], {})
        before = grades.pop(judged.document_id, None)
        if judged.grade is not None:
            grades[judged.document_id] = judged.grade
        if not grades:
            del self.grades[key[0]]
        if self._undo and self._undo[-1][::2] == (key, judged.grade):
            self._undo.pop()  # this line took that one back
        else:
            self._undo.append((key, judged, before))


@dataclass(frozen=True)
class AnnotationCandidate:
    """A query-document pair to judge: a line of ``labels_wanted.tsv``, whose columns are these
    fields.

    Attributes:
        judgement: for who judges: 0 for not relevant, 1 or higher for relevant; None is not judged.
        weight: by how much the difference of the two models' DCG@10 changes if the document is
            relevant.
        rank_a, rank_b: its ranks, None beyond rank 10.
        query, document: text of the query, and the beginning of the document's.
        query_probability: that a single draw takes this query; None if it was not drawn.
        document_probability: that the document is drawn once its query is.
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


def write_annotation_candidates(path: Path, pairs: list[AnnotationCandidate]) -> None:
    """Write the pairs as TSV with a header; ids as they are, texts by
    :func:`~beir_cocodr.io.text_cell`.
    """
    with atomic_writer(path) as file:
        file.write("\t".join(COLUMNS) + "\n")
        for pair in pairs:
            texts = {
                "query": text_cell(pair.query or ""),
                "document": text_cell(pair.document or ""),
            }
            cells = ("" if value is None else str(value) for value in (vars(pair) | texts).values())
            file.write("\t".join(cells) + "\n")


@dataclass(frozen=True)
class JudgedQuery:
    """What was judged of a query.

    Attributes:
        grades: document id to grade.
        probabilities: document id to the probability that it was drawn, 1 where it was not left to
            chance.
        probability: relative to other queries', that this one was drawn.
        text: "" where only the id is known.
        blank: pairs of it that were to be judged and were not.
    """

    grades: dict[str, int] = field(default_factory=dict)
    probabilities: dict[str, float] = field(default_factory=dict)
    probability: float | None = None
    text: str = ""
    blank: int = 0


@dataclass(frozen=True)
class Judgements:
    """Judgements in the order in which queries were first judged.

    Attributes:
        file: where they stand.
        queries: id to what was judged of it.
        rows: of a table of pairs, those of the queries that were begun.
        counts: what was left out or is not there, in words.
    """

    file: str
    queries: dict[str, JudgedQuery]
    rows: list[AnnotationCandidate] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def qrels(self) -> dict[str, dict[str, int]]:
        return {id: query.grades for id, query in self.queries.items()}

    @property
    def drawn(self) -> bool:
        """Whether some pair was left to chance."""
        queries = self.queries.values()
        return any(
            q.probability is not None or any(p < 1 for p in q.probabilities.values())
            for q in queries
        )

    def of(self, queries: Mapping[str, str], documents: Documents | None = None) -> "Judgements":
        """Those of queries that a collection has, or that were typed; of the others the number is
        kept, and of judged documents that it does not have, which stay, as in trec_eval.

        A query that was typed and has the text of one in the collection is that one. Queries with
        blank pairs are left out: what is not judged there is not known to be irrelevant. An
        InputError where nothing is left.
        """
        counts, kept = Counter(self.counts), dict[str, JudgedQuery]()
        ids = {" ".join(text.split()): id for id, text in queries.items() if text.strip()}
        for id, found in self.queries.items():
            id = id if id in queries else ids.get(" ".join(found.text.split()), id)
            if id not in queries and not (found.text and id.startswith(_TYPED)):
                counts["judged queries that the collection does not have"] += 1
            elif found.blank:
                counts[
                    "judged queries with pairs left blank (write 0 for what is not relevant)"
                ] += 1
            else:
                first = kept.get(id, JudgedQuery())
                grades, shares = (
                    first.grades | found.grades,
                    first.probabilities | found.probabilities,
                )
                drawn = first.probability if found.probability is None else found.probability
                whole = replace(found, grades=grades, probabilities=shares, probability=drawn)
                kept[id] = replace(whole, text=queries.get(id, found.text))
        if not kept:
            why = (
                "; ".join(f"{count} {what}" for what, count in counts.items())
                or "nothing is judged"
            )
            raise InputError(f"{self.file}: no judged query can be used: {why}")
        if documents is not None:
            judged = [document for query in kept.values() for document in query.grades]
            counts["judged documents that the corpus does not have (kept, as in trec_eval)"] += int(
                (documents.rows(judged) < 0).sum()
            )
        for what, count in (+counts).items():
            log.info("%s: %s: %d", self.file, what, count)
        return replace(self, queries=kept, counts=dict(+counts))


def load_judgements(path: Path) -> Judgements:
    """Read qrels (TREC's or BEIR's), a table of pairs such as ``labels_wanted.tsv``, or a log of
    judgements. An InputError: no such file, or the first line that is damaged.
    """
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; give qrels, a filled labels_wanted.tsv, or a log of judgements"
        )
    first = next((text for _, text in numbered_lines(path, raise_errors)), "")
    if first.lstrip().startswith("{"):
        drawn: dict[str, int] = {}
        found = _of_pairs(path, _log(path, drawn))
        for id in drawn.keys() & found.queries.keys():
            query = found.queries[id]
            found.queries[id] = replace(query, blank=max(0, drawn[id] - len(query.grades)))
        return found
    if {"query_id", "document_id"} <= set(first.split("\t")):
        return _of_pairs(path, _table(path, first.rstrip("\r").split("\t")))
    pairs = (
        (line, AnnotationCandidate(query, document, grade))
        for line, query, document, grade in read_judgements(path, raise_errors)
    )
    return replace(_of_pairs(path, pairs), rows=[])


def _of_pairs(path: Path, pairs: Iterator[tuple[int, AnnotationCandidate]]) -> Judgements:
    """Of a pair that stands twice the last judgement counts; one that was taken back counts as
    never judged.
    """
    last: dict[tuple[str, str], AnnotationCandidate] = {}
    for line, pair in pairs:
        for name in ("query_probability", "document_probability"):
            share = getattr(pair, name)
            if share is not None and not 0 < share <= 1:
                raise InputError(f"{path}:{line}: {name} is {share}; it is above 0 and at most 1")
        last[pair.query_id, pair.document_id] = pair
    queries: dict[str, JudgedQuery] = {}
    for pair in last.values():
        found = queries.get(
            pair.query_id, JudgedQuery(probability=pair.query_probability, text=pair.query)
        )
        if pair.judgement is None:
            queries[pair.query_id] = replace(found, blank=found.blank + 1)
            continue
        grades = found.grades | {pair.document_id: pair.judgement}
        share = 1.0 if pair.document_probability is None else pair.document_probability
        probabilities = found.probabilities | {pair.document_id: share}
        queries[pair.query_id] = replace(found, grades=grades, probabilities=probabilities)
    judged = {id: query for id, query in queries.items() if query.grades}
    return Judgements(
        str(path), judged, [pair for pair in last.values() if pair.query_id in judged]
    )


def _table(path: Path, header: list[str]) -> Iterator[tuple[int, AnnotationCandidate]]:
    from pydantic import TypeAdapter, ValidationError  # only this needs it, and it takes a while

    adapter = TypeAdapter(AnnotationCandidate)
    if "judgement" not in header:
        raise InputError(
            f"{path}:1: no column judgement; add it, with 0 for not relevant and 1 for relevant"
        )
    for line, text in numbered_lines(path, raise_errors):
        cells = text.split("\t")
        if cells == header:
            continue
        if len(cells) != len(header):
            raise InputError(f"{path}:{line}: {len(cells)} columns, not {len(header)} as on top")
        found = {
            name: cell.strip() for name, cell in zip(header, cells, strict=True) if name in COLUMNS
        }
        grade = found["judgement"] or "0"
        query, document, judged = _checked(
            path, line, found["query_id"], found["document_id"], grade
        )
        given: dict[str, object] = {name: cell for name, cell in found.items() if cell}
        given |= {"query_id": query, "document_id": document}
        given |= {"judgement": judged} if found["judgement"] else {}
        try:
            yield line, adapter.validate_python(given)
        except ValidationError as cause:
            at = cause.errors()[0]
            raise InputError(
                f"{path}:{line}: {at['loc'][0]} is {at['input']!r}: {at['msg'].lower()}"
            ) from None


def _checked(
    path: Path, line: int, query: str, document: str, grade: object
) -> tuple[str, str, int]:
    found = RecordChecker(str(path), raise_errors).judgement(line, query, document, grade)
    assert found is not None  # it would have been raised
    return found[1:]


def _log(path: Path, drawn: dict[str, int]) -> Iterator[tuple[int, AnnotationCandidate]]:
    """The log's pairs; what was taken back is left out, and what was judged after that counts
    again. Queries of which documents were drawn get their number in ``drawn``.
    """
    found: dict[tuple[str, str], tuple[int, AnnotationCandidate]] = {}
    for line, content in json_records(path, raise_errors):
        judged = LoggedJudgement.from_json(content, f"{path}:{line}")
        if judged.query_id is None and not judged.query.strip():
            raise InputError(
                f"{path}:{line}: neither query_id nor query; one of them says what was judged"
            )
        asked = Asked(judged.query, judged.query_id).id
        query, document, grade = _checked(path, line, asked, judged.document_id, judged.grade or 0)
        if judged.grade is None:
            found.pop((query, document), None)
            continue
        if judged.drawn is not None:
            drawn[query] = judged.drawn
        shares = judged.query_probability, judged.document_probability
        pair = AnnotationCandidate(
            query, document, grade, 0.0, None, None, judged.query, "", *shares
        )
        found[query, document] = line, pair
    yield from found.values()
