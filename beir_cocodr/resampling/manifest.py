"""The manifest of resampled collections, ``manifest.json``: their sources and how they were made.

Also the origin of a collection, for links and ids of ir_datasets, and the outputs of ``resample``
that this machine has. Nothing here needs torch.
"""

import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.files.file_folder import TextFiles
from beir_cocodr.data.irds_source import IrdsSource
from beir_cocodr.data.sources import FileSource
from beir_cocodr.errors import InputError
from beir_cocodr.io import cache_root, json_sha256, parse_json, real_path, text_sha256, write_text
from beir_cocodr.records import Record

log = logging.getLogger(__name__)
MANIFEST_FILE = "manifest.json"
_SPLITS = re.compile(r"/(train|dev|test|validation|valid|val)$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+/-]+")


@dataclass(frozen=True)
class EncoderRecord:
    """The encoder of the query embeddings: everything that a similarity depends on."""

    name: str
    weights_sha256: str
    dimensions: int
    similarity: str
    vectors: str
    query_prompt: str | None
    query_length: int | None


@dataclass(frozen=True)
class SourceRecord:
    """A resampled collection: counts, and hashes of documents, queries and judgements.

    Attributes:
        ir_datasets_id: the id that it was read from, None for files.
        counts: defects that were accepted and counted when it was read, by kind.
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
        """Return the record of a loaded collection."""
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
    """One split of a set: its folder below the output, and the content of the folder."""

    folder: str
    split: str
    queries: int
    judgements: int
    queries_sha256: str
    qrels_sha256: str


@dataclass(frozen=True)
class SetRecord:
    """One training set, and the test queries that evaluate what is trained on it.

    Attributes:
        id: in ir_datasets, without a split.
        regime: "interpolation" or "extrapolation".
        size: for ReSTrain, the size that was asked for, None if k was.
        k: for ReSTrain, the number of nearest queries that make up the set.
        bucket: for ReSTTest, the bucket that is held out, from 1.
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
    """Counts of test queries that share relevant passages with training queries.

    Attributes:
        grade: passages of the test query count from this grade on.
        minimum: this many of them must be relevant to a training query.
        overlapping: the test queries for which that holds.
        queries: all test queries.
        share: their quotient.
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
    """The overlap of a training set with a test set.

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
    """The overlap of the full sets, and that of every resampled set by its folder."""

    before: OverlapSummary
    after: dict[str, OverlapSummary]


@dataclass(frozen=True)
class RestrainParameters:
    """The settings of ReSTrain's choice, see ``restrain``; ``search`` is the method."""

    sizes: list[int]
    k: list[int]
    exclude_top: int
    pool: int
    seed: int
    search: str


@dataclass(frozen=True)
class ResttestParameters:
    """The settings of ReSTTest's choice, and the numbers of queries in each bucket."""

    buckets: int
    seed: int
    training_queries: list[int]
    test_queries: list[int]


@dataclass(frozen=True)
class Manifest(Record):
    """``manifest.json`` of an output of ``resample``.

    Attributes:
        method: "restrain" or "resttest".
        base: name in ids of ir_datasets.
        same_corpus: whether training and test set have the same documents.
        train, test: the collections that were resampled.
        sets: the sets that were drawn from them.
        points: for the picture, some queries' two main components: of the largest sets of a regime,
            or of the buckets, and of the test queries.
        content_sha256: hash of all other fields, which shows whether they were changed.
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
    content_sha256: str
    points: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def hash_content(self) -> str:
        """Return the hash of all fields but ``content_sha256``."""
        content = self.to_json()
        del content["content_sha256"]
        return json_sha256(content)


def read_manifest(output: Path) -> Manifest:
    """Read the manifest of an output of ``resample``.

    Raises:
        InputError: There is none, it cannot be read, or it was changed.
    """
    path = output / MANIFEST_FILE
    if not path.is_file():
        raise InputError(f"{path} cannot be read: no such file; give an output folder of resample")
    manifest = Manifest.read(path)
    if manifest.content_sha256 != manifest.hash_content():
        raise InputError(f"{path} was changed since it was written; resample again")
    return manifest


def check_sets(output: Path, manifest: Manifest) -> None:
    """Check that queries, judgements and documents of all sets are those that were written.

    Raises:
        InputError: Some are not.
    """
    # Sets share folders, and each folder is checked once.
    parts: dict[tuple[str, str], tuple[SplitRecord, SourceRecord]] = {}
    for record in manifest.sets:
        parts[record.train.folder, record.train.split] = (record.train, manifest.train)
        parts[record.test.folder, record.test.split] = (record.test, manifest.test)
    for part, source in parts.values():
        _check_part(output, part, source)


def _check_part(output: Path, part: SplitRecord, source: SourceRecord) -> None:
    folder = output / part.folder
    collection = load_collection(folder, part.split)
    changed = []
    if json_sha256(collection.queries) != part.queries_sha256:
        changed.append("queries")
    if json_sha256(collection.qrels) != part.qrels_sha256:
        changed.append("judgements")
    if collection.documents.content_hash != source.corpus_sha256:
        changed.append("documents")
    if changed:
        raise InputError(
            f"{folder}: {' and '.join(changed)} of split {part.split} are not those on record in "
            f"{MANIFEST_FILE}; resample again"
        )


@dataclass(frozen=True)
class Origin:
    """The origin of a collection.

    Attributes:
        base: its name in ids of ir_datasets: the id without a split, ``apidocs/DOMAIN``, or the
            name of a folder.
        ir_datasets_id: the id that it was read from, None for files.
        corpus: the corpus file that can be linked to, None if there is none that lasts.
    """

    base: str
    ir_datasets_id: str | None
    corpus: Path | None


def origin(collection: Collection) -> Origin:
    """Find where a collection comes from."""
    source = collection.source
    if isinstance(source, IrdsSource):
        identifier = source.dataset_id
        return Origin(_SPLITS.sub("", identifier), identifier, None)
    if isinstance(source, TextFiles):
        return Origin(_safe(source.corpus.resolve().name), None, None)
    if not isinstance(source, FileSource):
        return Origin(_safe(collection.name), None, None)
    corpus = source.corpus.resolve()
    if corpus.is_relative_to(real_path(cache_root())):
        # The cache may be deleted at any time, and links into it would break.
        return Origin(_safe(source.name), None, None)
    return Origin(_safe(real_path(Path(source.name)).name), None, corpus)


def _safe(name: str) -> str:
    return _UNSAFE.sub("-", name).strip("-/") or "folder"


def set_id(
    method: str,
    base: str,
    label: str,
    regime: str,
) -> str:
    """Return the ir_datasets id of a set, without a split.

    Example:
        >>> from beir_cocodr.resampling.manifest import set_id
        >>> set_id("restrain", "msmarco-passage", "size-45k", "interpolation")
        'cocodr/restrain/msmarco-passage/size-45k/interpolation'
    """
    return f"cocodr/{method}/{base}/{label}/{regime}"


def short_size(size: int) -> str:
    """Return a number of queries as it is in an id: 45000 is ``45k``, 45100 is ``45100``."""
    if size % 1000 == 0:
        return f"{size // 1000}k"
    return str(size)


def remember(output: Path) -> None:
    """Note an output of ``resample`` below the cache root, so that its ids can be registered."""
    folder = str(real_path(output))
    note = cache_root() / "resampled" / f"{text_sha256(folder)[:16]}.json"
    try:
        write_text(note, json.dumps({"folder": folder}) + "\n")
    except OSError as error:
        log.warning(
            "%s is not noted in the cache (%s); register_resampled takes its path",
            output,
            error,
        )


def remembered_outputs() -> list[Path]:
    """Return the outputs that were noted and still exist, the newest first."""
    dated_folders = []
    for note in (cache_root() / "resampled").glob("*.json"):
        try:
            folder = Path(parse_json(note.read_text(encoding="utf-8"))["folder"])
            dated_folders.append((note.stat().st_mtime_ns, folder))
        except (OSError, ValueError, KeyError, TypeError):
            log.warning("%s cannot be read and is ignored", note)
    newest_first = [folder for _, folder in sorted(dated_folders, reverse=True)]
    return [folder for folder in newest_first if (folder / MANIFEST_FILE).is_file()]
