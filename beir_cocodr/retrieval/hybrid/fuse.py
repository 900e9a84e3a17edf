"""A dense encoder and BM25 made one hybrid encoder, saved as a model or fitted for a search."""

import shutil
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
from sentence_transformers import SentenceTransformer

from beir_cocodr.data.collection import Dataset, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.languages import corpus_analyzer
from beir_cocodr.deprecation import former_signature
from beir_cocodr.distributed import join_processes, on_main, world_size
from beir_cocodr.errors import InputError, check_flag, check_options_type, check_type
from beir_cocodr.io import check_output_free, draft_folder, json_sha256, output_path
from beir_cocodr.models.card import write_card
from beir_cocodr.models.checkpoints.loading import fingerprint, load_encoder, model_source
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import BM25_WEIGHT, EncoderOptions, FuseOptions, ModelSpec
from beir_cocodr.provenance import (
    TERMS,
    TrainingPlan,
    TrainingRecord,
    collection_provenance,
    read_record,
    write_record,
)
from beir_cocodr.records import CollectionProvenance, Json, versions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion_details import FusionDetails, TriedFusion
from beir_cocodr.retrieval.hybrid.hybrid_fit import (
    LEXICAL_NUMBERS,
    DenseBM25,
    Fit,
    count_terms,
    smallest_as_good,
)
from beir_cocodr.retrieval.ranking import Parts, Ranking
from beir_cocodr.retrieval.store.embeddings import Embeddings
from beir_cocodr.retrieval.store.encode import collection_queries
from beir_cocodr.retrieval.store.store_choice import StoreChoice, check_not_sharpened
from beir_cocodr.retrieval.vectors.corpus_encoder import HybridCorpusEncoder
from beir_cocodr.retrieval.vectors.dense import Dense, EmbeddingPool
from beir_cocodr.retrieval.vectors.embeddings_property import embeddings_property
from beir_cocodr.same_run import check_same_run

#: What names a dense encoder, or is one.
EncoderLike = str | Path | ModelSpec | SentenceTransformer

# Bytes of a number in each precision of a store.
_NUMBER_BYTES = {
    "fp32": 4,
    "fp16": 2,
    "int8": 1,
}


@former_signature(order=("dataset", "model", "output", "options", "encoder", "stores", "resume"))
def fuse(
    model: EncoderLike,
    dataset: Dataset,
    *,
    output: str | Path,
    options: FuseOptions = FuseOptions(),
    encoder: EncoderOptions = EncoderOptions(),
    stores: Sequence[str | Path] = (),
    resume: bool = False,
) -> TrainingRecord:
    """Make a hybrid encoder of a dense encoder and a corpus.

    Fusing needs no labels and no GPU. The corpus is read once for BM25's counts, which the
    processes of ``torchrun`` share; a sample of documents is encoded, or read from a store of the
    dense encoder.

    Args:
        model: The dense encoder: a name, a folder, or a loaded encoder, which stays as it is.
        dataset: The corpus, as for :func:`~beir_cocodr.data.collection.load_collection`. Its
            queries, if it has some, take part in the choice of the lexical part, its labels never.
        output: Folder of the hybrid encoder, which must not exist yet.
        options: See :class:`~beir_cocodr.models.spec.FuseOptions`.
        encoder: How the dense encoder is loaded.
        stores: Folders that ``encode`` wrote with the dense encoder for this corpus.
        resume: Keep a hybrid encoder in ``output`` that was made in the same way.

    Returns:
        The training.json that is saved with the model.

    Raises:
        InputError: The model is an MRL or a hybrid encoder, the budget leaves no room for BM25, or
            ``output`` is taken.

    Example:
        >>> from tempfile import mkdtemp
        >>> from beir_cocodr import FuseOptions, HybridEncoder, fuse
        >>> folder = f"{mkdtemp()}/numpy"
        >>> options = FuseOptions(sample=16, probes=4)
        >>> record = fuse("minilm", "apidocs/numpy", output=folder, options=options)
        >>> width = HybridEncoder(folder).encode_query(["sort an array"]).shape[1]
        >>> width == 384 + record.details["numbers"]
        True
    """
    check_options_type(options, FuseOptions)
    check_flag("resume", resume)
    check_options_type(encoder, EncoderOptions, "encoder")
    check_type("stores", stores, (str, Path, list, tuple), "a list of folders")
    folders = [stores] if isinstance(stores, str | Path) else stores
    for folder in folders:
        check_type("a folder of stores", folder, (str, Path), "the path of a folder")
    held = HeldEmbeddings(folders)
    return fuse_over(
        model,
        dataset,
        output_path(output),
        options,
        encoder,
        held,
        resume,
    )


@dataclass(frozen=True)
class HeldEmbeddings:
    """Places in which embeddings of the dense encoder may already exist.

    Attributes:
        stores: Folders that ``encode`` wrote.
        pool: Embeddings that the stages of a run share.
    """

    stores: Sequence[str | Path] = ()
    pool: EmbeddingPool | None = None

    def of(self, dense: COCODR, documents: Documents) -> Embeddings | None:
        """Return the embeddings of a corpus that exist already, or are made for the run.

        Raises:
            InputError: A store was written by another encoder, or for another corpus.
        """
        choice = StoreChoice(self.stores, documents)
        check_not_sharpened(choice.stores)
        store = choice.of(dense) if self.stores else None
        choice.check_used()
        if store is None and self.pool is not None:
            return self.pool.of(dense, documents)
        return store


def fuse_over(
    model: EncoderLike,
    dataset: Dataset,
    output: Path,
    options: FuseOptions,
    encoder: EncoderOptions,
    held: HeldEmbeddings,
    resume: bool,
) -> TrainingRecord:
    """Do the work of :func:`fuse`, with embeddings that exist already."""
    join_processes(encoder.device)
    began = time.perf_counter()
    # The first process looks for all: when a slower one looked, it might have written already.
    before = on_main(lambda: finished_fusion(output, resume))
    collection = load_collection(dataset, labels="none")
    analyzer = corpus_analyzer(options.analyzer, collection.documents.facts.language)
    options = replace(options, analyzer=analyzer)
    dense = load_encoder(model, encoder)
    name = _name_of(model, dense)
    check_dense(dense, name)
    plan = _plan(
        model=name,
        dense=dense,
        encoder=encoder,
        options=options,
        corpus=collection_provenance(collection, queries=False),
    )
    if before is not None:
        check_same_run(output, before.settings(), plan.settings())
        return before
    numbers = _lexical_numbers(dense, options)
    queries = collection_queries(dataset)
    # Stores first: a wrong one is named before a large corpus is read.
    embeddings = held.of(dense, collection.documents)
    counts = count_terms(collection.documents, dense.text_format, options)

    def fit_and_save() -> TrainingRecord:
        fit = Fit(dense, collection.documents, counts, options, embeddings)
        candidates = fit.agreements(fit.candidates(numbers), queries)
        head = fit.head(smallest_as_good(candidates))
        if isinstance(model, str | Path):
            # Loaded again, because encoding leaves its padding in the tokenizer that is saved.
            hybrid = HybridEncoder(model_source(name), head=head, **encoder.overrides())
        else:
            hybrid = HybridEncoder.of(dense, head)
        record = TrainingRecord(
            **vars(plan),
            processes=world_size() if world_size() > 1 else None,
            seconds=round(time.perf_counter() - began, 1),
            details=asdict(_details(fit, candidates, hybrid)),
            versions=versions(),
            parent=read_record(model_source(name)),
            rehearsed=(TERMS,),
            citations=("robertson2009bm25",),
        )
        _save(hybrid, record, output)
        return record

    return on_main(fit_and_save)


def finished_fusion(output: Path, resume: bool) -> TrainingRecord | None:
    """Return the record of a finished output that is resumed, or check that the output is free.

    Raises:
        InputError: The output has files, and it is not resumed or not finished.
    """
    record = read_record(output) if resume else None
    if record is None:
        check_output_free(output)
    return record


def _name_of(model: EncoderLike, dense: COCODR) -> str:
    """Return the name of an encoder: as it was given, or where a loaded one comes from."""
    if isinstance(model, str | Path):
        return str(model)
    if isinstance(model, ModelSpec) and model.loaded is None:
        return model.encoder
    return str(getattr(dense.transformers_model, "name_or_path", "") or type(dense).__name__)


def check_dense(model: COCODR, name: str) -> None:
    """Raise an InputError if a model is no plain dense encoder, which alone can be fused."""
    if isinstance(model, MRL | HybridEncoder):
        raise InputError(
            f"model {name!r} is a {type(model).__name__}; fuse takes a plain dense encoder"
        )


def _lexical_numbers(dense: COCODR, options: FuseOptions) -> int:
    """Return how many numbers BM25's part may have."""
    budget = options.bytes_per_document
    if budget is None:
        return LEXICAL_NUMBERS
    width = int(dense.get_embedding_dimension() or 0)
    left = budget // _NUMBER_BYTES["fp16"] - width
    if left < 1:
        raise InputError(
            f"bytes_per_document {budget} leaves no room for BM25 beside {width} numbers of the "
            f"encoder; give at least {_NUMBER_BYTES['fp16'] * (width + 1)}"
        )
    return left


def _plan(
    model: str,
    dense: COCODR,
    encoder: EncoderOptions,
    options: FuseOptions,
    corpus: CollectionProvenance,
) -> TrainingPlan:
    parts = fingerprint(dense)
    weights = parts.pop("weights")
    settings = asdict(options)
    if not options.weight_reason:
        del settings["weight_reason"]
    parts["text_format"] = json_sha256([dense.text_format.as_dict(), dense.similarity_fn_name])
    return TrainingPlan(
        stage="fuse",
        base=model,
        base_sha256=weights,
        encoder=encoder.describe(),
        options=settings,
        seen=(corpus,),
        base_parts=parts,
    )


def _save(
    hybrid: HybridEncoder,
    record: TrainingRecord,
    output: Path,
) -> None:
    """Write a hybrid encoder with its card and training.json."""
    with draft_folder(output) as draft:
        hybrid.save_pretrained(str(draft), create_model_card=False)
        write_card(draft, record)
        write_record(draft, record)


def _details(
    fit: Fit,
    candidates: Sequence[DenseBM25],
    hybrid: HybridEncoder,
) -> FusionDetails:
    """Return what training.json says about a fit beside the plan."""
    chosen = smallest_as_good(candidates)
    numbers = hybrid.head.dimension + chosen.numbers
    return FusionDetails(
        kind=chosen.kind,
        numbers=chosen.numbers,
        agreement=chosen.agreement,
        candidates=[TriedFusion(kind=one.kind, **asdict(one)) for one in candidates],
        terms=len(fit.counts.frequencies),
        terms_left_out=fit.counts.left_out,
        unknown_share=fit.counts.left_out_share,
        fitted_on=len(fit.rows),
        bytes_per_document={precision: size * numbers for precision, size in _NUMBER_BYTES.items()},
        projection_bytes=4 * hybrid.head.projection.numel(),
    )


class FittedVector:
    """The hybrid encoder that :func:`fuse` makes from an encoder, fitted when it is first searched.

    Nothing is saved: it shows what a hybrid encoder would find before one is made. The lexical part
    is chosen by crops of the corpus alone. It is fitted anew when the encoder's vectors change.
    """

    def __init__(
        self,
        dense: Dense,
        bm25: BM25,
        bm25_weight: float = BM25_WEIGHT,
    ) -> None:
        """Fit a hybrid encoder when it is first needed.

        Args:
            dense: Dense search with the encoder.
            bm25: BM25 over the same corpus, whose analyzer is taken.
            bm25_weight: Weight of BM25, against 1 of the encoder.

        Raises:
            InputError: The encoder is an MRL.
        """
        check_dense(dense.model, str(dense.model.model_card_data.base_model))
        self.dense = dense
        self.options = FuseOptions(
            bm25_weight=bm25_weight,
            analyzer=bm25.analyzer,
        )

    @embeddings_property
    def fitted(self) -> Dense:
        """Return dense search with the hybrid encoder."""
        dense = self.dense
        counts = count_terms(
            dense.documents,
            dense.model.text_format,
            self.options,
        )
        fit = Fit(
            dense=dense.model,
            documents=dense.documents,
            counts=counts,
            options=self.options,
            embeddings=dense.embeddings,
        )
        candidates = fit.agreements(fit.candidates(LEXICAL_NUMBERS), [])
        model = HybridEncoder.of(
            dense.model,
            fit.head(smallest_as_good(candidates)),
        )
        # A store of former vectors may still be open.
        folder = dense.folder / f"vector-{self.options.bm25_weight:g}-{uuid4().hex}"
        fitted = Dense(
            model=model,
            documents=dense.documents,
            folder=folder,
            batch_size=dense.batch_size,
            progress=dense.progress,
        )
        weakref.finalize(fitted, shutil.rmtree, folder, ignore_errors=True)
        encoder = HybridCorpusEncoder(
            model,
            dense.documents,
            dense.embeddings,
        )
        fitted.embeddings = fitted.encode_corpus(folder, encoder)
        return fitted

    def prepare(self) -> None:
        """Fit the hybrid encoder and compute the vectors of the corpus."""
        self.fitted.prepare()

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Rank the corpus for queries, id to text."""
        return self.fitted.search(queries, top_k)

    def parts(
        self,
        query: str,
        rows: np.ndarray,
        scores: np.ndarray,
    ) -> Parts:
        """Return what the encoder and BM25 add to (k,) scores of the documents in ``rows``."""
        return self.fitted.parts(query, rows, scores)

    def describe(self) -> Json:
        """Describe the hybrid encoder for the record of a search."""
        return {**self.fitted.describe(), "model": "hybrid encoder, fitted for this search"}
