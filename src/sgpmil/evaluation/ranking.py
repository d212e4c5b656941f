"""ROC curves: area, average precision, and sensitivity at a given specificity."""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.shapes import Bool, Float


@dataclass(frozen=True, slots=True, eq=False)
class RocCurve:
    """Corners of a ROC curve, from (0, 0) to (1, 1).

    Args:
        false_positive_rate: Share of the negatives at or above each threshold.
        true_positive_rate: Share of the positives at or above each threshold.
    """

    false_positive_rate: Float[np.ndarray, " K"]
    true_positive_rate: Float[np.ndarray, " K"]


def auroc(scores: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]) -> float:
    r"""Compute the area under the ROC curve: the chance that a positive outranks a negative.

    With $R_i$ the rank of score i among all n (the mean rank for ties), $n_1$ positives and
    $n_0$ negatives, it is the Mann-Whitney statistic

    $$ \mathrm{AUC} = \frac{\sum_{i: y_i = 1} R_i - n_1 (n_1 + 1) / 2}{n_1 n_0}. $$

    Returns:
        The area; NaN without a positive, without a negative, or with a NaN score.

    Example:
        >>> auroc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
        0.875
    """
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    if num_positive == 0 or num_negative == 0 or np.isnan(scores).any():
        return math.nan
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = sizes.cumsum() - (sizes - 1) / 2
    rank_sum = float(mean_ranks[group][positive].sum())
    return (rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def average_precision(scores: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]) -> float:
    r"""Compute the average precision over the distinct thresholds, from the highest down.

    $$ \mathrm{AP} = \sum_t (\mathrm{recall}_t - \mathrm{recall}_{t-1}) \, \mathrm{precision}_t $$

    Returns:
        The average precision; NaN without a positive or with a NaN score.

    Example:
        >>> average_precision(np.array([0.9, 0.5, 0.1]), np.array([True, False, True]))
        0.8333333333333333
    """
    if not positive.any() or np.isnan(scores).any():
        return math.nan
    true_positives, false_positives = _counts_from_the_top(scores, positive)
    precision = true_positives / (true_positives + false_positives)
    gained_recall = np.diff(true_positives, prepend=0) / positive.sum()
    return float((gained_recall * precision).sum())


def roc_curve(scores: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]) -> RocCurve | None:
    """Trace the ROC curve over the distinct thresholds, from the highest down.

    Returns:
        The curve; None where `auroc` is NaN.
    """
    if math.isnan(auroc(scores, positive)):
        return None
    true_positives, false_positives = _counts_from_the_top(scores, positive)
    return RocCurve(
        false_positive_rate=np.concatenate([[0.0], false_positives / false_positives[-1]]),
        true_positive_rate=np.concatenate([[0.0], true_positives / true_positives[-1]]),
    )


def _counts_from_the_top(
    scores: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Count positives and negatives at or above each distinct score, from the highest down."""
    values, group = np.unique(scores, return_inverse=True)
    true_counts = np.bincount(group, weights=positive, minlength=len(values))
    false_counts = np.bincount(group, weights=~positive, minlength=len(values))
    return true_counts[::-1].cumsum(), false_counts[::-1].cumsum()


SPECIFICITY = 0.95
"""Least specificity, unless another is asked for."""


def sensitivity_at_specificity(
    scores: Float[np.ndarray, " n"],
    positive: Bool[np.ndarray, " n"],
    specificity: float = SPECIFICITY,
) -> float:
    r"""Compute the highest sensitivity among the thresholds of at least some specificity.

    A threshold calls positive the scores at or above it. As it falls, sensitivity rises and
    specificity falls, so the best threshold finds every positive i that has the needed share s
    of the negatives j strictly below it, and no other: with $n_1$ positives and $n_0$ negatives,

    $$ \mathrm{sensitivity} = \frac{1}{n_1} \sum_i \Bigl[ \frac{1}{n_0}
       \sum_j [s_j < s_i] \ge s \Bigr]. $$

    It is 0 where only a threshold above every score is specific enough. The threshold is chosen
    on the slides it is measured on, which is optimistic: for new slides expect the sensitivity
    of a threshold chosen on others.

    Returns:
        The sensitivity; NaN without a positive, without a negative, or with a NaN score.

    Raises:
        PredictionError: The specificity is not a share.

    Example:
        >>> scores = np.array([0.1, 0.4, 0.3, 0.9])
        >>> positive = np.array([False, False, True, True])
        >>> sensitivity_at_specificity(scores, positive, 1.0)
        0.5
        >>> sensitivity_at_specificity(scores, positive, 0.5)
        1.0
    """
    if not 0 <= specificity <= 1:
        raise PredictionError(
            f"Expected a specificity between 0 and 1, but got {specificity}. Use {SPECIFICITY}."
        )
    if positive.all() or not positive.any() or np.isnan(scores).any():
        return math.nan
    negatives = np.sort(scores[~positive])
    num_below = np.searchsorted(negatives, scores[positive], side="left")
    # A quotient, which is rounded correctly: 19 / 20 is .95, but 20 times .95 need not be 19.
    return float((num_below / len(negatives) >= specificity).mean())
