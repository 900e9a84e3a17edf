"""From a trained or given model to something that ranks a corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.resampling.regimes.tuned_bm25 import BM25_FILE
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import Retriever
from beir_cocodr.retrieval.retrievers import Retrievers

_CONFIG = "config_sentence_transformers.json"
#: What stands before a hub name that is no dense encoder, and the host's name for it.
KINDS = {"splade": "SparseEncoder", "late-interaction": "MultiVectorEncoder", "cross-encoder": "CrossEncoder"}


def load_retriever(
    model: str, documents: Documents, work: Path, recipe: Recipe, progress: bool = False
) -> Retriever:
    """A retriever over one corpus; what kind it is, its folder tells.

    Args:
        model: a folder that an architecture saved; any folder of sentence-transformers; ``splade:``,
            ``late-interaction:`` or ``cross-encoder:`` and a hub name; or what `evaluate` takes for a model.
        documents: the corpus.
        work: folder for embeddings; the caller removes it.
        recipe: lengths of dense encoders, first stage and depth of reranking, batch size and device.
        progress: show bars on stderr.

    Raises:
        InputError: the model cannot be loaded.
    """
    batch = recipe.encode_batch_size
    retrievers = Retrievers(documents, work, batch_size=batch, progress=progress, **recipe.encoder)
    tuned = Path(model) / BM25_FILE
    if tuned.is_file():
        found = json.loads(tuned.read_text())
        return BM25(documents, k1=found["k1"], b=found["b"])
    prefix, _, name = model.partition(":")
    kind = KINDS.get(prefix) if name else _kind(model)
    if kind is None:
        return retrievers.get(model)
    return _host(kind, name if prefix in KINDS else model, retrievers, recipe, progress)


def _kind(model: str) -> str | None:
    """The host's name for what is not dense; None for everything else."""
    file = Path(model) / _CONFIG
    if not file.is_file():
        return None
    kind = json.loads(file.read_text()).get("model_type")
    return kind if kind in KINDS.values() else None


def _host(kind: str, name: str, retrievers: Retrievers, recipe: Recipe, progress: bool) -> Retriever:
    # Imported here because a run of BM25 alone must not pay six seconds for torch.
    import sentence_transformers

    from beir_cocodr.resampling.regimes.late_retriever import LateInteractionRetriever
    from beir_cocodr.resampling.regimes.rerank_retriever import RerankRetriever
    from beir_cocodr.resampling.regimes.sparse_retriever import SparseRetriever

    try:
        model: Any = getattr(sentence_transformers, kind)(name, device=recipe.device)
    except (OSError, ValueError) as error:
        raise InputError(f"model {name!r} cannot be loaded as a {kind}: {error}") from error
    documents, text_format = retrievers.documents, TextFormat()
    options: dict[str, Any] = {"batch_size": recipe.encode_batch_size, "progress": progress}
    if kind == "SparseEncoder":
        return SparseRetriever(model, documents, text_format, **options)
    if kind == "MultiVectorEncoder":
        return LateInteractionRetriever(model, documents, text_format, **options)
    first = retrievers.get(recipe.first_stage)
    return RerankRetriever(model, first, recipe.rerank, documents, text_format, **options)
