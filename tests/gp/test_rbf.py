import gpytorch.kernels as gpk
import pytest
import torch

from sgpmil.gp.kernels import build_kernel
from sgpmil.gp.rbf import ScaledRBF


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
