import math

import gpytorch.kernels as gpk
import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from sgpmil.errors import SettingsError
from sgpmil.gp.prior import (
    KERNELS,
    MEANS,
    ScaledRBF,
    build_kernel,
    build_mean,
    set_lengthscale_from_data,
)

LN2 = math.log(2)
# The formulas of the published kernels at scale, lengthscale and constant log 2.
FORMULAS = {
    "rbf": lambda r, xy: LN2 * math.exp(-(r**2) / (2 * LN2**2)) + LN2,
    "rbf-alone": lambda r, xy: LN2 * math.exp(-(r**2) / (2 * LN2**2)),
    "matern12": lambda r, xy: LN2 * math.exp(-r / LN2) + LN2,
    "matern32": lambda r, xy: LN2 * (1 + (u := math.sqrt(3) * r / LN2)) * math.exp(-u) + LN2,
    "matern52": lambda r, xy: (
        LN2 * (1 + (u := math.sqrt(5) * r / LN2) + u**2 / 3) * math.exp(-u) + LN2
    ),
    "linear": lambda r, xy: LN2 * xy + LN2,
}


def test_every_kernel_has_a_formula():
    assert FORMULAS.keys() == KERNELS.keys()


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_at_its_start_is_the_published_formula(name):
    x, y = torch.tensor([[0.2, 0.7]]).double(), torch.tensor([[0.9, 0.4]]).double()
    value = build_kernel(name).double()(x, y).to_dense().item()
    expected = FORMULAS[name](float((x - y).norm()), float((x * y).sum()))
    assert value == pytest.approx(expected, rel=1e-6)


def test_unknown_kernel_lists_the_known():
    with pytest.raises(SettingsError, match=r"one of rbf, rbf-alone, matern12.* but got 'rbff'"):
        build_kernel("rbff")


def test_the_users_kernel_is_copied():
    given = gpk.ScaleKernel(gpk.RQKernel())
    first, second = build_kernel(given), build_kernel(given)
    assert type(first.base_kernel) is gpk.RQKernel
    with torch.no_grad():
        first.raw_outputscale.fill_(3.0)
    assert given.raw_outputscale.item() == 0
    assert second.raw_outputscale.item() == 0


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
def test_lengthscale_is_the_median_distance(name):
    inputs = torch.rand(61, 5, generator=torch.Generator().manual_seed(0))
    kernel = build_kernel(name)
    set_lengthscale_from_data(kernel, inputs)
    expected = np.median(pdist(inputs.numpy()))
    assert kernel.kernels[0].base_kernel.lengthscale.item() == pytest.approx(expected, rel=2e-3)


def test_lengthscale_of_many_inputs_comes_from_all_of_them():
    near, far = torch.zeros(2000, 1), torch.full((2000, 1), 4.0)
    noise = 0.01 * torch.rand(4000, 1, generator=torch.Generator().manual_seed(0))
    kernel = build_kernel("rbf")
    set_lengthscale_from_data(kernel, torch.cat([near, far]) + noise)
    # Half of all pairs are 4 apart; among the first 2000 inputs none is.
    assert kernel.kernels[0].base_kernel.lengthscale.item() > 3.9


def test_every_lengthscale_of_a_users_kernel_is_set():
    kernel = gpk.RBFKernel(ard_num_dims=3) * gpk.ScaleKernel(gpk.RQKernel())
    set_lengthscale_from_data(kernel, torch.tensor([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]]))
    assert torch.allclose(kernel.kernels[0].lengthscale, torch.full((1, 3), 5.0))
    assert kernel.kernels[1].base_kernel.lengthscale.item() == pytest.approx(5)


def test_lengthscale_of_coinciding_inputs_stays_positive():
    kernel = build_kernel("rbf")
    set_lengthscale_from_data(kernel, torch.ones(5, 2))
    assert kernel.kernels[0].base_kernel.lengthscale.item() == pytest.approx(1e-3, rel=1e-3)


def test_one_input_and_a_kernel_without_lengthscale_stay_as_they_are():
    kernel = build_kernel("rbf")
    set_lengthscale_from_data(kernel, torch.ones(1, 2))
    assert kernel.kernels[0].base_kernel.lengthscale.item() == pytest.approx(LN2)
    linear = build_kernel("linear")
    before = {name: value.clone() for name, value in linear.state_dict().items()}
    set_lengthscale_from_data(linear, torch.rand(9, 2))
    assert all(torch.equal(before[name], value) for name, value in linear.state_dict().items())


def test_linear_mean_is_affine():
    torch.manual_seed(0)
    mean = build_mean("linear", 3)
    x = torch.rand(5, 3)
    expected = x @ mean.weights.squeeze() + mean.bias
    assert torch.allclose(mean(x), expected)
    assert not torch.allclose(mean(x), mean(x)[0].expand(5))


def test_linear_mean_starts_at_the_given_spread():
    torch.manual_seed(0)
    weights = build_mean("linear", 20_000, scale=0.1).weights
    # The standard error of a standard deviation is about sd / sqrt(2 n) = 0.0005.
    assert weights.std().item() == pytest.approx(0.1, abs=0.0025)
    assert build_mean("linear", 20_000).weights.std().item() == pytest.approx(1.0, abs=0.025)


def test_bias_is_drawn_unless_given():
    torch.manual_seed(0)
    drawn = torch.cat([build_mean("linear", 1, scale=2.0).bias.detach() for _ in range(2000)])
    assert drawn.std().item() == pytest.approx(2.0, abs=0.16)
    assert build_mean("linear", 4, bias=-0.7).bias.item() == pytest.approx(-0.7)
    assert build_mean("linear", 4, bias=0.0).bias.item() == 0


@pytest.mark.parametrize(("bias", "expected"), [(None, 0.0), (0.0, 0.0), (1.5, 1.5)])
def test_constant_mean(bias, expected):
    mean = build_mean("constant", 3, bias=bias)
    assert torch.allclose(mean(torch.rand(4, 3)), torch.full((4,), expected))
    assert sum(p.numel() for p in mean.parameters()) == 1


def test_unknown_mean_lists_the_known():
    assert MEANS == ("linear", "constant")
    with pytest.raises(SettingsError, match="one of linear, constant, but got 'zero'"):
        build_mean("zero", 3)


@pytest.fixture
def kernel():
    kernel = build_kernel("rbf").double()
    kernel.kernels[0].outputscale = 1.7
    kernel.kernels[0].base_kernel.lengthscale = 0.6
    kernel.kernels[1].constant = torch.tensor(0.3).double()
    return kernel


def points(num, seed, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return shift + torch.rand(num, 3, generator=generator).double()


@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_values_and_gradients_are_gpytorchs(kernel, shift):
    found = []
    for evaluate in (
        lambda z, x: ScaledRBF.of(kernel).between(z, x),
        lambda z, x: kernel(z, x).to_dense(),
    ):
        z, x = points(4, 0, shift).requires_grad_(), points(9, 1, shift).requires_grad_()
        kernel.zero_grad()
        values = evaluate(z, x)
        weights = torch.randn(4, 9, generator=torch.Generator().manual_seed(2)).double()
        (weights * values).sum().backward()
        found.append([values, z.grad, x.grad, *[p.grad for p in kernel.parameters()]])
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-10)


def test_gradient_where_both_sides_are_the_same_points(kernel):
    rbf = ScaledRBF.of(kernel)
    z = points(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: rbf.between(z, z), z)


def test_variance_is_gpytorchs(kernel):
    x = points(4, 0)
    assert torch.allclose(ScaledRBF.of(kernel).variance(x), kernel(x, diag=True))


def test_distant_points_are_as_exact_as_gpytorchs_in_single_precision(kernel):
    exact = kernel(points(4, 0, 50.0), points(9, 1, 50.0)).to_dense()
    kernel.float()
    z, x = points(4, 0, 50.0).float(), points(9, 1, 50.0).float()
    with torch.no_grad():
        ours = ScaledRBF.of(kernel).between(z, x)
        theirs = kernel(z, x).to_dense()
    error = (ours - exact).abs().max()
    assert error <= 2 * (theirs - exact).abs().max() + 1e-6


@pytest.mark.parametrize(
    "other",
    [
        lambda: build_kernel("matern32"),
        lambda: build_kernel("linear"),
        lambda: gpk.RBFKernel(),
        lambda: gpk.ScaleKernel(gpk.RBFKernel(ard_num_dims=3)) + gpk.ConstantKernel(),
        lambda: gpk.ScaleKernel(gpk.RBFKernel(active_dims=(0, 1))) + gpk.ConstantKernel(),
        lambda: gpk.ScaleKernel(gpk.RBFKernel()) + gpk.RBFKernel(),
        lambda: gpk.ScaleKernel(gpk.RBFKernel()) * gpk.ConstantKernel(),
    ],
    ids=["matern", "linear", "bare", "ard", "active-dims", "two-rbf", "product"],
)
def test_any_other_kernel_is_left_to_gpytorch(other):
    assert ScaledRBF.of(other()) is None
