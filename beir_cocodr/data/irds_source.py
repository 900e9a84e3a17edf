"""Collections of ir_datasets: any id, with streamed documents and integer grades.

ir_datasets downloads, checks and caches by itself. An exception of its own becomes one line.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beir_cocodr import load_plugin
from beir_cocodr.data.defects import LineTally, Report, error
from beir_cocodr.data.files.readers import Document, Judgement, Query, RecordChecker
from beir_cocodr.data.sources import Labels, describe_splits
from beir_cocodr.errors import InputError
from beir_cocodr.io import file_state

#: The beginning of the ids of resampled collections.
OWN_IDS = "cocodr/"
_SPLIT_NAMES = {"train", "dev", "test", "validation", "valid", "val"}


class IrdsSource:
    """An ir_datasets id such as ``beir/scifact``, read like a file source.

    ``ID/SPLIT`` is read if it has qrels, otherwise ``ID`` itself. The split that an id names is
    used whatever split is asked for, with one exception: ``train`` is never served with the
    judgements of another split.

    Args:
        name: the name that the user gave.
        dataset_id: the id.
        split: the split that is asked for.

    Raises:
        InputError: If there is no such id.
    """

    def __init__(self, name: str, dataset_id: str, split: str) -> None:
        """Find the id, or the id of its split."""
        self.name = name
        self.wanted_split = split
        self._named_id = dataset_id
        self.dataset_id = _id_with_split(dataset_id, split)
        self._dataset = _host().load(self.dataset_id)
        self._own_split = _split_of(self.dataset_id)
        self._has_qrels = self._dataset.has_qrels() and self._serves(split)
        self.split: str | None = None
        if self._has_qrels:
            self.split = self._own_split or self.dataset_id  # the id itself if it names no split
        self.documents_file = f"irds:{self.dataset_id}"
        self.queries_file = self.documents_file if self._dataset.has_queries() else None
        self.judgements_file = self.documents_file if self._has_qrels else None

    def _serves(self, split: str) -> bool:
        """Return whether the judgements of the id may be used for a split."""
        if self._own_split in (None, split):
            return True
        is_short_name = ":" not in self.name
        return split != "train" and not is_short_name

    def of_split(self, split: str) -> "IrdsSource":
        """Return the source of another split of the same collection."""
        return IrdsSource(self.name, self._named_id, split)

    def key(self) -> tuple[str, ...] | None:
        """Return what identifies the documents, or None if only their content does.

        ir_datasets checks the hash of what it ships, so that id and version identify the documents.
        Splits share them, and an id that a user composed may have them from a shipped one.
        """
        handler = self._dataset.docs_handler()
        parent = _host().docs_parent_id(self.dataset_id)
        for identifier in (parent, _namespace(handler)):
            if not identifier or not is_registered(identifier):
                continue
            known = _host().load(identifier)
            has_same_documents = known.has_docs() and known.docs_handler() == handler
            if has_same_documents and known.docs_metadata():
                return "ir_datasets", identifier, str(_host().__version__)
        return _file_state(handler)

    def splits(self) -> list[str]:
        """Return the splits that have judgements."""
        if self._has_qrels:
            return [str(self.split)]
        below = available_splits(self.dataset_id)
        if below:
            return below
        if self._dataset.has_qrels():
            return [str(self._own_split)]
        return []

    def missing(self, report: Report, labels: Labels) -> None:
        """Report the parts that the id lacks."""
        file = self.documents_file
        if not self._dataset.has_docs():
            message = "has no documents; choose an id that has them"
            report(error("missing file", file, message))
        if labels != "required":
            return
        if not self._dataset.has_queries():
            message = "has no queries; choose an id that has them"
            report(error("missing file", file, message))
        if not self._has_qrels:
            if self._dataset.has_qrels():
                hint = f"this id holds the split {self._own_split!r}: ask for that"
            else:
                hint = describe_splits(available_splits(self.dataset_id))
            message = f"no split {self.wanted_split!r} ({hint})"
            report(error("missing split", file, message))

    def documents(self, report: Report) -> Iterator[Document]:
        """Yield (number, id, title, text).

        These are the fields title and text, if the id has a text. Otherwise the text that
        ir_datasets composes (``default_text()``) is used with an empty title. Otherwise, as for
        codesearchnet, the title and all other fields that are strings are used, which is reported
        as "texts joined from fields".
        """
        if not self._dataset.has_docs():
            return
        checker = RecordChecker(self.documents_file, report)
        joined = LineTally()
        number = 0
        for number, document in self._records("docs", checker):
            title = getattr(document, "title", "")
            if hasattr(document, "text"):
                text = document.text
            elif hasattr(document, "default_text"):
                title = ""
                text = document.default_text()
            else:
                text = _joined_fields(document)
                joined.add(number)
            checked = checker.document(number, document.doc_id, title, text)
            if checked is not None:
                yield checked
        checker.finish()
        message = "{} documents have no text field: all their fields that are strings were joined"
        joined.report(report, "texts joined from fields", self.documents_file, message)
        if not number:
            checker.empty_corpus()

    def queries(self, report: Report) -> Iterator[Query]:
        """Yield (number, id, text) with the text that ir_datasets composes (``default_text()``)."""
        if not self._dataset.has_queries():
            return
        checker = RecordChecker(self.documents_file, report)
        for number, query in self._records("queries", checker):
            if hasattr(query, "default_text"):
                text = query.default_text()
            elif hasattr(query, "text"):
                text = query.text
            else:
                message = (
                    "its queries have no text (such as a document as the query); choose another id"
                )
                checker.error("no text field", message, number, query.query_id)
                return
            checked = checker.query(number, query.query_id, text)
            if checked is not None:
                yield checked
        checker.finish()

    def judgements(self, report: Report) -> Iterator[Judgement]:
        """Yield (number, query id, document id, grade)."""
        if not self._has_qrels:
            return
        checker = RecordChecker(self.documents_file, report)
        for number, qrel in self._records("qrels", checker):
            checked = checker.judgement(
                number,
                qrel.query_id,
                qrel.doc_id,
                qrel.relevance,
            )
            if checked is not None:
                yield checked

    def _records(self, part: str, checker: RecordChecker) -> Iterator[tuple[int, Any]]:
        """Yield the records of a part, numbered from 1.

        An exception of the host, such as for a missing network or a broken file, is reported.
        """
        number = 0
        try:
            records = getattr(self._dataset, f"{part}_iter")()
            for number, record in enumerate(records, 1):
                yield number, record
        # The host documents no exceptions: downloads, archives and parsers each raise their own.
        except Exception as cause:
            described = f"{type(cause).__name__}: {cause}"
            reason = " ".join(described.split())
            message = (
                f"ir_datasets cannot read its {part} after record {number} ({reason}); check the "
                "network and IR_DATASETS_HOME, or use a local folder or apidocs/numpy, which needs "
                "no network"
            )
            checker.error("unreadable file", message, number or None)


def _id_with_split(dataset_id: str, split: str) -> str:
    """Return ``ID/SPLIT`` if it has qrels, else the id."""
    if dataset_id.startswith(OWN_IDS) or not is_registered(dataset_id):
        load_plugin("irds")()
    nested = f"{dataset_id}/{split}"
    if is_registered(nested) and _host().load(nested).has_qrels():
        return nested
    if not is_registered(dataset_id):
        raise InputError(f"ir_datasets does not know the id {dataset_id!r}{suggestion(dataset_id)}")
    return dataset_id


def _joined_fields(document: Any) -> str:
    """Join all fields that are strings, except id and title."""
    texts = []
    for name in document._fields:
        value = getattr(document, name)
        if name not in ("doc_id", "title") and isinstance(value, str):
            texts.append(value)
    return " ".join(texts)


def is_registered(dataset_id: str) -> bool:
    """Return whether ir_datasets knows an id, patterns included. It uses no network."""
    try:
        _host().load(dataset_id)
    except KeyError:
        return False
    return True


def available_splits(dataset_id: str) -> list[str]:
    """Return the splits of an id, every ``ID/SPLIT`` with qrels, sorted. It uses no network."""
    prefix = f"{dataset_id}/"
    below = [known for known in _host().registry if known.startswith(prefix)]
    judged = [known for known in below if _host().load(known).has_qrels()]
    return sorted(known.removeprefix(prefix) for known in judged)


def suggestion(dataset_id: str, below: str = "") -> str:
    """Return the end of a message about an unknown id, with the known ids nearest to it.

    Args:
        dataset_id: the unknown id.
        below: only ids that begin with it are suggested, without it.
    """
    known = [known_id for known_id in _host().registry if known_id.startswith(below)]
    inside = [known_id for known_id in known if known_id.startswith(f"{dataset_id}/")]
    close = inside[:3]
    if not close:
        close = difflib.get_close_matches(dataset_id, known, n=3, cutoff=0.7)
    if not close:
        return "; ir-datasets.com lists the ids"
    names = " or ".join(known_id.removeprefix(below) for known_id in close)
    return f"; did you mean {names}?"


def _host() -> Any:
    import ir_datasets  # takes a second, and most collections do not need it

    return ir_datasets


def _split_of(dataset_id: str) -> str | None:
    last = dataset_id.rpartition("/")[2]
    if last in _SPLIT_NAMES:
        return last
    # BEIR's collections with a single set of judgements do not name it; it is always the test
    # split.
    return "test" if dataset_id.startswith("beir/") else None


def _namespace(handler: Any) -> str | None:
    try:
        namespace = handler.docs_namespace()
    # Shipped handlers raise here in 0.6.3: vaswani's lacks self, and argsme's assertion fails.
    except Exception:
        return None
    return namespace if isinstance(namespace, str) else None


def _file_state(handler: Any) -> tuple[str, ...] | None:
    """Return path, size and time of the file of documents that a user registered, or None."""
    try:
        path = Path(handler.docs_path(force=False)).resolve()
    # A handler need not have a path, and it may raise anything instead.
    except Exception:
        return None
    if not path.is_file() or path.is_relative_to(_host().util.tmp_path().resolve()):
        return None
    return "ir_datasets file", *file_state(path)
