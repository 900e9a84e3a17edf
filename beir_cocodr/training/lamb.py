"""LAMB, the optimiser of COCO-DR's released fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# Largest norm of a weight that the trust ratio counts, as in the third version of the paper.
_MOST_NORM = 10.0


class LAMB(torch.optim.Optimizer):
    """LAMB: Adam's step, scaled for each tensor by the norm of the tensor over that of the step.

    This is the form of the paper's third version, which the released code of ANCE and COCO-DR
    takes: moments are not corrected for their start at zero, weight decay joins the step before it
    is scaled, and norms of weights count up to 10. With m and v the moving averages of the gradient
    and its square, u = m / (√v + ε) + λ w and w ← w − lr · min(‖w‖, 10) / ‖u‖ · u; the ratio is 1
    where a norm is 0.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: weights of the old values in the moving averages.
        eps: ε, which is added to √v.
        weight_decay: λ.

    References:
        You et al., Large batch optimization for deep learning, 2020, Algorithm 2.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Start with moments of zero."""
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move all parameters that have a gradient, and return the closure's loss, if any."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, group)
        return loss

    def _move(self, weight: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        old_mean, old_square = group["betas"]
        mean = state["exp_avg"].lerp_(weight.grad, 1 - old_mean)
        square = state["exp_avg_sq"]
        square.mul_(old_square).addcmul_(weight.grad, weight.grad, value=1 - old_square)
        update = mean / (square.sqrt() + group["eps"])
        update.add_(weight, alpha=group["weight_decay"])
        weight_norm = weight.norm().clamp(max=_MOST_NORM)
        update_norm = update.norm()
        is_scaled = (weight_norm > 0) & (update_norm > 0)
        ratio = torch.where(is_scaled, weight_norm / update_norm, 1.0)
        weight.sub_(group["lr"] * ratio * update)
