"""Mean and covariance of a corpus's embeddings, and of the scores of any query."""

import numpy as np
import torch

from beir_cocodr.retrieval.store.embeddings import Embeddings

# Scores whose deviation is this share of their terms' sizes differ by rounding alone.
_ROUNDING = 1e-8

# Squares of larger numbers are summed in double precision.
_SQUARED_IN_FLOAT32 = 1e15


class Moments:
    """Mean and covariance of the embeddings of a corpus.

    They are summed around a first mean, so that nothing is lost where all embeddings point in the
    same direction.

    Attributes:
        mean: (d,).
        covariance: (d, d).
        largest: the largest absolute number; NaN or infinite where one of them is.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        """Read the embeddings once."""
        width = embeddings.dimensions
        total = np.zeros(width)
        squares = np.zeros((width, width))
        largest = 0.0
        centre = torch.zeros(width)
        for number, chunk in enumerate(embeddings.chunks()):
            if number == 0:
                centre = chunk.double().mean(dim=0).float()
            moved = chunk - centre
            largest_here = float(chunk.abs().max())
            largest = float(np.maximum(largest, largest_here))
            if not largest < _SQUARED_IN_FLOAT32:  # also where it is NaN
                moved = moved.double()
            sums = moved.sum(dim=0, dtype=torch.float64)
            products = moved.T @ moved
            total += sums.numpy()
            squares += products.double().numpy()
        count = len(embeddings)
        moved_mean = total / count
        self.mean = moved_mean + centre.double().numpy()
        self.covariance = squares / count - np.outer(moved_mean, moved_mean)
        self.largest = largest

    def of_scores(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the means and deviations of the scores of all documents.

        Args:
            queries: (Q, d) query vectors.

        Returns:
            (Q,) means and (Q,) deviations; the deviation of constant scores is 0.
        """
        wide = queries.astype(np.float64)
        means = wide @ self.mean
        products = (wide @ self.covariance) * wide
        variance = products.sum(axis=1)
        deviation = np.sqrt(np.maximum(variance, 0))
        sizes = np.abs(wide).sum(axis=1)
        rounding = _ROUNDING * self.largest * sizes
        return means, np.where(deviation > rounding, deviation, 0)
