import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import minmax_scale

from sgpmil.errors import ExplanationError
from sgpmil.explanation.maps import scaled


@pytest.fixture
def values(rng):
    # Ties, both signs, and some that lie far from the rest.
    return np.concatenate([rng.normal(size=50), np.repeat(0.3, 5), [40.0, -7.0]])


def test_absolute_leaves_scores_alone(values):
    assert np.array_equal(scaled(values, "absolute"), values)


def test_rank_is_that_of_pandas(values):
    expected = (pd.Series(values).rank(method="average").to_numpy() - 1) / (len(values) - 1)
    np.testing.assert_allclose(scaled(values, "rank"), expected, rtol=1e-12)
    assert scaled(values, "rank").min() == 0
    assert scaled(values, "rank").max() == 1


def test_minmax_is_that_of_scikit_learn(values):
    np.testing.assert_allclose(scaled(values, "minmax"), minmax_scale(values), atol=1e-12)


@pytest.mark.parametrize("scale", ["rank", "minmax"])
def test_equal_scores_are_in_the_middle(scale):
    assert scaled(np.full(7, 0.2), scale).tolist() == [0.5] * 7
    assert scaled(np.array([3.0]), scale).tolist() == [0.5]
    assert scaled(np.array([np.nan, 3.0]), scale)[1] == 0.5


@pytest.mark.parametrize("scale", ["rank", "minmax"])
def test_unknown_scores_stay_so_and_change_nothing_else(values, scale):
    with_unknown = np.insert(values, [0, 20, len(values)], np.nan)
    found = scaled(with_unknown, scale)
    assert np.isnan(found[[0, 21, -1]]).all()
    assert np.array_equal(found[~np.isnan(with_unknown)], scaled(values, scale))
    assert np.isnan(scaled(np.array([np.nan, np.nan]), scale)).all()


def test_minmax_of_the_largest_numbers_is_finite():
    largest = np.finfo(np.float64).max
    assert scaled(np.array([-largest, 0.0, largest]), "minmax").tolist() == [0, 0.5, 1]


def test_single_precision_is_ranked_as_it_is():
    close = np.array([1.0, np.nextafter(np.float32(1), np.float32(2))], dtype=np.float32)
    assert scaled(close, "rank").tolist() == [0, 1]


def test_what_is_no_scale_or_no_score_is_refused():
    # Without the types' own check, which would speak first.
    function = getattr(scaled, "__wrapped__", scaled)
    with pytest.raises(ExplanationError, match="'absolute', 'rank' or 'minmax', but got 'log'"):
        function(np.ones(2), "log")
    with pytest.raises(ExplanationError, match="infinite"):
        scaled(np.array([1.0, np.inf]), "rank")
