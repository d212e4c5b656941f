"""The metrics of many resampled tables at once, from how often each slide was drawn."""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.evaluation.calibration import NUM_BINS, SMALLEST_PROBABILITY
from sgpmil.evaluation.operating_point import SPECIFICITY
from sgpmil.evaluation.slide_metrics import METRIC_NAMES
from sgpmil.shapes import Bool, Float, Int

__all__ = ["ResampledMetrics"]


class ResampledMetrics:
    r"""`SlideMetrics` of tables in which slide i occurs $w_i \ge 0$ times.

    Everything that does not depend on w is worked out once: means over slides become matrix
    products $w \cdot v$, and what depends on the order of the slides comes from running sums of w
    in the order of one sort a class. The values are those of the metrics on the table in which
    the slides are physically repeated, up to rounding.

    Args:
        probs: Probability of each class for each slide.
        labels: Label of each slide.
    """

    def __init__(self, probs: Float[np.ndarray, "n C"], labels: Int[np.ndarray, " n"]) -> None:
        num, self.num_classes = probs.shape
        predicted = probs.argmax(axis=1)
        one_hot = np.eye(self.num_classes)[labels]
        of_label = np.clip(probs[np.arange(num), labels], SMALLEST_PROBABILITY, 1.0)
        confidence = probs.max(axis=1)
        inner_edges = np.linspace(0.0, 1.0, NUM_BINS + 1)[1:-1]
        bins = np.searchsorted(inner_edges, confidence, side="right")
        gaps = (predicted == labels) - confidence
        self._sums = np.concatenate(
            [
                np.eye(self.num_classes**2)[labels * self.num_classes + predicted],
                np.eye(NUM_BINS)[bins] * gaps[:, None],
                -np.log(of_label)[:, None],
                ((probs - one_hot) ** 2).sum(axis=1, keepdims=True),
            ],
            axis=1,
        )
        classes = [(probs[:, c], labels == c) for c in range(self.num_classes)]
        self._calibrations = [_calibration(*one) for one in classes]
        # The metrics of rank are those of the second of two classes, else the means of all.
        ranked = classes[1:] if self.num_classes == 2 else classes
        self._rankings = [_ranking(*one) for one in ranked]

    def values(self, multiplicity: Int[np.ndarray, "r n"]) -> Float[np.ndarray, "r K"]:
        """Give the K metrics of `METRIC_NAMES` in each of r tables; NaN where undefined.

        Args:
            multiplicity: How often each slide occurs in each table; at least one does.
        """
        num_cells = self.num_classes**2
        sums = multiplicity.astype(np.float64) @ self._sums
        confusion = sums[:, :num_cells].reshape(-1, self.num_classes, self.num_classes)
        total = confusion.sum(axis=(1, 2))
        ranks = np.mean([_rank_metrics(one, multiplicity) for one in self._rankings], axis=0)
        errors = [_adaptive_error(one, multiplicity) for one in self._calibrations]
        if self.num_classes != 2:
            ranks[2] = math.nan
        found = {
            "accuracy": np.trace(confusion, axis1=1, axis2=2) / total,
            "balanced_accuracy": _balanced_accuracy(confusion),
            "kappa": _kappa(confusion),
            "f1": _f1(confusion),
            "ece": np.abs(sums[:, num_cells:-2]).sum(axis=1) / total,
            "nll": sums[:, -2] / total,
            "brier": sums[:, -1] / total,
            "auc": ranks[0],
            "average_precision": ranks[1],
            "sensitivity_at_95_specificity": ranks[2],
            "ace": np.mean(errors, axis=0),
        }
        return np.stack([found[name] for name in METRIC_NAMES], axis=1)


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
    """Give one class's share of the adaptive calibration error."""
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


def _balanced_accuracy(confusion: Float[np.ndarray, "r C C"]) -> Float[np.ndarray, " r"]:
    with_label = confusion.sum(axis=2)
    recalls = np.diagonal(confusion, axis1=1, axis2=2) / np.maximum(with_label, 1)
    return np.asarray(recalls.sum(axis=1) / (with_label > 0).sum(axis=1))


def _kappa(confusion: Float[np.ndarray, "r C C"]) -> Float[np.ndarray, " r"]:
    classes = np.arange(confusion.shape[1])
    weights = np.subtract.outer(classes, classes) ** 2
    with_label, with_prediction = confusion.sum(axis=2), confusion.sum(axis=1)
    by_chance = np.einsum("ri,ij,rj->r", with_label, weights, with_prediction)
    by_chance[by_chance == 0] = math.nan
    observed = np.einsum("ij,rij->r", weights, confusion)
    return np.asarray(1 - observed * with_label.sum(axis=1) / by_chance)


def _f1(confusion: Float[np.ndarray, "r C C"]) -> Float[np.ndarray, " r"]:
    with_label, with_prediction = confusion.sum(axis=2), confusion.sum(axis=1)
    diagonal = np.diagonal(confusion, axis1=1, axis2=2)
    scores = 2 * diagonal / np.maximum(with_label + with_prediction, 1)
    scores = np.where(with_label > 0, scores, math.nan)
    num_classes = confusion.shape[1]
    if num_classes < 2:
        return np.full(len(scores), math.nan)
    return np.asarray(scores[:, 1] if num_classes == 2 else scores.mean(axis=1))
