"""How right the predictions of slides are."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import (
    adaptive_calibration_error,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)
from sgpmil.evaluation.operating_point import sensitivity_at_specificity
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc, average_precision
from sgpmil.shapes import Bool, Float, Int

__all__ = [
    "METRIC_NAMES",
    "SlideMetrics",
    "balanced_accuracy",
    "confusion_matrix",
    "f1_score",
    "one_vs_rest_auc",
    "one_vs_rest_average_precision",
    "quadratic_kappa",
    "slide_metrics",
]


@dataclass(frozen=True, slots=True)
class SlideMetrics:
    """Metrics over slides; NaN where one is not defined.

    Args:
        balanced_accuracy: Mean recall over the classes present.
        accuracy: Share of slides whose most probable class is their label.
        auc: Area under the ROC curve: of the second of two classes, else the mean over classes,
            each against the rest.
        kappa: Cohen's kappa with quadratic weights.
        ace: Adaptive calibration error, 10 bins.
        ece: Expected calibration error, 10 bins.
        nll: Mean negative log-likelihood in nats.
        brier: Brier score, summed over classes.
        average_precision: Average precision: of the second of two classes, else the mean over
            classes, each against the rest.
        f1: F1 score: of the second of two classes, else the mean over classes.
        sensitivity_at_95_specificity: Largest sensitivity for the second of two classes at a
            specificity of at least .95; NaN for more classes.
        num_slides: Number of slides with a label.
    """

    balanced_accuracy: float
    accuracy: float
    auc: float
    kappa: float
    ace: float
    ece: float
    nll: float
    brier: float
    average_precision: float
    f1: float
    sensitivity_at_95_specificity: float
    num_slides: int


METRIC_NAMES = tuple(field.name for field in fields(SlideMetrics) if field.name != "num_slides")
"""Name of each metric, in the order of `SlideMetrics`."""


def slide_metrics(table: PredictionTable) -> SlideMetrics:
    """Evaluate the labelled slides of a table.

    Args:
        table: Predictions; those without a label are left out.

    Raises:
        PredictionError: No slide has a label.
    """
    known = table.labelled()
    if not len(known):
        raise PredictionError(
            f"Expected at least one slide with a label, but got none among {len(table)}. "
            "Add labels to the predictions."
        )
    probs, labels = known.probs, known.labels
    predicted = probs.argmax(axis=1)
    return SlideMetrics(
        balanced_accuracy=balanced_accuracy(predicted, labels),
        accuracy=float((predicted == labels).mean()),
        auc=one_vs_rest_auc(probs, labels),
        kappa=quadratic_kappa(predicted, labels, table.num_classes),
        ace=adaptive_calibration_error(probs, labels),
        ece=expected_calibration_error(probs, labels),
        nll=negative_log_likelihood(probs, labels),
        brier=brier_score(probs, labels),
        average_precision=one_vs_rest_average_precision(probs, labels),
        f1=f1_score(predicted, labels, table.num_classes),
        sensitivity_at_95_specificity=sensitivity_at_specificity(probs[:, 1], labels == 1)
        if table.num_classes == 2
        else math.nan,
        num_slides=len(known),
    )


def balanced_accuracy(predicted: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"]) -> float:
    """Give the mean recall over the classes that occur among the labels.

    Args:
        predicted: Predicted class of each slide.
        labels: Label of each slide.

    Example:
        >>> balanced_accuracy(np.array([0, 0, 1, 0]), np.array([0, 0, 1, 1]))
        0.75
    """
    recalls = [(predicted[labels == c] == c).mean() for c in np.unique(labels)]
    return float(np.mean(recalls))


def one_vs_rest_auc(probs: Float[np.ndarray, "n C"], labels: Int[np.ndarray, " n"]) -> float:
    """Give the area under the ROC curve of the second of two classes, else the mean of all.

    Args:
        probs: Probability of each class.
        labels: Label of each slide.

    Returns:
        The area; NaN when a class has no slide, or every slide.
    """
    return _one_vs_rest(auroc, probs, labels)


def one_vs_rest_average_precision(
    probs: Float[np.ndarray, "n C"], labels: Int[np.ndarray, " n"]
) -> float:
    """Give the average precision of the second of two classes, else the mean of all.

    Args:
        probs: Probability of each class.
        labels: Label of each slide.

    Returns:
        The average precision; NaN when a class has no slide, or every slide (it would be 1
        whatever the probabilities).
    """
    return _one_vs_rest(average_precision, probs, labels)


def confusion_matrix(
    predicted: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"], num_classes: int
) -> Int[np.ndarray, "C C"]:
    """Count the slides of each label (rows) and predicted class (columns).

    Args:
        predicted: Predicted class of each slide.
        labels: Label of each slide.
        num_classes: Number of classes C.

    Example:
        >>> confusion_matrix(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
        array([[1, 1],
               [0, 1]])
    """
    cells = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes)


def f1_score(
    predicted: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"], num_classes: int
) -> float:
    r"""Give the F1 score of the second of two classes, else the mean of all.

    $$ F_1 = \frac{2 \, \mathrm{TP}}{2 \, \mathrm{TP} + \mathrm{FP} + \mathrm{FN}}, $$

    the harmonic mean of precision and recall; 0 where a class is never rightly predicted.

    Args:
        predicted: Predicted class of each slide.
        labels: Label of each slide.
        num_classes: Number of classes C.

    Returns:
        The score; NaN when a class that counts has no slide.

    Example:
        >>> f1_score(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
        0.6666666666666666
    """
    confusion = confusion_matrix(predicted, labels, num_classes)
    with_label = confusion.sum(axis=1)
    counted = _counted_classes(num_classes)
    if not counted or not with_label[counted].all():
        return math.nan
    scores = 2 * confusion.diagonal() / np.maximum(with_label + confusion.sum(axis=0), 1)
    return float(scores[counted].mean())


def quadratic_kappa(
    predicted: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"], num_classes: int
) -> float:
    r"""Give Cohen's kappa with quadratic weights.

    $$ \kappa = 1 - \frac{\sum_{ij} w_{ij} O_{ij}}{\sum_{ij} w_{ij} E_{ij}}, \qquad
       w_{ij} = \frac{(i - j)^2}{(C - 1)^2} $$

    with O the confusion matrix and E what its margins give by chance.

    Args:
        predicted: Predicted class of each slide.
        labels: Label of each slide.
        num_classes: Number of classes C.

    Returns:
        Kappa; NaN when labels and predictions are all of one and the same class.

    Example:
        >>> quadratic_kappa(np.array([0, 1, 2]), np.array([0, 1, 2]), 3)
        1.0
    """
    observed = confusion_matrix(predicted, labels, num_classes)
    expected = np.outer(observed.sum(axis=1), observed.sum(axis=0)) / observed.sum()
    # The factor (C - 1)² of the weights cancels.
    weights = np.subtract.outer(np.arange(num_classes), np.arange(num_classes)) ** 2
    by_chance = float((weights * expected).sum())
    return 1.0 - float((weights * observed).sum()) / by_chance if by_chance > 0 else math.nan


def _one_vs_rest(
    metric: Callable[[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]], float],
    probs: Float[np.ndarray, "n C"],
    labels: Int[np.ndarray, " n"],
) -> float:
    classes = _counted_classes(probs.shape[1])
    counts = np.bincount(labels, minlength=probs.shape[1])[classes]
    if not classes or (counts == 0).any() or (counts == len(labels)).any():
        return math.nan
    return float(np.mean([metric(probs[:, c], labels == c) for c in classes]))


def _counted_classes(num_classes: int) -> list[int]:
    """Say of which classes a metric of one class against the rest is the mean."""
    if num_classes < 2:
        return []
    return [1] if num_classes == 2 else list(range(num_classes))
