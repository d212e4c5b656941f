"""Temperature scaling of probabilities, fitted on validation slides."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import SMALLEST_PROBABILITY, negative_log_likelihood
from sgpmil.evaluation.prediction import entropy
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.shapes import Float, Int

TEMPERATURE_BOUNDS = (0.05, 20.0)


@dataclass(frozen=True, slots=True)
class Temperature:
    """A fitted temperature.

    Args:
        value: Temperature T; above 1 lowers the confidence, below 1 raises it.
        at_bound: The one of `TEMPERATURE_BOUNDS` that stopped the fit, if any.
        identified: Whether the validation slides say anything of T; where not, T is 1.
        num_slides: Number of validation slides with a label.
        nll_before: Mean negative log-likelihood of the validation slides as predicted.
        nll_after: The same with the temperature.
    """

    value: float
    at_bound: Literal["lower", "upper"] | None
    identified: bool
    num_slides: int
    nll_before: float
    nll_after: float

    @property
    def note(self) -> str:
        """Note on the fit, in one sentence; empty where nothing is unusual."""
        if not self.identified:
            return (
                "The validation slides say nothing of the temperature, for all classes are "
                "equally probable on each of them; it stays 1."
            )
        if self.at_bound == "lower":
            return (
                f"The temperature stopped at its lower bound {self.value:g}: the validation slides "
                "are predicted without error, or nearly so, and bound it no further."
            )
        if self.at_bound == "upper":
            return (
                f"The temperature stopped at its upper bound {self.value:g}: on the validation "
                "slides the probabilities are hardly better than chance."
            )
        return ""

    def apply(self, table: PredictionTable) -> PredictionTable:
        """Scale predictions.

        Standard deviation, expected entropy and mutual information become NaN: after the scaling
        they do not follow from the mean probabilities alone. Entropy is computed again; instances
        stay as they are. The predicted class never changes.

        Args:
            table: Predictions of the model whose validation slides gave the temperature.
        """
        probs = scale_probabilities(table.probs, self.value)
        entropies = entropy(probs)
        predictions = (
            replace(
                prediction,
                probs=probs[row],
                std=np.full(probs.shape[1], np.nan),
                entropy=float(entropies[row]),
                expected_entropy=math.nan,
                mutual_information=math.nan,
            )
            for row, prediction in enumerate(table.predictions)
        )
        return PredictionTable(tuple(predictions), table.target)


def fit_temperature(table: PredictionTable) -> Temperature:
    r"""Fit the temperature that makes the labels of validation slides most likely.

    $$ \hat T = \arg\min_T -\frac{1}{n} \sum_i \ln p^{(T)}_{i, y_i}, \qquad
       p^{(T)}_i = \operatorname{softmax}\Bigl(\frac{\ln p_i}{T}\Bigr), \qquad
       0.05 \le T \le 20 $$

    Log-probabilities are the logits up to a constant a slide, which the softmax ignores. Of a
    model with a posterior it is the mean probability that is scaled, not the logits of each
    sample, whose mean has no such form. Probabilities below 1e-12 are raised to it.

    The loss is convex in $\beta = 1 / T$, with the derivative
    $\frac{1}{n} \sum_i \bigl( \sum_c p^{(T)}_{i,c} \ln p_{i,c} - \ln p_{i,y_i} \bigr)$: its only
    root is the minimum. A validation set without an error has none, for a lower T is always
    better: T stops at its bound, and `Temperature.note` says so.

    Args:
        table: Predictions of validation slides; those without a label are left out.

    Raises:
        PredictionError: No slide has a label.
    """
    from scipy.optimize import brentq

    known = table.labelled()
    if not len(known):
        raise PredictionError(
            f"Expected validation slides with labels to fit a temperature, but got none among "
            f"{len(table)}. Add labels to the predictions."
        )
    probs, labels = known.probs, known.labels
    logs = _logs(probs)
    low, high = (math.log(1 / bound) for bound in reversed(TEMPERATURE_BOUNDS))
    at_bound: Literal["lower", "upper"] | None = None
    identified = bool((np.ptp(logs, axis=1) > 1e-9).any())
    if not identified:
        value = 1.0
    elif _slope(low, logs, labels) >= 0:
        value, at_bound = TEMPERATURE_BOUNDS[1], "upper"
    elif _slope(high, logs, labels) <= 0:
        value, at_bound = TEMPERATURE_BOUNDS[0], "lower"
    else:
        value = math.exp(-brentq(_slope, low, high, args=(logs, labels), xtol=1e-12))
    return Temperature(
        value=value,
        at_bound=at_bound,
        identified=identified,
        num_slides=len(known),
        nll_before=negative_log_likelihood(probs, labels),
        nll_after=negative_log_likelihood(scale_probabilities(probs, value), labels),
    )


def scale_probabilities(
    probs: Float[np.ndarray, "n C"], temperature: float
) -> Float[np.ndarray, "n C"]:
    r"""Give $\operatorname{softmax}(\ln p / T)$.

    Returns:
        The scaled probabilities, with the same largest class in every row.

    Raises:
        PredictionError: The temperature is not above 0.

    Example:
        >>> scale_probabilities(np.array([[0.2, 0.8]]), 0.5).round(4)
        array([[0.0588, 0.9412]])
    """
    if not temperature > 0:
        raise PredictionError(
            f"Expected a temperature above 0, but got {temperature}. Use 1 for no change."
        )
    scaled = _softmax(_logs(probs) / temperature)
    # Probabilities one rounding step apart may become equal, and the first of equal ones is the
    # predicted class: the class that was the largest stays it.
    before = probs.argmax(axis=1)
    rows = np.flatnonzero(scaled.argmax(axis=1) != before)
    scaled[rows, before[rows]] = np.nextafter(scaled[rows].max(axis=1), 2.0)
    return scaled


def _slope(log_beta: float, logs: Float[np.ndarray, "n C"], labels: Int[np.ndarray, " n"]) -> float:
    """Compute the derivative of the mean negative log-likelihood by β = 1 / T."""
    expected = (_softmax(math.exp(log_beta) * logs) * logs).sum(axis=1)
    return float((expected - logs[np.arange(len(labels)), labels]).mean())


def _logs(probs: Float[np.ndarray, "n C"]) -> Float[np.ndarray, "n C"]:
    """Compute the logits, with the constant of each slide such that its largest is exactly 0.

    So the slope of a slide that is predicted right is never above 0, not even by rounding.
    """
    logs = np.log(np.maximum(probs, SMALLEST_PROBABILITY))
    return np.asarray(logs - logs.max(axis=1, keepdims=True))


def _softmax(logits: Float[np.ndarray, "n C"]) -> Float[np.ndarray, "n C"]:
    weights = np.exp(logits)  # the largest logit is 0
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
