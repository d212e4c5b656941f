r"""The inverse Cholesky factor $P = L^{-1}$ of $K_{ZZ} + jI = LL^\top$: it whitens inducing values.

A factorisation's derivative is usually computed by triangular solves, which on a GPU take longer
than all the dense layers of a bag. The inverse needs only products: with $\Phi$ the lower triangle
of a matrix, its diagonal halved, $dP = -\Phi(P\,dK\,P^\top)\,P$, and therefore

$$ \bar K = -\operatorname{sym}\big(P^\top\, \Phi(\bar P P^\top)\, P\big). $$

On a GPU one Triton kernel gives P: of the many small ones that a factorisation and a solve are
made of, each would take longer to start than to run.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sgpmil.gp.cholesky import ATTEMPTS, jittered_cholesky
from sgpmil.gpu.triton_package import available
from sgpmil.shapes import Float

__all__ = ["inverse_factor", "launch_gradient", "launch_inverse"]

_WIDEST = 128
"""Rows that one program holds; more are factorised by torch."""
_BLOCK = 16
"""Rows that are eliminated at once, the least that a matrix product takes."""


def inverse_factor(
    covariance: Float[Tensor, "M M"], jitter: float, dtype: torch.dtype | None = None
) -> Float[Tensor, "M M"]:
    r"""Give $L^{-1}$, computed in float64 whatever the dtype of K; see `jittered_cholesky`.

    Args:
        covariance: A symmetric positive semi-definite matrix $K$.
        jitter: The value $j$ added to its diagonal.
        dtype: Number format of the result, float64 where it is None.

    Raises:
        TrainingError: On the CPU, the matrix holds NaN, or is far from positive definite; on a GPU
            the result is then NaN.

    Example:
        >>> inverse_factor(torch.ones(2, 2), 3.0)[0, 0]
        tensor(0.5000, dtype=torch.float64)
    """
    return _InverseFactor.apply(covariance, jitter, dtype or torch.float64)


class _InverseFactor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, covariance: Tensor, jitter: float, dtype: torch.dtype) -> Tensor:
        ctx.dtype = covariance.dtype
        if _on_kernels(covariance):
            P, result = launch_inverse(covariance, jitter, dtype)
        else:
            factor = jittered_cholesky(covariance, jitter)
            identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
            P = torch.linalg.solve_triangular(factor, identity, upper=False)
            result = P.to(dtype)
        ctx.save_for_backward(P)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        (P,) = ctx.saved_tensors
        if _on_kernels(P):
            return launch_gradient(P, gradient, ctx.dtype), None, None
        inner = (gradient.double() @ P.T).tril_()
        inner.diagonal().mul_(0.5)
        full = P.T @ inner @ P
        return (full + full.T).mul_(-0.5).to(ctx.dtype), None, None


def launch_inverse(
    covariance: Float[Tensor, "M M"], jitter: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "M M"], Float[Tensor, "M M"]]:
    """Do as `inverse_factor` in one Triton kernel, which must be available.

    Returns:
        The inverse in float64, and in the given dtype.
    """
    from sgpmil.gpu.whitening_programs import inverse_factor_program

    size = len(covariance)
    covariance = _single_or_double(covariance)
    inverse = covariance.new_empty((size, size), dtype=torch.float64)
    rounded = inverse if dtype == inverse.dtype else torch.empty_like(inverse, dtype=dtype)
    with torch.cuda.device_of(covariance):
        inverse_factor_program[(1,)](
            covariance,
            inverse,
            rounded,
            size,
            *covariance.stride(),
            ATTEMPTS,
            JITTER=jitter,
            BLOCK=_BLOCK,
            WIDTH=_width(size),
            num_warps=4,
        )
    return inverse, rounded


def launch_gradient(
    P: Float[Tensor, "M M"], gradient: Float[Tensor, "M M"], dtype: torch.dtype
) -> Float[Tensor, "M M"]:
    r"""Give the gradient $\bar K$ in two Triton kernels, which must be available.

    Args:
        P: The inverse in float64, contiguous.
        gradient: The gradient $\bar P$ in any dtype.
        dtype: Number format of the result.
    """
    from sgpmil.gpu.whitening_programs import inner_gradient_program, outer_gradient_program

    size = len(P)
    gradient = _single_or_double(gradient)
    num_blocks = -(-size // _BLOCK)
    tile = {"BLOCK": _BLOCK, "WIDTH": _width(size), "num_warps": 4}
    inner, out = torch.empty_like(P), torch.empty_like(P, dtype=dtype)
    with torch.cuda.device_of(P):
        inner_gradient_program[(num_blocks,)](gradient, P, inner, size, *gradient.stride(), **tile)
        outer_gradient_program[(num_blocks, num_blocks)](P, inner, out, size, **tile)
    return out


def _on_kernels(matrix: Tensor) -> bool:
    return matrix.device.type == "cuda" and len(matrix) <= _WIDEST and available()


def _single_or_double(matrix: Tensor) -> Tensor:
    """Leave half precision, which Triton's products in double precision do not start from."""
    return matrix.float() if matrix.itemsize < torch.float32.itemsize else matrix


def _width(size: int) -> int:
    """Round up to a power of two that a matrix product takes.

    Example:
        >>> _width(80)
        128
    """
    return max(1 << (size - 1).bit_length(), _BLOCK)
