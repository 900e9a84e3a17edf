"""Losses over clusters of queries: ERM, group DRO, CVaR and iDRO.

All of them are Σ_k c_k ℓ_k with ℓ_k the mean loss of cluster k in the batch, and differ in how they
choose c: :class:`ClusterLoss` by the clusters' sizes (ERM), :class:`GroupDROLoss` by their losses,
online, :class:`CVaRLoss` so that only the worst share counts fully, and :class:`IDROLoss` by whose
gradient lowers the losses of all. A new weighting is one more subclass.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
from sentence_transformers.util import all_gather_with_grad
from torch import Tensor, nn

from beir_cocodr.distributed import rank, sum_over_ranks, world_size
from beir_cocodr.errors import InputError, Limits
from beir_cocodr.io import Keywords
from beir_cocodr.losses.cluster_gradients import ClusterStep, Sketch, selected_modules
from beir_cocodr.losses.coco import in_batch_losses, triplet_losses
from beir_cocodr.models.papers import bibtex
from beir_cocodr.records import Json

#: How cluster gradients are compared.
Gram = Literal["one_backward", "sketch", "k_calls"]

#: How iDRO moves its weights.
Mode = Literal["stable", "published", "paper"]

#: What iDRO does with clusters that a batch lacks.
Absent = Literal["reset", "keep"]

#: Which batch moves the weights: that of all processes together, or each process's own.
Scope = Literal["all", "rank"]

# Default factor on scores of models that compare by cosine.
_COSINE_SCALE = 20.0

# Weight of a new value in CVaR's moving averages.
_NEW = 0.1

# Least weight in iDRO's mode "paper", far below what its test against a numerical minimiser can
# see.
_LEAST = 1e-8

# What the published code adds to the norm of a gradient.
_NORM_EPSILON = 1e-12


class GradientSettings(TypedDict, total=False):
    """Ways to compare cluster gradients, see :class:`ClusterLoss`."""

    gram: Gram
    gradient_layers: int | None
    sketch_size: int
    seed: int


class ClusterSettings(GradientSettings, total=False):
    """Arguments of :class:`ClusterLoss` beside the model and the number of clusters."""

    clusters: Tensor | None
    scale: float | None
    in_batch: bool


class ClusterLoss(nn.Module):
    """ERM, and the base of all losses that weigh clusters of queries.

    The loss is Σ_k c_k ℓ_k, with ℓ_k the mean loss of the examples of cluster k in the batch of all
    processes. Here c_k is the cluster's share of the batch, which makes it the plain mean over
    examples; subclasses override :meth:`observe`, :meth:`coefficients` or :meth:`update`.

    Args:
        model: the encoder.
        n_clusters: K.
        clusters: (N,) the cluster of each training example; labels then number the examples.
            Without it, labels are clusters.
        scale: factor on scores; default: 20 for cosine models and 1 for dot-product models.
        in_batch: let each query find its positive among all documents of the batch, over all
            processes, instead of among its own. Cluster gradients are then no longer separable by
            example, and "one_backward" and "sketch" take them from the triplet part, query against
            own documents.
        gram: "one_backward" (hooks in the training backward, exact), "sketch" (the same with
            gradients projected to ``sketch_size`` dimensions on each side, for many processes) or
            "k_calls" (a gradient call for each cluster, as published).
        gradient_layers: last layers whose gradients are compared; default: 3 of 12, else 2.
        sketch_size: dimensions of the sketch on each side.
        seed: seed of the sketch.

    Inputs:
        Columns query, positive, negative_1, ..., negative_n (with ``in_batch`` n may be 0), and
        label, the number of the query's cluster, or with ``clusters`` that of the example. Each
        forward in training is followed by one backward before the next.

    Raises:
        InputError: ``gram`` is unknown, the model's layers cannot be compared, or in the forward,
            labels number no cluster.

    References:
        COCO-DR, section 4.2 and appendix E.
    """

    #: Tells the trainer that checkpoints must keep the state; the host keeps only the model's.
    stateful = True
    #: Set if :meth:`update` reads the matrix of gradient products.
    needs_gram = False
    #: Set if :meth:`observe` comes before this step's loss, and not after it.
    moves_first = True
    #: "rank" if each process has weights of its own, which the batch of that process moves.
    scope: Scope = "all"
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
        **gradients: Unpack[GradientSettings],
    ) -> None:
        """Start with equal weights."""
        super().__init__()
        self.gram: Gram = gradients.get("gram", "one_backward")
        Limits(choices=get_args(Gram)).check("gram", self.gram)
        self.model = model
        self.n_clusters = n_clusters
        self.normalize = model.similarity_fn_name == "cosine"
        if scale is None:
            scale = _COSINE_SCALE if self.normalize else 1.0
        self.scale = scale
        self.in_batch = in_batch
        self.sketch_size = gradients.get("sketch_size", 64)
        self.seed = gradients.get("seed", 42)
        self.watched: list[nn.Module] = []
        if self.needs_gram:
            layers = gradients.get("gradient_layers")
            self.watched = list(selected_modules(model, layers).values())
        weights = torch.ones(n_clusters, dtype=torch.float64, device=model.device)
        self.register_buffer("clusters", clusters, persistent=False)
        self.register_buffer("weights", weights)
        # For the log, since its last line: sums of the clusters' losses, and the steps and examples
        # they were in.
        self.register_buffer("loss_sums", torch.zeros_like(weights))
        self.register_buffer("steps_seen", torch.zeros_like(weights, dtype=torch.int64))
        self.register_buffer("examples_seen", torch.zeros_like(weights, dtype=torch.int64))
        self._pending: ClusterStep | None = None

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        """Move the weights by the losses of a step, see ``moves_first``.

        Args:
            losses: (K,) mean losses, 0 where absent.
            counts: (K,) examples in the batch.
        """

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        """Return the (K,) factors c of this step's loss."""
        return counts.double() / counts.sum()

    def update(self, losses: Tensor, counts: Tensor, gram: Tensor) -> None:
        """Move the weights after the backward.

        Args:
            losses: (K,) mean losses, 0 where absent.
            counts: (K,) examples in the batch.
            gram: (K, K) products ∇ℓ_i·∇ℓ_j, 0 where a cluster is absent.
        """

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch; in training the weights move, too."""
        training = torch.is_grad_enabled()
        if training:
            self.finish_step()
        members = self._members(labels)
        counts = torch.bincount(members, minlength=self.n_clusters)
        all_counts = sum_over_ranks(counts.clone())
        if not self._is_per_rank():
            counts = all_counts
        # (P,) the clusters of the batch of all processes; the others cost nothing.
        present = all_counts.nonzero().squeeze(1)
        step = self._new_step(counts, present, members) if training else None
        with nullcontext() if step is None else step.watch_forward():
            reps = [self.model(column)["sentence_embedding"] for column in sentence_features]
        triplets, examples = self._losses(reps)
        # Means over the batch of all processes, whose parts DDP averages, hence W; or with the
        # scope "rank" over that of this process.
        parts = 1 if self._is_per_rank() else world_size()
        shares = parts / counts[present].clamp(min=1).to(examples)  # (P,)
        slots = torch.searchsorted(present, members)
        scaled = examples * shares[slots]
        # Atomic additions on a GPU would come in another order each time.
        belongs = present[:, None] == members  # (P, B)
        cluster_losses = torch.where(belongs, scaled, 0.0).sum(dim=1)  # (P,)
        values = cluster_losses.detach().double()
        if parts > 1:
            values = sum_over_ranks(values) / parts
        losses = self.weights.new_zeros(self.n_clusters).index_copy(0, present, values)
        factors = self._step_factors(losses, counts, training)[present]
        loss = (factors.to(examples) * cluster_losses).sum()
        if step is not None:
            step.losses = losses
            missing = world_size() // parts  # ClusterStep expects W times a mean loss
            if self.gram == "k_calls":
                step.differentiate_each(missing * cluster_losses)
            elif self.in_batch or missing > 1:
                # With the scope "rank" the processes weigh a cluster differently, so that their
                # gradients are summed before any weight.
                step.differentiate_once(missing * (triplets * shares[slots]).sum())
            else:
                step.watch_backward(loss, factors)
            self._pending = step
        return loss

    def _new_step(self, counts: Tensor, present: Tensor, members: Tensor) -> ClusterStep | None:
        """Return what compares the gradients of a step, if the weights depend on them."""
        if not self.needs_gram:
            return None
        sketch = None
        if self.gram == "sketch":
            sketch = Sketch(self.sketch_size, self.seed)
        return ClusterStep(self.watched, counts, present, members, sketch)

    def _is_per_rank(self) -> bool:
        """Return true if there are other processes, whose weights differ from those here."""
        return self.scope == "rank" and world_size() > 1

    def _step_factors(self, losses: Tensor, counts: Tensor, training: bool) -> Tensor:
        """Return (K,) the factors of a step; in training the weights move before or after."""
        if training and self.moves_first:
            self.observe(losses, counts)
        factors = self.coefficients(losses, counts)
        if training:
            if not self.moves_first:
                self.observe(losses, counts)
            self.loss_sums += losses
            self.steps_seen += counts > 0
            self.examples_seen += counts
        return factors

    def _members(self, labels: Tensor | None) -> Tensor:
        """Return the (B,) clusters of the examples."""
        name = type(self).__name__
        column = "the dataset needs a column label with a whole number for each query"
        if labels is None or labels.ndim != 1 or labels.is_floating_point():
            raise InputError(
                f"{name} gets no labels that it could weigh clusters by; {column}, its cluster"
            )
        size = self.n_clusters
        if self.clusters is not None:
            size = len(self.clusters)
        if len(labels):
            least = int(labels.min())
            largest = int(labels.max())
            if least < 0 or largest >= size:
                raise InputError(
                    f"{name} has labels {least} to {largest}, not 0 to {size - 1}; {column}"
                )
        if self.clusters is None:
            return labels
        return self.clusters[labels]

    def finish_step(self) -> None:
        """Move the weights by the last backward.

        Every process must call it; a second call does nothing.
        """
        step = self._pending
        if step is None:
            return
        self._pending = None
        gram = step.gram()
        # A step in which gradients overflow is skipped by float16's loss scaler, and so is this.
        if gram.isfinite().all():
            self.update(step.losses, step.counts, gram)

    def _losses(self, reps: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return losses of examples from columns of (B, d).

        Returns:
            (B,) losses against the examples' own documents, and (B,) losses to train on.
        """
        if len(reps) < (2 if self.in_batch else 3):
            raise InputError(
                "a query has no hard negative to be compared with; ask for at least one"
            )
        queries = reps[0]  # (B, d)
        documents = torch.stack(reps[1:], dim=1)  # (B, 1 + n, d)
        triplets = triplet_losses(queries, documents, self.scale, self.normalize)
        if not self.in_batch:
            return triplets, triplets
        candidates = documents.flatten(0, 1)
        if world_size() > 1:
            candidates = all_gather_with_grad(candidates)
        first = rank() * len(queries)
        places = torch.arange(len(queries), device=queries.device) + first
        targets = places * documents.shape[1]
        in_batch = in_batch_losses(queries, candidates, targets, self.scale, self.normalize)
        return triplets, in_batch

    def get_config_dict(self) -> Json:
        """Return the settings that the host records."""
        return {
            "n_clusters": self.n_clusters,
            "scale": self.scale,
            "normalize": self.normalize,
            "in_batch": self.in_batch,
        }


def group_dro_weights(weights: Tensor, losses: Tensor, eta: float = 0.01) -> Tensor:
    """Return q_k ∝ q_k exp(η ℓ_k), which sum to 1.

    Args:
        weights: q, (K,).
        losses: ℓ, (K,), 0 where absent.
        eta: η, 0.01 in the paper.

    References:
        Sagawa et al., 2020, Algorithm 1.
    """
    return torch.softmax(weights.log() + eta * losses, dim=0)


class GroupDROLoss(ClusterLoss):
    """Group DRO: the loss is Σ_k q_k ℓ_k, and this step's losses move q first.

    Args:
        model: the encoder.
        n_clusters: K.
        eta: step size of the weights.
        **settings: as for :class:`ClusterLoss`.

    Inputs:
        Columns and label as for :class:`ClusterLoss`.

    References:
        Sagawa et al., Distributionally robust neural networks for group shifts, 2020.
    """

    def __init__(
        self,
        model: Any,
        n_clusters: int,
        eta: float = 0.01,
        **settings: Unpack[ClusterSettings],
    ) -> None:
        """Start with equal weights of sum 1."""
        super().__init__(model, n_clusters, **settings)
        self.eta = eta
        self.weights /= n_clusters

    @property
    def citation(self) -> str:
        """Return the BibTeX entry of the paper."""
        return bibtex("sagawa2020groupdro")

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        """Move the weights by the losses of a step."""
        self.weights.copy_(group_dro_weights(self.weights, losses, self.eta))

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        """Return the (K,) factors of this step's loss: the weights of the batch's clusters."""
        return torch.where(counts > 0, self.weights, 0.0)


def cvar_weights(
    losses: Tensor,
    sizes: Tensor,
    alpha: float = 0.5,
    eps: float = 0.01,
) -> Tensor:
    """Return 1/α for the clusters with the largest losses, until they hold a share α of all.

    Args:
        losses: (K,) moving averages of each cluster's loss.
        sizes: (K,) moving averages of each cluster's size.
        alpha: the share, by sizes, that counts fully.
        eps: weight of the clusters beyond it, and the least weight of the cluster on the boundary,
            which gets what is left of the share over its own share.

    References:
        Oren et al., 2019; Zhou et al., 2021; the rival of COCO-DR's section 6.
    """
    order = losses.argsort(descending=True, stable=True)
    shares = (sizes / sizes.sum())[order]
    full = shares.cumsum(0) < alpha
    ranked = torch.full_like(losses, eps).masked_fill(full, 1 / alpha)
    boundary = int(full.sum())
    if boundary < len(ranked):
        left = 1 - shares[:boundary].sum() / alpha
        ranked[boundary] = (left / shares[boundary]).clamp(min=eps)
    return torch.empty_like(ranked).index_copy_(0, order, ranked)


class CVaRLoss(ClusterLoss):
    """Greedy DRO: the loss is Σ_k h_k Σ_{i in k} ℓ_i / B, with h from averages of past steps.

    At first h is 1.

    Args:
        model: the encoder.
        n_clusters: K.
        cvar_alpha: the share that counts fully.
        eps: weight of the rest.
        **settings: as for :class:`ClusterLoss`.

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
        self,
        model: Any,
        n_clusters: int,
        cvar_alpha: float = 0.5,
        eps: float = 0.01,
        **settings: Unpack[ClusterSettings],
    ) -> None:
        """Start with weights of 1."""
        super().__init__(model, n_clusters, **settings)
        self.cvar_alpha = cvar_alpha
        self.eps = eps
        self.register_buffer("average_losses", torch.zeros_like(self.weights))
        self.register_buffer("average_counts", torch.ones_like(self.weights))

    @property
    def citation(self) -> str:
        """Return the BibTeX entry of the paper."""
        return bibtex("oren2019cvar")

    def observe(self, losses: Tensor, counts: Tensor) -> None:
        """Move the averages, and the weights by them."""
        moved = self.average_losses + _NEW * (losses - self.average_losses)
        self.average_losses.copy_(torch.where(counts > 0, moved, self.average_losses))
        self.average_counts += _NEW * (counts - self.average_counts)
        weights = cvar_weights(self.average_losses, self.average_counts, self.cvar_alpha, self.eps)
        self.weights.copy_(weights)

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        """Return the (K,) factors of this step's loss."""
        return self.weights * counts / counts.sum()


class IDRORates(TypedDict, total=False):
    """Numbers of the published update of iDRO, see :func:`idro_weights`."""

    alpha: float
    rho: float
    ema: float
    eps: float


class IDROSettings(ClusterSettings, IDRORates, total=False):
    """Numbers of iDRO's updates, and the arguments of :class:`ClusterLoss`."""

    beta: float
    tau: float | None


@dataclass(frozen=True)
class _Numbers:
    """Numbers of iDRO's updates with their defaults."""

    alpha: float = 0.25
    rho: float = 0.05
    ema: float = 0.1
    eps: float = 0.01
    beta: float = 0.25
    tau: float | None = None


def idro_weights(
    weights: Tensor,
    losses: Tensor,
    counts: Tensor,
    gram: Tensor,
    absent: Absent = "keep",
    **rates: Unpack[IDRORates],
) -> Tensor:
    """Return the (K,) cluster weights after one step, as the published code moves them.

    Each weight is at least ``eps``, so that the sum may pass 1. R_ij = (ℓ_i ℓ_j)^α cos(g_i, g_j),
    e_j = ρ mean_i R_ij, and h_j ← h_j^ema exp(e_j) for the clusters of the batch: a cluster whose
    gradient agrees with those of lossy clusters gains.

    Args:
        weights: h, (K,).
        losses: ℓ, (K,), 0 where absent.
        counts: (K,) examples in the batch, 0 where absent.
        gram: (K, K) inner products of the clusters' gradients, 0 where absent.
        absent: "reset" as published: absent clusters fall to ``eps`` and the present ones share 1.
            "keep": absent clusters keep their weight and the present ones share what they had.
            Where all are present the two agree.
        **rates: ``alpha`` (0.25), ``rho`` (0.05), ``ema`` (0.1) and ``eps`` (0.01), as published.

    References:
        COCO-DR, section 4.2, and its published code.
    """
    numbers = _Numbers(**rates)
    present = counts > 0
    norms = gram.diagonal().clamp(min=0).sqrt() + _NORM_EPSILON
    cosine = gram / (norms[:, None] * norms)
    powers = losses.clamp(min=0) ** numbers.alpha
    agreement = powers[:, None] * powers * cosine  # (K, K)
    exponent = numbers.rho * agreement.sum(dim=0) / len(weights)
    exponent = torch.where(present, exponent, 0.0)
    grown = weights**numbers.ema * torch.exp(exponent - exponent.max())
    moved = torch.where(present, grown, 0.0)
    moved = moved / moved.sum()
    if absent == "keep":
        before = weights / weights.sum()
        moved = torch.where(present, moved * before[present].sum(), before)
    return moved.clamp(min=numbers.eps)


def idro_weights_in_closed_form(
    weights: Tensor, losses: Tensor, gram: Tensor, beta: float = 0.25, tau: float = 1000.0
) -> Tensor:
    """Return the minimiser of −Σ_i ω_i Σ_j r_ij + τ KL(ω‖ω_old) over the simplex.

    There r_ij = (ℓ_i ℓ_j)^β ∇ℓ_i·∇ℓ_j; the minimiser has the shape (K,) and the sum 1.

    Args:
        weights: ω_old, (K,), positive; only ratios matter.
        losses: ℓ, (K,), 0 where absent.
        gram: (K, K) inner products of the clusters' gradients, 0 where absent.
        beta: β, the weight of lossy clusters.
        tau: τ, which holds the weights back.

    References:
        COCO-DR, Eq. 8 and 23. The outer α_i that Eq. 8 adds and the stray sum that appendix E
        carries into r are left out: without them this is the minimiser.
    """
    powers = losses.clamp(min=0) ** beta
    gains = (powers[:, None] * powers * gram).sum(dim=1)
    return torch.softmax(weights.log() + gains / tau, dim=0)


class IDROLoss(ClusterLoss):
    """iDRO: clusters are weighted by how far a step along their gradient lowers all losses.

    The loss of a step uses the weights from before it, and its backward moves them:
    :func:`idro_weights` in the modes "stable" and "published", :func:`idro_weights_in_closed_form`
    in the mode "paper".

    Args:
        model: the encoder.
        n_clusters: K.
        mode: "published" is the update of the released code, bit for bit (on several processes with
            ``scope="rank"``): ``absent="reset"``, loss Σ_k h_k ℓ_k, weights 1 at first. "stable"
            (default) is the same update with ``absent="keep"`` and ``renormalize_present``, because
            small batches hold few of the clusters and the sum of their weights swings. "paper":
            loss Σ_k α_k ω_k ℓ_k with α_k ∝ ℓ_k^β, mean 1 over the clusters of the batch, and Eq. 23
            with weights of at least 1e-8. Its gradients are raw: where they are large the default τ
            lets one cluster take nearly all the weight, so raise τ.
        absent: how absent clusters change, see :func:`idro_weights`; None is the mode's own rule.
        renormalize_present: divide the factors of a batch's clusters by their sum; None is the
            mode's own rule.
        scope: "all" (default) keeps one set of weights, which the batch of all processes moves.
            "rank" keeps one on each process, as the released code does: losses, counts and weights
            are those of the process, and only the clusters' gradients are summed over all. On one
            process the two agree.
        **settings: ``alpha``, ``rho``, ``ema`` and ``eps`` of the published update (0.25, 0.05,
            0.1, 0.01); ``beta`` (0.25) and ``tau`` of the paper's, which is K/ρ by default, 1,000
            with the published settings; and those of :class:`ClusterLoss`.

    Inputs:
        Columns and label as for :class:`ClusterLoss`.

    Raises:
        InputError: The mode is unknown, or a setting contradicts it.

    Example:
        >>> import torch
        >>> from beir_cocodr import load_encoder
        >>> from beir_cocodr.losses.dro import IDROLoss
        >>> loss = IDROLoss(load_encoder("minilm"), n_clusters=2)
        >>> queries = ["sort an array", "plot bars"]
        >>> positives = ["Return a sorted copy.", "Draw bars."]
        >>> columns = [queries, positives, positives[::-1]]  # each query, its positive, a negative
        >>> features = [loss.model.preprocess(column) for column in columns]
        >>> loss(features, torch.tensor([0, 1])).backward()  # labels are clusters
        >>> loss.finish_step()  # the trainer's next step would do it too
        >>> loss.weights.shape
        torch.Size([2])

    References:
        COCO-DR, section 4.2, Eq. 4 to 8, and appendix E.
    """

    needs_gram = True

    def __init__(
        self,
        model: Any,
        n_clusters: int,
        mode: Mode = "stable",
        absent: Absent | None = None,
        renormalize_present: bool | None = None,
        scope: Scope = "all",
        **settings: Unpack[IDROSettings],
    ) -> None:
        """Start with equal weights."""
        others: Keywords = dict(settings)
        names = [number.name for number in fields(_Numbers) if number.name in others]
        numbers = _Numbers(**{name: others.pop(name) for name in names})
        super().__init__(model, n_clusters, **others)
        _check_mode(mode, absent, renormalize_present)
        Limits(choices=get_args(Scope)).check("scope", scope)
        self.mode = mode
        self.scope = scope
        self.alpha = numbers.alpha
        self.rho = numbers.rho
        self.ema = numbers.ema
        self.eps = numbers.eps
        self.beta = numbers.beta
        self.tau = n_clusters / numbers.rho if numbers.tau is None else numbers.tau
        self.absent: Absent = absent or ("reset" if mode == "published" else "keep")
        if renormalize_present is None:
            renormalize_present = mode == "stable"
        self.renormalize_present = renormalize_present
        if mode == "paper":
            self.weights /= n_clusters

    @property
    def citation(self) -> str:
        """Return the BibTeX entry of the paper."""
        return bibtex("yu2022cocodr")

    def coefficients(self, losses: Tensor, counts: Tensor) -> Tensor:
        """Return the (K,) factors of this step's loss."""
        present = counts > 0
        factors = torch.where(present, self.weights, 0.0)
        if self.mode == "paper":
            powers = losses.clamp(min=0) ** self.beta
            mean = powers[present].mean()
            factors = factors * (powers / mean if mean > 0 else 1.0)
        if self.renormalize_present:
            return factors / factors.sum()
        return factors

    def update(self, losses: Tensor, counts: Tensor, gram: Tensor) -> None:
        """Move the weights by the gradients of the clusters."""
        if self.mode == "paper":
            moved = idro_weights_in_closed_form(self.weights, losses, gram, self.beta, self.tau)
            # Raw gradients can be large, and a weight that has become 0 would never grow again.
            moved = moved.clamp(min=_LEAST)
        else:
            rates: IDRORates = {
                "alpha": self.alpha,
                "rho": self.rho,
                "ema": self.ema,
                "eps": self.eps,
            }
            moved = idro_weights(
                weights=self.weights,
                losses=losses,
                counts=counts,
                gram=gram,
                absent=self.absent,
                **rates,
            )
        self.weights.copy_(moved)


def _check_mode(mode: Mode, absent: Absent | None, renormalize_present: bool | None) -> None:
    """Check iDRO's mode, and that no setting contradicts it."""
    Limits(choices=get_args(Mode)).check("iDRO mode", mode)
    if absent is not None:
        Limits(choices=get_args(Absent)).check("absent", absent)
    if mode == "published" and (absent == "keep" or renormalize_present):
        raise InputError(
            "mode published resets absent clusters and keeps sums; choose the mode stable instead"
        )
    if mode == "paper" and absent == "reset":
        raise InputError("mode paper keeps the weights of absent clusters; leave absent out")
