import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    log_loss,
    roc_auc_score,
)

from sgpmil.errors import PredictionError
from sgpmil.evaluation.slide_metrics import slide_metrics

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
    elif len(classes) == 2:
        assert metrics.auc == pytest.approx(roc_auc_score(labels, probs[:, 1]))
    else:
        expected = roc_auc_score(labels, probs, multi_class="ovr", average="macro")
        assert metrics.auc == pytest.approx(expected)


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
