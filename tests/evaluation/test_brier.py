from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.errors import PredictionError
from sgpmil.evaluation.brier import brier_decomposition
from sgpmil.evaluation.calibration import brier_score

from .test_calibration import problems

PARTS = (
    "reliability",
    "resolution",
    "uncertainty",
    "within_bin_variance",
    "within_bin_covariance",
)


def exact_parts(probs, labels, num_bins):
    """Take the score apart with loops over exact fractions."""
    parts = [Fraction(0)] * 5
    n = len(labels)
    # The edges as numpy has them: a probability may be next to one.
    edges = [Fraction(edge) for edge in np.linspace(0, 1, num_bins + 1)[1:-1].tolist()]
    for c in range(len(probs[0])):
        bins: dict[int, list] = {}
        for row, y in zip(probs, labels, strict=True):
            p = Fraction(row[c])
            bins.setdefault(sum(edge <= p for edge in edges), []).append((p, int(y == c)))
        frequency = Fraction(sum(int(y == c) for y in labels), n)
        parts[2] += frequency * (1 - frequency)
        for members in bins.values():
            mean_p = sum(p for p, _ in members) / len(members)
            mean_o = Fraction(sum(o for _, o in members), len(members))
            parts[0] += len(members) * (mean_p - mean_o) ** 2 / n
            parts[1] += len(members) * (mean_o - frequency) ** 2 / n
            parts[3] += sum((p - mean_p) ** 2 for p, _ in members) / n
            parts[4] += 2 * sum((p - mean_p) * (o - mean_o) for p, o in members) / n
    return [float(part) for part in parts]


@given(problems(max_slides=25), st.integers(1, 12))
def test_against_exact_fractions(problem, num_bins):
    probs, labels = problem
    found = brier_decomposition(probs, labels, num_bins)
    expected = exact_parts(probs.tolist(), labels.tolist(), num_bins)
    np.testing.assert_allclose([getattr(found, name) for name in PARTS], expected, atol=1e-13)


@given(problems(), st.integers(1, 30))
def test_the_parts_are_the_score(problem, num_bins):
    probs, labels = problem
    found = brier_decomposition(probs, labels, num_bins)
    assert found.score == pytest.approx(brier_score(probs, labels), abs=1e-13)
    assert min(found.reliability, found.resolution, found.within_bin_variance) >= 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1)), min_size=1, max_size=40))
def test_murphy_where_the_probabilities_of_a_bin_are_equal(rows):
    # One value in the middle of each bin: for both classes the bins hold equal probabilities.
    p = np.array([(k + 0.5) / 10 for k, _ in rows])
    y = np.array([label for _, label in rows])
    found = brier_decomposition(p, y)
    assert found.within_bin_variance == pytest.approx(0, abs=1e-28)
    assert found.within_bin_covariance == pytest.approx(0, abs=1e-15)
    three = found.reliability - found.resolution + found.uncertainty
    assert three == pytest.approx(brier_score(p, y), abs=1e-14)


def test_by_hand():
    # Bin .2 has frequency 1/2 over two slides, bin .8 frequency 1 over two; overall 3/4.
    found = brier_decomposition([0.2, 0.2, 0.8, 0.8], [0, 1, 1, 1])
    assert found.reliability == pytest.approx(2 * (0.3**2 + 0.2**2) / 2)
    assert found.resolution == pytest.approx(2 * 0.25**2)
    assert found.uncertainty == pytest.approx(2 * 0.75 * 0.25)


def test_extremes():
    sure = brier_decomposition(np.eye(3), np.arange(3))
    assert (sure.reliability, sure.score) == (0, pytest.approx(0, abs=1e-15))
    assert sure.resolution == pytest.approx(sure.uncertainty)
    one_class = brier_decomposition([0.3, 0.4], [0, 0], num_bins=1)
    assert (one_class.uncertainty, one_class.resolution) == (0, 0)
    assert one_class.reliability == pytest.approx(2 * 0.35**2)
    assert one_class.within_bin_variance == pytest.approx(2 * 0.05**2)


def test_impossible_input():
    with pytest.raises(PredictionError, match="between 0 and 1"):
        brier_decomposition([1.5], [0])
    with pytest.raises(PredictionError, match="at least one bin"):
        brier_decomposition([0.5], [0], num_bins=0)
