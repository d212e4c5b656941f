import math
import warnings

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
    roc_auc_score,
)

from sgpmil.errors import PredictionError
from sgpmil.evaluation.operating_point import sensitivity_at_specificity
from sgpmil.evaluation.slide_metrics import (
    METRIC_NAMES,
    confusion_matrix,
    f1_score,
    slide_metrics,
)

from .tables import random_table, table_of


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
    metrics = slide_metrics(table_of(probs, labels))
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
    assert f1_score(predicted, labels, 3) == pytest.approx((0.4 + 0.8 + 0) / 3)
    assert f1_score(predicted[:4], labels[:4], 2) == pytest.approx(0.8)


def test_sensitivity_is_of_the_second_of_two_classes():
    table = random_table(200, 2)
    found = slide_metrics(table).sensitivity_at_95_specificity
    assert found == sensitivity_at_specificity(table.probs[:, 1], table.labels == 1, 0.95)
    assert 0 < found < 1
    assert math.isnan(slide_metrics(random_table(200, 3)).sensitivity_at_95_specificity)


def test_names_are_those_of_the_fields():
    assert METRIC_NAMES[:3] == ("balanced_accuracy", "accuracy", "auc")
    assert "num_slides" not in METRIC_NAMES
    assert all(hasattr(slide_metrics(random_table()), name) for name in METRIC_NAMES)


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
