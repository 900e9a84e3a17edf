"""Late interaction by the host's own encoder, for benchmarks that compare with it."""

from __future__ import annotations

import logging
import statistics
from functools import partial
from typing import Any

from stopwatch import seconds

BATCH = 64


def late_interaction(texts: list[str], queries: list[str], count: int, repeats: int) -> dict[str, Any]:
    """Storage and exact MaxSim over some windows, and what both come to for ``count`` of them.

    Documents are padded once, beforehand; the host's own `similarity` would do it at every query.
    """
    import torch
    from sentence_transformers import MultiVectorEncoder

    from beir_cocodr.models.loading import model_source

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)  # an untrained projection, we know
    model = MultiVectorEncoder(model_source("minilm"), device="cpu")
    documents = model.encode_document(texts, batch_size=BATCH, show_progress_bar=False)
    vectors = sum(len(document) for document in documents)
    padded = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence(
        [torch.ones(len(document), dtype=torch.bool) for document in documents], batch_first=True
    )
    encoded = model.encode_query(queries, show_progress_bar=False)

    def search(query: Any) -> Any:
        return model.similarity([query], padded, b_mask=mask).topk(10)

    with torch.inference_mode():
        rounds = [
            1000 * statistics.median(seconds(partial(search, query)) for query in encoded) for _ in range(repeats)
        ]
    scale, dimensions = count / len(texts), padded.shape[2]
    return {
        "windows": len(texts),
        "vectors_a_window": vectors / len(texts),
        "dimensions": dimensions,
        "bytes": vectors * dimensions * 4,
        "milliseconds": rounds,
        "scaled_to": count,
        "scaled_bytes": vectors * dimensions * 4 * scale,
        "scaled_milliseconds": statistics.median(rounds) * scale,
    }
