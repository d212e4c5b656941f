import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from sgpmil.errors import PredictionError
from sgpmil.evaluation.comparison.delong import auc_covariance, delong_test

SCORE = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(-1e3, 1e3))
SLIDES = st.lists(st.tuples(SCORE, SCORE, st.booleans()), min_size=4, max_size=25).filter(
    lambda rows: 2 <= sum(y for *_, y in rows) <= len(rows) - 2
)


def arrays(rows):
    a, b, positive = zip(*rows, strict=True)
    return np.array(a), np.array(b), np.array(positive)


def brute_force(scores, positive):
    """Take areas and covariance from the definition, pair by pair."""
    x, y = scores[:, positive], scores[:, ~positive]
    m, n = x.shape[1], y.shape[1]
    v10, v01 = np.zeros((len(scores), m)), np.zeros((len(scores), n))
    for r in range(len(scores)):
        for i in range(m):
            for j in range(n):
                psi = float(x[r, i] > y[r, j]) + 0.5 * float(x[r, i] == y[r, j])
                v10[r, i] += psi / n
                v01[r, j] += psi / m
    areas = v10.mean(axis=1)
    covariance = np.zeros((len(scores), len(scores)))
    for r in range(len(scores)):
        for s in range(len(scores)):
            s10 = sum((v10[r, i] - areas[r]) * (v10[s, i] - areas[s]) for i in range(m)) / (m - 1)
            s01 = sum((v01[r, j] - areas[r]) * (v01[s, j] - areas[s]) for j in range(n)) / (n - 1)
            covariance[r, s] = s10 / m + s01 / n
    return areas, covariance


@given(SLIDES)
def test_areas_and_covariance_against_every_pair(rows):
    a, b, positive = arrays(rows)
    scores = np.stack([a, b])
    areas, covariance = auc_covariance(scores, positive)
    expected_areas, expected = brute_force(scores, positive)
    np.testing.assert_allclose(areas, expected_areas, atol=1e-12)
    np.testing.assert_allclose(covariance, expected, atol=1e-12)


@given(SLIDES)
def test_test_follows_from_the_covariance(rows):
    a, b, positive = arrays(rows)
    areas, covariance = brute_force(np.stack([a, b]), positive)
    variance = np.array([1, -1]) @ covariance @ np.array([1, -1])
    found = delong_test(a, b, positive, "two-sided")
    assert found.auc_a == pytest.approx(roc_auc_score(positive, a))
    assert found.difference == pytest.approx(areas[0] - areas[1], abs=1e-12)
    if variance > 1e-9:
        z = (areas[0] - areas[1]) / math.sqrt(variance)
        assert found.statistic == pytest.approx(z, abs=1e-7)
        assert found.p_value == pytest.approx(2 * stats.norm.sf(abs(z)), abs=1e-7)
        upper = delong_test(a, b, positive, "greater").p_value
        assert upper == pytest.approx(stats.norm.sf(z), abs=1e-7)
        assert delong_test(a, b, positive, "less").p_value == pytest.approx(1 - upper)
        assert delong_test(b, a, positive, "less").p_value == pytest.approx(upper)
    assert (found.num_positive, found.num_negative) == (positive.sum(), (~positive).sum())


def correlated_scores(rng, num, gain_a=1.0, gain_b=1.0):
    positive = np.arange(num) % 3 == 0
    shared = rng.normal(size=num)
    a, b = (gain * positive + shared + 0.8 * rng.normal(size=num) for gain in (gain_a, gain_b))
    return a, b, positive


def test_standard_error_against_the_bootstrap(rng):
    a, b, positive = correlated_scores(rng, 300)
    rows_of = [np.flatnonzero(positive), np.flatnonzero(~positive)]
    differences = []
    for _ in range(400):
        rows = np.concatenate([rng.choice(group, len(group)) for group in rows_of])
        areas, _ = auc_covariance(np.stack([a[rows], b[rows]]), positive[rows])
        differences.append(areas[0] - areas[1])
    found = delong_test(a, b, positive)
    assert found.standard_error == pytest.approx(np.std(differences), rel=0.15)


def test_error_rate_under_the_null_and_power_beside_it(rng):
    p_values = [delong_test(*correlated_scores(rng, 90)).p_value for _ in range(1500)]
    share = np.mean(np.array(p_values) < 0.05)
    assert abs(share - 0.05) < 3 * math.sqrt(0.05 * 0.95 / 1500)
    better = [delong_test(*correlated_scores(rng, 90, gain_a=2.0)).p_value for _ in range(100)]
    assert np.mean(np.array(better) < 0.05) > 0.8


@given(SLIDES)
def test_a_score_and_its_monotone_image_are_equal(rows):
    a, _, positive = arrays(rows)
    ranks = stats.rankdata(a)
    for alternative in ("greater", "less", "two-sided"):
        found = delong_test(a, 3 * ranks - 7, positive, alternative)
        assert (found.statistic, found.p_value, found.reason) == (0.0, 1.0, "")


def test_undefined_is_nan_with_a_reason():
    scores = np.array([0.1, 0.2, 0.3, 0.4])
    other = np.array([0.4, 0.1, 0.2, 0.3])
    for positive, reason in (
        ([True] * 4, "a class has no slide"),
        ([False] * 4, "a class has no slide"),
        ([True, False, False, False], "a class has a single slide"),
    ):
        found = delong_test(scores, other, np.array(positive))
        assert math.isnan(found.p_value)
        assert math.isnan(found.standard_error)
        assert found.reason == reason
    both = np.array([False, False, True, True])
    found = delong_test(np.array([math.nan, 0.1, 0.2, 0.3]), other, both)
    assert math.isnan(found.p_value)
    assert found.reason == "a score is undefined"
    # One score parts the classes, the other turns them round: no slide says otherwise.
    found = delong_test(scores, -scores, both)
    assert (found.auc_a, found.auc_b, found.standard_error) == (1.0, 0.0, 0.0)
    assert math.isnan(found.p_value)
    assert "no spread" in found.reason


def test_a_single_positive_still_has_its_areas():
    positive = np.array([True, False, False])
    areas, covariance = auc_covariance(np.array([[0.5, 0.1, 0.9]]), positive)
    assert areas.tolist() == [0.5]
    assert np.isnan(covariance).all()


def test_bad_input(unchecked_shapes):
    scores = np.array([0.1, 0.2, 0.3])
    with pytest.raises(PredictionError, match="Align the slides"):
        delong_test(scores, scores[:2], np.array([True, False, True]))
    with pytest.raises(PredictionError, match="'larger'"):
        delong_test(scores, scores, np.array([True, False, True]), "larger")
