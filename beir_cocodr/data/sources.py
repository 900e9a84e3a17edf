"""Where a collection is read from: BEIR folders and lone corpus files."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from beir_cocodr.data.defects import Report, error
from beir_cocodr.data.readers import (
    Document,
    Judgement,
    Query,
    read_documents,
    read_judgements,
    read_queries,
)
from beir_cocodr.io import file_state

#: What a corpus alone is good for.
WITHOUT_LABELS = "do what needs no labels: search, compare, adapt, fuse, pretrain"
Labels = Literal["required", "optional", "none"]


@dataclass(frozen=True)
class FileSource:
    """A collection in files: its parts as streams. Every defect goes to ``report``; a stream never
    stops at one.

    Generated queries as BEIR and GPL name them, ``qgen-queries.jsonl`` and
    ``qgen-qrels/train.tsv``, are the split ``qgen-train``, and ``train`` as well where there is no
    ``queries.jsonl``.

    Attributes:
        name: as the user gave it.
        corpus: the corpus file; where it does not exist, `missing` reports it.
        folder: the BEIR folder, None for a lone corpus file.
        wanted_split: the split asked for; ``split`` is that if there are judgements of it.
        documents_file, queries_file, judgements_file: what reports name; None where the part is
        absent.
    """

    name: str
    corpus: Path
    folder: Path | None = None
    wanted_split: str = "test"

    @classmethod
    def of_folder(cls, name: str, folder: Path, split: str) -> "FileSource":
        """A BEIR folder; of a plain file and its ``.gz`` the plain one is read."""
        corpus = _plain_or_gz(folder / "corpus.jsonl") or folder / "corpus.jsonl"
        return cls(name, corpus, folder, split)

    @property
    def split(self) -> str | None:
        return self.wanted_split if self.judgements_file else None

    @property
    def documents_file(self) -> str:
        return str(self.corpus)

    @property
    def queries_file(self) -> str | None:
        return self._existing(f"{self._names[0]}queries.jsonl")

    @property
    def judgements_file(self) -> str | None:
        prefix, split = self._names
        return self._existing(f"{prefix}qrels/{split}.tsv")

    @property
    def _names(self) -> tuple[str, str]:
        """What stands before the names of the split's files, with a hyphen behind it, and the
        split's name there.
        """
        prefix, hyphen, split = self.wanted_split.partition("-")
        if hyphen and self._existing(f"{prefix}-qrels/{split}.tsv"):
            return f"{prefix}-", split
        alone = self._existing("queries.jsonl") is None and self._existing(
            f"qgen-qrels/{self.wanted_split}.tsv"
        )
        return ("qgen-" if alone else "", self.wanted_split)

    def key(self) -> tuple[str, ...] | None:
        """What identifies the documents: a converted corpus is used again only under the same key.
        None where nothing outside the documents shows whether they have changed.
        """
        return file_state(self.corpus)

    def missing(self, report: Report, labels: Labels) -> None:
        """Report the errors "missing file" and "missing split" for parts that must be there and are
        not.
        """
        if not self.corpus.is_file():
            message = "no such file; a BEIR folder holds corpus.jsonl or corpus.jsonl.gz"
            message += ", any other texts such as .txt and .md"
            report(error("missing file", str(self.corpus), message))
        if self.folder is not None and labels != "none":
            for name in ("queries.jsonl", f"qrels/{self.wanted_split}.tsv"):
                if os.path.lexists(path := self.folder / name) and not path.is_file():
                    report(
                        error(
                            "missing file",
                            str(path),
                            "this is no file; remove it, or put the file there",
                        )
                    )
        if labels != "required":
            return
        if self.folder is None:
            message = (
                f"a lone corpus file has no queries or qrels, and no split {self.wanted_split!r}; give a BEIR folder "
                f"or an irds: id, or {WITHOUT_LABELS}"
            )
            report(error("missing file", str(self.corpus), message))
            return
        if self.queries_file is None:
            message = (
                "no such file; a BEIR folder with labels holds queries.jsonl or queries.jsonl.gz"
            )
            message += "" if self.splits() else f"; or {WITHOUT_LABELS}"
            report(error("missing file", str(self.folder / "queries.jsonl"), message))
        if self.judgements_file is None:
            message = f"no split {self.wanted_split!r} ({describe_splits(self.splits())})"
            report(
                error(
                    "missing split",
                    str(self.folder / "qrels" / f"{self.wanted_split}.tsv"),
                    message,
                )
            )

    def splits(self) -> list[str]:
        """The splits that there are judgements of, sorted."""
        if self.folder is None:
            return []
        paths = [*self.folder.glob("*qrels/*.tsv"), *self.folder.glob("*qrels/*.tsv.gz")]
        prefixes = [path.parent.name.removesuffix("qrels") for path in paths]
        names = [path.name.removesuffix(".gz").removesuffix(".tsv") for path in paths]
        return sorted({prefix + name for prefix, name in zip(prefixes, names, strict=True)})

    def documents(self, report: Report) -> Iterator[Document]:
        """Stream (line, id, title, text)."""
        return read_documents(self.corpus, report) if self.corpus.is_file() else iter(())

    def queries(self, report: Report) -> Iterator[Query]:
        """Stream (line, id, text); nothing where there are none."""
        return read_queries(Path(self.queries_file), report) if self.queries_file else iter(())

    def judgements(self, report: Report) -> Iterator[Judgement]:
        """Stream (line, query id, document id, grade); nothing where there are none."""
        return (
            read_judgements(Path(self.judgements_file), report)
            if self.judgements_file
            else iter(())
        )

    def _existing(self, name: str) -> str | None:
        path = _plain_or_gz(self.folder / name) if self.folder else None
        return None if path is None else str(path)


def describe_splits(splits: list[str]) -> str:
    """The way out of a missing split."""
    return f"choose one of: {', '.join(splits)}" if splits else "there are no qrels at all"


def _plain_or_gz(path: Path) -> Path | None:
    candidates = (path, path.with_name(path.name + ".gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)
