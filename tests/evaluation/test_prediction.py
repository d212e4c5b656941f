import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy

from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import InstanceScores, Prediction, entropy

from .tables import random_scores


def test_evidence_is_the_margin_and_ignores_a_common_shift():
    scores = random_scores(num=12, num_classes=4)
    shift = np.linspace(-3, 3, 12)[:, None]
    shifted = random_scores(num=12, num_classes=4, evidence_mean=scores.evidence_mean + shift)
    for c in range(4):
        others = [j for j in range(4) if j != c]
        expected = scores.evidence_mean[:, c] - scores.evidence_mean[:, others].mean(1)
        np.testing.assert_allclose(scores.score("evidence", c), expected)
        np.testing.assert_allclose(shifted.score("evidence", c), expected, atol=1e-12)


@pytest.mark.parametrize("num_classes", [1, 2, 3, 5])
def test_margin_std_is_that_of_sampled_weights(num_classes):
    rng = np.random.default_rng(3)
    weights = rng.gamma(2.0, size=(400, 7))
    logits = rng.normal(size=(7, num_classes))
    evidence = weights[:, :, None] * logits
    scores = InstanceScores(
        attention_mean=weights.mean(0),
        attention_std=weights.std(0, ddof=1),
        evidence_mean=evidence.mean(0),
        evidence_std=evidence.std(0, ddof=1),
    )
    for c in range(num_classes):
        others = np.delete(evidence, c, axis=2)
        margin = evidence[:, :, c] - (others.mean(2) if num_classes > 1 else 0)
        np.testing.assert_allclose(scores.score("evidence", c), margin.mean(0), atol=1e-12)
        np.testing.assert_allclose(scores.score_std("evidence", c), margin.std(0, ddof=1))


def test_attention_ignores_the_class():
    scores = random_scores()
    assert scores.score("attention", 0) is scores.score("attention", 1)
    assert scores.score_std("attention", 7) is scores.attention_std


def test_missing_evidence_and_unknown_class():
    bare = random_scores(evidence_mean=None, evidence_std=None)
    with pytest.raises(PredictionError, match="Use attention"):
        bare.score("evidence", 1)
    with pytest.raises(PredictionError, match="between 0 and 1, but got 2"):
        random_scores().score_std("evidence", 2)


@pytest.mark.usefixtures("unchecked_shapes")
def test_missing_scores_say_why():
    bare = random_scores()
    with pytest.raises(PredictionError, match=r"'single'.*have none.*earlier version.*predict"):
        bare.score("single", 1)
    with pytest.raises(PredictionError, match=r"'novelty'.*have none.*Train again"):
        bare.score_std("novelty", 1)
    with pytest.raises(PredictionError, match="'single' or 'novelty', but got 'beauty'"):
        bare.score("beauty", 1)
    assert bare.kinds == ("attention", "evidence")


def test_probability_of_a_patch_alone():
    mean = np.array([[-1.0, 1.0], [800.0, -800.0]])
    one = InstanceScores(np.ones(2), np.zeros(2), single_mean=mean, single_std=np.zeros((2, 2)))
    np.testing.assert_allclose(one.single_probability(1), [1 / (1 + np.exp(-1)), 0.0])
    given = np.array([[0.4, 0.6], [0.9, 0.1]])
    several = InstanceScores(
        np.ones(2), np.zeros(2), single_mean=mean, single_std=np.ones((2, 2)), single_prob=given
    )
    np.testing.assert_array_equal(several.single_probability(0), given[:, 0])
    np.testing.assert_array_equal(several.score("single", 0), mean[:, 0])


@pytest.mark.parametrize(
    "changes",
    [
        {"single_mean": np.ones((30, 2))},
        {"single_mean": np.ones((30, 3)), "single_std": np.ones((30, 3))},
        {"novelty": np.ones(4)},
        {"attention_std": np.ones(3)},
        {"evidence_std": None},
        {"evidence_mean": None},
        {"evidence_std": np.ones((30, 3))},
        {"coords": np.zeros((4, 2), int)},
        {"instance_labels": np.zeros(2, int)},
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_scores_of_different_instances(changes):
    with pytest.raises(PredictionError, match=r"Expected '\w+' of shape"):
        random_scores(**changes)


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
