import math
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.errors import BagError, SettingsError
from sgpmil.gp.noise import RepeatableNoise, ZeroNoise
from sgpmil.models import build_model, load_model, save_model
from sgpmil.models.bayesmil import VariationalLinear, attention_divergence
from sgpmil.models.patch_grid import KERNEL

from .small import IN_DIM, SMALL, random_bags, small_model

GRIDS = ((4, 3), (1, 1), (7, 2))  # columns and rows of each bag


def grid_bags(grids=GRIDS, *, pitch=448, seed=0, dtype=torch.float64, num_classes=2):
    """Bags whose patches fill a grid, row by row."""
    generator = torch.Generator().manual_seed(seed)
    bags = []
    for b, (width, height) in enumerate(grids):
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        corners = torch.stack([columns, rows], -1).reshape(-1, 2) * pitch + 1000 * b + 13
        features = torch.randn(width * height, IN_DIM, generator=generator).to(dtype)
        bags.append(Bag(features, f"g{b}", label=b % num_classes, coords=corners, patch_size=pitch))
    return bags


def without_coords(bags):
    return [Bag(bag.features, bag.slide_id, label=bag.label) for bag in bags]


def model_on_grid(*, num_classes=2, dtype=torch.float64, **settings):
    """A small model away from its start, at which weights are tiny."""
    torch.manual_seed(0)
    model = build_model(
        "bayesmil", in_dim=IN_DIM, num_classes=num_classes, **{**SMALL["bayesmil"], **settings}
    )
    model.initialise(BagBatch.pack(grid_bags(((8, 8),), seed=9)), seed=0)
    with torch.no_grad():
        for layer in model.variational_layers:
            layer.weight.normal_()
            layer.bias.normal_(std=0.3)
            layer.log_alpha.normal_(mean=-3.0)
    return model.to(dtype).eval()


class RecordedNoise(RepeatableNoise):
    """Keeps what it gave."""

    def per_function(self, num_samples, num_inducing, like):
        self.functions = super().per_function(num_samples, num_inducing, like)
        return self.functions

    def per_instance(self, num_samples, segments, like):
        self.instances = super().per_instance(num_samples, segments, like)
        return self.instances


def smoothed(mean, width, height):
    kernel = torch.tensor([[KERNEL[dx, dy] for dx in (-1, 0, 1)] for dy in (-1, 0, 1)]).double()
    grid = mean.view(1, 1, height, width)
    return F.conv2d(grid, kernel.view(1, 1, 3, 3), padding=1).flatten()


@pytest.mark.parametrize("spatial", [True, False])
def test_every_sample_by_hand(spatial):
    """The whole forward pass, sample by sample and bag by bag, from the formulas."""
    model = model_on_grid(spatial=spatial)
    bags = grid_bags()
    noise = RecordedNoise(5)
    output = model(BagBatch.pack(bags), noise=noise)
    start = 0
    for b, (bag, (width, height)) in enumerate(zip(bags, GRIDS, strict=True)):
        rows = slice(start, start := start + bag.num_instances)
        x = ((bag.features - model.standardise.mean) / model.standardise.scale).clamp(-5, 5)
        h = (x @ model.mlp[0].weight.T + model.mlp[0].bias).relu()
        for s in range(4):
            weights, used = [], 0
            for layer in model.variational_layers:
                eps = noise.functions[s, used : used + layer.weight.numel()]
                used += layer.weight.numel()
                spread = (layer.log_alpha.exp() * layer.weight**2 + 1e-8).sqrt()
                weights.append(layer.weight + spread * eps.view(layer.weight.shape))
            gate = (h @ weights[0].T + model.gate.bias).sigmoid()
            value = (h @ weights[1].T + model.value.bias).tanh()
            mean, log_variance = (gate * value @ weights[2].T + model.attention.bias).unbind(1)
            mean = smoothed(mean, width, height) if spatial else mean
            g = mean + log_variance.exp().sqrt() * noise.instances[s, rows]
            attention = 1 / (1 + (-g).exp())
            z = (attention[:, None] * h).sum(0) / attention.sum()
            logits = weights[3] @ z + model.classifier.bias
            assert torch.allclose(output.attention[s, rows], attention, atol=1e-12)
            assert torch.allclose(output.logits[b, s], logits, atol=1e-12)
            assert torch.allclose(output.extras["mean"][s, rows], mean, atol=1e-12)
            # Evidence is exact for each sample.
            share = (attention / attention.sum())[:, None] * (h @ weights[3].T)
            assert torch.allclose(output.evidence_samples[s, rows], share, atol=1e-12)
            total = output.evidence_samples[s, rows].sum(0)
            assert torch.allclose(total, logits - model.classifier.bias, atol=1e-12)
    assert used == noise.functions.shape[1]


def test_attention_depends_on_the_neighbours_on_the_slide():
    model = model_on_grid()
    bag = grid_bags(((9, 9),))[0]
    near = bag.features.clone()
    near[40 + 1] += 3  # right of the middle
    far = bag.features.clone()
    far[40 + 2] += 3
    middle = [
        model(BagBatch.pack([Bag(x, "a", coords=bag.coords, patch_size=448)]), noise=ZeroNoise())
        for x in (bag.features, near, far)
    ]
    values = [output.attention[0, 40].item() for output in middle]
    assert values[0] != pytest.approx(values[1], abs=1e-5)
    assert values[0] == pytest.approx(values[2], abs=1e-12)


def test_patch_size_is_taken_from_the_bag_and_else_from_the_coordinates():
    model = model_on_grid()
    bag = grid_bags(((5, 4),))[0]
    known = model(BagBatch.pack([bag]))
    guessed = model(BagBatch.pack([Bag(bag.features, "a", coords=bag.coords)]))
    assert torch.equal(known.attention, guessed.attention)
    # With the published pitch of 224 neighbours are two cells apart and nothing is smoothed.
    small = model(BagBatch.pack([Bag(bag.features, "a", coords=bag.coords, patch_size=224)]))
    assert not torch.allclose(known.attention, small.attention, atol=1e-3)


def test_uncertainty_of_the_weights_does_not_average_out_over_instances():
    """Drawn for each instance, as in training, it would: the more patches, the surer."""
    model = model_on_grid(num_samples=64)
    x = grid_bags(((1, 1),))[0].features
    one = model(BagBatch.pack([Bag(x, "a", coords=torch.zeros(1, 2).long(), patch_size=9)]))
    corners = torch.stack([100 * torch.arange(300), torch.zeros(300).long()], 1)
    many = model(BagBatch.pack([Bag(x.expand(300, -1), "a", coords=corners, patch_size=9)]))
    assert torch.allclose(one.logits, many.logits, atol=1e-10)
    assert one.logits.std(1).min() > 0.05


def test_training_takes_one_draw_with_dropout_and_prediction_repeats_itself():
    model = model_on_grid(num_samples=7)
    batch = BagBatch.pack(grid_bags())
    first, second = model(batch), model(batch)
    assert torch.equal(first.logits, second.logits)
    assert first.logits.shape[1] == 7
    model.train()
    first, second = model(batch), model(batch)
    assert first.logits.shape[1] == 1
    assert not torch.equal(first.logits, second.logits)


def test_no_noise_is_the_posterior_mean_in_training_as_well():
    model = model_on_grid(dropout=0.0)
    batch = BagBatch.pack(grid_bags())
    predicted = model(batch, noise=ZeroNoise())
    trained = model.train()(batch, noise=ZeroNoise())
    assert torch.allclose(trained.logits, predicted.logits[:, :1])
    assert torch.allclose(trained.attention, predicted.attention[:1])


def test_dropout_is_before_the_relu():
    model = model_on_grid(dropout=0.9).train()
    layers = [type(layer).__name__ for layer in model.mlp]
    assert layers == ["Linear", "Dropout", "ReLU"]
    assert {model.mlp[1].p, model.dropout.p} == {0.9}


@torch.no_grad()
def test_training_draws_have_the_spread_of_prediction():
    """For a single instance the two ways to draw are the same distribution of mean and logvar."""
    model = model_on_grid(dropout=0.0, num_samples=600)
    bag = grid_bags(((1, 1),))[0]
    sampled = model(BagBatch.pack([bag])).extras["mean"][:, 0]
    model.train()
    local = model(BagBatch.pack(6000 * [bag])).extras["mean"][0]
    error = (sampled.var() / 600 + local.var() / 6000).sqrt()
    assert (sampled.mean() - local.mean()).abs() < 4 * error
    assert local.std().item() == pytest.approx(sampled.std().item(), rel=0.12)


def test_divergence_is_that_of_torch_and_not_the_published():
    torch.manual_seed(0)
    mean, log_variance = torch.randn(2, 9).double(), 2 * torch.randn(2, 9).double()
    prior_mean, prior_log_variance = torch.randn(9).double(), torch.randn(9).double()
    ours = attention_divergence(mean, log_variance, prior_mean, prior_log_variance)
    posterior = Normal(mean, log_variance.exp().sqrt())
    prior = Normal(prior_mean, prior_log_variance.exp().sqrt())
    assert torch.allclose(ours, kl_divergence(posterior, prior))
    assert (ours >= 0).all()
    published = (
        0.5 * (prior_log_variance - log_variance)
        + (log_variance**2 + (prior_mean - mean) ** 2) / (2 * prior_log_variance**2)
        - 0.5
    )
    assert (ours - published).abs().max() > 1


@pytest.mark.parametrize("num_classes", [2, 3])
def test_loss_by_hand(num_classes):
    model = model_on_grid(num_classes=num_classes, weight_penalty=0.3, data_penalty=0.7)
    batch = BagBatch.pack(grid_bags(num_classes=num_classes))
    output = model(batch)
    loss = model.loss(output, batch.labels, num_bags=3)
    entropy, divergence = 0.0, 0.0
    priors = (
        {0: (-5.0, -1.0), 1: (0.0, 3.0)}
        if num_classes == 2
        else dict.fromkeys(range(3), (3.0, 5.0))
    )
    for b, label in enumerate(batch.labels.tolist()):
        rows = slice(int(batch.offsets[b]), int(batch.offsets[b + 1]))
        mean, log_variance = priors[label]
        prior = Normal(mean, torch.tensor(log_variance).double().exp().sqrt())
        scale = output.extras["log_variance"][:, rows].exp().sqrt()
        posterior = Normal(output.extras["mean"][:, rows], scale)
        divergence += kl_divergence(posterior, prior).mean() / 3
        entropy -= output.logits[b].log_softmax(-1)[:, label].mean() / 3
    penalty = sum(layer.penalty() for layer in model.variational_layers)
    assert torch.allclose(loss.terms["cross_entropy"], entropy)
    assert torch.allclose(loss.terms["data_penalty"], 0.7 * divergence)
    assert torch.allclose(loss.terms["weight_penalty"], 0.3 * penalty)
    assert torch.allclose(loss.total, entropy + 0.7 * divergence + 0.3 * penalty)


def test_the_prior_lowers_attention_in_bags_without_what_is_sought():
    model = model_on_grid()
    batch = BagBatch.pack(grid_bags(((3, 3),)))
    for label, side in ((0, -5.0), (1, 0.0)):
        output = model(batch)
        output.extras["mean"].retain_grad()
        model.loss(output, torch.tensor([label]), 1).terms["data_penalty"].backward()
        pull = -output.extras["mean"].grad
        assert (pull.sign() == (side - output.extras["mean"]).sign()).all()


def test_huge_variances_leave_the_loss_finite():
    model = model_on_grid(dtype=torch.float32, num_classes=3).train()
    with torch.no_grad():
        model.attention.bias[1] = 500.0
    batch = BagBatch.pack(grid_bags(dtype=torch.float32))
    output = model(batch)
    loss = model.loss(output, batch.labels, 3)
    loss.total.backward()
    assert loss.total.isfinite()
    assert output.attention.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_vanishing_attention_is_still_a_mean():
    """Sigmoids of -500 are 0 in float32: their ratio must not be 0 / 0 or 0."""
    model = model_on_grid(dtype=torch.float32)
    with torch.no_grad():
        model.attention.bias[0] = -2000.0
    output = model(BagBatch.pack(grid_bags(((3, 3),), dtype=torch.float32)))
    assert output.attention.max() == 0
    assert torch.allclose(output.weights.sum(1), torch.ones(4), atol=1e-5)


def test_bags_without_coordinates_are_trained_without_the_grid(tmp_path):
    bags = without_coords(grid_bags(dtype=torch.float32))
    batch = BagBatch.pack(bags)
    model = build_model("bayesmil", in_dim=IN_DIM, num_classes=2, **SMALL["bayesmil"])
    assert model.grid.item() == 0
    with pytest.warns(UserWarning, match="^The bags have no coordinates") as caught:
        model.initialise(batch, seed=0)
    assert len(caught) == 1
    assert model.grid.item() == 2
    model.eval()
    save_model(model, tmp_path / "checkpoint.safetensors", class_names=("a", "b"))
    loaded, _ = load_model(tmp_path)
    plain = loaded(batch)
    assert torch.equal(plain.attention, model(batch).attention)
    # It ignores coordinates that it was not trained with.
    with_coords = loaded(BagBatch.pack(grid_bags(dtype=torch.float32)))
    assert torch.equal(plain.attention, with_coords.attention)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_of_the_grid_refuses_bags_without_coordinates(training, tmp_path):
    bags = grid_bags(dtype=torch.float32)
    model = model_on_grid(dtype=torch.float32)
    save_model(model, tmp_path / "checkpoint.safetensors", class_names=("a", "b"))
    loaded, _ = load_model(tmp_path)
    loaded.train(training)
    mixed = [*bags[:1], *without_coords(bags[1:])]
    with pytest.raises(BagError, match=r"Expected coordinates of every patch.*g0, g1, g2"):
        loaded(BagBatch.pack(mixed))
    assert loaded(BagBatch.pack(bags)).logits.isfinite().all()


@pytest.mark.parametrize("preset", ["vis", "enc"])
def test_presets_without_the_grid_do_not_ask_for_it(preset):
    batch = BagBatch.pack(without_coords(grid_bags(dtype=torch.float32)))
    model = build_model("bayesmil", in_dim=IN_DIM, num_classes=2, preset=preset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.initialise(batch, seed=0)
    loss = model.loss(model(batch), batch.labels, 3)
    assert ("data_penalty" in loss.terms) == (preset == "enc")
    loss.total.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_settings():
    released = build_model("bayesmil", in_dim=3, num_classes=2, preset="released").settings
    assert (released.spatial, released.data_penalty, released.standardise) == (True, 1e-12, False)
    assert (released.hidden_dim, released.attention_dim, released.dropout) == (512, 384, 0.25)
    for wrong in ({"dropout": 1.0}, {"num_samples": 0}, {"weight_penalty": -1.0}):
        with pytest.raises(SettingsError):
            build_model("bayesmil", in_dim=3, num_classes=2, **wrong)


@pytest.mark.parametrize(("width", "count"), [(384, 1_315_588), (256, 1_052_676)])
def test_parameter_count_is_the_published(width, count):
    model = build_model("bayesmil", in_dim=1024, num_classes=2, attention_dim=width)
    assert model.num_parameters() == count


def test_start():
    torch.manual_seed(0)
    model = build_model("bayesmil", in_dim=300, num_classes=2)
    assert model.mlp[0].weight.std().item() == pytest.approx((2 / 812) ** 0.5, rel=0.02)
    assert (model.mlp[0].bias == 0).all()
    starts = [layer.log_alpha.unique().tolist() for layer in model.variational_layers]
    assert starts == [[-4.0], [-4.0], [-4.0], [-3.0]]


def test_autocast_keeps_attention_in_single_precision():
    model = model_on_grid(dtype=torch.float32)
    batch = BagBatch.pack(grid_bags(dtype=torch.float32))
    single = model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(batch)
        loss = model.loss(half, batch.labels, 3).total
        model.train()
        model.loss(model(batch), batch.labels, 3).total.backward()
    assert half.attention.dtype == torch.float32
    assert (half.attention - single.attention).abs().max() < 0.05
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_learns_which_patches_matter():
    """Positive bags have two neighbouring patches that are unlike the others."""
    torch.manual_seed(0)
    bags = []
    for b in range(24):
        bag = grid_bags(((5, 5),), seed=b, dtype=torch.float32)[0]
        if b % 2:
            bag.features[[7, 8], 0] += 6
        bags.append(
            Bag(bag.features, f"b{b}", label=b % 2, coords=bag.coords, patch_size=bag.patch_size)
        )
    batch = BagBatch.pack(bags)
    model = build_model(
        "bayesmil", in_dim=IN_DIM, num_classes=2, hidden_dim=16, attention_dim=8, num_samples=16
    )
    model.initialise(batch, seed=0)
    optimiser = torch.optim.Adam(model.train().parameters(), lr=0.01)
    for _ in range(100):
        optimiser.zero_grad()
        model.loss(model(batch), batch.labels, 24).total.backward()
        optimiser.step()
    output = model.eval()(batch)
    assert torch.equal(output.probs.mean(1).argmax(1), batch.labels)
    scores = output.score.view(24, 25)[1::2]
    others = [i for i in range(25) if i not in (7, 8)]
    assert (scores[:, [7, 8]].mean() - scores[:, others].mean()) > 0.4


def test_a_known_patch_size_counts_beside_an_unknown_one():
    """Otherwise a bag's prediction would depend on its batch."""
    model = small_model("bayesmil", dtype=torch.float64)
    known, other = random_bags((9, 7), dtype=torch.float64)
    # Patches overlap: their pitch is half of their side, and is not what is to be used.
    known = replace(known, coords=known.coords // 2)
    unknown = replace(other, patch_size=None)
    alone = model(BagBatch.pack([known])).attention
    together = model(BagBatch.pack([known, unknown])).attention[:, :9]
    assert torch.allclose(alone, together)


def test_before_training_the_grid_is_used_where_there_is_one():
    torch.manual_seed(0)
    model = build_model("bayesmil", in_dim=IN_DIM, num_classes=2, **SMALL["bayesmil"]).eval()
    for layer in model.variational_layers:
        torch.nn.init.normal_(layer.weight, std=0.5)
    bag = random_bags((9,))[0]
    smoothed = model(BagBatch.pack([bag])).attention
    plain = model(BagBatch.pack([replace(bag, coords=None)])).attention
    assert not torch.allclose(smoothed, plain, atol=1e-3)


# Variational dropout.


def layer_away_from_its_start(in_dim=5, out_dim=3, dtype=torch.float64):
    torch.manual_seed(0)
    layer = VariationalLinear(in_dim, out_dim, log_alpha=-3.0).to(dtype)
    with torch.no_grad():
        layer.weight.normal_()
        layer.bias.normal_()
        layer.log_alpha.normal_(mean=-1.0)
    return layer


def closed_form(layer, x):
    """Mean and variance of each output of one row, by loops over the weights."""
    means, variances = [], []
    for j in range(len(layer.bias)):
        mean, variance = layer.bias[j].item(), 0.0
        for i, value in enumerate(x.tolist()):
            weight = layer.weight[j, i].item()
            alpha = math.exp(layer.log_alpha[j, i].item())
            mean += weight * value
            variance += value**2 * (alpha * weight**2 + 1e-8)
        means.append(mean)
        variances.append(variance)
    return torch.tensor(means).double(), torch.tensor(variances).double()


@torch.no_grad()
def test_both_ways_to_draw_have_the_moments_of_the_closed_form():
    layer = layer_away_from_its_start()
    x = torch.tensor([0.5, -2.0, 0.0, 1.0, 3.0]).double()
    count = 8_000
    local = layer(x.expand(count, -1))
    sampled = torch.stack(
        [layer.sampled(x[None], eps)[0] for eps in torch.randn(count, 3, 5).double()]
    )
    mean, variance = closed_form(layer, x)
    for draws in (local, sampled):
        error = (draws.mean(0) - mean).abs() / (variance / count).sqrt()
        assert error.max() < 4  # standard errors
        ratio = draws.var(0) / variance
        assert (ratio - 1).abs().max() < 4 * (2 / count) ** 0.5
        assert draws.T.corrcoef().fill_diagonal_(0).abs().max() < 4 / count**0.5


@torch.no_grad()
def test_a_local_draw_is_of_a_row_and_a_sampled_one_of_a_function():
    layer = layer_away_from_its_start()
    x = torch.randn(1, 5).double()
    rows = x.expand(2000, -1)
    assert layer.sampled(rows, torch.randn(3, 5).double()).std(0).max() < 1e-12
    local = layer(rows)
    assert (local.std(0) / closed_form(layer, x[0])[1].sqrt() - 1).abs().max() < 0.1
    # Linear in its input, as any draw of the weights is.
    eps = torch.randn(3, 5).double()
    once = layer.sampled(x, eps) - layer.bias
    assert torch.allclose(layer.sampled(3 * x, eps) - layer.bias, 3 * once)
    assert torch.equal(layer(x, eps), layer.sampled(x, eps))


def test_no_noise_gives_the_mean():
    layer = layer_away_from_its_start()
    x = torch.randn(4, 5).double()
    expected = x @ layer.weight.T + layer.bias
    assert torch.allclose(layer.sampled(x, torch.zeros(3, 5).double()), expected)


def test_penalty_is_the_naive_formula():
    layer = layer_away_from_its_start()
    expected = 0.0
    for row in layer.log_alpha.tolist():
        terms = [
            0.5 * math.log(1 + 1 / math.exp(a)) - 0.6134 * math.exp(-((0.2026 + 0.7126 * a) ** 2))
            for a in row
        ]
        expected += sum(terms) / len(terms)
    assert layer.penalty().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_penalty_is_finite_for_any_noise_and_falls_with_it(dtype):
    values = []
    for log_alpha in (-50.0, -10.0, -4.0, 4.0, 50.0):
        layer = VariationalLinear(3, 2, log_alpha=log_alpha).to(dtype)
        penalty = layer.penalty()
        penalty.backward()
        assert layer.log_alpha.grad.isfinite().all()
        values.append(penalty.item())
    assert all(math.isfinite(value) for value in values)
    assert values == sorted(values, reverse=True)  # the prior is the noisiest weight
    assert values[0] == pytest.approx(2 * 25, rel=1e-4)  # -log(alpha) / 2 of each output
    assert values[-1] == pytest.approx(0, abs=1e-6)


def test_inputs_of_zero_have_a_gradient():
    """All hidden units can be dropped at once; a plain square root would give NaN there."""
    layer = layer_away_from_its_start()
    x = torch.zeros(2, 5).double().requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad.isfinite().all()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), name


def test_gradients_of_a_sample_are_those_of_central_differences():
    layer = layer_away_from_its_start()
    x, eps = torch.randn(2, 5).double(), torch.randn(3, 5).double()

    def output(weight, log_alpha):
        parameters = {"weight": weight, "log_alpha": log_alpha, "bias": layer.bias.detach()}
        return torch.func.functional_call(layer, parameters, (x, eps))

    inputs = [p.detach().requires_grad_() for p in (layer.weight, layer.log_alpha)]
    assert torch.autograd.gradcheck(output, inputs)


def test_start_of_a_variational_layer():
    torch.manual_seed(0)
    layer = VariationalLinear(200, 100, log_alpha=-4.0)
    assert layer.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert layer.weight.mean().abs() < 3e-4
    assert (layer.bias == 0).all()
    assert (layer.log_alpha == -4).all()


@torch.no_grad()
def test_variances_survive_half_precision():
    """Products of small weights and their noise are below what float16 can hold."""
    torch.manual_seed(0)
    layer = VariationalLinear(64, 2, log_alpha=-4.0)
    x = torch.randn(1, 64)
    with torch.autocast("cpu", dtype=torch.float16):
        draws = layer(x.expand(4000, -1))
    expected = closed_form(layer, x[0])[1].sqrt()
    assert (draws.double().std(0) / expected - 1).abs().max() < 0.1
