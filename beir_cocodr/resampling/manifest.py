"""The manifest of resampled collections, ``manifest.json``: from what and how they were made; where
a collection comes from, for links and ids of ir_datasets; and which outputs of `resample` this
machine has. Nothing here needs torch.
"""

import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

from beir_cocodr.data.collection import Collection, load_collection, resolve_source
from beir_cocodr.data.file_folder import TextFiles
from beir_cocodr.data.sources import FileSource
from beir_cocodr.errors import InputError
from beir_cocodr.io import cache_root, json_sha256, parse_json, text_sha256, write_text
from beir_cocodr.records import Record

log = logging.getLogger(__name__)
MANIFEST_FILE = "manifest.json"
_SPLITS = re.compile(r"/(train|dev|test|validation|valid|val)$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+/-]+")


@dataclass(frozen=True)
class EncoderRecord:
    """The encoder whose query embeddings were compared: everything that a similarity depends on."""

    name: str
    weights_sha256: str
    dimensions: int
    similarity: str
    vectors: str
    query_prompt: str | None
    query_length: int | None


@dataclass(frozen=True)
class SourceRecord:
    """What was resampled: counts, and hashes of documents, queries and judgements.

    Attributes:
        ir_datasets_id: the id it was read from, None for files.
        counts: what was accepted and counted when it was read, by kind.
    """

    dataset: str
    split: str | None
    ir_datasets_id: str | None
    documents: int
    corpus_sha256: str
    queries: int
    judgements: int
    queries_sha256: str
    qrels_sha256: str
    counts: dict[str, int]

    @classmethod
    def of(cls, collection: Collection, ir_datasets_id: str | None) -> "SourceRecord":
        """The record of a loaded collection."""
        return cls(
            dataset=collection.name,
            split=collection.split,
            ir_datasets_id=ir_datasets_id,
            documents=len(collection.documents),
            corpus_sha256=collection.documents.content_hash,
            queries=len(collection.queries),
            judgements=sum(map(len, collection.qrels.values())),
            queries_sha256=json_sha256(collection.queries),
            qrels_sha256=json_sha256(collection.qrels),
            counts=collection.counts,
        )


@dataclass(frozen=True)
class SplitRecord:
    """One split of a set: its folder below the output, and what stands there."""

    folder: str
    split: str
    queries: int
    judgements: int
    queries_sha256: str
    qrels_sha256: str


@dataclass(frozen=True)
class SetRecord:
    """One training set and the test queries that evaluate what is trained on it.

    Attributes:
        id: in ir_datasets, without a split.
        regime: "interpolation" or "extrapolation".
        size, k: of ReSTrain: what was asked for, if it was a size, and the nearest queries that
            make it up.
        bucket: of ReSTTest: the one that is held out, from 1.
    """

    id: str
    folder: str
    label: str
    regime: str
    train: SplitRecord
    test: SplitRecord
    size: int | None = None
    k: int | None = None
    bucket: int | None = None


@dataclass(frozen=True)
class LabelOverlap:
    """How many test queries share relevant passages with training queries.

    Attributes:
        grade: passages of the test query count from this grade on.
        minimum: so many of them must be relevant to a training query.
        overlapping, queries, share: test queries for which that holds, all of them, and their
        quotient.
    """

    grade: int
    minimum: int
    overlapping: int
    queries: int
    share: float


@dataclass(frozen=True)
class SimilaritySummary:
    """Similarities of test queries to their nearest training queries, in four numbers."""

    mean: float
    median: float
    least: float
    most: float


@dataclass(frozen=True)
class OverlapSummary:
    """What a training set gives away of a test set.

    Attributes:
        label_overlap: at every grade, by both rules.
        exact_duplicates, near_duplicates: test queries that training queries repeat.
        nearest_similarity: to the nearest training query.
    """

    training_queries: int
    test_queries: int
    label_overlap: list[LabelOverlap]
    exact_duplicates: int
    near_duplicates: int
    nearest_similarity: SimilaritySummary


@dataclass(frozen=True)
class Overlaps:
    """The overlap of the full sets, and after resampling that of every set by its folder."""

    before: OverlapSummary
    after: dict[str, OverlapSummary]


@dataclass(frozen=True)
class RestrainParameters:
    """What ReSTrain's choice depended on, see `restrain`; ``search`` is the method of `nearest`."""

    sizes: list[int]
    k: list[int]
    exclude_top: int
    pool: int
    seed: int
    search: str


@dataclass(frozen=True)
class ResttestParameters:
    """What ReSTTest's choice depended on, and how many queries are in each bucket."""

    buckets: int
    seed: int
    training_queries: list[int]
    test_queries: list[int]


@dataclass(frozen=True)
class Manifest(Record):
    """``manifest.json`` of an output of `resample`.

    Attributes:
        method: "restrain" or "resttest".
        base: name in ids of ir_datasets.
        same_corpus: whether training and test set have the same documents.
        train, test: what was resampled, and ``sets`` what was made of it.
        points: of the largest sets of a regime, or the buckets, and of the test queries, some
            queries' two main components, for the picture.
    """

    method: str
    base: str
    encoder: EncoderRecord
    parameters: RestrainParameters | ResttestParameters
    same_corpus: bool
    train: SourceRecord
    test: SourceRecord
    sets: list[SetRecord]
    overlap: Overlaps
    versions: dict[str, str]
    points: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


def read_manifest(output: Path) -> Manifest:
    """The manifest of an output of `resample`; an InputError where none can be read."""
    path = output / MANIFEST_FILE
    if not path.is_file():
        raise InputError(f"{path} cannot be read: no such file; give an output folder of resample")
    return Manifest.read(path)


def check_sets(output: Path, manifest: Manifest) -> None:
    """Check that queries, judgements and documents of all sets are those that were written; else an
    InputError.
    """
    pairs = [
        pair
        for each in manifest.sets
        for pair in ((each.train, manifest.train), (each.test, manifest.test))
    ]
    for record, source in {
        (record.folder, record.split): (record, source) for record, source in pairs
    }.values():
        folder = output / record.folder
        loaded = load_collection(folder, record.split)
        parts = {
            "queries": (json_sha256(loaded.queries), record.queries_sha256),
            "judgements": (json_sha256(loaded.qrels), record.qrels_sha256),
            "documents": (loaded.documents.content_hash, source.corpus_sha256),
        }
        if changed := [name for name, (found, written) in parts.items() if found != written]:
            raise InputError(
                f"{folder}: {' and '.join(changed)} of split {record.split} are not those on record in "
                f"{MANIFEST_FILE}; resample again"
            )


@dataclass(frozen=True)
class Origin:
    """Where a collection comes from.

    Attributes:
        base: its name in ids of ir_datasets: the id without a split, ``apidocs/DOMAIN``, or a
            folder's name.
        ir_datasets_id: the id it was read from, None for files.
        corpus: the corpus file that can be linked to, None where there is none that lasts.
    """

    base: str
    ir_datasets_id: str | None
    corpus: Path | None


def origin(dataset: str, split: str) -> Origin:
    """Find where a dataset comes from; arguments and errors are those of `load_collection`."""
    source = resolve_source(dataset, split)
    if isinstance(source, TextFiles):
        return Origin(_safe(source.corpus.resolve().name), None, None)
    if not isinstance(source, FileSource):
        identifier: str = source.dataset_id
        return Origin(_SPLITS.sub("", identifier), identifier, None)
    corpus = source.corpus.resolve()
    if corpus.is_relative_to(cache_root().resolve()):
        # The cache may be deleted at any time, and links into it would break.
        return Origin(_safe(dataset), None, None)
    return Origin(_safe(Path(dataset).resolve().name), None, corpus)


def _safe(name: str) -> str:
    return _UNSAFE.sub("-", name).strip("-/") or "folder"


def set_id(method: str, base: str, label: str, regime: str) -> str:
    """The ir_datasets id of a set, without a split:
    ``cocodr/restrain/BASE/size-45k/interpolation``.
    """
    return f"cocodr/{method}/{base}/{label}/{regime}"


def short_size(size: int) -> str:
    """A number of queries in an id: 45000 is ``45k``, 45100 is ``45100``."""
    return f"{size // 1000}k" if size % 1000 == 0 else str(size)


def remember(output: Path) -> None:
    """Note an output of `resample` below the cache root, so that its ids can be registered
    later.
    """
    folder = str(output.resolve())
    note = cache_root() / "resampled" / f"{text_sha256(folder)[:16]}.json"
    try:
        write_text(note, json.dumps({"folder": folder}) + "\n")
    except OSError as error:
        log.warning(
            "%s is not noted in the cache (%s); register_resampled finds it by its path",
            output,
            error,
        )


def remembered_outputs() -> list[Path]:
    """The outputs that were noted and are still there, the newest first."""
    found = []
    for note in (cache_root() / "resampled").glob("*.json"):
        try:
            folder = Path(parse_json(note.read_text(encoding="utf-8"))["folder"])
            found.append((note.stat().st_mtime_ns, folder))
        except (OSError, ValueError, KeyError, TypeError):
            log.warning("%s cannot be read and is passed over", note)
    return [
        folder for _, folder in sorted(found, reverse=True) if (folder / MANIFEST_FILE).is_file()
    ]
