r"""The scaled RBF kernel with a constant, the default one, by hand in both directions.

$$ k(z, x) = s \exp\big(-\tfrac12 \lVert z - x \rVert^2 / \ell^2\big) + c $$

The parameters are those of GPyTorch's kernel. Its own evaluation is right for any kernel, but takes
three times as many passes over the M×T matrix, and asks the device whether z and x are equal, for
which a GPU's queue has to run empty.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gpytorch.kernels as gpk
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sgpmil.shapes import Float

__all__ = ["Covariance", "OtherKernel", "ScaledRBF", "covariance_of"]


@runtime_checkable
class Covariance(Protocol):
    """A kernel at the present values of its parameters."""

    def between(self, z: Float[Tensor, "M G"], x: Float[Tensor, "T G"]) -> Float[Tensor, "M T"]:
        """Give the covariance of every pair."""
        ...

    def variance(self, x: Float[Tensor, "T G"]) -> Float[Tensor, " T"]:
        """Give the variance of every point."""
        ...


def covariance_of(kernel: gpk.Kernel) -> Covariance:
    """Take a kernel's parameters as they are, once for all that is computed with them."""
    return ScaledRBF.of(kernel) or OtherKernel(kernel)


@dataclass(frozen=True, slots=True)
class OtherKernel:
    """Any kernel, evaluated by GPyTorch.

    Args:
        kernel: The kernel.
    """

    kernel: gpk.Kernel

    def between(self, z: Float[Tensor, "M G"], x: Float[Tensor, "T G"]) -> Float[Tensor, "M T"]:
        """See `Covariance`."""
        return self.kernel(z, x).to_dense()

    def variance(self, x: Float[Tensor, "T G"]) -> Float[Tensor, " T"]:
        """See `Covariance`."""
        return self.kernel(x, diag=True)


@dataclass(frozen=True, slots=True)
class ScaledRBF:
    r"""The kernel's parameters.

    Args:
        lengthscale: $\ell$.
        scale: $s$.
        constant: $c$.
    """

    lengthscale: Float[Tensor, ""]
    scale: Float[Tensor, ""]
    constant: Float[Tensor, ""]

    @staticmethod
    def of(kernel: gpk.Kernel) -> "ScaledRBF | None":
        """Read the parameters off a kernel; None where it is another one."""
        if type(kernel) is not gpk.AdditiveKernel or len(kernel.kernels) != 2:
            return None
        scaled, constant = kernel.kernels
        if type(scaled) is not gpk.ScaleKernel or type(constant) is not gpk.ConstantKernel:
            return None
        rbf = scaled.base_kernel
        simple = all(part.active_dims is None for part in (scaled, constant, rbf))
        if type(rbf) is not gpk.RBFKernel or rbf.lengthscale.numel() != 1 or not simple:
            return None
        return ScaledRBF(
            rbf.lengthscale.reshape(()),
            scaled.outputscale.reshape(()),
            constant.constant.reshape(()),
        )

    def between(self, z: Float[Tensor, "M G"], x: Float[Tensor, "T G"]) -> Float[Tensor, "M T"]:
        """See `Covariance`."""
        return _Covariance.apply(z, x, self.lengthscale, self.scale, self.constant)

    def variance(self, x: Float[Tensor, "T G"]) -> Float[Tensor, " T"]:
        """See `Covariance`."""
        return (self.scale + self.constant).expand(len(x))


class _Covariance(torch.autograd.Function):
    r"""With $E = \exp(-D)$, $K = sE + c$ and the gradient $W = s E \circ \bar K$ of $-D$.

    $$ \bar x = (W^\top z - (W^\top 1) \circ x) / \ell^2, \qquad
       \bar z = (W x - (W 1) \circ z) / \ell^2, \qquad
       \bar\ell = 2 \textstyle\sum W \circ D / \ell $$
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        x: Tensor,
        lengthscale: Tensor,
        scale: Tensor,
        constant: Tensor,
    ) -> Tensor:
        # Distances do not change; numbers that are small before they are squared are more exact.
        centre = z.mean(0)
        z_scaled, x_scaled = (z - centre) / lengthscale, (x - centre) / lengthscale
        z_half, x_half = _half_square(z_scaled), _half_square(x_scaled)
        exponent = torch.addmm(z_half.unsqueeze(1), z_scaled, x_scaled.T, beta=-1)
        E = exponent.sub_(x_half).exp_()
        ctx.save_for_backward(z_scaled, x_scaled, lengthscale, scale, E)
        return torch.addcmul(constant, E, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        z, x, lengthscale, scale, E = ctx.saved_tensors
        W = gradient * E
        d_scale = W.sum()
        W.mul_(scale)
        d_x = torch.addcmul(W.T @ z, W.sum(0).unsqueeze(1), x, value=-1)
        d_z = torch.addcmul(W @ x, W.sum(1).unsqueeze(1), z, value=-1)
        # The scaled points shrink as the lengthscale grows.
        along = torch.dot(d_x.flatten(), x.flatten()) + torch.dot(d_z.flatten(), z.flatten())
        return (
            d_z.div_(lengthscale),
            d_x.div_(lengthscale),
            -along / lengthscale,
            d_scale,
            gradient.sum(),
        )


def _half_square(points: Float[Tensor, "T G"]) -> Float[Tensor, " T"]:
    return torch.linalg.vecdot(points, points).mul_(0.5)
