"""Whether uncertainty points at the errors."""

from typing import Literal

import numpy as np

from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc
from sgpmil.shapes import Float

__all__ = ["UncertaintyMeasure", "error_auroc", "uncertainty"]

UncertaintyMeasure = Literal["std", "entropy", "mutual_information", "max_probability"]


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
        The area; NaN without errors, with errors alone, or where the table lacks the measure.
    """
    known = table.labelled()
    wrong = known.probs.argmax(axis=1) != known.labels
    return auroc(uncertainty(known, measure), wrong)


def uncertainty(table: PredictionTable, measure: UncertaintyMeasure) -> Float[np.ndarray, " n"]:
    r"""Give the uncertainty of each slide; larger is less certain.

    ``std`` is the standard deviation of the predicted class's probability, ``entropy`` that of
    the mean probabilities, ``mutual_information`` the model's share of it, and
    ``max_probability`` is $1 - \max_c p_c$.

    Args:
        table: Predictions.
        measure: Which uncertainty.
    """
    probs = table.probs
    if measure == "std":
        return np.asarray(table.std[np.arange(len(probs)), probs.argmax(axis=1)])
    if measure == "max_probability":
        return np.asarray(1 - probs.max(axis=1))
    return np.array([getattr(p, measure) for p in table.predictions], dtype=np.float64)
