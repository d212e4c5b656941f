r"""DeLong's test of the difference of two areas under the ROC curve.

DeLong, DeLong and Clarke-Pearson (1988) treat the area as a mean of two kinds of placement. With
positives $x_i$, negatives $y_j$ and $\psi(x, y) = [x > y] + \tfrac12 [x = y]$,

$$ V^{10}_i = \frac{1}{n_0} \sum_j \psi(x_i, y_j), \qquad
   V^{01}_j = \frac{1}{n_1} \sum_i \psi(x_i, y_j), \qquad
   \mathrm{AUC} = \overline{V^{10}} = \overline{V^{01}}, $$

and the covariance of several areas is $S^{10} / n_1 + S^{01} / n_0$ with the sample covariances
of their placements. Ranks give all placements in one sort: with $R$ the mean rank of a score
among all slides and $R^1$ among the positives, $n_0 V^{10}_i = R(x_i) - R^1(x_i)$.
"""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.comparison.significance import Alternative
from sgpmil.shapes import Bool, Float


@dataclass(frozen=True, slots=True)
class AucTest:
    """The result of DeLong's test.

    Args:
        auc_a: Area of the first score; NaN without a positive or a negative.
        auc_b: Area of the second score.
        standard_error: Standard error of their difference; NaN where undefined.
        statistic: Difference in standard errors; NaN where undefined.
        p_value: Chance of such a difference, or one further out, if the areas were equal; NaN
            where undefined.
        num_positive: Number of positives.
        num_negative: Number of negatives.
        reason: Reason that the p-value is undefined; empty where it is defined.
    """

    auc_a: float
    auc_b: float
    standard_error: float
    statistic: float
    p_value: float
    num_positive: int
    num_negative: int
    reason: str = ""

    @property
    def difference(self) -> float:
        """Area of the first score less that of the second."""
        return self.auc_a - self.auc_b


def auc_covariance(
    scores: Float[np.ndarray, "M n"], positive: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, "M M"]]:
    """Compute the areas of several scores of the same slides, and their covariance.

    Returns:
        The areas, NaN without a positive or a negative, and for a score with a NaN; and their
        covariance, NaN also with a single positive or negative, which has no spread.
    """
    from scipy.stats import rankdata

    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    num_scores = len(scores)
    if num_positive == 0 or num_negative == 0:
        return np.full(num_scores, np.nan), np.full((num_scores, num_scores), np.nan)
    ranks = rankdata(scores, axis=1)
    among_positives = rankdata(scores[:, positive], axis=1)
    among_negatives = rankdata(scores[:, ~positive], axis=1)
    of_positives = (ranks[:, positive] - among_positives) / num_negative
    of_negatives = 1 - (ranks[:, ~positive] - among_negatives) / num_positive
    return of_positives.mean(axis=1), _spread(of_positives) + _spread(of_negatives)


def delong_test(
    scores_a: Float[np.ndarray, " n"],
    scores_b: Float[np.ndarray, " n"],
    positive: Bool[np.ndarray, " n"],
    alternative: Alternative = "greater",
) -> AucTest:
    r"""Compare the areas under the ROC curve of two scores of the same slides.

    $$ z = \frac{\mathrm{AUC}_a - \mathrm{AUC}_b}
       {\sqrt{\operatorname{var}_a + \operatorname{var}_b - 2 \operatorname{cov}_{ab}}} $$

    is normal for many slides. Slides are taken for independent; several of one patient are not,
    and make the p-value too small. Where the standard error is 0, p is 1 for equal areas (the
    scores order the slides alike) and NaN for unequal ones (z is infinite: too few slides, or
    classes that one score parts fully and the other not at all).

    Args:
        scores_a: First score of each slide.
        scores_b: Second score of each slide.
        positive: Whether each slide is positive.
        alternative: Whether to look for the first area above the second, below, or either.

    Raises:
        PredictionError: The scores are not of the same slides, or there is no such alternative.

    Example:
        >>> a, b = np.array([0.1, 0.4, 0.6, 0.8, 0.9]), np.array([0.5, 0.4, 0.6, 0.3, 0.9])
        >>> test = delong_test(a, b, np.array([False, False, True, True, True]))
        >>> round(test.difference, 4), round(test.p_value, 4)
        (0.3333, 0.1587)
    """
    from scipy.stats import norm

    if not scores_a.shape == scores_b.shape == positive.shape:
        raise PredictionError(
            f"Expected two scores and a truth for the same slides, but got shapes "
            f"{scores_a.shape}, {scores_b.shape} and {positive.shape}. Align the slides."
        )
    chances = {
        "greater": norm.sf,
        "less": norm.cdf,
        "two-sided": lambda z: 2 * norm.sf(abs(z)),
    }
    if alternative not in chances:
        raise PredictionError(
            f"Expected the alternative {', '.join(chances)}, but got '{alternative}'. "
            "Choose one of these."
        )
    areas, covariance = auc_covariance(np.stack([scores_a, scores_b]), positive)
    difference = float(areas[0] - areas[1])
    variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    # What remains of equal placements is rounding, on the scale of the areas' own variances.
    if variance <= 1e-12 * max(1e-3, float(np.trace(covariance))):
        variance = 0.0
    reason = _reason(areas, difference, variance, positive)
    if reason:
        statistic, p_value = math.nan, math.nan
    elif variance == 0:
        statistic, p_value = 0.0, 1.0
    else:
        statistic = difference / math.sqrt(variance)
        p_value = float(chances[alternative](statistic))
    return AucTest(
        auc_a=float(areas[0]),
        auc_b=float(areas[1]),
        standard_error=math.sqrt(variance),
        statistic=statistic,
        p_value=p_value,
        num_positive=int(positive.sum()),
        num_negative=int((~positive).sum()),
        reason=reason,
    )


def _reason(
    areas: Float[np.ndarray, " 2"],
    difference: float,
    variance: float,
    positive: Bool[np.ndarray, " n"],
) -> str:
    if not positive.any() or positive.all():
        return "a class has no slide"
    if np.isnan(areas).any():
        return "a score is undefined"
    if math.isnan(variance):
        return "a class has a single slide"
    if variance == 0 and abs(difference) > 1e-12:
        return "the difference has no spread over the slides"
    return ""


def _spread(placements: Float[np.ndarray, "M k"]) -> Float[np.ndarray, "M M"]:
    """Compute the covariance of the mean of k placements."""
    num = placements.shape[1]
    if num < 2:
        return np.full((len(placements), len(placements)), np.nan)
    return np.asarray(np.cov(placements)).reshape(len(placements), -1) / num
