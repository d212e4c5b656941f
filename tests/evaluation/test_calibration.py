import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import (
    adaptive_calibration_error,
    brier_decomposition,
    brier_score,
    calibrated_ece,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_curve,
)

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "ace.json"


def brute_force_ace(probs, labels, num_bins):
    """Sort, cut and average with loops over Python numbers."""
    total = 0.0
    num_classes = len(probs[0])
    for c in range(num_classes):
        kept = [(row[c], y == c) for row, y in zip(probs, labels, strict=True) if row[c] > 0]
        n = len(kept)
        if n == 0:
            continue
        ascending = sorted(p for p, _ in kept)
        edges = [ascending[min(round(k * n / num_bins), n - 1)] for k in range(1, num_bins)]
        bins: dict[int, list] = {}
        for p, t in kept:
            bins.setdefault(sum(edge <= p for edge in edges), []).append((p, t))
        for members in bins.values():
            mean_p = math.fsum(p for p, _ in members) / len(members)
            mean_t = sum(t for _, t in members) / len(members)
            total += len(members) / n * abs(mean_t - mean_p)
    return total / num_classes


@st.composite
def problems(draw, max_slides=60):
    """Rows of small whole numbers, normalised: full of ties and zeros."""
    num_classes = draw(st.integers(2, 5))
    rows = draw(
        st.lists(
            st.lists(st.integers(0, 6), min_size=num_classes, max_size=num_classes).filter(any),
            min_size=1,
            max_size=max_slides,
        )
    )
    label = st.integers(0, num_classes - 1)
    labels = draw(
        st.one_of(
            st.lists(label, min_size=len(rows), max_size=len(rows)),
            label.map(lambda one: [one] * len(rows)),
        )
    )
    probs = np.array([np.array(row) / sum(row) for row in rows])
    return probs, np.array(labels)


@pytest.mark.skipif(not GOLDEN.is_file(), reason=f"reference values are not at {GOLDEN}")
def test_ace_golden():
    cases = json.loads(GOLDEN.read_text())
    assert cases
    for case in cases:
        found = adaptive_calibration_error(
            np.array(case["probs"]), np.array(case["labels"]), case["num_bins"]
        )
        assert found == pytest.approx(case["ace"], abs=1e-9)


def test_ace_by_hand():
    # Class 1 keeps .25, 1, 1; the edge is the sorted value at round(1.5) = 2, which is 1:
    # bins {.25}, {1, 1}; error (1 · |0 - .25| + 2 · |1 - 1|) / 3 = 1/12.
    # Class 0 keeps 1, .75; the edge at position 1 is 1: bins {.75}, {1}; error .25 / 2 = 1/8.
    probs = np.array([[1.0, 0.0], [0.75, 0.25], [0.0, 1.0], [0.0, 1.0]])
    found = adaptive_calibration_error(probs, np.array([0, 0, 1, 1]), num_bins=2)
    assert found == pytest.approx((1 / 12 + 1 / 8) / 2)


@given(problems(), st.integers(1, 15))
def test_ace_against_brute_force(problem, num_bins):
    probs, labels = problem
    expected = brute_force_ace(probs.tolist(), labels.tolist(), num_bins)
    assert adaptive_calibration_error(probs, labels, num_bins) == pytest.approx(expected, abs=1e-12)


def test_ace_of_one_dimension_is_that_of_both_columns():
    p = np.array([0.0, 0.2, 0.4, 0.9, 1.0])
    y = np.array([0, 1, 0, 1, 1])
    both = np.stack([1 - p, p], axis=1)
    assert adaptive_calibration_error(p, y) == adaptive_calibration_error(both, y)
    assert adaptive_calibration_error(p.tolist(), y.tolist()) == adaptive_calibration_error(both, y)


def test_ace_of_certain_and_right_is_zero():
    assert adaptive_calibration_error(np.eye(3), np.arange(3)) == 0


def test_ace_without_ties_weights_bins_equally():
    rng = np.random.default_rng(0)
    p, y = rng.random(100), rng.integers(0, 2, 100)
    order = np.argsort(p)
    gaps = [abs(y[part].mean() - p[part].mean()) for part in np.split(order, 10)]
    assert adaptive_calibration_error(p, y) == pytest.approx(np.mean(gaps))


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(2, 20))
def test_ece_against_torchmetrics(seed, num_classes, num_bins):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(num_classes), size=50)
    labels = rng.integers(0, num_classes, 50)
    expected = multiclass_calibration_error(
        torch.tensor(probs), torch.tensor(labels), num_classes, n_bins=num_bins, norm="l1"
    )
    found = expected_calibration_error(probs, labels, num_bins)
    assert found == pytest.approx(float(expected), abs=1e-6)


def test_ece_puts_certainty_into_the_last_bin():
    probs = np.array([[0.0, 1.0], [0.05, 0.95]])
    # one bin: accuracy 1/2, confidence .975
    assert expected_calibration_error(probs, np.array([1, 0])) == pytest.approx(0.475)


def test_reliability_curve_by_hand():
    probs = np.array([[0.45, 0.55], [0.42, 0.58], [0.3, 0.7], [0.0, 1.0]])
    curve = reliability_curve(probs, np.array([1, 0, 1, 1]), num_bins=4)
    np.testing.assert_array_equal(curve.bin_index, [2, 3])
    np.testing.assert_array_equal(curve.count, [3, 1])
    np.testing.assert_allclose(curve.confidence, [(0.55 + 0.58 + 0.7) / 3, 1.0])
    np.testing.assert_allclose(curve.accuracy, [2 / 3, 1.0])


@given(problems())
def test_brier_against_loops_and_sklearn(problem):
    probs, labels = problem
    loops = np.mean(
        [
            sum((p - (c == y)) ** 2 for c, p in enumerate(row))
            for row, y in zip(probs, labels, strict=True)
        ]
    )
    assert brier_score(probs, labels) == pytest.approx(loops)
    if probs.shape[1] == 2:
        binary = brier_score_loss(labels, probs[:, 1], pos_label=1, labels=[0, 1])
        assert brier_score(probs, labels) == pytest.approx(2 * binary)
        assert brier_score(probs[:, 1], labels) == pytest.approx(2 * binary)


@given(st.integers(0, 10_000), st.integers(2, 5))
def test_nll_against_sklearn(seed, num_classes):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(num_classes, 0.5), size=20).clip(1e-9)
    probs /= probs.sum(1, keepdims=True)
    labels = rng.integers(0, num_classes, 20)
    expected = log_loss(labels, probs, labels=list(range(num_classes)))
    assert negative_log_likelihood(probs, labels) == pytest.approx(expected)


def test_nll_of_impossible_label_is_clipped():
    assert negative_log_likelihood(np.array([[1.0, 0.0]]), np.array([1])) == pytest.approx(
        12 * math.log(10)
    )


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (np.zeros((0, 2)), np.zeros(0, int), "Expected probabilities"),
        (np.ones((2, 2)) / 2, np.zeros(3, int), "got shapes"),
        (np.array([[2.0, -1.0]]), np.array([0]), "between 0 and 1"),
        (np.array([[np.nan, 0.5]]), np.array([0]), "between 0 and 1"),
        (np.array([[0.5, 0.5]]), np.array([2]), "from 0 to 1, but got 2"),
        (np.array([[0.5, 0.5]]), np.array([0.5]), "but got 0.5"),
    ],
)
def test_impossible_input(probs, labels, message):
    for metric in (
        adaptive_calibration_error,
        expected_calibration_error,
        brier_score,
        negative_log_likelihood,
    ):
        with pytest.raises(PredictionError, match=message):
            metric(probs, labels)


def test_no_bins():
    with pytest.raises(PredictionError, match="at least one bin"):
        adaptive_calibration_error(np.array([0.5]), np.array([0]), num_bins=0)


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


def test_impossible_input_of_the_decomposition():
    with pytest.raises(PredictionError, match="between 0 and 1"):
        brier_decomposition([1.5], [0])
    with pytest.raises(PredictionError, match="at least one bin"):
        brier_decomposition([0.5], [0], num_bins=0)


def test_the_ece_of_a_calibrated_model_lies_in_its_range():
    rng = np.random.default_rng(0)
    probs = rng.uniform(0.5, 1, 60)
    low, high = calibrated_ece(probs)
    drawn = [
        expected_calibration_error(probs, (rng.uniform(size=60) < probs).astype(int))
        for _ in range(400)
    ]
    inside = np.mean([low <= value <= high for value in drawn])
    assert 0.92 <= inside <= 0.98
    # Labels that are always right, or never, are not of these probabilities.
    assert expected_calibration_error(probs, np.zeros(60, int)) > high


def test_the_range_of_several_classes():
    probs = np.array([[0.2, 0.3, 0.5]] * 50)
    low, high = calibrated_ece(probs)
    # The accuracy of 50 slides is binomial with chance .5, so that its distance from .5 is known.
    from scipy.stats import binom

    distance = np.abs(binom.rvs(50, 0.5, size=4000, random_state=0) / 50 - 0.5)
    assert (low, high) == pytest.approx(np.quantile(distance, (0.025, 0.975)), abs=0.021)


def test_the_range_of_folds_is_of_the_mean_of_their_errors():
    rng = np.random.default_rng(1)
    folds = [rng.dirichlet([1, 2, 3], size) for size in (8, 20)]
    means = []
    for _ in range(2000):
        drawn = [[rng.choice(3, p=row) for row in fold] for fold in folds]
        pairs = zip(folds, drawn, strict=True)
        means.append(np.mean([expected_calibration_error(*pair) for pair in pairs]))
    found = calibrated_ece(*folds, rounds=4000)
    assert found == pytest.approx(np.quantile(means, (0.025, 0.975)), abs=0.015)
    with pytest.raises(PredictionError, match="between 0 and 1"):
        calibrated_ece([[-0.5, 1.5]])
