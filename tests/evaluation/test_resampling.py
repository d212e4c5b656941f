import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, log_loss, roc_auc_score

from sgpmil.bags.target import OrdinalTarget
from sgpmil.evaluation.metrics import SLIDE_METRICS, slide_metrics
from sgpmil.evaluation.resampling import Resampled, SortedSlides

from .tables import table_of

METRIC_NAMES = tuple(metric.key for metric in SLIDE_METRICS)


def resampled(probs, labels, counts):
    """Measure tables by how often each slide occurs."""
    drawn = Resampled(SortedSlides(table_of(probs, labels, kind=OrdinalTarget)), counts)
    return np.stack([metric.over(drawn) for metric in SLIDE_METRICS], axis=1)


def physically(probs, labels, counts):
    """Repeat the slides, and evaluate the table that results."""
    rows = np.repeat(np.arange(len(labels)), counts)
    metrics = slide_metrics(table_of(probs[rows], labels[rows], kind=OrdinalTarget))
    return np.array([metrics[name] for name in METRIC_NAMES])


@st.composite
def resamplings(draw):
    """Tables full of ties and zeros, of few labels, with slides drawn never or often."""
    num_classes, num = draw(st.integers(1, 4)), draw(st.integers(1, 30))
    grid = st.lists(
        st.integers(0, draw(st.integers(1, 9))), min_size=num_classes, max_size=num_classes
    )
    rows = draw(st.lists(grid.filter(any), min_size=num, max_size=num))
    last_label = draw(st.integers(0, num_classes - 1))
    labels = draw(st.lists(st.integers(0, last_label), min_size=num, max_size=num))
    counts = st.lists(st.integers(0, 4), min_size=num, max_size=num).filter(any)
    tables = draw(st.lists(counts, min_size=1, max_size=4))
    probs = np.array([np.array(row) / sum(row) for row in rows])
    return probs, np.array(labels), np.array(tables)


@given(resamplings())
def test_counts_are_physical_repetition(resampling):
    probs, labels, tables = resampling
    found = resampled(probs, labels, tables)
    expected = np.array([physically(probs, labels, counts) for counts in tables])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_counts_are_physical_repetition_of_many_slides(num_classes):
    rng = np.random.default_rng(num_classes)
    probs = rng.dirichlet(np.ones(num_classes), size=700).round(3)
    probs[:, 0] += 1 - probs.sum(axis=1)
    labels = (probs.cumsum(axis=1) < rng.random((700, 1))).sum(axis=1)
    tables = np.stack([np.bincount(rng.integers(0, 700, 700), minlength=700) for _ in range(5)])
    found = resampled(probs, labels, tables.astype(np.int32))
    expected = np.array([physically(probs, labels, counts) for counts in tables])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12, equal_nan=True)


def test_against_the_weights_of_sklearn():
    rng = np.random.default_rng(0)
    p = rng.integers(1, 20, 80) / 20
    labels, counts = (rng.random(80) < p).astype(int), rng.integers(0, 4, 80)
    probs = np.stack([1 - p, p], axis=1)
    (row,) = resampled(probs, labels, counts[None])
    found = dict(zip(METRIC_NAMES, row, strict=True))
    assert found["auc"] == pytest.approx(roc_auc_score(labels, p, sample_weight=counts))
    precision = average_precision_score(labels, p, sample_weight=counts)
    assert found["average_precision"] == pytest.approx(precision)
    predicted = probs.argmax(axis=1)
    assert found["f1"] == pytest.approx(f1_score(labels, predicted, sample_weight=counts))
    assert found["nll"] == pytest.approx(log_loss(labels, probs, sample_weight=counts))


def test_a_class_that_was_not_drawn():
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]])
    found = resampled(probs, np.array([0, 1, 1]), np.array([[2, 0, 0], [0, 1, 3]]))
    undefined = {
        name for name, value in zip(METRIC_NAMES, found[0], strict=True) if math.isnan(value)
    }
    assert undefined == {"auc", "kappa", "average_precision", "f1", "sensitivity_at_95_specificity"}
    undefined = {
        name for name, value in zip(METRIC_NAMES, found[1], strict=True) if math.isnan(value)
    }
    assert undefined == {"auc", "kappa", "average_precision", "sensitivity_at_95_specificity"}


def test_a_specificity_that_is_reached_exactly():
    # Drawn 19 times below the positive and once above it: 19 / 20 is specific enough.
    p = np.array([0.1, 0.5, 0.9])
    probs, labels = np.stack([1 - p, p], axis=1), np.array([0, 1, 0])
    found = resampled(probs, labels, np.array([[19, 3, 1], [18, 3, 1]]))
    column = METRIC_NAMES.index("sensitivity_at_95_specificity")
    assert found[:, column].tolist() == [1, 0]
