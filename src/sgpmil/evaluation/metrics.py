"""Metrics of slides and instances, each defined once.

To add a metric, add one `Metric` to `SLIDE_METRICS` or `INSTANCE_METRICS`. The tables of folds,
the bootstrap, the comparison of runs, the command line, the report and the experiments read these
lists; nothing else has to change.

Point values are scikit-learn's where it has the metric. The log loss and the Brier score are our
own formulas: scikit-learn clips at another probability, and it warns where the probabilities of a
file sum to 1 only up to their printed digits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sgpmil.bags.target import Target
from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import (
    adaptive_calibration_error,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)
from sgpmil.evaluation.prediction import CLASS_SCORES, SCORES, Prediction, ScoreKind
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc, average_precision, sensitivity_at_specificity
from sgpmil.evaluation.resampling import Resampled, SortedSlides
from sgpmil.shapes import Bool, Float, Int

Better = Literal["higher", "lower", "neither"]
"""Direction of a metric: which of two values is the better one."""

RankMetric = Callable[[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of predictions.

    Args:
        key: Name of its column in files, and of it in code.
        name: Name in words.
        short_name: Name at the head of a narrow column.
        better: Direction in which a value is better.
        range: Smallest and largest possible value.
        value: Value on the labelled slides of a table; NaN where it is not defined.
        resampled: Value on each of several resampled tables, fast. Without it, each table is made
            and measured by itself.
        needs: Requirement of a test set for the metric to be defined.
        two_classes_only: Whether it is defined for two classes alone.
        targets: Kinds of label that it is defined for.
    """

    key: str
    name: str
    short_name: str
    better: Better
    range: tuple[float, float]
    value: Callable[[PredictionTable], float] = field(repr=False)
    resampled: Callable[[Resampled], Float[np.ndarray, " r"]] | None = field(
        default=None, repr=False
    )
    needs: str = "slides of every class"
    two_classes_only: bool = False
    targets: tuple[str, ...] = ("class", "ordinal")

    @property
    def arrow(self) -> str:
        """Arrow that points to better values: ↑, ↓ or nothing."""
        return {"higher": "↑", "lower": "↓", "neither": ""}[self.better]

    @property
    def is_for_all(self) -> bool:
        """Whether it is defined for classes of any number, with an order or without."""
        return not self.two_classes_only and "class" in self.targets

    def suits(self, target: Target) -> bool:
        """Return whether the metric is defined for a target."""
        has_classes = target.num_outputs == 2 or not self.two_classes_only
        return target.kind in self.targets and has_classes

    def __call__(self, table: PredictionTable) -> float:
        """Measure labelled slides; NaN where the metric is not defined."""
        if not self.suits(table.target):
            return math.nan
        return self.value(table)

    def over(self, drawn: Resampled) -> Float[np.ndarray, " r"]:
        """Measure each of several resampled tables; NaN where the metric is not defined."""
        if not self.suits(drawn.slides.target):
            return np.full(len(drawn.counts), math.nan)
        if self.resampled is not None:
            return self.resampled(drawn)
        return np.array([self.value(table) for table in drawn.tables()])

    def quick(self, table: PredictionTable) -> float:
        """Measure labelled slides by the fast form, for loops that measure often.

        It is the same value without the checks of scikit-learn, which take a millisecond.

        Args:
            table: Predictions, all with a label.
        """
        once = np.ones((1, len(table)), dtype=np.int64)
        return float(self.over(Resampled(SortedSlides(table), once))[0])


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of metrics by key, read as items or attributes: ``found["auc"]``, ``found.auc``."""

    values: Mapping[str, float]

    def __getitem__(self, key: str) -> float:
        return self.values[key]

    def __getattr__(self, key: str) -> float:
        # `values` itself is looked for here while a copy is being made.
        if key == "values" or key not in self.values:
            raise AttributeError(f"There is no metric '{key}'.")
        return self.values[key]


@dataclass(frozen=True, slots=True)
class SlideMetrics(_Values):
    """Metrics over slides, read as items or attributes: ``found["auc"]``, ``found.auc``.

    Args:
        values: Value of each of `SLIDE_METRICS` by key; NaN where one is not defined.
        num_slides: Number of slides with a label.
    """

    num_slides: int


@dataclass(frozen=True, slots=True)
class InstanceMetrics(_Values):
    """Means over positive bags of metrics of each bag's instances, read like `SlideMetrics`.

    Args:
        values: Value of each of `INSTANCE_METRICS` by key; NaN where one is not defined.
        num_bags: Number of positive bags with positive and negative instances.
    """

    num_bags: int


def slide_metrics(table: PredictionTable) -> SlideMetrics:
    """Evaluate the labelled slides of a table.

    Args:
        table: Predictions; those without a label are left out.

    Raises:
        PredictionError: No slide has a label.
    """
    known = table.labelled()
    if not len(known):
        raise PredictionError(
            f"Expected at least one slide with a label, but got none among {len(table)}. "
            "Predict the slides again with their table of labels (`labels`)."
        )
    return SlideMetrics({metric.key: metric(known) for metric in SLIDE_METRICS}, len(known))


def instance_metrics(table: PredictionTable) -> InstanceMetrics:
    r"""Average metrics of the instances of each bag over the positive bags P.

    $$ \overline{\mathrm{AUC}} = \frac{1}{|P|} \sum_{b \in P}
       \mathrm{AUC}\bigl(s_b, [\ell_b > 0]\bigr) $$

    P are the bags of every class but 0 in which instances with label > 0 and = 0 both occur.
    Instances whose label is unknown (negative) are left out. Scores of a class are those for the
    bag's own.

    Args:
        table: Predictions with instance scores and labels; others are left out.
    """
    values = {metric.key: metric(table) for metric in INSTANCE_METRICS}
    return InstanceMetrics(values, len(_positive_bags(table)))


def instance_auc(prediction: Prediction, kind: ScoreKind) -> float:
    """Compute the area under the ROC curve of one bag's instances (label > 0 against 0).

    Args:
        prediction: Prediction with instance scores and labels.
        kind: Kind of score; one of a class is that for the bag's own.

    Returns:
        The area; NaN when the bag lacks a label, the score, or one of the two kinds of instance.
    """
    return _bag_metric(prediction, kind, auroc)


def confusion_matrix(
    predicted: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"], num_outputs: int
) -> Int[np.ndarray, "C C"]:
    """Count the slides of each label (rows) and predicted class (columns).

    Example:
        >>> confusion_matrix(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
        array([[1, 1],
               [0, 1]])
    """
    cells = np.bincount(labels * num_outputs + predicted, minlength=num_outputs**2)
    return cells.reshape(num_outputs, num_outputs)


def get_metric(key: str) -> Metric:
    """Return the metric of a key.

    Raises:
        PredictionError: There is no such metric.

    Example:
        >>> get_metric("brier").better
        'lower'
    """
    if key not in METRICS:
        raise PredictionError(
            f"Expected a metric among {', '.join(METRICS)}, but got '{key}'. Choose one of these."
        )
    return METRICS[key]


def _accuracy(table: PredictionTable) -> float:
    return float((table.predicted == table.labels).mean())


def _balanced_accuracy(table: PredictionTable) -> float:
    """Compute the mean recall over the classes that occur among the labels."""
    from sklearn.metrics import recall_score

    labels, predicted = table.labels, table.predicted
    # The same as balanced_accuracy_score, which warns of predicted classes that do not occur.
    present = np.unique(labels)
    return float(recall_score(labels, predicted, labels=present, average="macro"))


def _f1(table: PredictionTable) -> float:
    r"""Compute the F1 score of the second of two classes, else the mean of all.

    $$ F_1 = \frac{2 \, \mathrm{TP}}{2 \, \mathrm{TP} + \mathrm{FP} + \mathrm{FN}}, $$

    the harmonic mean of precision and recall; 0 where a class is never rightly predicted, NaN
    where a class that counts has no slide.
    """
    from sklearn.metrics import f1_score

    labels, classes = table.labels, list(table.target.ranked)
    if not classes or not np.isin(classes, labels).all():
        return math.nan
    return float(
        f1_score(labels, table.predicted, labels=classes, average="macro", zero_division=0)
    )


def _kappa(table: PredictionTable) -> float:
    r"""Give Cohen's kappa with quadratic weights.

    $$ \kappa = 1 - \frac{\sum_{ij} w_{ij} O_{ij}}{\sum_{ij} w_{ij} E_{ij}}, \qquad
       w_{ij} = \frac{(i - j)^2}{(C - 1)^2} $$

    with O the confusion matrix and E what its margins give by chance; NaN where labels and
    predictions are all of one and the same class.
    """
    from sklearn.metrics import cohen_kappa_score

    labels, predicted = table.labels, table.predicted
    if len({*labels.tolist(), *predicted.tolist()}) < 2:
        return math.nan
    classes = range(table.target.num_outputs)
    return float(cohen_kappa_score(labels, predicted, labels=classes, weights="quadratic"))


def _auc(table: PredictionTable) -> float:
    from sklearn.metrics import roc_auc_score

    return _one_vs_rest(roc_auc_score, table)


def _average_precision(table: PredictionTable) -> float:
    from sklearn.metrics import average_precision_score

    return _one_vs_rest(average_precision_score, table)


def _sensitivity(table: PredictionTable) -> float:
    return sensitivity_at_specificity(table.probs[:, 1], table.labels == 1)


def _one_vs_rest(metric: Callable[..., float], table: PredictionTable) -> float:
    """Compute a metric of the second of two classes, else the mean of each class against the rest.

    NaN when a class has no slide, or every slide (the average precision would be 1 whatever the
    probabilities).
    """
    probs, labels = table.probs, table.labels
    classes = list(table.target.ranked)
    counts = np.bincount(labels, minlength=table.target.num_outputs)[classes]
    if not classes or (counts == 0).any() or (counts == len(labels)).any():
        return math.nan
    return float(np.mean([metric(labels == c, probs[:, c]) for c in classes]))


def _over_bags(kind: ScoreKind, metric: RankMetric) -> Callable[[PredictionTable], float]:
    """Average a metric of a bag's instances over the positive bags of a table."""

    def value(table: PredictionTable) -> float:
        values = [_bag_metric(bag, kind, metric) for bag in _positive_bags(table)]
        defined = [value for value in values if not math.isnan(value)]
        return float(np.mean(defined)) if defined else math.nan

    return value


def _positive_bags(table: PredictionTable) -> Sequence[Prediction]:
    return [bag for bag in table.predictions if (bag.label or 0) > 0 and _has_both_kinds(bag)]


def _bag_metric(prediction: Prediction, kind: ScoreKind, metric: RankMetric) -> float:
    scores = prediction.instances
    if prediction.label is None or scores is None or not _has_both_kinds(prediction):
        return math.nan
    if kind not in scores.kinds:
        return math.nan
    labels = np.asarray(scores.instance_labels)
    known = labels >= 0
    return metric(scores.score(kind, prediction.label)[known], labels[known] > 0)


def _has_both_kinds(prediction: Prediction) -> bool:
    if prediction.instances is None or prediction.instances.instance_labels is None:
        return False
    labels = prediction.instances.instance_labels
    return bool((labels > 0).any() and (labels == 0).any())


def _instance_metric(kind: ScoreKind, key: str, short_name: str, metric: RankMetric) -> Metric:
    return Metric(
        key=f"{kind}_{key}",
        name=f"instance {short_name}, {kind}",
        short_name=f"inst. {short_name} ({SCORES[kind].short_name})",
        better="higher",
        range=(0.0, 1.0),
        value=_over_bags(kind, metric),
        needs="positive slides with positive and negative instances",
    )


SLIDE_METRICS = (
    Metric(
        key="balanced_accuracy",
        name="balanced accuracy",
        short_name="bal. ACC",
        better="higher",
        range=(0.0, 1.0),
        value=_balanced_accuracy,
        resampled=Resampled.balanced_accuracy,
    ),
    Metric(
        key="accuracy",
        name="accuracy",
        short_name="ACC",
        better="higher",
        range=(0.0, 1.0),
        value=_accuracy,
        resampled=Resampled.accuracy,
    ),
    Metric(
        key="auc",
        name="AUC",
        short_name="AUC",
        better="higher",
        range=(0.0, 1.0),
        value=_auc,
        resampled=lambda drawn: drawn.rank_metrics[0],
    ),
    Metric(
        key="kappa",
        name="quadratic kappa",
        short_name="kappa",
        better="higher",
        range=(-1.0, 1.0),
        value=_kappa,
        resampled=Resampled.kappa,
        targets=("ordinal",),
    ),
    Metric(
        key="mean_absolute_error",
        name="mean absolute error of grades",
        short_name="MAE",
        better="lower",
        range=(0.0, math.inf),
        value=lambda table: float(np.abs(table.predicted - table.labels).mean()),
        resampled=Resampled.mean_absolute_error,
        needs="any slide",
        targets=("ordinal",),
    ),
    Metric(
        key="ace",
        name="ACE",
        short_name="ACE",
        better="lower",
        range=(0.0, 1.0),
        value=lambda table: adaptive_calibration_error(table.probs, table.labels),
        resampled=Resampled.adaptive_calibration_error,
    ),
    Metric(
        key="ece",
        name="ECE",
        short_name="ECE",
        better="lower",
        range=(0.0, 1.0),
        value=lambda table: expected_calibration_error(table.probs, table.labels),
        resampled=Resampled.expected_calibration_error,
    ),
    Metric(
        key="nll",
        name="NLL",
        short_name="NLL",
        better="lower",
        range=(0.0, math.inf),
        value=lambda table: negative_log_likelihood(table.probs, table.labels),
        resampled=lambda drawn: drawn.mean(drawn.slides.log_losses),
    ),
    Metric(
        key="brier",
        name="Brier score",
        short_name="Brier",
        better="lower",
        range=(0.0, 2.0),
        value=lambda table: brier_score(table.probs, table.labels),
        resampled=lambda drawn: drawn.mean(drawn.slides.squared_errors),
    ),
    Metric(
        key="average_precision",
        name="average precision",
        short_name="AP",
        better="higher",
        range=(0.0, 1.0),
        value=_average_precision,
        resampled=lambda drawn: drawn.rank_metrics[1],
    ),
    Metric(
        key="f1",
        name="F1 score",
        short_name="F1",
        better="higher",
        range=(0.0, 1.0),
        value=_f1,
        resampled=Resampled.f1,
    ),
    Metric(
        key="sensitivity_at_95_specificity",
        name="sensitivity at 95 % specificity",
        short_name="sens. at 95",
        better="higher",
        range=(0.0, 1.0),
        value=_sensitivity,
        resampled=lambda drawn: drawn.rank_metrics[2],
        needs="slides of both of two classes",
        two_classes_only=True,
    ),
)
"""Metrics over slides, in the order of columns. AUC, average precision and F1 are those of the
second of two classes, else the mean over the classes, each against the rest; ACE and ECE have 10
bins; quadratic kappa and mean absolute error of grades are of ordered classes alone; NLL is in
nats; the Brier score is summed over classes; sensitivity is the largest for the
second of two classes at a specificity of at least .95."""

INSTANCE_METRICS = (
    *(_instance_metric(kind, "auc", "AUC", auroc) for kind in CLASS_SCORES),
    *(_instance_metric(kind, "ap", "AP", average_precision) for kind in CLASS_SCORES),
)
"""Metrics over instances, in the order of columns. Scores of a class are for the bag's own."""

METRICS: Mapping[str, Metric] = {m.key: m for m in (*SLIDE_METRICS, *INSTANCE_METRICS)}
"""Every metric by its key."""
