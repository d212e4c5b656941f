import math

import pytest
import torch

from sgpmil.models.variational_dropout import VariationalLinear


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


def test_start():
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
