import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from sgpmil.errors import PredictionError
from sgpmil.evaluation.comparison.significance import (
    better_alternative,
    corrected_t_test,
    holm,
    paired_t_test,
    wilcoxon_test,
)

ALTERNATIVES = ("greater", "less", "two-sided")
# Multiples of 1/64 subtract without rounding, so that ties and zeros are exact in the oracles.
GRID = st.integers(-64, 64).map(lambda k: k / 64)


def pairs(values, min_size=2, max_size=9):
    pair = st.tuples(values, values)
    return st.lists(pair, min_size=min_size, max_size=max_size).map(
        lambda rows: tuple(np.array(column, dtype=float) for column in zip(*rows, strict=True))
    )


@given(pairs(st.one_of(GRID, st.floats(0, 1))), st.sampled_from(ALTERNATIVES))
def test_t_test_against_scipy(pair, alternative):
    a, b = pair
    d = a - b
    found = paired_t_test(a, b, alternative)
    assert found.num_folds == len(a)
    assert found.difference == pytest.approx(d.mean(), abs=1e-11)
    if d.std(ddof=1) > 1e-6:
        expected = stats.ttest_rel(a, b, alternative=alternative)
        assert found.statistic == pytest.approx(expected.statistic, rel=1e-6)
        assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
        assert found.reason == ""


def test_t_test_by_hand():
    found = paired_t_test([0.5, 0.75, 1.0], [0.25, 0.25, 0.25])
    t = 0.5 / (0.25 / math.sqrt(3))
    # Student's distribution of two degrees of freedom has a closed form.
    assert found.statistic == pytest.approx(t)
    assert found.p_value == pytest.approx((1 - t / math.sqrt(2 + t**2)) / 2)


@given(pairs(GRID, min_size=3), st.integers(1, 50), st.integers(51, 200))
def test_correction_divides_t_by_the_published_factor(pair, num_test, num_train):
    a, b = pair
    plain = paired_t_test(a, b, "two-sided")
    corrected = corrected_t_test(a, b, "two-sided", num_train=num_train, num_test=num_test)
    if math.isnan(plain.statistic):
        assert math.isnan(corrected.p_value)
        return
    factor = math.sqrt(1 + len(a) * num_test / num_train)
    assert corrected.statistic == pytest.approx(plain.statistic / factor)
    expected = 2 * stats.t.sf(abs(plain.statistic / factor), len(a) - 1)
    assert corrected.p_value == pytest.approx(1.0 if not plain.statistic else expected)


def test_correction_takes_the_sizes_of_each_fold():
    a, b = [0.9, 0.8, 0.7], [0.8, 0.75, 0.4]
    found = corrected_t_test(a, b, num_train=[10, 20, 40], num_test=[5, 5, 5])
    d = np.subtract(a, b)
    ratio = (5 / 10 + 5 / 20 + 5 / 40) / 3
    t = d.mean() / math.sqrt((1 / 3 + ratio) * d.var(ddof=1))
    assert found.statistic == pytest.approx(t)
    assert found.p_value == pytest.approx(stats.t.sf(t, 2))


@pytest.mark.parametrize(
    ("num_train", "num_test"), [(0, 5), (10, 0), (-3, 5), ([10, 20], 5), ([10, 10, 0], 5)]
)
def test_impossible_sizes(num_train, num_test):
    with pytest.raises(PredictionError, match="Give the sizes of the split"):
        corrected_t_test([1.0, 2.0, 3.0], [0.0, 0.0, 1.0], num_train=num_train, num_test=num_test)


def brute_force_wilcoxon(a, b, alternative):
    """Enumerate every sign of the ranks."""
    d = a - b
    d = d[d != 0]
    ranks = stats.rankdata(np.abs(d))
    observed = ranks[d > 0].sum()
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product([False, True], repeat=len(d))
    ]
    above = np.mean([s >= observed for s in sums])
    below = np.mean([s <= observed for s in sums])
    p = {"greater": above, "less": below, "two-sided": min(1, 2 * min(above, below))}
    return observed, p[alternative]


@given(pairs(GRID, min_size=1), st.sampled_from(ALTERNATIVES))
def test_wilcoxon_with_ties_and_zeros_against_all_signs(pair, alternative):
    found = wilcoxon_test(*pair, alternative)
    statistic, p_value = brute_force_wilcoxon(*pair, alternative)
    assert found.statistic == pytest.approx(statistic)
    assert found.p_value == pytest.approx(p_value)
    assert found.num_folds == len(pair[0])


@pytest.mark.parametrize("num", [3, 10, 30])
@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_wilcoxon_without_ties_against_scipy(num, alternative, rng):
    a, b = rng.normal(0.2, 1, num), rng.normal(size=num)
    expected = stats.wilcoxon(a, b, alternative=alternative, method="exact")
    assert wilcoxon_test(a, b, alternative).p_value == pytest.approx(expected.pvalue)


def test_wilcoxon_ranks_equal_differences_of_unequal_floats_alike():
    a, b = np.array([0.3, 0.9, 0.1]), np.array([0.2, 0.8, 0.2])
    assert len(set(np.abs(a - b))) > 1
    assert wilcoxon_test(a, b).statistic == 4.0  # two of three ranks of 2
    # 0.1 + 0.2 is not 0.3 in binary, yet no fold differs.
    assert wilcoxon_test([0.1 + 0.2, 1.0], [0.3, 1.0]).p_value == 1.0


@pytest.mark.parametrize("num", [1, 4, 5])
def test_smallest_p_of_wilcoxon(num):
    assert wilcoxon_test(np.arange(1.0, num + 1), np.zeros(num)).p_value == 0.5**num


@given(pairs(st.floats(0, 1), min_size=1), st.sampled_from(["greater", "less"]))
def test_swapping_systems_swaps_the_alternative(pair, alternative):
    a, b = pair
    other = {"greater": "less", "less": "greater"}[alternative]
    for test in (paired_t_test, wilcoxon_test):
        one, back = test(a, b, alternative), test(b, a, other)
        assert one.p_value == pytest.approx(back.p_value, nan_ok=True)
        assert one.difference == pytest.approx(-back.difference)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_no_difference_at_all_is_p_1(alternative):
    values = [0.7, 0.8, 0.9]
    assert paired_t_test(values, values, alternative).p_value == 1.0
    sizes = {"num_train": 8, "num_test": 2}
    assert corrected_t_test(values, values, alternative, **sizes).p_value == 1.0
    assert wilcoxon_test(values, values, alternative).p_value == 1.0


def test_the_same_difference_in_every_fold_has_no_t():
    # As floats, these differences differ in the last bit; t would be about 1e16.
    a, b = np.array([0.9, 0.8, 0.7]), np.array([0.8, 0.7, 0.6])
    assert np.std(a - b) > 0
    for test in (
        paired_t_test(a, b),
        corrected_t_test(a, b, num_train=8, num_test=2),
        paired_t_test(b, a),
    ):
        assert math.isnan(test.p_value)
        assert test.reason == "the difference is the same in every fold"
        assert abs(test.difference) == pytest.approx(0.1)
    assert wilcoxon_test(a, b).p_value == 0.125


def test_one_fold_and_none():
    one = paired_t_test([0.9], [0.8])
    assert (one.num_folds, round(one.difference, 12)) == (1, 0.1)
    assert math.isnan(one.p_value)
    assert "single fold" in one.reason
    assert wilcoxon_test([0.9], [0.8]).p_value == 0.5
    for test in (paired_t_test, wilcoxon_test):
        none = test([math.nan, 1.0], [1.0, math.nan])
        assert math.isnan(none.p_value)
        assert math.isnan(none.difference)
        assert none.num_folds == 0
        assert "no fold" in none.reason


def test_folds_without_the_metric_are_left_out():
    a, b = [0.9, math.nan, 0.8, 0.7, 0.6], [0.7, 0.1, 0.75, math.nan, 0.5]
    kept = ([0.9, 0.8, 0.6], [0.7, 0.75, 0.5])
    assert paired_t_test(a, b) == paired_t_test(*kept)
    assert wilcoxon_test(a, b) == wilcoxon_test(*kept)
    assert paired_t_test(a, b).num_folds == 3


def test_bad_input(unchecked_shapes):
    with pytest.raises(PredictionError, match=r"shapes \(2,\) and \(3,\)"):
        paired_t_test([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(PredictionError, match="infinite"):
        wilcoxon_test([1.0, math.inf], [1.0, 2.0])
    with pytest.raises(PredictionError, match="'larger'"):
        paired_t_test([1.0, 2.0], [1.0, 2.0], "larger")


def test_direction_of_the_metrics():
    assert {better_alternative(m) for m in ("accuracy", "auc", "kappa", "evidence_ap")} == {
        "greater"
    }
    assert {better_alternative(m) for m in ("ace", "ece", "nll", "brier")} == {"less"}
    with pytest.raises(PredictionError, match="'loss'"):
        better_alternative("loss")


P_VALUES = st.lists(
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.05, 1.0])), min_size=1, max_size=12
)


@given(P_VALUES)
def test_holm_against_its_step_down_procedure(p_values):
    """A test is rejected at a level just when the procedure has not stopped before it."""
    adjusted = holm(p_values)
    order = np.argsort(p_values, kind="stable")
    for alpha in (0.001, 0.03, 0.05, 0.2, 0.7):
        going = True
        for step, test in enumerate(order):
            going = going and p_values[test] * (len(p_values) - step) <= alpha
            assert (adjusted[test] <= alpha) == going


@settings(max_examples=6, deadline=None)
@given(P_VALUES)
def test_holm_against_statsmodels(p_values):
    _, expected, _, _ = multipletests(p_values, method="holm")
    np.testing.assert_allclose(holm(p_values), expected)


def test_holm_leaves_out_what_was_not_tested():
    adjusted = holm([0.01, math.nan, 0.04])
    assert adjusted[0] == pytest.approx(0.02)
    assert math.isnan(adjusted[1])
    assert adjusted[2] == pytest.approx(0.04)
    assert all(math.isnan(p) for p in holm([math.nan, math.nan]))
    assert holm([]) == ()
    with pytest.raises(PredictionError, match="between 0 and 1"):
        holm([0.5, 1.5])


def rejections(p_values, alpha=0.05):
    return np.mean(np.array(p_values) < alpha)


def test_error_rate_is_nominal_for_independent_folds(rng):
    differences = rng.normal(size=(1000, 8))
    zeros = np.zeros(8)
    share = rejections([paired_t_test(d, zeros).p_value for d in differences])
    # Three standard errors of a share of 1000.
    assert abs(share - 0.05) < 3 * math.sqrt(0.05 * 0.95 / 1000)
    share = rejections([wilcoxon_test(d, zeros).p_value for d in differences])
    attained = max(p for p in attained_levels(8) if p < 0.05)
    assert abs(share - attained) < 3 * math.sqrt(0.05 * 0.95 / 1000)


def attained_levels(num):
    return {
        wilcoxon_test(np.array(signs) * np.arange(1.0, num + 1), np.zeros(num)).p_value
        for signs in itertools.product([-1.0, 1.0], repeat=num)
    }


def test_overlapping_training_sets_deceive_the_plain_test_and_not_the_corrected_one(rng):
    """Two classifiers, each of a feature of its own, that are equally good by construction."""
    num_trials, num_folds, num_slides, num_test = 400, 15, 60, 12
    labels = np.arange(num_slides) % 2
    features = rng.normal(size=(num_trials, 2, num_slides)) + 0.8 * labels
    correct = np.empty((num_trials, 2, num_folds))
    for fold in range(num_folds):
        order = rng.permutation(num_slides)
        test, train = order[:num_test], order[num_test:]
        centres = [features[..., train[labels[train] == c]].mean(-1) for c in (0, 1)]
        threshold = sum(centres)[..., None] / 2
        upwards = (centres[1] > centres[0])[..., None]
        predicted = (features[..., test] > threshold) == upwards
        correct[..., fold] = (predicted == labels[test]).mean(-1)
    sizes = {"num_train": num_slides - num_test, "num_test": num_test}
    plain = rejections([paired_t_test(a, b).p_value for a, b in correct])
    corrected = rejections([corrected_t_test(a, b, **sizes).p_value for a, b in correct])
    assert plain > 0.15
    assert corrected < 0.05 + 3 * math.sqrt(0.05 * 0.95 / num_trials)
    assert corrected > 0
