"""Losses over clusters of queries: ERM, group DRO, CVaR and iDRO.

All of them are Σ_k c_k ℓ_k with ℓ_k the mean loss of cluster k in the batch, and differ in how they
choose c: :class:`ClusterLoss` by the clusters' sizes (ERM), :class:`GroupDROLoss` by their losses,
online, :class:`CVaRLoss` so that only the worst share counts fully, and :class:`IDROLoss` by whose
gradient lowers the losses of all. A new weighting is one more subclass.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Literal, get_args

import torch
from sentence_transformers.util import all_gather_with_grad
from torch import Tensor, nn

from beir_cocodr.distributed import rank, sum_over_ranks, world_size
from beir_cocodr.errors import InputError, Limits
from beir_cocodr.losses.cluster_gradients import ClusterStep, Sketch, selected_modules
from beir_cocodr.losses.coco import in_batch_losses, triplet_losses
from beir_cocodr.records import Json

#: How cluster gradients are compared.
Gram = Literal["one_backward", "sketch", "k_calls"]

#: How iDRO moves its weights, and what becomes of clusters that a batch lacks.
Mode = Literal["stable", "published", "paper"]
Absent = Literal["reset", "keep"]

# Weight of a new value in CVaR's moving averages.
_NEW = 0.1

# Least weight in iDRO's mode "paper", far below what its test against a numerical minimiser can
# see.
_LEAST = 1e-8


class ClusterLoss(nn.Module):
    """ERM, and the base of all losses that weigh clusters of queries.

    The loss is Σ_k c_k ℓ_k, with ℓ_k the mean loss of the examples of cluster k in the batch of all
    processes. Here c_k is the cluster's share of the batch, which makes it the plain mean over
    examples; subclasses override :meth:`observe`, :meth:`coefficients` or :meth:`update`.

    Args:
        model: the encoder.
        n_clusters: K.
        clusters: (N,) the cluster of each training example, which labels then number; without it
            labels are clusters.
        scale: factor on scores; by default 20 for cosine models and 1 for dot-product models.
        in_batch: let each query find its positive among all documents of the batch, over all
            processes, instead of among its own. Cluster gradients are then no longer separable by
            example, and "one_backward" and "sketch" take them from the triplet part, query against
            own documents.
        gram: "one_backward" (hooks in the training backward, exact), "sketch" (the same with
            gradients projected to ``sketch_size`` dimensions a side, for many processes) or
            "k_calls" (a gradient call for each cluster, as published).
        gradient_layers: last layers whose gradients are compared; default 3 of 12, else 2.
        sketch_size, seed: of the sketch.

    Inputs:
        Columns query, positive, negative_1, ..., negative_n (with ``in_batch`` n may be 0), and
        label, the number of the query's cluster, or with ``clusters`` that of the example; an
        InputError where they number no cluster. Each forward in training is followed by one
        backward before the next.

    References:
        COCO-DR, section 4.2 and appendix E.
    """

    #: Whether checkpoints have to keep its state, since the host keeps only the model's.
    stateful = True
    #: Whether :meth:`update` reads the matrix of gradient products.
    needs_gram = False
    #: Whether :meth:`observe` comes before this step's loss, or after it.
    moves_first = True
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
        Limits(choices=get_args(Gram)).check("gram", gram)
        self.model, self.n_clusters = model, n_clusters
        self.normalize = model.similarity_fn_name == "cosine"
        self.scale = (20.0 if self.normalize else 1.0) if scale is None else scale
        self.in_batch, self.gram, self.sketch_size, self.seed = in_batch, gram, sketch_size, seed
        self.watched = (
            list(selected_modules(model, gradient_layers).values()) if self.needs_gram else []
        )
        weights = torch.ones(n_clusters, dtype=torch.float64, device=model.device)
        self.register_buffer("clusters", clusters, persistent=False)
        self.register_buffer("weights", weights)
        # For the log, since its last line: sums of the clusters' losses, steps and examples they
        # were in.
        self.register_buffer("loss_sums", torch.zeros_like(weights))
        self.register_buffer("steps_seen", torch.zeros_like(weights, dtype=torch.int64))
        self.register_buffer("examples_seen", torch.zeros_like(weights, dtype=torch.int64))
        self._pending: ClusterStep | None = None

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        """Move the weights by (K,) mean losses, 0 where absent, and (K,) counts; see
        ``moves_first``.
        """

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        """The (K,) factors c of this step's loss."""
        return counts.double() / counts.sum()

    def update(self, losses: Tensor, counts: Tensor, gram: Tensor) -> None:
        """Move the weights after the backward; ``gram`` holds ∇ℓ_i·∇ℓ_j, (K, K), 0 where one is
        absent.
        """

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        training = torch.is_grad_enabled()
        if training:
            self.finish_step()
        members = self._members(labels)
        counts = sum_over_ranks(torch.bincount(members, minlength=self.n_clusters))
        present = counts.nonzero().squeeze(
            1
        )  # (P,) the clusters of the batch; the others cost nothing
        step = None
        if training and self.needs_gram:
            sketch = Sketch(self.sketch_size, self.seed) if self.gram == "sketch" else None
            step = ClusterStep(self.watched, counts, present, members, sketch)
        with nullcontext() if step is None else step.watch_forward():
            reps = [self.model(column)["sentence_embedding"] for column in sentence_features]
        own, each = self._losses(reps)
        # Means over the batch of all processes, of which DDP will take the average: hence W.
        shares = world_size() / counts[present].to(each)  # (P,)
        slots = torch.searchsorted(present, members)
        cluster_losses = each.new_zeros(len(present)).index_add(
            0, slots, each * shares[slots]
        )  # (P,)
        values = sum_over_ranks(cluster_losses.detach().double()) / world_size()
        losses = self.weights.new_zeros(self.n_clusters).index_copy(0, present, values)
        if training and self.moves_first:
            self.observe(losses, counts)
        factors = self.coefficients(losses, counts)[present]
        if training:
            if not self.moves_first:
                self.observe(losses, counts)
            self.loss_sums += losses
            self.steps_seen += counts > 0
            self.examples_seen += counts
        loss = (factors.to(each) * cluster_losses).sum()
        if step is not None:
            step.losses = losses
            if self.gram == "k_calls":
                step.differentiate_each(cluster_losses)
            elif self.in_batch:
                step.differentiate_once((own * shares[slots]).sum())
            else:
                step.watch_backward(loss, factors)
            self._pending = step
        return loss

    def _members(self, labels: Tensor | None) -> Tensor:
        """The (B,) clusters of the examples."""
        name, column = (
            type(self).__name__,
            "the dataset needs a column label with a whole number for each query",
        )
        if labels is None or labels.ndim != 1 or labels.is_floating_point():
            raise InputError(
                f"{name} gets no labels that it could weigh clusters by; {column}, its cluster"
            )
        most = self.n_clusters if self.clusters is None else len(self.clusters)
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < most:
            raise InputError(
                f"{name} has labels {int(labels.min())} to {int(labels.max())}, not 0 to {most - 1}; {column}"
            )
        return labels if self.clusters is None else self.clusters[labels]

    def finish_step(self) -> None:
        """Move the weights by the last backward; to be called on every process, once more does
        nothing.
        """
        if (step := self._pending) is not None:
            self._pending = None
            gram = step.gram()
            # A step in which gradients overflow is skipped by float16's loss scaler, and so is
            # this.
            if gram.isfinite().all():
                self.update(step.losses, step.counts, gram)

    def _losses(self, reps: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Columns of (B, d) to (B,) losses against the examples' own documents, and (B,) losses to
        train on.
        """
        if len(reps) < (2 if self.in_batch else 3):
            raise InputError(
                "a query has no hard negative to be contrasted with; ask for at least one"
            )
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

    def get_config_dict(self) -> Json:
        return {
            name: getattr(self, name) for name in ("n_clusters", "scale", "normalize", "in_batch")
        }


def group_dro_weights(weights: Tensor, losses: Tensor, eta: float = 0.01) -> Tensor:
    """q_k ∝ q_k exp(η ℓ_k), sum 1, from weights q and losses ℓ (0 where absent), (K,) each; η is
    0.01 in the paper.

    Source: Sagawa et al., 2020, Algorithm 1.
    """
    return torch.softmax(weights.log() + eta * losses, dim=0)


class GroupDROLoss(ClusterLoss):
    """Group DRO: the loss is Σ_k q_k ℓ_k, with q moved by this step's losses first, by the step
    size ``eta``; the other arguments are those of :class:`ClusterLoss`.

    Inputs:
        Columns and label as for :class:`ClusterLoss`.

    References:
        Sagawa et al., Distributionally robust neural networks for group shifts, 2020.
    """

    def __init__(self, model: Any, n_clusters: int, eta: float = 0.01, **settings: Any) -> None:
        super().__init__(model, n_clusters, **settings)
        self.eta = eta
        self.weights /= n_clusters

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        self.weights.copy_(group_dro_weights(self.weights, losses, self.eta))

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        return torch.where(counts > 0, self.weights, 0.0)


def cvar_weights(losses: Tensor, sizes: Tensor, alpha: float = 0.5, eps: float = 0.01) -> Tensor:
    """Go through the clusters from the largest loss on, and give 1/α until a share α of all is used
    up.

    Args:
        losses, sizes: (K,) moving averages of each cluster's loss and size.
        alpha: the share, by sizes, that counts fully.
        eps: weight of the clusters beyond it, and the least of the one on the boundary, which gets
            what is left of the share over its own share.

    Source: Oren et al., 2019; Zhou et al., 2021; the rival of COCO-DR's section 6.
    """
    order = losses.argsort(descending=True, stable=True)
    shares = (sizes / sizes.sum())[order]
    full = shares.cumsum(0) < alpha
    ranked = torch.full_like(losses, eps).masked_fill(full, 1 / alpha)
    boundary = int(full.sum())
    if boundary < len(ranked):
        ranked[boundary] = ((1 - shares[:boundary].sum() / alpha) / shares[boundary]).clamp(min=eps)
    return torch.empty_like(ranked).index_copy_(0, order, ranked)


class CVaRLoss(ClusterLoss):
    """Greedy DRO: the loss is Σ_k h_k Σ_{i in k} ℓ_i / B, with h from moving averages of past
    steps, 1 at first.

    ``cvar_alpha`` is the share that counts fully, ``eps`` the weight of the rest; others as for
    :class:`ClusterLoss`.

    Inputs:
        Columns and label as for :class:`ClusterLoss`.

    References:
        Oren et al., Distributionally robust language modeling, 2019; Zhou et al., Distributionally
        robust multilingual machine translation, 2021; order of loss and update: COCO-DR's published
        code.
    """

    moves_first = False
    average_losses: Tensor
    average_counts: Tensor

    def __init__(
        self, model: Any, n_clusters: int, cvar_alpha: float = 0.5, eps: float = 0.01, **rest: Any
    ) -> None:
        super().__init__(model, n_clusters, **rest)
        self.cvar_alpha, self.eps = cvar_alpha, eps
        self.register_buffer("average_losses", torch.zeros_like(self.weights))
        self.register_buffer("average_counts", torch.ones_like(self.weights))

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        moved = self.average_losses + _NEW * (losses - self.average_losses)
        self.average_losses.copy_(torch.where(counts > 0, moved, self.average_losses))
        self.average_counts += _NEW * (counts - self.average_counts)
        self.weights.copy_(
            cvar_weights(self.average_losses, self.average_counts, self.cvar_alpha, self.eps)
        )

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        return self.weights * counts / counts.sum()


def idro_weights(
    weights: Tensor,
    losses: Tensor,
    counts: Tensor,
    gram: Tensor,
    alpha: float = 0.25,
    rho: float = 0.05,
    ema: float = 0.1,
    eps: float = 0.01,
    absent: Absent = "keep",
) -> Tensor:
    """The (K,) cluster weights after one step, as the published code moves them: at least ``eps``
    each, so that the sum may pass 1.

    R_ij = (ℓ_i ℓ_j)^α cos(g_i, g_j), e_j = ρ mean_i R_ij, and h_j ← h_j^ema exp(e_j) for the
    clusters of the batch, so a cluster whose gradient agrees with those of lossy clusters gains.

    Args:
        weights: h, (K,).
        losses, counts: ℓ, (K,), and examples in the batch, (K,); 0 where absent.
        gram: (K, K) inner products of the clusters' gradients, 0 where absent.
        alpha, rho, ema, eps: as published.
        absent: "reset" as published: absent clusters fall to ``eps`` and the present ones share 1.
            "keep": absent clusters keep their weight and the present ones share what they had.
            Where all are present the two agree.

    Source: COCO-DR, section 4.2, and its published code.
    """
    present = counts > 0
    norms = gram.diagonal().clamp(min=0).sqrt() + 1e-12  # each gradient g is divided by |g| + 1e-12
    cosine = gram / (norms[:, None] * norms)
    powers = losses.clamp(min=0) ** alpha
    exponent = rho * (powers[:, None] * powers * cosine).sum(dim=0) / len(weights)
    exponent = torch.where(present, exponent, 0.0)
    moved = torch.where(present, weights**ema * torch.exp(exponent - exponent.max()), 0.0)
    moved = moved / moved.sum()
    if absent == "keep":
        before = weights / weights.sum()
        moved = torch.where(present, moved * before[present].sum(), before)
    return moved.clamp(min=eps)


def idro_weights_in_closed_form(
    weights: Tensor, losses: Tensor, gram: Tensor, beta: float = 0.25, tau: float = 1000.0
) -> Tensor:
    """The minimiser of −Σ_i ω_i Σ_j r_ij + τ KL(ω‖ω_old) over the simplex, r_ij = (ℓ_i ℓ_j)^β
    ∇ℓ_i·∇ℓ_j; (K,), sum 1.

    ``weights`` are ω_old, (K,), positive, of which only ratios matter; β is the weight of lossy
    clusters, τ holds the weights back; the others are as for :func:`idro_weights`.

    Source: COCO-DR, Eq. 8 and 23. The outer α_i that Eq. 8 adds and the stray sum that appendix E
    carries into r are left out: without them this is the minimiser.
    """
    powers = losses.clamp(min=0) ** beta
    gains = (powers[:, None] * powers * gram).sum(dim=1)
    return torch.softmax(weights.log() + gains / tau, dim=0)


class IDROLoss(ClusterLoss):
    """iDRO: clusters are weighted by how far a step along their gradient lowers all clusters'
    losses. An InputError: an unknown mode, or settings that "published" does not have.

    The loss of a step uses the weights from before it, and its backward moves them:
    :func:`idro_weights` in the modes "stable" and "published", :func:`idro_weights_in_closed_form`
    in the mode "paper".

    Args:
        model, n_clusters, ...: as for :class:`ClusterLoss`.
        mode: "published" is the released code bit for bit: ``absent="reset"``, loss Σ_k h_k ℓ_k,
            weights 1 at first. "stable" (default) is the same update with ``absent="keep"`` and
            ``renormalize_present``, because small batches hold few of the clusters and the sum of
            their weights swings. "paper": loss Σ_k α_k ω_k ℓ_k with α_k ∝ ℓ_k^β, mean 1 over the
            clusters of the batch, and Eq. 23 with weights of at least 1e-8. Its gradients are raw:
            where they are large the default τ lets one cluster take nearly all the weight, so raise
            τ.
        alpha, rho, ema, eps: of the published update (0.25, 0.05, 0.1, 0.01).
        beta, tau: of the paper's; τ is K/ρ by default, 1,000 with the published settings.
        absent: what becomes of absent clusters, see :func:`idro_weights`; None is the mode's own.
        renormalize_present: divide the factors of a batch's clusters by their sum; None is the
            mode's own.

    Inputs:
        Columns and label as for :class:`ClusterLoss`.

    References:
        COCO-DR, section 4.2, Eq. 4 to 8, and appendix E.

    Example:
        >>> import torch
        >>> from beir_cocodr import load_encoder
        >>> from beir_cocodr.losses.dro import IDROLoss
        >>> loss = IDROLoss(load_encoder("minilm"), n_clusters=2)
        >>> queries, positives = ["sort an array", "plot bars"], ["Return a sorted copy.", "Draw bars."]
        >>> columns = [queries, positives, positives[::-1]]  # each query, its positive, a negative
        >>> features = [loss.model.preprocess(column) for column in columns]
        >>> loss(features, torch.tensor([0, 1])).backward()  # labels are clusters
        >>> loss.finish_step()  # the trainer's next step would do it too
        >>> loss.weights.shape
        torch.Size([2])
    """

    needs_gram = True

    def __init__(
        self,
        model: Any,
        n_clusters: int,
        mode: Mode = "stable",
        alpha: float = 0.25,
        rho: float = 0.05,
        ema: float = 0.1,
        eps: float = 0.01,
        beta: float = 0.25,
        tau: float | None = None,
        absent: Absent | None = None,
        renormalize_present: bool | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, n_clusters, **settings)
        Limits(choices=get_args(Mode)).check("iDRO mode", mode)
        if absent is not None:
            Limits(choices=get_args(Absent)).check("absent", absent)
        if mode == "published" and (absent == "keep" or renormalize_present):
            raise InputError(
                "mode published resets absent clusters and keeps sums; the mode stable does not"
            )
        if mode == "paper" and absent == "reset":
            raise InputError("mode paper keeps the weights of absent clusters")
        self.mode, self.alpha, self.rho, self.ema, self.eps = mode, alpha, rho, ema, eps
        self.beta, self.tau = beta, n_clusters / rho if tau is None else tau
        self.absent: Absent = absent or ("reset" if mode == "published" else "keep")
        self.renormalize_present = (
            mode == "stable" if renormalize_present is None else renormalize_present
        )
        if mode == "paper":
            self.weights /= n_clusters

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        present = counts > 0
        factors = torch.where(present, self.weights, 0.0)
        if self.mode == "paper":
            powers = losses.clamp(min=0) ** self.beta
            mean = powers[present].mean()
            factors = factors * (powers / mean if mean > 0 else 1.0)
        return factors / factors.sum() if self.renormalize_present else factors

    def update(self, losses: Tensor, counts: Tensor, gram: Tensor) -> None:
        if self.mode == "paper":
            moved = idro_weights_in_closed_form(self.weights, losses, gram, self.beta, self.tau)
            # Raw gradients can be large, and a weight that has become 0 would never grow again.
            moved = moved.clamp(min=_LEAST)
        else:
            settings = self.alpha, self.rho, self.ema, self.eps, self.absent
            moved = idro_weights(self.weights, losses, counts, gram, *settings)
        self.weights.copy_(moved)
