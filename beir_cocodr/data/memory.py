"""Collections that a program already holds: a corpus, BEIR's triple, a Hugging Face dataset."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from beir_cocodr.data.defects import Report, error
from beir_cocodr.data.files.readers import Document, Judgement, Query, RecordChecker
from beir_cocodr.data.sources import WITHOUT_LABELS, Labels
from beir_cocodr.errors import InputError, kind_of

#: What :func:`~beir_cocodr.data.collection.load_collection` takes, for error messages.
ACCEPTED = (
    "a name, a path, a Collection, a corpus {id: {'title', 'text'}} or {id: text}, "
    "BEIR's triple (corpus, queries, qrels), or a datasets.Dataset of columns id, title and text"
)

# The columns that may hold the ids of a Hugging Face dataset.
_ID_COLUMNS = ("_id", "id")


def is_hub_dataset(value: object) -> bool:
    """Return true for a dataset of Hugging Face ``datasets``, which need not be installed."""
    return hasattr(value, "column_names")


@dataclass(frozen=True)
class MemorySource:
    """A collection in memory, read like a `FileSource`.

    Attributes:
        corpus: document id to text or to {"title", "text"}, or a Hugging Face dataset.
        judged_queries: query id to text, None where there are none.
        qrels: query id to {document id: grade}, None where there are none.
        wanted_split: the split that the judgements count as.
    """

    corpus: Any
    judged_queries: Mapping[str, str] | None = None
    qrels: Mapping[str, Mapping[str, int]] | None = None
    wanted_split: str = "test"

    @classmethod
    def of(cls, dataset: object, split: str) -> "MemorySource":
        """Return the source of a corpus, of BEIR's triple or of a dataset.

        Raises:
            InputError: If ``dataset`` is none of these.
        """
        if isinstance(dataset, Mapping):
            return cls(dataset, wanted_split=split)
        if is_hub_dataset(dataset):
            _check_columns(dataset)
            return cls(dataset, wanted_split=split)
        if isinstance(dataset, tuple) and len(dataset) == 3:
            corpus, queries, qrels = dataset
            _check_triple(corpus, queries, qrels)
            return cls(corpus, queries, qrels, split)
        raise InputError(f"dataset is {kind_of(dataset)}; give {ACCEPTED}")

    @property
    def name(self) -> str:
        """Return the type of the corpus and its size."""
        return f"{type(self.corpus).__name__} of {len(self.corpus)} documents"

    @property
    def split(self) -> str | None:
        """Return the split, None without judgements."""
        if self.qrels is None:
            return None
        return self.wanted_split

    @property
    def documents_file(self) -> str:
        """Return the name of the corpus in reports."""
        return self.name

    @property
    def queries_file(self) -> str | None:
        """Return the name of the queries in reports, None where there are none."""
        if self.judged_queries is None:
            return None
        return f"queries of the {self.name}"

    @property
    def judgements_file(self) -> str | None:
        """Return the name of the judgements in reports, None where there are none."""
        if self.qrels is None:
            return None
        return f"qrels of the {self.name}"

    def of_split(self, split: str) -> "MemorySource":
        """Return the same collection, whose judgements count as another split."""
        return replace(self, wanted_split=split)

    def key(self) -> tuple[str, ...] | None:
        """Return None: nothing but the documents shows whether they have changed."""
        return None

    def missing(self, report: Report, labels: Labels) -> None:
        """Report the error "missing file" if labels are required and there are none."""
        if labels == "required" and self.qrels is None:
            message = (
                "no queries and qrels; give the triple (corpus, queries, qrels), "
                f"or {WITHOUT_LABELS}"
            )
            report(error("missing file", self.name, message))

    def splits(self) -> list[str]:
        """Return the splits that have judgements."""
        if self.qrels is None:
            return []
        return [self.wanted_split]

    def documents(self, report: Report) -> Iterator[Document]:
        """Stream (number from 1, id, title, text)."""
        checker = RecordChecker(self.documents_file, report)
        rows = self._rows() if is_hub_dataset(self.corpus) else iter(self.corpus.items())
        number = 0
        for number, (id, document) in enumerate(rows, 1):
            fields = document
            if isinstance(document, str):
                fields = {"text": document}
            if not isinstance(fields, Mapping):
                message = (
                    f"document {id!r} is {kind_of(document)}; "
                    "give its text, or a mapping with title and text"
                )
                checker.error("text not a string", message, number, str(id))
                continue
            if not {"title", "text"} & fields.keys():
                message = f"document {id!r} has neither title nor text; give its text"
                checker.error("no text field", message, number, str(id))
                continue
            if fields is document and "title" not in fields:
                checker.absent_title(number)
            checked = checker.document(number, id, fields.get("title", ""), fields.get("text"))
            if checked is not None:
                yield checked
        checker.finish()
        if not number:
            checker.empty_corpus()

    def _rows(self) -> Iterator[tuple[object, Mapping[str, object]]]:
        """Stream the rows of a dataset as (id, fields)."""
        id_column = next(name for name in _ID_COLUMNS if name in self.corpus.column_names)
        for row in self.corpus:
            yield row[id_column], row

    def queries(self, report: Report) -> Iterator[Query]:
        """Stream (number from 1, id, text)."""
        checker = RecordChecker(str(self.queries_file), report)
        for number, (id, text) in enumerate((self.judged_queries or {}).items(), 1):
            checked = checker.query(number, id, text)
            if checked is not None:
                yield checked
        checker.finish()

    def judgements(self, report: Report) -> Iterator[Judgement]:
        """Stream (number from 1, query id, document id, grade)."""
        checker = RecordChecker(str(self.judgements_file), report)
        number = 0
        for query, grades in (self.qrels or {}).items():
            for document, grade in grades.items():
                number += 1
                checked = checker.judgement(number, query, document, grade)
                if checked is not None:
                    yield checked


def _check_columns(dataset: Any) -> None:
    names = list(dataset.column_names or [])
    has_id = any(name in names for name in _ID_COLUMNS)
    if not has_id or "text" not in names or not hasattr(dataset, "__len__"):
        raise InputError(
            f"dataset is {kind_of(dataset)} of columns {names}; give a datasets.Dataset that is "
            "not a stream, with the columns id (or _id), text and title"
        )


def _check_triple(
    corpus: object,
    queries: object,
    qrels: object,
) -> None:
    if not isinstance(corpus, Mapping) and not is_hub_dataset(corpus):
        raise InputError(f"the corpus of the triple is {kind_of(corpus)}; give a dict")
    for part, value in (("queries", queries), ("qrels", qrels)):
        if not isinstance(value, Mapping):
            raise InputError(f"the {part} of the triple are {kind_of(value)}; give a dict")
    assert isinstance(qrels, Mapping)
    for query, grades in qrels.items():
        if not isinstance(grades, Mapping):
            raise InputError(
                f"the qrels of query {query!r} are {kind_of(grades)}; give {{document id: grade}}"
            )
