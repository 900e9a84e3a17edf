"""MTEB: every model of this package as a model of MTEB and the reverse, and collections as tasks.

``load("hybrid:minilm")`` goes into ``mteb.evaluate`` as it is. After
``register("runs/mine/models/best")`` MTEB finds the model by its name, as its command line does::

    import mteb
    from beir_cocodr.plugins.mteb import load, task

    results = mteb.evaluate(load("hybrid:minilm"), task("apidocs/numpy"))

Searches are those of this package, so the figures are those of ``evaluate``. A model of MTEB goes
into ``evaluate`` and ``compare`` as it is, see :func:`from_mteb`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import mteb
from datasets import Dataset
from mteb.abstasks import AbsTaskRetrieval
from mteb.models import ModelMeta, SentenceTransformerEncoderWrapper
from mteb.models.model_implementations import MODEL_REGISTRY
from mteb.models.model_meta import ScoringFunction
from mteb.types import PromptType
from torch.utils.data import DataLoader

from beir_cocodr.data.collection import Collection, load_labelled
from beir_cocodr.data.documents import Documents, dataset_documents, hashed_documents
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names, identical_ids
from beir_cocodr.io import json_sha256
from beir_cocodr.models.checkpoints.loading import fingerprint, load_encoder
from beir_cocodr.models.cocodr import COCODR, TwoSidedEncoder
from beir_cocodr.models.papers import PAPERS
from beir_cocodr.models.spec import BM25, ModelSpec, SearchOptions, check_device
from beir_cocodr.records import versions
from beir_cocodr.retrieval.ranking import Ranker, blocks
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.temporary import TemporaryFolder

__all__ = ["DenseSearch", "Encoder", "Search", "from_mteb", "load", "register", "task"]

_ORGANISATION = "beir-cocodr"

#: Kind of a model to its type in MTEB; that of all others is "hybrid".
_TYPES = {"dense": "dense", BM25: "sparse", "splade": "sparse", "colbert": "late-interaction"}

# Scores that are held at once where candidates are ranked.
_SCORES = 1 << 24

# Characters of a revision.
_REVISION = 16

_SIZES = {"base": (110_000_000, 768), "large": (335_000_000, 1024)}


def _published() -> dict[str, tuple[int, int, set[str]]]:
    """Return COCO-DR's published models: parameters, dimensions, and data of fine-tuning.

    That they saw the corpora of BEIR in pre-training, without queries or labels, has no field in
    MTEB.
    """
    models: dict[str, tuple[int, int, set[str]]] = {}
    for size, (parameters, dimensions) in _SIZES.items():
        models[f"OpenMatch/cocodr-{size}"] = (parameters, dimensions, set())
        models[f"OpenMatch/cocodr-{size}-msmarco"] = (parameters, dimensions, {"MSMARCO"})
    return models


_PUBLISHED = _published()

_COCODR: dict[str, object] = {
    "max_tokens": 512,
    "languages": ["eng-Latn"],
    "open_weights": True,
    "similarity_fn_name": ScoringFunction.DOT_PRODUCT,
    "framework": ["Sentence Transformers", "PyTorch"],
    "public_training_code": "https://github.com/OpenMatch/COCO-DR",
    "citation": PAPERS["yu2022cocodr"],
}


class Search:
    """A model that searches the corpus of a task: BM25, a fusion, or any other :class:`ModelSpec`.

    Args:
        model: Its name.
        options: How it searches; stores belong to one corpus and cannot be given.

    Raises:
        InputError: There is no such model, or the options have stores.
    """

    def __init__(self, model: str, options: SearchOptions = SearchOptions()) -> None:
        """Check the model; it is loaded when a corpus is searched."""
        spec = ModelSpec.parse(model)
        spec.check()
        check_device(options.encoder.device, [spec])
        if options.stores:
            raise InputError(
                "stores are of one corpus, and each task of MTEB has its own: leave them out"
            )
        self.model = model
        self.options = options
        kind = _TYPES.get(spec.kind.partition("@")[0], "hybrid")
        revision = json_sha256([versions(), options.describe()])[:_REVISION]
        self.mteb_model_meta = _meta(model, options, revision=revision, model_type=[kind])
        self._documents: Documents | None = None

    def __repr__(self) -> str:
        """Return the model's name, for MTEB's messages."""
        return str(self.mteb_model_meta.name)

    def index(self, corpus: Any, **kwargs: object) -> None:
        """Take a corpus, a ``Dataset`` with id, text and perhaps title."""
        self._folder = TemporaryFolder()
        documents = dataset_documents(corpus)
        with hashed_documents(documents) as hashed:
            self._documents = Documents(documents.table, hashed.content_hash)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        encode_kwargs: Any,
        top_ranked: Any = None,
        **kwargs: object,
    ) -> dict[str, dict[str, float]]:
        """Search for the queries of a task.

        Args:
            queries: A ``Dataset`` with id and text.
            task_metadata: Metadata of the task.
            top_k: Documents of each query.
            encode_kwargs: Batch size and progress bar, as MTEB passes them.
            top_ranked: Query id to the candidates to rank; None ranks the whole corpus.
            **kwargs: Further arguments of MTEB, ignored.

        Returns:
            Query id to {document id: score}.

        Raises:
            InputError: No corpus was indexed.
        """
        if self._documents is None:
            raise InputError("there is no corpus to search: call index before")
        batch_size = encode_kwargs.get("batch_size", self.options.batch_size)
        progress = encode_kwargs.get("show_progress_bar", False)
        options = replace(self.options, batch_size=batch_size, progress=progress)
        texts = _query_texts(queries, task_metadata, batch_size)
        ranker = self._ranker(self._documents, options)
        if top_ranked is None:
            results = ranker.search(texts, top_k).results(self._documents)
            return {query: dict(hits) for query, hits in results.items()}
        return self._rank_candidates(ranker, self._documents, texts, top_ranked, top_k)

    def _rank_candidates(
        self,
        ranker: Ranker,
        documents: Documents,
        texts: dict[str, str],
        top_ranked: Any,
        top_k: int,
    ) -> dict[str, dict[str, float]]:
        results = {}
        size = max(1, _SCORES // len(documents))
        for ids, part in blocks(texts, size):
            queries = dict(zip(ids, part, strict=True))
            ranking = ranker.search(queries, len(documents))
            for query, hits in ranking.results(documents).items():
                candidates = set(top_ranked.get(query, ()))
                kept = [hit for hit in hits if hit[0] in candidates]
                results[query] = dict(kept[:top_k])
        return results

    def _ranker(self, documents: Documents, options: SearchOptions) -> Ranker:
        return Resources(documents, self._folder.path, options).ranker(self.model)


def _query_texts(
    queries: Any,
    task_metadata: Any,
    batch_size: int,
) -> dict[str, str]:
    """Return query id to text, as MTEB makes one text of a conversation or instruction."""
    # A private module of the host, which its own models use.
    from mteb._create_dataloaders import create_dataloader

    batches = create_dataloader(
        queries, task_metadata=task_metadata, prompt_type=PromptType.query, batch_size=batch_size
    )
    texts = [text for batch in batches for text in batch["text"]]
    return dict(zip(queries["id"], texts, strict=True))


class DenseSearch(Search):
    """An encoder that searches, and does nothing else.

    An MRL and a hybrid encoder are no more to MTEB: they have no vectors for tasks that compare
    texts of one kind, as classification does. MTEB itself refuses these tasks.

    Args:
        model: Its name.
        options: How it searches.
        encoder: The encoder, if it is loaded already.
    """

    def __init__(
        self,
        model: str,
        options: SearchOptions = SearchOptions(),
        encoder: COCODR | None = None,
    ) -> None:
        """Load the encoder."""
        super().__init__(model, options)
        self.encoder = load_encoder(model, options.encoder) if encoder is None else encoder
        host = SentenceTransformerEncoderWrapper(self.encoder)
        self.mteb_model_meta = host.mteb_model_meta.model_copy(update=self._known_meta())

    def __repr__(self) -> str:
        """Return what the encoder is, for MTEB's messages."""
        kind = getattr(self.encoder, "kind", "an encoder")
        return f"{self.mteb_model_meta.name} ({kind}, which searches and compares no texts)"

    def _known_meta(self) -> dict[str, object]:
        """Return the fields of the metadata that this package knows better than the host."""
        weights = list(self.encoder.parameters())
        identity = [fingerprint(self.encoder), self.options.encoder.describe()]
        return {
            "name": self.mteb_model_meta.name,
            "loader": self.mteb_model_meta.loader,
            "model_type": self.mteb_model_meta.model_type,
            "revision": json_sha256(identity)[:_REVISION],
            "n_parameters": sum(weight.numel() for weight in weights),
            "memory_usage_mb": round(sum(weight.nbytes for weight in weights) / 2**20, 1),
            "max_tokens": self.encoder.text_format.document_length,
        }

    def _ranker(self, documents: Documents, options: SearchOptions) -> Ranker:
        return Dense(
            model=self.encoder,
            documents=documents,
            folder=self._folder.path,
            batch_size=options.batch_size,
            progress=options.shows_progress,
        )


class Encoder(DenseSearch):
    """An encoder, which searches as `Search` does and gives vectors to MTEB's other tasks.

    Args:
        model: Its name.
        options: How it searches.
        encoder: The encoder, if it is loaded already.
    """

    def __init__(
        self,
        model: str,
        options: SearchOptions = SearchOptions(),
        encoder: COCODR | None = None,
    ) -> None:
        """Load the encoder."""
        super().__init__(model, options, encoder)
        host = SentenceTransformerEncoderWrapper(self.encoder)
        self.encode = host.encode
        self.similarity = host.similarity
        self.similarity_pairwise = host.similarity_pairwise

    def __repr__(self) -> str:
        """Return the encoder's name."""
        return str(self.mteb_model_meta.name)


class HostEncoder:
    """A model of MTEB with sentence-transformers' methods.

    Args:
        model: An encoder of MTEB.
    """

    def __init__(self, model: Any) -> None:
        """Take the similarity from the model's metadata."""
        self.model = model
        similarity = model.mteb_model_meta.similarity_fn_name
        self.similarity_fn_name = getattr(similarity, "value", similarity) or "cosine"

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> Any:
        """Encode (N,) texts as documents to (N, d)."""
        return self._encode(texts, batch_size, PromptType.document)

    def encode_query(self, texts: Sequence[str], batch_size: int = 32) -> Any:
        """Encode (Q,) queries to (Q, d)."""
        return self._encode(texts, batch_size, PromptType.query)

    def _encode(
        self,
        texts: Sequence[str],
        batch_size: int,
        prompt_type: PromptType,
    ) -> Any:
        batches = DataLoader(Dataset.from_dict({"text": list(texts)}), batch_size=batch_size)
        return self.model.encode(
            batches,
            task_metadata=_task_metadata("search", "search"),
            hf_split="test",
            hf_subset="default",
            prompt_type=prompt_type,
            batch_size=batch_size,
            show_progress_bar=False,
        )


def from_mteb(model: Any) -> Any:
    """Return a model of MTEB as an encoder that ``evaluate``, ``compare`` and ``Searcher`` take.

    Args:
        model: An encoder of MTEB, such as ``mteb.get_model(NAME)``, or one of :func:`load`.

    Raises:
        InputError: The model has no ``encode``.

    Example:
        >>> import mteb
        >>> from beir_cocodr import evaluate
        >>> from beir_cocodr.plugins.mteb import from_mteb, load
        >>> type(from_mteb(load("minilm"))).__name__
        'COCODR'
    """
    if isinstance(model, DenseSearch):
        return model.encoder
    if isinstance(model, SentenceTransformerEncoderWrapper):
        return model.model
    if not hasattr(model, "encode"):
        raise InputError(
            f"the model {model.mteb_model_meta.name} of MTEB has no encode; give an encoder"
        )
    return HostEncoder(model)


def load(model: str, options: SearchOptions = SearchOptions()) -> Search:
    """Load a model for ``mteb.evaluate``.

    Its revision is a hash of weights, tokenizer, architecture and options, or of the versions of
    the packages that compute BM25 and fusions, so that MTEB's cache does not take one model for
    another.

    Args:
        model: Its name.
        options: How it searches.

    Returns:
        An `Encoder` where the name is of one, a `DenseSearch` if it is an MRL or a hybrid encoder,
        else a `Search`.

    Raises:
        InputError: The model cannot be loaded.
    """
    if ModelSpec.parse(model).kind != "dense":
        return Search(model, options)
    encoder = load_encoder(model, options.encoder)
    if isinstance(encoder, TwoSidedEncoder):
        return DenseSearch(model, options, encoder)
    return Encoder(model, options, encoder)


def mteb_name(model: str) -> str:
    """Return the name of a model in MTEB: the hub's, or beir-cocodr/NAME."""
    if model in _PUBLISHED:
        return model
    return f"{_ORGANISATION}/{re.sub(':', '-', file_names([model])[model])}"


def register(*models: str, options: SearchOptions = SearchOptions()) -> list[str]:
    """Put COCO-DR's published models and some others into MTEB's registry.

    Calling it again does no harm, and registers what has changed since.

    Args:
        *models: Names of models.
        options: How they search.

    Returns:
        The names of the models in MTEB.

    Raises:
        InputError: A model cannot be loaded, or MTEB has another model of its name.
    """
    for name, (parameters, dimensions, trained_on) in _PUBLISHED.items():
        MODEL_REGISTRY[name] = _meta(
            name,
            SearchOptions(),
            n_parameters=parameters,
            embed_dim=dimensions,
            training_datasets=trained_on,
            reference=f"https://huggingface.co/{name}",
            **_COCODR,
        )
    metas = {}
    for model in models:
        if model in _PUBLISHED:
            continue
        meta = load(model, options).mteb_model_meta
        known = MODEL_REGISTRY.get(meta.name)
        if known is not None and getattr(known.loader, "args", ("",))[0] != model:
            raise InputError(
                f"MTEB has a model {meta.name} already: give the folder of {model!r} another name"
            )
        metas[meta.name] = meta
    MODEL_REGISTRY.update(metas)
    return [mteb_name(model) for model in models]


def task(
    dataset: str,
    split: str = "test",
    languages: tuple[str, ...] = ("eng-Latn",),
) -> Any:
    """Return a labelled collection as a retrieval task of MTEB.

    ``mteb.get_task`` finds it by its name from then on.

    Args:
        dataset: As for :func:`~beir_cocodr.data.collection.load_collection`.
        split: The split of the labels.
        languages: As MTEB names them.

    Raises:
        InputError: The collection cannot be read or has no labels, or MTEB has another task of
            its name.
    """
    # A private name of the host, which `get_task` and what reads results look in.
    from mteb.get_tasks import _TASKS_REGISTRY

    collection = load_labelled(dataset, split)
    name = f"{_ORGANISATION}-{file_names([dataset])[dataset]}"
    content = [collection.documents.content_hash, collection.queries, collection.qrels]
    task_metadata = _task_metadata(
        name=name,
        dataset=dataset,
        revision=json_sha256(content)[:_REVISION],
        split=split,
        languages=list(languages),
    )

    class LocalRetrieval(AbsTaskRetrieval):
        source = (dataset, split)
        ignore_identical_ids = identical_ids(dataset) == "drop"
        metadata = task_metadata

        def load_data(self, *args: object, **kwargs: object) -> None:
            self.dataset = {"default": {split: _host_data(collection)}}
            self.data_loaded = True

    known = _TASKS_REGISTRY.get(name)
    if known is not None and getattr(known, "source", None) != (dataset, split):
        raise InputError(
            f"MTEB has a task {name} already: rename {dataset!r}, or use one split of it in a "
            "process"
        )
    _TASKS_REGISTRY[name] = LocalRetrieval
    return LocalRetrieval()


def _host_data(collection: Collection) -> dict[str, object]:
    """Return a collection as MTEB's tasks hold one."""
    queries = {"id": list(collection.queries), "text": list(collection.queries.values())}
    return {
        "corpus": Dataset(collection.documents.table.replace_schema_metadata()),
        "queries": Dataset.from_dict(queries),
        "top_ranked": None,
        # The host changes what it is handed.
        "relevant_docs": copy.deepcopy(collection.qrels),
    }


def _task_metadata(
    name: str,
    dataset: str,
    revision: str = "1",
    split: str = "test",
    languages: Sequence[str] = ("eng-Latn",),
) -> mteb.TaskMetadata:
    return mteb.TaskMetadata(
        name=name,
        description=f"{dataset}, as beir-cocodr reads it",
        dataset={"path": dataset, "revision": revision},
        type="Retrieval",
        category="t2t",
        eval_splits=[split],
        eval_langs=list(languages),
        main_score="ndcg_at_10",
        bibtex_citation="",
    )


def _load(
    model: str,
    options: SearchOptions,
    name: str,
    revision: str | None = None,
    **kwargs: Any,
) -> Search:
    """Load a model of MTEB's registry, as MTEB calls it."""
    device = kwargs.pop("device", None)
    if kwargs:
        raise InputError(f"{name} takes no {', '.join(kwargs)}; give options to register")
    if device is not None:
        options = replace(options, encoder=replace(options.encoder, device=device))
    return load(model, options)


def _meta(
    model: str,
    options: SearchOptions,
    **known: object,
) -> ModelMeta:
    """Return what MTEB records of a model; the fields that nobody knows are empty."""
    known["name"] = mteb_name(model)
    known["loader"] = partial(_load, model, options)
    return ModelMeta.create_empty(overwrites=known)
