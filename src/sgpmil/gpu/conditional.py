r"""Draws of f that are carried by draws of the inducing values, by hand in both directions.

With $B = P K_{ZX}$, whitened inducing values $v_s$ and prior variances $p$,

$$ f_{si} = B_i^\top v_s + r_i^{1/2} \epsilon_{si}, \qquad
   r_i = \max(p_i - \lVert B_i \rVert^2,\, r_{\min}). $$
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sgpmil.shapes import Float

__all__ = ["MIN_VARIANCE", "carried_draw"]

MIN_VARIANCE = 1e-6
"""Floor of a variance before its square root, whose slope at 0 is infinite."""


def carried_draw(
    covariance: Float[Tensor, "M T"],
    inverse: Float[Tensor, "M M"],
    values: Float[Tensor, "S M"],
    variance: Float[Tensor, " T"],
    noise: Float[Tensor, "S T"],
) -> Float[Tensor, "S T"]:
    r"""Carry whitened inducing values to inputs, and add what they leave unsaid.

    Args:
        covariance: $K_{ZX}$.
        inverse: $P$, the inverse Cholesky factor of $K_{ZZ}$.
        values: $v_s$.
        variance: $p$, the prior variances.
        noise: $\epsilon$, without gradient.
    """
    return _CarriedDraw.apply(covariance, inverse, values, variance, noise)


class _CarriedDraw(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        covariance: Tensor,
        inverse: Tensor,
        values: Tensor,
        variance: Tensor,
        noise: Tensor,
    ) -> Tensor:
        B = inverse @ covariance
        left = (variance - torch.linalg.vecdot(B, B, dim=0)).clamp_(min=MIN_VARIANCE)
        ctx.save_for_backward(covariance, inverse, values, noise, B, left)
        return torch.addcmul(values @ B, noise, left.sqrt())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        covariance, inverse, values, noise, B, left = ctx.saved_tensors
        # Of √r; where r is at its floor it does not move.
        d_root = torch.linalg.vecdot(gradient, noise, dim=0)
        d_left = d_root * left.rsqrt() * (left > MIN_VARIANCE)  # twice the gradient of r
        d_B = (values.T @ gradient).addcmul_(B, d_left, value=-1)
        return (
            inverse.T @ d_B,
            d_B @ covariance.T,
            gradient @ B.T,
            d_left.mul_(0.5),
            None,
        )
