r"""Free-response ROC: lesions found against false alarms a slide.

As CAMELYON16 defines it. A lesion is found at a threshold where any detection in it has at least
that score; several detections in one lesion count once; detections outside every lesion are
false positives; those in lesions too small to count (isolated tumour cells) are neither. False
positives are averaged over all slides. Sensitivities between two thresholds are interpolated
linearly, as the challenge does. It differs in one point: the challenge's script never uses the
lowest score as a threshold, we use every score.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.localisation.scored_slides import ScoredSlide
from sgpmil.evaluation.ranking import auroc
from sgpmil.shapes import Float, Int

__all__ = [
    "FALSE_POSITIVE_RATES",
    "IGNORED",
    "Froc",
    "InstanceFroc",
    "SlideHits",
    "froc",
    "mnist_froc",
]

FALSE_POSITIVE_RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False positives a slide at which CAMELYON16 averages the sensitivity."""

IGNORED = -2
"""The lesion of a detection in a lesion that does not count."""


@dataclass(frozen=True, slots=True, eq=False)
class SlideHits:
    """The detections of one slide, and what they hit.

    Args:
        scores: Score of each detection.
        lesion: Index of the lesion that each hit; -1 outside every lesion, `IGNORED` in one that
            does not count.
        num_lesions: Number of lesions that count.
    """

    scores: Float[np.ndarray, " K"]
    lesion: Int[np.ndarray, " K"]
    num_lesions: int


@dataclass(frozen=True, slots=True, eq=False)
class Froc:
    """A free-response ROC curve.

    Args:
        false_positives: False positives a slide at each threshold, from the highest down,
            beginning with 0.
        sensitivity: Share of the lesions found at each; NaN without a lesion.
        sensitivities: Sensitivity at each of `FALSE_POSITIVE_RATES`.
        mean: Their mean, the score of CAMELYON16.
        num_lesions: Number of lesions that count.
        num_slides: Number of slides.
    """

    false_positives: Float[np.ndarray, " K"]
    sensitivity: Float[np.ndarray, " K"]
    sensitivities: tuple[float, ...]
    mean: float
    num_lesions: int
    num_slides: int


@dataclass(frozen=True, slots=True)
class InstanceFroc:
    """The FROC of instances that is published for bags of digits.

    Args:
        area: Mean area over positive bags; NaN without any.
        ceiling: Its largest possible value, the mean share of negative instances.
        num_bags: Number of positive bags with positive and negative instances.
    """

    area: float
    ceiling: float
    num_bags: int


def froc(slides: Sequence[SlideHits]) -> Froc:
    r"""Trace the curve over all slides.

    $$ \mathrm{sensitivity}(t) = \frac{1}{L} \sum_l \Bigl[\max_{k \in l} s_k \ge t\Bigr], \qquad
       \mathrm{FP}(t) = \frac{1}{n} \sum_{k \notin \cup l} [s_k \ge t] $$

    At a given rate of false positives the sensitivity is the highest that is reached with it,
    or interpolated between the two next; beyond the last point it stays.

    Args:
        slides: Detections of each slide, those without lesions included.

    Raises:
        PredictionError: There are no slides, a score is NaN, or a detection hits a lesion that
            the slide does not have.

    Example:
        >>> hits = SlideHits(np.array([0.9, 0.8, 0.4]), np.array([0, -1, 1]), 2)
        >>> froc([hits]).sensitivities
        (0.5, 0.5, 1.0, 1.0, 1.0, 1.0)
    """
    _check(slides)
    num_lesions = sum(slide.num_lesions for slide in slides)
    scores = np.concatenate([slide.scores for slide in slides])
    lesion = np.concatenate([slide.lesion for slide in slides])
    first = np.cumsum([0, *(slide.num_lesions for slide in slides)])[:-1]
    number = lesion + np.repeat(first, [len(slide.scores) for slide in slides])
    best = np.full(num_lesions, -np.inf)
    np.maximum.at(best, number[lesion >= 0], scores[lesion >= 0])
    found = np.sort(best[best > -np.inf])
    alarms = np.sort(scores[lesion == -1])
    thresholds = np.unique(np.concatenate([found, alarms]))[::-1]
    false_positives = (len(alarms) - np.searchsorted(alarms, thresholds)) / len(slides)
    hits = len(found) - np.searchsorted(found, thresholds)
    false_positives = np.concatenate([[0.0], false_positives])
    counts = np.concatenate([[0.0], hits])
    sensitivity = counts / num_lesions if num_lesions else np.full(len(counts), np.nan)
    # Of the points with one rate np.interp takes the last from the left, and that is the highest.
    at_rates = np.interp(FALSE_POSITIVE_RATES, false_positives, sensitivity)
    return Froc(
        false_positives=false_positives,
        sensitivity=sensitivity,
        sensitivities=tuple(at_rates.tolist()),
        mean=float(at_rates.mean()),
        num_lesions=num_lesions,
        num_slides=len(slides),
    )


def mnist_froc(slides: Sequence[ScoredSlide]) -> InstanceFroc:
    r"""Give the published FROC of instances: an area over false positives an instance.

    Per positive bag, the area under the true positive rate over
    $\mathrm{FPR} \cdot n_0 / n$, with $n_0$ negatives among n instances. It is
    $\mathrm{AUC} \cdot n_0 / n$, so its ceiling is $n_0 / n$ and not 1: compare it with the
    ceiling, or use the AUC. (The published code takes the curve of calls at one threshold; this
    one has every threshold.)

    Args:
        slides: Instances of each bag; negative bags, and those without both kinds of instance,
            are left out.
    """
    bags = [s for s in slides if s.is_positive and s.has_both_kinds]
    shares = [float((~bag.positive).mean()) for bag in bags]
    areas = [auroc(bag.raw, bag.positive) * share for bag, share in zip(bags, shares, strict=True)]
    return InstanceFroc(
        area=float(np.mean(areas)) if bags else math.nan,
        ceiling=float(np.mean(shares)) if bags else math.nan,
        num_bags=len(bags),
    )


def _check(slides: Sequence[SlideHits]) -> None:
    if not slides:
        raise PredictionError(
            "Expected the detections of at least one slide, but got none. Pass a slide."
        )
    for slide in slides:
        if np.isnan(slide.scores).any():
            raise PredictionError(
                "Expected a number as the score of every detection, but got NaN. "
                "Predict these slides again."
            )
        if slide.lesion.shape != slide.scores.shape or (slide.lesion >= slide.num_lesions).any():
            raise PredictionError(
                f"Expected a lesion below {slide.num_lesions} for each of {len(slide.scores)} "
                f"detections, but got {slide.lesion.tolist()[:5]}. Number the lesions from 0."
            )
