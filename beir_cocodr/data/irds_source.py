"""Collections from ir_datasets: any id, documents streamed, grades as integers.

ir_datasets downloads, checks and caches; nothing here repeats it. What it raises becomes one line.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beir_cocodr import load_plugin
from beir_cocodr.data.defects import LineTally, Report, error
from beir_cocodr.data.readers import Document, Judgement, Query, RecordChecker
from beir_cocodr.data.sources import Labels, describe_splits
from beir_cocodr.errors import InputError
from beir_cocodr.io import file_state

#: How the ids of resampled collections begin.
OWN_IDS = "cocodr/"
_SPLIT_NAMES = {"train", "dev", "test", "validation", "valid", "val"}


class IrdsSource:
    """An ir_datasets id such as ``beir/scifact``, read like a `FileSource`; an InputError where
    there is no such id.

    ``ID/SPLIT`` is read where it has qrels, else ``ID`` itself. An id that names its own split is
    taken at its word, whatever split is asked for, with one exception: ``train`` is never served
    with the judgements of another split.
    """

    def __init__(self, name: str, dataset_id: str, split: str) -> None:
        self.name = name
        self.dataset_id = dataset_id
        self.wanted_split = split
        self._named_id = dataset_id
        if dataset_id.startswith(OWN_IDS) or not is_registered(dataset_id):
            load_plugin("irds")()
        nested = f"{dataset_id}/{split}"
        if is_registered(nested) and _host().load(nested).has_qrels():
            self.dataset_id = nested
        elif not is_registered(dataset_id):
            raise InputError(
                f"ir_datasets does not know the id {dataset_id!r}{suggestion(dataset_id)}"
            )
        self._dataset = _host().load(self.dataset_id)
        self._own_split = _split_of(self.dataset_id)
        serves = self._own_split in (None, split) or (
            split != "train" and ":" in name
        )  # else a short name
        self._has_qrels = self._dataset.has_qrels() and serves
        # The id itself where its name has no split.
        self.split = (self._own_split or self.dataset_id) if self._has_qrels else None
        self.documents_file = f"irds:{self.dataset_id}"
        self.queries_file = self.documents_file if self._dataset.has_queries() else None
        self.judgements_file = self.documents_file if self._has_qrels else None

    def of_split(self, split: str) -> "IrdsSource":
        """Return the source of another split of the same collection."""
        return IrdsSource(self.name, self._named_id, split)

    def key(self) -> tuple[str, ...] | None:
        """Return what identifies the documents, None where only their content does."""
        # What ir_datasets ships is hash-checked, so its id and version identify the documents.
        # Splits share them, and an id that somebody else composed may have them from a shipped one.
        handler = self._dataset.docs_handler()
        for identifier in (_host().docs_parent_id(self.dataset_id), _namespace(handler)):
            if identifier and is_registered(identifier):
                known = _host().load(identifier)
                if known.has_docs() and known.docs_handler() == handler and known.docs_metadata():
                    return "ir_datasets", identifier, str(_host().__version__)
        return _file_state(handler)

    def splits(self) -> list[str]:
        own = [str(self.split)] if self._has_qrels else []
        return (
            own
            or available_splits(self.dataset_id)
            or ([str(self._own_split)] if self._dataset.has_qrels() else [])
        )

    def missing(self, report: Report, labels: Labels) -> None:
        if not self._dataset.has_docs():
            report(
                error(
                    "missing file",
                    self.documents_file,
                    "has no documents; choose an id that has them",
                )
            )
        if labels != "required":
            return
        if not self._dataset.has_queries():
            report(
                error(
                    "missing file",
                    self.documents_file,
                    "has no queries; choose an id that has them",
                )
            )
        if not self._has_qrels:
            if self._dataset.has_qrels():
                hint = f"this id holds the split {self._own_split!r}: ask for that"
            else:
                hint = describe_splits(available_splits(self.dataset_id))
            report(
                error(
                    "missing split", self.documents_file, f"no split {self.wanted_split!r} ({hint})"
                )
            )

    def documents(self, report: Report) -> Iterator[Document]:
        """Stream (number, id, title, text).

        The fields title and text where the id has a text; else the text that ir_datasets itself
        composes (``default_text()``) with an empty title; else, as for codesearchnet, the title and
        all other fields that are strings, which is reported as "texts joined from fields".
        """
        if not self._dataset.has_docs():
            return
        checker, joined, number = RecordChecker(self.documents_file, report), LineTally(), 0
        for number, document in self._records("docs", checker):
            title = getattr(document, "title", "")
            if hasattr(document, "text"):
                text = document.text
            elif hasattr(document, "default_text"):
                title, text = "", document.default_text()
            else:
                values = (
                    getattr(document, name)
                    for name in document._fields
                    if name not in ("doc_id", "title")
                )
                text = " ".join(value for value in values if isinstance(value, str))
                joined.add(number)
            if (checked := checker.document(number, document.doc_id, title, text)) is not None:
                yield checked
        checker.finish()
        message = (
            "{} documents have no text of their own: all their fields that are strings were joined"
        )
        joined.report(report, "texts joined from fields", self.documents_file, message)
        if not number:
            checker.empty_corpus()

    def queries(self, report: Report) -> Iterator[Query]:
        """Stream (number, id, text), the text as ir_datasets composes it (``default_text()``)."""
        if not self._dataset.has_queries():
            return
        checker = RecordChecker(self.documents_file, report)
        for number, query in self._records("queries", checker):
            if not hasattr(query, "default_text") and not hasattr(query, "text"):
                message = (
                    "its queries have no text (such as a document as the query); choose another id"
                )
                checker.error("no text field", message, number, query.query_id)
                return
            text = query.default_text() if hasattr(query, "default_text") else query.text
            if (checked := checker.query(number, query.query_id, text)) is not None:
                yield checked
        checker.finish()

    def judgements(self, report: Report) -> Iterator[Judgement]:
        """Stream (number, query id, document id, grade)."""
        if not self._has_qrels:
            return
        checker = RecordChecker(self.documents_file, report)
        for number, qrel in self._records("qrels", checker):
            if (
                checked := checker.judgement(number, qrel.query_id, qrel.doc_id, qrel.relevance)
            ) is not None:
                yield checked

    def _records(self, part: str, checker: RecordChecker) -> Iterator[tuple[int, Any]]:
        """Number the records of a part from 1; what the host raises (no network, broken file) is
        reported.
        """
        number = 0
        try:
            for number, record in enumerate(getattr(self._dataset, f"{part}_iter")(), 1):
                yield number, record
        # The host documents no exceptions: downloads, archives and parsers each raise their own.
        except Exception as cause:
            reason = " ".join(f"{type(cause).__name__}: {cause}".split())
            message = (
                f"ir_datasets cannot read its {part} after record {number} ({reason}); check the network "
                "and IR_DATASETS_HOME, or take what is here: a local folder, or apidocs/numpy, which needs no network"
            )
            checker.error("unreadable file", message, number or None)


def is_registered(dataset_id: str) -> bool:
    """Whether ir_datasets knows the id, patterns included. Touches no network."""
    try:
        _host().load(dataset_id)
    except KeyError:
        return False
    return True


def available_splits(dataset_id: str) -> list[str]:
    """The splits of an id: every ``ID/SPLIT`` that has qrels, sorted. Touches no network."""
    prefix = f"{dataset_id}/"
    below = [known for known in _host().registry if known.startswith(prefix)]
    return sorted(known.removeprefix(prefix) for known in below if _host().load(known).has_qrels())


def suggestion(dataset_id: str, below: str = "") -> str:
    """The end of a message about an unknown id: the known ids nearest to it, of those that start
    with ``below``, which is left out of their names, else where all are listed.
    """
    known = [known_id for known_id in _host().registry if known_id.startswith(below)]
    close = [known_id for known_id in known if known_id.startswith(f"{dataset_id}/")][:3]
    close = close or difflib.get_close_matches(dataset_id, known, n=3, cutoff=0.7)
    names = " or ".join(known_id.removeprefix(below) for known_id in close)
    return f"; did you mean {names}?" if close else "; ir-datasets.com lists the ids"


def _host() -> Any:
    import ir_datasets  # takes a second, and most collections do not need it

    return ir_datasets


def _split_of(dataset_id: str) -> str | None:
    last = dataset_id.rpartition("/")[2]
    if last in _SPLIT_NAMES:
        return last
    # BEIR's collections with a single set of judgements carry it without a name; it is always the
    # test split.
    return "test" if dataset_id.startswith("beir/") else None


def _namespace(handler: Any) -> str | None:
    try:
        namespace = handler.docs_namespace()
    # Shipped handlers raise here in 0.6.3: vaswani's lacks self, argsme's asserts what does not
    # hold.
    except Exception:
        return None
    return namespace if isinstance(namespace, str) else None


def _file_state(handler: Any) -> tuple[str, ...] | None:
    """Path, size and time of the file behind documents that a user registered; None where there is
    none.
    """
    try:
        path = Path(handler.docs_path(force=False)).resolve()
    # A handler need not have a path at all, and what it raises instead is its own.
    except Exception:
        return None
    if not path.is_file() or path.is_relative_to(_host().util.tmp_path().resolve()):
        return None
    return "ir_datasets file", *file_state(path)
