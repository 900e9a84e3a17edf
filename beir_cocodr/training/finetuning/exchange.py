"""Labelled queries in the forms of GPL, Tevatron and sentence-transformers, written and read."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from beir_cocodr.arrays import Ints
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.defects import ignore
from beir_cocodr.data.files.beir_folder import link_corpus, write_beir_folder
from beir_cocodr.data.files.readers import json_records
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, check_count
from beir_cocodr.io import cache_folder, draft_folder, files_below, write_jsonl, write_qrels
from beir_cocodr.models.spec import Options, SearchOptions, check_device, option
from beir_cocodr.records import Json, Record
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.temporary import TemporaryFolder
from beir_cocodr.training.hard_negatives.bm25_negatives import (
    check_negatives,
    relevant_rows,
)
from beir_cocodr.training.hard_negatives.negative_files import merged, naming_line, numbered_records

log = logging.getLogger(__name__)

#: Retriever to query id to the corpus rows of its negatives, best first.
Negatives = Mapping[str, Mapping[str, Ints]]

_TEVATRON_FORM = "Tevatron's form, which has query_id, query, positive_passages, negative_passages"


@dataclass(frozen=True)
class ExportOptions(Options):
    """Options of an export.

    Args:
        form: a name of :data:`FORMS`.
        split: the split of the judgements.
        negatives: most negatives of a query and model. In columns, and for Tevatron, it is their
            number for all models together, which take turns.
    """

    form: str = option("gpl")
    split: str = option("train")
    negatives: int = option(30)


@dataclass(frozen=True)
class ExchangeRecord(Record):
    """The record of what :func:`export` wrote.

    Attributes:
        dataset: the collection, as it was named.
        split: the split of the judgements.
        form: the form of the files.
        retrievers: what the negatives were found by.
        queries: queries with a relevant document.
        without_negatives: those of them with too few negatives.
        files: names of the files.
    """

    dataset: str
    split: str
    form: str
    retrievers: list[str]
    queries: int
    without_negatives: int
    files: list[str]


def export(
    dataset: str,
    output: Path,
    models: Sequence[str] = ("bm25",),
    options: ExportOptions = ExportOptions(),
    search: SearchOptions = SearchOptions(),
) -> ExchangeRecord:
    """Write labelled queries with hard negatives as another tool reads them.

    Args:
        dataset: a labelled collection, such as a folder of generated queries, or a file in
            Tevatron's form, which has its negatives already.
        output: the folder to be made.
        models: each finds negatives; relevant documents are left out.
        options: form, split and number of negatives.
        search: how models search.

    Raises:
        InputError: The form is unknown, or the dataset cannot be read or has no labels.
    """
    if options.form not in FORMS:
        raise InputError(f"unknown form {options.form!r}; choose one of {', '.join(FORMS)}")
    check_count("negatives", options.negatives)
    check_device(search.encoder.device, models)
    with draft_folder(output) as folder, ExitStack() as stack:
        if is_tevatron(dataset):
            collection, negatives = stack.enter_context(reading_tevatron(Path(dataset)))
        else:
            collection = load_collection(dataset, options.split)
            check_negatives("negatives", options.negatives, collection)
            negatives = retrieved_negatives(collection, models, options.negatives, search)
        write = FORMS[options.form]
        few = write(collection, negatives, folder, options.negatives)
        files = sorted(path.relative_to(folder).as_posix() for path in files_below(folder))
        record = ExchangeRecord(
            dataset=str(dataset),
            split=str(collection.split),
            form=options.form,
            retrievers=list(negatives),
            queries=len(relevant_rows(collection)),
            without_negatives=few,
            files=files,
        )
        record.write(folder / "export.json")
    return record


def retrieved_negatives(
    collection: Collection, models: Sequence[str], depth: int, search: SearchOptions
) -> Negatives:
    """Return the best ``depth`` documents of each query by each model, without relevant ones."""
    positives = relevant_rows(collection)
    deepest = depth + max(len(rows) for rows in positives.values())
    queries = {query: collection.queries[query] for query in positives}
    negatives: dict[str, dict[str, Ints]] = {}
    with TemporaryFolder() as folder:
        resources = Resources(collection.documents, folder, search)
        for model in models:
            ranking = resources.ranker(model).search(queries, deepest)
            others: dict[str, Ints] = {}
            for query, rows in zip(ranking.queries, ranking.rows, strict=True):
                is_result = rows >= 0
                is_relevant = np.isin(rows, positives[query])
                candidates = rows[is_result & ~is_relevant]
                others[query] = candidates[:depth]
            negatives[model] = others
    return negatives


def write_gpl(
    collection: Collection,
    negatives: Negatives,
    folder: Path,
    count: int,
) -> int:
    """Write what GPL's trainer takes, and return the number of queries without a negative.

    The files are the corpus, ``qgen-queries.jsonl``, ``qgen-qrels/train.tsv`` and
    ``hard-negatives.jsonl``.
    """
    link_corpus(collection, folder)
    ids = collection.documents.ids
    positives = relevant_rows(collection)
    queries = (
        {
            "_id": query,
            "text": collection.queries[query],
            "metadata": {},
        }
        for query in positives
    )
    write_jsonl(folder / "qgen-queries.jsonl", queries)
    judgements = (
        (query, id, collection.qrels[query][id])
        for query, rows in positives.items()
        for id in ids(rows)
    )
    write_qrels(folder / "qgen-qrels" / "train.tsv", judgements)
    records = (
        {
            "qid": query,
            "pos": ids(rows),
            "neg": {model: ids(by_query[query]) for model, by_query in negatives.items()},
        }
        for query, rows in positives.items()
    )
    write_jsonl(folder / "hard-negatives.jsonl", records)
    without_negative = 0
    for query in positives:
        if not any(len(by_query[query]) for by_query in negatives.values()):
            without_negative += 1
    return without_negative


def _merged_negatives(
    collection: Collection, negatives: Negatives, count: int
) -> dict[str, list[int]]:
    """Return query id to the rows of ``count`` negatives, for which the retrievers take turns."""
    merged_rows: dict[str, list[int]] = {}
    for query in relevant_rows(collection):
        lists = [by_query[query] for by_query in negatives.values()]
        merged_rows[query] = merged(lists, count)
    return merged_rows


def write_tevatron(
    collection: Collection,
    negatives: Negatives,
    folder: Path,
    count: int,
) -> int:
    """Write what Tevatron reads, and return the number of queries without a negative.

    The files are ``train.jsonl`` with the texts of both sides, and ``corpus.jsonl`` and
    ``queries.jsonl`` for Tevatron's encoder.
    """

    def passages(rows: Sequence[int]) -> list[Json]:
        documents = collection.documents.take(rows)
        return [{"docid": document.pop("_id"), **document} for document in documents]

    hard = _merged_negatives(collection, negatives, count)
    records = (
        {
            "query_id": query,
            "query": collection.queries[query],
            "positive_passages": passages(rows.tolist()),
            "negative_passages": passages(hard[query]),
        }
        for query, rows in relevant_rows(collection).items()
    )
    write_jsonl(folder / "train.jsonl", records)
    queries = ({"query_id": id, "query": text} for id, text in collection.queries.items())
    write_jsonl(folder / "queries.jsonl", queries)
    documents = ({"docid": id, **texts} for id, texts in collection.documents.items())
    write_jsonl(folder / "corpus.jsonl", documents)
    return sum(not rows for rows in hard.values())


def write_columns(
    collection: Collection,
    negatives: Negatives,
    folder: Path,
    count: int,
) -> int:
    """Write ``train.parquet``, whose columns the losses of sentence-transformers take.

    The columns are query, positive and negative_1 to negative_n.

    Returns:
        The number of queries with fewer negatives, which are left out.
    """
    names = ["query", "positive"]
    names += [f"negative_{number}" for number in range(1, count + 1)]
    text_of = TextFormat().document
    hard_of = _merged_negatives(collection, negatives, count)
    few = 0
    table: list[list[str]] = []
    for query, positives in relevant_rows(collection).items():
        hard_rows = hard_of[query]
        if len(hard_rows) < count:
            few += 1
            continue
        documents = collection.documents.take([*positives.tolist(), *hard_rows])
        texts = [text_of(document) for document in documents]
        hard_texts = texts[len(positives) :]
        for positive in texts[: len(positives)]:
            table.append([collection.queries[query], positive, *hard_texts])
    if not table:
        raise InputError(f"no query of {collection.name} has {count} negatives: ask for fewer")
    columns = [list(column) for column in zip(*table, strict=True)]
    column_of_name = dict(zip(names, columns, strict=True))
    dataset = Dataset.from_dict(column_of_name)
    dataset.to_parquet(str(folder / "train.parquet"))
    if few:
        log.warning("%d queries have fewer than %d negatives and are left out", few, count)
    return few


#: Form to what writes it: from collection, negatives, folder and number of negatives to the number
#: of queries with too few.
FORMS: dict[str, Callable[[Collection, Negatives, Path, int], int]] = {
    "gpl": write_gpl,
    "tevatron": write_tevatron,
    "sentence-transformers": write_columns,
}


def is_tevatron(dataset: str) -> bool:
    """Return true for a file in Tevatron's form, by its first line."""
    path = Path(dataset)
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        return False
    if not path.is_file():
        return False
    _, first = next(json_records(path, ignore), (0, None))
    return first is not None and "positive_passages" in first


@contextmanager
def reading_tevatron(path: Path) -> Iterator[tuple[Collection, Negatives]]:
    """Give a file in Tevatron's form as a collection, and its negatives.

    Raises:
        InputError: JSON is broken, a field is missing, a query comes twice, or a passage has two
            texts; the message names the line.
    """
    training = _TevatronFile(path)
    # In the cache, so that what is made of it links to nothing that is deleted.
    with TemporaryFolder(cache_folder("exchange")) as root:
        corpus = root / "corpus.jsonl"
        folder = root / "beir"
        write_jsonl(corpus, training.passages())
        grades: dict[str, dict[str, int]] = {}
        for query, ids in training.positives.items():
            grades[query] = dict.fromkeys(ids, 1)
        write_beir_folder(
            folder=folder,
            corpus=corpus,
            queries=training.queries,
            splits={"train": grades},
            root=root,
        )
        collection = load_collection(folder, "train")
        rows: dict[str, Ints] = {}
        for query, ids in training.negatives.items():
            rows[query] = collection.documents.rows(ids)
        yield collection, {"tevatron": rows}


class _TevatronFile:
    """A file in Tevatron's form; what its lines hold is known once its passages were read.

    Attributes:
        queries: query id to text.
        positives: query id to ids of its positive passages.
        negatives: query id to ids of its negative passages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queries: dict[str, str] = {}
        self.positives: dict[str, list[str]] = {}
        self.negatives: dict[str, list[str]] = {}

    def passages(self) -> Iterator[dict[str, str]]:
        """Yield each passage once, as a document."""
        seen: dict[str, int] = {}
        for line, record in numbered_records(self.path):
            with naming_line(self.path, line, _TEVATRON_FORM):
                passages = self._read(line, record)
            for id, title, text in passages:
                digest = hash((title, text))
                if id not in seen:
                    seen[id] = digest
                    yield {"_id": id, "title": title, "text": text}
                elif seen[id] != digest:
                    raise InputError(
                        f"{self.path}:{line}: passage {id!r} has a different text than before; "
                        "give it another id"
                    )

    def _read(self, line: int, record: dict[str, Any]) -> list[tuple[str, str, str]]:
        """Take in a line, and return id, title and text of its passages."""
        query = record["query_id"]
        if query in self.queries:
            raise InputError(
                f"{self.path}:{line}: query {query!r} appears a second time; put its "
                "passages into one line"
            )
        positive = record["positive_passages"]
        negative = record["negative_passages"]
        self.queries[query] = record["query"]
        self.positives[query] = [passage["docid"] for passage in positive]
        self.negatives[query] = [passage["docid"] for passage in negative]
        passages = []
        for passage in chain(positive, negative):
            title = passage.get("title") or ""
            passages.append((passage["docid"], title, passage["text"]))
        return passages
