import itertools
import math
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_ind
from sklearn.metrics import roc_auc_score
from statsmodels.stats.weightstats import ttest_ind as statsmodels_ttest_ind

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.measures import (
    COVERAGES,
    UNCERTAINTY_MEASURES,
    correct_versus_wrong,
    error_auroc,
    risk_coverage,
    selective_prediction,
    slide_uncertainty,
    uncertainty,
    uncertainty_measure,
    wrong_slides,
)
from sgpmil.runs.prediction_files import read_predictions
from tests.evaluation.tables import random_table, table_of
from tests.evaluation.uncertain_tables import built, slides


def by_hand(prediction, measure):
    """Say a measure of one slide with Python numbers alone."""
    probs = [float(p) for p in prediction.probs]
    top = probs.index(max(probs))
    return {
        "std": float(prediction.std[top]),
        "mean_std": math.fsum(float(s) for s in prediction.std) / len(probs),
        "entropy": -math.fsum(p * math.log(p) for p in probs if p > 0),
        "expected_entropy": prediction.expected_entropy,
        "mutual_information": prediction.mutual_information,
        "max_probability": 1 - max(probs),
    }[measure]


@pytest.mark.parametrize("measure", UNCERTAINTY_MEASURES)
@pytest.mark.parametrize("num_classes", [2, 4])
def test_against_sklearn(measure, num_classes):
    table = random_table(80, num_classes, seed=5)
    values = [by_hand(p, measure) for p in table.predictions]
    np.testing.assert_allclose(uncertainty(table, measure), values)
    wrong = [int(np.argmax(p.probs)) != p.label for p in table.predictions]
    assert error_auroc(table, measure) == pytest.approx(roc_auc_score(wrong, values))


@settings(max_examples=40)
@given(slides())
def test_every_measure_slide_by_slide(drawn):
    table = built(drawn)
    for measure in UNCERTAINTY_MEASURES:
        expected = np.array([by_hand(p, measure) for p in table.predictions])
        np.testing.assert_allclose(slide_uncertainty(table, measure), expected, atol=1e-12)
        found = uncertainty(table, measure)
        of_posterior = measure in ("std", "mean_std", "mutual_information")
        if of_posterior and (expected <= 1e-9).all():
            assert np.isnan(found).all()
        else:
            np.testing.assert_allclose(found, expected, atol=1e-12)


@settings(max_examples=40)
@given(slides(min_classes=2))
def test_error_auroc_counts_pairs(drawn):
    table = built(drawn)
    wrong = np.array([int(np.argmax(p.probs)) != p.label for p in table.predictions])
    np.testing.assert_array_equal(wrong_slides(table), wrong)
    for measure in UNCERTAINTY_MEASURES:
        values = uncertainty(table, measure)
        gaps = np.subtract.outer(values[wrong], values[~wrong])
        found = error_auroc(table, measure)
        if gaps.size == 0 or np.isnan(gaps).any():
            assert math.isnan(found)
        else:
            assert found == pytest.approx(((gaps > 0) + 0.5 * (gaps == 0)).mean())


@pytest.mark.parametrize("measure", UNCERTAINTY_MEASURES)
def test_undefined_is_nan(measure):
    right = table_of([[0.9, 0.1], [0.2, 0.8]], [0, 1])
    wrong = table_of([[0.9, 0.1], [0.2, 0.8]], [1, 0])
    unlabelled = table_of([[0.9, 0.1]], [None])
    for table in (right, wrong, unlabelled):
        assert math.isnan(error_auroc(table, measure))


def test_a_model_without_a_posterior_is_not_half_right():
    table = table_of([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1])
    for measure in ("std", "mean_std", "mutual_information"):
        assert np.isnan(uncertainty(table, measure)).all()
        assert math.isnan(error_auroc(table, measure))
        np.testing.assert_array_equal(slide_uncertainty(table, measure), 0.0)
    for measure in ("entropy", "expected_entropy", "max_probability"):
        assert error_auroc(table, measure) == 1.0


def test_equal_samples_are_no_posterior():
    third = np.full((3, 3), 1 / 3)  # the mean of equal numbers may be off by a rounding step
    same = np.tile([0.1, 0.2, 0.7], (7, 1))
    predictions = tuple(
        Prediction.from_samples(str(i), str(i), 0, samples)
        for i, samples in enumerate((third, same, same[::-1]))
    )
    table = PredictionTable(predictions, ClassTarget(("a", "b", "c")))
    for measure in ("std", "mean_std", "mutual_information"):
        assert np.isnan(uncertainty(table, measure)).all()


def test_one_unknown_slide_makes_the_order_unknown():
    table = random_table(20, 2, seed=1)
    spoilt = replace(table.predictions[0], std=np.full(2, np.nan))
    table = PredictionTable((spoilt, *table.predictions[1:]), table.target)
    assert np.isnan(uncertainty(table, "std")).tolist() == [True, *[False] * 19]
    assert math.isnan(error_auroc(table, "std"))
    assert 0 <= error_auroc(table, "entropy") <= 1


def test_larger_is_less_certain():
    table = table_of([[0.99, 0.01], [0.5, 0.5]], [0, 1])
    np.testing.assert_allclose(uncertainty(table, "max_probability"), [0.01, 0.5])
    assert np.diff(uncertainty(table, "entropy"))[0] > 0


def test_table_without_the_measure(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("slide_id,label,p_0,p_1\na,0,0.9,0.1\nb,0,0.4,0.6\n")
    table = read_predictions(path)
    for measure in ("std", "mean_std", "expected_entropy", "mutual_information"):
        assert math.isnan(error_auroc(table, measure))
    assert error_auroc(table, "max_probability") == 1.0
    assert error_auroc(table, "entropy") == 1.0


def test_an_unknown_measure_is_refused():
    assert uncertainty_measure("mean_std") == "mean_std"
    with pytest.raises(PredictionError, match=r"got 'spread'\. Choose one of std, mean_std"):
        uncertainty_measure("spread")


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
    return PredictionTable(tuple(predictions), ClassTarget(("a", "b")))


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
    assert found.p_value == pytest.approx(one.pvalue)
    t, p, dof = statsmodels_ttest_ind(
        values[wrong], values[~wrong], usevar="unequal", alternative="larger"
    )
    np.testing.assert_allclose((found.t, found.p_value, found.dof), (t, p, dof))
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
    assert found.p_value == pytest.approx(one.pvalue, rel=1e-5)


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
        test = (found.t, found.dof, found.p_value)
        assert all(map(math.isnan, test)) or all(map(math.isfinite, test))
        assert math.isnan(found.t) == bool(found.note)
        assert math.isnan(found.mean_wrong) or found.num_wrong > 0
        if not math.isnan(found.t):
            assert 0 <= found.p_value <= 1
            assert min(found.num_wrong, found.num_correct) >= 2
            difference = found.mean_wrong - found.mean_correct
            assert math.isclose(difference, 0, abs_tol=1e-12) or (found.t > 0) == (difference > 0)


@pytest.mark.parametrize("num_wrong", [0, 1])
def test_one_wrong_slide_is_too_few(num_wrong):
    found = correct_versus_wrong(table_with_std([0.1, 0.2, 0.3], [0.9] * num_wrong), "std")
    assert math.isnan(found.t)
    assert math.isnan(found.p_value)
    assert found.mean_correct == pytest.approx(0.2)
    assert math.isnan(found.mean_wrong) == (num_wrong == 0)
    assert found.note == (
        f"Welch's test needs two correct and two wrong slides, but there are 3 and {num_wrong}."
    )


def test_what_does_not_vary_has_no_test():
    # 0.1 is no binary fraction: the variance of equal ones is rounding, not zero.
    found = correct_versus_wrong(table_with_std([0.1] * 7, [0.1] * 3), "std")
    assert math.isnan(found.p_value)
    assert "does not vary" in found.note
    apart = correct_versus_wrong(table_with_std([0.1] * 7, [0.3] * 3), "std")
    assert math.isnan(apart.t)


def test_a_model_without_a_posterior_has_no_test():
    table = table_of([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]], [0, 0, 1, 1])
    found = correct_versus_wrong(table, "std")
    assert math.isnan(found.t)
    assert found.note == "The predictions do not carry the measure 'std'."
    assert correct_versus_wrong(table, "entropy").note == ""


ITEMS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5]), st.booleans()), max_size=6)


def brute_force(values, wrong):
    """Average the risk over every order of the slides that the uncertainty allows."""
    n = len(values)
    total, orders = [Fraction(0)] * n, 0
    for order in itertools.permutations(range(n)):
        if all(values[a] <= values[b] for a, b in itertools.pairwise(order)):
            orders += 1
            errors = list(itertools.accumulate(int(wrong[i]) for i in order))
            total = [total[k] + Fraction(errors[k], k + 1) for k in range(n)]
    return [float(t / orders) for t in total]


def arrays(items):
    values = np.array([value for value, _ in items], dtype=np.float64)
    return values, np.array([wrong for _, wrong in items], dtype=bool)


@given(ITEMS)
def test_ties_are_in_expectation_over_their_orders(items):
    values, wrong = arrays(items)
    found = risk_coverage(values, wrong)
    np.testing.assert_allclose(found.risk, brute_force(values, wrong), atol=1e-12)
    np.testing.assert_allclose(found.coverage, np.arange(1, len(items) + 1) / max(1, len(items)))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_rows_does_not_matter(items, random):
    values, wrong = arrays(items)
    order = list(range(len(items)))
    random.shuffle(order)
    one, other = risk_coverage(values, wrong), risk_coverage(values[order], wrong[order])
    np.testing.assert_allclose(one.risk, other.risk, atol=1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.data())
def test_oracle_and_random_bound_the_area(mistakes, data):
    wrong = np.array(mistakes)
    n, errors = len(wrong), int(wrong.sum())
    value = st.floats(0, 1)
    values = np.array(data.draw(st.lists(value, min_size=n, max_size=n)))
    oracle = risk_coverage(wrong.astype(np.float64), wrong).aurc
    worst = risk_coverage(-wrong.astype(np.float64), wrong).aurc
    assert oracle - 1e-12 <= risk_coverage(values, wrong).aurc <= worst + 1e-12
    # Closed forms: the oracle's errors come last, and a tie of all is a random order.
    expected = sum(max(0, k - (n - errors)) / k for k in range(1, n + 1)) / n
    assert oracle == pytest.approx(expected)
    assert risk_coverage(np.zeros(n), wrong).aurc == pytest.approx(errors / n)


def test_distinct_uncertainties_against_a_loop(rng):
    values, wrong = rng.permutation(50).astype(float), rng.uniform(size=50) < 0.3
    found = risk_coverage(values, wrong)
    for k in range(1, 51):
        kept = [i for i in range(50) if values[i] < k]
        assert len(kept) == k
        assert found.risk[k - 1] == pytest.approx(sum(wrong[i] for i in kept) / k)
        assert found.accuracy_at(k / 50) == pytest.approx(1 - found.risk[k - 1])


@pytest.mark.parametrize(
    ("num_slides", "coverage", "kept"),
    [(10, 0.7, 7), (10, 0.71, 8), (1, 0.5, 1), (3, 0.5, 2), (10, 1.0, 10), (1000, 1e-6, 1)],
)
def test_at_least_the_coverage_is_kept(num_slides, coverage, kept):
    wrong = np.arange(num_slides) == kept - 1  # the last slide kept is the only error
    curve = risk_coverage(np.arange(num_slides, dtype=float), wrong)
    assert curve.accuracy_at(coverage) == pytest.approx(1 - 1 / kept)


@pytest.mark.parametrize("coverage", [0.0, -0.1, 1.1, math.nan])
def test_an_impossible_coverage(coverage):
    with pytest.raises(PredictionError, match="above 0 and up to 1"):
        risk_coverage(np.zeros(2), np.zeros(2, dtype=bool)).accuracy_at(coverage)


@settings(max_examples=40)
@given(slides())
def test_of_a_table(drawn):
    table = built(drawn)
    for measure in UNCERTAINTY_MEASURES:
        found = selective_prediction(table, measure)
        values = uncertainty(table, measure)
        wrong = table.probs.argmax(axis=1) != table.labels
        accuracy = 1 - wrong.mean()
        if np.isnan(values).any():
            assert np.isnan([found.aurc, found.excess_aurc, *found.accuracies]).all()
            continue
        assert found.accuracies[-1] == pytest.approx(accuracy)
        assert len(found.accuracies) == len(COVERAGES)
        if accuracy in (0.0, 1.0):
            assert found.excess_aurc == pytest.approx(0, abs=1e-12)
        if accuracy in (0.0, 1.0):
            assert found.aurc == 1 - accuracy
        else:
            assert found.excess_aurc == pytest.approx(found.aurc - found.oracle_aurc)
            assert found.excess_aurc >= -1e-12


def test_a_table_in_numbers():
    table = table_of([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]], [0, 1, 0, 1])
    found = selective_prediction(table, "max_probability")
    np.testing.assert_allclose(found.curve.risk, [0, 1 / 2, 1 / 3, 1 / 2])
    assert found.aurc == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert found.oracle_aurc == pytest.approx((1 / 3 + 2 / 4) / 4)
    assert found.accuracies == pytest.approx((1 / 2, 2 / 3, 1 / 2, 1 / 2, 1 / 2))


def test_no_slides_and_no_measure():
    empty = selective_prediction(PredictionTable((), ClassTarget(("a", "b"))), "entropy")
    assert np.isnan([empty.aurc, empty.oracle_aurc, empty.excess_aurc, *empty.accuracies]).all()
    without = selective_prediction(table_of([[0.9, 0.1], [0.9, 0.1]], [0, 1]), "std")
    assert np.isnan(without.curve.risk).all()
    assert without.oracle_aurc == pytest.approx(0.25)
