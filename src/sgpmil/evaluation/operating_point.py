"""What is found when the share of false alarms is bounded."""

import math

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.shapes import Bool, Float

__all__ = ["SPECIFICITY", "sensitivity_at_specificity"]

SPECIFICITY = 0.95
"""Least specificity, unless another is asked for."""


def sensitivity_at_specificity(
    scores: Float[np.ndarray, " n"],
    positive: Bool[np.ndarray, " n"],
    specificity: float = SPECIFICITY,
) -> float:
    r"""Give the highest sensitivity among the thresholds of at least some specificity.

    A threshold calls positive the scores at or above it. As it falls, sensitivity rises and
    specificity falls, so the best threshold finds every positive i that has the needed share s
    of the negatives j strictly below it, and no other: with $n_1$ positives and $n_0$ negatives,

    $$ \mathrm{sensitivity} = \frac{1}{n_1} \sum_i \Bigl[ \frac{1}{n_0}
       \sum_j [s_j < s_i] \ge s \Bigr]. $$

    It is 0 where only a threshold above every score is specific enough. The threshold is chosen
    on the slides it is measured on, which flatters: the sensitivity to expect of new slides is
    that of a threshold chosen on others.

    Args:
        scores: Score of each item.
        positive: Whether each item is positive.
        specificity: Least specificity s.

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
