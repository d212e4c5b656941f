r"""Detection of lesions: non-maximum suppression and the free-response ROC curve (FROC).

The FROC is CAMELYON16's. A lesion is found at a threshold where any detection in it has at least
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
from sgpmil.evaluation.localisation.scored_slides import (
    ScoredSlide,
    ScoreName,
    available_scores,
    instance_values,
    min_max,
    positive_classes_of,
    slide_annotations,
)
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc
from sgpmil.shapes import Float, Int
from sgpmil.slides.annotations.folder import AnnotationFolder
from sgpmil.slides.annotations.lesions import Lesions, find_lesions
from sgpmil.slides.annotations.regions import Annotations


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """Detections of one slide, the highest score first.

    Args:
        scores: Score of each.
        points: Place (x, y) of each in level-0 pixels.
    """

    scores: Float[np.ndarray, " K"]
    points: Float[np.ndarray, "K 2"]


def find_detections(
    scores: Float[np.ndarray, " N"],
    coords: Int[np.ndarray, "N 2"],
    patch_size: int,
    radius: float,
) -> Detections:
    """Keep the local maxima of a score over the patches.

    Non-maximum suppression: the patch with the highest score is kept and all within the radius
    of it are dropped, until none is left. Of equal scores the first patch is kept.

    Args:
        scores: Score of each patch.
        coords: Top-left corner (x, y) of each patch in level-0 pixels.
        patch_size: Side of a patch in level-0 pixels; a detection is at the centre.
        radius: Distance of centres in level-0 pixels up to which a patch is suppressed; 0 keeps
            every patch.

    Raises:
        PredictionError: The radius is negative.

    Example:
        >>> row = np.array([[0, 0], [10, 0], [20, 0]])
        >>> find_detections(np.array([0.2, 0.9, 0.8]), row, 10, 10.0).scores
        array([0.9])
    """
    if radius < 0:
        raise PredictionError(
            f"Expected a radius of at least 0 level-0 pixels, but got {radius}. "
            "Use a few patch sizes."
        )
    from scipy.spatial import KDTree

    centres = coords + patch_size / 2
    order = np.argsort(-scores, kind="stable")
    if radius > 0:
        tree = KDTree(centres)
        alive = np.ones(len(scores), dtype=bool)
        kept = []
        for patch in order:
            if alive[patch]:
                kept.append(patch)
                alive[tree.query_ball_point(centres[patch], radius)] = False
        order = np.array(kept, dtype=np.int64)
    return Detections(np.asarray(scores[order], dtype=np.float64), centres[order])


FALSE_POSITIVE_RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False positives a slide at which CAMELYON16 averages the sensitivity."""

IGNORED = -2
"""The lesion of a detection in a lesion that does not count."""


@dataclass(frozen=True, slots=True, eq=False)
class SlideHits:
    """Detections of one slide, and the lesions that they hit.

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
    r"""Compute the free-response ROC curve over all slides.

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
    r"""Compute the published FROC of instances: an area over false positives an instance.

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


@dataclass(frozen=True, slots=True)
class LesionSettings:
    """Definition of a lesion and of a detection.

    Args:
        radius: Radius of the non-maximum suppression in patch sizes.
        merge_distance: Regions nearer than this, in level-0 pixels, are one lesion.
        min_diameter: Lesions smaller than this, in level-0 pixels, do not count.
    """

    radius: float = 3.0
    merge_distance: float = 0.0
    min_diameter: float = 0.0

    @staticmethod
    def camelyon16(mpp: float = 0.243) -> "LesionSettings":
        """Return the rule of CAMELYON16: merged below 75 µm, isolated cells below 275 µm."""
        return LesionSettings(merge_distance=75 / mpp, min_diameter=275 / mpp)


@dataclass(frozen=True, slots=True, eq=False)
class LesionRow:
    """The free-response ROC of one score.

    Args:
        fold: Name of the fold.
        score: Name of the score.
        froc: The curve and its summary; None where there is none.
        note: Reason that there is none.
    """

    fold: str
    score: ScoreName
    froc: Froc | None
    note: str = ""


def lesion_detection(
    table: PredictionTable,
    annotations: AnnotationFolder,
    settings: LesionSettings | None = None,
    *,
    positive_classes: Sequence[int] | None = None,
    seed: int = 0,
    fold: str = "",
) -> tuple[LesionRow, ...]:
    r"""Evaluate every score as a detector of lesions, beside uniform and random attention.

    The score of a detection is that of its patch, scaled to [0, 1] within the slide, times the
    probability that the slide is positive: the instance score says where, the slide's probability
    says whether. The slides are the negative ones and the positive ones with annotations.

    Args:
        table: Predictions with instance scores, coordinates and patch sizes.
        annotations: Folder of the annotations.
        settings: Definition of a lesion and of a detection.
        positive_classes: Classes whose slides hold lesions (default: all but 0).
        seed: Seed of the `random` attention.
        fold: Name of the fold.

    Returns:
        A row a score.

    Raises:
        PredictionError: A slide has no coordinates or no patch size.
        AnnotationError: Annotations cannot be read.
    """
    options = settings or LesionSettings()
    classes = positive_classes_of(table, positive_classes)
    lesions, reason = _lesions(table, annotations, classes, options)
    rows = []
    for score in available_scores(table):
        hits = [] if reason else _hits(table, score, lesions, classes, options, seed)
        note = reason or ("" if hits else "No slide has instance scores.")
        rows.append(LesionRow(fold, score, froc(hits) if hits else None, note))
    return tuple(rows)


def _lesions(
    table: PredictionTable,
    annotations: AnnotationFolder,
    classes: tuple[int, ...],
    options: LesionSettings,
) -> tuple[dict[str, Lesions], str]:
    """Find the lesions of each slide that counts, or the reason that there is no curve."""
    found = {}
    for prediction in table.predictions:
        if prediction.label is None:
            continue
        if prediction.label not in classes:
            found[prediction.slide_id] = Lesions((), np.zeros(0, dtype=bool))
            continue
        drawn = slide_annotations(table, prediction, annotations)
        if drawn is None or not drawn.is_positive:
            continue
        if isinstance(drawn, Annotations) and drawn.unannotated == "unknown":
            return {}, "Tissue outside the regions is unknown, so false alarms cannot be counted."
        found[prediction.slide_id] = find_lesions(
            drawn, merge_distance=options.merge_distance, min_diameter=options.min_diameter
        )
    return found, ""


def _hits(
    table: PredictionTable,
    score: ScoreName,
    lesions: dict[str, Lesions],
    classes: tuple[int, ...],
    options: LesionSettings,
    seed: int,
) -> list[SlideHits]:
    hits = []
    for prediction in table.predictions:
        found = instance_values(prediction, score, classes, seed)
        scores = prediction.instances
        if found is None or scores is None or prediction.slide_id not in lesions:
            continue
        if scores.coords is None or scores.patch_size is None:
            raise PredictionError(
                f"Expected coordinates and a patch size for '{prediction.slide_id}' to find its "
                "lesions, but got none. Extract the bags with them, and predict again."
            )
        detections = find_detections(
            min_max(found[0]) * _chance(prediction, classes),
            scores.coords,
            scores.patch_size,
            options.radius * scores.patch_size,
        )
        hits.append(_matched(detections, lesions[prediction.slide_id]))
    return hits


def _matched(detections: Detections, lesions: Lesions) -> SlideHits:
    hit = lesions.hits(detections.points)
    # Lesions that count are numbered anew, without those that do not.
    number = np.where(lesions.counted, lesions.counted.cumsum() - 1, IGNORED)
    lesion = hit.copy()
    lesion[hit >= 0] = number[hit[hit >= 0]]
    return SlideHits(detections.scores, lesion, lesions.num_counted)


def _chance(prediction: Prediction, classes: tuple[int, ...]) -> float:
    chance = math.fsum(float(prediction.probs[c]) for c in classes)
    return min(1.0, max(0.0, chance))
