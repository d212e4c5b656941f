import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.measures import UNCERTAINTY_MEASURES, uncertainty
from sgpmil.evaluation.uncertainty.selective import COVERAGES, risk_coverage, selective_prediction
from tests.evaluation.tables import table_of
from tests.evaluation.uncertain_tables import built, slides

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
    empty = selective_prediction(PredictionTable((), ("a", "b")), "entropy")
    assert np.isnan([empty.aurc, empty.oracle_aurc, empty.excess_aurc, *empty.accuracies]).all()
    without = selective_prediction(table_of([[0.9, 0.1], [0.9, 0.1]], [0, 1]), "std")
    assert np.isnan(without.curve.risk).all()
    assert without.oracle_aurc == pytest.approx(0.25)
