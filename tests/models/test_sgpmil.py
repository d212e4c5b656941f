import itertools
import math
from dataclasses import replace

import gpytorch.kernels as gpk
import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA
from torch.distributions import Normal, kl_divergence

from sgpmil.bags.bag import BagBatch
from sgpmil.errors import SettingsError
from sgpmil.gp.noise import FreshNoise, RepeatableNoise, ZeroNoise
from sgpmil.gp.prior import KERNELS, MEANS
from sgpmil.gp.sampling import SAMPLING_SCHEMES, draw
from sgpmil.models import build_model
from sgpmil.models.likelihood import LIKELIHOODS
from sgpmil.models.pooling import POOLINGS
from sgpmil.models.prevalence import ClassShares
from sgpmil.models.sgpmil_settings import SGPMILSettings

from .small import IN_DIM, random_bags, small_model

ACTIVATIONS = ("sigmoid", "softmax")


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", [*KERNELS, "user"])
def test_a_training_step_under_every_combination_of_settings(kernel, mean):
    batch = BagBatch.pack(random_bags((4, 1, 3)))
    given = gpk.ScaleKernel(gpk.RQKernel()) if kernel == "user" else kernel
    model = small_model(
        "sgpmil/points", mean=mean, kernel=given, num_inducing=3, num_samples=2
    ).train()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = set()
    for activation, pooling, sampling, likelihood in itertools.product(
        ACTIVATIONS, POOLINGS, SAMPLING_SCHEMES, LIKELIHOODS
    ):
        # None of these is used before the forward pass, so that one model does for all.
        model.settings = replace(
            model.settings,
            activation=activation,
            pooling=pooling,
            sampling=sampling,
            likelihood=likelihood,
        )
        model.load_state_dict(start)
        optimiser.zero_grad()
        torch.manual_seed(0)
        loss = model.loss(model(batch), batch.labels, num_bags=10)
        loss.total.backward()
        optimiser.step()
        losses.add(round(loss.total.item(), 7))
        assert loss.total.isfinite()
        for key, parameter in model.named_parameters():
            assert parameter.isfinite().all(), key
        for key in ("mlp.0.weight", "classifier.weight", "gp.variational.variational_mean"):
            assert not torch.equal(model.state_dict()[key], start[key]), key
    assert len(losses) > 40  # the settings do something


def test_posterior_mean_prediction_by_hand():
    """The whole forward pass for one bag, from the formulas."""
    model = small_model("sgpmil/points", activation="sigmoid", pooling="mean", standardise=False)
    x = random_bags((7,))[0].features
    h = x
    for layer in (0, 2):
        h = (h @ model.mlp[layer].weight.T + model.mlp[layer].bias).clamp(min=0)
    g = torch.sigmoid(h @ model.projection.weight.T + model.projection.bias)
    posterior = model.gp.posterior(g)
    a = torch.sigmoid(posterior.mean)
    logits = (a @ h) / 7 @ model.classifier.weight.T + model.classifier.bias
    output = model(BagBatch.pack(random_bags((7,))), noise=ZeroNoise())
    assert torch.allclose(output.logits[0], logits.expand(4, 2), atol=1e-5)
    assert torch.allclose(output.score, a, atol=1e-6)
    mean, variance = model.attention_posterior(x)
    assert torch.allclose(mean, posterior.mean, atol=1e-5)
    assert torch.allclose(variance, posterior.variance, atol=1e-5)
    assert torch.allclose(model.posterior(x).mean, mean)


def test_loss_is_the_likelihood_and_the_divergence_a_bag():
    batch = BagBatch.pack(random_bags())
    for factor, num_bags in [(1.0, 1), (1.0, 50), (0.25, 50)]:
        model = small_model("sgpmil/points", kl_factor=factor)
        output = model(batch)
        loss = model.loss(output, batch.labels, num_bags)
        nll = -output.probs[torch.arange(4), :, batch.labels].log().mean()
        assert torch.allclose(loss.terms["nll"], nll, atol=1e-6)
        assert torch.allclose(loss.terms["kl"], factor * model.gp.kl() / num_bags)
        assert torch.allclose(loss.total, loss.terms["nll"] + loss.terms["kl"])
        assert loss.terms["kl"] > 0


def test_the_divergence_of_few_bags_counts_as_that_of_more():
    batch = BagBatch.pack(random_bags())
    model = small_model("sgpmil", kl_bags=60)
    output = model(batch)
    for num_bags, divided_by in [(1, 60), (44, 60), (60, 60), (61, 61), (5000, 5000)]:
        loss = model.loss(output, batch.labels, num_bags)
        assert torch.allclose(loss.terms["kl"], model.kl() / divided_by)


def test_training_draws_afresh_and_prediction_does_not():
    batch = BagBatch.pack(random_bags())
    model = small_model("sgpmil")
    assert torch.equal(model(batch).logits, model(batch).logits)
    assert torch.equal(model(batch).logits, model(batch, noise=RepeatableNoise(0)).logits)
    other = small_model("sgpmil", noise_seed=1)
    assert not torch.equal(model(batch).logits, other(batch).logits)
    model.train()
    assert not torch.equal(model(batch).logits, model(batch).logits)


def test_initialise_starts_the_process_where_the_data_are():
    model = small_model("sgpmil/points", lengthscale_start="median", inducing_start="kmeans")
    features = BagBatch.pack(random_bags((60,), seed=9)).features
    inputs = model.gp_inputs(features).detach()
    lengthscale = model.gp.kernel.kernels[0].base_kernel.lengthscale.item()
    assert lengthscale == pytest.approx(np.median(pdist(inputs.numpy())), rel=0.02)
    nearest = torch.cdist(model.gp.inducing_points, inputs).min(dim=1).values
    assert nearest.max() < lengthscale
    assert torch.pdist(model.gp.inducing_points).min() > 0


def test_published_start_is_left_alone():
    model = small_model("sgpmil", preset="paper", num_inducing=500, gp_dim=3)
    assert model.gp.kernel.kernels[0].base_kernel.lengthscale.item() == pytest.approx(math.log(2))
    points = model.gp.inducing_points
    assert points.min() >= 0
    assert points.max() <= 1
    assert (points.mean(0) - 0.5).abs().max() < 5 / math.sqrt(12 * 500)
    assert model.standardise.limit.isinf()


def test_initialise_is_deterministic_and_takes_one_instance():
    sample = BagBatch.pack(random_bags((30,)))
    points = []
    for seed in (1, 1, 2):
        model = small_model("sgpmil/points", inducing_start="kmeans", lengthscale_start="median")
        model.initialise(sample, seed=seed)
        points.append(model.gp.inducing_points.detach().clone())
    assert torch.equal(points[0], points[1])
    assert not torch.equal(points[0], points[2])
    model.initialise(BagBatch.pack(random_bags((1,))), seed=0)
    assert all(p.isfinite().all() for p in model.parameters())


def test_the_lengthscale_starts_as_set():
    expected = {"cube": 2.5, "log2": math.log(2)}
    for start, value in expected.items():
        settings = {"preset": "points", "lengthscale_start": start}
        model = build_model("sgpmil", in_dim=4, num_classes=2, gp_dim=25, **settings)
        found = model.gp.kernel.kernels[0].base_kernel.lengthscale.item()
        assert found == pytest.approx(value, rel=1e-5)


def test_models_do_not_share_the_users_kernel():
    kernel = gpk.RBFKernel()
    first, second = (small_model("sgpmil", kernel=kernel) for _ in range(2))
    with torch.no_grad():
        first.gp.kernel.raw_lengthscale.fill_(7.0)
    assert second.gp.kernel.raw_lengthscale.item() != 7
    assert kernel.raw_lengthscale.item() == 0


def test_half_precision_layers_leave_the_attention_near():
    batch = BagBatch.pack(random_bags())
    model = small_model("sgpmil")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch)
    assert output.attention.dtype == torch.float32
    assert torch.allclose(output.attention, model(batch).attention, atol=0.05)


def test_more_inducing_points_than_instances():
    model = small_model("sgpmil/points", num_inducing=90)
    assert model.gp.inducing_points.shape == (90, 3)
    assert model(BagBatch.pack(random_bags())).logits.isfinite().all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mean": "zero"}, "mean to be one of linear, constant, but got 'zero'"),
        ({"activation": "relu"}, "activation to be one of sigmoid, softmax"),
        ({"pooling": "max"}, "pooling to be one of sum"),
        ({"sampling": "joint"}, "sampling to be one of independent"),
        ({"likelihood": "elbo"}, "likelihood to be one of mean_log_prob"),
        ({"inducing_start": "grid"}, "inducing_start to be one of uniform"),
        ({"lengthscale_start": "one"}, "lengthscale_start to be one of log2"),
        ({"num_inducing": 0}, "num_inducing >= 1, but got 0"),
        ({"num_samples": 0}, "num_samples >= 1"),
        ({"gp_dim": -1}, "gp_dim >= 1"),
        ({"hidden_dims": ()}, "hidden_dims to be one or more widths"),
        ({"hidden_dims": (4, 0)}, "hidden_dims to be one or more widths"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_impossible_settings(settings, message):
    with pytest.raises(SettingsError, match=message):
        SGPMILSettings(**settings)


def test_unknown_kernel():
    with pytest.raises(SettingsError, match="kernel to be one of rbf"):
        small_model("sgpmil", kernel="rbff")


def test_input_is_of_the_given_size():
    assert small_model("sgpmil").mlp[0].in_features == IN_DIM


PATCHES = {"preserved_dim": 2, "num_samples": 6, "prediction_samples": 12}


def patch_model(bags, **settings):
    """Build a small model whose inducing patches are chosen from bags."""
    model = small_model("sgpmil", dtype=torch.float64, **{**PATCHES, **settings})
    pick = {"epochs": 8, "num_bags": len(bags), "seed": 3}
    assert model.start_epoch(0, batches=[BagBatch.pack(bags)], **pick)
    with torch.no_grad():
        model.gp.variational.variational_mean.normal_()
    return model


def test_inducing_patches_make_the_process_that_the_formulas_say():
    bags = random_bags((30, 12), dtype=torch.float64)
    model = patch_model(bags)
    x = bags[0].features

    def learned(features):
        standardised = ((features - model.standardise.mean) / model.standardise.scale).clamp(-5, 5)
        h = standardised
        for layer in model.mlp:
            h = layer(h)
        return standardised.detach().numpy(), model.projection(h).detach().numpy()

    (sx, ux), (sz, uz) = learned(x), learned(model.patches.features)
    G = uz.shape[1]
    sd = np.sqrt(uz.var(0) + 1e-8)
    V = model.preserved.numpy()
    gx = np.concatenate([(ux - uz.mean(0)) / (sd * math.sqrt(2 * G)), sx @ V], axis=1)
    gz = np.concatenate([(uz - uz.mean(0)) / (sd * math.sqrt(2 * G)), sz @ V], axis=1)
    ell, s, j = 1.0, 4.0, model.settings.jitter

    def kernel(a, b):
        return s * np.exp(-((a[:, None] - b) ** 2).sum(-1) / (2 * ell**2))

    L = np.linalg.cholesky(kernel(gz, gz) + j * np.eye(len(gz)))
    B = np.linalg.solve(L, kernel(gz, gx))
    m, Ls = (v.detach().numpy() for v in (model.gp.whitened_mean, model.gp.whitened_factor))
    mean, variance = model.attention_posterior(x)
    assert np.allclose(mean.detach(), B.T @ m, atol=1e-6)
    expected = s + j - (B**2).sum(0) + ((Ls.T @ B) ** 2).sum(0)
    assert np.allclose(variance.detach(), expected, atol=1e-6)
    # Mean square distance of patches: 1 in the learned part.
    distances = pdist(gz[:, :G]) ** 2
    assert distances.mean() * (len(gz) - 1) / len(gz) == pytest.approx(1, rel=1e-2)
    with torch.no_grad():
        model.is_exact = False
        output = model(BagBatch.pack([bags[0]]))
    attention = np.exp(mean.detach().numpy()) / np.exp(mean.detach().numpy()).sum()
    assert np.allclose(output.score, attention, atol=1e-6)
    assert np.allclose(output.score_std, attention * np.sqrt(expected), atol=1e-6)
    assert output.logits.shape[1] == 12


SIGNS = 6 * torch.tensor([1.0, -1.0] * 4)


def test_another_seed_of_the_samples_moves_no_probability_by_a_hundredth():
    bags = random_bags((30, 12, 1, 7, 5, 9), dtype=torch.float64)
    found = {}
    for error in (0.0, 0.002):
        probs = []
        for seed in range(3):
            samples = {"num_samples": 40, "prediction_samples": 480, "prediction_error": error}
            model = patch_model(bags, noise_seed=seed, **samples)
            with torch.no_grad():
                # Instances contradict each other: some samples say yes and others no.
                model.classifier.weight.copy_(torch.tensor([[1.0], [-1.0]]) * SIGNS)
                output = model(BagBatch.pack(bags))
            probs.append(output.probs.mean(1))
            assert len(output.num_different.unique()) > (1 if error else 0)
        found[error] = max((a - b).abs().max() for a in probs for b in probs)
    assert found[0.0] > 0.01 > found[0.002]


def test_samples_are_enough_for_the_probabilities_at_the_prevalence():
    bags = random_bags((30, 12, 7), dtype=torch.float64)
    samples = {"num_samples": 40, "prediction_samples": 480, "prediction_error": 0.002}
    model = patch_model(bags, **samples)
    with torch.no_grad():
        model.classifier.weight.copy_(torch.tensor([[1.0], [-1.0]]) * SIGNS)
        balanced = model(BagBatch.pack(bags)).num_different
        # Of a class that is almost never there, every sample says almost the same.
        model.shares = ClassShares((0.5, 0.5), (0.5, 0.5), (1 - 1e-12, 1e-12))
        rare = model(BagBatch.pack(bags)).num_different
    assert balanced.max() > rare.max()


def test_preserved_components_are_principal_components_at_mean_square_distance_one():
    x = random_bags((60,), seed=9)[0].features.double()
    model = small_model("sgpmil", dtype=torch.float64, **PATCHES)
    standardised = model.standardise(x)
    found = (standardised @ model.preserved).detach().numpy()
    pca = PCA(2).fit_transform(standardised.numpy())
    ratio = (found - found.mean(0)) / pca
    assert np.allclose(np.abs(ratio), np.abs(ratio).mean(), rtol=1e-4)
    # Of all ordered pairs, an instance with itself among them.
    assert 2 * found.var(0).sum() == pytest.approx(1, rel=1e-5)


def test_renewed_patches_lie_where_the_attention_is(monkeypatch):
    monkeypatch.setattr("sgpmil.models.inducing_patches.POOL_SIZE", 60)
    bags = random_bags((400, 400, 400), dtype=torch.float64)
    model = patch_model(bags, num_inducing=8)
    logits = {bag.slide_id: model.attention_posterior(bag.features)[0].detach() for bag in bags}
    pick = {"epochs": 8, "num_bags": 3, "seed": 3}
    assert model.start_epoch(4, batches=[BagBatch.pack(bags)], **pick)
    # A pool of 60 has the 10 highest of each bag; without them, 1 in 40 would be among these.
    ranks = [
        int((logits[o.slide_id] > logits[o.slide_id][o.row]).sum()) for o in model.patches.origins
    ]
    assert sum(rank < 10 for rank in ranks) >= 3
    after = torch.cat([model.attention_posterior(bag.features)[0].detach() for bag in bags])
    before = torch.cat(list(logits.values()))
    # The same function as before, up to what eight patches can carry.
    assert np.corrcoef(before, after)[0, 1] > 0.5
    assert not model.start_epoch(5, batches=[], **pick)


def test_slide_probabilities_hardly_depend_on_the_noise_seed():
    bags = random_bags((60, 30, 100), dtype=torch.float64)
    few = patch_model(bags, prediction_samples=0, scores="samples", num_samples=12)
    many = patch_model(bags, prediction_samples=600, num_samples=12)

    def spread(model):
        found = []
        for seed in range(6):
            model.settings = replace(model.settings, noise_seed=seed)
            found.append(model(BagBatch.pack(bags)).probs.mean(1).detach())
        return torch.stack(found).std(0).max()

    assert spread(many) < spread(few) / 5  # fifty times the samples, in pairs: at least 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inducing": "points"}, "inducing 'patches' with standardised .* preset 'points'"),
        ({"feature_dropout": 1.0}, "feature_dropout from 0 to below 1"),
        ({"classifier_kl": -0.1}, "classifier_kl >= 0"),
        ({"linear_scale": 0.0}, "linear_scale > 0"),
        ({"renewals": (0.5, 1.0)}, "renewals between 0 and 1"),
        ({"outputscale": -1.0}, "outputscale > 0"),
        ({"variational_rate": 0.0}, "variational_rate > 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        build_model("sgpmil", in_dim=3, num_classes=2, **settings)


def test_an_uncertain_classifier_draws_weights_from_its_posterior():
    bags = random_bags((20, 1), dtype=torch.float64)
    model = patch_model(
        bags, classifier_scale=0.7, classifier_kl=0.4, num_samples=40, prediction_samples=4000
    )
    with torch.no_grad():
        model.classifier_log_sd.uniform_(-2.0, -0.5)
        output = model(BagBatch.pack([bags[1]]))
        # A bag of one patch has the weight 1: its logits are normal, with closed moments.
        h = model.embed(bags[1].features)
        mean = h @ model.classifier.weight.T + model.classifier.bias
        std = (h.square() @ (2 * model.classifier_log_sd).exp().T).sqrt()
        logits = output.logits[0]
        assert torch.allclose(logits.mean(0), mean[0], atol=1e-6)  # pairs cancel
        assert torch.allclose(logits.std(0), std[0], rtol=0.06)
        assert torch.allclose(output.instance_logits_std, std)
        prior = Normal(0.0, 0.7)
        posterior = Normal(model.classifier.weight, model.classifier_log_sd.exp())
        expected = model.gp.kl() + 0.4 * kl_divergence(posterior, prior).sum()
        assert model.kl() == pytest.approx(float(expected))
    assert model.rate_factor("classifier_log_sd") == model.settings.variational_rate


def test_a_step_leaves_out_the_same_features_of_all_instances():
    bags = random_bags((40,), dtype=torch.float64)
    model = patch_model(bags, feature_dropout=0.5).train()
    model.settings = replace(model.settings, num_samples=1)
    x = model.standardise(bags[0].features)
    seen = []
    model.mlp.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    for _ in range(200):
        model(BagBatch.pack(bags))
    factors = torch.stack([rows for rows in seen if len(rows) == 40]) / x
    assert torch.allclose(factors, factors[:, :1].expand_as(factors))
    of_patches = torch.stack([rows for rows in seen if len(rows) == 5]) / model.standardise(
        model.patches.features
    )
    assert torch.allclose(of_patches[:, 0], factors[:, 0])
    kept = factors[:, 0]
    assert set(kept.round(decimals=9).unique().tolist()) == {0.0, 2.0}
    assert 0.4 < (kept > 0).double().mean() < 0.6
    seen.clear()
    model.eval()(BagBatch.pack(bags))
    assert any(torch.equal(rows, x) for rows in seen)


def test_the_linear_part_is_a_linear_kernel():
    """Marginals and draws of a process with the kernel k + 2 σ² x·x', by GPyTorch's formula."""
    bags = random_bags((30,), dtype=torch.float64)
    model = patch_model(bags, linear_scale=0.7, sampling="inducing", num_samples=4000)
    gp, linear = model.gp, model.gp.linear
    x = model.gp_inputs(bags[0].features).detach()[:6]
    with torch.no_grad():
        whitening = model.whitening()
        plain = gp.posterior(x, whitening)
        linear.mean.normal_()
        linear.log_sd.uniform_(-2.0, 0.0)
        posterior = gp.posterior(x, whitening)
        prior = gpk.LinearKernel()
        prior.variance = 2 * 0.7**2
        assert torch.allclose(
            posterior.prior_variance - posterior.linear_prior,
            plain.prior_variance - plain.linear_prior,
        )
        assert torch.allclose(posterior.linear_prior, prior.double()(x, diag=True))
        w = Normal(linear.mean, linear.log_sd.exp())
        mean = plain.carried_mean + math.sqrt(2) * x @ w.mean + posterior.prior_mean
        assert torch.allclose(posterior.mean, mean)
        carried = (plain.variance - plain.linear[1]).diag_embed()
        of_weights = 2 * x @ w.variance.diag_embed() @ x.T
        assert torch.allclose(posterior.variance, carried.diag() + of_weights.diag())
        assert torch.allclose(linear.covariance(x), of_weights)
        segments = BagBatch.pack([replace(bags[0], features=bags[0].features[:6], coords=None)])
        drawn = draw(
            gp,
            x,
            segments.segments,
            scheme="inducing",
            num_samples=40_000,
            noise=FreshNoise(),
            whitening=whitening,
        )
        assert torch.allclose(drawn.mean(0), posterior.mean, atol=0.1)
        expected = gp.joint_covariance(x, whitening) + of_weights
        found = torch.cov(drawn.T)
        assert torch.allclose(found.diag(), expected.diag(), rtol=0.06)
        zero = Normal(torch.zeros_like(w.mean), torch.full_like(w.mean, 0.7))
        own = gp.kl() - linear.kl()
        assert linear.kl() == pytest.approx(float(kl_divergence(w, zero).sum()))
        m, S = gp.whitened_mean, gp.whitened_factor @ gp.whitened_factor.T
        by_hand = 0.5 * (S.trace() + m @ m - len(m) - torch.logdet(S))
        assert own == pytest.approx(float(by_hand))
    assert model.rate_factor("gp.linear.mean") == model.settings.variational_rate


def test_a_renewal_leaves_the_linear_part_alone():
    bags = random_bags((60, 60), dtype=torch.float64)
    model = patch_model(bags, linear_scale=2.0, num_inducing=12)
    with torch.no_grad():
        model.gp.linear.mean.normal_()
    before = torch.cat([model.attention_posterior(bag.features)[0].detach() for bag in bags])
    pick = {"epochs": 8, "num_bags": 2, "seed": 3}
    assert model.start_epoch(4, batches=[BagBatch.pack(bags)], **pick)
    after = torch.cat([model.attention_posterior(bag.features)[0].detach() for bag in bags])
    # The same function, up to what the patches cannot carry: not the linear part twice.
    assert np.corrcoef(before, after)[0, 1] > 0.9
    assert (after - before).std() < before.std() / 2
