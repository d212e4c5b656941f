"""Whether the scores of patches find the lesions that were drawn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.localisation.annotated import slide_annotations
from sgpmil.evaluation.localisation.detections import Detections, find_detections
from sgpmil.evaluation.localisation.froc import IGNORED, Froc, SlideHits, froc
from sgpmil.evaluation.localisation.scored_slides import (
    ScoreName,
    available_scores,
    instance_values,
    min_max,
    positive_classes_of,
)
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.slides.annotations.folder import AnnotationFolder
from sgpmil.slides.annotations.lesions import Lesions, find_lesions
from sgpmil.slides.annotations.regions import Annotations

__all__ = ["LesionRow", "LesionSettings", "lesion_detection"]


@dataclass(frozen=True, slots=True)
class LesionSettings:
    """What a lesion and a detection are.

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
        """Give the rule of CAMELYON16: merged below 75 µm, isolated cells below 275 µm.

        Args:
            mpp: Side of a level-0 pixel in µm.
        """
        return LesionSettings(merge_distance=75 / mpp, min_diameter=275 / mpp)


@dataclass(frozen=True, slots=True, eq=False)
class LesionRow:
    """The free-response ROC of one score.

    Args:
        fold: Name of the fold.
        score: Which score.
        froc: The curve and its summary; None where there is none.
        note: Why there is none.
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
    r"""Evaluate every score as a detector of lesions, beside attention without knowledge.

    The score of a detection is that of its patch, scaled to [0, 1] within the slide, times the
    probability that the slide is positive: the instance score says where, the slide's probability
    says whether. The slides are the negative ones and the positive ones with annotations.

    Args:
        table: Predictions with instance scores, coordinates and patch sizes.
        annotations: Folder of the annotations.
        settings: What a lesion and a detection are.
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
    """Find the lesions of each slide that counts; or say why there is no such curve."""
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
