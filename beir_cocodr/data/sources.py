"""Sources of collections: their protocol, BEIR folders and corpus files."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, Self

from beir_cocodr.data.defects import Report, error
from beir_cocodr.data.files.readers import (
    Document,
    Judgement,
    Query,
    read_documents,
    read_judgements,
    read_queries,
)
from beir_cocodr.io import file_state

log = logging.getLogger(__name__)

#: The uses of a corpus alone, for error messages.
WITHOUT_LABELS = "do what needs no labels: search, compare, adapt, fuse, pretrain"
Labels = Literal["required", "optional", "none"]


class Source(Protocol):
    """A source of a collection, which gives the collection's parts as streams.

    Every defect goes to a ``report``; a stream never stops at one. The names of files are those
    that reports use, None where the part is absent.
    """

    @property
    def name(self) -> str:
        """Return the name that the user gave."""
        ...

    @property
    def split(self) -> str | None:
        """Return the split that was asked for, None if it has no judgements."""
        ...

    @property
    def documents_file(self) -> str:
        """Return the name of the corpus in reports."""
        ...

    @property
    def queries_file(self) -> str | None:
        """Return the name of the queries in reports."""
        ...

    @property
    def judgements_file(self) -> str | None:
        """Return the name of the judgements in reports."""
        ...

    def of_split(self, split: str) -> "Source":
        """Return the source of another split of the same collection."""
        ...

    def key(self) -> tuple[str, ...] | None:
        """Return what identifies the documents, None where only their content does."""
        ...

    def missing(self, report: Report, labels: Labels) -> None:
        """Report required parts that do not exist."""
        ...

    def splits(self) -> list[str]:
        """Return the splits that have judgements, sorted."""
        ...

    def documents(self, report: Report) -> Iterator[Document]:
        """Stream (line, id, title, text)."""
        ...

    def queries(self, report: Report) -> Iterator[Query]:
        """Stream (line, id, text)."""
        ...

    def judgements(self, report: Report) -> Iterator[Judgement]:
        """Stream (line, query id, document id, grade)."""
        ...


@dataclass(frozen=True)
class FileSource:
    """A collection in files.

    Generated queries as BEIR and GPL name them, ``qgen-queries.jsonl`` and
    ``qgen-qrels/train.tsv``, are the split ``qgen-train``, and ``train`` as well where there is no
    ``queries.jsonl``.

    Attributes:
        name: as the user gave it.
        corpus: the corpus file; `missing` reports one that does not exist.
        folder: the BEIR folder, None for a lone corpus file.
        wanted_split: the split that is asked for; ``split`` is the same if it has judgements.
    """

    name: str
    corpus: Path
    folder: Path | None = None
    wanted_split: str = "test"

    @classmethod
    def of_folder(
        cls,
        name: str,
        folder: Path,
        split: str,
    ) -> "FileSource":
        """Return the source of a BEIR folder; a plain file is preferred to its ``.gz``."""
        corpus = _plain_or_gz(folder / "corpus.jsonl") or folder / "corpus.jsonl"
        return cls(name, corpus, folder, split)

    def of_split(self, split: str) -> Self:
        """Return the source of another split of the same collection."""
        return replace(self, wanted_split=split)

    @property
    def split(self) -> str | None:
        """Return the split, None if it has no judgements."""
        return self.wanted_split if self.judgements_file else None

    @property
    def documents_file(self) -> str:
        """Return the path of the corpus."""
        return str(self.corpus)

    @property
    def queries_file(self) -> str | None:
        """Return the path of the queries, None where there are none."""
        return self._existing(f"{self._names[0]}queries.jsonl")

    @property
    def judgements_file(self) -> str | None:
        """Return the path of the judgements of the split, None where there are none."""
        prefix, split = self._names
        return self._existing(f"{prefix}qrels/{split}.tsv")

    @property
    def _names(self) -> tuple[str, str]:
        """Return the prefix of the names of the split's files, and the split's name in them."""
        prefix, hyphen, split = self.wanted_split.partition("-")
        if hyphen and self._existing(f"{prefix}-qrels/{split}.tsv"):
            return f"{prefix}-", split
        generated_qrels = self._existing(f"qgen-qrels/{self.wanted_split}.tsv")
        if generated_qrels and self._existing("queries.jsonl") is None:
            return "qgen-", self.wanted_split
        return "", self.wanted_split

    def key(self) -> tuple[str, ...] | None:
        """Return what identifies the documents: a converted corpus is used again under its key.

        None where nothing outside the documents shows whether they have changed.
        """
        return file_state(self.corpus)

    def missing(self, report: Report, labels: Labels) -> None:
        """Report required parts that do not exist, as "missing file" and "missing split"."""
        if not self.corpus.is_file():
            message = (
                "no such file; a BEIR folder contains corpus.jsonl or corpus.jsonl.gz, any other "
                "folder texts such as .txt and .md"
            )
            report(error("missing file", str(self.corpus), message))
        if self.folder is not None and labels != "none":
            self._report_non_files(self.folder, report)
        if labels == "required" and self.folder is None:
            message = (
                f"a lone corpus file has no queries or qrels, and no split {self.wanted_split!r}; "
                f"give a BEIR folder or an irds: id, or {WITHOUT_LABELS}"
            )
            report(error("missing file", str(self.corpus), message))
        elif labels == "required" and self.folder is not None:
            self._report_missing_labels(self.folder, report)
        elif labels == "optional" and self.wanted_split != "test" and self.split is None:
            log.warning(
                "%s has no split %r (%s); all of its queries are used, without judgements",
                self.name,
                self.wanted_split,
                describe_splits(self.splits()),
            )

    def _report_non_files(self, folder: Path, report: Report) -> None:
        for name in ("queries.jsonl", f"qrels/{self.wanted_split}.tsv"):
            path = folder / name
            if os.path.lexists(path) and not path.is_file():
                message = "this is not a file; remove it, or put the file there"
                report(error("missing file", str(path), message))

    def _report_missing_labels(self, folder: Path, report: Report) -> None:
        if self.queries_file is None:
            message = (
                "no such file; a BEIR folder with labels contains queries.jsonl or queries.jsonl.gz"
            )
            if not self.splits():
                message += f"; or {WITHOUT_LABELS}"
            report(error("missing file", str(folder / "queries.jsonl"), message))
        if self.judgements_file is None:
            message = f"no split {self.wanted_split!r} ({describe_splits(self.splits())})"
            file = folder / "qrels" / f"{self.wanted_split}.tsv"
            report(error("missing split", str(file), message))

    def splits(self) -> list[str]:
        """Return the splits that have judgements, sorted."""
        if self.folder is None:
            return []
        paths = [*self.folder.glob("*qrels/*.tsv"), *self.folder.glob("*qrels/*.tsv.gz")]
        prefixes = [path.parent.name.removesuffix("qrels") for path in paths]
        names = [path.name.removesuffix(".gz").removesuffix(".tsv") for path in paths]
        return sorted({prefix + name for prefix, name in zip(prefixes, names, strict=True)})

    def documents(self, report: Report) -> Iterator[Document]:
        """Stream (line, id, title, text)."""
        if self.corpus.is_file():
            return read_documents(self.corpus, report)
        return iter(())

    def queries(self, report: Report) -> Iterator[Query]:
        """Stream (line, id, text); nothing where there are none."""
        file = self.queries_file
        if file is None:
            return iter(())
        return read_queries(Path(file), report)

    def judgements(self, report: Report) -> Iterator[Judgement]:
        """Stream (line, query id, document id, grade); nothing where there are none."""
        file = self.judgements_file
        if file is None:
            return iter(())
        return read_judgements(Path(file), report)

    def _existing(self, name: str) -> str | None:
        path = None
        if self.folder:
            path = _plain_or_gz(self.folder / name)
        if path is None:
            return None
        return str(path)


def describe_splits(splits: list[str]) -> str:
    """Return the way out of a missing split."""
    if splits:
        return f"choose one of: {', '.join(splits)}"
    return "there are no qrels at all"


def _plain_or_gz(path: Path) -> Path | None:
    candidates = (path, path.with_name(path.name + ".gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)
