"""A collection: documents, queries and judgements of a split, from whatever a user calls a
collection.

The corpus is converted once, kept below the cache root, and used again while its source stays as it
was. Queries and judgements are joined when they are read; queries alone (:func:`load_queries`) need
no index of document ids.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Bools
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
from beir_cocodr.data.file_folder import HUGGING_FACE, HubDataset, Reading, TextFiles
from beir_cocodr.data.file_formats import DOCUMENTS, TABLES
from beir_cocodr.data.irds_source import IrdsSource, Source, is_registered, suggestion
from beir_cocodr.data.readers import CORPUS_SUFFIXES
from beir_cocodr.data.sources import FileSource, Labels
from beir_cocodr.errors import InputError, check_name
from beir_cocodr.io import cache_folder, filling_cache, text_sha256, unfinished


def resolve_source(dataset: str | Path, split: str) -> Source:
    """Find the source of a collection. The first of these that fits is taken, so a folder hides a
    short name:

    1. an existing folder: a BEIR folder (``corpus.jsonl``, ``queries.jsonl``, ``qrels/SPLIT.tsv``,
       each plain or ``.gz``), a saved data set of Hugging Face, or any files of `TextFiles`;
    2. an existing file: a lone corpus (see `read_documents`), or one of `TextFiles`;
    3. ``hf:NAME``: a data set of Hugging Face;
    4. ``irds:ID``: any ir_datasets id;
    5. ``apidocs/DOMAIN``: the embedded collection;
    6. a BEIR short name such as ``scifact`` or ``cqadupstack/android``, through ir_datasets.

    Behind a question mark stands how files are read, see `Reading`:
    ``my.csv?text=body&language=de``. An InputError where it is none of them.
    """
    name = str(dataset)
    if not name.strip():
        raise InputError("the dataset has no name; give a folder, a file, irds:ID or a BEIR name")
    if not split.strip():
        raise InputError(
            f"the split of {name} has no name; give one such as test, or leave the option out"
        )
    check_name("dataset", name)
    check_name("split", split)
    bare, reading = (name, None) if Path(dataset).exists() else Reading.parse(name)
    found = _local_source(name, Path(bare), split, reading)
    if found is not None:
        return found
    if isinstance(dataset, Path):
        raise InputError(f"dataset {name!r}: no such file or folder")
    if name.startswith(HUGGING_FACE):
        return HubDataset(name, Path(bare), reading=reading or Reading())
    if reading is not None:
        raise InputError(
            f"{name}: no such file or folder, and no hf: data set, that a question mark could follow"
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
        f"dataset {name!r} is not a folder or file that is there, hf:NAME, irds:ID, apidocs/DOMAIN or a BEIR name such "
        f"as scifact{hint}"
    )


def _local_source(name: str, path: Path, split: str, reading: Reading | None) -> Source | None:
    """The source of a folder or file; None where there is none."""
    if path.is_dir():
        is_beir = any(
            (path / part).exists()
            for part in ("corpus.jsonl", "corpus.jsonl.gz", "queries.jsonl", "qrels")
        )
        if not is_beir and HubDataset.saved_in(path):
            return HubDataset(name, path, reading=reading or Reading())
        if not is_beir and TextFiles.in_folder(path):
            return TextFiles(name, path, reading=reading or Reading())
        if reading is not None:
            raise InputError(
                f"{name}: a BEIR folder is read as it is; leave out what stands behind the question mark"
            )
        return FileSource.of_folder(name, path, split)
    if path.is_file():
        if reading is None and path.name.endswith(CORPUS_SUFFIXES):
            return FileSource(name, path, None, split)
        if not TextFiles.reads(path):
            raise InputError(
                f"{name}: a corpus file ends in one of {', '.join((*TABLES, *DOCUMENTS))}; rename it"
            )
        return TextFiles(name, path, reading=reading or Reading())
    return None


#: Which of the given ids are documents, bool (M,).
Known = Callable[[Sequence[str]], Bools]
#: Reports duplicates of a file.
Tell = Callable[[Iterable[Duplicate], str, Report], None]
_LOOKUP_SIZE = 65_536


#: Queries, id to text, and judgements, query id to document id to grade.
JoinedLabels = tuple[dict[str, str], dict[str, dict[str, int]]]


def join_labels(
    source: Source,
    labels: Labels,
    known: Known,
    report: Report,
    tell: Tell | None = check_duplicates,
) -> JoinedLabels:
    """Read what a source has of queries and judgements; ``tell`` reports ids of queries that stand
    twice, None none.

    With judgements, the queries are the judged ones, in the order of the queries file; without, all
    of them. Judgements of unknown queries are left out, those of unknown documents stay, as in
    trec_eval; both are reported. Of repeated judgements of a pair the last one counts, as in BEIR,
    and each is reported.

    Reported are the defects of both parts, the warnings "qrels for unknown queries", "qrels for
    unknown documents" and "repeated judgements", and the error "no judged queries".
    """
    qrels: dict[str, dict[str, int]] = {}
    for line, query, document, grade in source.judgements(report):
        grades = qrels.setdefault(query, {})
        if document in grades:
            message = f"document {document!r} was judged for query {query!r} before; the last judgement counts"
            report(
                warning("repeated judgements", str(source.judgements_file), message, line, query)
            )
        grades[document] = grade
    ids = Repeats()
    queries: dict[str, str] = {}
    has_judgements = source.judgements_file is not None
    for _, id, text in source.queries(report):
        ids.add((id,))
        if not has_judgements or id in qrels:
            queries[id] = text
    # Without any queries every judgement would be unknown: what is missing has been reported
    # already.
    if source.queries_file or labels != "required":
        _report_unknown(source, queries, known, report)
    if has_judgements and source.queries_file and not queries:
        message = f"no query is judged: {source.queries_file} has none of the ids of this file; check the ids"
        report(error("no judged queries", str(source.judgements_file), message))
    if tell is not None:
        duplicates = ids.find(lambda: ((line, id, id) for line, id, _ in source.queries(ignore)))
        tell(duplicates, str(source.queries_file), report)
    return queries, {id: qrels[id] for id in qrels if id in queries}


def _report_unknown(source: Source, queries: dict[str, str], known: Known, report: Report) -> None:
    file = str(source.judgements_file)
    judgements = source.judgements(ignore)
    while batch := list(islice(judgements, _LOOKUP_SIZE)):
        of_queries = []
        for line, query, document, _ in batch:
            if query in queries:
                of_queries.append((line, document))
            else:
                message = f"query {query!r} is not in the queries; the judgement was left out"
                report(warning("qrels for unknown queries", file, message, line, query))
        for (line, document), is_known in zip(
            of_queries, known([id for _, id in of_queries]), strict=True
        ):
            if not is_known:
                message = f"document {document!r} is not in the corpus; the judgement stays, as in trec_eval"
                report(warning("qrels for unknown documents", file, message, line, document))


# Part of every key: raise it when reading changes what comes out.
_FORMAT = "1"


def converted_corpus(source: Source) -> Documents:
    """The documents of a source, converted to Arrow the first time and mapped from then on, put in
    place in one step. An InputError for any error in the corpus, and if the cache folder cannot be
    written; DiskFull: no room there.
    """
    folder = cache_folder("corpora")
    key = source.key()
    if key is not None:
        with suppress(OSError, ValueError):
            return open_corpus(_place(folder, key))
    with filling_cache(folder), unfinished(folder) as draft:
        temporary, report = draft / "corpus.arrow", StrictReport(source.name)
        content_hash, ids = write_arrow(temporary, source.documents(report), report.counts)
        duplicates = ids.find(
            lambda: ((line, id, id) for line, id, _, _ in source.documents(ignore))
        )
        check_duplicates(duplicates, source.documents_file, report)
        if source.key() != key:
            raise InputError(f"{source.documents_file}: changed while it was being read; run again")
        place = _place(folder, key or ("content", content_hash))
        temporary.replace(place)
    opened = open_corpus(place)
    if isinstance(source, TextFiles):
        log.info(
            "%s: %d passages; what was read is kept in %s, which may be emptied at any time (BEIR_COCODR_CACHE names "
            "another place)", source.name, len(opened), folder.parent,
        )  # fmt: skip
    return opened


def _place(folder: Path, key: tuple[str, ...]) -> Path:
    return folder / f"{text_sha256(_FORMAT, *key)[:32]}.arrow"


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collection:
    """A loaded collection. ``(c.documents, c.queries, c.qrels)`` is the triple that BEIR works on,
    what its ``GenericDataLoader(folder).load(split)`` returns.

    Attributes:
        name: as the user gave it.
        documents: the corpus, memory-mapped.
        queries: query id -> text: the judged queries of the split in the order of the queries file,
            all queries if there are no judgements, {} for a lone corpus.
        qrels: query id -> {document id: grade}, for those queries; {} when absent.
        split: the split of the judgements, None where there are none.
        counts: what was accepted and counted, by kind (the kinds of `Defect`); only what occurred.
    """

    name: str
    documents: Documents
    queries: dict[str, str] = field(repr=False)
    qrels: dict[str, dict[str, int]] = field(repr=False)
    split: str | None
    counts: dict[str, int] = field(default_factory=dict)


def load_collection(
    dataset: str | Path, split: str = "test", *, labels: Labels = "required"
) -> Collection:
    """Load a collection; the first time its corpus is converted to Arrow, from then on it is
    mapped. An InputError for a collection that cannot be found, broken JSON, bytes that are not
    UTF-8, missing or duplicate ids, white space in ids, grades that are not integers, an empty
    corpus, a missing split.

    Accepted and counted, among others: null or absent titles, title-only and empty documents,
    duplicate texts, CRLF, judgements of unknown queries (left out) and of unknown documents (kept,
    as in trec_eval), query ids equal to document ids.

    Args:
        dataset: a BEIR folder, a lone corpus file, ``irds:ID``, ``apidocs/DOMAIN`` or a BEIR short
            name; the first that fits, in this order.
        split: the split of the judgements.
        labels: with "required" it is an error if queries or the split are missing; "optional" takes
            what is there; "none" does not look at queries and judgements.

    Example:
        >>> from beir_cocodr import load_collection
        >>> collection = load_collection("apidocs/numpy", split="train")  # or a BEIR folder, "scifact", ...
        >>> query, grades = next(iter(collection.qrels.items()))
        >>> query in collection.queries
        True
        >>> [(document, grade)] = grades.items()
        >>> sorted(collection.documents[document]), grade
        (['text', 'title'], 1)
    """
    source = resolve_source(dataset, split)
    report = StrictReport(source.name)
    source.missing(report, labels)
    documents = converted_corpus(source)
    report.counts.update(documents.counts)
    collection = Collection(source.name, documents, {}, {}, None, report.counts)
    if labels != "none":
        queries, qrels = join_labels(source, labels, lambda ids: documents.rows(ids) >= 0, report)
        if equal_ids := int(np.count_nonzero(documents.rows(queries) >= 0)):
            report.counts["query ids equal to document ids"] += equal_ids
        collection = replace(collection, queries=queries, qrels=qrels, split=source.split)
    for kind, count in report.counts.items():
        log.info("%s: %s: %d", source.name, kind, count)
    return replace(collection, counts=dict(report.counts))


def has_labels(dataset: str | Path, split: str = "test") -> bool:
    """Whether a collection has judgements, of this split or of any other."""
    source = resolve_source(dataset, split)
    return source.judgements_file is not None or bool(source.splits())


def check_labelled(dataset: str | Path, split: str) -> None:
    """Check that a collection has any labels; else an InputError names the command that does
    without.
    """
    source = resolve_source(dataset, split)
    source.missing(StrictReport(source.name), "none")
    if not has_labels(dataset, split):
        raise InputError(
            f"{source.name} has no labels to evaluate by; beir-cocodr compare --dataset {source.name} MODEL MODEL "
            "judges models without, and search shows what they find"
        )


def load_queries(dataset: str | Path, split: str = "test") -> Collection:
    """The queries that :func:`load_collection` gives, without an index of document ids; an
    InputError where the collection cannot be found or read, has no queries, or judgements of other
    splits only.
    """
    source = resolve_source(dataset, split)
    report = StrictReport(source.name)
    source.missing(report, "optional")
    if source.judgements_file is None and isinstance(source, FileSource) and source.splits():
        source.missing(report, "required")  # a split that is misspelt must not become all queries
    documents = converted_corpus(source)
    queries, qrels = join_labels(
        source, "optional", lambda ids: np.ones(len(ids), dtype=bool), report
    )
    if not queries:
        raise InputError(f"{source.name} has no queries of split {split!r} to search for")
    if source.judgements_file is None:
        log.info("%s has no judgements: all %d queries are taken", source.name, len(queries))
    return Collection(source.name, documents, queries, qrels, source.split)
