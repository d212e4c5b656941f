"""Whether wrong predictions are less certain than correct ones, by Welch's test."""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.measures import UncertaintyMeasure, uncertainty, wrong_slides
from sgpmil.shapes import Float

__all__ = ["CorrectVersusWrong", "correct_versus_wrong"]

_ROUNDING = 1e-12
"""A standard error below this share of the values is rounding, not spread."""


@dataclass(frozen=True, slots=True)
class CorrectVersusWrong:
    """A measure of uncertainty over correct and over wrong predictions.

    Args:
        measure: The measure.
        num_correct: Number of correct predictions.
        num_wrong: Number of wrong predictions.
        mean_correct: Mean uncertainty of the correct ones; NaN without any.
        mean_wrong: Mean uncertainty of the wrong ones; NaN without any.
        t: Welch's statistic, positive where the wrong ones are less certain.
        dof: Its degrees of freedom, after Welch and Satterthwaite.
        p_two_sided: Chance of a statistic as far from zero, were the means equal.
        p_one_sided: Chance of a statistic as large, were the means equal.
    """

    measure: UncertaintyMeasure
    num_correct: int
    num_wrong: int
    mean_correct: float
    mean_wrong: float
    t: float
    dof: float
    p_two_sided: float
    p_one_sided: float

    @property
    def note(self) -> str:
        """Why there is no test, in one sentence; empty where there is one."""
        if not math.isnan(self.t):
            return ""
        if min(self.num_correct, self.num_wrong) < 2:
            return (
                "Welch's test needs two correct and two wrong slides, but there are "
                f"{self.num_correct} and {self.num_wrong}."
            )
        if math.isnan(self.mean_correct) or math.isnan(self.mean_wrong):
            return f"The predictions do not carry the measure '{self.measure}'."
        return f"Welch's test is undefined, for '{self.measure}' does not vary."


def correct_versus_wrong(table: PredictionTable, measure: UncertaintyMeasure) -> CorrectVersusWrong:
    r"""Compare the uncertainty of wrong and of correct predictions.

    With means $m$, sample variances $s^2$ and counts $n$ of the wrong (1) and correct (0),

    $$ t = \frac{m_1 - m_0}{\sqrt{v_1 + v_0}}, \qquad v_i = \frac{s_i^2}{n_i}, \qquad
       \nu = \frac{(v_1 + v_0)^2}{v_1^2 / (n_1 - 1) + v_0^2 / (n_0 - 1)}. $$

    The test takes slides for independent: several slides of one patient, or of one slide under
    several models, make p too small. And it does not tell what `error_auroc` against
    `max_probability` tells: whether the measure knows more than the probabilities themselves.

    Args:
        table: Predictions; those without a label are left out.
        measure: Which uncertainty.

    Returns:
        The comparison. The test is NaN with fewer than two slides on a side, without the
        measure, and where it does not vary.
    """
    from scipy.special import stdtr

    known = table.labelled()
    is_wrong = wrong_slides(known)
    values = uncertainty(known, measure)
    wrong, correct = values[is_wrong], values[~is_wrong]
    t, dof = _welch(wrong, correct)
    above = float(stdtr(dof, -t))
    return CorrectVersusWrong(
        measure=measure,
        num_correct=len(correct),
        num_wrong=len(wrong),
        mean_correct=float(correct.mean()) if len(correct) else math.nan,
        mean_wrong=float(wrong.mean()) if len(wrong) else math.nan,
        t=t,
        dof=dof,
        p_two_sided=2 * float(stdtr(dof, -abs(t))),
        p_one_sided=above,
    )


def _welch(wrong: Float[np.ndarray, " w"], correct: Float[np.ndarray, " k"]) -> tuple[float, float]:
    if min(len(wrong), len(correct)) < 2:
        return math.nan, math.nan
    largest = max(float(np.abs(wrong).max()), float(np.abs(correct).max()))
    if not largest > 0:  # all zero, or a NaN among them
        return math.nan, math.nan
    # The statistic has no unit: dividing keeps the squares of tiny values from vanishing.
    wrong, correct = wrong / largest, correct / largest
    v_wrong = float(wrong.var(ddof=1)) / len(wrong)
    v_correct = float(correct.var(ddof=1)) / len(correct)
    total = v_wrong + v_correct
    if not math.sqrt(total) > _ROUNDING:
        return math.nan, math.nan
    share_wrong, share_correct = v_wrong / total, v_correct / total
    t = (float(wrong.mean()) - float(correct.mean())) / math.sqrt(total)
    dof = 1 / (share_wrong**2 / (len(wrong) - 1) + share_correct**2 / (len(correct) - 1))
    return t, dof
