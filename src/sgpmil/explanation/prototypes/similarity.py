r"""Similarity of patches to inducing points, and the parts of the attention logit.

A patch enters the Gaussian process as $g_i$; the inducing points $z_m$ are training patches, which
enter it alike, or free points of the same space. With the prior covariance $k$ of the attention
logits, the similarity is

=========  =======================================================================================
kernel     $k(g_i, z_m) / \sqrt{k(g_i, g_i)\,k(z_m, z_m)}$: the correlation that the model gives
           the two attention logits. For the stationary kernels it is largest where
           $\lVert g_i - z_m \rVert$ is least
cosine     $\cos(g_i, z_m)$, as published. Inputs that are sigmoids lie in the positive orthant, so
           that all cosines are high
centred    $\cos(g_i - \bar g, z_m - \bar g)$ with the mean $\bar g$ of the patches
=========  =======================================================================================

Ties go to the first inducing point. With a kernel so short that it has fallen to its constant,
they go to the nearest.

The posterior mean of the attention logit is a sum over the inducing points,

$$ \mathrm E f(x) = \mu(x) + \sum_m k(x, z_m)\, \alpha_m, \qquad
   \alpha = (K_{ZZ} + jI)^{-1} \big(m_u - \mu(Z)\big) = L^{-\top} m, $$

with the mean $m$ of the whitened values, $m_u = \mu(Z) + L m$ and $L L^\top = K_{ZZ} + jI$. The sum
is exact. Its single terms are not identified where inducing points lie close together: two that
coincide may have weights of opposite sign that cancel. The posterior at the inducing point itself,
$\mathrm E f(z_m)$ and its standard deviation, does not have that weakness.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgpmil.bags.bag import Bag
from sgpmil.errors import ExplanationError
from sgpmil.gp.sparse import SparseGP
from sgpmil.gpu.cholesky import jittered_cholesky
from sgpmil.models.contract import MILModel
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.shapes import Float, Int

SimilarityMeasure = Literal["kernel", "cosine", "centred"]
MEASURES: tuple[str, ...] = get_args(SimilarityMeasure)

CHUNK = 8192
"""Instances embedded at once: about 50 MB of activations, whatever the size of the slide."""


@dataclass(frozen=True, slots=True, eq=False)
class SlidePrototypes:
    """The prototypes of one slide's patches.

    Args:
        slide_id: Name of the slide.
        assigned: Number of the inducing point that each patch is most like.
        similarity: Similarity of the patch to it.
    """

    slide_id: str
    assigned: Int[np.ndarray, " N"]
    similarity: Float[np.ndarray, " N"]

    @property
    def num_instances(self) -> int:
        """Number of patches N."""
        return len(self.assigned)


def model_with_prototypes(model: MILModel) -> SGPMIL:
    """Return the model as one that has inducing points.

    Raises:
        ExplanationError: It has none.
    """
    if isinstance(model, SGPMIL):
        return model
    raise ExplanationError(
        "Expected a model with inducing points (sgpmil, agp) to explain by prototypes, but got "
        f"'{model.name or type(model).__name__}', which gives a score a patch instead. "
        "Look at its attention maps."
    )


def check_measure(measure: str) -> None:
    """Refuse an unknown measure.

    Raises:
        ExplanationError: It is none of `MEASURES`.
    """
    if measure not in MEASURES:
        raise ExplanationError(
            f"Expected the similarity {', '.join(MEASURES[:-1])} or {MEASURES[-1]}, but got "
            f"'{measure}'. Choose one of these."
        )


def gp_in_double(model: SGPMIL) -> SparseGP:
    """Copy the Gaussian process of a model in float64.

    Its space has few dimensions, so that this costs little; and a kernel that falls to nothing
    within a short length would give many equal values in float32.
    """
    gp = copy.deepcopy(model.gp).double()
    with torch.no_grad():
        gp.inducing_points = nn.Parameter(model.whitening().points.double())
    return gp.requires_grad_(False)


def input_chunks(model: SGPMIL, bag: Bag) -> Iterator[Float[Tensor, "_ G"]]:
    r"""Give the inputs $g_i$ of a bag in pieces, in float64.

    Raises:
        ExplanationError: The bag does not have the features that the model was trained on.
    """
    if bag.feature_dim != model.in_dim:
        raise ExplanationError(
            f"Expected {model.in_dim} features a patch, as the model was trained on, but "
            f"'{bag.slide_id}' has {bag.feature_dim}. Use embeddings of the same encoder."
        )
    place = model.gp.whitened_mean
    for start in range(0, bag.num_instances, CHUNK):
        piece = bag.features[start : start + CHUNK].to(place.device, place.dtype)
        with torch.no_grad():
            inputs = model.gp_inputs(piece).double()
        yield inputs


def mean_inputs(model: MILModel, bags: Iterable[Bag]) -> Float[np.ndarray, " G"]:
    r"""Give the mean $\bar g$ of the inputs over the patches of bags, for the centred cosine.

    Args:
        model: A model with inducing points.
        bags: The bags: those it was trained on, where they are to be had.

    Raises:
        ExplanationError: The model has no inducing points, or there are no bags.
    """
    wanted = model_with_prototypes(model).eval()
    sums, count = [], 0
    for bag in bags:
        for inputs in input_chunks(wanted, bag):
            sums.append(inputs.sum(0).cpu())
            count += len(inputs)
    if count == 0:
        raise ExplanationError("Expected at least one slide to explain, but got none. Name some.")
    return np.asarray((torch.stack(sums).sum(0) / count).numpy())


def most_similar(
    gp: SparseGP,
    inputs: Float[Tensor, "T G"],
    covariance: Float[Tensor, "M T"],
    measure: SimilarityMeasure,
    centre: Float[Tensor, " G"] | None = None,
) -> tuple[Int[Tensor, " T"], Float[Tensor, " T"]]:
    r"""Find the inducing point that each patch is most like, and say how like it is."""
    z = gp.points
    if measure != "kernel":
        middle = torch.zeros_like(z[0]) if measure == "cosine" or centre is None else centre
        cosines = F.normalize(z - middle, dim=1) @ F.normalize(inputs - middle, dim=1).T
        best = cosines.max(dim=0)
        return best.indices, best.values
    own = gp.kernel(z, diag=True)[:, None] * gp.kernel(inputs, diag=True)
    correlation = covariance / own.clamp(min=torch.finfo(own.dtype).tiny).sqrt()
    best = correlation.max(dim=0)
    numbers = best.indices
    as_large = correlation >= best.values - 4 * torch.finfo(own.dtype).eps
    doubtful = as_large.sum(dim=0) > 1
    if doubtful.any():
        distance = torch.cdist(
            z, inputs[doubtful], compute_mode="donot_use_mm_for_euclid_dist"
        ).masked_fill(~as_large[:, doubtful], torch.inf)
        numbers = numbers.masked_scatter(doubtful, distance.argmin(dim=0))
    return numbers, best.values


def group_points(points: Float[np.ndarray, "M G"], most: int) -> Int[np.ndarray, " M"]:
    """Put inducing points that lie close together into groups (Ward's method), numbered from 0.

    Args:
        points: The inducing points.
        most: Most groups; as many points or fewer are a group each.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(points) <= most:
        return np.arange(len(points))
    return np.asarray(fcluster(linkage(points, "ward"), most, "maxclust")) - 1


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

    Raises:
        TrainingError: Its covariance cannot be factorised.
    """
    factor = jittered_cholesky(gp.kernel(gp.points).to_dense(), gp.jitter)
    mean = gp.whitened_mean.to(factor.dtype).unsqueeze(1)
    return torch.linalg.solve_triangular(factor.T, mean, upper=True).squeeze(1)


def attention_parts(
    gp: SparseGP,
    inputs: Float[Tensor, "T G"],
    covariance: Float[Tensor, "M T"] | None = None,
    weights: Float[Tensor, " M"] | None = None,
) -> AttentionParts:
    """Split the posterior mean of the attention logits into its parts.

    Args:
        gp: The Gaussian process; in float64, lest large terms that cancel lose their digits.
        inputs: Inputs of the patches.
        covariance: $k(z_m, x_i)$, where it is known already.
        weights: Result of `prototype_weights`, if it is known already.
    """
    if covariance is None:
        covariance = gp.kernel(gp.points, inputs).to_dense()
    if weights is None:
        weights = prototype_weights(gp)
    return AttentionParts(gp.mean(inputs), covariance * weights.to(covariance.dtype)[:, None])
