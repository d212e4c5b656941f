r"""Likelihoods of labels: three scores of the samples of a bag's logits against its label.

For classes, with $p_s = \mathrm{softmax}(\ell_s)$:

``mean_log_prob``  $-\frac1S \sum_s \log p_s[y]$ — the paper's ELBO
``mean_logits``    $-\log \mathrm{softmax}(\frac1S \sum_s \ell_s)[y]$ — the released code
``log_mean_prob``  $-\log \frac1S \sum_s p_s[y]$ — the original AGP
"""

import math
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgpmil.bags.target import ClassTarget, OrdinalTarget, Target
from sgpmil.errors import SettingsError
from sgpmil.shapes import Float, Int

Likelihood = Literal["mean_log_prob", "mean_logits", "log_mean_prob"]
LIKELIHOODS: tuple[str, ...] = get_args(Likelihood)

_QUADRATURE_NODES = 20


def negative_log_likelihood(
    target: Target,
    logits: Float[Tensor, "B S C"],
    labels: Int[Tensor, " B"],
    likelihood: str,
) -> Float[Tensor, ""]:
    """Average the negative log-likelihood over bags.

    Args:
        target: Kind of the labels; each has its likelihood here.
        logits: Samples of each bag's outputs.
        labels: Label of each bag.
        likelihood: One of `LIKELIHOODS`.

    Raises:
        SettingsError: No likelihood has that name.
    """
    if likelihood not in LIKELIHOODS:
        raise SettingsError(
            f"Expected likelihood to be one of {', '.join(LIKELIHOODS)}, but got '{likelihood}'."
        )
    return _NEGATIVE_LOG[target.kind](logits, labels, likelihood)


def probabilities(target: Target, logits: Float[Tensor, "B S C"]) -> Float[Tensor, "B S C"]:
    """Turn the samples of a model's outputs into probabilities.

    Predictions are of the outputs that `MILModel.corrected` gives.
    """
    # Not in half precision, in which a softmax is far from summing to 1.
    return _PROBABILITIES[target.kind](logits.double())


def class_log_odds(logits: Float[Tensor, "*R C"]) -> Float[Tensor, "*R C"]:
    r"""Return each class's log-odds, $\log p_c - \log(1 - p_c)$ of the softmax.

    They are $\ell_c - \log \sum_{c' \ne c} e^{\ell_{c'}}$, which does not lose digits where a
    probability is near 0 or 1.

    Example:
        >>> class_log_odds(torch.tensor([[0.0, 40.0]]))
        tensor([[-40.,  40.]])
    """
    # Not in half precision, in which the difference of two near logits has few digits.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    own = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
    others = logits.unsqueeze(-2).masked_fill(own, -torch.inf).logsumexp(-1)
    return logits - others


def log_odds_moments(
    logits: Float[Tensor, "T C"], std: Float[Tensor, "T C"]
) -> tuple[Float[Tensor, "T C"], Float[Tensor, "T C"], Float[Tensor, "T C"]]:
    r"""Return mean and standard deviation of class log-odds, and the mean probabilities.

    The logits are independent normal variables. Of two classes the log-odds are normal, and mean
    and standard deviation exact; of more, they are so to first order. The probability is
    $\mathrm E\, \sigma(\text{log-odds})$ by Gauss–Hermite quadrature, and sums to 1 over classes.

    Args:
        logits: Means of the logits.
        std: Their standard deviations.
    """
    C = logits.shape[1]
    mean = class_log_odds(logits)
    own = torch.eye(C, dtype=torch.bool, device=logits.device)
    share = logits.unsqueeze(1).expand(-1, C, C).masked_fill(own, -torch.inf).softmax(-1)
    variance = std.square() + (share.square() * std.square().unsqueeze(1)).sum(-1)
    deviation = variance.sqrt()
    nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)
    probs = torch.zeros_like(mean)
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        probs += weight * (mean + node * deviation).sigmoid()
    return mean, deviation, probs / probs.sum(1, keepdim=True)


def _categorical(
    logits: Float[Tensor, "B S C"], labels: Int[Tensor, " B"], likelihood: str
) -> Float[Tensor, ""]:
    B, S, C = logits.shape
    if likelihood == "mean_logits":
        return F.cross_entropy(logits.mean(1), labels)
    # Not by gathering: where torch is deterministic it sorts the gradient of that first, which
    # takes a fifth of a step on a GPU.
    each = labels.unsqueeze(1).expand(B, S).reshape(B * S)
    picked = F.nll_loss(logits.log_softmax(-1).view(B * S, C), each, reduction="none")
    log_probs = -picked.view(B, S)
    if likelihood == "mean_log_prob":
        return -log_probs.mean()
    return -(log_probs.logsumexp(1) - math.log(S)).mean()


def _softmax(logits: Float[Tensor, "B S C"]) -> Float[Tensor, "B S C"]:
    return logits.softmax(-1)


# Ordered classes have the likelihood of classes: a softmax can give any distribution over them.
_NEGATIVE_LOG = {ClassTarget.kind: _categorical, OrdinalTarget.kind: _categorical}
_PROBABILITIES = {ClassTarget.kind: _softmax, OrdinalTarget.kind: _softmax}
