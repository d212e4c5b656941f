r"""A linear part of a Gaussian process, by its weights.

A process with the kernel $k(x, x') + 2\sigma^2 x^\top x'$ is the sum of one with the kernel $k$ and
of $\sqrt 2\, w^\top x$ with $w \sim N(0, \sigma^2 I)$. The weights have their own posterior
$q(w) = N(m_w, \mathrm{diag}(s_w^2))$, so inducing points need not describe the linear part, and
the divergence

$$ \mathrm{KL} = \tfrac12 \sum_g
   \big( (m_g^2 + s_g^2) / \sigma^2 - 1 - \ln(s_g^2 / \sigma^2) \big) $$

is added to that of the inducing values. Where the mean square distance of inputs is 1, the part
has the standard deviation $\sigma$.
"""

import math

import torch
from torch import Tensor, nn

from sgpmil.shapes import Float

_START = -1.0
"""Initial logarithm of the posterior's standard deviation over the prior's."""


class LinearPart(nn.Module):
    r"""The part of this module.

    Args:
        dim: Number of inputs.
        scale: Prior standard deviation $\sigma$ of the weights.
    """

    def __init__(self, dim: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.mean = nn.Parameter(torch.zeros(dim))
        self.log_sd = nn.Parameter(torch.full((dim,), math.log(scale) + _START))

    def moments(self, x: Float[Tensor, "T G"]) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
        """Return mean and variance at inputs."""
        return math.sqrt(2) * (x @ self.mean), 2 * x.square() @ (2 * self.log_sd).exp()

    def prior_variance(self, x: Float[Tensor, "T G"]) -> Float[Tensor, " T"]:
        """Return the variance at inputs before training."""
        return 2 * self.scale**2 * x.square().sum(1)

    def covariance(self, x: Float[Tensor, "N G"]) -> Float[Tensor, "N N"]:
        """Return the covariance of the part at all pairs of inputs."""
        return 2 * (x * (2 * self.log_sd).exp().to(x.dtype)) @ x.T

    def carry(self, x: Float[Tensor, "T G"], noise: Float[Tensor, "S G"]) -> Float[Tensor, "S T"]:
        """Carry draws of the weights to inputs."""
        return math.sqrt(2) * (self.mean + self.log_sd.exp() * noise) @ x.T

    def kl(self) -> Float[Tensor, ""]:
        """Return the divergence of the weights' posterior from their prior."""
        log_ratio = 2 * (self.log_sd - math.log(self.scale))
        return 0.5 * (log_ratio.exp() + self.mean.square() / self.scale**2 - 1 - log_ratio).sum()
