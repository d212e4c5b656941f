"""Errors among the slides that a model keeps when it may refuse the uncertain ones."""

import math
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.measures import UncertaintyMeasure, uncertainty, wrong_slides
from sgpmil.shapes import Bool, Float

__all__ = [
    "COVERAGES",
    "RiskCoverage",
    "SelectivePrediction",
    "risk_coverage",
    "selective_prediction",
]

COVERAGES = (0.5, 0.7, 0.8, 0.9, 1.0)
"""Shares of the slides kept at which accuracy is told."""


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
        r"""Give the accuracy over the $\lceil c n \rceil$ most certain slides.

        Args:
            coverage: Share c of the slides to keep, in (0, 1].

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
    """What refusing the least certain slides brings.

    Args:
        measure: What orders the slides.
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
    r"""Trace the risk among the most certain slides, as more and more are kept.

    Slides of equal uncertainty have no order. The risk is the expectation over all their orders,
    so that it does not depend on the order of the rows: after a slides with $w_a$ errors, j of a
    group of g equal ones with $w_g$ errors add $j w_g / g$ of them on average,

    $$ r_{a + j} = \frac{w_a + j w_g / g}{a + j}. $$

    Args:
        values: Uncertainty of each slide.
        wrong: Whether each is wrong.

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
        measure: What orders the slides.

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
