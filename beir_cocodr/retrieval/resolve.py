"""Whatever a user calls a model, resolved to a label and a `ModelSpec` where it enters.

Nothing here imports torch: a loaded object is known by its methods.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from beir_cocodr import load_plugin
from beir_cocodr.errors import InputError, check_name, check_names, kind_of
from beir_cocodr.models.spec import RETRIEVER, RUN, ModelSpec, ways_to_use

log = logging.getLogger(__name__)


@runtime_checkable
class Retriever(Protocol):
    """Any system that searches: a class with this one method joins every evaluation.

    Example:
        >>> from beir_cocodr import evaluate
        >>> class Constant:
        ...     def search(self, queries, top_k):
        ...         return {query: {"d1": 1.0} for query in queries}
        >>> triple = {"d1": "Sort.", "d2": "Draw."}, {"q": "sort"}, {"q": {"d1": 1}}
        >>> record = evaluate(Constant(), triple, measures="nDCG@10")
        >>> record.models["Constant"].measures
        {'nDCG@10': 1.0}
    """

    def search(self, queries: dict[str, str], top_k: int) -> dict[str, dict[str, float]]:
        """Return query id to {document id: score} for query id to text."""
        ...


#: What a user may call a model: a name, a path, a spec, or an object.
Model: TypeAlias = object

#: What a user may call several models: one, several, or a mapping from labels to them.
Models: TypeAlias = object

#: What is accepted, for error messages.
ACCEPTED = (
    "a name, a path, a ModelSpec, an object with encode (such as a SentenceTransformer) "
    "or with search(queries, top_k), or a run {query id: {document id: score}}"
)

#: The most documents for which a hybrid encoder is tried before one is fused.
MOST_FOR_VECTORS = 50_000

# How the names of runs end; no encoder is named like this.
_RUN_SUFFIXES = (".run", ".trec", ".gz")

# What evaluate writes beside runs, and what a model has.
_RESULTS = "results.json"
_MODEL_FILES = ("modules.json", "config.json")

# The methods by which an object is known as an encoder: sentence-transformers' or BEIR's.
_ENCODES = (("encode",), ("encode_queries", "encode_corpus"))


def resolve_models(models: Models) -> dict[str, ModelSpec]:
    """Return label to model for whatever a user calls one or several models.

    Args:
        models: one model, several, or a mapping from labels to models. A model is a name, a path,
            the path of a TREC run, a ``ModelSpec``, an object with ``encode``, a :class:`Retriever`
            or a run {query id: {document id: score}}.

    Returns:
        The models by label: the keys of the mapping, the names, or the classes of objects.

    Raises:
        InputError: If there is no model, one label occurs twice, or an object is none of these.
    """
    if _is_labelled(models):
        assert isinstance(models, Mapping)
        specs = {}
        for key, model in models.items():
            label = str(key)
            specs[label] = resolve_model(model, label)
        check_names("model", list(specs))
        return specs
    several: list[Any] = [models]
    is_name = isinstance(models, str | Path)
    if isinstance(models, Iterable) and not is_name and not _is_one(models):
        several = list(models)
    specs = {}
    for spec in (resolve_model(model) for model in several):
        if spec.name in specs and spec.loaded is not None:
            raise InputError(
                f"two models are called {spec.name!r}; give a mapping from labels to models"
            )
        if spec.name in specs:
            raise InputError(f"model {spec.name!r} is named twice")
        specs[spec.name] = spec
    check_names("model", list(specs))
    return specs


def resolve_model(
    model: Model,
    label: str | None = None,
    argument: str = "models",
) -> ModelSpec:
    """Return the spec of one model.

    Args:
        model: as for :func:`resolve_models`.
        label: name of an object; by default its class.
        argument: how messages call it.

    Raises:
        InputError: If it is none of these.
    """
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, str | Path):
        return _resolve_name(str(model))
    name = label or type(model).__name__
    if hasattr(model, "mteb_model_meta"):
        model = load_plugin("mteb model")(model)
    if _is_encoder(model):
        return ModelSpec(name, "dense", name, loaded=model)
    if isinstance(model, Retriever):
        return ModelSpec(name, RETRIEVER, name, loaded=model)
    if _is_run(model):
        return ModelSpec(label or RUN, RUN, label or RUN, loaded=model)
    raise InputError(f"{argument} is {kind_of(model)}; give {ACCEPTED}")


def uses_of(encoder: str | ModelSpec, documents: int) -> dict[str, ModelSpec]:
    """Return the ways to search with an encoder without training, BM25 first.

    Args:
        encoder: The name of the encoder. Only a plain one can be fused into a hybrid encoder.
        documents: The size of the corpus. A hybrid encoder is tried on small ones only.

    Raises:
        InputError: If the name is of no encoder.
    """
    spec = resolve_model(encoder)
    if spec.kind != "dense" or spec.loaded is not None:
        raise InputError(
            f"{spec.name} is not an encoder: name an encoder, whose uses are compared, or at "
            "least two models"
        )
    # Only an encoder needs torch, which this imports.
    from beir_cocodr.models.checkpoints.loading import is_plain

    specs = {name: ModelSpec.parse(name) for name in ways_to_use(spec.name)}
    if not is_plain(spec.name):
        log.info(
            "vector:M is not compared, because only a plain encoder can be fused, and %s is not "
            "one",
            spec.name,
        )
    elif documents > MOST_FOR_VECTORS:
        log.info(
            "%d documents: vector:M is not compared, because fusing so many takes long; name a "
            "model that fuse has made",
            documents,
        )
    else:
        return specs
    return {name: use for name, use in specs.items() if use.kind != "vector"}


def _is_encoder(model: object) -> bool:
    """Return true for an object with all methods of one of the ways to encode."""
    return any(_has_methods(model, methods) for methods in _ENCODES)


def _has_methods(model: object, methods: Iterable[str]) -> bool:
    return all(hasattr(model, method) for method in methods)


def _resolve_name(name: str) -> ModelSpec:
    """Return the spec of a name or a path; the path of a file is a run."""
    check_name("model name", name)
    if Path(name).is_file():
        return ModelSpec(name, RUN, name)
    spec = ModelSpec.parse(name)
    is_run = spec.kind == RUN or Path(name).suffix in _RUN_SUFFIXES
    if is_run and not Path(spec.encoder).exists():
        raise InputError(
            f"{name!r}: there is no file {spec.encoder!r}; give a TREC run such as evaluate and "
            "search write"
        )
    folder = Path(name)
    has_model = any((folder / file).is_file() for file in _MODEL_FILES)
    if (folder / _RESULTS).is_file() and not has_model:
        raise InputError(
            f"{name!r} is a folder of results, not a model; name a run in it, such as "
            f"{folder / 'MODEL.run'}"
        )
    return spec


def _is_one(models: Any) -> bool:
    """Return true for an iterable that is one model, such as a SentenceTransformer or a run."""
    return hasattr(models, "encode") or hasattr(models, "search") or _is_run(models)


def _is_labelled(models: Models) -> bool:
    return isinstance(models, Mapping) and not _is_run(models)


def _is_run(model: object) -> bool:
    """Return true for {query id: {document id: score}}, whose scores are numbers."""
    if not isinstance(model, Mapping) or not model:
        return False
    return all(_is_hits(hits) for hits in model.values())


def _is_hits(hits: object) -> bool:
    if not isinstance(hits, Mapping):
        return False
    return all(isinstance(score, int | float) for score in hits.values())
