"""The record of a training, its lineage, and the texts of a collection that it was given."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from beir_cocodr.arrays import Bools, Ints
from beir_cocodr.checksums import file_checksum
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.sources import Labels
from beir_cocodr.errors import InputError
from beir_cocodr.io import file_sha256, json_sha256, parse_json
from beir_cocodr.models.spec import ModelSpec
from beir_cocodr.records import (
    CollectionProvenance,
    ContaminationStatement,
    Json,
    Record,
    SharedCollection,
    Tabular,
    frame,
)

if TYPE_CHECKING:
    import pandas as pd

RECORD_FILE = "training.json"

#: Values of :attr:`TrainingRecord.rehearsed`: what a training practised that label-free estimates
#: would otherwise take for evidence.
SPANS = "spans"
GENERATED_QUERIES = "generated queries"
TERMS = "terms that occur together"


def collection_provenance(collection: Collection, queries: bool) -> CollectionProvenance:
    """Return what a training stage is given of a collection.

    Args:
        collection: the collection.
        queries: its labelled queries are given, and not only its documents.
    """
    documents = collection.documents
    provenance = CollectionProvenance(
        collection.name,
        len(documents),
        documents.content_hash,
        collection.counts,
    )
    if not queries:
        return provenance
    return replace(
        provenance,
        split=collection.split,
        queries=len(collection.queries),
        queries_sha256=json_sha256(collection.queries),
        qrels_sha256=json_sha256(collection.qrels),
    )


@dataclass(frozen=True)
class TrainingPlan(Record):
    """The settings that make two trainings the same.

    A field that does not apply is None, and left out of the JSON.

    Attributes:
        stage: the kind of training.
        base: the name of the model that it starts from.
        base_sha256: hash of that model's weights.
        encoder: how it was loaded, without the device.
        options: options of the stage.
        seen: the collections that it is given.
        episode: the number of the round of a fine-tuning, from 0.
        miner: the encoder that mines the negatives of a fine-tuning, if that is not ``base``.
        teacher: the teacher of a distillation.
        teacher_sha256: content of a teacher that is a file or folder.
        base_parts: hashes of the base's tokenizer, architecture and text format.
        precision: what it computes in: float32, bfloat16 or float16.
        targets: what a fine-tuning in rounds is measured on after each.
        measures: the measures of that.
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
        """Return the fields that apply as plain JSON."""
        content = {name: value for name, value in super().to_json().items() if value is not None}
        content["seen"] = [part.to_json() for part in self.seen]
        if self.targets is not None:
            content["targets"] = [part.to_json() for part in self.targets]
        return content

    def settings(self) -> Json:
        """Return what makes two trainings the same.

        Names and paths are left out, as they may change while their content stays: hashes identify
        it. A teacher without a hash is known by its name.
        """
        by_name = ("base", "miner", "teacher")
        names = [part.name for part in fields(TrainingPlan) if part.name not in by_name]
        settings: Json = {name: getattr(self, name) for name in names}
        settings["teacher"] = None
        if self.teacher_sha256 is None:
            settings["teacher"] = self.teacher
        settings["seen"] = _without_names(self.seen)
        settings["targets"] = None
        if self.targets is not None:
            settings["targets"] = _without_names(self.targets)
        return settings


def _without_names(parts: Sequence[CollectionProvenance]) -> list[Json]:
    return [part.to_json() | {"dataset": None} for part in parts]


#: The fields of a training record that its table shows beside its stage, base and collections.
_SUMMARY = ("steps", "training_loss", "seconds")

#: Among the details of a training: (step, mean loss since the one before) of each line of its log.
LOGGED = "logged_loss"


@dataclass(frozen=True)
class TrainingRecord(Tabular, TrainingPlan):
    """The content of training.json: a plan, and the result of it.

    Attributes:
        steps: optimiser steps, of all rounds.
        processes: W.
        resumed_from: the checkpoint that the run resumed from; ``training_loss`` and ``seconds``
            cover only what came after it.
        training_loss: mean loss of the run.
        seconds: time of the run.
        details: what the stage itself counts, such as pairs or lists. In the JSON its keys are
            among the others.
        versions: versions of the packages that a number may depend on.
        parent: the record of ``base``.
        modules: see :func:`modules_of`.
        checksums: see :func:`checksums_of`.
        rehearsed: what the training practised on the collections in ``seen``: :data:`SPANS` if it
            learned to find a document by a part of it, :data:`GENERATED_QUERIES` if by queries
            that were generated for it, and :data:`TERMS` if it was fitted on which terms occur in
            the same documents, so that it finds a document by terms that were cut out of it.
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
    checksums: dict[str, str] | None = None
    rehearsed: tuple[str, ...] = ()
    citations: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """Return the fields that apply as plain JSON, with the details among them."""
        content: Json = {}
        for name, value in super().to_json().items():
            if name == "details":
                content |= self.details
            else:
                content[name] = value
        content["rehearsed"] = list(self.rehearsed)
        content["citations"] = list(self.citations)
        content["resumed_from"] = self.resumed_from
        content["parent"] = None
        if self.parent is not None:
            content["parent"] = self.parent.to_json()
        return content

    @classmethod
    def from_json(cls, content: object, where: str | Path) -> Self:
        """Return the record in parsed JSON of ``where``."""
        return super().from_json(_with_details(content), where)

    def lineage(self) -> "list[TrainingRecord]":
        """Return the records of all that the model was made from and its own, oldest first."""
        ancestors = self.parent.lineage() if self.parent else []
        return [*ancestors, self]

    def to_frame(self) -> "pd.DataFrame":
        """Return a row for each training of the lineage, oldest first."""
        rows = []
        for record in self.lineage():
            collections = [part.dataset for part in record.seen]
            row: Json = {
                "stage": record.stage,
                "base": record.base,
                "collections": ", ".join(collections),
            }
            for name in _SUMMARY:
                row[name] = getattr(record, name)
            rows.append(row)
        return frame(rows, ["stage", "base", "collections", *_SUMMARY])


def _with_details(content: object) -> object:
    """Return parsed JSON of a record in which what is no field of the record is its details."""
    if not isinstance(content, dict):
        return content
    names = {record_field.name for record_field in fields(TrainingRecord)}
    names.add("schema")
    parent = _with_details(content.get("parent"))
    if isinstance(parent, dict):
        parent.pop("schema", None)
    record = {}
    details = {}
    for name, value in content.items():
        if name in names:
            record[name] = value
        else:
            details[name] = value
    record["details"] = details
    record["parent"] = parent
    return record


def read_record(model: str | Path) -> TrainingRecord | None:
    """Return the record beside a saved model; None if it has none.

    Raises:
        InputError: The record cannot be read.
    """
    path = Path(model) / RECORD_FILE
    if path.is_file():
        return TrainingRecord.read(path)
    return None


def write_record(folder: Path, record: TrainingRecord) -> TrainingRecord:
    """Write the record beside a model, with the model's modules and checksums, and return it.

    It is written last: its presence says that the model is complete.
    """
    record = replace(
        record,
        modules=modules_of(folder),
        checksums=checksums_of(folder),
    )
    record.write(folder / RECORD_FILE)
    return record


#: Keys of a configuration that versions of the host write differently for the same model.
INCIDENTAL = ("architectures", "dtype", "torch_dtype", "transformers_version")


def modules_of(folder: Path) -> dict[str, str]:
    """Return a hash of each file of a model that says which modules it has and what they compute.

    A model that lost a module, or has another one, may load as another model that is complete.
    """
    files = [
        folder / "modules.json",
        folder / "config.json",
        *sorted(folder.glob("[0-9]*_*/config.json")),
    ]
    hashes: dict[str, str] = {}
    for file in filter(Path.is_file, files):
        text = file.read_text(encoding="utf-8")
        content = parse_json(text)
        if file == folder / "config.json":
            content = {key: value for key, value in dict(content).items() if key not in INCIDENTAL}
        path = file.relative_to(folder).as_posix()
        hashes[path] = json_sha256(content)
    return hashes


# The files of weights and vocabularies, in the folder of a model or of one of its modules.
_WEIGHTS = (
    "*.safetensors",
    "pytorch_model*.bin",
    "tokenizer.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "terms.txt",
)


def checksums_of(folder: Path) -> dict[str, str]:
    """Return the checksum of each file of a model's weights and vocabularies, by its path."""
    files: set[Path] = set()
    for part in (folder, *folder.glob("[0-9]*_*")):
        for pattern in _WEIGHTS:
            files.update(filter(Path.is_file, part.glob(pattern)))
    checksums = {}
    for file in sorted(files):
        path = file.relative_to(folder).as_posix()
        checksums[path] = file_checksum(file)
    return checksums


def training_lineage(encoder: str) -> list[TrainingRecord]:
    """Return the records of an encoder and of its ancestors, oldest first; maybe none."""
    record = read_record(encoder)
    if record is None:
        return []
    return record.lineage()


#: Ids of documents that a statement lists; all are counted.
LISTED = 100


def contamination_statement(
    models: Sequence[str | ModelSpec], collection: Collection
) -> dict[str, ContaminationStatement]:
    """Return what the training of each model was given of the texts that it is evaluated on.

    The records of a model and of all its ancestors are merged. A training collection with the hash
    of the evaluated one had all of it. One with another hash is read if it is still local and has
    the hash on record: documents are compared by title and text, and queries by text, as ids may be
    anything. Otherwise it is unknown what it shares, and the statement says so. What training was
    given it need not have drawn: a training of few steps may have read only a part. For
    ``hybrid:M``, ``rerank:C@M`` and the other names with an encoder in them, M counts.

    Raises:
        InputError: A record cannot be read.
    """
    evaluated = _Evaluated(collection)
    by_encoder: dict[str, ContaminationStatement] = {}
    statements = {}
    for model in models:
        encoder = ModelSpec.parse(model).encoder
        if encoder not in by_encoder:
            by_encoder[encoder] = evaluated.statement(encoder)
        statements[str(model)] = by_encoder[encoder]
    return statements


class _Evaluated:
    """The evaluated collection, whose contents are hashed when they are first used."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.provenance = collection_provenance(collection, queries=True)

    @cached_property
    def contents(self) -> Ints:
        """Return (N,) hashes of title and text, 0 for an empty document."""
        return _contents(self.collection.documents)

    def statement(self, encoder: str) -> ContaminationStatement:
        """Compare the merged records of an encoder and its ancestors with the collection."""
        records = []
        if encoder != "bm25":
            records = training_lineage(encoder)
        documents = np.zeros(len(self.collection.documents), bool)
        queries: set[str] = set()
        shared: list[SharedCollection] = []
        for part, stages in _seen_by(records):
            rows, ids = self._shared(part)
            documents_shared = None
            queries_shared = None
            if rows is not None:
                documents |= rows
                documents_shared = int(rows.sum())
            if ids is not None:
                queries |= ids
                queries_shared = len(ids)
            shared.append(
                SharedCollection(
                    **vars(part),
                    stages=stages,
                    documents_shared=documents_shared,
                    queries_shared=queries_shared,
                    same_labels=self._has_labels_of(part),
                )
            )
        root = None
        if records:
            root = records[0].base
        listed_rows = np.flatnonzero(documents)[:LISTED]
        statement = ContaminationStatement(
            stages=[record.stage for record in records],
            root=root or encoder,
            collections=shared,
            documents_seen=int(documents.sum()),
            queries_seen=len(queries),
            document_ids=self.collection.documents.ids(listed_rows),
            query_ids=[query for query in self.collection.queries if query in queries],
            labels_seen=any(part.same_labels for part in shared),
            complete=all(part.known for part in shared),
            sentences=[],
        )
        return replace(statement, sentences=self._sentences(statement))

    def _has_labels_of(self, part: CollectionProvenance) -> bool:
        has_labels = bool(self.collection.qrels)
        return has_labels and part.qrels_sha256 == self.provenance.qrels_sha256

    def _shared(self, part: CollectionProvenance) -> tuple[Bools | None, set[str] | None]:
        """Return what a training collection has of the evaluated one; None where unknown.

        Returns:
            (N,) true for shared documents, and the ids of shared queries.
        """
        queries = self.collection.queries
        rows = None
        ids = None
        if part.corpus_sha256 == self.provenance.corpus_sha256:
            rows = np.ones(len(self.collection.documents), bool)
        if part.queries_sha256 is None or not queries:
            ids = set[str]()
        elif part.queries_sha256 == self.provenance.queries_sha256:
            ids = set(queries)
        if rows is not None and ids is not None:
            return rows, ids
        training = _training_collection(part)
        if training is None:
            return rows, ids
        if rows is None:
            is_text = self.contents != 0
            is_known = np.isin(self.contents, _contents(training.documents))
            rows = is_known & is_text
        if ids is None:
            texts = {text.strip() for text in training.queries.values()}
            ids = {query for query, text in queries.items() if text.strip() in texts}
        return rows, ids

    def _sentences(self, statement: ContaminationStatement) -> list[str]:
        """Return the statement for a person."""
        root = statement.root
        if root == "bm25":
            return ["BM25 is not trained."]
        if not statement.stages:
            return [f"There is no training.json beside {root}, so what it has seen is unknown."]
        at_least = "" if statement.complete else "at least "
        documents = len(self.collection.documents)
        queries = len(self.collection.queries)
        stages = ", ".join(statement.stages)
        sentences = [
            f"Trained by {stages} from {root}; what {root} has seen is unknown.",
            f"Training was given {at_least}{statement.documents_seen:,} of the {documents:,} "
            f"evaluated documents and {at_least}{statement.queries_seen:,} of the {queries:,} "
            "evaluated queries.",
        ]
        if statement.labels_seen:
            sentences.append("Training was given the very labels that evaluate it here.")
        for part in statement.collections:
            if not part.known:
                sentences.append(
                    f"What {part.dataset} shares with this collection is unknown: the recorded "
                    "version of it is not here."
                )
        return sentences


def _seen_by(
    records: Sequence[TrainingRecord],
) -> list[tuple[CollectionProvenance, list[str]]]:
    """Return the collections that trainings were given, by content, each with their stages."""
    seen: dict[tuple[str | None, ...], tuple[CollectionProvenance, list[str]]] = {}
    for record in records:
        for part in record.seen:
            _, stages = seen.setdefault(part.hashes, (part, []))
            stages.append(record.stage)
    return list(seen.values())


def _training_collection(part: CollectionProvenance) -> Collection | None:
    """Load a collection that a record names, if it is local and as it was then."""
    name = part.dataset
    is_local = name.startswith("apidocs/") or Path(name).exists()
    if not is_local:
        return None
    split = part.split
    if not split and part.generation is not None:
        # Generated queries are on record without a split; their folder has just one.
        split = "train"
    split = split or None
    labels: Labels = "required" if split else "none"
    try:
        collection = load_collection(name, split or "test", labels=labels)
    except InputError:
        return None
    now = collection_provenance(collection, queries=split is not None)
    queries_sha256 = now.queries_sha256
    if part.split is None and part.generation is not None:
        file = Path(name) / "queries.jsonl"
        queries_sha256 = file_sha256(file) if file.is_file() else None
    same_queries = split is None or queries_sha256 == part.queries_sha256
    same_corpus = now.corpus_sha256 == part.corpus_sha256
    return collection if same_corpus and same_queries else None


def _contents(documents: Documents) -> Ints:
    """Return (N,) hashes of title and text, 0 for an empty document."""

    def digests() -> Iterator[int]:
        for document in documents.values():
            title = document["title"].strip()
            text = document["text"].strip()
            content = (title, text)
            yield hash(content) if any(content) else 0

    return np.fromiter(digests(), np.int64, len(documents))
