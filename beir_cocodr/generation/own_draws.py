"""Sampling in which each text has random numbers of its own, whatever is read beside it."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LogitsProcessor

from beir_cocodr.arrays import Doubles


def draws_of(seeds: Sequence[Sequence[int]], samples: int, length: int) -> Doubles:
    """Return the random numbers of some texts.

    Args:
        seeds: The seed of each of n texts, as whole numbers from 0.
        samples: Samples of each text.
        length: Tokens of a sample at most.

    Returns:
        (n * samples, length) float64 from 0 to below 1.
    """
    draws = [np.random.default_rng(seed).random((samples, length)) for seed in seeds]
    return np.concatenate(draws)


class OwnDraws(LogitsProcessor):  # type: ignore[misc]  # the host has no types
    """Leaves of each distribution the one token that a given random number draws.

    The host draws the tokens of a batch from one stream of random numbers, so that a sample depends
    on what is sampled beside it. Here the distribution is inverted: with its tokens in descending
    order, the first one is taken up to which they have more probability than the number. Only the
    ``top_k`` most probable tokens count, and of these only the first ones that together reach the
    probability ``top_p``. A distribution that is no numbers stays so, for the host to refuse.

    Args:
        draws: (n, length) numbers from 0 to 1, one for each token of n samples.
        top_k: The most tokens that are drawn from.
        top_p: The probability that they reach together.

    References:
        Holtzman et al., The curious case of neural text degeneration, 2020 (the nucleus).
    """

    def __init__(self, draws: Doubles, top_k: int, top_p: float) -> None:
        """Begin with the numbers of the first token."""
        self._columns = iter(draws.T)
        self.top_k = top_k
        self.top_p = top_p

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return (n, vocabulary) scores that are -inf, except for one token of each sample."""
        draws = torch.tensor(next(self._columns), dtype=scores.dtype, device=scores.device)
        likely, tokens = scores.topk(min(self.top_k, scores.shape[1]))  # descending
        probabilities = likely.softmax(1)
        reached = probabilities.cumsum(1)
        is_in_nucleus = reached - probabilities < self.top_p
        nucleus = (probabilities * is_in_nucleus).sum(1)
        positions = (reached <= (draws * nucleus)[:, None]).sum(1)
        last = is_in_nucleus.sum(1) - 1  # rounding must not lead beyond it
        drawn = positions.minimum(last).clamp(min=0)[:, None]
        alone = torch.full_like(scores, -torch.inf)
        return alone.scatter(1, tokens.gather(1, drawn), likely.gather(1, drawn))
