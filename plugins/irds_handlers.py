"""Handlers of ir_datasets over the files of a BEIR folder."""

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
from beir_cocodr.data.readers import read_judgements, read_queries
from beir_cocodr.data.sources import FileSource
from beir_cocodr.errors import InputError

_READ = 1_000


class FolderDocs(BaseDocs):
    """The documents of a BEIR folder, memory-mapped; any number of threads may read them.

    Where ``content_hash`` is given, documents with another, as `Documents` has it, are an ``InputError``.
    """

    def __init__(self, folder: Path, content_hash: str | None = None) -> None:
        self._folder, self._content_hash = folder, content_hash
        self._documents: Callable[[], Documents] = Lazy(self._load)

    def docs_path(self, force: bool = True) -> Path:
        return FileSource.of_folder(str(self._folder), self._folder, "test").corpus

    def docs_iter(self) -> Iterator[Any]:
        return iter(self.docs_store())

    def docs_cls(self) -> type:
        return BeirTitleDoc  # type: ignore[no-any-return]

    def docs_count(self) -> int:
        return len(self._documents())

    def docs_store(self, field: str = "doc_id", options: Any = DEFAULT_DOCSTORE_OPTIONS) -> Docstore:
        return _FolderDocstore(self._documents(), field, options)

    def _load(self) -> Documents:
        documents = load_collection(self._folder, labels="none").documents
        if self._content_hash not in (None, documents.content_hash):
            raise InputError(
                f"{self.docs_path()} holds other documents than when the collection was resampled; "
                "put them back, or resample again"
            )
        return documents


class FolderQueries(BaseQueries):
    """The queries of a ``queries.jsonl``, plain or ``.gz``, or those of them whose ids ``wanted`` gives when asked."""

    def __init__(self, path: Path, wanted: Callable[[], Container[str]] | None = None) -> None:
        self._path, self._wanted = path, wanted
        self.queries_count: Callable[[], int] = Lazy(lambda: sum(1 for _ in self.queries_iter()))

    def queries_path(self) -> Path:
        return self._path

    def queries_iter(self) -> Iterator[Any]:
        wanted = None if self._wanted is None else self._wanted()
        for _, id, text in read_queries(self._path, StrictReport(str(self._path.parent))):
            if wanted is None or id in wanted:
                yield GenericQuery(id, text)

    def queries_cls(self) -> type:
        return GenericQuery  # type: ignore[no-any-return]


class FolderQrels(BaseQrels):
    """The judgements of a ``qrels/SPLIT.tsv``, plain or ``.gz``; ``definitions`` are the meanings of the grades."""

    def __init__(self, path: Path, definitions: dict[int, str] | None = None) -> None:
        self._path, self._definitions = path, definitions or {}
        self.qrels_count: Callable[[], int] = Lazy(lambda: sum(1 for _ in self.qrels_iter()))
        #: The ids of judged queries.
        self.judged: Callable[[], set[str]] = Lazy(lambda: {qrel.query_id for qrel in self.qrels_iter()})

    def qrels_path(self) -> Path:
        return self._path

    def qrels_iter(self) -> Iterator[Any]:
        for _, query, document, grade in read_judgements(self._path, StrictReport(str(self._path.parents[1]))):
            yield TrecQrel(query, document, grade, "0")

    def qrels_cls(self) -> type:
        return TrecQrel  # type: ignore[no-any-return]

    def qrels_defs(self) -> dict[int, str]:
        return self._definitions


class _FolderDocstore(Docstore):
    """Lookups by id, without a copy of the documents."""

    def __init__(self, documents: Documents, field: str, options: Any) -> None:
        if field != "doc_id":
            raise ValueError(f"documents of a folder are looked up by doc_id, not by {field}")
        super().__init__(BeirTitleDoc, field, options)
        self._documents = documents

    def get_many_iter(self, doc_ids: Iterable[str]) -> Iterator[Any]:
        rows = self._documents.rows(doc_ids)
        return map(_doc, self._documents.take(rows[rows >= 0]))

    def build(self) -> None:
        """Nothing to do: the documents are mapped."""

    def built(self) -> bool:
        return True

    def count(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[Any]:
        return _DocsIter(self._documents, slice(0, len(self._documents), 1))


class _DocsIter:
    """An iterator over documents that can be indexed and sliced, as ir_datasets has them."""

    def __init__(self, documents: Documents, rows: slice) -> None:
        self._documents, self._rows = documents, rows
        self._read: deque[Any] = deque()

    def __iter__(self) -> "_DocsIter":
        return self

    def __next__(self) -> Any:
        start, stop, step = self._rows.start, self._rows.stop, self._rows.step or 1
        if not self._read:
            rows = range(start, stop, step)[:_READ]
            if not rows:
                raise StopIteration
            self._read.extend(map(_doc, self._documents.take(rows)))
        self._rows = slice(start + step, stop, step)
        return self._read.popleft()

    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            return _DocsIter(self._documents, apply_sub_slice(self._rows, key))
        if not isinstance(key, int):
            raise TypeError("key must be int or slice")
        try:
            return next(_DocsIter(self._documents, slice_idx(self._rows, key)))
        except StopIteration as error:
            raise IndexError(key) from error


def _doc(document: dict[str, str]) -> Any:
    return BeirTitleDoc(document["_id"], document["text"], document["title"])
