"""Metrics of a fold, and their summary over folds."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.errors import PredictionError
from sgpmil.evaluation.metrics import (
    INSTANCE_METRICS,
    SLIDE_METRICS,
    InstanceMetrics,
    SlideMetrics,
    instance_metrics,
    slide_metrics,
)
from sgpmil.evaluation.prediction_table import PredictionTable


@dataclass(frozen=True, slots=True)
class FoldMetrics:
    """Metrics of one fold.

    Args:
        fold: Name of the fold.
        slide: Metrics over slides.
        instance: Metrics over instances, where instance labels are known.
    """

    fold: str
    slide: SlideMetrics
    instance: InstanceMetrics | None = None

    @property
    def row(self) -> dict[str, float | None]:
        """Values and counts of all metrics by column; None for instances without labels."""
        slide, instance = self.slide, self.instance
        of_instances = {m.key: instance[m.key] if instance else None for m in INSTANCE_METRICS}
        return {
            **slide.values,
            "num_slides": slide.num_slides,
            **of_instances,
            "num_bags": instance.num_bags if instance else None,
        }


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """One metric over folds.

    Args:
        name: Key of the metric, as in `METRICS`.
        mean: Mean over the folds in which it is defined; NaN without any.
        sd: Sample standard deviation (dividing by n - 1) over them; NaN for fewer than two.
        values: Value of each fold, NaN where undefined.
        num_undefined: Number of folds in which it is undefined.
    """

    name: str
    mean: float
    sd: float
    values: tuple[float, ...]
    num_undefined: int


def evaluate(table: PredictionTable, fold: str = "") -> FoldMetrics:
    """Evaluate the predictions of one test set.

    Args:
        table: Predictions; slides without a label are left out.
        fold: Name of the fold.

    Raises:
        PredictionError: No slide has a label.

    Example:
        >>> from sgpmil.bags.target import ClassTarget
        >>> from sgpmil.evaluation.prediction import Prediction
        >>> sure = Prediction.from_samples("a", "a", 1, np.array([[0.0, 1.0]]))
        >>> evaluate(PredictionTable((sure,), ClassTarget(("no", "yes")))).slide.accuracy
        1.0
    """
    has_instance_labels = any(
        prediction.instances is not None and prediction.instances.instance_labels is not None
        for prediction in table.predictions
    )
    return FoldMetrics(
        fold=fold,
        slide=slide_metrics(table),
        instance=instance_metrics(table) if has_instance_labels else None,
    )


def summarise(folds: Sequence[FoldMetrics]) -> tuple[MetricSummary, ...]:
    r"""Summarise every metric over folds by its mean and sample standard deviation.

    $$ \bar m = \frac{1}{n} \sum_k m_k, \qquad
       s = \sqrt{\frac{1}{n - 1} \sum_k (m_k - \bar m)^2} $$

    over the n folds in which the metric is defined.

    Returns:
        A summary a metric; those of instances only where a fold has them.

    Raises:
        PredictionError: There are no folds.
    """
    if not folds:
        raise PredictionError(
            "Expected at least one finished fold, but got none. Continue the run (`resume=True`)."
        )
    has_instances = any(fold.instance is not None for fold in folds)
    metrics = (*SLIDE_METRICS, *(INSTANCE_METRICS if has_instances else ()))
    rows = [fold.row for fold in folds]
    return tuple(summarise_values(m.key, [row[m.key] for row in rows]) for m in metrics)


def write_metrics(path: str | os.PathLike[str], folds: Sequence[FoldMetrics]) -> None:
    """Write metrics as parquet: a row a fold, a column a metric.

    Columns of the instance metrics are null in folds without instance labels.

    Args:
        path: File to write; replaced whole where it exists.
        folds: Metrics of each fold.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {"fold": pa.array([fold.fold for fold in folds], pa.string())}
    rows = [fold.row for fold in folds]
    for name in rows[0] if rows else ():
        kind = pa.int64() if name.startswith("num_") else pa.float64()
        columns[name] = pa.array([row[name] for row in rows], kind)
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(columns), temporary)


def summarise_values(name: str, found: Sequence[float | None]) -> MetricSummary:
    """Summarise one number over folds; see `summarise`.

    Args:
        name: Name of the number.
        found: Its value in each fold; None or NaN where undefined.
    """
    values = tuple(math.nan if value is None else value for value in found)
    defined = [value for value in values if not math.isnan(value)]
    return MetricSummary(
        name=name,
        mean=float(np.mean(defined)) if defined else math.nan,
        sd=float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan,
        values=values,
        num_undefined=len(values) - len(defined),
    )
