"""What fine-tuning losses over clusters of queries share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import torch
from sentence_transformers.util import all_gather_with_grad
from torch import Tensor, nn

from beir_cocodr.errors import InputError
from beir_cocodr.losses.cluster_step import ClusterStep
from beir_cocodr.losses.selected_layers import selected_modules
from beir_cocodr.losses.triplet import in_batch_losses, triplet_losses
from beir_cocodr.ranks import rank, sum_over_ranks, world_size

#: How cluster gradients are compared.
Gram = Literal["one_backward", "sketch", "k_calls", "batched"]


class ClusterLoss(nn.Module):
    """ERM, and the base of all losses that weigh clusters of queries.

    The loss is Σ_k c_k ℓ_k, with ℓ_k the mean loss of the examples of cluster k in the batch of all
    processes. Here c_k is the cluster's share of the batch, which makes it the plain mean over examples;
    subclasses say otherwise in :meth:`observe`, :meth:`coefficients` and :meth:`update`.

    Args:
        model: the encoder.
        n_clusters: K.
        clusters: (N,) the cluster of each training example, which labels then number; without it labels are
            clusters.
        scale: factor on scores; by default 20 for cosine models and 1 for dot-product models.
        in_batch: let each query find its positive among all documents of the batch, over all processes,
            instead of among its own. Cluster gradients are then no longer separable by example, and
            "one_backward" and "sketch" take them from the triplet part, query against own documents.
        gram: "one_backward" (hooks in the training backward, exact), "sketch" (the same with gradients
            projected to ``sketch_size`` dimensions a side, for many processes), "k_calls" (a gradient call
            for each cluster, as published) or "batched" (one vectorised call).
        gradient_layers: last layers whose gradients are compared; default 3 of 12, else 2.
        sketch_size, seed: of the sketch.

    Requirements:
        Columns query, positive and, unless ``in_batch``, negatives; labels. Each forward in training is
        followed by one backward before the next.

    References:
        COCO-DR, section 4.2 and appendix E.
    """

    #: Whether checkpoints have to keep its state, since the host keeps only the model's.
    stateful = True
    #: Whether :meth:`update` reads the matrix of gradient products.
    needs_gram = False
    clusters: Tensor | None
    weights: Tensor
    loss_sums: Tensor
    steps_seen: Tensor
    examples_seen: Tensor

    def __init__(
        self,
        model: Any,
        n_clusters: int,
        clusters: Tensor | None = None,
        scale: float | None = None,
        in_batch: bool = False,
        gram: Gram = "one_backward",
        gradient_layers: int | None = None,
        sketch_size: int = 64,
        seed: int = 42,
    ) -> None:
        super().__init__()
        if gram not in get_args(Gram):
            raise InputError(f"unknown gram {gram!r}; there are {', '.join(get_args(Gram))}")
        if gram == "batched" and in_batch and world_size() > 1:
            raise InputError("gram batched cannot be taken over the batch of several processes; use k_calls")
        self.model, self.n_clusters = model, n_clusters
        self.normalize = model.similarity_fn_name == "cosine"
        self.scale = (20.0 if self.normalize else 1.0) if scale is None else scale
        self.in_batch, self.gram, self.sketch_size, self.seed = in_batch, gram, sketch_size, seed
        self.watched = list(selected_modules(model, gradient_layers).values()) if self.needs_gram else []

        def zeros(dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(n_clusters, dtype=dtype, device=model.device)

        self.register_buffer("clusters", clusters, persistent=False)
        self.register_buffer("weights", zeros() + 1)
        # For the log, since its last line: sums of the clusters' losses, steps and examples they were in.
        self.register_buffer("loss_sums", zeros())
        self.register_buffer("steps_seen", zeros(torch.int64))
        self.register_buffer("examples_seen", zeros(torch.int64))
        self._pending: ClusterStep | None = None

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        """Move the weights before this step's loss: (K,) mean losses, 0 where absent, and (K,) counts."""

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        """The (K,) factors c of this step's loss."""
        return counts.double() / counts.sum()

    def update(self, losses: Tensor, counts: Tensor, gram: Tensor) -> None:
        """Move the weights after the backward; ``gram`` holds ∇ℓ_i·∇ℓ_j, (K, K), 0 where one is absent."""

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        training = torch.is_grad_enabled()
        if training:
            self.finish_step()
        members = labels if self.clusters is None else self.clusters[labels]
        counts = sum_over_ranks(torch.bincount(members, minlength=self.n_clusters))
        present = counts.nonzero().squeeze(1)  # (P,) the clusters of the batch; the others cost nothing
        step = ClusterStep(self.watched, counts, present, members) if training and self.needs_gram else None
        own, each = self._losses(sentence_features, step)
        # Means over the batch of all processes, of which DDP will take the average: hence W.
        shares = world_size() / counts[present].to(each)  # (P,)
        slots = torch.searchsorted(present, members)
        cluster_losses = each.new_zeros(len(present)).index_add(0, slots, each * shares[slots])  # (P,)
        values = sum_over_ranks(cluster_losses.detach().double()) / world_size()
        losses = self.weights.new_zeros(self.n_clusters).index_copy(0, present, values)
        if training:
            self.observe(losses, counts)
            self.loss_sums += losses
            self.steps_seen += counts > 0
            self.examples_seen += counts
        factors = self.coefficients(losses, counts)[present]
        loss = (factors.to(each) * cluster_losses).sum()
        if step is not None:
            step.losses = losses
            self._watch(step, loss, cluster_losses, factors, (own * shares[slots]).sum())
            self._pending = step
        return loss

    def finish_step(self) -> None:
        """Move the weights by the last backward; to be called on every process, once more does nothing."""
        if (step := self._pending) is not None:
            self._pending = None
            gram = step.gram()
            # A step in which gradients overflow is skipped by float16's loss scaler, and so is this.
            if gram.isfinite().all():
                self.update(step.losses, step.counts, gram)

    def _losses(
        self, sentence_features: Iterable[dict[str, Tensor]], step: ClusterStep | None
    ) -> tuple[Tensor, Tensor]:
        """(B,) losses against the examples' own documents, and (B,) losses to train on."""
        columns = list(sentence_features)
        if len(columns) < (2 if self.in_batch else 3):
            raise InputError("a query has no hard negative to be contrasted with; ask for at least one")
        if step is None:
            reps = [self.model(column)["sentence_embedding"] for column in columns]
        else:
            with step.watch_forward():
                reps = [self.model(column)["sentence_embedding"] for column in columns]
        queries, documents = reps[0], torch.stack(reps[1:], dim=1)  # (B, d), (B, 1 + n, d)
        own = triplet_losses(queries, documents, self.scale, self.normalize)
        if not self.in_batch:
            return own, own
        candidates = documents.flatten(0, 1)
        if world_size() > 1:
            candidates = all_gather_with_grad(candidates)
        targets = torch.arange(len(queries), device=queries.device) + rank() * len(queries)
        targets = targets * documents.shape[1]
        return own, in_batch_losses(queries, candidates, targets, self.scale, self.normalize)

    def _watch(
        self, step: ClusterStep, loss: Tensor, cluster_losses: Tensor, factors: Tensor, triplet_part: Tensor
    ) -> None:
        if self.gram in ("k_calls", "batched"):
            step.differentiate_each(cluster_losses, vectorized=self.gram == "batched")
        elif self.in_batch:
            step.differentiate_once(triplet_part, self._sketch)
        else:
            step.watch_backward(loss, factors, self._sketch)

    @property
    def _sketch(self) -> tuple[int, int] | None:
        return (self.sketch_size, self.seed) if self.gram == "sketch" else None

    def get_config_dict(self) -> dict[str, Any]:
        return {
            "n_clusters": self.n_clusters,
            "scale": self.scale,
            "normalize": self.normalize,
            "in_batch": self.in_batch,
        }
