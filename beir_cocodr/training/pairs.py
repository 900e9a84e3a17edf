"""Labelled queries as training examples: here, and in the forms of GPL, Tevatron and
sentence-transformers, written and read back.
"""

import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from beir_cocodr.data.beir_folder import link_corpus, write_beir_folder
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.defects import StrictReport, ignore
from beir_cocodr.data.readers import json_records
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, check_count, explained
from beir_cocodr.evaluation.runs import ranked_run
from beir_cocodr.io import cache_folder, draft_folder, files_below, write_jsonl, write_qrels
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.records import Json, Record
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.training.negatives import check_negatives, relevant_rows
from beir_cocodr.training.options import FinetuneOptions
from beir_cocodr.training.trainer import BatchKeys, EpochClock, drawn_dataset

log = logging.getLogger(__name__)


@dataclass
class TrainingPairs:
    """(query, positive, negatives) with the negatives drawn anew each epoch by (seed, epoch, pair).
    ``pool``: query id to the corpus rows that its negatives are drawn from; None where there are
    none. Queries without any are left out, counted.
    """

    collection: Collection
    text_format: TextFormat
    options: FinetuneOptions
    pool: dict[str, np.ndarray] | None = None
    clock: EpochClock = field(default_factory=EpochClock)

    def __post_init__(self) -> None:
        judged = [
            (query, *pair)
            for query, grades in self.collection.qrels.items()
            for pair in grades.items()
        ]
        labelled = [(query, document) for query, document, grade in judged if grade > 0]
        rows = self.collection.documents.rows([document for _, document in labelled])
        self.unknown = int((rows < 0).sum())
        has_pool = np.array(
            [self.pool is None or query in self.pool for query, _ in labelled], bool
        )
        self.without_negative = int(((rows >= 0) & ~has_pool).sum())
        kept = np.flatnonzero((rows >= 0) & has_pool)
        self.queries = [labelled[i][0] for i in kept]
        self.positives = rows[kept]
        self.relevant: dict[str, list[int]] = {}
        for query, row in zip(self.queries, self.positives.tolist(), strict=True):
            self.relevant.setdefault(query, []).append(row)
        if not len(self.positives):
            raise InputError(
                f"{self.collection.name}: no query of split {self.collection.split} has relevant documents"
            )
        log.info(
            "%d pairs; left out: %d with an unknown document, %d with a query without negatives",
            *(len(self.positives), self.unknown, self.without_negative),
        )

    @property
    def columns(self) -> list[str]:
        count = self.options.negatives if self.pool is not None else 0
        return ["query", "positive", *(f"negative_{i + 1}" for i in range(count))]

    def dataset(self, read: Callable[[str], str] = str) -> Dataset:
        """Rows of texts, each as ``read`` makes it."""
        return drawn_dataset("pair", np.arange(len(self.positives)), partial(self._draw, read))

    def rows(self, pair: int) -> list[int]:
        """The corpus rows of a pair in this epoch: the positive, then its negatives."""
        rows = [int(self.positives[pair])]
        if self.pool is not None:
            rng = np.random.default_rng((self.options.seed, self.clock.epoch, pair))
            pool = self.pool[self.queries[pair]]
            few = len(pool) < self.options.negatives
            rows += rng.choice(pool, self.options.negatives, replace=few).tolist()
        return rows

    def batch_keys(self) -> BatchKeys:
        """What pairs of a batch must not share: query, documents, and all that are relevant to the
        query, which would otherwise be trained as negatives.
        """
        return BatchKeys(len(self.positives), self._keys)

    def _keys(self, pair: int) -> list[str]:
        query = self.queries[pair]
        rows = np.union1d(self.rows(pair), self.relevant[query]).astype(np.int64)
        texts = [
            self.text_format.document(document) for document in self.collection.documents.take(rows)
        ]
        return [self.collection.queries[query], *texts]

    def names(self, pairs: Sequence[int]) -> list[str]:
        """Query and document id of pairs, for messages."""
        documents = self.collection.documents.ids(self.positives[list(pairs)].tolist())
        queries = [self.queries[pair] for pair in pairs]
        return [
            f"({query!r}, {document!r})" for query, document in zip(queries, documents, strict=True)
        ]

    def truncated(self, model: Any, most: int = 1000) -> dict[str, float]:
        """The share of queries and of positives that are cut, over at most ``most`` evenly spaced
        pairs.
        """
        pairs = np.arange(0, len(self.positives), -(-len(self.positives) // most))
        queries = [self.collection.queries[self.queries[pair]] for pair in pairs.tolist()]
        documents = self.collection.documents.take(self.positives[pairs])
        texts = [self.text_format.document(document) for document in documents]
        return {
            "query": model.truncated_share(queries, "query"),
            "document": model.truncated_share(texts, "document"),
        }

    def _draw(
        self, read: Callable[[str], str], batch: dict[str, list[int]]
    ) -> dict[str, list[Any]]:
        texts: dict[str, list[Any]] = {column: [] for column in self.columns}
        for pair in batch["pair"]:
            documents = [
                self.text_format.document(d)
                for d in self.collection.documents.take(self.rows(pair))
            ]
            query = self.collection.queries[self.queries[pair]]
            for column, text in zip(self.columns, [query, *documents], strict=True):
                texts[column].append(read(text))
        return texts | {"label": batch["pair"]}  # losses and messages know a pair by its number


#: Retriever to query id to the corpus rows of its negatives, best first.
Found = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class ExchangeRecord(Record):
    """What :func:`export` wrote: queries with a relevant document, and how many of them have too
    few negatives.
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
    form: str = "gpl",
    models: Sequence[str] = ("bm25",),
    split: str = "train",
    negatives: int = 30,
    search: SearchOptions = SearchOptions(),
) -> ExchangeRecord:
    """Write the labelled queries of a collection, with hard negatives, as another tool reads them.

    Args:
        dataset: such as a folder of generated queries; or a file in Tevatron's form, which has its
            negatives already.
        output: the folder to be made.
        form: of :data:`FORMS`.
        models: each finds negatives; known positives are left out.
        split: of the judgements.
        negatives: of each query and model; in columns and for Tevatron in all, from the models in
            turn.
        search: how models search.
    """
    if form not in FORMS:
        raise InputError(f"unknown form {form!r}; there are {', '.join(FORMS)}")
    check_count("negatives", negatives)
    check_device(search.encoder.device, models)
    with draft_folder(output) as folder, ExitStack() as stack:
        if is_tevatron(dataset):
            collection, found = stack.enter_context(reading_tevatron(Path(dataset)))
        else:
            collection = load_collection(dataset, split)
            check_negatives("negatives", negatives, collection)
            found = retrieved_negatives(collection, models, negatives, search)
        few = FORMS[form](collection, found, folder, negatives)
        files = sorted(path.relative_to(folder).as_posix() for path in files_below(folder))
        queries = len(relevant_rows(collection))
        record = ExchangeRecord(
            dataset, str(collection.split), form, list(found), queries, few, files
        )
        record.write(folder / "export.json")
    return record


def retrieved_negatives(
    collection: Collection, models: Sequence[str], depth: int, search: SearchOptions
) -> Found:
    """The best ``depth`` documents of each query by each model, without those that are relevant to
    it.
    """
    positives = relevant_rows(collection)
    most, queries = (
        max(map(len, positives.values())),
        {query: collection.queries[query] for query in positives},
    )
    with tempfile.TemporaryDirectory() as folder:
        retrievers = Resources(collection.documents, Path(folder), search)
        rankings = {
            model: retrievers.ranker(model).search(queries, depth + most) for model in models
        }
    return {
        model: {
            query: rows[(rows >= 0) & ~np.isin(rows, positives[query])][:depth]
            for query, rows in zip(ranking.queries, ranking.rows, strict=True)
        }
        for model, ranking in rankings.items()
    }


def in_turn(lists: Sequence[np.ndarray], most: int | None = None) -> list[int]:
    """The numbers of several lists, the first of each, then the second, without repeats."""
    rows = chain(*zip_longest(*(found.tolist() for found in lists)))
    return list(dict.fromkeys(row for row in rows if row is not None))[:most]


def write_gpl(collection: Collection, found: Found, folder: Path, negatives: int) -> int:
    """What GPL's trainer takes: the corpus, ``qgen-queries.jsonl``, ``qgen-qrels/train.tsv``,
    ``hard-negatives.jsonl``; gives the queries without a negative.
    """
    link_corpus(collection, folder)
    ids, positives = collection.documents.ids, relevant_rows(collection)
    queries = (
        {"_id": query, "text": collection.queries[query], "metadata": {}} for query in positives
    )
    write_jsonl(folder / "qgen-queries.jsonl", queries)
    judged = (
        (query, id, collection.qrels[query][id])
        for query, rows in positives.items()
        for id in ids(rows)
    )
    write_qrels(folder / "qgen-qrels" / "train.tsv", judged)
    records = (
        {
            "qid": query,
            "pos": ids(rows),
            "neg": {model: ids(by[query]) for model, by in found.items()},
        }
        for query, rows in positives.items()
    )
    write_jsonl(folder / "hard-negatives.jsonl", records)
    return sum(not any(len(by[query]) for by in found.values()) for query in positives)


def write_tevatron(collection: Collection, found: Found, folder: Path, negatives: int) -> int:
    """``train.jsonl`` with the texts of both sides, and ``corpus.jsonl`` and ``queries.jsonl`` for
    Tevatron's encoder; gives the queries without a negative.
    """

    def passages(rows: Sequence[int]) -> list[Json]:
        return [{"docid": d.pop("_id"), **d} for d in collection.documents.take(rows)]

    chosen = {
        q: in_turn([by[q] for by in found.values()], negatives) for q in relevant_rows(collection)
    }
    records = (
        {
            **{"query_id": query, "query": collection.queries[query]},
            **{
                "positive_passages": passages(rows.tolist()),
                "negative_passages": passages(chosen[query]),
            },
        }
        for query, rows in relevant_rows(collection).items()
    )
    write_jsonl(folder / "train.jsonl", records)
    write_jsonl(
        folder / "queries.jsonl",
        ({"query_id": id, "query": text} for id, text in collection.queries.items()),
    )
    write_jsonl(
        folder / "corpus.jsonl",
        ({"docid": id, **texts} for id, texts in collection.documents.items()),
    )
    return sum(not rows for rows in chosen.values())


def write_columns(collection: Collection, found: Found, folder: Path, negatives: int) -> int:
    """``train.parquet`` with the columns query, positive and negative_1 to negative_n, which the
    losses of sentence-transformers take; gives the queries with fewer negatives, which are left
    out.
    """
    names, few, rows = (
        ["query", "positive", *(f"negative_{n + 1}" for n in range(negatives))],
        0,
        [],
    )
    for query, positives in relevant_rows(collection).items():
        chosen = in_turn([by[query] for by in found.values()], negatives)
        few += len(chosen) < negatives
        if len(chosen) == negatives:
            documents = collection.documents.take([*positives.tolist(), *chosen])
            texts = [TextFormat().document(document) for document in documents]
            hard = texts[len(positives) :]
            rows += [
                [collection.queries[query], positive, *hard] for positive in texts[: len(positives)]
            ]
    if not rows:
        raise InputError(f"no query of {collection.name} has {negatives} negatives: ask for fewer")
    Dataset.from_dict(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))).to_parquet(
        str(folder / "train.parquet")
    )
    if few:
        log.warning("%d queries have fewer than %d negatives and are left out", few, negatives)
    return few


#: Form to what writes it.
FORMS: dict[str, Callable[[Collection, Found, Path, int], int]] = {
    "gpl": write_gpl,
    "tevatron": write_tevatron,
    "sentence-transformers": write_columns,
}


def is_tevatron(dataset: str) -> bool:
    """Whether this is a file in Tevatron's form; its first line shows it."""
    path = Path(dataset)
    if not path.name.endswith((".jsonl", ".jsonl.gz")) or not path.is_file():
        return False
    _, first = next(json_records(path, ignore), (0, None))
    return first is not None and "positive_passages" in first


@contextmanager
def reading_tevatron(path: Path) -> Iterator[tuple[Collection, Found]]:
    """The passages, queries and positives of a file in Tevatron's form, as a collection, and its
    negatives; InputErrors name the line of broken JSON, a missing field, a query that is there
    twice, or two texts of one passage.
    """
    queries: dict[str, str] = {}
    sides: dict[str, list[list[str]]] = {}
    # In the cache, so that what is made of it is linked to nothing that goes away.
    with tempfile.TemporaryDirectory(dir=cache_folder("exchange")) as name:
        corpus, folder = Path(name) / "corpus.jsonl", Path(name) / "beir"
        write_jsonl(corpus, _passages(path, queries, sides))
        grades = {query: dict.fromkeys(positives, 1) for query, (positives, _) in sides.items()}
        write_beir_folder(folder, corpus, queries, {"train": grades}, Path(name))
        collection = load_collection(folder, "train")
        yield (
            collection,
            {
                "tevatron": {
                    query: collection.documents.rows(ids) for query, (_, ids) in sides.items()
                }
            },
        )


def _passages(
    path: Path, queries: dict[str, str], sides: dict[str, list[list[str]]]
) -> Iterator[dict[str, str]]:
    """Each passage once, as a document; fills the texts of the queries, and ids of their positives
    and negatives.
    """
    seen: dict[str, int] = {}
    for line, record in _records(path):
        with _naming(
            path,
            line,
            "Tevatron's form, which has query_id, query, positive_passages, negative_passages",
        ):
            query, both = (
                record["query_id"],
                [record["positive_passages"], record["negative_passages"]],
            )
            if query in queries:
                raise InputError(
                    f"{path}:{line}: query {query!r} a second time; put its passages into one line"
                )
            queries[query], sides[query] = (
                record["query"],
                [[passage["docid"] for passage in side] for side in both],
            )
            texts = [(p["docid"], p.get("title") or "", p["text"]) for p in chain(*both)]
        for id, title, text in texts:
            if id not in seen:
                seen[id] = hash((title, text))
                yield {"_id": id, "title": title, "text": text}
            elif seen[id] != hash((title, text)):
                raise InputError(
                    f"{path}:{line}: passage {id!r} has another text than before; give it another id"
                )


def read_hard_negatives(path: str | Path, collection: Collection) -> dict[str, np.ndarray]:
    """Query id to corpus rows of its negatives, best first, without known positives, of a file in
    one of three forms:

    - ``.jsonl`` with qid, pos and neg, as GPL and sentence-transformers' MS MARCO have it: of its
      retrievers in turn; ids are texts, numbers or objects with a pid;
    - ``.jsonl`` or ``.parquet`` with columns of texts: query or anchor, and negative, or negative_1
      and so on, as ``mine_hard_negatives`` and ``export`` write them; a text is a document's as a
      model reads it, or without title;
    - else a TREC run.

    Queries that the split does not judge, and unknown documents, are left out and counted; an
    InputError where no query has a negative, or a line is broken.
    """
    path, positives, counts = Path(path), relevant_rows(collection), Counter[str]()
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        _, first = next(_records(path), (0, {}))
        found = (
            _of_ids(path, collection)
            if "qid" in first or "neg" in first
            else _of_texts(path, collection)
        )
    elif path.suffix == ".parquet":
        found = _of_texts(path, collection)
    else:
        found = (
            (query, collection.documents.rows(id for id, _ in hits))
            for query, hits in ranked_run(path).items()
        )
    rows_of: dict[str, list[np.ndarray]] = {}
    for query, rows in found:
        counts += Counter(
            {
                "of other queries": query not in positives,
                "with unknown documents": int((rows < 0).any()),
            }
        )
        rows = rows[(rows >= 0) & ~np.isin(rows, positives.get(query, []))]
        if query in positives and len(rows):
            rows_of.setdefault(query, []).append(rows)
    if not rows_of:
        raise InputError(
            f"{path} has no negative of a query of {collection.name}, split {collection.split}"
        )
    for kind, count in counts.items():
        log.warning("%s: %d lines %s", path, count, kind)
    return {query: np.array(in_turn(lists), np.int64) for query, lists in rows_of.items()}


def _of_ids(path: Path, collection: Collection) -> Iterator[tuple[str, np.ndarray]]:
    for line, record in _records(path):
        with _naming(path, line, "GPL's form, which has qid, pos and neg"):
            ids = [[_id(found) for found in of_one] for of_one in record["neg"].values()]
            query = _id(record["qid"])
        yield (
            query,
            np.array(in_turn([collection.documents.rows(of_one) for of_one in ids]), np.int64),
        )


def _id(found: Any) -> str:
    found = found["pid"] if isinstance(found, dict) else found
    if not isinstance(found, (str, int)):
        raise TypeError(f"{found!r} is no id")
    return str(found)


def _of_texts(path: Path, collection: Collection) -> Iterator[tuple[str, np.ndarray]]:
    """Of columns of texts; a first pass learns which texts are looked for, so that the corpus is
    streamed once.
    """
    form, wanted = (
        "columns of texts, query or anchor, and negative or negative_1 and so on",
        dict[str, int](),
    )
    for _, texts in _text_rows(path, form):
        wanted.update(dict.fromkeys(texts, -1))
    for row, document in enumerate(collection.documents.values()):
        for text in (TextFormat().document(document), document["text"]):
            if wanted.get(text) == -1:
                wanted[text] = row
    ids: dict[str, list[str]] = {}
    for id, text in collection.queries.items():
        ids.setdefault(text, []).append(id)
    for query, texts in _text_rows(path, form):
        for id in ids.get(query, [""]):
            yield id, np.array([wanted[text] for text in texts], np.int64)


def _text_rows(path: Path, form: str) -> Iterator[tuple[str, list[str]]]:
    for line, record in _parquet_records(path) if path.suffix == ".parquet" else _records(path):
        with _naming(path, line, form):
            query = record["query"] if "query" in record else record["anchor"]
            found = [value for name, value in record.items() if name.startswith("negative")]
            texts = [
                text for value in found for text in (value if isinstance(value, list) else [value])
            ]
            if not found or not all(isinstance(text, str) for text in (query, *texts)):
                raise TypeError(f"its columns are {', '.join(record)}")
        yield query, texts


def _parquet_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered rows."""
    with explained(f"{path} cannot be read as parquet", "write it again", OSError, pa.ArrowInvalid):
        batches = pq.ParquetFile(path).iter_batches()
        yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1)


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered lines of JSON, of which a broken one is an InputError."""
    return ((line, record or {}) for line, record in json_records(path, StrictReport(str(path))))


@contextmanager
def _naming(path: Path, line: int, form: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}:{line}: not in {form} ({type(error).__name__}: {error})"
        ) from error
