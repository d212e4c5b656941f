import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from sgpmil.evaluation.instance_metrics import instance_auc, instance_metrics

from .tables import random_scores, random_table


def bags(num_classes=2, num_bags=12):
    table = random_table(num_bags, num_classes)
    return [
        replace(p, label=i % num_classes, instances=random_scores(20, num_classes, seed=i))
        for i, p in enumerate(table.predictions)
    ]


@pytest.mark.parametrize("num_classes", [2, 4])
def test_mean_over_positive_bags_against_sklearn(num_classes):
    predictions = bags(num_classes)
    found = instance_metrics(predictions)
    rows = []
    for p in predictions:
        if p.label == 0:
            continue
        scores = p.instances
        e, c = scores.evidence_mean, p.label
        margin = e[:, c] - np.delete(e, c, axis=1).mean(1)
        y = scores.instance_labels > 0
        rows.append(
            [
                roc_auc_score(y, scores.attention_mean),
                roc_auc_score(y, margin),
                average_precision_score(y, scores.attention_mean),
                average_precision_score(y, margin),
            ]
        )
    expected = np.mean(rows, axis=0)
    values = [found.attention_auc, found.evidence_auc, found.attention_ap, found.evidence_ap]
    np.testing.assert_allclose(values, expected)
    assert found.num_bags == len(rows)


def test_one_class_alone():
    predictions = bags(4)
    only = [p for p in predictions if p.label == 2]
    assert instance_metrics(predictions, positive_class=2) == instance_metrics(only)
    two = bags(2)
    assert instance_metrics(two, positive_class=1) == instance_metrics(two)


def test_bags_without_both_kinds_are_left_out():
    positive = [p for p in bags() if p.label == 1]
    uniform = replace(
        positive[0], instances=random_scores(20, instance_labels=np.ones(20, dtype=np.int64))
    )
    bare = replace(positive[1], instances=None)
    unlabelled = replace(positive[2], label=None)
    found = instance_metrics([*positive, uniform, bare, unlabelled])
    assert found == instance_metrics(positive)
    assert math.isnan(instance_auc(uniform, "attention"))
    assert math.isnan(instance_auc(bare, "attention"))
    assert math.isnan(instance_auc(unlabelled, "evidence"))


def test_none_is_nan():
    found = instance_metrics([])
    assert found.num_bags == 0
    assert math.isnan(found.attention_auc)
    assert math.isnan(found.evidence_ap)


def test_unknown_instances_are_left_out():
    labels = np.array([1, 0, 1, 0, -1, -1])
    scores = random_scores(6, instance_labels=labels)
    prediction = replace(random_table(1).predictions[0], label=1, instances=scores)
    expected = roc_auc_score(labels[:4], scores.attention_mean[:4])
    assert instance_auc(prediction, "attention") == pytest.approx(expected)


def test_without_evidence():
    scores = random_scores(20, evidence_mean=None, evidence_std=None)
    prediction = replace(random_table(1).predictions[0], label=1, instances=scores)
    found = instance_metrics([prediction])
    assert math.isnan(found.evidence_auc)
    assert found.attention_auc == instance_auc(prediction, "attention")
    assert found.num_bags == 1
