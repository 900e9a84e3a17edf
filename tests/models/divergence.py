"""The divergence that dot products stand for, in its closed form."""

from __future__ import annotations

from torch import Tensor

from beir_cocodr.models.kl import Formula


def negative_kl(
    query_mean: Tensor,
    query_variance: Tensor,
    document_mean: Tensor,
    document_variance: Tensor,
    formula: Formula = "exact",
) -> Tensor:
    """−KL(Q‖D) = −½ Σ_i [log σ_di² − log σ_qi² + (σ_qi² + (μ_qi − μ_di)²) / σ_di² − 1].

    Args:
        query_mean, query_variance: μ_q and σ_q² > 0, (..., k).
        document_mean, document_variance: μ_d and σ_d² > 0, (..., k); the leading dimensions
            broadcast.
        formula: "paper" gives Eq. 10 instead, for ablation:
            −½ [Σ log σ_di² + Π σ_qi² / Π σ_di² + Σ (μ_qi − μ_di)² / σ_di²], its ratio at most e^60.

    Returns:
        (...), in the arguments' type.

    Source: MRL, Eq. 9; Eq. 10 for "paper".
    """
    distance = (query_mean - document_mean) ** 2 / document_variance
    if formula == "paper":
        volume_q, volume_d = query_variance.log().sum(dim=-1), document_variance.log().sum(dim=-1)
        ratio = (volume_q - volume_d).clamp(max=60).exp()
        return -0.5 * (volume_d + ratio + distance.sum(dim=-1))
    ratios = query_variance / document_variance
    return -0.5 * (ratios - ratios.log() - 1 + distance).sum(dim=-1)
