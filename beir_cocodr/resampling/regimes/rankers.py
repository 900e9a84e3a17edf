"""From a model, trained or given, to the ranker that searches with it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from beir_cocodr.data.documents import Documents
from beir_cocodr.models.checkpoints.integrity import loading
from beir_cocodr.models.spec import BM25 as BM25_NAME
from beir_cocodr.models.spec import EncoderOptions, ModelSpec, SearchOptions
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.tuned_bm25 import BM25_FILE, BM25Parameters
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hosted import CONFIG, Reranking, Sparse
from beir_cocodr.retrieval.late_interaction import LateInteraction, TokenSearch
from beir_cocodr.retrieval.ranking import Ranker
from beir_cocodr.retrieval.resources import Resources


@dataclass(frozen=True)
class HostKind:
    """A kind of model of sentence-transformers that is no dense encoder.

    Attributes:
        prefix: comes before a hub name, as in ``splade:NAME``.
        host_class: the class that a folder names.
        ranker: our class.
    """

    prefix: str
    host_class: str
    ranker: Callable[..., Ranker]


KINDS = (
    HostKind("splade", "SparseEncoder", Sparse),
    HostKind("late-interaction", "MultiVectorEncoder", LateInteraction),
    HostKind("cross-encoder", "CrossEncoder", Reranking),
)


def _host_kind(model: str) -> tuple[HostKind | None, str]:
    """Return the kind of a host's model, None for another model, and its folder or hub name."""
    prefix, _, name = model.partition(":")
    for kind in KINDS:
        if name and kind.prefix == prefix:
            return kind, name
    file = Path(model) / CONFIG
    if not file.is_file():
        return None, model
    with loading(model):
        recorded = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    return next((kind for kind in KINDS if kind.host_class == recorded), None), model


def is_shared(model: str, recipe: Recipe) -> bool:
    """Return true if a search by all processes together is less work for each.

    So it is for a dense model, whose corpus they encode together, and for the reranking of BM25's
    results, but not where each process would make an index of the corpus alone.
    """
    kind, _ = _host_kind(model)
    if kind is not None:
        return kind.ranker is Reranking and recipe.first_stage == BM25_NAME
    if (Path(model) / BM25_FILE).is_file():
        return False
    return ModelSpec.parse(model).kind == "dense"


def load_ranker(
    model: str,
    documents: Documents,
    work: Path,
    recipe: Recipe,
    *,
    progress: bool = False,
) -> Ranker:
    """Load the ranker of a model over one corpus.

    Args:
        model: a folder that an architecture saved; any folder of sentence-transformers;
            ``splade:``, ``late-interaction:`` or ``cross-encoder:`` and a hub name; or another name
            that ``evaluate`` takes for a model.
        documents: the corpus.
        work: folder for embeddings; the caller removes it.
        recipe: lengths of dense encoders, first stage and depth of reranking, batch size and
            device.
        progress: show bars on stderr.

    Raises:
        InputError: The model cannot be loaded.
    """
    tuned = Path(model) / BM25_FILE
    if tuned.is_file():
        parameters = BM25Parameters.read(tuned)
        return BM25(documents, k1=parameters.k1, b=parameters.b)
    batch_size = recipe.encode_batch_size
    options = SearchOptions(recipe.encoder, batch_size=batch_size, progress=progress)
    resources = Resources(documents, work, options)
    kind, name = _host_kind(model)
    if kind is None:
        return resources.ranker(model)
    # The models of a host have lengths of their own.
    options = SearchOptions(EncoderOptions(device=recipe.device), batch_size=batch_size)
    if kind.ranker is LateInteraction:
        search = TokenSearch if recipe.candidates == "tokens" else LateInteraction
        return search(name, documents, options, folder=work)
    first = None
    if kind.ranker is Reranking:
        first = resources.ranker(recipe.first_stage)
    return kind.ranker(
        name,
        documents,
        options,
        first,
        recipe.rerank,
    )
