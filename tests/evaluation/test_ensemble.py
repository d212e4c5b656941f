from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import entropy

from sgpmil.errors import PredictionError
from sgpmil.evaluation.ensemble import mixture
from sgpmil.evaluation.prediction import InstanceScores, Prediction


def samples(seed, num_samples=4000, classes=3):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.linspace(0.5, 2 + seed, classes), size=num_samples)


def of(values, slide_id="a", instances=None):
    return Prediction.from_samples(slide_id, "p", 1, values, instances)


def test_mixture_is_the_posterior_of_all_samples_together():
    each = [samples(seed) for seed in range(5)]
    found, pooled = mixture([of(values) for values in each]), of(np.concatenate(each))
    np.testing.assert_allclose(found.probs, pooled.probs)
    assert found.entropy == pytest.approx(pooled.entropy)
    assert found.expected_entropy == pytest.approx(pooled.expected_entropy)
    assert found.mutual_information == pytest.approx(pooled.mutual_information)
    # Between five models the variance is estimated with 4 degrees of freedom, not with all samples.
    means = np.stack([values.mean(0) for values in each])
    extra = means.var(0, ddof=1) - means.var(0)
    np.testing.assert_allclose(found.std, np.sqrt(pooled.std**2 + extra), rtol=1e-3)
    assert (found.slide_id, found.case_id, found.label) == ("a", "p", 1)


def test_disagreement_is_between_the_models_alone():
    same = samples(0)
    assert mixture([of(same), of(same[::-1])]).disagreement == pytest.approx(0, abs=1e-12)
    means = np.array([[0.9, 0.1], [0.3, 0.7]])
    found = mixture([of(mean[None]) for mean in means])
    expected = entropy(means.mean(0)) - np.mean([entropy(mean) for mean in means])
    assert found.disagreement == pytest.approx(expected)
    assert found.mutual_information == pytest.approx(expected)  # models without a posterior
    assert np.isnan(of(same).disagreement)


def scores(seed, n=6, classes=2):
    rng = np.random.default_rng(seed)
    draws = rng.normal(size=(500, n, classes)) + rng.normal(size=(n, classes))
    return draws, InstanceScores(
        attention_mean=draws[..., 0].mean(0),
        attention_std=draws[..., 0].std(0),
        evidence_mean=draws.mean(0),
        evidence_std=draws.std(0),
        margin_std=np.stack([(draws[..., c] - draws[..., 1 - c]).std(0) for c in (0, 1)], 1),
        single_mean=draws.mean(0),
        single_std=draws.std(0),
        novelty=rng.random(n),
    )


def test_scores_of_instances_have_the_spread_within_and_between_models():
    draws, known = zip(*[scores(seed) for seed in range(40)], strict=True)
    found = mixture([of(samples(1), instances=one) for one in known]).instances
    every = np.concatenate(draws)
    np.testing.assert_allclose(found.attention_mean, every[..., 0].mean(0))
    np.testing.assert_allclose(found.evidence_std, every.std(0), rtol=0.03)
    margin = every[..., 1] - every[..., 0]
    np.testing.assert_allclose(found.score_std("evidence", 1), margin.std(0), rtol=0.03)
    np.testing.assert_allclose(found.novelty, np.mean([one.novelty for one in known], axis=0))
    alone = np.mean([one.single_probability(1) for one in known], axis=0)
    np.testing.assert_allclose(found.single_probability(1), alone)


def test_scores_that_a_model_lacks_are_left_out():
    _, whole = scores(0)
    bare = InstanceScores(whole.attention_mean, whole.attention_std)
    found = mixture([of(samples(1), instances=one) for one in (whole, bare)]).instances
    assert found.kinds == ("attention",)
    assert mixture([of(samples(1), instances=whole), of(samples(1))]).instances is None


def test_novelty_of_several_models():
    novel = [
        replace(of(samples(0)), novel_share=s, novelty_p=p) for s, p in [(0.2, 0.01), (0.4, 0.03)]
    ]
    found = mixture(novel)
    assert found.novel_share == pytest.approx(0.3)
    assert found.novelty_p == pytest.approx(0.04)
    assert np.isnan(mixture([of(samples(0))] * 2).novelty_p)
    usual = [replace(one, novelty_p=0.9) for one in novel]
    assert mixture(usual).novelty_p == 1


def test_one_model_is_itself_and_different_slides_are_refused():
    one = of(samples(0))
    assert mixture([one]) is one
    with pytest.raises(PredictionError, match="one slide"):
        mixture([one, of(samples(0), slide_id="b")])
    with pytest.raises(PredictionError, match="at least one model"):
        mixture([])
