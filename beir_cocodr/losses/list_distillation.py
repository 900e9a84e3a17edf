"""Listwise distillation with two terms: the divergence of a list, and the margins to its best."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beir_cocodr.losses.gradient_cache import OptionalGradientCache
from beir_cocodr.records import Json

#: Scores of (B, d) queries and (B, d) documents, (B,).
Similarity = Callable[[Tensor, Tensor], Tensor]


def list_distillation_loss(
    student: Tensor, teacher: Tensor, margin_weight: float, temperature: float = 1.0
) -> Tensor:
    """Return the KL divergence from the teacher's distribution over a list, and a margin term.

    KL(softmax(t/T) ‖ softmax(s)) makes the student order a list as the teacher does. The margin
    term is the mean squared error of the margins s_best − s_j to the teacher's, t_best/T − t_j/T,
    where the best document is the teacher's. It keeps far apart what the teacher keeps far apart:
    there, probabilities are all but 0, and the divergence says little.

    Args:
        student: (B, n) scores.
        teacher: (B, n) scores.
        margin_weight: Weight of the margin term, against 1 of the divergence.
        temperature: T, by which the teacher's scores are divided.

    Returns:
        The mean over the lists, a scalar.

    References:
        Cao et al., Learning to rank: from pairwise approach to listwise approach, 2007 (the
        distribution over a list); Hofstätter et al., Improving efficient neural ranking models with
        cross-architecture knowledge distillation, 2020 (margins).
    """
    wanted = F.log_softmax(teacher.float() / temperature, dim=1)
    predicted = F.log_softmax(student.float(), dim=1)
    divergence = F.kl_div(predicted, wanted, reduction="batchmean", log_target=True)
    best = wanted.argmax(dim=1, keepdim=True)
    # A difference of log-probabilities is one of scores.
    margins = predicted.gather(1, best) - predicted
    wanted_margins = wanted.gather(1, best) - wanted
    return divergence + margin_weight * F.mse_loss(margins, wanted_margins)


class ListDistillationLoss(OptionalGradientCache, nn.Module):
    """Train an encoder by :func:`list_distillation_loss`.

    Args:
        model: The encoder.
        similarity: Scores of pairs, scaled.
        margin_weight: Weight of the margin term.
        temperature: Divides the teacher's scores.
        mini_batch_size: Texts that gradient caching embeds at a time. Default: all at once, without
            caching.

    Inputs:
        Columns of texts, (query, document 1, ..., document n), and as labels the teacher's (B, n)
        scores.
    """

    def __init__(
        self,
        model: Any,
        similarity: Similarity,
        margin_weight: float = 0.05,
        temperature: float = 1.0,
        mini_batch_size: int | None = None,
    ) -> None:
        """Keep the options; the loss has no parameters."""
        super().__init__()
        self.model = model
        self.similarity = similarity
        self.margin_weight = margin_weight
        self.temperature = temperature
        self.set_mini_batch(mini_batch_size)

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the loss of a batch of lists."""
        columns = list(sentence_features)
        return self.loss_of(columns, labels)

    def calculate_loss(
        self,
        reps: list[list[Tensor]],
        labels: Tensor | None = None,
        *,
        with_backward: bool = False,
    ) -> Tensor:
        """Return the loss of embeddings, in mini-batches for each column; the host calls it.

        Args:
            reps: For each column, (b, d) embeddings.
            labels: (B, n) teacher's scores.
            with_backward: Run the backward pass, and return a detached loss.
        """
        assert labels is not None
        queries, *documents = [torch.cat(column) for column in reps]
        scores = [self.similarity(queries, document) for document in documents]
        student = torch.stack(scores, dim=1)
        loss = list_distillation_loss(student, labels, self.margin_weight, self.temperature)
        return self.finished(loss, with_backward)

    def get_config_dict(self) -> Json:
        """Return the options for model cards."""
        return {
            "margin_weight": self.margin_weight,
            "temperature": self.temperature,
            "mini_batch_size": self.mini_batch_size or None,
        }
