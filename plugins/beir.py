"""What a BEIR script needs of this package, in one import; nothing of BEIR is patched.

BEIR has no registry. Our models go into its classes as they are: ``DenseRetrievalExactSearch(COCODR(...))`` works, as
it asks for ``encode_queries`` and ``encode_corpus`` only. `ExactSearch` stands in for that class, and `evaluator` and
`load` save the lines around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beir.retrieval.evaluation import EvaluateRetrieval

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.mrl import MRL
from beir_cocodr.retrieval.exact import ExactSearch

__all__ = ["COCODR", "MRL", "ExactSearch", "evaluator", "load", "load_encoder", "score_function"]

_SCORE_FUNCTIONS = {"cosine": "cos_sim", "dot": "dot"}


def score_function(model: Any) -> str:
    """BEIR's name for the similarity that a model was trained for, where BEIR itself takes "cos_sim" for any model; an
    InputError where the model declares none, or one that BEIR does not have.
    """
    declared = getattr(model, "similarity_fn_name", None)
    declared = getattr(declared, "value", declared)
    if declared not in _SCORE_FUNCTIONS:
        raise InputError(
            f"the model declares the similarity {declared!r}, BEIR has cosine and dot: name a score function"
        )
    return _SCORE_FUNCTIONS[declared]


def evaluator(
    model: Any, k_values: Sequence[int] = (1, 3, 5, 10, 100, 1000), *, store: str | Path | None = None, **search: Any
) -> EvaluateRetrieval:
    """BEIR's ``EvaluateRetrieval`` over `ExactSearch`, with the model's own similarity.

    Args:
        model: an encoder, or the name of one.
        k_values: as BEIR's, with its defaults.
        store: folder that keeps the corpus embeddings; what stands there is not encoded again, and an interrupted
            encoding goes on where it stopped.
        **search: passed on to `ExactSearch` (``batch_size``, ``ignore_identical_ids``, ...).
    """
    encoder = load_encoder(model) if isinstance(model, (str, Path)) else model
    search_with = ExactSearch(encoder, store=store, **search)
    return EvaluateRetrieval(search_with, list(k_values), score_function(encoder))


def load(dataset: str | Path, split: str = "test") -> tuple[Documents, dict[str, str], dict[str, dict[str, int]]]:
    """The triple of BEIR's ``GenericDataLoader``, of any collection that :func:`load_collection` reads.

    The corpus is memory-mapped; it is a mapping from document id to {"title", "text"} as BEIR's is.
    """
    collection = load_collection(dataset, split)
    return collection.documents, collection.queries, collection.qrels
