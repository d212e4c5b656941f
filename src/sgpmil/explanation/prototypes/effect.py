r"""What each inducing point adds to the attention.

The posterior mean of the attention logit is a sum over the inducing points,

$$ \mathrm E f(x) = \mu(x) + \sum_m k(x, z_m)\, \alpha_m, \qquad
   \alpha = (K_{ZZ} + jI)^{-1} \big(m_u - \mu(Z)\big) = L^{-\top} m, $$

with the mean $m$ of the whitened values, $m_u = \mu(Z) + L m$ and $L L^\top = K_{ZZ} + jI$. The sum
is exact. Its single terms are not identified where inducing points lie close together: two that
coincide may have weights of opposite sign that cancel. What the posterior says at the inducing
point itself, $\mathrm E f(z_m)$ and its standard deviation, does not have that weakness.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sgpmil.gp.cholesky import jittered_cholesky
from sgpmil.gp.sparse import SparseGP
from sgpmil.shapes import Float

__all__ = ["AttentionParts", "attention_parts", "prototype_weights"]


@dataclass(frozen=True, slots=True)
class AttentionParts:
    r"""The posterior mean of attention logits in its parts.

    Args:
        prior_mean: $\mu(x_i)$.
        contributions: $k(z_m, x_i)\,\alpha_m$.
    """

    prior_mean: Float[Tensor, " T"]
    contributions: Float[Tensor, "M T"]

    @property
    def total(self) -> Float[Tensor, " T"]:
        r"""$\mathrm E f(x_i)$."""
        return self.prior_mean + self.contributions.sum(0)


def prototype_weights(gp: SparseGP) -> Float[Tensor, " M"]:
    r"""Solve for the weights $\alpha = L^{-\top} m$, in float64.

    Args:
        gp: The Gaussian process.

    Raises:
        TrainingError: Its covariance cannot be factorised.
    """
    factor = jittered_cholesky(gp.kernel(gp.inducing_points).to_dense(), gp.jitter)
    mean = gp.whitened_mean.to(factor.dtype).unsqueeze(1)
    return torch.linalg.solve_triangular(factor.T, mean, upper=True).squeeze(1)


def attention_parts(
    gp: SparseGP,
    inputs: Float[Tensor, "T G"],
    covariance: Float[Tensor, "M T"] | None = None,
    weights: Float[Tensor, " M"] | None = None,
) -> AttentionParts:
    """Part the posterior mean of the attention logits.

    Args:
        gp: The Gaussian process; in float64, lest large terms that cancel lose their digits.
        inputs: Inputs of the patches.
        covariance: $k(z_m, x_i)$, where it is known already.
        weights: What `prototype_weights` gives, where it is known already.
    """
    if covariance is None:
        covariance = gp.kernel(gp.inducing_points, inputs).to_dense()
    if weights is None:
        weights = prototype_weights(gp)
    return AttentionParts(gp.mean(inputs), covariance * weights.to(covariance.dtype)[:, None])
