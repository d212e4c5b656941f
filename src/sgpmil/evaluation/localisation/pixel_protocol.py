r"""Published protocol of localisation, over the pixels of a small canvas.

Use it to compare with published numbers, not to judge a model. Patches are painted on a canvas 128
times smaller than the slide. Pixels without a patch keep the score 0 and count as negative.
Background is never positive and always scores lowest, so even a random score does well: with
tissue on a share a of the canvas and few positive pixels, uniformly random scores have the AUC

$$ P(s_{\mathrm{positive}} > s_{\mathrm{negative}}) \approx (1 - a) + a / 2, $$

0.95 for a = 0.1, where the AUC among the tissue's patches is 0.5. The rows `uniform` and `random`
show it, and `tissue_auc` is the AUC without the background.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import adaptive_calibration_error
from sgpmil.evaluation.localisation.scored_slides import (
    ScoreName,
    available_scores,
    instance_values,
    min_max,
    positive_classes_of,
    slide_annotations,
)
from sgpmil.evaluation.localisation.threshold import CallMetrics, call_metrics
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc
from sgpmil.notebook import counted
from sgpmil.shapes import Bool, Float, Int
from sgpmil.slides.annotations.folder import AnnotationFolder
from sgpmil.slides.annotations.mask import AnnotationMask, rasterise
from sgpmil.slides.annotations.regions import Annotations

PIXEL_THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Thresholds that the published protocol tries; pixels strictly above are called positive."""

_WHITE, _POSITIONS = 255, range(len(PIXEL_THRESHOLDS))


@dataclass(frozen=True, slots=True)
class PixelRow:
    """Means over positive slides of metrics over all pixels of the canvas.

    Args:
        fold: Name of the fold.
        score: Name of the score.
        auc: Area under the ROC curve.
        balanced_accuracy: Mean recall at the threshold.
        f1: F1 at the threshold.
        ace: Adaptive calibration error.
        threshold: The one of `PIXEL_THRESHOLDS` with the best mean balanced accuracy on these
            very slides, as published.
        tissue_auc: Area under the ROC curve among the patches of the same slides.
        tissue_share: Share of the canvas that patches cover.
        num_slides: Number of positive slides with annotations.
        note: Assumptions.
    """

    fold: str
    score: ScoreName
    auc: float
    balanced_accuracy: float
    f1: float
    ace: float
    threshold: float
    tissue_auc: float
    tissue_share: float
    num_slides: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class _SlidePixels:
    auc: float
    ace: float
    calls: tuple[CallMetrics, ...]
    tissue_auc: float
    tissue_share: float


def pixel_protocol(
    table: PredictionTable,
    annotations: AnnotationFolder,
    *,
    downsample: int = 128,
    quantise: bool = True,
    slide_sizes: Mapping[str, tuple[int, int]] | None = None,
    positive_classes: Sequence[int] | None = None,
    seed: int = 0,
    fold: str = "",
) -> tuple[PixelRow, ...]:
    """Evaluate every score as published, beside uniform and random attention.

    Args:
        table: Predictions whose instances are labelled by the same annotations.
        annotations: Folder of the annotations.
        downsample: Side of a pixel of the canvas in level-0 pixels.
        quantise: Round scores down to 255 steps, as in a picture of 8 bits. (The published one
            is a JPEG, which also blurs; that is left out.)
        slide_sizes: Width and height of slides in level-0 pixels. The canvas of others ends with
            the last patch or region (or with the mask): it has less background than the slide.
        positive_classes: Classes whose slides are evaluated (default: all but 0).
        seed: Seed of the `random` attention.
        fold: Name of the fold.

    Returns:
        A row a score.

    Raises:
        PredictionError: A slide has no coordinates or no patch size.
        AnnotationError: Annotations cannot be read.
    """
    classes = positive_classes_of(table, positive_classes)
    names = available_scores(table)
    measured: dict[ScoreName, list[_SlidePixels]] = {name: [] for name in names}
    num_guessed = 0
    for prediction in table.predictions:
        scores = prediction.instances
        if prediction.label not in classes or scores is None:
            continue
        drawn = slide_annotations(table, prediction, annotations)
        if drawn is None or not drawn.is_positive:
            continue
        size = (slide_sizes or {}).get(prediction.slide_id)
        num_guessed += size is None and not isinstance(drawn, AnnotationMask)
        shape = _canvas_shape(prediction, drawn, size, downsample)
        truth = rasterise(drawn, downsample, shape).ravel()
        for name in names:
            found = instance_values(prediction, name, classes, seed)
            if found is not None:
                values = min_max(found[0])
                canvas, tissue = paint(scores, values, downsample, shape)
                measured[name].append(
                    _measure(canvas.ravel(), tissue, truth, _tissue_auc(scores, values), quantise)
                )
    slides = counted(num_guessed, "slide")
    note = f"The size of {slides} is not known: the canvas ends with the last patch there."
    return tuple(_row(fold, name, measured[name], note if num_guessed else "") for name in names)


def paint(
    scores: InstanceScores,
    values: Float[np.ndarray, " N"],
    downsample: int,
    shape: tuple[int, int],
) -> tuple[Float[np.ndarray, "h w"], Bool[np.ndarray, "h w"]]:
    """Paint the values of patches on a canvas; where patches overlap, the last is on top.

    Args:
        scores: Coordinates and patch size of the instances.
        values: Value of each patch.
        downsample: Side of a pixel in level-0 pixels; corner and side of a patch are rounded
            down to it, but a patch has at least one pixel.
        shape: Rows and columns of the canvas.

    Returns:
        The canvas, 0 where there is no patch; and where there is one.

    Raises:
        PredictionError: There are no coordinates or no patch size.
    """
    coords, side = _geometry(scores)
    steps = np.arange(max(1, side // downsample))
    column = (coords[:, 0, None, None] // downsample) + steps[None, None, :]
    row = (coords[:, 1, None, None] // downsample) + steps[None, :, None]
    row, column, value = np.broadcast_arrays(row, column, values[:, None, None])
    inside = (row >= 0) & (row < shape[0]) & (column >= 0) & (column < shape[1])
    canvas, tissue = np.zeros(shape), np.zeros(shape, dtype=bool)
    canvas[row[inside], column[inside]] = value[inside]
    tissue[row[inside], column[inside]] = True
    return canvas, tissue


def _measure(
    canvas: Float[np.ndarray, " P"],
    tissue: Bool[np.ndarray, "h w"],
    truth: Bool[np.ndarray, " P"],
    tissue_auc: float,
    quantise: bool,
) -> _SlidePixels:
    if quantise:
        canvas = np.floor(canvas * _WHITE) / _WHITE
    columns = np.stack([1 - canvas, canvas], axis=1)
    return _SlidePixels(
        auc=auroc(canvas, truth),
        ace=adaptive_calibration_error(columns, truth.astype(np.int64)),
        calls=tuple(call_metrics(canvas > t, truth) for t in PIXEL_THRESHOLDS),
        tissue_auc=tissue_auc,
        tissue_share=float(tissue.mean()),
    )


def _row(fold: str, name: ScoreName, slides: Sequence[_SlidePixels], note: str) -> PixelRow:
    def mean(values: Sequence[float]) -> float:
        defined = [value for value in values if not math.isnan(value)]
        return float(np.mean(defined)) if defined else math.nan

    balanced = [mean([s.calls[k].balanced_accuracy for s in slides]) for k in _POSITIONS]
    best = int(np.argmax(balanced)) if slides else None
    return PixelRow(
        fold=fold,
        score=name,
        auc=mean([s.auc for s in slides]),
        balanced_accuracy=math.nan if best is None else balanced[best],
        f1=math.nan if best is None else mean([s.calls[best].f1 for s in slides]),
        ace=mean([s.ace for s in slides]),
        threshold=math.nan if best is None else PIXEL_THRESHOLDS[best],
        tissue_auc=mean([s.tissue_auc for s in slides]),
        tissue_share=mean([s.tissue_share for s in slides]),
        num_slides=len(slides),
        note=note if slides else "No positive slide has annotations.",
    )


def _tissue_auc(scores: InstanceScores, values: Float[np.ndarray, " N"]) -> float:
    if scores.instance_labels is None:
        return math.nan
    known = scores.instance_labels >= 0
    return auroc(values[known], scores.instance_labels[known] > 0)


def _canvas_shape(
    prediction: Prediction,
    drawn: Annotations | AnnotationMask,
    slide_size: tuple[int, int] | None,
    downsample: int,
) -> tuple[int, int]:
    if prediction.instances is None:
        raise PredictionError(
            f"Expected instance scores of '{prediction.slide_id}', but got none. Predict again."
        )
    width: float
    height: float
    if slide_size is not None:
        width, height = slide_size
    elif isinstance(drawn, AnnotationMask):
        width, height = drawn.slide_size
    else:
        coords, side = _geometry(prediction.instances)
        _, _, right, bottom = drawn.positive_area().bounds
        width = max(right, float(coords[:, 0].max() + side))
        height = max(bottom, float(coords[:, 1].max() + side))
        return math.ceil(height / downsample), math.ceil(width / downsample)
    return max(1, int(height // downsample)), max(1, int(width // downsample))


def _geometry(scores: InstanceScores) -> tuple[Int[np.ndarray, "N 2"], int]:
    if scores.coords is None or scores.patch_size is None:
        raise PredictionError(
            "Expected instances with coordinates and a patch size to paint them, but got none. "
            "Extract the bags with them, and predict again."
        )
    return scores.coords, scores.patch_size
