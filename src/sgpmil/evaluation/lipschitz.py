r"""Lipschitz bounds of a model: how much a path can amplify a change of the features.

A path of linear layers $W_l$ with activations of Lipschitz constant $L_l$ has

$$ \lVert f(x) - f(x') \rVert_2 \le \prod_l \sigma_{\max}(W_l) \prod_l L_l \;
   \lVert x - x' \rVert_2, $$

with $L = 1$ for ReLU and tanh and $\tfrac14$ for the sigmoid. Of the softmax, $\tfrac12$ is the
least constant in this norm; the published bound takes 1.

==============  ==================================================================================
classifier      instance → embedding → class logits of that instance, $W_1 … W_k W_{cls}$
attention       instance → what attention is computed from: the inputs of the Gaussian process,
                $W_1 … W_k W_{att} \cdot \tfrac14$ (standardised: the largest of the factors that
                they are divided by, in place of $\tfrac14$), or the attention logit
preserved …     instance → principal components among the inputs of the process, where it has them
attention mean  the same and the prior mean $\lVert w_A \rVert$, where it is linear
all layers      every layer and activation of the model multiplied once, as published
==============  ==================================================================================

The first three bound the functions they name. The product of all layers bounds none: an instance
also reaches the logits through the pooling, whose constant depends on the bag's size and on the
embeddings of its other instances, and a Gaussian process adds its posterior's own slope. It is
a figure to compare models by, no more; and models trained with other learning rates or weight
decay differ in it for that reason alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sgpmil.errors import CheckpointError
from sgpmil.evaluation.summary import MetricSummary, summarise_values
from sgpmil.models.abmil import ABMIL
from sgpmil.models.contract import MILModel
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.shapes import Float

_SIGMOID = 1 / 4
_SOFTMAX = 1 / 2


@dataclass(frozen=True, slots=True)
class LipschitzFactor:
    """One factor of a bound.

    Args:
        name: Part of the model that it belongs to.
        value: The constant.
    """

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class LipschitzPath:
    """The bound of a path through a model.

    Args:
        name: Name of the path.
        factors: Its factors, from the features on.
    """

    name: str
    factors: tuple[LipschitzFactor, ...]

    @property
    def bound(self) -> float:
        """Product of the factors."""
        return math.prod(factor.value for factor in self.factors)


def spectral_norm(weight: Float[Tensor, "rows columns"]) -> float:
    r"""Compute the largest singular value $\sigma_{\max}$, in double precision.

    Example:
        >>> spectral_norm(torch.tensor([[3.0, 0.0], [0.0, -5.0]]))
        5.0
    """
    return float(torch.linalg.svdvals(weight.detach().double().cpu())[0])


def lipschitz_paths(model: MILModel, *, raw_features: bool = False) -> tuple[LipschitzPath, ...]:
    r"""Bound the paths of a model.

    Args:
        model: A trained model.
        raw_features: Whether a change is one of the features as they come, for which the first
            layer is $W_1 \operatorname{diag}(1 / s)$ with the scales $s$ of the standardisation
            (whose cut-off is 1-Lipschitz). By default it is one of standardised features, which
            compares across encoders; without a standardisation, the two are the same.

    Raises:
        CheckpointError: The bound is not defined for this model.

    Example:
        >>> from sgpmil.models import build_model
        >>> model = build_model("abmil", in_dim=4, num_classes=2)
        >>> [path.name for path in lipschitz_paths(model)]
        ['classifier', 'attention', 'all layers']
    """
    if model.settings.encoder != "none":
        raise CheckpointError(
            f"Expected a model of embeddings, but this one has the encoder "
            f"'{model.settings.encoder}' in front, for which no bound is defined."
        )
    if isinstance(model, SGPMIL):
        return _sgpmil_paths(model, raw_features)
    if isinstance(model, ABMIL):
        return _abmil_paths(model, raw_features)
    raise CheckpointError(
        f"Expected a model whose paths are linear layers and activations (sgpmil, agp, abmil), "
        f"but got '{model.name}', for which no bound is defined."
    )


def summarise_paths(folds: Sequence[Sequence[LipschitzPath]]) -> tuple[MetricSummary, ...]:
    """Summarise the bound of each path over the models of several folds.

    Args:
        folds: Paths of each fold's model, of the same kind of model.

    Returns:
        Mean and sample standard deviation of each path's bound; the deviation of one fold is NaN.

    Raises:
        CheckpointError: There are no folds, or they are of different kinds of model.
    """
    names = {tuple(path.name for path in paths) for paths in folds}
    if len(names) != 1:
        raise CheckpointError(
            f"Expected the models of one run, but got {len(names)} kinds of model. "
            "Name the folder of a run with a trained fold."
        )
    return tuple(
        summarise_values(name, [paths[number].bound for paths in folds])
        for number, name in enumerate(next(iter(names)))
    )


def _sgpmil_paths(model: SGPMIL, raw_features: bool) -> tuple[LipschitzPath, ...]:
    backbone = _backbone(model, model.mlp, raw_features)
    classifier = LipschitzFactor("classifier", spectral_norm(model.classifier.weight))
    scale = model.input_scale().detach().double()
    G = model.settings.gp_dim
    bend = (
        LipschitzFactor("sigmoid", _SIGMOID)
        if model.settings.inputs == "sigmoid"
        else LipschitzFactor("standardisation", float(scale[:G].max()))
    )
    projection = spectral_norm(model.projection.weight)
    attention: tuple[LipschitzFactor, ...] = (
        LipschitzFactor("attention projection", projection),
        bend,
    )
    paths = [
        LipschitzPath("classifier", (*backbone, classifier)),
        LipschitzPath("attention", (*backbone, *attention)),
    ]
    if model.preserved is not None:
        components = model.preserved.detach().double() * scale[G:]
        if raw_features:
            components = components / model.standardise.scale.double()[:, None]
        norm = LipschitzFactor("principal components", spectral_norm(components))
        paths.append(LipschitzPath("preserved components", (norm,)))
    if model.settings.mean == "linear":
        weights = model.gp.mean.weights.reshape(1, -1)
        attention = (*attention, LipschitzFactor("linear mean", spectral_norm(weights)))
        paths.append(LipschitzPath("attention mean", (*backbone, *attention)))
    name = model.settings.activation
    activation = LipschitzFactor(name, _SOFTMAX if name == "softmax" else _SIGMOID)
    everything = (*backbone, *attention, activation, classifier)
    return (*paths, LipschitzPath("all layers", everything))


def _abmil_paths(model: ABMIL, raw_features: bool) -> tuple[LipschitzPath, ...]:
    backbone = _backbone(model, model.mlp, raw_features)
    classifier = LipschitzFactor("classifier", spectral_norm(model.classifier.weight))
    hidden = LipschitzFactor("attention values", spectral_norm(model.value.weight))
    if model.gate is not None:
        # Both factors of the product are within [-1, 1], so a change of it is at most the sum of
        # theirs.
        slope = hidden.value + _SIGMOID * spectral_norm(model.gate.weight)
        hidden = LipschitzFactor("gated attention values", slope)
    logit = LipschitzFactor("attention logit", spectral_norm(model.attention.weight))
    attention = (*backbone, hidden, logit)
    softmax = LipschitzFactor("softmax", _SOFTMAX)
    return (
        LipschitzPath("classifier", (*backbone, classifier)),
        LipschitzPath("attention", attention),
        LipschitzPath("all layers", (*attention, softmax, classifier)),
    )


def _backbone(
    model: MILModel, layers: nn.Sequential, raw_features: bool
) -> tuple[LipschitzFactor, ...]:
    weights: Sequence[Tensor] = [
        layer.weight.detach().double() for layer in layers if isinstance(layer, nn.Linear)
    ]
    norms = []
    for number, weight in enumerate(weights, start=1):
        is_scaled = raw_features and number == 1
        used = weight / model.standardise.scale.double() if is_scaled else weight
        name = f"layer {number} / scale" if is_scaled else f"layer {number}"
        norms.append(LipschitzFactor(name, spectral_norm(used)))
    return tuple(norms)
