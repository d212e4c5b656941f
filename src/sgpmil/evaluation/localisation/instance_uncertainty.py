"""Whether the spread of an instance's score points at the instances that are called wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sgpmil.evaluation.localisation.scored_slides import (
    ScoredSlide,
    ScoreName,
    available_scores,
    scored_slides,
)
from sgpmil.evaluation.localisation.threshold import Criterion, ThresholdChoice, choose_threshold
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc
from sgpmil.shapes import Bool, Float

__all__ = ["InstanceUncertaintyRow", "instance_uncertainty"]

UncertaintyScope = Literal["per_slide", "pooled"]


@dataclass(frozen=True, slots=True)
class InstanceUncertaintyRow:
    """How well uncertainty ranks wrong calls above right ones; NaN where not defined.

    Args:
        fold: Name of the fold.
        score: Which score's calls.
        scope: Mean over slides, or the instances of all slides together.
        std_auroc: Area under the ROC curve of the score's standard deviation for wrong calls.
        margin_auroc: The same of the nearness of the score to the threshold, which needs no
            posterior: the standard deviation is of use where it is above this.
        threshold: Instances with at least this scaled score are called positive.
        num_wrong: Number of wrong calls.
        num_instances: Number of instances whose label is known.
        num_slides: Number of slides; per slide, of those with wrong and right calls.
        note: Why numbers are missing.
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
        criterion: What the threshold shall be best for.
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
        slides = scored_slides(test, score, positive_classes=positive_classes)
        others = (
            None
            if validation is None
            else scored_slides(validation, score, positive_classes=positive_classes)
        )
        for scope in scopes:
            chosen = choose_threshold(slides, others, scope, threshold, criterion)
            reason = chosen.reason and f"No threshold: {chosen.reason}."
            rows.append(_row(slides, score, scope, chosen.value, fold, reason))
    return tuple(rows)


def _row(
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
    """Give the spread, the nearness to the threshold, and whether the call is wrong."""
    scores = np.concatenate([s.scaled for s in slides])
    positive = np.concatenate([s.positive for s in slides])
    std = np.concatenate([s.scaled_std for s in slides])
    return std, -np.abs(scores - threshold), (scores >= threshold) != positive


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
