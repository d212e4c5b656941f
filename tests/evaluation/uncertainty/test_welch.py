import math
import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_ind
from statsmodels.stats.weightstats import ttest_ind as statsmodels_ttest_ind

from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.measures import UNCERTAINTY_MEASURES, uncertainty
from sgpmil.evaluation.uncertainty.welch import correct_versus_wrong
from tests.evaluation.tables import random_table, table_of
from tests.evaluation.uncertain_tables import built, slides


def table_with_std(correct, wrong):
    """Slides of the class 0, with these standard deviations, and entropies of the same size."""
    predictions = []
    for values, probs in ((correct, [0.8, 0.2]), (wrong, [0.2, 0.8])):
        for value in values:
            name = f"s{len(predictions)}"
            std = np.array([value, value])
            predictions.append(
                Prediction(name, name, 0, np.array(probs), std, float(value), 0.4, 0.1)
            )
    return PredictionTable(tuple(predictions), ("a", "b"))


@pytest.mark.parametrize("measure", UNCERTAINTY_MEASURES)
def test_against_scipy_and_statsmodels(measure):
    table = random_table(70, 3, seed=2)
    wrong = table.probs.argmax(axis=1) != table.labels
    values = uncertainty(table, measure)
    found = correct_versus_wrong(table, measure)
    two = ttest_ind(values[wrong], values[~wrong], equal_var=False)
    one = ttest_ind(values[wrong], values[~wrong], equal_var=False, alternative="greater")
    assert found.t == pytest.approx(two.statistic)
    assert found.dof == pytest.approx(two.df)
    assert found.p_two_sided == pytest.approx(two.pvalue)
    assert found.p_one_sided == pytest.approx(one.pvalue)
    t, p, dof = statsmodels_ttest_ind(values[wrong], values[~wrong], usevar="unequal")
    np.testing.assert_allclose((found.t, found.p_two_sided, found.dof), (t, p, dof))
    assert found.mean_wrong == pytest.approx(values[wrong].mean())
    assert found.mean_correct == pytest.approx(values[~wrong].mean())
    assert (found.num_wrong, found.num_correct) == (wrong.sum(), (~wrong).sum())
    assert found.note == ""


VALUES = st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=12)


@given(VALUES, VALUES)
def test_any_spreads_against_scipy(correct, wrong):
    assume(np.ptp(correct) + np.ptp(wrong) > 1e-4)
    found = correct_versus_wrong(table_with_std(correct, wrong), "std")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy's, for one constant group
        two = ttest_ind(wrong, correct, equal_var=False)
        one = ttest_ind(wrong, correct, equal_var=False, alternative="greater")
    assert found.t == pytest.approx(two.statistic, rel=1e-6, abs=1e-9)
    assert found.dof == pytest.approx(two.df, rel=1e-6)
    assert found.p_two_sided == pytest.approx(two.pvalue, rel=1e-5)
    assert found.p_one_sided == pytest.approx(one.pvalue, rel=1e-5)


def test_the_unit_does_not_matter():
    correct, wrong = np.array([1.0, 2.0, 4.0]), np.array([3.0, 6.0])
    expected = ttest_ind(wrong, correct, equal_var=False).statistic
    for unit in (1.0, 1e-3, 1e-200):  # the squares of the last vanish in floating point
        table = table_with_std(correct * unit, wrong * unit)
        assert correct_versus_wrong(table, "entropy").t == pytest.approx(expected)


@settings(max_examples=40)
@given(slides())
def test_never_a_number_by_accident(drawn):
    table = built(drawn)
    for measure in UNCERTAINTY_MEASURES:
        found = correct_versus_wrong(table, measure)
        test = (found.t, found.dof, found.p_two_sided, found.p_one_sided)
        assert all(map(math.isnan, test)) or all(map(math.isfinite, test))
        assert math.isnan(found.t) == bool(found.note)
        assert math.isnan(found.mean_wrong) or found.num_wrong > 0
        if not math.isnan(found.t):
            assert 0 <= found.p_one_sided <= 1
            assert min(found.num_wrong, found.num_correct) >= 2
            assert (found.t > 0) == (found.mean_wrong > found.mean_correct)


@pytest.mark.parametrize("num_wrong", [0, 1])
def test_one_wrong_slide_is_too_few(num_wrong):
    found = correct_versus_wrong(table_with_std([0.1, 0.2, 0.3], [0.9] * num_wrong), "std")
    assert math.isnan(found.t)
    assert math.isnan(found.p_two_sided)
    assert found.mean_correct == pytest.approx(0.2)
    assert math.isnan(found.mean_wrong) == (num_wrong == 0)
    assert found.note == (
        f"Welch's test needs two correct and two wrong slides, but there are 3 and {num_wrong}."
    )


def test_what_does_not_vary_has_no_test():
    # 0.1 is no binary fraction: the variance of equal ones is rounding, not zero.
    found = correct_versus_wrong(table_with_std([0.1] * 7, [0.1] * 3), "std")
    assert math.isnan(found.p_one_sided)
    assert "does not vary" in found.note
    apart = correct_versus_wrong(table_with_std([0.1] * 7, [0.3] * 3), "std")
    assert math.isnan(apart.t)


def test_a_model_without_a_posterior_has_no_test():
    table = table_of([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]], [0, 0, 1, 1])
    found = correct_versus_wrong(table, "std")
    assert math.isnan(found.t)
    assert found.note == "The predictions do not carry the measure 'std'."
    assert correct_versus_wrong(table, "entropy").note == ""
