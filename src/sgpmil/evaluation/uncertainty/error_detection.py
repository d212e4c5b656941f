"""Detection of wrong predictions by an uncertainty, with an interval that holds for few errors."""

import math
from dataclasses import dataclass

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable, patient_ids
from sgpmil.evaluation.uncertainty.measures import UncertaintyMeasure, error_auroc, wrong_slides

_CHANCE = 0.5
"""Error AUROC of an uncertainty that knows nothing of errors."""


@dataclass(frozen=True, slots=True)
class ErrorDetection:
    """How well a measure of uncertainty finds the wrong predictions.

    Args:
        measure: The measure.
        area: Chance that a wrong prediction is less certain than a right one (`error_auroc`); NaN
            where it is undefined.
        low: Lower end of its confidence interval; NaN where it is undefined.
        high: Upper end.
        level: Level of the interval.
        num_wrong: Number of wrong predictions.
        num_right: Number of right predictions.
        num_independent: Number of patients with wrong predictions, or with right ones where these
            are fewer.
    """

    measure: UncertaintyMeasure
    area: float
    low: float
    high: float
    level: float
    num_wrong: int
    num_right: int
    num_independent: int

    @property
    def is_known(self) -> bool:
        """Whether there are enough errors to say anything (see `least_errors`)."""
        return not math.isnan(self.area) and self.num_independent >= least_errors(self.level)

    @property
    def is_shown(self) -> bool:
        """Whether it is shown that wrong predictions are less certain: more than chance."""
        return self.is_known and self.low > _CHANCE

    @property
    def sentence(self) -> str:
        """The finding with its numbers; or how many errors there are, where these are too few."""
        total = self.num_wrong + self.num_right
        count = f"{self.num_wrong} of {total} predictions {'is' if self.num_wrong == 1 else 'are'}"
        if not self.num_wrong:
            return f"None of {total} predictions is wrong, so nothing is known about errors."
        if math.isnan(self.area) and self.num_right:
            return f"{count} wrong; the predictions do not carry {self._name}."
        if not self.is_known:
            return (
                f"{count} wrong. That is too few to say whether the uncertainty finds errors: it "
                f"takes {least_errors(self.level)} wrong and as many right ones, of different "
                "patients."
            )
        return (
            f"{count} wrong. A wrong one is less certain than a right one with a chance of "
            f"{self.area:.2f} ({self.level:.0%} interval {self.low:.2f}–{self.high:.2f}; "
            f"{self._name}; 0.5 is no better than chance)."
        )

    @property
    def _name(self) -> str:
        return self.measure.replace("_", " ")


def error_detection(
    table: PredictionTable, measure: UncertaintyMeasure, level: float = 0.95
) -> ErrorDetection:
    r"""Measure how well an uncertainty finds the wrong predictions.

    The interval takes the error AUROC $\hat\theta$ for a share of $m$ independent comparisons, $m$
    the smaller number of patients with wrong and with right predictions. With
    $k = m\hat\theta$ and the quantiles of the beta distribution (Clopper and Pearson, 1934),

    $$ [B_{\alpha/2}(k, m - k + 1),\; B_{1 - \alpha/2}(k + 1, m - k)]. $$

    It is wide on purpose. The area is a mean over matchings of the errors with as many right
    slides, and each matching gives $m$ independent comparisons. So the area is never more spread
    than such a share is (Hoeffding, 1963), however uncertainties are distributed. The interval is
    exact where each error is less certain than all right slides or more certain than all of them.
    Intervals from an estimated variance (DeLong; Hanley and McNeil) have no width at an area of 1,
    which two errors reach by chance.

    Args:
        table: Predictions; those without a label are left out.
        measure: Measure of uncertainty.
        level: Level of the interval.

    Raises:
        PredictionError: The level is impossible.

    Example:
        >>> least_errors(0.95)
        6
    """
    if not 0 < level < 1:
        raise PredictionError(f"Expected a level between 0 and 1, but got {level}. Use 0.95.")
    known = table.labelled()
    wrong = wrong_slides(known)
    patients = patient_ids(known)
    num_independent = min(
        len({patient for patient, is_wrong in zip(patients, wrong, strict=True) if is_wrong}),
        len({patient for patient, is_wrong in zip(patients, wrong, strict=True) if not is_wrong}),
    )
    area = error_auroc(known, measure)
    low, high = _interval(area, num_independent, level)
    return ErrorDetection(
        measure=measure,
        area=area,
        low=low,
        high=high,
        level=level,
        num_wrong=int(wrong.sum()),
        num_right=int((~wrong).sum()),
        num_independent=num_independent,
    )


def least_errors(level: float = 0.95) -> int:
    r"""Return the fewest errors from which an error AUROC of 1 differs from chance.

    The interval of an area of 1 begins at $(\alpha / 2)^{1/m}$. With fewer errors it holds
    0.5, whatever the uncertainties are.
    """
    return math.floor(math.log((1 - level) / 2) / math.log(0.5)) + 1


def _interval(area: float, num: int, level: float) -> tuple[float, float]:
    from scipy.stats import beta

    if math.isnan(area) or num < 1:
        return math.nan, math.nan
    found, tail = num * area, (1 - level) / 2
    low = 0.0 if area <= 0 else float(beta.ppf(tail, found, num - found + 1))
    high = 1.0 if area >= 1 else float(beta.ppf(1 - tail, found + 1, num - found))
    return low, high
