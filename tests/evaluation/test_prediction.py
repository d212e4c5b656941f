import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import Prediction, entropy


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(2, 5))
def test_from_samples_against_scipy_and_numpy(seed, num_samples, num_classes):
    rng = np.random.default_rng(seed)
    samples = rng.dirichlet(np.full(num_classes, 0.3), size=num_samples)
    prediction = Prediction.from_samples("s", "c", 1, samples)
    mean = samples.mean(0)
    expected = np.mean([scipy_entropy(row) for row in samples])
    np.testing.assert_allclose(prediction.probs, mean)
    np.testing.assert_allclose(prediction.entropy, scipy_entropy(mean), atol=1e-9)
    np.testing.assert_allclose(prediction.expected_entropy, expected, atol=1e-9)
    assert prediction.mutual_information >= 0
    # the mutual information is the mean divergence of the samples from their mean
    divergence = np.mean([scipy_entropy(row, mean) for row in samples])
    np.testing.assert_allclose(prediction.mutual_information, divergence, atol=1e-9)
    deviation = np.sqrt(((samples - mean) ** 2).sum(0) / max(num_samples - 1, 1))
    np.testing.assert_allclose(prediction.std, deviation, atol=1e-12)


def test_two_opposite_samples_are_all_model_uncertainty():
    prediction = Prediction.from_samples("s", "c", None, np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert prediction.entropy == pytest.approx(np.log(2))
    assert prediction.expected_entropy == 0
    assert prediction.mutual_information == pytest.approx(np.log(2))
    assert prediction.predicted_class == 0


def test_single_precision_samples_become_double():
    prediction = Prediction.from_samples("s", "c", 0, np.array([[0.25, 0.75]], dtype=np.float32))
    assert prediction.probs.dtype == np.float64


@pytest.mark.parametrize(
    "samples",
    [np.zeros((0, 2)), np.array([[np.nan, 1.0]]), np.array([[-0.5, 1.5]]), np.array([[2.0, 5.0]])],
)
def test_impossible_samples(samples):
    with pytest.raises(PredictionError, match="Expected"):
        Prediction.from_samples("s", "c", 0, samples)


def test_entropy_of_zero_probability():
    np.testing.assert_allclose(entropy(np.array([[0.0, 1.0], [0.5, 0.5]])), [0, np.log(2)])
