"""Settings of how clusters of queries are weighted, with the paper's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from beir_cocodr.errors import InputError

WEIGHTINGS = ("erm", "idro", "groupdro", "cvar")


@dataclass(frozen=True)
class WeightingOptions:
    """Which loss of an example is trained on, and how clusters of queries are weighted.

    Args:
        loss: "triplet" (own positive against own hard negatives; COCO-DR, Eq. 2) or "infonce" (against all
            documents of the batch). None: infonce for erm without episodes, else triplet.
        weighting: "erm" (all examples alike), "idro", "groupdro" or "cvar".
        clusters: K, of k-means over the training queries' embeddings by the model that is trained (50).
        min_cluster_size: smaller clusters are folded into their nearest neighbour (a cluster of one query
            would give it as much weight as hundreds of others).
        idro_mode: "stable", "published" or "paper", see :class:`~beir_cocodr.losses.idro.IDROLoss`.
        alpha, rho, ema, eps, absent, renormalize_present: of iDRO's modes stable and published.
        beta, tau: of its mode paper; tau None is clusters / rho.
        gram: how cluster gradients are compared: one_backward, sketch, k_calls, batched.
        gradient_layers: last layers whose gradients are compared; None is 3 of 12, else 2.
        sketch_size: dimensions a side of the sketch.
        eta: step size of groupdro.
        cvar_alpha: share of the queries that counts fully in cvar.
        log_clusters: steps between lines of cluster_weights.jsonl.
    """

    loss: str | None = None
    weighting: str = "erm"
    clusters: int = 50
    min_cluster_size: int = 2
    idro_mode: str = "stable"
    alpha: float = 0.25
    rho: float = 0.05
    ema: float = 0.1
    eps: float = 0.01
    absent: str | None = None
    renormalize_present: bool | None = None
    beta: float = 0.25
    tau: float | None = None
    gram: str = "one_backward"
    gradient_layers: int | None = None
    sketch_size: int = 64
    eta: float = 0.01
    cvar_alpha: float = 0.5
    log_clusters: int = 10

    def __post_init__(self) -> None:
        if self.weighting not in WEIGHTINGS:
            raise InputError(f"unknown weighting {self.weighting!r}; there are {', '.join(WEIGHTINGS)}")
        if self.loss not in (None, "triplet", "infonce"):
            raise InputError(f"unknown loss {self.loss!r}; there are triplet, infonce")
        for name in ("clusters", "min_cluster_size", "sketch_size", "log_clusters"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("alpha", "rho", "ema", "beta", "eta"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, it is {getattr(self, name)}")
        if not 0 < self.eps < 1 or not 0 < self.cvar_alpha <= 1 or (self.tau is not None and self.tau <= 0):
            raise InputError(
                f"eps must lie between 0 and 1, cvar_alpha above 0 and up to 1, tau above 0, "
                f"not {self.eps}, {self.cvar_alpha} and {self.tau}"
            )
