"""Calibration errors, Brier score and log-likelihood of predicted probabilities."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import RANGE_TOLERANCE
from sgpmil.shapes import Bool, Float, Int

NUM_BINS = 10
"""Number of bins, unless another is asked for."""

SMALLEST_PROBABILITY = 1e-12
"""Smaller ones are raised to it before their logarithm is taken."""


@dataclass(frozen=True, slots=True, eq=False)
class ReliabilityCurve:
    """Confidence against accuracy in bins of equal width; K of the bins hold a slide.

    Args:
        bin_index: Position of each bin that is not empty.
        confidence: Mean probability of the predicted class in each of them.
        accuracy: Share of correct predictions in each of them.
        count: Number of predictions in each of them.
        num_bins: Number of bins, the empty ones included.
    """

    bin_index: Int[np.ndarray, " K"]
    confidence: Float[np.ndarray, " K"]
    accuracy: Float[np.ndarray, " K"]
    count: Int[np.ndarray, " K"]
    num_bins: int


def adaptive_calibration_error(
    probs: ArrayLike, labels: ArrayLike, num_bins: int = NUM_BINS
) -> float:
    r"""Compute the class-conditional calibration error over bins of equal count.

    For each class c, over the $n_c$ predictions with $p_c > 0$ (zeros are dropped),

    $$ \mathrm{ACE} = \frac{1}{C} \sum_c \sum_b \frac{n_{c,b}}{n_c}
       \bigl| \overline{[y = c]}_b - \overline{p_c}_b \bigr|. $$

    The R - 1 inner edges of the R bins are the sorted $p_c$ at the positions
    $\min(\mathrm{round}(k n_c / R), n_c - 1)$, k = 1 … R - 1 (halves round to even), and a
    prediction falls into the bin whose number is that of the edges $\le p_c$: equal
    probabilities share a bin, so bins may be empty. Bins are weighted by their count; without
    ties, and where R divides $n_c$, that is the equal weighting of Nixon et al. (2019). A class
    that is never given any probability adds 0.

    Args:
        probs: Probabilities (n, C), or those of the second of two classes (n,).
        labels: Class indices (n,).
        num_bins: Number of bins R.

    Raises:
        PredictionError: The shapes, probabilities, labels or bins are impossible.

    Example:
        >>> adaptive_calibration_error([0.25, 0.75], [0, 1], num_bins=2)
        0.25
    """
    columns, classes = checked_probabilities(probs, labels, num_bins)
    errors = [
        _adaptive_error(columns[:, c], classes == c, num_bins) for c in range(columns.shape[1])
    ]
    return float(np.mean(errors))


def expected_calibration_error(
    probs: ArrayLike, labels: ArrayLike, num_bins: int = NUM_BINS
) -> float:
    r"""Compute the calibration error of the predicted class over bins of equal width.

    $$ \mathrm{ECE} = \sum_b \frac{n_b}{n} \bigl| \mathrm{accuracy}_b - \mathrm{confidence}_b
       \bigr| $$

    Bins are closed on the left; the last one holds 1. (torchmetrics agrees, save that it keeps
    confidences of exactly 1 in a bin of their own.)

    Args:
        probs: Probabilities (n, C), or those of the second of two classes (n,).
        labels: Class indices (n,).
        num_bins: Number of bins.

    Raises:
        PredictionError: The shapes, probabilities, labels or bins are impossible.

    Example:
        >>> expected_calibration_error([[0.25, 0.75], [0.25, 0.75]], [1, 0])
        0.25
    """
    curve = reliability_curve(probs, labels, num_bins)
    gaps = np.abs(curve.accuracy - curve.confidence)
    return float((curve.count * gaps).sum() / curve.count.sum())


def calibrated_ece(
    *folds: ArrayLike, level: float = 0.95, rounds: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Compute the range of the ECE that a calibrated model has by chance.

    The probabilities are taken to be right: a slide is predicted right with the chance of its
    confidence, and the ECE of each draw is computed (Bröcker and Smith, 2007). The ECE of few
    slides is far above 0 even then.

    Args:
        *folds: Probabilities (n, C), or those of the second of two classes (n,), of each fold;
            the ECE of several folds is their mean.
        level: Share of the draws that lie in the range.
        rounds: Number of draws.
        seed: Seed of the draws.

    Returns:
        The lower and the upper end.

    Raises:
        PredictionError: The probabilities are impossible.

    Example:
        >>> calibrated_ece([[0.0, 1.0]] * 8)
        (0.0, 0.0)
    """
    rng = np.random.default_rng(seed)
    inner_edges = np.linspace(0.0, 1.0, NUM_BINS + 1)[1:-1]
    errors = np.zeros(rounds)
    for probs in folds:
        own, _ = checked_probabilities(probs, np.zeros(len(np.asarray(probs)), dtype=int), NUM_BINS)
        confidence = own.max(axis=1)
        bins = np.eye(NUM_BINS)[np.searchsorted(inner_edges, confidence, side="right")]
        gaps = (rng.random((rounds, len(own))) < confidence) - confidence
        errors += np.abs(gaps @ bins).sum(axis=1) / len(own) / len(folds)
    low, high = np.quantile(errors, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def reliability_curve(
    probs: ArrayLike, labels: ArrayLike, num_bins: int = NUM_BINS
) -> ReliabilityCurve:
    """Compare confidence and accuracy of the predicted class in bins of equal width.

    Args:
        probs: Probabilities (n, C), or those of the second of two classes (n,).
        labels: Class indices (n,).
        num_bins: Number of bins.

    Raises:
        PredictionError: The shapes, probabilities, labels or bins are impossible.
    """
    columns, classes = checked_probabilities(probs, labels, num_bins)
    confidence = columns.max(axis=1)
    correct = (columns.argmax(axis=1) == classes).astype(np.float64)
    inner_edges = np.linspace(0.0, 1.0, num_bins + 1)[1:-1]
    count, confidences, hits = bin_sums(inner_edges, confidence, correct)
    filled = np.flatnonzero(count)
    return ReliabilityCurve(
        bin_index=filled,
        confidence=confidences[filled] / count[filled],
        accuracy=hits[filled] / count[filled],
        count=count[filled],
        num_bins=num_bins,
    )


def brier_score(probs: ArrayLike, labels: ArrayLike) -> float:
    r"""Compute the Brier score in its multi-class form, summed over all classes.

    $$ \mathrm{BS} = \frac{1}{n} \sum_i \sum_c (p_{i,c} - [y_i = c])^2 \in [0, 2] $$

    For two classes both terms are counted, as in Brier (1950): twice the
    $\frac{1}{n} \sum_i (p_{i,1} - y_i)^2$ that is also common.

    Args:
        probs: Probabilities (n, C), or those of the second of two classes (n,).
        labels: Class indices (n,).

    Raises:
        PredictionError: The shapes, probabilities or labels are impossible.

    Example:
        >>> brier_score([[0.5, 0.5]], [1])
        0.5
    """
    columns, classes = checked_probabilities(probs, labels)
    one_hot = np.eye(columns.shape[1])[classes]
    return float(((columns - one_hot) ** 2).sum(axis=1).mean())


def negative_log_likelihood(probs: ArrayLike, labels: ArrayLike) -> float:
    r"""Compute the mean of $-\ln p_{i, y_i}$, with probabilities below 1e-12 raised to it.

    Args:
        probs: Probabilities (n, C), or those of the second of two classes (n,).
        labels: Class indices (n,).

    Raises:
        PredictionError: The shapes, probabilities or labels are impossible.

    Example:
        >>> round(negative_log_likelihood([[0.5, 0.5]], [1]), 4)
        0.6931
    """
    columns, classes = checked_probabilities(probs, labels)
    of_label = columns[np.arange(len(classes)), classes]
    return float(-np.log(np.clip(of_label, SMALLEST_PROBABILITY, 1.0)).mean())


def _adaptive_error(
    probs: Float[np.ndarray, " n"], is_class: Bool[np.ndarray, " n"], num_bins: int
) -> float:
    kept = probs > 0
    p, t = probs[kept], is_class[kept].astype(np.float64)
    if len(p) == 0:
        return 0.0
    positions = np.round(np.arange(1, num_bins) * len(p) / num_bins).astype(np.int64)
    inner_edges = np.sort(p)[np.minimum(positions, len(p) - 1)]
    _, p_sums, t_sums = bin_sums(inner_edges, p, t)
    return float(np.abs(t_sums - p_sums).sum() / len(p))


def bin_sums(
    inner_edges: Float[np.ndarray, " E"],
    values: Float[np.ndarray, " n"],
    outcomes: Float[np.ndarray, " n"],
) -> tuple[Int[np.ndarray, " R"], Float[np.ndarray, " R"], Float[np.ndarray, " R"]]:
    """Count values, and sum values and outcomes, in the bins between edges, closed on the left.

    Returns:
        The number of values, their sum and that of the outcomes in each bin.
    """
    index = np.searchsorted(inner_edges, values, side="right")
    num_bins = len(inner_edges) + 1
    return (
        np.bincount(index, minlength=num_bins),
        np.bincount(index, weights=values, minlength=num_bins),
        np.bincount(index, weights=outcomes, minlength=num_bins),
    )


def checked_probabilities(
    probs: ArrayLike, labels: ArrayLike, num_bins: int = 1
) -> tuple[Float[np.ndarray, "n C"], Int[np.ndarray, " n"]]:
    """Check probabilities and labels, and return them as arrays.

    Args:
        probs: Probabilities (n, C), or those of the second of two classes (n,).
        labels: Class indices (n,).
        num_bins: Number of bins that they are to be put into.

    Raises:
        PredictionError: The shapes, probabilities, labels or bins are impossible.
    """
    columns = np.asarray(probs, dtype=np.float64)
    if columns.ndim == 1:
        columns = np.stack([1 - columns, columns], axis=1)
    classes = np.asarray(labels)
    if columns.ndim != 2 or columns.size == 0 or classes.shape != columns.shape[:1]:
        raise PredictionError(
            f"Expected probabilities (n, classes) and n labels, but got shapes "
            f"{columns.shape} and {classes.shape}. Pass a row a slide and a label a row."
        )
    if not (np.abs(columns - 0.5) <= 0.5 + RANGE_TOLERANCE).all():
        raise PredictionError(
            f"Expected probabilities between 0 and 1, but got values from {columns.min()} to "
            f"{columns.max()}. Pass probabilities, not logits."
        )
    is_class = (classes == np.floor(classes)) & (classes >= 0) & (classes < columns.shape[1])
    if not is_class.all():
        raise PredictionError(
            f"Expected labels that are whole numbers from 0 to {columns.shape[1] - 1}, but got "
            f"{classes[~is_class][0]}. Number the classes as the probabilities are."
        )
    if num_bins < 1:
        raise PredictionError(f"Expected at least one bin, but got {num_bins}. Use 10.")
    return columns, classes.astype(np.int64)


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
    r"""Decompose the Brier score into reliability, resolution and uncertainty.

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
