r"""Sampling schemes: four ways to draw the latent values f of a bag, all reparameterised.

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

from sgpmil.bags.segments import Segments
from sgpmil.chunks import chunk_bounds, recomputed
from sgpmil.errors import SettingsError
from sgpmil.gp.noise import Noise
from sgpmil.gp.sparse import SparseGP, Whitening
from sgpmil.gpu.cholesky import jittered_cholesky
from sgpmil.shapes import Float

SamplingScheme = Literal["independent", "shared", "inducing", "full"]
SAMPLING_SCHEMES: tuple[str, ...] = get_args(SamplingScheme)

_LINEAR_STREAM = 2000
"""Number of the stream of noise of a linear part's weights."""

MAX_JOINT_INSTANCES = 4096
"""Largest bag for which ``full`` factorises the N×N covariance; larger ones use ``inducing``."""

_ROWS_TOGETHER = 512
"""Most rows of bags of one size whose covariances are computed together."""


def draw(
    gp: SparseGP,
    inputs: Float[Tensor, "T G"],
    segments: Segments,
    *,
    scheme: str,
    num_samples: int,
    noise: Noise,
    whitening: Whitening | None = None,
) -> Float[Tensor, "S T"]:
    """Draw samples of f for all bags of a batch.

    Args:
        gp: The process.
        inputs: Its inputs, bags packed end to end.
        segments: Division of the inputs into bags.
        scheme: One of `SAMPLING_SCHEMES`.
        num_samples: Number of samples S.
        noise: Source of the standard normal draws.
        whitening: Result of the process's `whitening`, where it is computed already.

    Raises:
        SettingsError: No scheme has that name.
    """
    if scheme not in SAMPLING_SCHEMES:
        raise SettingsError(
            f"Expected sampling to be one of {', '.join(SAMPLING_SCHEMES)}, but got '{scheme}'."
        )
    # Half precision would lose the difference of nearly equal variances.
    with torch.autocast(inputs.device.type, enabled=False):
        given = gp.whitening() if whitening is None else whitening
        if scheme == "full":
            return _draw_jointly(gp, inputs, segments, num_samples, noise, given)
        return _draw_alone(gp, inputs, segments, scheme, num_samples, noise, given)


def _draw_alone(
    gp: SparseGP,
    inputs: Float[Tensor, "T G"],
    segments: Segments,
    scheme: str,
    num_samples: int,
    noise: Noise,
    whitening: Whitening,
) -> Float[Tensor, "S T"]:
    """Draw by a scheme in which instances do not depend on each other, given the noise."""
    like = gp.whitened_mean
    functions = None
    if scheme == "inducing":
        xi = noise.per_function(num_samples, len(gp.whitened_mean), like)
        functions = gp.whitened_mean + xi @ gp.whitened_factor.T  # (S, M)
    if scheme == "shared":
        epsilon = noise.per_bag(num_samples, len(segments), like)[:, segments.index]
    else:
        epsilon = noise.per_instance(num_samples, segments, like)

    weights = None
    if functions is not None and gp.linear is not None:
        own = noise.stream(_LINEAR_STREAM)
        weights = own.per_function(num_samples, len(gp.linear.mean), like)

    def latent(x: Tensor, noise_of_x: Tensor) -> Tensor:
        if functions is not None:
            drawn = gp.carry(x, functions, noise_of_x, whitening)
            if gp.linear is None or weights is None:
                return drawn
            return drawn + gp.linear.carry(x.to(like.dtype), weights)
        posterior = gp.posterior(x, whitening)
        return posterior.mean + posterior.variance.sqrt() * noise_of_x

    bounds = chunk_bounds(inputs.shape[0], inputs.device)
    if len(bounds) == 1:
        return latent(inputs, epsilon)
    parts = [recomputed(latent, inputs[a:b], epsilon[:, a:b]) for a, b in bounds]
    return torch.cat(parts, dim=1)


def _draw_jointly(
    gp: SparseGP,
    inputs: Float[Tensor, "T G"],
    segments: Segments,
    num_samples: int,
    noise: Noise,
    whitening: Whitening,
) -> Float[Tensor, "S T"]:
    bounds = segments.offsets.tolist()
    mean = gp.posterior(inputs, whitening).mean
    if max(b - a for a, b in itertools.pairwise(bounds)) > MAX_JOINT_INSTANCES:
        warnings.warn(
            f"A bag has more than {MAX_JOINT_INSTANCES} instances, too many for the exact joint "
            "covariance: bags of that size are sampled through the inducing points instead.",
            stacklevel=3,
        )
        carried = _draw_alone(gp, inputs, segments, "inducing", num_samples, noise, whitening)
    epsilon = noise.per_instance(num_samples, segments, mean)
    parts = []
    for start, end, num_bags in _runs(bounds):
        if num_bags > 1:
            covariance = _covariance(gp, inputs[start:end], whitening)
            blocks = covariance.unflatten(0, (num_bags, -1)).unflatten(2, (num_bags, -1))
            own = blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
            factor = jittered_cholesky(own, jitter=1e-8)
            own_noise = epsilon[:, start:end].double().unflatten(1, (num_bags, -1))
            noise_part = torch.einsum("sbn,bmn->sbm", own_noise, factor).flatten(1)
            parts.append(mean[start:end] + noise_part.to(mean.dtype))
            continue
        if end - start > MAX_JOINT_INSTANCES:
            parts.append(carried[:, start:end])
            continue
        # The jitter is in the covariance already; this one only absorbs rounding.
        factor = jittered_cholesky(_covariance(gp, inputs[start:end], whitening), jitter=1e-8)
        noise_part = epsilon[:, start:end].double() @ factor.T
        parts.append(mean[start:end] + noise_part.to(mean.dtype))
    return torch.cat(parts, dim=1)


def _covariance(
    gp: SparseGP, inputs: Float[Tensor, "N G"], whitening: Whitening
) -> Float[Tensor, "N N"]:
    covariance = gp.joint_covariance(inputs, whitening)
    if gp.linear is None:
        return covariance
    return covariance + gp.linear.covariance(inputs.double())


def _runs(bounds: list[int]) -> list[tuple[int, int, int]]:
    """Return first row, end and number of bags that are drawn together.

    In training, bags of one size that follow each other are, as long as they are few rows; in
    prediction each is alone, so that it does not depend on its batch.

    Example:
        >>> with torch.enable_grad():
        ...     _runs([0, 9, 18, 20])
        [(0, 18, 2), (18, 20, 1)]
    """
    runs: list[tuple[int, int, int]] = []
    may_join = torch.is_grad_enabled()
    for start, end in itertools.pairwise(bounds):
        if runs and may_join:
            first, last, num_bags = runs[-1]
            is_alike = (last - first) == num_bags * (end - start)
            if is_alike and end - first <= _ROWS_TOGETHER:
                runs[-1] = (first, end, num_bags + 1)
                continue
        runs.append((start, end, 1))
    return runs
