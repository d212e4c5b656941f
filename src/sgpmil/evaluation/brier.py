"""What a Brier score is made of."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sgpmil.evaluation.calibration import NUM_BINS, bin_sums, checked_probabilities
from sgpmil.shapes import Bool, Float

__all__ = ["BrierDecomposition", "brier_decomposition"]


@dataclass(frozen=True, slots=True)
class BrierDecomposition:
    """The parts of a Brier score, each summed over the classes.

    Args:
        reliability: How far the probabilities of a bin are from the frequencies there: the cost
            of miscalibration.
        resolution: How far the frequencies of the bins are from the overall one: the gain from
            telling slides apart.
        uncertainty: Variance of the labels, which no model changes.
        within_bin_variance: Variance of the probabilities inside their bins.
        within_bin_covariance: Twice their covariance with the labels inside the bins.
    """

    reliability: float
    resolution: float
    uncertainty: float
    within_bin_variance: float
    within_bin_covariance: float

    @property
    def score(self) -> float:
        """The Brier score that the parts add up to."""
        return (
            self.reliability
            - self.resolution
            + self.uncertainty
            + self.within_bin_variance
            - self.within_bin_covariance
        )


def brier_decomposition(
    probs: ArrayLike, labels: ArrayLike, num_bins: int = NUM_BINS
) -> BrierDecomposition:
    r"""Take the Brier score apart into reliability, resolution and uncertainty.

    For each class c let $o_i = [y_i = c]$, and put the n slides into bins b of equal width by
    $p_{i,c}$ (closed on the left; the last one holds 1), with means $\bar p_b$ and $\bar o_b$
    over the $n_b$ slides of a bin and $\bar o$ over all. Then, exactly,

    $$ \mathrm{BS} = \mathrm{REL} - \mathrm{RES} + \mathrm{UNC} + \mathrm{WBV} - \mathrm{WBC} $$

    with the sums over classes of

    $$ \mathrm{REL}_c = \sum_b \tfrac{n_b}{n} (\bar p_b - \bar o_b)^2, \quad
       \mathrm{RES}_c = \sum_b \tfrac{n_b}{n} (\bar o_b - \bar o)^2, \quad
       \mathrm{UNC}_c = \bar o (1 - \bar o), $$

    $$ \mathrm{WBV}_c = \tfrac{1}{n} \sum_b \sum_{i \in b} (p_{i,c} - \bar p_b)^2, \quad
       \mathrm{WBC}_c = \tfrac{2}{n} \sum_b \sum_{i \in b}
       (p_{i,c} - \bar p_b)(o_i - \bar o_b). $$

    Murphy's (1973) three terms alone add up to the score only where all probabilities of a bin
    are equal; the other two are those of Stephenson et al. (2008). The score is that of
    `brier_score`: for two classes both are counted.

    Args:
        probs: Probabilities (n, C), or those of the second of two classes (n,).
        labels: Class indices (n,).
        num_bins: Number of bins.

    Raises:
        PredictionError: The shapes, probabilities, labels or bins are impossible.

    Example:
        >>> parts = brier_decomposition([0.25, 0.25, 0.75, 0.75], [0, 0, 1, 0])
        >>> parts.reliability, parts.resolution, parts.uncertainty
        (0.125, 0.125, 0.375)
        >>> parts.score
        0.375
    """
    columns, classes = checked_probabilities(probs, labels, num_bins)
    parts = [_parts(columns[:, c], classes == c, num_bins) for c in range(columns.shape[1])]
    return BrierDecomposition(*(float(part) for part in np.sum(parts, axis=0)))


def _parts(
    probs: Float[np.ndarray, " n"], is_class: Bool[np.ndarray, " n"], num_bins: int
) -> tuple[float, float, float, float, float]:
    outcomes = is_class.astype(np.float64)
    inner_edges = np.linspace(0.0, 1.0, num_bins + 1)[1:-1]
    count, prob_sums, outcome_sums = bin_sums(inner_edges, probs, outcomes)
    size = np.maximum(count, 1)  # the sums of an empty bin are 0
    mean_prob, mean_outcome = prob_sums / size, outcome_sums / size
    index = np.searchsorted(inner_edges, probs, side="right")
    # Deviations, not differences of sums of squares, which would cancel.
    from_prob, from_outcome = probs - mean_prob[index], outcomes - mean_outcome[index]
    share, frequency = count / len(probs), outcomes.mean()
    return (
        float(share @ (mean_prob - mean_outcome) ** 2),
        float(share @ (mean_outcome - frequency) ** 2),
        float(frequency * (1 - frequency)),
        float((from_prob**2).mean()),
        float(2 * (from_prob * from_outcome).mean()),
    )
