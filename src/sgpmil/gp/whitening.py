r"""The inverse Cholesky factor $P = L^{-1}$ of $K_{ZZ} + jI = LL^\top$: it whitens inducing values.

A factorisation's derivative is usually computed by triangular solves, which on a GPU take longer
than all the dense layers of a bag. The inverse needs only products: with $\Phi$ the lower triangle
of a matrix, its diagonal halved, $dP = -\Phi(P\,dK\,P^\top)\,P$, and therefore

$$ \bar K = -\operatorname{sym}\big(P^\top\, \Phi(\bar P P^\top)\, P\big). $$
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sgpmil.gp.cholesky import jittered_cholesky
from sgpmil.shapes import Float

__all__ = ["inverse_factor"]


def inverse_factor(covariance: Float[Tensor, "M M"], jitter: float) -> Float[Tensor, "M M"]:
    r"""Give $L^{-1}$ in float64, whatever the dtype of K; see `jittered_cholesky`.

    Args:
        covariance: A symmetric positive semi-definite matrix $K$.
        jitter: The value $j$ added to its diagonal.

    Raises:
        TrainingError: The matrix holds NaN, or is far from positive definite.

    Example:
        >>> inverse_factor(torch.ones(2, 2), 3.0)[0, 0]
        tensor(0.5000, dtype=torch.float64)
    """
    return _InverseFactor.apply(covariance, jitter)


class _InverseFactor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, covariance: Tensor, jitter: float) -> Tensor:
        factor = jittered_cholesky(covariance, jitter)
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        P = torch.linalg.solve_triangular(factor, identity, upper=False)
        ctx.save_for_backward(P)
        ctx.dtype = covariance.dtype
        return P

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        (P,) = ctx.saved_tensors
        inner = (gradient @ P.T).tril_()
        inner.diagonal().mul_(0.5)
        full = P.T @ inner @ P
        return (full + full.T).mul_(-0.5).to(ctx.dtype), None
