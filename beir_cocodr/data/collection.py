"""A collection: documents, queries and judgements of a split, from whatever a user calls a dataset.

The corpus is converted once and kept below the cache root; later loads map the converted file as
long as its source is unchanged. Queries and judgements are joined each time they are read. Queries
alone (:func:`load_queries`) need no index of document ids.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias, get_args

import numpy as np

from beir_cocodr.arrays import Bools
from beir_cocodr.cache import note_corpus
from beir_cocodr.checksums import is_kept, move_checked
from beir_cocodr.data.defects import (
    Duplicate,
    Repeats,
    Report,
    StrictReport,
    check_duplicates,
    error,
    ignore,
    warning,
)
from beir_cocodr.data.documents import Documents, open_corpus, write_arrow
from beir_cocodr.data.files.file_folder import HUGGING_FACE, HubDataset, Reading, TextFiles
from beir_cocodr.data.files.folder_facts import FolderFacts
from beir_cocodr.data.files.own_folders import check_output, is_model, is_result
from beir_cocodr.data.files.readers import CORPUS_SUFFIXES, Document
from beir_cocodr.data.irds_source import IrdsSource, is_registered, suggestion
from beir_cocodr.data.memory import MemorySource, is_hub_dataset
from beir_cocodr.data.sources import FileSource, Labels, Source
from beir_cocodr.errors import InputError, Limits, check_name, check_names, kind_of
from beir_cocodr.io import cache_folder, filling_cache, text_sha256, unfinished

log = logging.getLogger(__name__)

# Part of the key of every converted corpus: raise it when reading changes what comes out.
_FORMAT = "3"

# Judgements whose document ids are looked up at a time.
_LOOKUP_SIZE = 65_536

# Kinds of defects that are described, and not only counted.
_SAID = ("files left out", "encodings guessed")

# A BEIR folder has at least one of these.
_BEIR_PARTS = ("corpus.jsonl", "corpus.jsonl.gz", "queries.jsonl", "qrels")

#: Says of each id whether it is a document, bool (M,).
Known = Callable[[Sequence[str]], Bools]
#: Reports the duplicates of a file.
DuplicateReport = Callable[[Iterable[Duplicate], str, Report], None]
#: Queries, id to text, and judgements, query id to document id to grade.
JoinedLabels = tuple[dict[str, str], dict[str, dict[str, int]]]


def resolve_source(dataset: object, split: str) -> Source:
    """Return the source that a collection is read from.

    What is in memory (see `MemorySource`) is read as it is. A name or path is the first of these
    that fits, so that a folder hides a short name:

    1. an existing folder: a BEIR folder (``corpus.jsonl``, ``queries.jsonl``, ``qrels/SPLIT.tsv``,
       each plain or ``.gz``), a dataset that Hugging Face saved, or any files of `TextFiles`;
    2. an existing file: a lone corpus (see `read_documents`), or one of `TextFiles`;
    3. ``hf:NAME``: a dataset of Hugging Face;
    4. ``irds:ID``: any ir_datasets id;
    5. ``apidocs/DOMAIN``: the embedded collection;
    6. a BEIR short name such as ``scifact`` or ``cqadupstack/android``, through ir_datasets.

    A question mark introduces how files are read, see `Reading`: ``my.csv?text=body&language=de``.

    Raises:
        InputError: If the dataset is none of these.
    """
    if not isinstance(split, str):
        raise InputError(f"split is {kind_of(split)}; give a name such as test")
    if not split.strip():
        raise InputError(
            f"the split of {dataset} has no name; give one such as test, or leave the option out"
        )
    check_name("split", split)
    if isinstance(dataset, Collection):
        return dataset.source_of(split)
    if not isinstance(dataset, str | Path):
        return MemorySource.of(dataset, split)
    name = str(dataset)
    if not name.strip():
        raise InputError("the dataset has no name; give a folder, a file, irds:ID or a BEIR name")
    check_name("dataset", name)
    bare_name = name
    reading = None
    if not Path(dataset).exists():
        bare_name, reading = Reading.parse(name)
    source = _local_source(name, Path(bare_name), split, reading)
    if source is not None:
        return source
    if isinstance(dataset, Path):
        raise InputError(f"dataset {name!r}: no such file or folder")
    return _named_source(name, bare_name, split, reading)


def _local_source(
    name: str,
    path: Path,
    split: str,
    reading: Reading | None,
) -> Source | None:
    """Return the source of a folder or file, None if neither exists."""
    if path.is_dir():
        return _folder_source(name, path, split, reading)
    if not path.is_file():
        return None
    if reading is None and path.name.endswith(CORPUS_SUFFIXES):
        return FileSource(name, path, None, split)
    return TextFiles(name, path, reading=reading or Reading())


def _folder_source(
    name: str,
    path: Path,
    split: str,
    reading: Reading | None,
) -> Source:
    is_beir = any((path / part).exists() for part in _BEIR_PARTS)
    if not is_beir and is_model(path):
        raise InputError(
            f"{name} is a model, not a dataset; name the folder of the documents to be read"
        )
    if not is_beir and is_result(path):
        raise InputError(
            f"{name} is the output of a command, not a dataset; name the folder of the documents "
            "to be read"
        )
    if not is_beir and HubDataset.saved_in(path):
        return HubDataset(name, path, reading=reading or Reading())
    if not is_beir and TextFiles.in_folder(path):
        return TextFiles(name, path, reading=reading or Reading())
    if reading is not None:
        raise InputError(
            f"{name}: a BEIR folder is read as it is; leave out the question mark and what follows"
        )
    return FileSource.of_folder(name, path, split)


def _named_source(
    name: str,
    bare_name: str,
    split: str,
    reading: Reading | None,
) -> Source:
    """Return the source of a name that is no folder or file."""
    if name.startswith(HUGGING_FACE):
        return HubDataset(name, Path(bare_name), reading=reading or Reading())
    if reading is not None:
        raise InputError(
            f"{name}: no such file or folder, and only a file, a folder or an hf: dataset "
            "may be followed by a question mark"
        )
    if name.startswith("irds:"):
        return IrdsSource(name, name.removeprefix("irds:"), split)
    if name.startswith("apidocs/"):
        from beir_cocodr.data.apidocs import apidocs_folder

        return FileSource.of_folder(name, apidocs_folder(name.removeprefix("apidocs/")), split)
    identifier = f"beir/{name}"
    if is_registered(f"{identifier}/{split}") or is_registered(identifier):
        return IrdsSource(name, identifier, split)
    hint = suggestion(identifier, below="beir/")
    raise InputError(
        f"dataset {name!r} is not an existing folder or file, hf:NAME, irds:ID, apidocs/DOMAIN "
        f"or a BEIR name such as scifact{hint}"
    )


def join_labels(
    source: Source,
    labels: Labels,
    known: Known,
    report: Report,
    report_duplicates: DuplicateReport | None = check_duplicates,
) -> JoinedLabels:
    """Read the queries and judgements of a source and keep those that belong together.

    With judgements, the queries are the judged ones, in the order of the queries file; without, all
    of them. Judgements of unknown queries are left out; those of unknown documents stay, as in
    trec_eval. Of repeated judgements of a pair the last one counts, as in BEIR. All of these are
    reported, and so is the error "no judged queries".

    Args:
        source: the collection.
        labels: as for `load_collection`.
        known: says which ids are documents.
        report: receives the defects.
        report_duplicates: reports query ids that occur twice; None reports none.

    Returns:
        The queries and the judgements.
    """
    qrels = _read_judgements(source, report)
    has_judgements = source.judgements_file is not None
    ids = Repeats()
    queries: dict[str, str] = {}
    for _, id, text in source.queries(report):
        ids.add((id,))
        if not has_judgements or id in qrels:
            queries[id] = text
    # Without any queries every judgement would be unknown; that they are missing is reported
    # already.
    if source.queries_file or labels != "required":
        _report_unknown(source, queries, known, report)
    if has_judgements and source.queries_file and not queries:
        message = (
            f"no query is judged: {source.queries_file} has none of the ids of this file; "
            "check the ids"
        )
        report(error("no judged queries", str(source.judgements_file), message))
    if report_duplicates is not None:
        duplicates = ids.find(lambda: ((line, id, id) for line, id, _ in source.queries(ignore)))
        report_duplicates(duplicates, str(source.queries_file), report)
    return queries, {id: qrels[id] for id in qrels if id in queries}


def _read_judgements(source: Source, report: Report) -> dict[str, dict[str, int]]:
    file = str(source.judgements_file)
    qrels: dict[str, dict[str, int]] = {}
    for line, query, document, grade in source.judgements(report):
        grades = qrels.setdefault(query, {})
        if document in grades:
            message = (
                f"document {document!r} was judged for query {query!r} before; "
                "the last judgement counts"
            )
            report(warning("repeated judgements", file, message, line, query))
        grades[document] = grade
    return qrels


def _report_unknown(
    source: Source,
    queries: dict[str, str],
    known: Known,
    report: Report,
) -> None:
    """Report judgements of queries and documents that the collection does not have."""
    file = str(source.judgements_file)
    judgements = source.judgements(ignore)
    while batch := list(islice(judgements, _LOOKUP_SIZE)):
        of_known_queries = []
        for line, query, document, _ in batch:
            if query in queries:
                of_known_queries.append((line, document))
            else:
                message = f"query {query!r} is not in the queries; the judgement was left out"
                report(warning("qrels for unknown queries", file, message, line, query))
        is_known = known([document for _, document in of_known_queries])
        for (line, document), in_corpus in zip(of_known_queries, is_known, strict=True):
            if not in_corpus:
                message = (
                    f"document {document!r} is not in the corpus; "
                    "the judgement stays, as in trec_eval"
                )
                report(warning("qrels for unknown documents", file, message, line, document))


def converted_corpus(source: Source) -> Documents:
    """Return the documents of a source, converted to Arrow the first time and mapped later.

    Raises:
        InputError: If the corpus has an error, or the cache folder cannot be written.
        DiskFull: If the cache folder has no room.
    """
    folder = cache_folder("corpora")
    key = source.key()
    if key is not None:
        kept = _cache_file(folder, key)
        with suppress(OSError, ValueError):
            if is_kept(kept):
                return _named(open_corpus(kept), source)
    with filling_cache(folder), unfinished(folder) as draft:
        temporary = draft / "corpus.arrow"
        report = StrictReport(_command_line_name(source))
        stream, facts = _documents_and_facts(source, report)
        content_hash, ids = write_arrow(temporary, stream, report.counts, facts.to_json())
        duplicates = ids.find(
            lambda: ((line, id, id) for line, id, _, _ in source.documents(ignore))
        )
        check_duplicates(duplicates, source.documents_file, report)
        if source.key() != key:
            raise InputError(f"{source.documents_file}: changed while it was being read; run again")
        file = _cache_file(folder, key or ("content", content_hash))
        move_checked(temporary, file)
    documents = _named(open_corpus(file), source)
    if isinstance(source, TextFiles):
        log.info(
            "%s: %d passages, kept in %s, which may be emptied at any time "
            "(BEIR_COCODR_CACHE names another folder)",
            source.name,
            len(documents),
            folder.parent,
        )
    return documents


def _named(documents: Documents, source: Source) -> Documents:
    """Give documents the name of their source, which they keep when the source changes."""
    if isinstance(source, MemorySource):
        return documents  # known by their content
    # As seen from here: elsewhere the same name may be another corpus.
    file = Path(source.documents_file)
    documents.name = str(file.resolve()) if file.exists() else source.name
    assert documents.path is not None
    note_corpus(documents.path, documents.name)
    return documents


def _documents_and_facts(
    source: Source,
    report: Report,
) -> tuple[Iterator[Document], FolderFacts]:
    """Return the stream of a source's documents, and facts about its files if it has several."""
    if isinstance(source, TextFiles):
        return source.documents_and_facts(report)
    return source.documents(report), FolderFacts()


def _say(name: str, facts: FolderFacts) -> None:
    """Say which files were left out, and what was guessed about the others."""
    for line in facts.describe_left_out(name):
        log.warning("%s", line)
    for line in (facts.describe_encodings(), facts.describe_language()):
        if line:
            log.info("%s: %s", name, line)


def _cache_file(folder: Path, key: tuple[str, ...]) -> Path:
    return folder / f"{text_sha256(_FORMAT, *key)[:32]}.arrow"


def _command_line_name(source: Source) -> str | None:
    """Return the name that the command line knows a source by, None if it is in memory."""
    return None if isinstance(source, MemorySource) else source.name


@dataclass(frozen=True)
class Collection:
    """A loaded collection.

    ``(c.documents, c.queries, c.qrels)`` is the triple that BEIR works on, the same as
    ``GenericDataLoader(folder).load(split)`` returns.

    Attributes:
        name: as the user gave it.
        documents: the corpus, memory-mapped.
        queries: query id to text: the judged queries of the split in the order of the queries file,
            all queries if there are no judgements, {} for a lone corpus.
        qrels: query id to {document id: grade}, for those queries; {} when absent.
        split: the split of the judgements, None where there are none.
        counts: defects that were accepted, by kind (the kinds of `Defect`); only those that occur.
        source: where it was read from, None for a collection that a program made.
    """

    name: str
    documents: Documents
    queries: dict[str, str] = field(repr=False)
    qrels: dict[str, dict[str, int]] = field(repr=False)
    split: str | None
    counts: dict[str, int] = field(default_factory=dict)
    source: Source | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def queries_of_all_splits(self) -> dict[str, str]:
        """Return query id to text of all queries, judged in the split or not."""
        if self.source is None:
            return self.queries
        return {id: text for _, id, text in self.source.queries(ignore)}

    def source_of(self, split: str) -> Source:
        """Return the source of another split.

        Raises:
            InputError: If the collection was not read from a source of several splits.
        """
        if self.source is None or isinstance(self.source, MemorySource):
            raise InputError(
                f"the collection {self.name} is in memory and has no split {split!r}; "
                "write it to a BEIR folder with that split, and give the folder"
            )
        return self.source.of_split(split)

    def in_split(self, split: str, *, labels: Labels = "required") -> "Collection":
        """Load the queries and judgements of another split; the documents are shared."""
        return load_source(self.source_of(split), labels, self.documents)


#: What a user may call a dataset; a mapping is a corpus, a tuple is BEIR's triple.
Dataset: TypeAlias = object

#: What a user may call several datasets: one, or a sequence of them.
Datasets: TypeAlias = object


def load_collection(
    dataset: Dataset,
    split: str = "test",
    *,
    labels: Labels = "required",
) -> Collection:
    """Load a collection.

    The corpus of a file is converted to Arrow the first time and mapped from then on; a corpus in
    memory is written to the same cache, by its content. Accepted and counted are, among others,
    null or absent titles, title-only and empty documents, duplicate texts, CRLF, judgements of
    unknown queries (left out) and of unknown documents (kept, as in trec_eval), and query ids equal
    to document ids.

    Args:
        dataset: a BEIR folder, a lone corpus file, ``irds:ID``, ``apidocs/DOMAIN`` or a BEIR short
            name (the first that fits, in this order), or an object: a corpus {id: {"title",
            "text"}} or {id: text}, BEIR's triple (corpus, queries, qrels), a Hugging Face
            ``datasets.Dataset`` with the columns id (or _id), title and text, or a
            :class:`Collection`, which is returned as it is.
        split: the split of the judgements.
        labels: "required" refuses a collection without queries or without the split; "optional"
            takes what exists; "none" does not look at queries and judgements.

    Returns:
        The collection.

    Raises:
        InputError: If the collection cannot be read, or has broken JSON, bytes that are not UTF-8,
            missing or duplicate ids, white space in ids, grades that are not integers, an empty
            corpus or no such split; or if ``dataset`` is of another type.

    Example:
        >>> from beir_cocodr import load_collection
        >>> collection = load_collection("apidocs/numpy", split="train")
        >>> query, grades = next(iter(collection.qrels.items()))
        >>> query in collection.queries
        True
        >>> [(document, grade)] = grades.items()
        >>> sorted(collection.documents[document]), grade
        (['text', 'title'], 1)
        >>> len(load_collection({"d1": "Sort an array.", "d2": "Draw."}, labels="none").documents)
        2
    """
    Limits(choices=get_args(Labels)).check("labels", labels)
    if isinstance(dataset, Collection):
        return _checked_collection(dataset, labels)
    if isinstance(dataset, Documents) and dataset.content_hash and labels != "required":
        return Collection(
            name=repr(dataset),
            documents=dataset,
            queries={},
            qrels={},
            split=None,
            counts=dataset.counts,
        )
    return load_source(resolve_source(dataset, split), labels)


def check_apart(output: str | Path | None, dataset: Dataset) -> None:
    """Check that an output is not the dataset that is read, nor would become a part of it.

    Args:
        output: the output; None where nothing is written.
        dataset: the dataset; one in memory is apart.

    Raises:
        InputError: it is the dataset, would be read as its documents, or contains some of them; or
            no file system has such a name.
    """
    if not isinstance(output, str | Path) or not isinstance(dataset, str | Path):
        return
    check_name("the output", output)
    check_name("dataset", dataset)
    path = Path(dataset)
    if not path.exists():  # it may be followed by settings of reading
        path = Path(str(dataset).partition("?")[0])
    check_output(Path(output), [path])
    if path.is_dir() and isinstance(_folder_source(str(path), path, "test", None), TextFiles):
        TextFiles.check_output(Path(output), path)


def load_collections(
    datasets: Datasets,
    split: str = "test",
    *,
    labels: Labels = "required",
    kind: str = "dataset",
) -> list[Collection]:
    """Load what a user calls one or several datasets.

    Args:
        datasets: one dataset as for :func:`load_collection`, or a
            sequence of them.
        split: as for :func:`load_collection`.
        labels: as for :func:`load_collection`.
        kind: how messages call a dataset.

    Raises:
        InputError: There is no dataset, two have the same name, or one cannot be loaded.
    """
    is_single = isinstance(datasets, str | Path | Mapping) or is_dataset(datasets)
    several: list[Dataset] = [datasets]
    if not is_single and isinstance(datasets, Iterable):
        several = list(datasets)
    if not several:
        raise InputError(f"the {kind} is an empty list; name at least one collection")
    collections = [load_collection(one, split, labels=labels) for one in several]
    check_names(kind, [collection.name for collection in collections])
    return collections


def load_source(
    source: Source,
    labels: Labels,
    documents: Documents | None = None,
) -> Collection:
    """Load a collection from its source.

    Args:
        source: the source.
        labels: as for :func:`load_collection`.
        documents: the documents of the source, if they are loaded already; by default they are
            read from it.

    Raises:
        InputError: If :func:`load_collection` refuses it.
    """
    report = StrictReport(_command_line_name(source))
    source.missing(report, labels)
    if documents is None:
        documents = converted_corpus(source)
    report.counts.update(documents.counts)
    collection = Collection(
        name=source.name,
        documents=documents,
        queries={},
        qrels={},
        split=None,
        counts=report.counts,
        source=source,
    )
    if labels != "none":
        queries, qrels = join_labels(source, labels, lambda ids: documents.rows(ids) >= 0, report)
        equal_ids = int(np.count_nonzero(documents.rows(queries) >= 0))
        if equal_ids:
            report.counts["query ids equal to document ids"] += equal_ids
        collection = replace(collection, queries=queries, qrels=qrels, split=source.split)
    _say(source.name, documents.facts)
    for kind, count in report.counts.items():
        if kind not in _SAID:
            log.info("%s: %s: %d", source.name, kind, count)
    return replace(collection, counts=dict(report.counts))


def _checked_collection(collection: Collection, labels: Labels) -> Collection:
    if labels == "required" and not collection.qrels:
        raise InputError(
            f"the collection {collection.name} has no judgements; load it with a split that has "
            "some"
        )
    return collection


def is_dataset(value: object) -> bool:
    """Return true for what is surely a dataset: an object in memory, or a name of a dataset.

    Names of models and of datasets overlap; a folder counts if it has a part of a BEIR folder.
    """
    if not isinstance(value, str | Path):
        is_triple = isinstance(value, tuple) and any(isinstance(part, dict) for part in value)
        return isinstance(value, Collection | Documents) or is_hub_dataset(value) or is_triple
    if str(value).startswith(("irds:", "apidocs/", HUGGING_FACE)):
        return True
    return any((Path(value) / part).exists() for part in _BEIR_PARTS) or (
        Path(value).is_file() and Path(value).name.endswith(CORPUS_SUFFIXES)
    )


def has_labels(dataset: Dataset, split: str = "test") -> bool:
    """Return true if a collection has judgements, of this split or of any other."""
    if isinstance(dataset, Collection):
        return bool(dataset.qrels)
    source = resolve_source(dataset, split)
    return source.judgements_file is not None or bool(source.splits())


def load_labelled(dataset: Dataset, split: str = "test") -> Collection:
    """Load a collection that is to be evaluated on.

    Raises:
        InputError: If it has no labels at all, naming the command that needs none, or if
            :func:`load_collection` refuses it.
    """
    if isinstance(dataset, Collection):
        return _checked_collection(dataset, "required")
    source = resolve_source(dataset, split)
    source.missing(StrictReport(_command_line_name(source)), "none")
    if source.judgements_file is None and not source.splits():
        raise InputError(
            f"{source.name} has no labels to evaluate with; beir-cocodr compare --dataset "
            f"{source.name} MODEL MODEL judges models without labels, and search shows their "
            "results"
        )
    return load_source(source, "required")


def load_queries(dataset: Dataset, split: str = "test") -> Collection:
    """Load the queries that :func:`load_collection` gives, without an index of document ids.

    Raises:
        InputError: If the collection cannot be read, has no queries, or has judgements of other
            splits only.
    """
    if isinstance(dataset, Collection) and dataset.queries:
        return dataset
    source = resolve_source(dataset, split)
    report = StrictReport(_command_line_name(source))
    source.missing(report, "optional")
    if source.judgements_file is None and isinstance(source, FileSource) and source.splits():
        source.missing(report, "required")  # a misspelt split must not become all queries
    documents = converted_corpus(source)
    queries, qrels = join_labels(
        source, "optional", lambda ids: np.ones(len(ids), dtype=bool), report
    )
    if not queries:
        raise InputError(f"{source.name} has no queries of split {split!r} to search for")
    if source.judgements_file is None:
        log.info("%s has no judgements: all %d queries are used", source.name, len(queries))
    return Collection(
        name=source.name,
        documents=documents,
        queries=queries,
        qrels=qrels,
        split=source.split,
        source=source,
    )
