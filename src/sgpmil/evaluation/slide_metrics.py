"""How right the predictions of slides are."""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import (
    adaptive_calibration_error,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc
from sgpmil.shapes import Float, Int

__all__ = [
    "SlideMetrics",
    "balanced_accuracy",
    "one_vs_rest_auc",
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
    num_slides: int


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
    num_classes = probs.shape[1]
    if num_classes < 2:
        return math.nan
    classes = [1] if num_classes == 2 else range(num_classes)
    return float(np.mean([auroc(probs[:, c], labels == c) for c in classes]))


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
    observed = np.zeros((num_classes, num_classes))
    np.add.at(observed, (labels, predicted), 1.0)
    expected = np.outer(observed.sum(axis=1), observed.sum(axis=0)) / observed.sum()
    # The factor (C - 1)² of the weights cancels.
    weights = np.subtract.outer(np.arange(num_classes), np.arange(num_classes)) ** 2
    by_chance = float((weights * expected).sum())
    return 1.0 - float((weights * observed).sum()) / by_chance if by_chance > 0 else math.nan
