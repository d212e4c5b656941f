"""Uncertainty of slides as a sign of errors: error AUROC, Welch's test, selective prediction."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc
from sgpmil.shapes import Bool, Float

UncertaintyMeasure = Literal[
    "std", "mean_std", "entropy", "expected_entropy", "mutual_information", "max_probability"
]

UNCERTAINTY_MEASURES: tuple[UncertaintyMeasure, ...] = get_args(UncertaintyMeasure)

_OF_THE_POSTERIOR = ("std", "mean_std", "mutual_information")

_ZERO = 1e-9
"""Equal samples give spreads of rounding size, which order nothing."""


def uncertainty_measure(name: str) -> UncertaintyMeasure:
    """Check the name of a measure.

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
    r"""Compute the uncertainty of each slide; larger is less certain.

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
        measure: Measure of uncertainty.

    Returns:
        The uncertainties. NaN where the predictions do not carry them, and NaN throughout where
        a spread of the posterior is zero for every slide: a model without a posterior writes
        zeros, which say nothing of its certainty.

    Example:
        >>> from sgpmil.bags.target import ClassTarget
        >>> from sgpmil.evaluation.prediction import Prediction
        >>> one = Prediction.from_samples("a", "a", None, np.array([[0.25, 0.75]]))
        >>> uncertainty(PredictionTable((one,), ClassTarget(("no", "yes"))), "max_probability")
        array([0.25])
    """
    values = slide_uncertainty(table, uncertainty_measure(measure))
    if measure in _OF_THE_POSTERIOR and (np.abs(values) <= _ZERO).all():
        return np.full(len(values), np.nan)
    return values


def error_auroc(table: PredictionTable, measure: UncertaintyMeasure) -> float:
    r"""Compute the chance that a wrong prediction is less certain than a right one.

    $$ \mathrm{AUROC} = P(u_{\mathrm{wrong}} > u_{\mathrm{right}})
       + \tfrac{1}{2} P(u_{\mathrm{wrong}} = u_{\mathrm{right}}) $$

    Compare every measure with `max_probability`, which needs no posterior: the standard
    deviation of a probability is largest near one half whatever the model knows.

    Args:
        table: Predictions; those without a label are left out.
        measure: Measure that orders the slides (see `uncertainty`).

    Returns:
        The area; NaN without errors, with errors alone, or where a slide lacks the measure.
    """
    known = table.labelled()
    return auroc(uncertainty(known, measure), wrong_slides(known))


def wrong_slides(table: PredictionTable) -> Bool[np.ndarray, " n"]:
    """Mark the slides whose most probable class is not their label."""
    return np.asarray(table.predicted != table.labels)


def slide_uncertainty(
    table: PredictionTable, measure: UncertaintyMeasure
) -> Float[np.ndarray, " n"]:
    """Compute the uncertainty of each slide on its own, as written: zeros stay zeros."""
    if measure == "std":
        std = table.std
        return np.asarray(std[np.arange(len(std)), table.predicted])
    if measure == "mean_std":
        return np.asarray(table.std.mean(axis=1))
    if measure == "max_probability":
        return np.asarray(1 - table.probs.max(axis=1))
    return np.array([getattr(p, measure) for p in table.predictions], dtype=np.float64)


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
        p_value: Chance of a statistic as large, were the means equal. The test is one-sided:
            whether wrong predictions are less certain.
    """

    measure: UncertaintyMeasure
    num_correct: int
    num_wrong: int
    mean_correct: float
    mean_wrong: float
    t: float
    dof: float
    p_value: float

    @property
    def note(self) -> str:
        """Reason that there is no test, in one sentence; empty where there is one."""
        if not math.isnan(self.t):
            return ""
        if min(self.num_correct, self.num_wrong) < 2:
            return (
                "Welch's test needs two correct and two wrong slides, but there are "
                f"{self.num_correct} and {self.num_wrong}."
            )
        if math.isnan(self.mean_correct) or math.isnan(self.mean_wrong):
            return f"The predictions do not carry the measure '{self.measure}'."
        return f"Welch's test is undefined because '{self.measure}' does not vary."


def correct_versus_wrong(table: PredictionTable, measure: UncertaintyMeasure) -> CorrectVersusWrong:
    r"""Compare the uncertainty of wrong and of correct predictions.

    With means $m$, sample variances $s^2$ and counts $n$ of the wrong (1) and correct (0),

    $$ t = \frac{m_1 - m_0}{\sqrt{v_1 + v_0}}, \qquad v_i = \frac{s_i^2}{n_i}, \qquad
       \nu = \frac{(v_1 + v_0)^2}{v_1^2 / (n_1 - 1) + v_0^2 / (n_0 - 1)}. $$

    The test takes slides for independent: several slides of one patient, or of one slide under
    several models, make p too small. To see whether a measure knows more than the probabilities
    themselves, compare its `error_auroc` with that of `max_probability`.

    Args:
        table: Predictions; those without a label are left out.
        measure: Measure of uncertainty.

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
    return CorrectVersusWrong(
        measure=measure,
        num_correct=len(correct),
        num_wrong=len(wrong),
        mean_correct=float(correct.mean()) if len(correct) else math.nan,
        mean_wrong=float(wrong.mean()) if len(wrong) else math.nan,
        t=t,
        dof=dof,
        p_value=float(stdtr(dof, -t)),
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


COVERAGES = (0.5, 0.7, 0.8, 0.9, 1.0)
"""Shares of the slides kept at which accuracy is reported."""


@dataclass(frozen=True, slots=True, eq=False)
class RiskCoverage:
    """Share of errors among the k most certain of n slides, for k = 1 … n.

    Args:
        coverage: Share of the slides kept, k / n.
        risk: Share of errors among them; NaN where the uncertainty is unknown.
    """

    coverage: Float[np.ndarray, " n"]
    risk: Float[np.ndarray, " n"]

    @property
    def aurc(self) -> float:
        r"""Area under the curve, $\frac{1}{n} \sum_k r_k$; NaN without slides."""
        return float(self.risk.mean()) if len(self.risk) else math.nan

    def accuracy_at(self, coverage: float) -> float:
        r"""Compute the accuracy over the $\lceil c n \rceil$ most certain slides.

        Raises:
            PredictionError: The share is not in (0, 1].
        """
        if not 0 < coverage <= 1:
            raise PredictionError(
                f"Expected a coverage above 0 and up to 1, but got {coverage}. "
                "Pass the share of slides to keep, such as 0.9."
            )
        if not len(self.risk):
            return math.nan
        # 0.7 · 10 is 7.000000000000001 in floating point, but seven slides are meant.
        kept = max(1, math.ceil(coverage * len(self.risk) - 1e-9))
        return 1 - float(self.risk[kept - 1])


@dataclass(frozen=True, slots=True, eq=False)
class SelectivePrediction:
    """Accuracy when the least certain slides are refused.

    Args:
        measure: Measure that orders the slides.
        curve: Errors against the share of slides kept.
        aurc: Area under the curve; lower is better.
        oracle_aurc: Area where every correct slide comes before every wrong one: the least that
            this number of errors allows.
        excess_aurc: Their difference; 0 where there is nothing to order, without errors or with
            errors alone.
        accuracies: Accuracy at each of `COVERAGES`.
    """

    measure: UncertaintyMeasure
    curve: RiskCoverage
    aurc: float
    oracle_aurc: float
    excess_aurc: float
    accuracies: tuple[float, ...]


def risk_coverage(values: Float[np.ndarray, " n"], wrong: Bool[np.ndarray, " n"]) -> RiskCoverage:
    r"""Compute the risk among the most certain slides, as more and more are kept.

    Slides of equal uncertainty have no order. The risk is the expectation over all their orders,
    so that it does not depend on the order of the rows: after a slides with $w_a$ errors, j of a
    group of g equal ones with $w_g$ errors add $j w_g / g$ of them on average,

    $$ r_{a + j} = \frac{w_a + j w_g / g}{a + j}. $$

    Returns:
        The curve; its risk is NaN throughout where an uncertainty is NaN.

    Example:
        >>> risk_coverage(np.array([0.1, 0.3, 0.3]), np.array([False, True, False])).risk
        array([0.        , 0.25      , 0.33333333])
    """
    num_slides = len(values)
    kept = np.arange(1, num_slides + 1)
    coverage = kept / max(1, num_slides)
    if num_slides == 0 or np.isnan(values).any():
        return RiskCoverage(coverage, np.full(num_slides, np.nan))
    levels, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    errors = np.bincount(group, weights=wrong, minlength=len(levels))
    # Between the ends of the groups the expected number of errors grows linearly.
    ends = np.concatenate([[0], sizes.cumsum()])
    num_wrong = np.interp(kept, ends, np.concatenate([[0.0], errors.cumsum()]))
    return RiskCoverage(coverage, num_wrong / kept)


def selective_prediction(
    table: PredictionTable, measure: UncertaintyMeasure
) -> SelectivePrediction:
    """Order slides by a measure of uncertainty, and count the errors among the most certain.

    Args:
        table: Predictions; those without a label are left out.
        measure: Measure that orders the slides.

    Returns:
        The curve and its summaries, NaN where a slide lacks the measure.
    """
    known = table.labelled()
    wrong = wrong_slides(known)
    curve = risk_coverage(uncertainty(known, measure), wrong)
    oracle = risk_coverage(wrong.astype(np.float64), wrong).aurc
    return SelectivePrediction(
        measure=measure,
        curve=curve,
        aurc=curve.aurc,
        oracle_aurc=oracle,
        excess_aurc=curve.aurc - oracle,
        accuracies=tuple(curve.accuracy_at(coverage) for coverage in COVERAGES),
    )
