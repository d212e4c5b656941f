"""What each metric is called, and whether more of it is better."""

from dataclasses import dataclass

from sgpmil.errors import PredictionError

__all__ = ["METRIC_KINDS", "MetricKind", "metric_kind"]


@dataclass(frozen=True, slots=True)
class MetricKind:
    """A metric's names and direction.

    Args:
        name: Name of the field of `SlideMetrics` or `InstanceMetrics`.
        title: Name in words.
        short: Name at the head of a column.
        higher_is_better: Whether the larger of two values is the better one.
        of_instances: Whether it measures the scores of instances, not the slides' classes.
    """

    name: str
    title: str
    short: str
    higher_is_better: bool
    of_instances: bool = False


METRIC_KINDS: dict[str, MetricKind] = {
    kind.name: kind
    for kind in (
        MetricKind("balanced_accuracy", "balanced accuracy", "bal. ACC", True),
        MetricKind("accuracy", "accuracy", "ACC", True),
        MetricKind("auc", "AUC", "AUC", True),
        MetricKind("kappa", "quadratic kappa", "kappa", True),
        MetricKind("average_precision", "average precision", "AP", True),
        MetricKind("f1", "F1 score", "F1", True),
        MetricKind(
            "sensitivity_at_95_specificity", "sensitivity at 95 % specificity", "sens. at 95", True
        ),
        MetricKind("ace", "ACE", "ACE", False),
        MetricKind("ece", "ECE", "ECE", False),
        MetricKind("nll", "NLL", "NLL", False),
        MetricKind("brier", "Brier score", "Brier", False),
        MetricKind("attention_auc", "instance AUC, attention", "inst. AUC (att.)", True, True),
        MetricKind("evidence_auc", "instance AUC, evidence", "inst. AUC (ev.)", True, True),
        MetricKind("attention_ap", "instance AP, attention", "inst. AP (att.)", True, True),
        MetricKind("evidence_ap", "instance AP, evidence", "inst. AP (ev.)", True, True),
    )
}
"""Every metric that can be compared, in the order of tables."""


def metric_kind(name: str) -> MetricKind:
    """Return the names and direction of a metric.

    Raises:
        PredictionError: There is no such metric.

    Example:
        >>> metric_kind("brier").higher_is_better
        False
    """
    if name not in METRIC_KINDS:
        raise PredictionError(
            f"Expected a metric among {', '.join(METRIC_KINDS)}, but got '{name}'. "
            "Choose one of these."
        )
    return METRIC_KINDS[name]
