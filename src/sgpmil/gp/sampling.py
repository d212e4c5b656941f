r"""Four ways to draw the attention's latent values f of a bag, all reparameterised.

``independent``
    Noise per instance, $f_{si} = \mu_i + \sigma_i \epsilon_{si}$ (the paper's text). Right for
    each instance, but the spread of a bag's sum shrinks like $1/\sqrt{N}$.
``shared``
    One noise value per sample and bag, $f_{si} = \mu_i + \sigma_i \epsilon_s$ (the released code).
``inducing``
    A sampled function: $v_s \sim q(v)$ carried to every instance, and the conditional residual
    independently, $f_{si} = \mu(x_i) + B_i^\top v_s + r_i^{1/2} \epsilon_{si}$. Exact marginals,
    and the joint correlation that the inducing points carry, at O(N·M) a sample.
``full``
    The exact joint Gaussian of each bag, O(N³): the oracle, and AGP's scheme.
"""

import itertools
import warnings
from typing import Literal, get_args

import torch
from torch import Tensor

from sgpmil.errors import SettingsError
from sgpmil.gp.cholesky import jittered_cholesky
from sgpmil.gp.noise import Noise
from sgpmil.gp.sparse import Posterior, SparseGP
from sgpmil.shapes import Float, Int

__all__ = ["MAX_JOINT_INSTANCES", "SAMPLING_SCHEMES", "SamplingScheme", "draw"]

SamplingScheme = Literal["independent", "shared", "inducing", "full"]
SAMPLING_SCHEMES: tuple[str, ...] = get_args(SamplingScheme)

MAX_JOINT_INSTANCES = 4096
"""Largest bag for which ``full`` factorises the N×N covariance; larger ones use ``inducing``."""


def draw(
    gp: SparseGP,
    inputs: Float[Tensor, "T G"],
    posterior: Posterior,
    offsets: Int[Tensor, " _"],
    *,
    scheme: str,
    num_samples: int,
    noise: Noise,
) -> Float[Tensor, "S T"]:
    """Draw samples of f for all bags of a batch.

    Args:
        gp: The process.
        inputs: Its inputs, bags packed end to end.
        posterior: ``gp.posterior(inputs)``.
        offsets: First row of each bag, and the end of the last.
        scheme: One of `SAMPLING_SCHEMES`.
        num_samples: Number of samples S.
        noise: Source of the standard normal draws.

    Raises:
        SettingsError: No scheme has that name.
    """
    # The posterior's mean and variance are computed here, and no more in half precision than it.
    with torch.autocast(inputs.device.type, enabled=False):
        if scheme == "independent":
            epsilon = noise.per_instance(num_samples, offsets, posterior.mean)
            return posterior.mean + posterior.variance.sqrt() * epsilon
        if scheme == "shared":
            sizes = offsets.diff()
            per_bag = noise.per_bag(num_samples, len(sizes), posterior.mean)
            epsilon = per_bag.repeat_interleave(sizes, dim=1, output_size=len(inputs))
            return posterior.mean + posterior.variance.sqrt() * epsilon
        if scheme == "inducing":
            return _draw_through_inducing_points(posterior, offsets, num_samples, noise)
        if scheme == "full":
            return _draw_jointly(gp, inputs, posterior, offsets, num_samples, noise)
    raise SettingsError(
        f"Expected sampling to be one of {', '.join(SAMPLING_SCHEMES)}, but got '{scheme}'."
    )


def _draw_through_inducing_points(
    posterior: Posterior, offsets: Int[Tensor, " _"], num_samples: int, noise: Noise
) -> Float[Tensor, "S T"]:
    m, Ls = posterior.whitened_mean, posterior.whitened_factor
    v = m + noise.per_function(num_samples, len(m), posterior.mean) @ Ls.T  # (S, M)
    carried = posterior.prior_mean + v @ posterior.projection
    epsilon = noise.per_instance(num_samples, offsets, posterior.mean)
    return carried + posterior.residual_variance.sqrt() * epsilon


def _draw_jointly(
    gp: SparseGP,
    inputs: Float[Tensor, "T G"],
    posterior: Posterior,
    offsets: Int[Tensor, " _"],
    num_samples: int,
    noise: Noise,
) -> Float[Tensor, "S T"]:
    bounds = offsets.tolist()
    if max(b - a for a, b in itertools.pairwise(bounds)) > MAX_JOINT_INSTANCES:
        warnings.warn(
            f"A bag has more than {MAX_JOINT_INSTANCES} instances, too many for the exact joint "
            "covariance: bags of that size are sampled through the inducing points instead.",
            stacklevel=3,
        )
        carried = _draw_through_inducing_points(posterior, offsets, num_samples, noise)
    epsilon = noise.per_instance(num_samples, offsets, posterior.mean)
    parts = []
    for start, end in itertools.pairwise(bounds):
        if end - start > MAX_JOINT_INSTANCES:
            parts.append(carried[:, start:end])
            continue
        # The jitter is in the covariance already; this one only absorbs rounding.
        factor = jittered_cholesky(gp.joint_covariance(inputs[start:end]), jitter=1e-8)
        noise_part = epsilon[:, start:end].double() @ factor.T
        parts.append(posterior.mean[start:end] + noise_part.to(posterior.mean.dtype))
    return torch.cat(parts, dim=1)
