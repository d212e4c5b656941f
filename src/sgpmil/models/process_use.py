r"""The use that training made of the Gaussian process of the attention.

With the prior $N(\mu(x_i), k_i)$ of the attention logit of patch i, its posterior mean $\bar f_i$
and variance $v_i$,

$$ \text{share} = \frac{\mathrm{sd}_i(\bar f_i - \mu(x_i))}{\mathrm{sd}_i(\bar f_i)}, \qquad
   \text{shift} = \frac{\mathrm{sd}_i(\bar f_i - \mu(x_i))}{\sqrt{\mathrm{mean}_i\, k_i}}, \qquad
   \text{variance ratio} = \mathrm{mean}_i \frac{v_i}{k_i}. $$

Where the posterior is the prior, the shift is 0 and the variance ratio 1: the process is *idle*.
The spread of the attention is then the prior's, and says nothing about what the model learned.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from sgpmil.gp.sparse import Posterior

IDLE_SHIFT = 0.05
"""Shift below which the mean of the posterior is that of the prior."""
IDLE_RATIO = 0.9
"""Variance ratio above which the variance of the posterior is that of the prior."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """How far the posterior of the attention is from its prior.

    Args:
        share: Part of the process in the spread of the attention logit's mean; 0 where the mean
            does not vary.
        shift: Spread of the process's part, in standard deviations of the prior.
        variance_ratio: Mean of posterior variance divided by prior variance.
        num_patches: Number of patches that this was measured at.
    """

    share: float
    shift: float
    variance_ratio: float
    num_patches: int

    @property
    def is_idle(self) -> bool:
        """Whether the posterior is the prior, or nearly so."""
        return self.shift < IDLE_SHIFT and self.variance_ratio > IDLE_RATIO


@torch.no_grad()
def process_use(posteriors: Iterable[Posterior]) -> ProcessUse:
    """Measure how far the posterior of the attention is from its prior.

    Args:
        posteriors: The posterior at patches, some patches at a time; at least two in all.
    """
    means, parts, variances, priors = [], [], [], []
    for posterior in posteriors:
        means.append(posterior.mean.double())
        parts.append(means[-1] - posterior.prior_mean.double())
        variances.append(posterior.variance.double())
        priors.append(posterior.prior_variance.double())
    whole, part = float(torch.cat(means).std()), float(torch.cat(parts).std())
    prior = torch.cat(priors)
    return ProcessUse(
        share=part / whole if whole > 0 else 0.0,
        shift=part / float(prior.mean().sqrt()),
        variance_ratio=float((torch.cat(variances) / prior).mean()),
        num_patches=len(prior),
    )
