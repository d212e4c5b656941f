"""How well the scores of instances find the positive ones, which no model saw the labels of."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sgpmil.evaluation.instance_scores import ScoreKind
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.ranking import auroc, average_precision
from sgpmil.shapes import Bool, Float

__all__ = ["InstanceMetrics", "instance_auc", "instance_metrics"]

RankMetric = Callable[[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]], float]


@dataclass(frozen=True, slots=True)
class InstanceMetrics:
    """Means over positive bags of a metric of each bag's instances; NaN where not defined.

    Args:
        attention_auc: Area under the ROC curve of the attention.
        evidence_auc: Area under the ROC curve of the evidence for the bag's class.
        attention_ap: Average precision of the attention.
        evidence_ap: Average precision of the evidence for the bag's class.
        num_bags: Number of positive bags with positive and negative instances.
    """

    attention_auc: float
    evidence_auc: float
    attention_ap: float
    evidence_ap: float
    num_bags: int


def instance_metrics(
    predictions: Sequence[Prediction], positive_class: int | None = None
) -> InstanceMetrics:
    r"""Average the per-bag metrics over the positive bags.

    $$ \overline{\mathrm{AUC}} = \frac{1}{|P|} \sum_{b \in P}
       \mathrm{AUC}\bigl(s_b, [\ell_b > 0]\bigr) $$

    P are the bags with a positive label in which instances with label > 0 and = 0 both occur.
    Instances whose label is unknown (negative) are left out. The evidence is that for the bag's
    own class.

    Args:
        predictions: Predictions with instance scores and labels; others are left out.
        positive_class: Count the bags of this class alone; by default those of every class
            but 0.
    """
    bags = [
        prediction
        for prediction in predictions
        if _is_positive(prediction, positive_class) and _has_both_classes(prediction)
    ]
    return InstanceMetrics(
        attention_auc=_mean([_bag_metric(bag, "attention", auroc) for bag in bags]),
        evidence_auc=_mean([_bag_metric(bag, "evidence", auroc) for bag in bags]),
        attention_ap=_mean([_bag_metric(bag, "attention", average_precision) for bag in bags]),
        evidence_ap=_mean([_bag_metric(bag, "evidence", average_precision) for bag in bags]),
        num_bags=len(bags),
    )


def instance_auc(prediction: Prediction, kind: ScoreKind) -> float:
    """Give the area under the ROC curve of one bag's instances (label > 0 against 0).

    Args:
        prediction: Prediction with instance scores and labels.
        kind: Which score; evidence is that for the bag's own class.

    Returns:
        The area; NaN when the bag lacks a label, the score, or one of the two kinds of instance.
    """
    return _bag_metric(prediction, kind, auroc)


def _bag_metric(prediction: Prediction, kind: ScoreKind, metric: RankMetric) -> float:
    scores = prediction.instances
    if prediction.label is None or scores is None or not _has_both_classes(prediction):
        return math.nan
    if kind == "evidence" and scores.evidence_mean is None:
        return math.nan
    labels = np.asarray(scores.instance_labels)
    known = labels >= 0
    return metric(scores.score(kind, prediction.label)[known], labels[known] > 0)


def _is_positive(prediction: Prediction, positive_class: int | None) -> bool:
    if prediction.label is None:
        return False
    return prediction.label > 0 if positive_class is None else prediction.label == positive_class


def _has_both_classes(prediction: Prediction) -> bool:
    if prediction.instances is None or prediction.instances.instance_labels is None:
        return False
    labels = prediction.instances.instance_labels
    return bool((labels > 0).any() and (labels == 0).any())


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan
