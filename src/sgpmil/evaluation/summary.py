"""Folds: evaluate one, summarise all, keep them in a table."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.errors import PredictionError
from sgpmil.evaluation.instance_metrics import InstanceMetrics, instance_metrics
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.slide_metrics import SlideMetrics, slide_metrics

__all__ = [
    "FoldMetrics",
    "MetricSummary",
    "evaluate",
    "read_metrics",
    "summarise",
    "write_metrics",
]

_SLIDE_FIELDS = tuple(field.name for field in fields(SlideMetrics))
_INSTANCE_FIELDS = tuple(field.name for field in fields(InstanceMetrics))
_COUNTS = ("num_slides", "num_bags")
_LATER = ("average_precision", "f1", "sensitivity_at_95_specificity")
"""Metrics that tables of earlier versions lack; NaN there."""


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


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """One metric over folds.

    Args:
        name: Name of the metric, as in `SlideMetrics` and `InstanceMetrics`.
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
        >>> from sgpmil.evaluation.prediction import Prediction
        >>> sure = Prediction.from_samples("a", "a", 1, np.array([[0.0, 1.0]]))
        >>> evaluate(PredictionTable((sure,), ("normal", "tumour"))).slide.accuracy
        1.0
    """
    has_instance_labels = any(
        prediction.instances is not None and prediction.instances.instance_labels is not None
        for prediction in table.predictions
    )
    return FoldMetrics(
        fold=fold,
        slide=slide_metrics(table),
        instance=instance_metrics(table.predictions) if has_instance_labels else None,
    )


def summarise(folds: Sequence[FoldMetrics]) -> tuple[MetricSummary, ...]:
    r"""Summarise every metric over folds by its mean and sample standard deviation.

    $$ \bar m = \frac{1}{n} \sum_k m_k, \qquad
       s = \sqrt{\frac{1}{n - 1} \sum_k (m_k - \bar m)^2} $$

    over the n folds in which the metric is defined.

    Args:
        folds: Metrics of each fold.

    Returns:
        A summary a metric; those of instances only where a fold has them.

    Raises:
        PredictionError: There are no folds.
    """
    if not folds:
        raise PredictionError(
            "Expected at least one finished fold, but got none. Go on with the run (--resume)."
        )
    has_instances = any(fold.instance is not None for fold in folds)
    names = (*_SLIDE_FIELDS, *(_INSTANCE_FIELDS if has_instances else ()))
    return tuple(_summary(name, folds) for name in names if name not in _COUNTS)


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
    for name in (*_SLIDE_FIELDS, *_INSTANCE_FIELDS):
        values = [_value(fold, name) for fold in folds]
        columns[name] = pa.array(values, pa.int64() if name in _COUNTS else pa.float64())
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(columns), temporary)


def read_metrics(path: str | os.PathLike[str]) -> tuple[FoldMetrics, ...]:
    """Read what `write_metrics` wrote.

    Args:
        path: File to read.

    Raises:
        PredictionError: The file is missing, damaged, or not a table of metrics.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = Path(path)
    if not file.is_file():
        raise PredictionError(
            f"Expected a file of metrics at '{file}', but there is none. Check the path."
        )
    try:
        content = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise PredictionError(
            f"Expected metrics as parquet in '{file}', but it cannot be read ({error}). "
            "Evaluate again."
        ) from error
    needed = ("fold", *_SLIDE_FIELDS, *_INSTANCE_FIELDS)
    missing = [name for name in needed if name not in (*content.column_names, *_LATER)]
    if missing:
        raise PredictionError(
            f"Expected the column '{missing[0]}' in '{file}', but got "
            f"{', '.join(content.column_names)}. Evaluate again."
        )
    return tuple(_fold(row) for row in content.to_pylist())


def _fold(row: dict[str, Any]) -> FoldMetrics:
    has_instances = row["num_bags"] is not None
    return FoldMetrics(
        fold=row["fold"],
        slide=SlideMetrics(**{name: row.get(name, math.nan) for name in _SLIDE_FIELDS}),
        instance=InstanceMetrics(**{name: row[name] for name in _INSTANCE_FIELDS})
        if has_instances
        else None,
    )


def _value(fold: FoldMetrics, name: str) -> float | int | None:
    holder = fold.slide if name in _SLIDE_FIELDS else fold.instance
    return None if holder is None else getattr(holder, name)


def _summary(name: str, folds: Sequence[FoldMetrics]) -> MetricSummary:
    found = (_value(fold, name) for fold in folds)
    values = tuple(math.nan if value is None else float(value) for value in found)
    defined = [value for value in values if not math.isnan(value)]
    return MetricSummary(
        name=name,
        mean=float(np.mean(defined)) if defined else math.nan,
        sd=float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan,
        values=values,
        num_undefined=len(values) - len(defined),
    )
