"""From a trained or given model to something that ranks a corpus."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from beir_cocodr.data.documents import Documents
from beir_cocodr.models.integrity import loading
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.architectures import BM25_FILE, BM25Parameters
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hosted import CONFIG, LateInteraction, Reranking, Sparse
from beir_cocodr.retrieval.ranking import Retriever
from beir_cocodr.retrieval.retrievers import Retrievers

#: What stands before a hub name that is no dense encoder, the host's class that a folder names, and ours.
KINDS: dict[str, tuple[str, Callable[..., Retriever]]] = {
    "splade": ("SparseEncoder", Sparse),
    "late-interaction": ("MultiVectorEncoder", LateInteraction),
    "cross-encoder": ("CrossEncoder", Reranking),
}


def load_retriever(model: str, documents: Documents, work: Path, recipe: Recipe, progress: bool = False) -> Retriever:
    """A retriever over one corpus, of the kind that its folder has.

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
    options = SearchOptions(recipe.encoder, batch_size=recipe.encode_batch_size, progress=progress)
    retrievers = Retrievers(documents, work, options)
    if (tuned := Path(model) / BM25_FILE).is_file():
        found = BM25Parameters.read(tuned)
        return BM25(documents, k1=found.k1, b=found.b)
    prefix, _, name = model.partition(":")
    kind = KINDS[prefix][1] if name and prefix in KINDS else None
    if kind is None:
        name, file = model, Path(model) / CONFIG
        with loading(name) if file.is_file() else nullcontext():
            recorded = json.loads(file.read_text(encoding="utf-8")).get("model_type") if file.is_file() else None
        kind = next((kind for host, kind in KINDS.values() if host == recorded), None)
    if kind is None:
        return retrievers.get(model)
    # Those that training made have their own lengths.
    options = SearchOptions(EncoderOptions(device=recipe.device), batch_size=options.batch_size)
    first = retrievers.get(recipe.first_stage) if kind is Reranking else None
    return kind(name, documents, options, first, recipe.rerank)
