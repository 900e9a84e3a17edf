"""Judgements that a person makes: qrels, a filled table of pairs to judge, or a log of judgements.

They come a few at a time, and pairs may have been drawn, each with a known probability;
:class:`Judgements` keeps both.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from beir_cocodr.data.defects import raise_errors
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.readers import (
    RecordChecker,
    json_records,
    numbered_lines,
    read_judgements,
)
from beir_cocodr.data.judgement_log import (
    TYPED_PREFIX,
    Asked,
    LoggedJudgement,
    normalised,
)
from beir_cocodr.errors import InputError
from beir_cocodr.io import (
    atomic_writer,
    cell_text,
    text_cell,
)

log = logging.getLogger(__name__)


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

    Ids are written as they are, texts by :func:`~beir_cocodr.io.text_cell`; :func:`load_judgements`
    reads the same texts, apart from white space.
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

    def is_in(self, documents: Documents) -> bool:
        """Return whether the corpus has a relevant document, or a judged one if none is relevant.

        Args:
            documents: the corpus.
        """
        relevant = [document for document, grade in self.grades.items() if grade > 0]
        judged = relevant or list(self.grades)
        return not judged or bool((documents.rows(judged) >= 0).any())

    def joined(self, later: "JudgedQuery", text: str) -> "JudgedQuery":
        """Return the judgements of one query that was recorded under two ids."""
        probability = later.probability
        if later.probability is None:
            probability = self.probability
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
_DIFFERING = "pairs that are judged differently in several lines (the last line counts)"
NOTHING_TO_FIND = "judged queries left out, as the corpus has none of their relevant documents"


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
        stay, as in trec_eval, unless they are all that a query has: every model would score 0
        there, which looks like a measured tie. A query that was typed and has the text of one in
        the collection is that one. Queries with blank pairs are left out: what is not judged there
        is not known to be irrelevant.

        Raises:
            InputError: no judgement is left.
        """
        counts = Counter(self.counts)
        kept: dict[str, JudgedQuery] = {}
        ids = {normalised(text): id for id, text in queries.items() if text.strip()}
        for id, query in self.queries.items():
            if id not in queries:
                id = ids.get(normalised(query.text), id)
            is_typed = bool(query.text) and id.startswith(TYPED_PREFIX)
            if id not in queries and not is_typed:
                counts[_NOT_IN_COLLECTION] += 1
            elif query.blank:
                counts[_BLANK] += 1
            else:
                first = kept.get(id, JudgedQuery())
                kept[id] = first.joined(query, queries.get(id, query.text))
        if documents is not None:
            answerable = {id: query for id, query in kept.items() if query.is_in(documents)}
            counts[NOTHING_TO_FIND] += len(kept) - len(answerable)
            kept = answerable
        if not kept:
            reasons = [f"{count} {reason}" for reason, count in counts.items() if count > 0]
            reason = "; ".join(reasons) or "nothing is judged"
            raise InputError(
                f"{self.file}: no judged query can be used: {reason}; name judgements of the "
                "queries and documents of the dataset"
            )
        if documents is not None:
            judged = [document for query in kept.values() for document in query.grades]
            counts[_NOT_IN_CORPUS] += int((documents.rows(judged) < 0).sum())
        positive = {reason: count for reason, count in counts.items() if count > 0}
        for reason, count in positive.items():
            log.info("%s: %s: %d", self.file, reason, count)
        return replace(self, queries=kept, counts=positive)


def judgements_file(path: str | Path) -> Path:
    """Return the path of a file of judgements.

    Raises:
        InputError: there is no such file.
    """
    if not Path(path).is_file():
        raise InputError(
            f"{path}: no such file; give qrels, a filled labels_wanted.tsv, or a log of judgements"
        )
    return Path(path)


def load_judgements(path: Path) -> Judgements:
    """Read judgements.

    Args:
        path: qrels (TREC's or BEIR's), a table of pairs such as ``labels_wanted.tsv``, or a log of
            judgements.

    Raises:
        InputError: there is no such file, or a line is damaged; the first one is named.
    """
    judgements_file(path)
    first = next((text for _, text in numbered_lines(path, raise_errors)), "")
    if first.lstrip().startswith("{"):
        return _load_log(path)
    header = first.rstrip("\r").split("\t")
    if {"query_id", "document_id"} <= set(header):
        return _join_pairs(path, _table_pairs(path, header))
    return replace(_join_pairs(path, _qrels_pairs(path)), rows=[])


# The columns of a table that say by chance what was drawn.
_PROBABILITIES = frozenset({"query_probability", "document_probability"})

#: A pair and the line that it was read from.
_NumberedPair = tuple[int, AnnotationCandidate]


def _load_log(path: Path) -> Judgements:
    drawn: dict[str, int] = {}
    # A later line of a log revises an earlier one, as on the page.
    judgements = replace(_join_pairs(path, _log_pairs(path, drawn)), counts={})
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
    """Join the pairs of each query; where a pair is judged twice, the last judgement counts.

    Pairs whose judgements differ are counted.
    """
    last: dict[tuple[str, str], AnnotationCandidate] = {}
    differing: set[tuple[str, str]] = set()
    for line, pair in pairs:
        for name in ("query_probability", "document_probability"):
            share = getattr(pair, name)
            if share is not None and not 0 < share <= 1:
                raise InputError(
                    f"{path}:{line}: {name} is {share}, not above 0 and at most 1; correct the line"
                )
        key = (pair.query_id, pair.document_id)
        if key in last and last[key].judgement != pair.judgement:
            differing.add(key)
        last[key] = pair
    queries: dict[str, JudgedQuery] = {}
    for pair in last.values():
        new = JudgedQuery(probability=pair.query_probability, text=pair.query)
        query = queries.get(pair.query_id, new)
        if pair.judgement is None:
            queries[pair.query_id] = replace(query, blank=query.blank + 1)
        else:
            share = pair.document_probability
            if pair.document_probability is None:
                share = 1.0
            queries[pair.query_id] = query.with_judgement(
                pair.document_id,
                pair.judgement,
                share,
            )
    judged = {id: query for id, query in queries.items() if query.grades}
    rows = [pair for pair in last.values() if pair.query_id in judged]
    counts = {_DIFFERING: len(differing)} if differing else {}
    return Judgements(str(path), judged, rows, counts)


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
    if "weight" in header and not _PROBABILITIES & set(header):
        log.warning(
            "%s has no columns %s, so its pairs count as all that was to be judged; keep the "
            "columns of labels_wanted.tsv, whose pairs were drawn by chance",
            path,
            " and ".join(sorted(_PROBABILITIES)),
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
    for name in ("query", "document"):
        values[name] = cell_text(values.get(name, ""))
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
