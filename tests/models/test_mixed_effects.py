import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from sgpmil.gp.noise import FreshNoise, RepeatableNoise, ZeroNoise
from sgpmil.models.mixed_effects import COVARIANCES, EffectPosterior, fit_mean_model

P, Q = 2, 3

both_covariances = pytest.mark.parametrize("covariance", COVARIANCES)


def posterior_away_from_its_start(covariance):
    torch.manual_seed(0)
    posterior = EffectPosterior(P, Q, covariance).double()
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.normal_()
    return posterior


def covariances(posterior):
    """The covariance matrix of each output."""
    if posterior.is_full:
        return posterior.factor @ posterior.factor.mT + 1e-4 * torch.eye(2 * Q)
    return posterior.log_variance.exp().diag_embed()


@both_covariances
def test_kl_is_that_of_torch(covariance):
    posterior = posterior_away_from_its_start(covariance)
    expected = 0.0
    for p in range(P):
        scales = torch.cat(
            [
                posterior.attention_log_scale[p].exp().expand(Q),
                posterior.bag_log_scale[p].exp().expand(Q),
            ]
        )
        q = MultivariateNormal(posterior.mean[p], covariances(posterior)[p])
        prior = MultivariateNormal(torch.zeros(2 * Q).double(), scales.square().diag())
        expected += kl_divergence(q, prior)
    assert torch.allclose(posterior.kl(), expected)
    single = posterior.float().kl()
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), expected, rtol=1e-5)


@torch.no_grad()
@both_covariances
def test_draws_have_the_moments_of_the_posterior(covariance):
    posterior = posterior_away_from_its_start(covariance)
    torch.manual_seed(1)
    count = 100_000
    draws = posterior.draw(FreshNoise(), count)
    spread = covariances(posterior).diagonal(dim1=1, dim2=2).sqrt()
    assert ((draws.mean(0) - posterior.mean) / spread).abs().max() < 4.5 / count**0.5
    flat = draws.flatten(1).T.cov()
    expected = torch.block_diag(*covariances(posterior))  # outputs are independent
    scale = spread.flatten()
    assert ((flat - expected) / (scale[:, None] * scale)).abs().max() < 6 / count**0.5


@torch.no_grad()
def test_a_singular_factor_still_has_the_jitter():
    posterior = posterior_away_from_its_start("full")
    posterior.factor.zero_()
    torch.manual_seed(0)
    draws = posterior.draw(FreshNoise(), 20_000)
    assert (draws.std(0) / 1e-2 - 1).abs().max() < 0.03
    assert posterior.kl().isfinite()


@both_covariances
def test_no_noise_gives_the_mean(covariance):
    posterior = posterior_away_from_its_start(covariance)
    draws = posterior.draw(ZeroNoise(), 3)
    assert torch.equal(draws, posterior.mean.expand(3, -1, -1))


@both_covariances
def test_a_seed_gives_the_same_functions_in_any_precision(covariance):
    """Each function has statistics of its own, which a change of precision must not orphan."""
    posterior = posterior_away_from_its_start(covariance)
    double = posterior.draw(RepeatableNoise(2), 4)
    single = posterior.float().draw(RepeatableNoise(2), 4)
    assert (double - single).abs().max() < 1e-4
    assert double.dtype == torch.float64
    assert double.std(0).min() > 0


@both_covariances
def test_start_from_bag_effects(covariance):
    torch.manual_seed(0)
    posterior = EffectPosterior(P, 40, covariance).double()
    effects = torch.tensor([[0.5], [3.0]]) * torch.randn(P, 40).double()
    posterior.start(effects, torch.Generator().manual_seed(3))
    mean_square = effects.square().mean(1, keepdim=True)
    assert torch.equal(posterior.mean, torch.cat([torch.zeros(P, 40), effects], 1))
    if covariance == "full":
        matrix = posterior.factor @ posterior.factor.mT
        variance = matrix.diagonal(dim1=1, dim2=2)
        off = matrix - variance.diag_embed()
        assert 0 < off.abs().max() < 3e-3
    else:
        variance = posterior.log_variance.exp()
    assert torch.allclose(variance[:, :40], torch.full((P, 40), 0.1).double(), rtol=1e-2)
    expected = (0.1 * mean_square).expand(P, 40)
    assert torch.allclose(variance[:, 40:], expected, rtol=1e-2)
    assert torch.allclose(posterior.attention_log_scale.exp() ** 2, torch.tensor(0.1).double())
    # The scale with the least divergence, found by its gradient.
    assert torch.allclose(posterior.bag_log_scale.exp() ** 2, 1.1 * mean_square.squeeze(1))
    posterior.kl().backward()
    for scale in (posterior.attention_log_scale, posterior.bag_log_scale):
        assert scale.grad.abs().max() < 0.1  # of 40 effects each; the factor has some noise


def test_kl_of_a_start_is_that_of_independent_normals():
    """Nearly: the full covariance starts close to a diagonal one."""
    torch.manual_seed(0)
    effects = torch.randn(1, 5).double()
    full, field = (EffectPosterior(1, 5, name).double() for name in ("full", "mean_field"))
    for posterior in (full, field):
        posterior.start(effects, torch.Generator().manual_seed(0))
    assert full.kl().item() == pytest.approx(field.kl().item(), rel=1e-2)
    rms = effects.square().mean().sqrt()
    scale = torch.cat([torch.full((5,), 0.1).double().sqrt(), 0.1**0.5 * rms.expand(5)])
    prior = torch.cat([torch.full((5,), 0.1).double().sqrt(), 1.1**0.5 * rms.expand(5)])
    mean = torch.cat([torch.zeros(5).double(), effects[0]])
    zero = torch.zeros(10).double()
    expected = kl_divergence(
        Independent(Normal(mean, scale), 1), Independent(Normal(zero, prior), 1)
    )
    assert torch.allclose(field.kl(), expected, rtol=1e-6)


def test_autocast_does_not_reach_the_divergence():
    torch.manual_seed(0)
    posterior = EffectPosterior(1, 60, "full")
    expected = posterior.double().kl()
    posterior.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (posterior.factor[0] @ posterior.factor[0]).dtype == torch.bfloat16
        assert torch.allclose(posterior.kl().double(), expected, rtol=1e-5)
        assert posterior.draw(RepeatableNoise(), 2).dtype == torch.float32


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_the_divergence_has_the_gradient_of_central_differences(num_outputs):
    torch.manual_seed(0)
    posterior = EffectPosterior(num_outputs, 3, "full").double()
    with torch.no_grad():
        posterior.factor.normal_()

    def kl(factor):
        return torch.func.functional_call(posterior, {"factor": factor}, (), tie_weights=False)

    posterior.forward = posterior.kl
    assert torch.autograd.gradcheck(kl, posterior.factor.detach().clone().requires_grad_())


def test_a_factor_that_ran_away_gives_nan_and_no_number():
    """Of one output alone: where the factorisation stops, what is left has no meaning."""
    posterior = posterior_away_from_its_start("full")
    for wrong in (torch.nan, 1e200):
        with torch.no_grad():
            posterior.factor[0, 1, 1] = wrong
        assert posterior.kl().isnan()


def bag_means(count, num_classes, seed=0, strength=1.0):
    generator = torch.Generator().manual_seed(seed)
    labels = [i % num_classes for i in range(count)]
    means = 7 + torch.randn(count, 4, generator=generator).double()
    means[:, 2] *= 10
    for i, label in enumerate(labels):
        means[i, label] += strength
    return means, labels


def logits_of(means, effects, intercepts):
    """What MixMIL computes with uniform attention: b (r - mean) / sd(r) + intercept."""
    scale = effects.square().mean(1).sqrt()
    r = means @ (effects / scale[:, None]).T
    return scale * (r - r.mean(0)) / r.std(0) + intercepts


@pytest.mark.parametrize("num_classes", [2, 3])
def test_few_bags_give_the_logits_of_the_regression(num_classes):
    means, labels = bag_means(4 * num_classes, num_classes)
    effects, intercepts = fit_mean_model(means, labels, 1 if num_classes == 2 else num_classes)
    centred = means - means.mean(0)
    inputs = (centred / centred.var(0).sum().sqrt()).numpy()
    sklearn = LogisticRegression(C=1.0, max_iter=1000).fit(inputs, labels)
    expected = torch.from_numpy(sklearn.decision_function(inputs)).view(len(labels), -1)
    assert torch.allclose(logits_of(means, effects, intercepts), expected, atol=1e-6)


def test_two_classes_with_an_output_each():
    means, labels = bag_means(8, 2)
    one = logits_of(means, *fit_mean_model(means, labels, 1))
    two = logits_of(means, *fit_mean_model(means, labels, 2))
    assert torch.allclose(two.softmax(1)[:, 1:], one.sigmoid())


def test_the_penalty_is_cross_validated_where_there_are_bags_enough():
    chosen = set()
    for strength in (0.0, 12.0):
        means, labels = bag_means(60, 2, strength=strength)
        centred = means - means.mean(0)
        inputs = (centred / centred.var(0).sum().sqrt()).numpy()
        search = GridSearchCV(
            LogisticRegression(max_iter=1000),
            {"C": [0.1, 1.0, 10.0, 100.0]},
            scoring="neg_log_loss",
            cv=5,
        ).fit(inputs, labels)
        expected = torch.from_numpy(search.decision_function(inputs)).view(60, 1)
        found = logits_of(means, *fit_mean_model(means, labels, 1))
        assert torch.allclose(found, expected, atol=1e-6)
        chosen.add(search.best_params_["C"])
    assert len(chosen) == 2


def test_intercept_is_of_the_base_rate():
    means, _ = bag_means(100, 2, strength=0.0)
    labels = [int(i % 10 == 0) for i in range(100)]
    logits = logits_of(means, *fit_mean_model(means, labels, 1))
    assert logits.sigmoid().mean().item() == pytest.approx(0.1, abs=0.01)


def test_shift_and_scale_of_the_features_do_not_matter():
    means, labels = bag_means(20, 2)
    plain = logits_of(means, *fit_mean_model(means, labels, 1))
    moved = 50 * means - 300
    assert torch.allclose(logits_of(moved, *fit_mean_model(moved, labels, 1)), plain, atol=1e-4)


def test_bags_that_do_not_differ_have_no_model():
    assert fit_mean_model(torch.ones(6, 3), [0, 1] * 3, 1) is None


def test_result_is_of_the_features_dtype():
    means, labels = bag_means(12, 2)
    effects, intercepts = fit_mean_model(means.float(), labels, 1)
    assert effects.dtype == intercepts.dtype == torch.float32
