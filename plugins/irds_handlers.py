"""Documents, queries and judgements of a BEIR folder, as the handlers of ir_datasets."""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from ir_datasets.datasets.beir import BeirTitleDoc
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQuery, TrecQrel
from ir_datasets.indices import DEFAULT_DOCSTORE_OPTIONS, Docstore
from ir_datasets.util import Lazy, apply_sub_slice, slice_idx

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.defects import StrictReport
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.readers import read_judgements, read_queries
from beir_cocodr.data.sources import FileSource
from beir_cocodr.errors import InputError

# Documents that an iterator reads at a time.
_READ = 1_000


class FolderDocs(BaseDocs):
    """The documents of a BEIR folder, memory-mapped; any number of threads may read them.

    Args:
        folder: The folder.
        content_hash: Hash that the documents must have, see
            :class:`~beir_cocodr.data.documents.Documents`.
    """

    def __init__(self, folder: Path, content_hash: str | None = None) -> None:
        """Read nothing yet."""
        self._folder = folder
        self._content_hash = content_hash
        self._documents: Callable[[], Documents] = Lazy(self._load)

    def docs_path(self, force: bool = True) -> Path:
        """Return the file of the documents."""
        return FileSource.of_folder(str(self._folder), self._folder, "test").corpus

    def docs_iter(self) -> Iterator[object]:
        """Return an iterator that can be sliced."""
        return iter(self.docs_store())

    def docs_cls(self) -> type:
        """Return the class of a document."""
        return BeirTitleDoc  # type: ignore[no-any-return]

    def docs_count(self) -> int:
        """Return the number of documents."""
        return len(self._documents())

    def docs_store(
        self,
        field: str = "doc_id",
        options: Any = DEFAULT_DOCSTORE_OPTIONS,
    ) -> Docstore:
        """Return the lookup of documents by id."""
        return _FolderDocstore(self._documents(), field, options)

    def _load(self) -> Documents:
        documents = load_collection(self._folder, labels="none").documents
        if self._content_hash not in (None, documents.content_hash):
            raise InputError(
                f"{self.docs_path()} contains other documents than when the collection was "
                "resampled; put them back, or resample again"
            )
        return documents


class FolderQueries(BaseQueries):
    """The queries of a ``queries.jsonl``, plain or ``.gz``.

    Args:
        path: The file.
        wanted: Returns the ids of the queries. Default: all queries of the file.
    """

    def __init__(self, path: Path, wanted: Callable[[], Container[str]] | None = None) -> None:
        """Read nothing yet."""
        self._path = path
        self._wanted = wanted
        self.queries_count: Callable[[], int] = Lazy(lambda: sum(1 for _ in self.queries_iter()))

    def queries_path(self) -> Path:
        """Return the file."""
        return self._path

    def queries_iter(self) -> Iterator[GenericQuery]:
        """Yield the queries."""
        wanted = None
        if self._wanted is not None:
            wanted = self._wanted()
        report = StrictReport(str(self._path.parent))
        for _, id, text in read_queries(self._path, report):
            if wanted is None or id in wanted:
                yield GenericQuery(id, text)

    def queries_store(self) -> "_QueryStore":
        """Return the lookup of queries by id, for which the host's ``lookup --qid`` asks."""
        return _QueryStore({query.query_id: query for query in self.queries_iter()})


class _QueryStore:
    """The lookup of queries by id, as the host's lookup of documents has it."""

    def __init__(self, queries: dict[str, GenericQuery]) -> None:
        """Take the queries by id."""
        self._queries = queries

    def get(self, id: str) -> GenericQuery:
        """Return a query.

        Raises:
            KeyError: There is no such query.
        """
        return self._queries[id]


class FolderQrels(BaseQrels):
    """The judgements of a ``qrels/SPLIT.tsv``, plain or ``.gz``.

    Args:
        path: The file.
        definitions: The meanings of the grades.
    """

    def __init__(self, path: Path, definitions: dict[int, str] | None = None) -> None:
        """Read nothing yet."""
        self._path = path
        self._definitions = definitions or {}
        self.qrels_count: Callable[[], int] = Lazy(lambda: sum(1 for _ in self.qrels_iter()))
        #: The ids of judged queries.
        self.judged: Callable[[], set[str]] = Lazy(self._judged)

    def qrels_path(self) -> Path:
        """Return the file."""
        return self._path

    def qrels_iter(self) -> Iterator[Any]:
        """Yield the judgements."""
        report = StrictReport(str(self._path.parents[1]))
        for _, query, document, grade in read_judgements(self._path, report):
            yield TrecQrel(query, document, grade, "0")

    def qrels_cls(self) -> type:
        """Return the class of a judgement."""
        return TrecQrel  # type: ignore[no-any-return]

    def qrels_defs(self) -> dict[int, str]:
        """Return the meanings of the grades."""
        return self._definitions

    def _judged(self) -> set[str]:
        return {qrel.query_id for qrel in self.qrels_iter()}


class _FolderDocstore(Docstore):
    """The lookup of documents by id, without a copy of them."""

    def __init__(
        self,
        documents: Documents,
        field: str,
        options: Any,
    ) -> None:
        """Check that the lookup is by id."""
        if field != "doc_id":
            raise ValueError(f"documents of a folder are looked up by doc_id, not by {field}")
        super().__init__(BeirTitleDoc, field, options)
        self._documents = documents

    def get_many_iter(self, doc_ids: Iterable[str]) -> Iterator[object]:
        """Return the documents of some ids, without those that are unknown."""
        rows = self._documents.rows(doc_ids)
        return map(_host_document, self._documents.take(rows[rows >= 0]))

    def build(self) -> None:
        """Do nothing: the documents are mapped."""

    def built(self) -> bool:
        """Return true."""
        return True

    def count(self) -> int:
        """Return the number of documents."""
        return len(self._documents)

    def __iter__(self) -> Iterator[object]:
        """Return an iterator that can be sliced."""
        return _DocumentIterator(self._documents, slice(0, len(self._documents), 1))


class _DocumentIterator:
    """An iterator over documents that can be indexed and sliced, as those of ir_datasets."""

    def __init__(self, documents: Documents, rows: slice) -> None:
        """Begin before the first row."""
        self._documents = documents
        self._rows = rows
        self._read: deque[Any] = deque()

    def __iter__(self) -> "_DocumentIterator":
        """Return the iterator itself."""
        return self

    def __next__(self) -> Any:
        """Return the next document."""
        start = self._rows.start
        stop = self._rows.stop
        step = self._rows.step or 1
        if not self._read:
            rows = range(start, stop, step)[:_READ]
            if not rows:
                raise StopIteration
            self._read.extend(map(_host_document, self._documents.take(rows)))
        self._rows = slice(start + step, stop, step)
        return self._read.popleft()

    def __getitem__(self, key: int | slice) -> Any:
        """Return a document, or an iterator over some."""
        if isinstance(key, slice):
            return _DocumentIterator(self._documents, apply_sub_slice(self._rows, key))
        if not isinstance(key, int):
            raise TypeError(f"key must be int or slice, not {type(key).__name__}")
        try:
            return next(_DocumentIterator(self._documents, slice_idx(self._rows, key)))
        except StopIteration as error:
            raise IndexError(key) from error


def _host_document(document: dict[str, str]) -> Any:
    return BeirTitleDoc(document["_id"], document["text"], document["title"])
