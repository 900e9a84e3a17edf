"""What training recorded: training.json beside a model, its lineage, and which texts of a
collection it was given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from beir_cocodr.arrays import Bools, Ints
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.io import file_sha256, json_sha256, parse_json
from beir_cocodr.models.spec import ModelSpec
from beir_cocodr.records import (
    CollectionProvenance,
    ContaminationStatement,
    Json,
    Record,
    SharedCollection,
)

RECORD_FILE = "training.json"

#: Values of :attr:`TrainingRecord.rehearsed`: what a training practised that label-free estimates
#: would otherwise take for evidence.
SPANS = "spans"
GENERATED_QUERIES = "generated queries"


def collection_provenance(collection: Collection, queries: bool) -> CollectionProvenance:
    """What a training stage is given of a collection: documents, and if ``queries`` its labelled
    queries.
    """
    documents = collection.documents
    found = CollectionProvenance(
        collection.name, len(documents), documents.content_hash, collection.counts
    )
    if not queries:
        return found
    return replace(
        found,
        split=collection.split,
        queries=len(collection.queries),
        queries_sha256=json_sha256(collection.queries),
        qrels_sha256=json_sha256(collection.qrels),
    )


@dataclass(frozen=True)
class TrainingPlan(Record):
    """What makes two trainings the same; a field that does not apply is None and left out of the
    JSON.

    Attributes:
        stage: what kind of training.
        base, base_sha256: the model that it starts from, by name and weights.
        encoder: overrides for loading it, without the device.
        options: settings of the stage.
        seen: the collections that it is given.
        episode: of fine-tuning, from 0.
        miner: of fine-tuning, the encoder that mines negatives where that is not ``base``.
        teacher: of distillation.
        teacher_sha256: content of a teacher that is a file or folder.
        base_parts: hashes of the base's tokenizer, architecture and text format.
        precision: of the training: float32, bfloat16 or float16.
        targets, measures: of fine-tuning in rounds, what is measured after each.
    """

    stage: str
    base: str | None = None
    base_sha256: str | None = None
    encoder: Json = field(default_factory=dict)
    options: Json = field(default_factory=dict)
    seen: tuple[CollectionProvenance, ...] = ()
    episode: int | None = None
    miner: str | None = None
    teacher: str | None = None
    teacher_sha256: str | None = None
    base_parts: dict[str, str] | None = None
    precision: str | None = None
    targets: tuple[CollectionProvenance, ...] | None = None
    measures: str | None = None

    def to_json(self) -> Json:
        content = {name: value for name, value in super().to_json().items() if value is not None}
        lists = (
            {"seen": self.seen}
            if self.targets is None
            else {"seen": self.seen, "targets": self.targets}
        )
        return content | {
            name: [given.to_json() for given in found] for name, found in lists.items()
        }

    def settings(self) -> Json:
        """Return what makes two trainings the same.

        Names and paths are left out, as they may change while their content stays: hashes are
        there for them. A teacher without a hash is known by its name.
        """
        named = ("base", "miner", "teacher")
        parts: Json = {
            part.name: getattr(self, part.name)
            for part in fields(TrainingPlan)
            if part.name not in named
        }
        parts["teacher"] = self.teacher if self.teacher_sha256 is None else None
        for name, given in (("seen", self.seen), ("targets", self.targets)):
            parts[name] = (
                None if given is None else [found.to_json() | {"dataset": None} for found in given]
            )
        return parts


#: Among the details of a training: (step, mean loss since the one before) of each line of its log.
LOGGED = "logged_loss"


@dataclass(frozen=True)
class TrainingRecord(TrainingPlan):
    """The content of training.json: a plan, and what came of it.

    Attributes:
        steps: optimiser steps, of all rounds.
        processes: W.
        resumed_from: the checkpoint that the run went on from; the next two cover what came after
            it only.
        training_loss, seconds: of the run.
        details: what the stage itself counts, such as pairs or lists; stands among the other keys
            in the JSON.
        versions: of the packages that a number may depend on.
        parent: the record of ``base``.
        modules: see :func:`modules_of`.
        rehearsed: what the training practised on the collections in ``seen``: :data:`SPANS` if it
            learned to find a document by a part of it, :data:`GENERATED_QUERIES` if by queries
            that were generated for it.
        citations: keys of ``models/papers.bib``, or BibTeX entries, of the methods that were used.
    """

    steps: int | None = None
    processes: int | None = None
    resumed_from: str | None = None
    training_loss: float | None = None
    seconds: float | None = None
    details: Json = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    parent: "TrainingRecord | None" = None
    modules: dict[str, str] | None = None
    rehearsed: tuple[str, ...] = ()
    citations: tuple[str, ...] = ()

    def to_json(self) -> Json:
        content: Json = {}
        for name, value in super().to_json().items():
            content |= self.details if name == "details" else {name: value}
        parent = None if self.parent is None else self.parent.to_json()
        facts = {"rehearsed": list(self.rehearsed), "citations": list(self.citations)}
        return content | facts | {"resumed_from": self.resumed_from, "parent": parent}

    @classmethod
    def from_json(cls, content: object, where: str | Path) -> Self:
        return super().from_json(_with_details(content), where)

    def lineage(self) -> "list[TrainingRecord]":
        """This record and those of all that the model was made from, oldest first."""
        return [*(self.parent.lineage() if self.parent else ()), self]


def _with_details(content: object) -> object:
    """Parsed JSON of a record, with what is no field of :class:`TrainingRecord` as its details."""
    if not isinstance(content, dict):
        return content
    known = {field.name for field in fields(TrainingRecord)} | {"schema"}
    found = {name: value for name, value in content.items() if name in known}
    parent = _with_details(content.get("parent"))
    if isinstance(parent, dict):
        parent.pop("schema", None)
    return found | {
        "details": {name: value for name, value in content.items() if name not in known},
        "parent": parent,
    }


def read_record(model: str | Path) -> TrainingRecord | None:
    """The record beside a saved model, None where there is none; ``InputError`` where it cannot be
    read.
    """
    path = Path(model) / RECORD_FILE
    return TrainingRecord.read(path) if path.is_file() else None


def write_record(folder: Path, record: TrainingRecord) -> TrainingRecord:
    """Write the record, with the model's modules, last: its presence says that the model beside it
    is complete.
    """
    record = replace(record, modules=modules_of(folder))
    record.write(folder / RECORD_FILE)
    return record


#: What another version of the host writes otherwise into a configuration that computes the same.
INCIDENTAL = ("architectures", "dtype", "torch_dtype", "transformers_version")


def modules_of(folder: Path) -> dict[str, str]:
    """A hash of the content of each file in a model folder that says which modules there are and
    what they compute: one that lost a module, or had it changed, may be another model that is
    whole.
    """
    files = [
        folder / "modules.json",
        folder / "config.json",
        *sorted(folder.glob("[0-9]*_*/config.json")),
    ]
    found = {}
    for file in filter(Path.is_file, files):
        content = parse_json(file.read_text(encoding="utf-8"))
        if file == folder / "config.json":
            content = {
                name: value for name, value in dict(content).items() if name not in INCIDENTAL
            }
        found[file.relative_to(folder).as_posix()] = json_sha256(content)
    return found


def training_lineage(encoder: str) -> list[TrainingRecord]:
    """The training.json of an encoder and of its ancestors, oldest first; [] without a record."""
    record = read_record(encoder)
    return [] if record is None else record.lineage()


#: Ids of documents that a statement lists; all are counted.
LISTED = 100


def contamination_statement(
    models: Sequence[str | ModelSpec], collection: Collection
) -> dict[str, ContaminationStatement]:
    """For each model, what its training was given, and which of the evaluated texts were among
    that.

    The training.json of a model and of all its ancestors are merged; an InputError where one cannot
    be read. A training collection with the hash of the evaluated one had all of it. One with
    another hash is looked at if it is still to be had locally with the hash on record: documents
    are compared by title and text, queries by text, as ids may be anything. Else what it shares is
    unknown, as the statement states. Being given is not being drawn: a training of few steps may
    have read only a part. Of ``hybrid:M``, ``rerank:C@M`` and their like, M's encoder counts.
    """
    evaluated = _Evaluated(collection)
    encoders = {str(model): ModelSpec.parse(model).encoder for model in models}
    statements = {
        encoder: evaluated.statement(encoder) for encoder in dict.fromkeys(encoders.values())
    }
    return {model: statements[encoder] for model, encoder in encoders.items()}


class _Evaluated:
    """The evaluated collection, its contents hashed once they are asked for."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.provenance = collection_provenance(collection, queries=True)

    @cached_property
    def contents(self) -> Ints:
        """(N,) hashes of title and text, 0 for an empty document."""
        return _contents(self.collection.documents)

    def statement(self, encoder: str) -> ContaminationStatement:
        """The merged records of an encoder and its ancestors against the collection."""
        records = [] if encoder == "bm25" else training_lineage(encoder)
        given: dict[tuple[str | None, ...], tuple[CollectionProvenance, list[str]]] = {}
        for record in records:
            for part in record.seen:
                given.setdefault(part.hashes, (part, []))[1].append(record.stage)
        documents = np.zeros(len(self.collection.documents), bool)
        queries: set[str] = set()
        shared = []
        for part, stages in given.values():
            rows, ids = self._shared(part)
            documents |= False if rows is None else rows
            queries |= ids or set()
            same_labels = (
                bool(self.collection.qrels) and part.qrels_sha256 == self.provenance.qrels_sha256
            )
            shared.append(
                SharedCollection(
                    **vars(part),
                    stages=stages,
                    documents_shared=None if rows is None else int(rows.sum()),
                    queries_shared=None if ids is None else len(ids),
                    same_labels=same_labels,
                )
            )
        statement = ContaminationStatement(
            stages=[record.stage for record in records],
            root=(records[0].base if records else None) or encoder,
            collections=shared,
            documents_seen=int(documents.sum()),
            queries_seen=len(queries),
            document_ids=self.collection.documents.ids(np.flatnonzero(documents)[:LISTED]),
            query_ids=[query for query in self.collection.queries if query in queries],
            labels_seen=any(part.same_labels for part in shared),
            complete=all(part.known for part in shared),
            sentences=[],
        )
        return replace(statement, sentences=self._sentences(statement))

    def _shared(self, part: CollectionProvenance) -> tuple[Bools | None, set[str] | None]:
        """(N,) which evaluated documents a training collection has, and the ids of the queries;
        None for unknown.
        """
        queries, rows, ids = self.collection.queries, None, None
        if part.corpus_sha256 == self.provenance.corpus_sha256:
            rows = np.ones(len(self.collection.documents), bool)
        if part.queries_sha256 is None or not queries:
            ids = set[str]()
        elif part.queries_sha256 == self.provenance.queries_sha256:
            ids = set(queries)
        if (rows is None or ids is None) and (found := _training_collection(part)) is not None:
            if rows is None:
                rows = np.isin(self.contents, _contents(found.documents)) & (self.contents != 0)
            if ids is None:
                texts = {text.strip() for text in found.queries.values()}
                ids = {query for query, text in queries.items() if text.strip() in texts}
        return rows, ids

    def _sentences(self, found: ContaminationStatement) -> list[str]:
        if found.root == "bm25":
            return ["BM25 is not trained."]
        if not found.stages:
            return [
                f"There is no training.json beside {found.root}: nothing is known of what it has seen."
            ]
        least = "" if found.complete else "at least "
        documents, queries = len(self.collection.documents), len(self.collection.queries)
        labels = (
            ["Training was given the very labels that judge it here."] if found.labels_seen else []
        )
        unknown = [part.dataset for part in found.collections if not part.known]
        return [
            f"Trained by {', '.join(found.stages)} from {found.root}, of which nothing is known.",
            f"Training was given {least}{found.documents_seen:,} of the {documents:,} evaluated documents and "
            f"{least}{found.queries_seen:,} of the {queries:,} evaluated queries.",
            *labels,
            *(
                f"What {name} shares with this collection is unknown: it is not here as it was then."
                for name in unknown
            ),
        ]


def _training_collection(part: CollectionProvenance) -> Collection | None:
    """A collection that a record names, if it is here, local, and as it was then."""
    name = part.dataset
    if not (name.startswith("apidocs/") or Path(name).exists()):
        return None
    # Generated queries are on record without a split; their folder has just one.
    split = part.split or ("train" if part.generation is not None else None)
    try:
        found = load_collection(name, split or "test", labels="required" if split else "none")
    except InputError:
        return None
    now = collection_provenance(found, queries=split is not None)
    queries_sha256 = now.queries_sha256
    if part.split is None and part.generation is not None:
        file = Path(name) / "queries.jsonl"
        queries_sha256 = file_sha256(file) if file.is_file() else None
    same_queries = split is None or queries_sha256 == part.queries_sha256
    return found if now.corpus_sha256 == part.corpus_sha256 and same_queries else None


def _contents(documents: Documents) -> Ints:
    contents = (
        (document["title"].strip(), document["text"].strip()) for document in documents.values()
    )
    return np.fromiter(
        (hash(content) if any(content) else 0 for content in contents), np.int64, len(documents)
    )
