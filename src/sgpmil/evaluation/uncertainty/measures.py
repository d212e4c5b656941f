"""How uncertain a model is of each slide, and whether that points at the errors."""

from typing import Literal, get_args

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc
from sgpmil.shapes import Bool, Float

__all__ = [
    "UNCERTAINTY_MEASURES",
    "UncertaintyMeasure",
    "error_auroc",
    "slide_uncertainty",
    "uncertainty",
    "uncertainty_measure",
    "wrong_slides",
]

UncertaintyMeasure = Literal[
    "std", "mean_std", "entropy", "expected_entropy", "mutual_information", "max_probability"
]

UNCERTAINTY_MEASURES: tuple[UncertaintyMeasure, ...] = get_args(UncertaintyMeasure)

_OF_THE_POSTERIOR = ("std", "mean_std", "mutual_information")

_ZERO = 1e-9
"""Equal samples give spreads of rounding size, which order nothing."""


def uncertainty_measure(name: str) -> UncertaintyMeasure:
    """Take the name of a measure.

    Args:
        name: One of `UNCERTAINTY_MEASURES`.

    Raises:
        PredictionError: There is no such measure.
    """
    for measure in UNCERTAINTY_MEASURES:
        if measure == name:
            return measure
    raise PredictionError(
        f"Expected a measure of uncertainty, but got '{name}'. "
        f"Choose one of {', '.join(UNCERTAINTY_MEASURES)}."
    )


def uncertainty(table: PredictionTable, measure: UncertaintyMeasure) -> Float[np.ndarray, " n"]:
    r"""Give the uncertainty of each slide; larger is less certain.

    ======================  ==================================================================
    ``std``                 standard deviation of the predicted class's probability
    ``mean_std``            standard deviation of the probabilities, averaged over the classes
    ``entropy``             $H(p)$ of the mean probabilities: all of the uncertainty
    ``expected_entropy``    mean of $H(p_s)$ over samples: the share that lies in the data
    ``mutual_information``  their difference: the share that lies in the model
    ``max_probability``     $1 - \max_c p_c$, which needs no posterior
    ======================  ==================================================================

    Args:
        table: Predictions.
        measure: Which uncertainty.

    Returns:
        The uncertainties. NaN where the predictions do not carry them, and NaN throughout where
        a spread of the posterior is zero for every slide: a model without a posterior writes
        zeros, which say nothing of its certainty.

    Example:
        >>> from sgpmil.evaluation.prediction import Prediction
        >>> one = Prediction.from_samples("a", "a", None, np.array([[0.25, 0.75]]))
        >>> uncertainty(PredictionTable((one,), ("normal", "tumour")), "max_probability")
        array([0.25])
    """
    values = slide_uncertainty(table, uncertainty_measure(measure))
    if measure in _OF_THE_POSTERIOR and (np.abs(values) <= _ZERO).all():
        return np.full(len(values), np.nan)
    return values


def error_auroc(table: PredictionTable, measure: UncertaintyMeasure) -> float:
    r"""Give the chance that a wrong prediction is less certain than a right one.

    $$ \mathrm{AUROC} = P(u_{\mathrm{wrong}} > u_{\mathrm{right}})
       + \tfrac{1}{2} P(u_{\mathrm{wrong}} = u_{\mathrm{right}}) $$

    Compare every measure with `max_probability`, which needs no posterior: the standard
    deviation of a probability is largest near one half whatever the model knows.

    Args:
        table: Predictions; those without a label are left out.
        measure: What orders the slides (see `uncertainty`).

    Returns:
        The area; NaN without errors, with errors alone, or where a slide lacks the measure.
    """
    known = table.labelled()
    return auroc(uncertainty(known, measure), wrong_slides(known))


def wrong_slides(table: PredictionTable) -> Bool[np.ndarray, " n"]:
    """Say of each slide whether its most probable class is not its label.

    Args:
        table: Predictions, all with a label.
    """
    return np.asarray(table.probs.argmax(axis=1) != table.labels)


def slide_uncertainty(
    table: PredictionTable, measure: UncertaintyMeasure
) -> Float[np.ndarray, " n"]:
    """Give the uncertainty of each slide on its own, as written: zeros stay zeros.

    Args:
        table: Predictions.
        measure: Which uncertainty (see `uncertainty`).
    """
    if measure == "std":
        std = table.std
        return np.asarray(std[np.arange(len(std)), table.probs.argmax(axis=1)])
    if measure == "mean_std":
        return np.asarray(table.std.mean(axis=1))
    if measure == "max_probability":
        return np.asarray(1 - table.probs.max(axis=1))
    return np.array([getattr(p, measure) for p in table.predictions], dtype=np.float64)
