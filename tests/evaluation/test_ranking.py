import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve
from torchmetrics.functional.classification import binary_sensitivity_at_specificity

from sgpmil.errors import PredictionError
from sgpmil.evaluation.ranking import (
    auroc,
    average_precision,
    roc_curve,
    sensitivity_at_specificity,
)

ITEMS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(-1e6, 1e6)), st.booleans()
    ),
    min_size=2,
    max_size=40,
).filter(lambda items: 0 < sum(positive for _, positive in items) < len(items))


def arrays(items):
    scores, positive = zip(*items, strict=True)
    return np.array(scores), np.array(positive)


@given(ITEMS)
def test_against_sklearn(items):
    scores, positive = arrays(items)
    assert auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
    expected = average_precision_score(positive, scores)
    assert average_precision(scores, positive) == pytest.approx(expected, abs=1e-12)


@given(ITEMS)
def test_auroc_counts_pairs(items):
    scores, positive = arrays(items)
    gaps = np.subtract.outer(scores[positive], scores[~positive])
    assert auroc(scores, positive) == pytest.approx(((gaps > 0) + 0.5 * (gaps == 0)).mean())


@given(ITEMS)
def test_roc_curve_against_sklearn(items):
    scores, positive = arrays(items)
    curve = roc_curve(scores, positive)
    fpr, tpr, _ = sklearn_roc_curve(positive, scores, drop_intermediate=False)
    np.testing.assert_allclose(curve.false_positive_rate, fpr)
    np.testing.assert_allclose(curve.true_positive_rate, tpr)


def test_undefined_is_nan():
    scores = np.array([0.1, 0.9])
    for positive in (np.array([True, True]), np.array([False, False])):
        assert math.isnan(auroc(scores, positive))
        assert roc_curve(scores, positive) is None
    assert math.isnan(average_precision(scores, np.array([False, False])))
    assert math.isnan(auroc(np.array([np.nan, 1.0]), np.array([True, False])))
    assert math.isnan(average_precision(np.array([np.nan, 1.0]), np.array([True, False])))


def over_every_threshold(scores, positive, specificity):
    """Try every threshold, and one above all, with exact shares."""
    best = Fraction(0)
    for threshold in {*scores}:
        called = [score >= threshold for score in scores]
        hits = sum(c and p for c, p in zip(called, positive, strict=True))
        spared = sum(not c and not p for c, p in zip(called, positive, strict=True))
        if Fraction(spared, positive.count(False)) >= specificity:
            best = max(best, Fraction(hits, positive.count(True)))
    return float(best)


shares = st.sampled_from([Fraction(k, 20) for k in range(21)] + [Fraction(1, 3), Fraction(2, 7)])


@given(
    st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=50).filter(
        lambda rows: len({positive for _, positive in rows}) == 2
    ),
    shares,
)
def test_against_every_threshold(rows, specificity):
    scores, positive = (list(column) for column in zip(*rows, strict=True))
    found = sensitivity_at_specificity(
        np.array(scores, dtype=float), np.array(positive), float(specificity)
    )
    assert found == over_every_threshold(scores, positive, specificity)


@pytest.mark.parametrize("specificity", [0.5, 0.8, 0.95])
def test_against_torchmetrics(specificity):
    rng = np.random.default_rng(0)
    scores, positive = rng.random(500), rng.random(500) < 0.4
    scores[positive] = np.sqrt(scores[positive])
    expected, _ = binary_sensitivity_at_specificity(
        torch.tensor(scores), torch.tensor(positive, dtype=torch.long), specificity
    )
    found = sensitivity_at_specificity(scores, positive, specificity)
    assert found == pytest.approx(float(expected), abs=1e-6)
    assert 0 < found < 1


def test_a_share_that_is_reached_exactly_counts():
    # 19 of 20 negatives are below .5, which is .95; a positive that ties with one is not above it.
    negatives = np.concatenate([np.full(19, 0.1), [0.5]])
    positives = np.array([0.5, 0.1, 0.6, 0.05])
    scores = np.concatenate([negatives, positives])
    positive = np.arange(24) >= 20
    assert sensitivity_at_specificity(scores, positive) == 0.5
    assert sensitivity_at_specificity(scores, positive, 0.96) == 0.25


def test_nothing_is_specific_enough():
    scores, positive = np.array([0.2, 0.9]), np.array([True, False])
    assert sensitivity_at_specificity(scores, positive) == 0
    assert sensitivity_at_specificity(scores, positive, 0.0) == 1


@pytest.mark.parametrize(
    ("scores", "positive"),
    [([0.5, 0.2], [True] * 2), ([0.5], [False]), ([np.nan, 1], [True, False])],
)
def test_undefined(scores, positive):
    found = sensitivity_at_specificity(np.array(scores, dtype=float), np.array(positive))
    assert math.isnan(found)


@pytest.mark.parametrize("specificity", [-0.1, 1.1, math.nan, 95.0])
def test_not_a_share(specificity):
    with pytest.raises(PredictionError, match="between 0 and 1"):
        sensitivity_at_specificity(np.array([0.0, 1.0]), np.array([False, True]), specificity)
