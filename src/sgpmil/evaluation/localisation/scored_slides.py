"""Scores and labels of the instances of slides, from predictions and annotations."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import CLASS_SCORES, InstanceScores, Prediction, ScoreKind
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.shapes import Bool, Float, Int
from sgpmil.slides.annotations.folder import AnnotationFolder
from sgpmil.slides.annotations.mask import AnnotationMask
from sgpmil.slides.annotations.patch_labels import patch_labels
from sgpmil.slides.annotations.regions import Annotations

Baseline = Literal["uniform", "random"]
"""Scores that do not depend on the slide: 1/N each, and random numbers."""
ScoreName = ScoreKind | Baseline

Scope = Literal["per_slide", "pooled", "pooled_raw"]
"""`per_slide`: each positive slide by itself, then the mean over slides. `pooled`: the instances
of all slides together, scores scaled to [0, 1] within each slide. `pooled_raw`: the same with the
scores as the model gives them."""


@dataclass(frozen=True, slots=True, eq=False)
class InstanceGroup:
    """Instances that are evaluated together.

    Args:
        scores: Score of each instance.
        positive: Whether each is positive.
    """

    scores: Float[np.ndarray, " n"]
    positive: Bool[np.ndarray, " n"]


@dataclass(frozen=True, slots=True, eq=False)
class ScoredSlide:
    """The instances of one slide whose label is known.

    Args:
        slide_id: Name of the slide.
        is_positive: Whether the slide's own label is positive.
        raw: Score of each instance.
        scaled: The same, scaled to [0, 1] over all instances of the slide.
        scaled_std: Posterior standard deviation in the same scale; NaN where all scores of the
            slide are equal, for there is no scale then, and for `uniform` and `random`.
        positive: Whether each instance is positive.
    """

    slide_id: str
    is_positive: bool
    raw: Float[np.ndarray, " n"]
    scaled: Float[np.ndarray, " n"]
    scaled_std: Float[np.ndarray, " n"]
    positive: Bool[np.ndarray, " n"]

    @property
    def has_both_kinds(self) -> bool:
        """Return whether positive and negative instances both occur."""
        return bool(self.positive.any() and not self.positive.all())


def min_max(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    r"""Scale values to [0, 1]: $(v - \min v) / (\max v - \min v)$; 1/2 where all are equal.

    Example:
        >>> min_max(np.array([2.0, 4.0, 3.0]))
        array([0. , 1. , 0.5])
    """
    low, high = float(values.min()), float(values.max())
    if high == low:
        return np.full(len(values), 0.5)
    if math.isinf(high - low):  # the difference of two very large numbers
        values, low, high = values / 2, low / 2, high / 2
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def positive_classes_of(
    table: PredictionTable, positive_classes: Sequence[int] | None
) -> tuple[int, ...]:
    """Return the classes whose slides hold positive instances; by default all but the first.

    Raises:
        PredictionError: One is not among the classes of the table.
    """
    if positive_classes is None:
        return tuple(range(1, table.target.num_outputs))
    wrong = [c for c in positive_classes if not 0 <= c < table.target.num_outputs]
    if wrong or not positive_classes:
        raise PredictionError(
            f"Expected positive classes between 0 and {table.target.num_outputs - 1}, but got "
            f"{list(positive_classes)}. Name classes of the predictions."
        )
    return tuple(positive_classes)


def available_scores(table: PredictionTable) -> tuple[ScoreName, ...]:
    """List the scores to evaluate: the model's own and the two baselines."""
    found = {kind for p in table.predictions if p.instances for kind in p.instances.kinds}
    own = (kind for kind in CLASS_SCORES if kind in found or kind == "attention")
    return (*own, *get_args(Baseline))


def scored_slides(
    table: PredictionTable,
    score: ScoreName,
    *,
    positive_classes: Sequence[int] | None = None,
    seed: int = 0,
) -> tuple[ScoredSlide, ...]:
    """Collect the instances whose label is known.

    Scores of a class are, in a positive slide, those for its own class; in a negative slide, those
    for the positive class that it is given the largest probability of. `random` depends on the seed
    and the name of the slide alone.

    Args:
        table: Predictions with instance scores and labels; slides without a label, without
            scores, or without any known instance label are left out.
        score: Name of the score.
        positive_classes: Classes whose slides hold positive instances (default: all but 0).
        seed: Seed of `random`.

    Raises:
        PredictionError: A score is not a finite number, or a class is not in the table.
    """
    classes = positive_classes_of(table, positive_classes)
    slides = []
    for prediction in table.predictions:
        labels = None if prediction.instances is None else prediction.instances.instance_labels
        found = instance_values(prediction, score, classes, seed)
        if prediction.label is None or labels is None or found is None or (labels < 0).all():
            continue
        values, spread = found
        known = labels >= 0
        width = float(values.max()) - float(values.min())
        with np.errstate(over="ignore"):
            scaled_std = spread / width if width > 0 else np.full(len(values), np.nan)
        slides.append(
            ScoredSlide(
                slide_id=prediction.slide_id,
                is_positive=prediction.label in classes,
                raw=values[known],
                scaled=min_max(values)[known],
                scaled_std=scaled_std[known],
                positive=labels[known] > 0,
            )
        )
    return tuple(slides)


def groups_of(slides: Sequence[ScoredSlide], scope: Scope) -> tuple[InstanceGroup, ...]:
    """Gather the instances that are evaluated together.

    Args:
        slides: Instances of each slide.
        scope: `per_slide` gives a group for each positive slide with positive and negative
            instances; the others give one group with the instances of every slide, those of
            negative slides included.
    """
    if scope == "per_slide":
        return tuple(
            InstanceGroup(s.scaled, s.positive)
            for s in slides
            if s.is_positive and s.has_both_kinds
        )
    if not slides:
        return ()
    values = [s.raw if scope == "pooled_raw" else s.scaled for s in slides]
    positive = np.concatenate([s.positive for s in slides])
    return (InstanceGroup(np.concatenate(values), positive),)


def instance_values(
    prediction: Prediction, score: ScoreName, positive_classes: Sequence[int], seed: int = 0
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]] | None:
    """Return the score of every instance of a slide, and its standard deviation.

    Args:
        prediction: The slide.
        score: Name of the score; see `scored_slides` for the class that it is for.
        positive_classes: Classes whose slides hold positive instances.
        seed: Seed of `random`.

    Returns:
        Scores and standard deviations (NaN for `uniform` and `random`); None where the slide has
        no such score.

    Raises:
        PredictionError: A score is not a finite number.
    """
    scores = prediction.instances
    if scores is None or not (score in scores.kinds or score in get_args(Baseline)):
        return None
    num = scores.num_instances
    if score == "uniform":
        return np.full(num, 1 / num), np.full(num, np.nan)
    if score == "random":
        rng = np.random.default_rng([seed, zlib.crc32(prediction.slide_id.encode())])
        return rng.random(num), np.full(num, np.nan)
    class_index = _class_of_interest(prediction, positive_classes)
    values = np.asarray(scores.score(score, class_index), dtype=np.float64)
    if not np.isfinite(values).all():
        raise PredictionError(
            f"Expected a finite {score} for every instance of '{prediction.slide_id}', but got "
            f"{values[~np.isfinite(values)][0]}. Predict this slide again."
        )
    return values, np.asarray(scores.score_std(score, class_index), dtype=np.float64)


def _class_of_interest(prediction: Prediction, classes: Sequence[int]) -> int:
    if prediction.label in classes or not classes:
        return int(prediction.label or 0)
    return max(classes, key=lambda c: float(prediction.probs[c]))


@dataclass(frozen=True, slots=True, eq=False)
class AnnotatedTable:
    """Predictions whose instances are labelled by annotations.

    Args:
        table: The predictions, in their order.
        annotated: Positive slides whose instances were labelled.
        without_annotations: Positive slides without annotations: their instances are unknown.
        without_positive_region: Positive slides whose annotations hold no positive region: the
            two contradict each other, so their instances are unknown.
        contradicted: Negative slides whose annotations hold a positive region; their instances
            stay negative, as the slide's label says.
    """

    table: PredictionTable
    annotated: tuple[str, ...]
    without_annotations: tuple[str, ...]
    without_positive_region: tuple[str, ...]
    contradicted: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Labelled:
    coords: Int[np.ndarray, "N 2"]
    patch_size: int
    labels: Int[np.ndarray, " N"] | None


@dataclass(eq=False)
class InstanceLabeller:
    """Labels the instances of tables, reading the annotations of each slide once.

    Args:
        annotations: Folder of the annotations.
        min_coverage: Least share of a patch that is positive; 0 means any overlap.
        positive_classes: Classes whose slides hold positive instances (default: all but 0).
    """

    annotations: AnnotationFolder
    min_coverage: float = 0.5
    positive_classes: Sequence[int] | None = None
    _known: dict[tuple[str, str], _Labelled] = field(default_factory=dict, init=False, repr=False)

    def label(self, table: PredictionTable) -> AnnotatedTable:
        """Label the instances of a table.

        Of a negative slide all are negative; of a positive one those that the annotations cover
        are positive. Labels that the instances had are replaced. Slides without a label or
        without instance scores stay as they are.

        Args:
            table: Predictions with instance scores, coordinates and patch sizes.

        Raises:
            PredictionError: A slide with annotations has no coordinates or no patch size.
            AnnotationError: Annotations cannot be read, or do not fit the slide.
        """
        classes = positive_classes_of(table, self.positive_classes)
        predictions: list[Prediction] = []
        annotated: list[str] = []
        missing: list[str] = []
        no_region: list[str] = []
        contradicted: list[str] = []
        for prediction in table.predictions:
            scores, slide_id = prediction.instances, prediction.slide_id
            if prediction.label is None or scores is None:
                predictions.append(prediction)
                continue
            labels = np.zeros(scores.num_instances, dtype=np.int64)
            slide_class = table.target.decode(prediction.label)
            if prediction.label not in classes:
                if self._has_positive_region(slide_id, slide_class):
                    contradicted.append(slide_id)
            elif slide_id not in self.annotations:
                missing.append(slide_id)
                labels -= 1
            else:
                found = self._labels(slide_id, slide_class, scores)
                (no_region if found is None else annotated).append(slide_id)
                labels = labels - 1 if found is None else found
            labelled = replace(scores, instance_labels=labels)
            predictions.append(replace(prediction, instances=labelled))
        return AnnotatedTable(
            table=replace(table, predictions=tuple(predictions)),
            annotated=tuple(annotated),
            without_annotations=tuple(missing),
            without_positive_region=tuple(no_region),
            contradicted=tuple(contradicted),
        )

    def _has_positive_region(self, slide_id: str, slide_class: str) -> bool:
        # Where the rule depends on the class, the regions of a negative slide's own class are
        # what its label says they are.
        if slide_id not in self.annotations or self.annotations.depends_on_class:
            return False
        return self.annotations.read(slide_id, slide_class).is_positive

    def _labels(
        self, slide_id: str, slide_class: str, scores: InstanceScores
    ) -> Int[np.ndarray, " N"] | None:
        """Label the instances of a slide; None where nothing is positive."""
        if scores.coords is None or scores.patch_size is None:
            what = "coordinates" if scores.coords is None else "a patch size"
            raise PredictionError(
                f"Expected instances with {what} to compare '{slide_id}' with its annotations, "
                "but got none. Extract the bags with coordinates and patch size, and predict "
                "again."
            )
        key = (slide_id, slide_class)
        known = self._known.get(key)
        if (
            known is not None
            and known.patch_size == scores.patch_size
            and np.array_equal(known.coords, scores.coords)
        ):
            return known.labels
        drawn = self.annotations.read(slide_id, slide_class)
        labels = None
        if drawn.is_positive:
            labels = patch_labels(scores.coords, scores.patch_size, drawn, self.min_coverage)
        self._known[key] = _Labelled(scores.coords, scores.patch_size, labels)
        return labels


def slide_annotations(
    table: PredictionTable, prediction: Prediction, annotations: AnnotationFolder
) -> Annotations | AnnotationMask | None:
    """Read the annotations of a slide; None where there are none or it has no label.

    Raises:
        AnnotationError: The annotations cannot be read.
    """
    if prediction.label is None or prediction.slide_id not in annotations:
        return None
    return annotations.read(prediction.slide_id, table.target.decode(prediction.label))
