"""Annotations of slides become the labels of their instances."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.evaluation.localisation.scored_slides import positive_classes_of
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.shapes import Int
from sgpmil.slides.annotations.folder import AnnotationFolder
from sgpmil.slides.annotations.mask import AnnotationMask
from sgpmil.slides.annotations.patch_labels import patch_labels
from sgpmil.slides.annotations.regions import Annotations

__all__ = ["AnnotatedTable", "InstanceLabeller", "slide_annotations"]


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
            are negative all the same, as the slide's label says.
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
            slide_class = table.class_names[prediction.label]
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
            table=PredictionTable(tuple(predictions), table.class_names),
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

    Args:
        table: Predictions that the slide is of.
        prediction: The slide.
        annotations: Folder of the annotations.

    Raises:
        AnnotationError: The annotations cannot be read.
    """
    if prediction.label is None or prediction.slide_id not in annotations:
        return None
    return annotations.read(prediction.slide_id, table.class_names[prediction.label])
