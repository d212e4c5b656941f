"""Thresholds of instance scores, and metrics of the calls that they make."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sgpmil.evaluation.localisation.scored_slides import (
    InstanceGroup,
    Scope,
    ScoredSlide,
    groups_of,
)
from sgpmil.shapes import Bool, Float

Criterion = Literal["balanced_accuracy", "accuracy", "f1"]
"""Metric that the best threshold maximises."""

ThresholdChoice = Literal["validation", "best_on_test"]
"""`best_on_test` is often published; its numbers are optimistic."""

_TIE = 1e-12


@dataclass(frozen=True, slots=True)
class CallMetrics:
    """Metrics of the calls of instances; NaN where not defined.

    Args:
        balanced_accuracy: Mean recall of the kinds of instance that occur.
        accuracy: Share of right calls.
        f1: Harmonic mean of precision and recall, which is the Dice coefficient.
    """

    balanced_accuracy: float
    accuracy: float
    f1: float


@dataclass(frozen=True, slots=True)
class ChosenThreshold:
    """A threshold, or the reason that there is none.

    Args:
        value: Instances with at least this score are called positive; NaN where there is none,
            infinite where calling nothing was best.
        reason: Reason that there is none; empty otherwise.
    """

    value: float
    reason: str = ""


def call_metrics(called: Bool[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]) -> CallMetrics:
    r"""Compare calls with the truth.

    $$ F_1 = \mathrm{Dice} = \frac{2 TP}{2 TP + FP + FN} $$

    Example:
        >>> call_metrics(np.array([True, True, False]), np.array([True, False, False])).accuracy
        0.6666666666666666
    """
    true = np.array([(called & positive).sum()], dtype=np.float64)
    false = np.array([(called & ~positive).sum()], dtype=np.float64)
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())

    def value(criterion: Criterion) -> float:
        return float(_values(criterion, true, false, num_positive, num_negative)[0])

    return CallMetrics(value("balanced_accuracy"), value("accuracy"), value("f1"))


def best_threshold(
    groups: Sequence[InstanceGroup], criterion: Criterion = "balanced_accuracy"
) -> float:
    r"""Find the threshold with the best mean over groups.

    $$ t^* = \arg\max_t \frac{1}{|G|} \sum_{g \in G} m\bigl([s_g \ge t], y_g\bigr) $$

    The search is exact: the mean is a step function of t that changes at the scores themselves,
    and all of them are tried, with infinity (nothing is called positive) as the largest. Of
    equally good thresholds the largest is taken.

    Args:
        groups: Instances to average over; groups that lack a kind of instance are left out.
        criterion: The metric m.

    Returns:
        The threshold; NaN without a group.

    Example:
        >>> group = InstanceGroup(np.array([0.1, 0.4, 0.8]), np.array([False, True, True]))
        >>> best_threshold([group])
        0.4
    """
    thresholds, changes, start = [], [], []
    for group in groups:
        scores, positive = group.scores, group.positive
        num_positive = int(positive.sum())
        num_negative = len(positive) - num_positive
        if num_positive == 0 or num_negative == 0:
            continue
        values, place = np.unique(scores, return_inverse=True)
        true = np.bincount(place, weights=positive, minlength=len(values))[::-1].cumsum()
        false = np.bincount(place, weights=~positive, minlength=len(values))[::-1].cumsum()
        none = np.zeros(1)
        metric = _values(
            criterion,
            np.concatenate([none, true]),
            np.concatenate([none, false]),
            num_positive,
            num_negative,
        )
        start.append(metric[0])
        thresholds.append(values[::-1])
        changes.append(np.diff(metric))
    if not start:
        return math.nan
    candidates, place = np.unique(np.concatenate(thresholds), return_inverse=True)
    steps = np.bincount(place, weights=np.concatenate(changes), minlength=len(candidates))
    mean = np.concatenate([[0.0], steps[::-1].cumsum()]) / len(start)
    from_the_top = np.concatenate([[np.inf], candidates[::-1]])
    return float(from_the_top[np.argmax(mean >= mean.max() - _TIE)])


def choose_threshold(
    test: Sequence[ScoredSlide],
    validation: Sequence[ScoredSlide] | None,
    scope: Scope,
    choice: ThresholdChoice,
    criterion: Criterion,
) -> ChosenThreshold:
    """Choose the threshold of a scope.

    Args:
        test: Slides that are evaluated.
        validation: Slides of the same fold's validation set, where there is one.
        scope: Instances that are evaluated together.
        choice: On which slides to choose.
        criterion: Metric that the threshold maximises.
    """
    if choice == "best_on_test":
        value = best_threshold(groups_of(test, scope), criterion)
        reason = "" if not math.isnan(value) else "no test slide has both kinds of instance"
        return ChosenThreshold(value, reason)
    if validation is None:
        return ChosenThreshold(math.nan, "there are no predictions of validation slides")
    value = best_threshold(groups_of(validation, scope), criterion)
    reason = "" if not math.isnan(value) else "no validation slide has both kinds of instance"
    return ChosenThreshold(value, reason)


def _values(
    criterion: Criterion,
    true: Float[np.ndarray, " K"],
    false: Float[np.ndarray, " K"],
    num_positive: int,
    num_negative: int,
) -> Float[np.ndarray, " K"]:
    """Compute a metric for each pair of counts of true and false positives."""
    if num_positive + num_negative == 0:
        return np.full(len(true), np.nan)
    if criterion == "accuracy":
        return (true + num_negative - false) / (num_positive + num_negative)
    if criterion == "f1":
        total = true + false + num_positive
        return np.divide(2 * true, total, out=np.full(len(true), np.nan), where=total > 0)
    recalls = []
    if num_positive:
        recalls.append(true / num_positive)
    if num_negative:
        recalls.append(1 - false / num_negative)
    return np.asarray(np.mean(recalls, axis=0))
