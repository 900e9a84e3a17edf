"""Weightings of clusters of queries: what each is called, its options, and its papers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import Options, option
from beir_cocodr.training.rows import Row


@dataclass(frozen=True)
class ClusterOptions(Options):
    """Options of clustering queries; the base of the options of every weighting.

    Args:
        clusters: K, the clusters of the training queries' embeddings by the model that is trained.
        min_cluster_size: smaller clusters are merged into their nearest neighbour. A cluster of
            one query would give it as much weight as hundreds of others.
        kmeans_iterations: most iterations of k-means (published: 500).
        kmeans_restarts: runs of k-means; the best one is kept (published: 5).
        kmeans_points: most queries a centroid is fitted to (published: 256).
        log_clusters: steps between two lines of ``cluster_weights.jsonl``.
    """

    clusters: int = option(50, "Divide the queries into this many clusters. Default: 50.", min=1)
    min_cluster_size: int = option(2, min=1)
    kmeans_iterations: int = option(25, min=1, max=10_000)
    kmeans_restarts: int = option(1, min=1, max=1_000)
    kmeans_points: int = option(16_384, min=1)
    log_clusters: int = option(10, min=1)

    def loss_arguments(self) -> dict[str, object]:
        """Return the options that the subclass adds: keyword arguments of its loss."""
        shared = {option_field.name for option_field in fields(ClusterOptions)}
        names = [
            option_field.name for option_field in fields(self) if option_field.name not in shared
        ]
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class IDROOptions(ClusterOptions):
    """Options of iDRO, see :class:`~beir_cocodr.losses.dro.IDROLoss`.

    Args:
        mode: "stable", "published" or "paper".
        alpha: exponent of the losses, in the modes stable and published.
        rho: step size of the weights.
        ema: exponent of the weights before the step.
        eps: least weight of a cluster.
        absent: what happens to clusters that a batch lacks: "reset" or "keep". None is the mode's
            own rule.
        renormalize_present: divide the weights of a batch's clusters by their sum. None is the
            mode's own rule.
        scope: "all" moves one set of weights by the batch of all processes; "rank" keeps one set
            on each process, moved by its own batch, as in the published code.
        beta: exponent of the losses, in the mode paper.
        tau: temperature of the mode paper; None means clusters / rho.
        gram: how cluster gradients are compared: "one_backward", "sketch" or "k_calls".
        gradient_layers: last layers whose gradients are compared. None means 3 of 12, else 2.
        sketch_size: dimensions of the sketch on each side.
    """

    mode: str = option("stable", choices=("stable", "published", "paper"))
    alpha: float = option(0.25, min=0)
    rho: float = option(0.05, min=0)
    ema: float = option(0.1, min=0)
    eps: float = option(0.01, above=0, below=1)
    absent: str | None = option(None, choices=("reset", "keep"))
    renormalize_present: bool | None = option(None)
    scope: str = option("all", choices=("all", "rank"))
    beta: float = option(0.25, min=0)
    tau: float | None = option(None, above=0)
    gram: str = option("one_backward", choices=("one_backward", "sketch", "k_calls"))
    gradient_layers: int | None = option(None, min=1)
    sketch_size: int = option(64, min=1)

    def __post_init__(self) -> None:
        """Check the options, also against each other."""
        super().__post_init__()
        if self.mode == "paper" and self.tau is None and not self.rho:
            raise InputError(
                "rho 0 leaves the iDRO mode paper without a temperature, which is clusters / rho; "
                "set tau"
            )


@dataclass(frozen=True)
class GroupDROOptions(ClusterOptions):
    """Options of group DRO, see :class:`~beir_cocodr.losses.dro.GroupDROLoss`.

    Args:
        eta: step size of the weights.
    """

    eta: float = option(0.01, min=0)


@dataclass(frozen=True)
class CVaROptions(ClusterOptions):
    """Options of CVaR, see :class:`~beir_cocodr.losses.dro.CVaRLoss`.

    Args:
        cvar_alpha: share of the queries that counts fully.
        eps: weight of the others.
    """

    cvar_alpha: float = option(0.5, above=0, max=1)
    eps: float = option(0.01, above=0, below=1)


@dataclass(frozen=True, kw_only=True)
class Weighting(Row):
    """A way to weigh clusters of queries.

    ``build`` names a subclass of :class:`~beir_cocodr.losses.dro.ClusterLoss`. It is called with
    the model, the clusters, and the fields that ``options``, a subclass of
    :class:`ClusterOptions`, adds. Without ``build`` all examples count alike.
    """


_DRO = "beir_cocodr.losses.dro"

#: Name to weighting. Add a row for your own.
WEIGHTINGS: dict[str, Weighting] = {
    "erm": Weighting(help="all queries count alike", ignores=ClusterOptions),
    "idro": Weighting(
        build=f"{_DRO}:IDROLoss",
        help="more weight to clusters whose gradients lower the losses of all",
        options=IDROOptions,
        citations=("yu2022cocodr",),
    ),
    "groupdro": Weighting(
        build=f"{_DRO}:GroupDROLoss",
        help="more weight to clusters with large losses",
        options=GroupDROOptions,
        citations=("sagawa2020groupdro",),
    ),
    "cvar": Weighting(
        build=f"{_DRO}:CVaRLoss",
        help="only the clusters with the largest losses",
        options=CVaROptions,
        citations=("oren2019cvar",),
    ),
}
