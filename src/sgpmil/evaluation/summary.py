"""Metrics of a fold, and their summary over folds."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.errors import PredictionError
from sgpmil.evaluation.metrics import (
    INSTANCE_METRICS,
    METRICS,
    SLIDE_METRICS,
    InstanceMetrics,
    SlideMetrics,
    instance_metrics,
    slide_metrics,
)
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.seen_slides import without_seen
from sgpmil.notebook import cell_text, counted, html_table

if TYPE_CHECKING:
    import pandas as pd

_SHORT = ("balanced_accuracy", "auc", "ace")
"""Metrics of a short description."""


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

    def __repr__(self) -> str:
        values = self.slide.values
        shown = ", ".join(f"{k} {cell_text(values[k])}" for k in _SHORT if k in values)
        fold = f"fold {self.fold}, " if self.fold else ""
        return f"FoldMetrics({fold}{counted(self.slide.num_slides, 'slide')}: {shown})"

    def _repr_html_(self) -> str:
        frame_rows = [(METRICS[key].name, value) for key, value in self._values.items()]
        fold = f" of fold {self.fold}" if self.fold else ""
        title = f"Metrics{fold} over {counted(self.slide.num_slides, 'slide')}"
        return html_table(title, ["metric", "value"], frame_rows)

    @property
    def _values(self) -> dict[str, float]:
        instance = {} if self.instance is None else self.instance.values
        return {k: float(v) for k, v in {**self.slide.values, **instance}.items() if v == v}

    def to_pandas(self) -> "pd.DataFrame":
        """Return the metrics as a pandas DataFrame: ``metric``, ``name`` and ``value``.

        Metrics that are not defined for the slides have no row.
        """
        import pandas as pd

        rows = [(key, METRICS[key].name, value) for key, value in self._values.items()]
        return pd.DataFrame(rows, columns=["metric", "name", "value"])

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

    def __repr__(self) -> str:
        num = len(self.values) - self.num_undefined
        return f"MetricSummary({self.name} {self.text} over {counted(num, 'fold')})"

    @property
    def text(self) -> str:
        """Mean and standard deviation in words."""
        spread = "" if math.isnan(self.sd) else f" ± {self.sd:.3f}"
        return f"{cell_text(self.mean)}{spread}"


class Summary(tuple[MetricSummary, ...]):
    """Every metric over folds: a tuple that notebooks show as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        rows = [
            (METRICS[s.name].name if s.name in METRICS else s.name, s.text)
            for s in self
            if not math.isnan(s.mean)
        ]
        num = max((len(s.values) for s in self), default=0)
        return html_table(f"Metrics over {counted(num, 'fold')}", ["metric", "mean ± sd"], rows)

    def to_pandas(self) -> "pd.DataFrame":
        """Return a pandas DataFrame, a row a metric: its mean and sample standard deviation.

        Columns: ``metric``, ``name``, ``mean``, ``sd``, ``num_folds`` (in which it is defined).
        """
        import pandas as pd

        rows = [
            (
                s.name,
                METRICS[s.name].name if s.name in METRICS else s.name,
                s.mean,
                s.sd,
                len(s.values) - s.num_undefined,
            )
            for s in self
        ]
        return pd.DataFrame(rows, columns=["metric", "name", "mean", "sd", "num_folds"])


def evaluate(table: PredictionTable, fold: str = "", *, keep_seen: bool = False) -> FoldMetrics:
    """Evaluate the predictions of one test set.

    Args:
        table: Predictions; slides without a label are left out, and those that the model was
            trained on (`Prediction.seen`), with a `SeenSlidesWarning`.
        fold: Name of the fold.
        keep_seen: Whether to measure slides that the model was trained on, too.

    Raises:
        PredictionError: No slide has a label, or the model was trained on all of them.

    Example:
        >>> from sgpmil.bags.target import ClassTarget
        >>> from sgpmil.evaluation.prediction import Prediction
        >>> sure = Prediction.from_samples("a", "a", 1, np.array([[0.0, 1.0]]))
        >>> evaluate(PredictionTable((sure,), ClassTarget(("no", "yes")))).slide.accuracy
        1.0
    """
    return measure_fold(without_seen(table, "the table", keep=keep_seen), fold)


def measure_fold(table: PredictionTable, fold: str = "") -> FoldMetrics:
    """Measure all slides of a test set that have a label, whatever the model has seen.

    Raises:
        PredictionError: No slide has a label.
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


def folds_frame(folds: Sequence[FoldMetrics]) -> "pd.DataFrame":
    """Return a pandas DataFrame, a row a fold and a column a metric."""
    import pandas as pd

    frame = pd.DataFrame([{"fold": fold.fold, **fold.row} for fold in folds])
    return frame.dropna(axis="columns", how="all")


def summarise(folds: Sequence[FoldMetrics]) -> Summary:
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
    return Summary(summarise_values(m.key, [row[m.key] for row in rows]) for m in metrics)


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
