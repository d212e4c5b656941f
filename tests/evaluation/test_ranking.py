import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from sgpmil.evaluation.ranking import auroc, average_precision, roc_curve

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
