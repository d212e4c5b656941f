r"""Tests of whether one system is better than another, over folds.

Every test sees the differences $d_k = a_k - b_k$ of a metric over the folds $k = 1 … n$ in which
both systems have it. All tests treat these cases alike:

=========================  ===================================================================
no fold                    p is NaN
one fold                   p of both t-tests is NaN: one difference has no spread
all differences are 0      p is 1: nothing speaks for either system
all are equal, but not 0   p of both t-tests is NaN: t is infinite, and p = 0 would claim
                           certainty from a spread that too few slides or folds hide
=========================  ===================================================================

Differences that are nothing but rounding ($10^{-12}$ of the metric) count as 0, and such
deviations of one from another as equal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.metrics import Better, get_metric
from sgpmil.shapes import Float

Alternative = Literal["greater", "less", "two-sided"]
"""Alternative hypothesis of a test: a above b, a below b, or either."""

FoldValues = Sequence[float] | Float[np.ndarray, " n"]
"""A metric in each fold; NaN where undefined."""

_ALTERNATIVES = ("greater", "less", "two-sided")
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The result of a test of paired differences.

    Args:
        difference: Mean of a less b over the folds; NaN without folds.
        statistic: The test's statistic; NaN where undefined.
        p_value: Chance of such a statistic, or one further out, if neither system were better;
            NaN where undefined.
        num_folds: Number of folds in which both values are defined.
        reason: Reason that the p-value is undefined; empty where it is defined.
    """

    difference: float
    statistic: float
    p_value: float
    num_folds: int
    reason: str = ""


def better_alternative(metric: str) -> Alternative:
    """Return the alternative under which the first system is the better one.

    Raises:
        PredictionError: There is no such metric.

    Example:
        >>> better_alternative("auc"), better_alternative("ace")
        ('greater', 'less')
    """
    alternatives: dict[Better, Alternative]
    alternatives = {"higher": "greater", "lower": "less", "neither": "two-sided"}
    return alternatives[get_metric(metric).better]


def paired_t_test(a: FoldValues, b: FoldValues, alternative: Alternative = "greater") -> PairedTest:
    r"""Compare two systems over folds by Student's paired t-test.

    $$ t = \frac{\bar d}{s_d / \sqrt n}, \qquad n - 1 \text{ degrees of freedom} $$

    It takes folds for independent. Folds that train on the same slides are not, and then it finds
    differences that are not there too often: see `corrected_t_test`.

    Args:
        a: Metric of the first system in each fold; NaN where undefined.
        b: Metric of the second system in the same folds.
        alternative: Alternative hypothesis; `better_alternative` returns that of a metric.

    Raises:
        PredictionError: The folds do not pair up, a value is infinite, or there is no such
            alternative.

    Example:
        >>> round(paired_t_test([0.9, 0.8, 0.9], [0.8, 0.7, 0.7]).p_value, 4)
        0.0286
    """
    differences = _differences(a, b, alternative)
    return _t_test(differences, 0.0, alternative)


def corrected_t_test(
    a: FoldValues,
    b: FoldValues,
    alternative: Alternative = "greater",
    *,
    num_train: int | Sequence[int],
    num_test: int | Sequence[int],
) -> PairedTest:
    r"""Compare two systems over folds whose training sets overlap.

    The corrected resampled t-test of Nadeau and Bengio (2003) widens the variance for what
    overlapping training sets have in common,

    $$ t = \frac{\bar d}{\sqrt{\bigl(\frac{1}{n} + \frac{n_\text{test}}{n_\text{train}}\bigr)
       s_d^2}}, \qquad n - 1 \text{ degrees of freedom}, $$

    with the mean over folds of the ratio of the test set's size to the training set's.

    Args:
        a: Metric of the first system in each fold; NaN where undefined.
        b: Metric of the second system in the same folds.
        alternative: Alternative hypothesis; `better_alternative` returns that of a metric.
        num_train: Number of training slides of every fold, or of each; validation slides are
            not counted.
        num_test: Number of test slides of every fold, or of each.

    Raises:
        PredictionError: The folds do not pair up, a value is infinite, there is no such
            alternative, or a size is not positive.

    Example:
        >>> test = corrected_t_test([0.9, 0.8, 0.9], [0.8, 0.7, 0.7], num_train=20, num_test=10)
        >>> round(test.p_value, 4)
        0.0636
    """
    differences = _differences(a, b, alternative)
    train, test = np.asarray(num_train, np.float64), np.asarray(num_test, np.float64)
    if (train < 1).any() or (test < 1).any():
        raise PredictionError(
            f"Expected positive numbers of training and test slides, but got {num_train} and "
            f"{num_test}. Give the sizes of the split."
        )
    sizes = {size.shape for size in (train, test)} - {(), np.shape(a)}
    if sizes:
        raise PredictionError(
            f"Expected one size a fold ({np.size(a)}) or one for all, but got shape "
            f"{next(iter(sizes))}. Give the sizes of the split."
        )
    return _t_test(differences, float(np.mean(test / train)), alternative)


def wilcoxon_test(a: FoldValues, b: FoldValues, alternative: Alternative = "greater") -> PairedTest:
    r"""Compare two systems over folds by Wilcoxon's signed-rank test.

    Differences of 0 are dropped, as Wilcoxon did. The statistic is the sum of the ranks of
    $|d_k|$ (the mean rank for ties) over the positive differences. Its distribution is exact for
    any number of folds, with or without ties: all $2^n$ signs of the ranks are counted.
    The p-value cannot be below $2^{-n}$ (two-sided $2^{1-n}$), so fewer than five folds never
    reach .05.

    Args:
        a: Metric of the first system in each fold; NaN where undefined.
        b: Metric of the second system in the same folds.
        alternative: Alternative hypothesis; `better_alternative` returns that of a metric.

    Raises:
        PredictionError: The folds do not pair up, a value is infinite, or there is no such
            alternative.

    Example:
        >>> wilcoxon_test([0.9, 0.8, 0.9], [0.8, 0.6, 0.7]).p_value
        0.125
    """
    from scipy.stats import rankdata

    differences = _differences(a, b, alternative)
    if not len(differences.values):
        return _undefined(differences, "no fold has the metric of both systems")
    moved = differences.values[differences.values != 0]
    # In steps of the rounding, so that equal differences of unequal floats share a rank.
    steps = np.round(np.abs(moved) / differences.resolution)
    # Twice the mean ranks are whole numbers, so that every sum of them has a place in an array.
    ranks = np.round(2 * rankdata(steps)).astype(np.int64)
    chances = np.ones(1)
    for rank in ranks:
        chances = 0.5 * (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0)))
    statistic = int(ranks[moved > 0].sum())
    above, below = float(chances[statistic:].sum()), float(chances[: statistic + 1].sum())
    p_values = {"greater": above, "less": below, "two-sided": 2 * min(above, below)}
    return PairedTest(
        difference=differences.mean,
        statistic=statistic / 2,
        p_value=min(1.0, p_values[alternative]),
        num_folds=len(differences.values),
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    r"""Adjust the p-values of a family of tests for their number (Holm, 1979).

    With $p_{(1)} \le … \le p_{(m)}$,

    $$ \tilde p_{(i)} = \min\Bigl(1, \max_{j \le i}\, (m - j + 1)\, p_{(j)}\Bigr), $$

    and to reject where $\tilde p \le \alpha$ errs in any one of the family with a chance of at
    most $\alpha$, however the tests depend on one another.

    Args:
        p_values: P-value of each test. One that is NaN was not carried out: it stays NaN, and the
            family is the smaller for it.

    Raises:
        PredictionError: A p-value is not between 0 and 1.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        (0.03, 0.06, 0.06)
    """
    values = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(values.shape, np.nan)
    known = np.flatnonzero(~np.isnan(values))
    if ((values[known] < 0) | (values[known] > 1)).any():
        raise PredictionError(
            f"Expected p-values between 0 and 1, but got {list(p_values)}. Pass p-values."
        )
    order = known[np.argsort(values[known], kind="stable")]
    raised = values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(raised))
    return tuple(float(p) for p in adjusted)


@dataclass(frozen=True, slots=True, eq=False)
class _Differences:
    """Differences in the folds where both values are defined, and what counts as rounding."""

    values: Float[np.ndarray, " n"]
    resolution: float

    @property
    def mean(self) -> float:
        return float(self.values.mean()) if len(self.values) else math.nan


def _differences(a: FoldValues, b: FoldValues, alternative: str) -> _Differences:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if alternative not in _ALTERNATIVES:
        raise PredictionError(
            f"Expected the alternative {', '.join(_ALTERNATIVES)}, but got '{alternative}'. "
            "Choose one of these."
        )
    if first.ndim != 1 or first.shape != second.shape:
        raise PredictionError(
            f"Expected the metric of both systems in the same folds, but got shapes "
            f"{first.shape} and {second.shape}. Pass one value a fold and system."
        )
    if np.isinf(first).any() or np.isinf(second).any():
        raise PredictionError(
            "Expected finite metrics, but got an infinite one. Pass NaN where it is undefined."
        )
    known = ~(np.isnan(first) | np.isnan(second))
    first, second = first[known], second[known]
    largest = float(np.max(np.abs([first, second]), initial=0.0))
    # The smallest normal number keeps a division by the resolution finite.
    resolution = max(_ROUNDING * largest, float(np.finfo(np.float64).tiny))
    values = first - second
    return _Differences(np.where(np.abs(values) <= resolution, 0.0, values), resolution)


def _t_test(differences: _Differences, overlap: float, alternative: Alternative) -> PairedTest:
    """Divide the mean by its standard error, with 1/n + overlap times the variance."""
    from scipy.stats import t as student

    values, num = differences.values, len(differences.values)
    if num == 0:
        return _undefined(differences, "no fold has the metric of both systems")
    if num == 1:
        return _undefined(differences, "a single fold has no spread to measure a difference by")
    if not values.any():
        return PairedTest(0.0, 0.0, 1.0, num)
    spread = float(values.std(ddof=1))
    if spread <= differences.resolution:
        return _undefined(differences, "the difference is the same in every fold")
    statistic = differences.mean / (spread * math.sqrt(1 / num + overlap))
    match alternative:
        case "greater":
            p_value = student.sf(statistic, num - 1)
        case "less":
            p_value = student.cdf(statistic, num - 1)
        case "two-sided":
            p_value = 2 * student.sf(abs(statistic), num - 1)
    return PairedTest(differences.mean, statistic, float(p_value), num)


def _undefined(differences: _Differences, reason: str) -> PairedTest:
    return PairedTest(differences.mean, math.nan, math.nan, len(differences.values), reason)
