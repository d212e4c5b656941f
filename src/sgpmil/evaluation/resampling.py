"""Fast metrics of many resampled tables at once, from the counts of drawn slides."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sgpmil.evaluation.calibration import NUM_BINS, SMALLEST_PROBABILITY
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import SPECIFICITY
from sgpmil.shapes import Bool, Float, Int


class SortedSlides:
    """Quantities of labelled slides that do not depend on how often each slide is drawn.

    Each is computed when a metric first asks for it.

    Args:
        table: Predictions, all with a label.
    """

    def __init__(self, table: PredictionTable) -> None:
        self.table = table
        self.probs, self.labels = table.probs, table.labels
        self.target = table.target

    @cached_property
    def cells(self) -> Float[np.ndarray, "n K"]:
        """Cell of the confusion matrix that each slide falls into, as an indicator."""
        C = self.target.num_outputs
        return np.eye(C**2)[self.labels * C + self.table.predicted]

    @cached_property
    def confidence_gaps(self) -> Float[np.ndarray, "n R"]:
        """Correctness less confidence of each slide, in the column of its bin of confidence."""
        confidence = self.probs.max(axis=1)
        inner_edges = np.linspace(0.0, 1.0, NUM_BINS + 1)[1:-1]
        bins = np.searchsorted(inner_edges, confidence, side="right")
        gaps = (self.table.predicted == self.labels) - confidence
        return np.eye(NUM_BINS)[bins] * gaps[:, None]

    @cached_property
    def log_losses(self) -> Float[np.ndarray, " n"]:
        """Negative log-likelihood of each slide."""
        of_label = self.probs[np.arange(len(self.labels)), self.labels]
        return np.asarray(-np.log(np.clip(of_label, SMALLEST_PROBABILITY, 1.0)))

    @cached_property
    def squared_errors(self) -> Float[np.ndarray, " n"]:
        """Squared error of each slide, summed over the classes."""
        one_hot = np.eye(self.target.num_outputs)[self.labels]
        return np.asarray(((self.probs - one_hot) ** 2).sum(axis=1))

    @cached_property
    def rankings(self) -> "tuple[_Ranking, ...]":
        """Ranking of the second of two classes, else of each class against the rest."""
        return tuple(_ranking(self.probs[:, c], self.labels == c) for c in self.target.ranked)

    @cached_property
    def calibrations(self) -> "tuple[_Calibration, ...]":
        """Slides of each class in ascending order of their probability."""
        return tuple(
            _calibration(self.probs[:, c], self.labels == c) for c in range(self.target.num_outputs)
        )


class Resampled:
    r"""Tables in which slide i occurs $w_i \ge 0$ times, r of them at once.

    Means over slides are matrix products $w \cdot v$, and quantities that depend on the order of
    the slides come from running sums of w in the order of one sort a class. The values are those
    of the metrics on tables in which the slides are physically repeated, up to rounding.

    Args:
        slides: The slides.
        counts: Number of times that each slide occurs in each table; at least one does.
    """

    def __init__(self, slides: SortedSlides, counts: Int[np.ndarray, "r n"]) -> None:
        self.slides = slides
        self.counts = counts

    def tables(self) -> Iterator[PredictionTable]:
        """Make each table, its slides physically repeated under new names."""
        table = self.slides.table
        for row in self.counts:
            repeated = np.repeat(np.arange(len(row)), row)
            predictions = (
                replace(table.predictions[slide], slide_id=str(number))
                for number, slide in enumerate(repeated)
            )
            yield PredictionTable(tuple(predictions), table.target)

    def mean(self, values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " r"]:
        """Average values of the slides in each table."""
        return np.asarray(self._weights @ values / self._totals)

    @cached_property
    def confusion(self) -> Float[np.ndarray, "r C C"]:
        """Slides of each label (rows) and predicted class (columns) in each table."""
        C = self.slides.target.num_outputs
        return (self._weights @ self.slides.cells).reshape(-1, C, C)

    @cached_property
    def rank_metrics(self) -> Float[np.ndarray, "3 r"]:
        """AUC, average precision and sensitivity, as means over `SortedSlides.rankings`."""
        found = [_rank_metrics(one, self.counts) for one in self.slides.rankings]
        if not found:
            return np.full((3, len(self.counts)), math.nan)
        return np.asarray(np.mean(found, axis=0))

    def accuracy(self) -> Float[np.ndarray, " r"]:
        """Compute the accuracy in each table."""
        return np.asarray(np.trace(self.confusion, axis1=1, axis2=2) / self._totals)

    def balanced_accuracy(self) -> Float[np.ndarray, " r"]:
        """Compute the mean recall over the classes that occur in each table."""
        with_label = self.confusion.sum(axis=2)
        recalls = np.diagonal(self.confusion, axis1=1, axis2=2) / np.maximum(with_label, 1)
        return np.asarray(recalls.sum(axis=1) / (with_label > 0).sum(axis=1))

    def kappa(self) -> Float[np.ndarray, " r"]:
        """Give Cohen's kappa with quadratic weights in each table."""
        classes = np.arange(self.slides.target.num_outputs)
        weights = np.subtract.outer(classes, classes) ** 2
        with_label, with_prediction = self.confusion.sum(axis=2), self.confusion.sum(axis=1)
        by_chance = np.einsum("ri,ij,rj->r", with_label, weights, with_prediction)
        by_chance[by_chance == 0] = math.nan
        observed = np.einsum("ij,rij->r", weights, self.confusion)
        return np.asarray(1 - observed * with_label.sum(axis=1) / by_chance)

    def mean_absolute_error(self) -> Float[np.ndarray, " r"]:
        """Compute the mean difference of predicted and true grade in each table."""
        classes = np.arange(self.slides.target.num_outputs)
        steps = np.abs(np.subtract.outer(classes, classes))
        return np.asarray(np.einsum("ij,rij->r", steps, self.confusion) / self._totals)

    def f1(self) -> Float[np.ndarray, " r"]:
        """Compute the F1 score of the second of two classes, else the mean of all."""
        with_label, with_prediction = self.confusion.sum(axis=2), self.confusion.sum(axis=1)
        diagonal = np.diagonal(self.confusion, axis1=1, axis2=2)
        scores = 2 * diagonal / np.maximum(with_label + with_prediction, 1)
        scores = np.where(with_label > 0, scores, math.nan)
        ranked = list(self.slides.target.ranked)
        if not ranked:
            return np.full(len(scores), math.nan)
        return np.asarray(scores[:, ranked].mean(axis=1))

    def expected_calibration_error(self) -> Float[np.ndarray, " r"]:
        """Compute the expected calibration error in each table."""
        sums = self._weights @ self.slides.confidence_gaps
        return np.asarray(np.abs(sums).sum(axis=1) / self._totals)

    def adaptive_calibration_error(self) -> Float[np.ndarray, " r"]:
        """Compute the adaptive calibration error in each table."""
        errors = [_adaptive_error(one, self.counts) for one in self.slides.calibrations]
        return np.asarray(np.mean(errors, axis=0))

    @cached_property
    def _weights(self) -> Float[np.ndarray, "r n"]:
        return self.counts.astype(np.float64)

    @cached_property
    def _totals(self) -> Float[np.ndarray, " r"]:
        return np.asarray(self._weights.sum(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class _Ranking:
    """The P slides of a class and the N others, each in ascending order of its probability.

    Args:
        positive: Slides of the class.
        negative: The others.
        positives_below: Number of positives strictly below each positive.
        negatives_below: Number of negatives strictly below each positive.
        negatives_up_to: Number of negatives below or equal to each positive.
    """

    positive: Int[np.ndarray, " P"]
    negative: Int[np.ndarray, " N"]
    positives_below: Int[np.ndarray, " P"]
    negatives_below: Int[np.ndarray, " P"]
    negatives_up_to: Int[np.ndarray, " P"]


@dataclass(frozen=True, slots=True, eq=False)
class _Calibration:
    """The n slides to which a class is given some probability, in ascending order of it.

    Args:
        slide: The slides.
        tie: Position of the first slide with the same probability.
        gap: Truth less probability.
    """

    slide: Int[np.ndarray, " n"]
    tie: Int[np.ndarray, " n"]
    gap: Float[np.ndarray, " n"]


def _ranking(probs: Float[np.ndarray, " n"], is_class: Bool[np.ndarray, " n"]) -> _Ranking:
    order = np.argsort(probs)
    positive, negative = order[is_class[order]], order[~is_class[order]]
    scores = probs[positive]
    return _Ranking(
        positive=positive,
        negative=negative,
        positives_below=np.searchsorted(scores, scores, side="left"),
        negatives_below=np.searchsorted(probs[negative], scores, side="left"),
        negatives_up_to=np.searchsorted(probs[negative], scores, side="right"),
    )


def _calibration(probs: Float[np.ndarray, " n"], is_class: Bool[np.ndarray, " n"]) -> _Calibration:
    order = np.argsort(probs)
    slide = order[probs[order] > 0]
    p = probs[slide]
    return _Calibration(slide, np.searchsorted(p, p, side="left"), is_class[slide] - p)


def _rank_metrics(
    ranking: _Ranking, multiplicity: Int[np.ndarray, "r n"]
) -> Float[np.ndarray, "3 r"]:
    r"""Give AUC, average precision and sensitivity of a class against the rest.

    Over the positives i, of $P = \sum_i w_i$ in all against N negatives, with $P_i$ positives
    and $N_i$ negatives drawn strictly below i, and $N_i^=$ negatives that tie with it,

    $$ \mathrm{AUC} = \frac{1}{P} \sum_i w_i \frac{N_i + N_i^= / 2}{N}, \qquad
       \mathrm{AP} = \frac{1}{P} \sum_i w_i \frac{P - P_i}{P - P_i + N - N_i}. $$
    """
    weights = np.take(multiplicity, ranking.positive, axis=1)
    running_positives = _running_sum(weights)
    running_negatives = _running_sum(np.take(multiplicity, ranking.negative, axis=1))
    num_positive = running_positives[:, -1:].astype(np.float64)
    num_negative = running_negatives[:, -1:].astype(np.float64)
    below = np.take(running_negatives, ranking.negatives_below, axis=1)
    up_to = np.take(running_negatives, ranking.negatives_up_to, axis=1)
    hits = num_positive - np.take(running_positives, ranking.positives_below, axis=1)
    # Of positives that were not drawn, the topmost may have nothing at or above them.
    precision = hits / np.maximum(hits + (num_negative - below), 1)
    undefined = (num_positive == 0) | (num_negative == 0)
    num_positive[undefined] = num_negative[undefined] = math.nan
    of_each_positive = (
        (below + up_to) / (2 * num_negative),
        precision,
        below / num_negative >= SPECIFICITY,
    )
    drawn = weights.astype(np.float64)
    sums = [np.einsum("rp,rp->r", drawn, each) for each in of_each_positive]
    return np.asarray(sums) / num_positive[:, 0]


def _adaptive_error(
    calibration: _Calibration, multiplicity: Int[np.ndarray, "r n"]
) -> Float[np.ndarray, " r"]:
    """Compute one class's share of the adaptive calibration error."""
    num_tables, num_slides = len(multiplicity), len(calibration.slide)
    if num_slides == 0:
        return np.zeros(num_tables)
    drawn = np.take(multiplicity, calibration.slide, axis=1)
    running = np.cumsum(drawn, axis=1, dtype=drawn.dtype)
    num_drawn = running[:, -1:]
    ranks = np.round(np.arange(1, NUM_BINS) * num_drawn / NUM_BINS).astype(np.int64)
    ranks = np.minimum(ranks, num_drawn - 1)
    found = [np.searchsorted(*pair, side="right") for pair in zip(running, ranks, strict=True)]
    # A table in which none was drawn adds nothing, whatever its edges.
    edges = calibration.tie[np.minimum(found, num_slides - 1)]
    starts = np.concatenate([np.zeros((num_tables, 1), dtype=np.int64), edges], axis=1)
    flat_starts = (starts + num_slides * np.arange(num_tables)[:, None]).ravel()
    sums = np.add.reduceat((drawn * calibration.gap).ravel(), flat_starts).reshape(starts.shape)
    sums[:, :-1][starts[:, :-1] == starts[:, 1:]] = 0.0  # empty bins, of which it gives a slide
    return np.asarray(np.abs(sums).sum(axis=1) / np.maximum(num_drawn[:, 0], 1))


def _running_sum(values: Int[np.ndarray, "r n"]) -> Int[np.ndarray, "r n+1"]:
    """Sum what lies before each position, and, last, everything."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1), dtype=values.dtype)
    np.cumsum(values, axis=1, dtype=values.dtype, out=sums[:, 1:])
    return sums
