import math

import gpytorch.kernels as gpk
import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from sgpmil.errors import SettingsError
from sgpmil.gp.kernels import KERNELS, build_kernel, set_lengthscale_from_data

LN2 = math.log(2)
# The formulas of the published kernels at scale, lengthscale and constant log 2.
FORMULAS = {
    "rbf": lambda r, xy: LN2 * math.exp(-(r**2) / (2 * LN2**2)) + LN2,
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
    with pytest.raises(SettingsError, match=r"one of rbf, matern12.* but got 'rbff'"):
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
