"""How often prediction sets hold the label, and how large they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.conformal import ConformalMethod, ConformalPredictor
from sgpmil.shapes import Float, Int

__all__ = ["SetMetrics", "pooled_set_metrics", "set_metrics"]


@dataclass(frozen=True, slots=True, eq=False)
class SetMetrics:
    """What prediction sets do on slides with a label; counted, so that folds can be pooled.

    Args:
        method: Which score made the sets.
        nominal: Promised coverage.
        class_names: Name of each class.
        class_slides: Number of slides of each class.
        class_covered: Number of them whose set holds their class.
        class_members: Number of classes in their sets, summed.
        num_empty: Number of slides to which the method itself gave no class.
        num_single: Number of slides whose set is one class.
    """

    method: ConformalMethod
    nominal: float
    class_names: tuple[str, ...]
    class_slides: Int[np.ndarray, " C"]
    class_covered: Int[np.ndarray, " C"]
    class_members: Int[np.ndarray, " C"]
    num_empty: int
    num_single: int

    @property
    def num_slides(self) -> int:
        """Number of slides."""
        return int(self.class_slides.sum())

    @property
    def coverage(self) -> float:
        """Share of the slides whose set holds their label; NaN without slides."""
        return float(_ratio(self.class_covered.sum(), self.class_slides.sum()))

    @property
    def class_coverage(self) -> Float[np.ndarray, " C"]:
        """The same for the slides of each class; NaN for a class without slides."""
        return _ratio(self.class_covered, self.class_slides)

    @property
    def mean_size(self) -> float:
        """Mean number of classes in a set."""
        return float(_ratio(self.class_members.sum(), self.class_slides.sum()))

    @property
    def class_size(self) -> Float[np.ndarray, " C"]:
        """The same for the slides of each class."""
        return _ratio(self.class_members, self.class_slides)

    @property
    def share_empty(self) -> float:
        """Share of the slides to which the method itself gave no class."""
        return float(_ratio(np.array(self.num_empty), self.class_slides.sum()))

    @property
    def share_single(self) -> float:
        """Share of the slides whose set is one class: those that are decided."""
        return float(_ratio(np.array(self.num_single), self.class_slides.sum()))


def set_metrics(predictor: ConformalPredictor, table: PredictionTable) -> SetMetrics:
    """Measure the deterministic sets of a predictor, each of at least one class.

    Args:
        predictor: What makes the sets.
        table: Predictions of slides that did not calibrate it; those without a label are left
            out.

    Raises:
        PredictionError: The classes are not those of the calibration slides.
    """
    known = table.labelled()
    sets = predictor.sets(known)
    labels, num_classes = known.labels, known.num_classes
    covered = sets.members[np.arange(len(labels)), labels]
    sizes = sets.members.sum(axis=1)
    return SetMetrics(
        method=predictor.method,
        nominal=predictor.coverage,
        class_names=predictor.class_names,
        class_slides=np.bincount(labels, minlength=num_classes),
        class_covered=np.bincount(labels[covered], minlength=num_classes),
        class_members=np.bincount(np.repeat(labels, sizes), minlength=num_classes),
        num_empty=int(sets.was_empty.sum()),
        num_single=int((sizes == 1).sum()),
    )


def pooled_set_metrics(folds: Sequence[SetMetrics]) -> SetMetrics:
    """Count the slides of several folds together.

    Args:
        folds: Metrics of sets made by one method, to one coverage, of the same classes.

    Raises:
        PredictionError: There are no folds, or they differ in these.
    """
    kinds = {(fold.method, fold.nominal, fold.class_names) for fold in folds}
    if len(kinds) != 1:
        raise PredictionError(
            f"Expected prediction sets of one method, coverage and list of classes, but got "
            f"{len(kinds)} different ones. Pool the folds of one experiment."
        )
    return reduce(_sum, folds)


def _sum(one: SetMetrics, other: SetMetrics) -> SetMetrics:
    return SetMetrics(
        method=one.method,
        nominal=one.nominal,
        class_names=one.class_names,
        class_slides=one.class_slides + other.class_slides,
        class_covered=one.class_covered + other.class_covered,
        class_members=one.class_members + other.class_members,
        num_empty=one.num_empty + other.num_empty,
        num_single=one.num_single + other.num_single,
    )


def _ratio(
    part: Int[np.ndarray, "*shape"] | np.int64, whole: Int[np.ndarray, "*shape"] | np.int64
) -> Float[np.ndarray, "*shape"]:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
