r"""How like an inducing point a patch is, and the one it is most like.

A patch enters the Gaussian process as $g_i = \sigma(W h_i + b)$; the inducing points $z_m$ lie in
the same space. With the prior covariance $k$ of the attention logits,

=========  =======================================================================================
cosine     $\cos(g_i, z_m)$, as published. Both lie (nearly) in the positive orthant, so that all
           cosines are high
centred    $\cos(g_i - \bar g, z_m - \bar g)$ with the mean $\bar g$ of the patches
kernel     $k(g_i, z_m) / \sqrt{k(g_i, g_i)\,k(z_m, z_m)}$: the correlation that the model gives
           the two attention logits. For the stationary kernels it is largest where
           $\lVert g_i - z_m \rVert$ is least
=========  =======================================================================================

Of equal ones, the first inducing point is taken; but with a kernel so short that it has fallen to
its constant, the nearest.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgpmil.bags.bag import Bag
from sgpmil.errors import ExplanationError
from sgpmil.gp.sparse import SparseGP
from sgpmil.models.contract import MILModel
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.shapes import Float, Int

__all__ = [
    "MEASURES",
    "SimilarityMeasure",
    "SlidePrototypes",
    "check_measure",
    "gp_in_double",
    "input_chunks",
    "mean_inputs",
    "model_with_prototypes",
    "most_similar",
]

SimilarityMeasure = Literal["cosine", "centred", "kernel"]
MEASURES: tuple[str, ...] = get_args(SimilarityMeasure)

CHUNK = 8192
"""Instances embedded at once: about 50 MB of activations, whatever the size of the slide."""


@dataclass(frozen=True, slots=True, eq=False)
class SlidePrototypes:
    """The prototypes of one slide's patches.

    Args:
        slide_id: Name of the slide.
        assigned: Number of the inducing point that each patch is most like.
        similarity: How like it the patch is.
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
    return copy.deepcopy(model.gp).double().requires_grad_(False)


def input_chunks(model: SGPMIL, bag: Bag) -> Iterator[Float[Tensor, "_ G"]]:
    r"""Give the inputs $g_i$ of a bag in pieces, in float64.

    Args:
        model: The model, in evaluation mode.
        bag: The bag.

    Raises:
        ExplanationError: The bag does not have the features that the model was trained on.
    """
    if bag.feature_dim != model.in_dim:
        raise ExplanationError(
            f"Expected {model.in_dim} features a patch, as the model was trained on, but "
            f"'{bag.slide_id}' has {bag.feature_dim}. Use embeddings of the same encoder."
        )
    place = model.gp.inducing_points
    for start in range(0, bag.num_instances, CHUNK):
        piece = bag.features[start : start + CHUNK].to(place.device, place.dtype)
        with torch.no_grad():
            inputs = model.gp_inputs(model.embed(piece)).double()
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
    total, count = torch.zeros(wanted.settings.gp_dim, dtype=torch.float64), 0
    for bag in bags:
        for inputs in input_chunks(wanted, bag):
            total += inputs.sum(0).cpu()
            count += len(inputs)
    if count == 0:
        raise ExplanationError("Expected at least one slide to explain, but got none. Name some.")
    return np.asarray((total / count).numpy())


def most_similar(
    gp: SparseGP,
    inputs: Float[Tensor, "T G"],
    covariance: Float[Tensor, "M T"],
    measure: SimilarityMeasure,
    centre: Float[Tensor, " G"] | None = None,
) -> tuple[Int[Tensor, " T"], Float[Tensor, " T"]]:
    r"""Find the inducing point that each patch is most like, and say how like it is.

    Args:
        gp: The Gaussian process, in float64.
        inputs: The inputs $g_i$ of the patches.
        covariance: $k(z_m, g_i)$.
        measure: Which similarity.
        centre: The mean $\bar g$, for the centred cosine.
    """
    z = gp.inducing_points
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
