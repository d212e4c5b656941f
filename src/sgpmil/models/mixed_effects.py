r"""Posterior of MixMIL's effects, and the regression from which it starts.

Each of $P$ outputs has effects of $Q$ features on the attention, $u \sim N(0, s_u^2 I)$, and on
the bag, $z \sim N(0, s_z^2 I)$, whose scales are learnt. Their posterior is one normal
distribution of $(u, z) \in \mathbb R^{2Q}$,

``full``        $N(m, F F^\top + 10^{-4} I)$ with any matrix $F$
``mean_field``  $N(m, \mathrm{diag}(v))$

It starts from a logistic regression of the bags' mean features $\bar x$, whose logits are
$\eta = \beta \cdot (\bar x - \bar{\bar x}) + \alpha$.
With equal attention for all instances, MixMIL gives the same logits if its bag effects are
$z = \beta\, \mathrm{sd}(\eta) / \mathrm{rms}(\beta)$: then $b = \mathrm{rms}(z)$ is
$\mathrm{sd}(\eta)$, and $b\,(r - \bar r) / \mathrm{sd}(r) = \eta - \alpha$.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sgpmil.gp.noise import Noise
from sgpmil.shapes import Float

Covariance = Literal["full", "mean_field"]
COVARIANCES: tuple[str, ...] = get_args(Covariance)

_JITTER = 1e-4
_INVERSE_PENALTIES = (0.1, 1.0, 10.0, 100.0)
_FOLDS = 5
_MIN_SPREAD = 1e-6
_START_VARIANCE = 0.1
"""Variance at the start: of attention effects, and of bag effects relative to their size."""


class EffectPosterior(nn.Module):
    """The posterior; attention effects come first, bag effects second.

    Args:
        num_outputs: Number of outputs P.
        num_features: Number of features Q.
        covariance: One of `COVARIANCES`.
    """

    def __init__(self, num_outputs: int, num_features: int, covariance: str) -> None:
        super().__init__()
        P, Q = num_outputs, num_features
        variance = torch.full((P, 2 * Q), _START_VARIANCE)
        bag_effects = variance[:, Q:].sqrt() * torch.randn(P, Q)
        self.mean = nn.Parameter(torch.cat([torch.zeros(P, Q), bag_effects], 1))
        if covariance == "full":
            self.factor = nn.Parameter(_near_diagonal(variance))
        else:
            self.log_variance = nn.Parameter(variance.log())
        self.attention_log_scale = nn.Parameter(0.5 * torch.full((P,), 0.5).log())
        self.bag_log_scale = nn.Parameter(0.5 * torch.full((P,), 0.5).log())
        self.is_full = covariance == "full"

    @torch.no_grad()
    def start(self, bag_effects: Float[Tensor, "P Q"], generator: torch.Generator) -> None:
        """Start from given bag effects, and from equal attention for all instances."""
        size = bag_effects.square().mean(1, keepdim=True)
        attention_variance = torch.full_like(bag_effects, _START_VARIANCE)
        variance = torch.cat(
            [attention_variance, (_START_VARIANCE * size).expand_as(bag_effects)], 1
        )
        self.mean.copy_(torch.cat([torch.zeros_like(bag_effects), bag_effects], 1))
        if self.is_full:
            self.factor.copy_(_near_diagonal(variance.cpu(), generator))
        else:
            self.log_variance.copy_(variance.log())
        # The scales that explain these effects best: their mean squares in the posterior.
        self.attention_log_scale.copy_(0.5 * attention_variance.mean(1).log())
        self.bag_log_scale.copy_(0.5 * ((1 + _START_VARIANCE) * size.squeeze(1)).log())

    def draw(self, noise: Noise, num_samples: int) -> Float[Tensor, "S P E"]:
        """Draw the effects of functions."""
        draws = 1 + self.is_full
        # Always in single precision: in another precision a seed gives other functions.
        flat = noise.per_function(num_samples, draws * self.mean.numel(), like=self.mean.float())
        eps = flat.to(self.mean.dtype).view(num_samples, draws, *self.mean.shape)
        if not self.is_full:
            return self.mean + (0.5 * self.log_variance).exp() * eps[:, 0]
        with torch.autocast(self.mean.device.type, enabled=False):
            correlated = torch.einsum("pde,spe->spd", self.factor, eps[:, 0])
        return self.mean + correlated + _JITTER**0.5 * eps[:, 1]

    def kl(self) -> Float[Tensor, ""]:
        r"""Divergence of the posterior from the prior, summed over outputs.

        With $V$ the prior's variances and $\Sigma$ the posterior's covariance,

        $$ \mathrm{KL} = \tfrac12 \Big[\sum_d \frac{\Sigma_{dd} + m_d^2}{V_d} - 2Q
           + \sum_d \log V_d - \log\det \Sigma\Big]. $$
        """
        # Half and single precision lose the determinant of a matrix of this size.
        with torch.autocast(self.mean.device.type, enabled=False):
            mean = self.mean.double()
            scales = torch.stack([self.attention_log_scale, self.bag_log_scale], 1).double()
            log_prior = (2 * scales).repeat_interleave(mean.shape[1] // 2, dim=1)
            if self.is_full:
                factor = self.factor.double()
                variance = factor.square().sum(2) + _JITTER
                log_det = _GramLogDet.apply(factor).sum()
            else:
                variance = self.log_variance.double().exp()
                log_det = self.log_variance.double().sum()
            ratio = (variance + mean.square()) * (-log_prior).exp()
            return (0.5 * ((ratio - 1 + log_prior).sum() - log_det)).to(self.mean.dtype)


class _GramLogDet(torch.autograd.Function):
    r"""$\log\det(F F^\top + 10^{-4} I)$, whose gradient is $2 (F F^\top + 10^{-4} I)^{-1} F$.

    Through the Cholesky factor's own derivative it would take three times as long.
    """

    @staticmethod
    def forward(ctx: Any, factor: Tensor) -> Tensor:
        covariance = factor @ factor.mT
        covariance.diagonal(dim1=1, dim2=2).add_(_JITTER)
        # To raise an error would mean to wait for the device.
        cholesky, info = torch.linalg.cholesky_ex(covariance)
        ctx.save_for_backward(factor, cholesky)
        log_det = 2 * cholesky.diagonal(dim1=1, dim2=2).log().sum(1)
        return log_det.where(info == 0, torch.nan)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        factor, cholesky = ctx.saved_tensors
        return 2 * gradients[0].view(-1, 1, 1) * torch.cholesky_solve(factor, cholesky)


def _near_diagonal(
    variance: Float[Tensor, "P E"], generator: torch.Generator | None = None
) -> Float[Tensor, "P E E"]:
    """Return a factor of nearly that covariance; at exactly 0, correlations have no gradient."""
    shape = (*variance.shape, variance.shape[1])
    noise = torch.randn(shape, generator=generator, dtype=variance.dtype)
    return variance.sqrt().diag_embed() + 1e-4 * noise


def fit_mean_model(
    means: Float[Tensor, "B Q"], labels: list[int], num_outputs: int
) -> tuple[Float[Tensor, "P Q"], Float[Tensor, " P"]] | None:
    """Fit a ridge logistic regression, and return bag effects and intercepts.

    Features are centred, and scaled together to a total variance of 1, for which an inverse
    penalty of 1 expects logits of variance 1. It is cross-validated where every class has bags
    enough.

    Args:
        means: Mean features of the bags.
        labels: Class of each bag; every class is there.
        num_outputs: 1 for the logit of the second of two classes, or the number of classes.

    Returns:
        Nothing where the bags' means do not differ.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    centred = (means - means.mean(0)).double().cpu()
    total = centred.var(0).sum().sqrt()
    if not total > _MIN_SPREAD:
        return None
    inputs = (centred / total).numpy()

    def score(inverse_penalty: float) -> float:
        model = LogisticRegression(C=inverse_penalty, max_iter=1000)
        scores = cross_val_score(model, inputs, labels, cv=_FOLDS, scoring="neg_log_loss")
        return float(scores.mean())

    has_enough = min(labels.count(label) for label in set(labels)) >= _FOLDS
    best = max(_INVERSE_PENALTIES, key=score) if has_enough else 1.0
    fitted = LogisticRegression(C=best, max_iter=1000).fit(inputs, labels)
    coefficients = torch.from_numpy(fitted.coef_)
    intercepts = torch.from_numpy(fitted.intercept_)
    if len(intercepts) < num_outputs:  # of two classes, each its own
        coefficients = torch.cat([-coefficients, coefficients]) / 2
        intercepts = torch.cat([-intercepts, intercepts]) / 2
    spread = (centred / total @ coefficients.T).std(0)
    if not bool((spread > _MIN_SPREAD).all()):
        return None
    size = coefficients.square().mean(1).sqrt()
    return (coefficients * (spread / size).unsqueeze(1)).to(means), intercepts.to(means)
