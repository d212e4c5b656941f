import copy
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    log_loss,
    mean_absolute_error,
    roc_auc_score,
)

from sgpmil.bags.target import ClassTarget, OrdinalTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.metrics import (
    INSTANCE_METRICS,
    METRICS,
    SLIDE_METRICS,
    Metric,
    confusion_matrix,
    get_metric,
    instance_auc,
    instance_metrics,
    slide_metrics,
)
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import sensitivity_at_specificity
from sgpmil.evaluation.resampling import Resampled, SortedSlides

from .tables import random_scores, random_table, table_of


@st.composite
def problems(draw):
    num_classes = draw(st.integers(2, 5))
    num = draw(st.integers(1, 40))
    whole = st.lists(st.integers(0, 6), min_size=num_classes, max_size=num_classes).filter(any)
    rows = draw(st.lists(whole, min_size=num, max_size=num))
    labels = draw(st.lists(st.integers(0, num_classes - 1), min_size=num, max_size=num))
    return np.array([np.array(row) / sum(row) for row in rows]), np.array(labels)


@given(problems())
def test_against_sklearn(problem):
    probs, labels = problem
    metrics = slide_metrics(table_of(probs, labels, kind=OrdinalTarget))
    predicted = probs.argmax(1)
    classes = list(range(probs.shape[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kappa = cohen_kappa_score(labels, predicted, labels=classes, weights="quadratic")
        balanced = balanced_accuracy_score(labels, predicted)
    assert metrics.accuracy == pytest.approx(accuracy_score(labels, predicted))
    assert metrics.balanced_accuracy == pytest.approx(balanced)
    if len({*labels, *predicted}) == 1:
        assert math.isnan(metrics.kappa)
    else:
        assert metrics.kappa == pytest.approx(kappa, abs=1e-12)
    assert metrics.mean_absolute_error == pytest.approx(mean_absolute_error(labels, predicted))
    unordered = slide_metrics(table_of(probs, labels))
    assert math.isnan(unordered.kappa)
    assert math.isnan(unordered.mean_absolute_error)
    assert unordered.auc == pytest.approx(metrics.auc, nan_ok=True)
    assert metrics.num_slides == len(labels)
    if set(labels) != set(classes):
        assert math.isnan(metrics.auc)
        assert math.isnan(metrics.average_precision)
    elif len(classes) == 2:
        assert metrics.auc == pytest.approx(roc_auc_score(labels, probs[:, 1]))
        expected = average_precision_score(labels, probs[:, 1])
        assert metrics.average_precision == pytest.approx(expected)
        assert metrics.f1 == pytest.approx(sklearn_metrics.f1_score(labels, predicted))
    else:
        expected = roc_auc_score(labels, probs, multi_class="ovr", average="macro")
        assert metrics.auc == pytest.approx(expected)
        expected = average_precision_score(np.eye(len(classes))[labels], probs, average="macro")
        assert metrics.average_precision == pytest.approx(expected)
        expected = sklearn_metrics.f1_score(labels, predicted, average="macro")
        assert metrics.f1 == pytest.approx(expected)


@given(problems())
def test_confusion_matrix_against_sklearn(problem):
    probs, labels = problem
    predicted, num_classes = probs.argmax(1), probs.shape[1]
    expected = sklearn_metrics.confusion_matrix(labels, predicted, labels=range(num_classes))
    np.testing.assert_array_equal(confusion_matrix(predicted, labels, num_classes), expected)


def test_f1_of_each_class_counts_where_there_are_several():
    labels, predicted = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 1, 0, 0])
    # F1 of the classes: 2/5, 4/5 and, never rightly predicted, 0.
    f1 = get_metric("f1")
    assert f1(table_of(np.eye(3)[predicted], labels)) == pytest.approx((0.4 + 0.8 + 0) / 3)
    assert f1(table_of(np.eye(2)[predicted[:4]], labels[:4])) == pytest.approx(0.8)


def test_sensitivity_is_of_the_second_of_two_classes():
    table = random_table(200, 2)
    found = slide_metrics(table).sensitivity_at_95_specificity
    assert found == sensitivity_at_specificity(table.probs[:, 1], table.labels == 1, 0.95)
    assert 0 < found < 1
    assert math.isnan(slide_metrics(random_table(200, 3)).sensitivity_at_95_specificity)


def test_columns_of_files():
    assert tuple(metric.key for metric in (*SLIDE_METRICS, *INSTANCE_METRICS)) == (
        "balanced_accuracy",
        "accuracy",
        "auc",
        "kappa",
        "mean_absolute_error",
        "ace",
        "ece",
        "nll",
        "brier",
        "average_precision",
        "f1",
        "sensitivity_at_95_specificity",
        "attention_auc",
        "evidence_auc",
        "single_auc",
        "attention_ap",
        "evidence_ap",
        "single_ap",
    )
    assert all(key == metric.key for key, metric in METRICS.items())
    for words in ("name", "short_name"):
        assert len({getattr(metric, words) for metric in METRICS.values()}) == len(METRICS)


def test_values_are_items_and_attributes():
    found = slide_metrics(random_table())
    assert found["auc"] == found.auc == found.values["auc"]
    with pytest.raises(AttributeError, match="'loss'"):
        _ = found.loss
    assert copy.deepcopy(found) == found


@given(problems())
def test_fast_form_with_every_slide_once(problem):
    probs, labels = problem
    table = table_of(probs, labels)
    for metric in SLIDE_METRICS:
        assert metric.resampled is not None
        found = metric.quick(table)
        assert found == pytest.approx(metric(table), abs=1e-12, nan_ok=True)
        if not math.isnan(found):
            assert metric.range[0] - 1e-12 <= found <= metric.range[1] + 1e-12


def test_metric_without_a_fast_form():
    class_1 = Metric(
        "share", "share", "share", "neither", (0.0, 1.0), lambda t: float(t.labels.mean())
    )
    counts = np.array([[1, 1, 1], [0, 3, 1]])
    drawn = Resampled(SortedSlides(table_of([[0.9, 0.1]] * 3, [0, 1, 0])), counts)
    np.testing.assert_allclose(class_1.over(drawn), [1 / 3, 3 / 4])
    assert class_1.arrow == ""


def test_directions_are_those_in_which_a_perfect_prediction_beats_its_opposite():
    labels = np.array([0, 0, 1, 1, 1])
    perfect = np.eye(2)[labels]
    best, worst = (
        slide_metrics(table_of(perfect, labels, kind=OrdinalTarget)),
        slide_metrics(table_of(1 - perfect, labels, kind=OrdinalTarget)),
    )
    for metric in SLIDE_METRICS:
        assert metric.better == ("higher" if best[metric.key] > worst[metric.key] else "lower")


def test_an_unknown_metric_is_refused_with_the_choices():
    with pytest.raises(PredictionError, match=r"balanced_accuracy, .* but got 'loss'"):
        get_metric("loss")


def test_nll_and_calibration_are_those_of_calibration():
    table = random_table(60, 3)
    metrics = slide_metrics(table)
    assert metrics.nll == pytest.approx(log_loss(table.labels, table.probs, labels=[0, 1, 2]))
    one_hot = np.eye(3)[table.labels]
    assert metrics.brier == pytest.approx(((table.probs - one_hot) ** 2).sum(1).mean())
    assert 0 < metrics.ace < 1
    assert 0 < metrics.ece < 1


def test_unlabelled_slides_are_left_out():
    probs = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]
    with_gap = slide_metrics(table_of(probs, [0, 1, None]))
    assert with_gap == slide_metrics(table_of(probs[:2], [0, 1]))
    with pytest.raises(PredictionError, match="none among 3"):
        slide_metrics(table_of(probs, [None] * 3))


def test_absent_class_gives_nan_and_not_a_number_by_accident():
    metrics = slide_metrics(table_of([[0.9, 0.1], [0.8, 0.2]], [0, 0]))
    assert math.isnan(metrics.auc)
    assert math.isnan(metrics.kappa)
    assert metrics.balanced_accuracy == 1
    assert math.isnan(metrics.f1)
    assert math.isnan(metrics.average_precision)
    assert math.isnan(metrics.sensitivity_at_95_specificity)
    # Without a negative, the average precision of any scores would be 1.
    positives = slide_metrics(table_of([[0.9, 0.1], [0.2, 0.8]], [1, 1]))
    assert math.isnan(positives.average_precision)
    assert math.isnan(positives.sensitivity_at_95_specificity)
    assert positives.f1 == pytest.approx(2 / 3)


def test_a_single_class_has_nothing_to_rank():
    metrics = slide_metrics(table_of([[1.0], [1.0]], [0, 0]))
    assert math.isnan(metrics.auc)
    assert math.isnan(metrics.f1)
    assert metrics.accuracy == 1


def bags(num_classes=2, num_bags=12):
    table = random_table(num_bags, num_classes)
    return [
        replace(
            p,
            label=i % num_classes,
            instances=random_scores(20, num_classes, seed=i, single_mean=single, single_std=single),
        )
        for i, p in enumerate(table.predictions)
        for single in [np.random.default_rng(100 + i).normal(size=(20, num_classes))]
    ]


def measured(predictions, num_classes=2):
    """Measure the instances of predictions, some of which may occur twice."""
    renamed = tuple(replace(p, slide_id=str(i)) for i, p in enumerate(predictions))
    names = tuple(f"class {c}" for c in range(num_classes))
    return instance_metrics(PredictionTable(renamed, ClassTarget(names)))


@pytest.mark.parametrize("num_classes", [2, 4])
def test_mean_over_positive_bags_against_sklearn(num_classes):
    predictions = bags(num_classes)
    found = measured(predictions, num_classes)
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
                roc_auc_score(y, scores.single_mean[:, c]),
                average_precision_score(y, scores.attention_mean),
                average_precision_score(y, margin),
                average_precision_score(y, scores.single_mean[:, c]),
            ]
        )
    expected = np.mean(rows, axis=0)
    kinds = ("attention", "evidence", "single")
    values = [found[f"{kind}_{metric}"] for metric in ("auc", "ap") for kind in kinds]
    np.testing.assert_allclose(values, expected)
    assert found.num_bags == len(rows)


def test_bags_without_both_kinds_are_left_out():
    positive = [p for p in bags() if p.label == 1]
    uniform = replace(
        positive[0], instances=random_scores(20, instance_labels=np.ones(20, dtype=np.int64))
    )
    bare = replace(positive[1], instances=None)
    unlabelled = replace(positive[2], label=None)
    found = measured([*positive, uniform, bare, unlabelled])
    assert found == measured(positive)
    assert math.isnan(instance_auc(uniform, "attention"))
    assert math.isnan(instance_auc(bare, "attention"))
    assert math.isnan(instance_auc(unlabelled, "evidence"))


def test_none_is_nan():
    found = measured([])
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
    found = measured([prediction])
    assert math.isnan(found.evidence_auc)
    assert found.attention_auc == instance_auc(prediction, "attention")
    assert found.num_bags == 1
