"""A model's vectors and fusion weights written as files for a search engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path

from beir_cocodr import load_object
from beir_cocodr.data.collection import Dataset, load_collection
from beir_cocodr.errors import InputError, kind_of
from beir_cocodr.io import check_output_free, draft_folder, output_path, write_text
from beir_cocodr.models.checkpoints.loading import fingerprint
from beir_cocodr.models.spec import ModelSpec, SearchOptions, check_device
from beir_cocodr.records import Json, Record, versions
from beir_cocodr.retrieval.handover.engines import ENGINES, HandOverOptions
from beir_cocodr.retrieval.handover.points import Points
from beir_cocodr.retrieval.resolve import Model, resolve_model
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encoded_by
from beir_cocodr.retrieval.store.record import STORE_FILE, EncodedBy
from beir_cocodr.retrieval.store.store_choice import model_of_store

#: The file that says what was handed over.
RECORD_FILE = "hand-over.json"

_README = "README.md"


@dataclass(frozen=True)
class HandOverRecord(Record):
    """hand-over.json: what was handed over.

    Attributes:
        engine: The engine, a name of :data:`~beir_cocodr.retrieval.handover.engines.ENGINES`.
        collection: The name of the collection there.
        model: The encoder of the vectors.
        fingerprint: Hashes of the encoder's weights, tokenizer and architecture.
        corpus: The sha256 of the corpus.
        documents: The number of documents.
        dimensions: The width of the vectors.
        analyzer: The analyzer of BM25 in the fusion; None for vectors alone.
        bm25_weight: The weight of BM25, against 1 of the encoder; None for vectors alone.
        files: The files of documents and vectors; empty if only the configuration was written.
        versions: Versions of the packages.
        sharpened: Folder of the generated queries by which the vectors were sharpened; "" for none.
    """

    engine: str
    collection: str
    model: EncodedBy
    fingerprint: dict[str, str]
    corpus: str
    documents: int
    dimensions: int
    analyzer: str | None = None
    bm25_weight: float | None = None
    files: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    sharpened: str = ""

    @property
    def encoder(self) -> str:
        """Return the name by which the encoder is loaded."""
        return str(self.model.path or self.model.name)

    @property
    def http_encoder(self) -> Json:
        """Return the settings of ``http:FILE`` that say what encoded the vectors."""
        sharpened = {"sharpened": self.sharpened} if self.sharpened else {}
        return {"encoder": self.encoder, **sharpened}

    @property
    def dense_share(self) -> float:
        """Return the weight of the vectors in a fusion whose weights sum up to 1."""
        return 1 / (1 + (self.bm25_weight or 0))


@dataclass(frozen=True)
class HandedOver:
    """A record with the points that it describes, as a writer of files takes them.

    Attributes:
        record: The record, without files.
        points: Documents and vectors.
        with_vectors: False to write the configuration alone.
    """

    record: HandOverRecord
    points: Points
    with_vectors: bool


def hand_over(
    model: Model,
    dataset: Dataset,
    *,
    output: str | Path,
    options: HandOverOptions = HandOverOptions(),
    search: SearchOptions = SearchOptions(),
) -> HandOverRecord:
    """Write the vectors of a corpus, or the weights of a fusion, for a search engine.

    The vectors rank by dot product, whatever the encoder's own similarity is. Files are written
    block by block, so that memory holds only one.

    Args:
        model: The name of an encoder; ``hybrid:M``, whose BM25 the engine then fuses with the
            vectors of M; or the folder of a store, which is read instead of encoding.
        dataset: The corpus, as for :func:`~beir_cocodr.data.collection.load_collection`.
        output: Folder for the files, which must not exist yet.
        options: See :class:`~beir_cocodr.retrieval.handover.engines.HandOverOptions`.
        search: How the encoder is loaded, BM25's analyzer and weight, and stores.

    Returns:
        The content of hand-over.json.

    Raises:
        InputError: The model has no vectors or no name, the engine takes only narrower ones, or
            ``output`` exists.

    Example:
        >>> from tempfile import mkdtemp
        >>> from beir_cocodr.retrieval.handover.engines import HandOverOptions
        >>> from beir_cocodr.retrieval.handover.hand_over import hand_over
        >>> options = HandOverOptions(to="opensearch", vectors=False)
        >>> folder = f"{mkdtemp()}/engine"
        >>> record = hand_over("hybrid:minilm", "apidocs/numpy", output=folder, options=options)
        >>> record.dimensions, record.bm25_weight
        (384, 0.5)
    """
    engine = ENGINES[options.to]
    folder = output_path(output)
    check_output_free(folder)
    collection_name = options.collection or engine.collection
    engine.check_collection(collection_name)
    if isinstance(model, str | Path) and (Path(model) / STORE_FILE).is_file():
        search = replace(search, stores=(*search.stores, model))
        model = model_of_store(Path(model), search.verify)
    spec = resolve_model(model, argument="model")
    if spec.loaded is not None:
        raise InputError(
            f"model is {kind_of(spec.loaded)}; give its folder or its name on the hub, with which "
            "queries are encoded later"
        )
    check_device(search.encoder.device, [spec])
    collection = load_collection(dataset, labels="none")
    with Resources.temporary(collection.documents, search) as resources:
        points = Points(resources.ranker(spec), spec.name)
        resources.check_stores_used()
        engine.check_dimensions(points.dimensions, options.to)
        record = _record(points, spec, collection_name, options.to)
        with draft_folder(folder) as draft:
            return _write(draft, HandedOver(record, points, options.vectors))


def _record(
    points: Points,
    spec: ModelSpec,
    collection: str,
    engine: str,
) -> HandOverRecord:
    bm25 = points.bm25
    return HandOverRecord(
        engine=engine,
        collection=collection,
        model=encoded_by(spec.encoder),
        fingerprint=fingerprint(points.dense.model),
        corpus=points.documents.content_hash,
        documents=len(points.documents),
        dimensions=points.dimensions,
        analyzer=None if bm25 is None else bm25.analyzer,
        bm25_weight=points.bm25_weight,
        versions=versions(),
        sharpened=points.dense.sharpened,
    )


@dataclass(frozen=True)
class WrittenFiles:
    """What a writer of an engine's files returns.

    Attributes:
        names: The files of documents and vectors, in corpus order.
        values: Values for the template of the folder's README, beside those of the record.
    """

    names: list[str]
    values: Mapping[str, object] = field(default_factory=dict)


def _write(folder: Path, handed: HandedOver) -> HandOverRecord:
    """Write all files of an engine to a folder, the record last."""
    engine = ENGINES[handed.record.engine]
    written: WrittenFiles = load_object(engine.write)(folder, handed)
    record = replace(handed.record, files=written.names)
    write_text(folder / _README, _readme(engine.readme, record, written.values))
    record.write(folder / RECORD_FILE)
    return record


def _readme(template: str, record: HandOverRecord, values: Mapping[str, object]) -> str:
    """Fill the template of a README."""
    # Only writing needs jinja2.
    from jinja2 import StrictUndefined
    from jinja2 import Template as JinjaTemplate

    text = files(__package__ or "").joinpath(template).read_text(encoding="utf-8")
    page = JinjaTemplate(
        text, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    rendered: str = page.render(record=record, **values)
    return rendered
