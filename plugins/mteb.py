"""MTEB: every model name of this package as a model of MTEB, and every collection as a task.

``load("hybrid:minilm")`` goes into ``mteb.evaluate`` as it is; after
``register("runs/mine/models/best")`` MTEB finds the model by its name, as its command line does::

    import mteb
    from beir_cocodr.plugins.mteb import load, task

    found = mteb.evaluate(load("hybrid:minilm"), task("apidocs/numpy"))

Searches are this package's: figures are those of ``evaluate``.
"""

import copy
import re
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mteb
from mteb.abstasks import AbsTaskRetrieval
from mteb.models import ModelMeta, SentenceTransformerEncoderWrapper
from mteb.models.model_implementations import MODEL_REGISTRY
from mteb.models.model_meta import ScoringFunction
from mteb.types import PromptType

from beir_cocodr.data.collection import load_labelled
from beir_cocodr.data.documents import Documents, dataset_documents, hashed_documents
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names, identical_ids
from beir_cocodr.io import json_sha256
from beir_cocodr.models.loading import fingerprint, load_encoder
from beir_cocodr.models.papers import PAPERS
from beir_cocodr.models.spec import BM25, ModelSpec, SearchOptions, check_device
from beir_cocodr.records import versions
from beir_cocodr.retrieval.dense import Dense
from beir_cocodr.retrieval.ranking import Ranker, blocks
from beir_cocodr.retrieval.resources import Resources

__all__ = ["Encoder", "Search", "load", "register", "task"]

_ORGANISATION = "beir-cocodr"

#: Kind of a model to its type in MTEB; of all others "hybrid".
_TYPES = {"dense": "dense", BM25: "sparse", "splade": "sparse", "colbert": "late-interaction"}

# Scores held at once where given candidates are ranked.
_SCORES = 1 << 24

#: COCO-DR's published models: parameters and dimensions of their BERT, and what they were
#: fine-tuned on. That they saw the corpora of BEIR in pre-training, without queries or labels, has
#: no field there.
_PUBLISHED = {
    f"OpenMatch/cocodr-{size}{tuned}": (parameters, dimensions, {"MSMARCO"} if tuned else set())
    for size, parameters, dimensions in (("base", 110_000_000, 768), ("large", 335_000_000, 1024))
    for tuned in ("", "-msmarco")
}

_COCODR: dict[str, Any] = {
    "max_tokens": 512,
    "languages": ["eng-Latn"],
    "open_weights": True,
    "similarity_fn_name": ScoringFunction.DOT_PRODUCT,
    "framework": ["Sentence Transformers", "PyTorch"],
    "public_training_code": "https://github.com/OpenMatch/COCO-DR",
    "citation": PAPERS["yu2022cocodr"],
}


class Search:
    """A model that searches a task's corpus: BM25, a fusion, or anything else that
    :class:`ModelSpec` names. An InputError where there is none, or the options have stores, which
    are of one corpus.
    """

    def __init__(self, model: str, options: SearchOptions = SearchOptions()) -> None:
        spec = ModelSpec.parse(model)
        spec.check()
        check_device(options.encoder.device, [model])
        if options.stores:
            raise InputError(
                "stores are of one corpus, and each task of MTEB has its own: leave them out"
            )
        self.model, self.options = model, options
        kind = _TYPES.get(spec.kind.partition("@")[0], "hybrid")
        revision = json_sha256([versions(), options.describe()])[:16]
        self.mteb_model_meta = _meta(model, options, revision=revision, model_type=[kind])
        self._documents: Documents | None = None

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Take a corpus, a ``Dataset`` with id, text and perhaps title."""
        self._folder = tempfile.TemporaryDirectory(
            prefix="beir-cocodr-", ignore_cleanup_errors=True
        )
        with hashed_documents(dataset_documents(corpus)) as hashed:
            self._documents = Documents(dataset_documents(corpus).table, hashed.content_hash)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        encode_kwargs: Any,
        top_ranked: Any = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Query id to {document id: score}, of ``top_k`` documents; of the given candidates where
        there are some.
        """
        # A private module of the host, which its own models use: it makes one text of a
        # conversation or instruction.
        from mteb._create_dataloaders import create_dataloader

        if self._documents is None:
            raise InputError("there is no corpus to search: call index before")
        documents, batch_size = (
            self._documents,
            encode_kwargs.get("batch_size", self.options.batch_size),
        )
        batches = create_dataloader(
            queries,
            task_metadata=task_metadata,
            prompt_type=PromptType.query,
            batch_size=batch_size,
        )
        texts = dict(
            zip(queries["id"], (text for batch in batches for text in batch["text"]), strict=True)
        )
        options = replace(
            self.options,
            batch_size=batch_size,
            progress=encode_kwargs.get("show_progress_bar", False),
        )
        retriever = self._retriever(documents, options)
        if top_ranked is None:
            return {
                query: dict(hits)
                for query, hits in retriever.search(texts, top_k).results(documents).items()
            }
        results = {}
        for ids, part in blocks(texts, max(1, _SCORES // len(documents))):
            ranking = retriever.search(dict(zip(ids, part, strict=True)), len(documents))
            for query, hits in ranking.results(documents).items():
                wanted = set(top_ranked.get(query, ()))
                results[query] = dict([hit for hit in hits if hit[0] in wanted][:top_k])
        return results

    def _retriever(self, documents: Documents, options: SearchOptions) -> Ranker:
        return Resources(documents, Path(self._folder.name), options).ranker(self.model)


class Encoder(Search):
    """An encoder: searches as `Search` does, and gives vectors to MTEB's other tasks. An MRL and a
    hybrid encoder have none for tasks that compare texts of one kind, as classification does: an
    InputError.
    """

    def __init__(self, model: str, options: SearchOptions = SearchOptions()) -> None:
        super().__init__(model, options)
        self.encoder = load_encoder(model, options.encoder)
        host = SentenceTransformerEncoderWrapper(self.encoder)
        self.encode, self.similarity, self.similarity_pairwise = (
            host.encode,
            host.similarity,
            host.similarity_pairwise,
        )
        known, weights = self.mteb_model_meta, list(self.encoder.parameters())
        self.mteb_model_meta = host.mteb_model_meta.model_copy(
            update={
                **{name: getattr(known, name) for name in ("name", "loader", "model_type")},
                "revision": json_sha256([fingerprint(self.encoder), options.encoder.describe()])[
                    :16
                ],
                "n_parameters": sum(weight.numel() for weight in weights),
                "memory_usage_mb": round(sum(weight.nbytes for weight in weights) / 2**20, 1),
                "max_tokens": self.encoder.text_format.document_length,
            }
        )

    def _retriever(self, documents: Documents, options: SearchOptions) -> Ranker:
        return Dense(
            self.encoder, documents, Path(self._folder.name), options.batch_size, options.progress
        )


def load(model: str, options: SearchOptions = SearchOptions()) -> Search:
    """A model for ``mteb.evaluate``: an `Encoder` where the name is of one, else a `Search`. Its
    revision is a hash of weights, tokenizer, architecture and options, or of the versions of what
    BM25 and fusions are computed by: MTEB's cache does not take one for another.
    """
    return (Encoder if ModelSpec.parse(model).kind == "dense" else Search)(model, options)


def mteb_name(model: str) -> str:
    """The name of a model in MTEB, which has an organisation before a slash: the hub's, or
    beir-cocodr/NAME.
    """
    if model in _PUBLISHED:
        return model
    return f"{_ORGANISATION}/{re.sub(':', '-', file_names([model])[model])}"


def register(*models: str, options: SearchOptions = SearchOptions()) -> list[str]:
    """Put COCO-DR's published models into MTEB's registry, and these, whose names there it gives.
    Calling it again does no harm, and takes what has changed since. An InputError where a model is
    not found, or MTEB has its name already.
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
    metas = [
        (model, load(model, options).mteb_model_meta) for model in models if model not in _PUBLISHED
    ]
    for model, meta in metas:
        known = MODEL_REGISTRY.get(meta.name)
        if known is not None and getattr(known.loader, "args", ("",))[0] != model:
            raise InputError(
                f"MTEB has a model {meta.name} already: give the folder of {model!r} another name"
            )
    MODEL_REGISTRY.update({meta.name: meta for _, meta in metas})
    return [mteb_name(model) for model in models]


def task(dataset: str, split: str = "test", languages: tuple[str, ...] = ("eng-Latn",)) -> Any:
    """A labelled collection as a retrieval task of MTEB, in these languages as MTEB names them;
    ``mteb.get_task`` finds it by its name from then on. An InputError where it cannot be found or
    has no labels, or MTEB has its name already.
    """
    # A private name of the host, which `get_task` and what reads results look in; there is no other
    # way to it.
    from mteb.get_tasks import _TASKS_REGISTRY

    collection = load_labelled(dataset, split)
    labels = json_sha256([collection.documents.content_hash, collection.queries, collection.qrels])

    class LocalRetrieval(AbsTaskRetrieval):
        source = (dataset, split)
        ignore_identical_ids = identical_ids(dataset) == "drop"
        metadata = mteb.TaskMetadata(
            name=f"{_ORGANISATION}-{file_names([dataset])[dataset]}",
            description=f"{dataset}, as beir-cocodr reads it",
            dataset={"path": dataset, "revision": labels[:16]},
            type="Retrieval",
            category="t2t",
            eval_splits=[split],
            eval_langs=list(languages),
            main_score="ndcg_at_10",
            bibtex_citation="",
        )

        def load_data(self, *args: Any, **kwargs: Any) -> None:
            from datasets import Dataset

            queries = Dataset.from_dict(
                {"id": list(collection.queries), "text": list(collection.queries.values())}
            )
            corpus = Dataset(collection.documents.table.replace_schema_metadata())
            parts = {"corpus": corpus, "queries": queries, "top_ranked": None}
            # The host changes what it is given.
            self.dataset = {
                "default": {split: {**parts, "relevant_docs": copy.deepcopy(collection.qrels)}}
            }
            self.data_loaded = True

    name = LocalRetrieval.metadata.name
    known = _TASKS_REGISTRY.get(name)
    if known is not None and getattr(known, "source", None) != (dataset, split):
        raise InputError(
            f"MTEB has a task {name} already: rename {dataset!r}, or take one split of it in a process"
        )
    _TASKS_REGISTRY[name] = LocalRetrieval
    return LocalRetrieval()


def _load(
    model: str, options: SearchOptions, name: str, revision: str | None = None, **kwargs: Any
) -> Search:
    """What MTEB calls to load a model of its registry."""
    device = kwargs.pop("device", None)
    if kwargs:
        raise InputError(f"{name} takes no {', '.join(kwargs)}; give options to register")
    return load(
        model,
        options
        if device is None
        else replace(options, encoder=replace(options.encoder, device=device)),
    )


def _meta(model: str, options: SearchOptions, **known: Any) -> ModelMeta:
    """What MTEB records of a model; the rest is what nobody knows."""
    known |= {"name": mteb_name(model), "loader": partial(_load, model, options)}
    return ModelMeta.create_empty(overwrites=known)
