r"""A logistic regression of the mean features of bags, from which MixMIL starts.

A bag's mean features $\bar x$ give logits $\eta = \beta \cdot (\bar x - \bar{\bar x}) + \alpha$.
MixMIL with the same attention for all instances computes them too if its bag effects are
$z = \beta\, \mathrm{sd}(\eta) / \mathrm{rms}(\beta)$: then $b = \mathrm{rms}(z)$ is
$\mathrm{sd}(\eta)$, and $b\,(r - \bar r) / \mathrm{sd}(r) = \eta - \alpha$.
"""

import torch
from torch import Tensor

from sgpmil.shapes import Float

__all__ = ["fit_mean_model"]

_INVERSE_PENALTIES = (0.1, 1.0, 10.0, 100.0)
_FOLDS = 5
_MIN_SPREAD = 1e-6


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
