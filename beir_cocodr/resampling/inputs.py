"""What every way of resampling starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from beir_cocodr.resampling.embedding_cache import query_embeddings
from beir_cocodr.resampling.origin import Origin, origin
from beir_cocodr.resampling.query_embeddings import QueryEmbeddings
from beir_cocodr.resampling.query_encoder import QueryEncoder
from beir_cocodr.resampling.train_test import TrainTest


@dataclass(frozen=True)
class Inputs:
    """A training and a test set with the embeddings of their queries.

    Attributes:
        pair: the sets; the order of their queries is that of the rows.
        train_origin, test_origin: where they come from.
        encoder: what the similarity depends on.
        train, test: (N, d) and (T, d) embeddings.
    """

    pair: TrainTest
    train_origin: Origin
    test_origin: Origin
    encoder: dict[str, Any]
    train: QueryEmbeddings
    test: QueryEmbeddings


def embed_inputs(pair: TrainTest, splits: tuple[str, str], encoder: str, **options: Any) -> Inputs:
    """Embed the queries of both sets.

    Args:
        pair: the sets.
        splits: of training and test set, as they were asked for.
        encoder, **options: as for :class:`QueryEncoder`.

    Raises:
        InputError: there is no such encoder, or its embeddings cannot be used.
    """
    model = QueryEncoder(encoder, **options)
    train, test = (query_embeddings(model, part.queries) for part in (pair.train, pair.test))
    origins = [origin(part.name, split) for part, split in zip((pair.train, pair.test), splits, strict=True)]
    return Inputs(pair, origins[0], origins[1], model.describe(), train, test)
