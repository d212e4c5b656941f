"""Metrics of instance scores against instance labels, and of their uncertainty."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from sgpmil.evaluation.calibration import adaptive_calibration_error
from sgpmil.evaluation.localisation.scored_slides import (
    InstanceGroup,
    Scope,
    ScoredSlide,
    ScoreName,
    available_scores,
    groups_of,
    scored_slides,
)
from sgpmil.evaluation.localisation.threshold import (
    ChosenThreshold,
    Criterion,
    ThresholdChoice,
    call_metrics,
    choose_threshold,
)
from sgpmil.evaluation.metrics import METRICS
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc, average_precision
from sgpmil.shapes import Bool, Float

LOCALISATION_METRICS = {
    "auc": METRICS["auc"],
    "ap": METRICS["average_precision"],
    "balanced_accuracy": METRICS["balanced_accuracy"],
    "f1": METRICS["f1"],
    "ace": METRICS["ace"],
}
"""Metric behind each column of `LocalisationRow` that short tables show."""


@dataclass(frozen=True, slots=True)
class LocalisationRow:
    """Metrics of one instance score against the instance labels; NaN where not defined.

    Args:
        fold: Name of the fold.
        score: A score that the model gives, or the uniform or random baseline.
        scope: Instances that were evaluated together (see `Scope`).
        auc: Area under the ROC curve.
        ap: Average precision; that of `uniform` is the share of positive instances.
        balanced_accuracy: Mean recall of both kinds at the threshold.
        accuracy: Share of right calls at the threshold.
        f1: F1 at the threshold, which is the Dice coefficient.
        ace: Adaptive calibration error of the scaled score s, as the distribution [1 - s, s].
        threshold: Instances with at least this score are called positive.
        num_slides: Number of slides.
        num_instances: Number of instances whose label is known.
        note: Why numbers are missing, or how the threshold was chosen where that was not on
            validation slides.
    """

    fold: str
    score: ScoreName
    scope: Scope
    auc: float
    ap: float
    balanced_accuracy: float
    accuracy: float
    f1: float
    ace: float
    threshold: float
    num_slides: int
    num_instances: int
    note: str = ""


def localisation(
    test: PredictionTable,
    validation: PredictionTable | None = None,
    *,
    threshold: ThresholdChoice = "validation",
    criterion: Criterion = "balanced_accuracy",
    positive_classes: Sequence[int] | None = None,
    seed: int = 0,
    fold: str = "",
    scores: Sequence[ScoreName] | None = None,
    scopes: Sequence[Scope] = get_args(Scope),
) -> tuple[LocalisationRow, ...]:
    r"""Evaluate every score in every scope, beside uniform and random attention.

    Scores are scaled to [0, 1] within each slide, over all of its instances. `per_slide` are
    means over the positive slides with positive and negative instances. `pooled` takes the
    instances of all slides with known instance labels together, those of negative slides
    included; `pooled_raw` does so with scores as the model gives them, in which the size of a
    slide shows (attention that sums to 1 is smaller in larger slides: see its `uniform` row).

    The threshold is the best on the validation slides, for each score and scope, and never seen
    by the test slides. With `best_on_test` it is the best on the test slides, as often published.

    Args:
        test: Predictions with instance scores and labels.
        validation: The same for the validation slides of the fold.
        threshold: On which slides to choose the threshold.
        criterion: Metric that the threshold maximises.
        positive_classes: Classes whose slides hold positive instances (default: all but 0).
        seed: Seed of the `random` attention.
        fold: Name of the fold.
        scores: Scores to evaluate; by default those that the model gives, and both baselines.
        scopes: Scopes to evaluate.

    Returns:
        A row a score and scope.

    Raises:
        PredictionError: A score is not a finite number, or a class is not in the table.
    """
    rows = []
    for score in available_scores(test) if scores is None else scores:
        slides, others = _both_parts(test, validation, score, positive_classes, seed)
        for scope in scopes:
            chosen = choose_threshold(slides, others, scope, threshold, criterion)
            note = chosen.reason and f"No threshold: {chosen.reason}."
            if threshold == "best_on_test" and not note:
                note = "The threshold is the best on the test slides themselves."
            rows.append(_row(slides, score, scope, chosen, fold, note))
    return tuple(rows)


def _both_parts(
    test: PredictionTable,
    validation: PredictionTable | None,
    score: ScoreName,
    classes: Sequence[int] | None,
    seed: int = 0,
) -> tuple[tuple[ScoredSlide, ...], tuple[ScoredSlide, ...] | None]:
    """Collect the instances of the test slides, and of the validation slides if there are any."""
    slides, others = (
        None if table is None else scored_slides(table, score, positive_classes=classes, seed=seed)
        for table in (test, validation)
    )
    return slides or (), others


def _row(
    slides: Sequence[ScoredSlide],
    score: ScoreName,
    scope: Scope,
    threshold: ChosenThreshold,
    fold: str,
    note: str,
) -> LocalisationRow:
    groups = groups_of(slides, scope)

    def mean(metric: Callable[..., float]) -> float:
        return (
            float(np.mean([metric(group.scores, group.positive) for group in groups]))
            if groups
            else math.nan
        )

    calls = [
        call_metrics(group.scores >= threshold.value, group.positive)
        for group in groups
        if not math.isnan(threshold.value)
    ]
    return LocalisationRow(
        fold=fold,
        score=score,
        scope=scope,
        auc=mean(auroc),
        ap=mean(average_precision),
        balanced_accuracy=_mean([call.balanced_accuracy for call in calls]),
        accuracy=_mean([call.accuracy for call in calls]),
        f1=_mean([call.f1 for call in calls]),
        ace=math.nan if scope == "pooled_raw" else _mean([_ace(group) for group in groups]),
        threshold=threshold.value,
        num_slides=len(groups) if scope == "per_slide" else len(slides),
        num_instances=sum(len(group.scores) for group in groups),
        note=note,
    )


def _ace(group: InstanceGroup) -> float:
    columns = np.stack([1 - group.scores, group.scores], axis=1)
    return adaptive_calibration_error(columns, group.positive.astype(np.int64))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


UncertaintyScope = Literal["per_slide", "pooled"]


@dataclass(frozen=True, slots=True)
class InstanceUncertaintyRow:
    """AUROC of uncertainty for wrong calls of instances; NaN where not defined.

    Args:
        fold: Name of the fold.
        score: Name of the score that makes the calls.
        scope: Mean over slides, or the instances of all slides together.
        std_auroc: Area under the ROC curve of the score's standard deviation for wrong calls.
        margin_auroc: The same of the nearness of the score to the threshold, which needs no
            posterior: the standard deviation is of use where it is above this.
        threshold: Instances with at least this scaled score are called positive.
        num_wrong: Number of wrong calls.
        num_instances: Number of instances whose label is known.
        num_slides: Number of slides; per slide, of those with wrong and right calls.
        note: Reason that numbers are missing.
    """

    fold: str
    score: ScoreName
    scope: UncertaintyScope
    std_auroc: float
    margin_auroc: float
    threshold: float
    num_wrong: int
    num_instances: int
    num_slides: int
    note: str = ""


def instance_uncertainty(
    test: PredictionTable,
    validation: PredictionTable | None = None,
    *,
    threshold: ThresholdChoice = "validation",
    criterion: Criterion = "balanced_accuracy",
    positive_classes: Sequence[int] | None = None,
    fold: str = "",
) -> tuple[InstanceUncertaintyRow, ...]:
    r"""Evaluate the standard deviation of the model's scores as a sign of wrong calls.

    An instance is called positive where its scaled score $s_k \ge t$, with t chosen as in
    `localisation`. With $w_k$ whether the call is wrong,

    $$ \mathrm{AUROC}\bigl(\sigma_k, w_k\bigr) \quad \text{against} \quad
       \mathrm{AUROC}\bigl(-|s_k - t|, w_k\bigr). $$

    $\sigma_k$ is in the scale of $s_k$. Slides in which all scores are equal have no such scale
    and are left out.

    Args:
        test: Predictions with instance scores and labels.
        validation: The same for the validation slides of the fold.
        threshold: On which slides to choose the threshold.
        criterion: Metric that the threshold maximises.
        positive_classes: Classes whose slides hold positive instances (default: all but 0).
        fold: Name of the fold.

    Raises:
        PredictionError: A score is not a finite number, or a class is not in the table.
    """
    rows = []
    scopes: tuple[UncertaintyScope, ...] = ("per_slide", "pooled")
    for score in available_scores(test):
        if score in ("uniform", "random"):
            continue
        slides, others = _both_parts(test, validation, score, positive_classes)
        for scope in scopes:
            chosen = choose_threshold(slides, others, scope, threshold, criterion)
            reason = chosen.reason and f"No threshold: {chosen.reason}."
            rows.append(_uncertainty_row(slides, score, scope, chosen.value, fold, reason))
    return tuple(rows)


def _uncertainty_row(
    slides: Sequence[ScoredSlide],
    score: ScoreName,
    scope: UncertaintyScope,
    threshold: float,
    fold: str,
    note: str,
) -> InstanceUncertaintyRow:
    with_scale = [s for s in slides if not np.isnan(s.scaled_std).any()]
    if not note and not any(s.scaled_std.any() for s in with_scale):
        note = "The model gives no spread."
    groups = []
    if not math.isnan(threshold) and scope == "per_slide":
        groups = [_calls([s], threshold) for s in with_scale if s.is_positive and s.has_both_kinds]
        groups = [group for group in groups if group[2].any() and not group[2].all()]
    elif not math.isnan(threshold) and with_scale:
        groups = [_calls(with_scale, threshold)]
    # Nothing is near a threshold at infinity.
    with_margin = groups if math.isfinite(threshold) else []
    return InstanceUncertaintyRow(
        fold=fold,
        score=score,
        scope=scope,
        std_auroc=_mean([auroc(std, wrong) for std, _, wrong in groups if not note]),
        margin_auroc=_mean([auroc(near, wrong) for _, near, wrong in with_margin]),
        threshold=threshold,
        num_wrong=sum(int(wrong.sum()) for _, _, wrong in groups),
        num_instances=sum(len(wrong) for _, _, wrong in groups),
        num_slides=len(groups) if scope == "per_slide" else len(with_scale),
        note=note,
    )


def _calls(
    slides: Sequence[ScoredSlide], threshold: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Return the standard deviation, the nearness to the threshold and the wrong calls."""
    scores = np.concatenate([s.scaled for s in slides])
    positive = np.concatenate([s.positive for s in slides])
    std = np.concatenate([s.scaled_std for s in slides])
    return std, -np.abs(scores - threshold), (scores >= threshold) != positive
