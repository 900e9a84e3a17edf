"""Queries to the vectors that an index is searched by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F

from beir_cocodr.models.cocodr import COCODR


def query_vectors(model: COCODR, texts: list[str], batch_size: int) -> npt.NDArray[np.float32]:
    """(Q,) texts to (Q, w) float32, unit vectors where the model compares by cosine."""
    encoded = model.encode_queries(
        texts, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False
    )
    vectors = encoded.detach().float().cpu()
    normal = F.normalize(vectors, dim=-1) if model.similarity_fn_name == "cosine" else vectors
    found: npt.NDArray[np.float32] = normal.numpy()
    return found
