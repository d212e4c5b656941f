import itertools
import math

import pytest
import torch

from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.gp import sampling
from sgpmil.gp.noise import FreshNoise, RepeatableNoise, ZeroNoise
from sgpmil.gp.prior import build_kernel, build_mean
from sgpmil.gp.sampling import SAMPLING_SCHEMES, draw
from sgpmil.gp.sparse import SparseGP

from .processes import gpytorch_twin, random_gp

S = 40_000


def draws_of(gp, x, scheme, *, num_samples=S, offsets=None, noise=None):
    offsets = torch.tensor([0, len(x)]) if offsets is None else offsets
    return draw(
        gp,
        x,
        Segments.of(offsets),
        scheme=scheme,
        num_samples=num_samples,
        noise=noise or FreshNoise(),
    )


def assert_moments(draws, mean, covariance):
    """Compare with moments within 5 standard errors (of a Gaussian's own moments)."""
    S = len(draws)
    variance = covariance.diagonal()
    assert ((draws.mean(0) - mean).abs() < 5 * (variance / S).sqrt() + 1e-12).all()
    error = ((variance[:, None] * variance + covariance**2) / S).sqrt()
    assert ((torch.cov(draws.T) - covariance).abs() < 5 * error + 1e-12).all()


@pytest.fixture
def gp():
    return random_gp("rbf", num_inducing=4)


@pytest.fixture
def x(gp):
    return torch.rand(6, 4).double()


@torch.no_grad()
def test_full_is_the_exact_joint_posterior(gp, x):
    theirs = gpytorch_twin(gp)(x)
    assert_moments(draws_of(gp, x, "full"), theirs.mean, theirs.covariance_matrix)
    off = theirs.covariance_matrix.clone().fill_diagonal_(0).abs().max()
    assert off > 0.1  # so that a diagonal covariance would have failed


@torch.no_grad()
def test_inducing_has_exact_marginals_and_the_inducing_points_correlation(gp, x):
    posterior, theirs = gp.posterior(x), gpytorch_twin(gp)(x)
    B = posterior.projection
    carried = B.T @ gp.whitened_factor @ gp.whitened_factor.T @ B
    covariance = carried + torch.diag(posterior.residual_variance)
    assert torch.allclose(covariance.diagonal(), theirs.variance, atol=1e-9)
    assert_moments(draws_of(gp, x, "inducing"), theirs.mean, covariance)


@torch.no_grad()
def test_independent_has_exact_marginals_and_no_correlation(gp, x):
    theirs = gpytorch_twin(gp)(x)
    assert_moments(draws_of(gp, x, "independent"), theirs.mean, torch.diag(theirs.variance))


@torch.no_grad()
def test_shared_is_perfectly_correlated_in_a_bag_and_not_across(gp, x):
    theirs = gpytorch_twin(gp)(x)
    draws = draws_of(gp, x, "shared", offsets=torch.tensor([0, 2, 6]))
    sd = theirs.variance.sqrt()
    same_bag = torch.block_diag(torch.ones(2, 2), torch.ones(4, 4)).double()
    assert_moments(draws, theirs.mean, same_bag * sd[:, None] * sd)
    epsilon = (draws - theirs.mean) / sd
    assert torch.allclose(epsilon[:, 0], epsilon[:, 1], atol=1e-9)
    assert torch.linalg.matrix_rank(draws[:50, 2:] - theirs.mean[2:], rtol=1e-8) == 1


@torch.no_grad()
def test_full_treats_bags_as_independent(gp, x):
    offsets = torch.tensor([0, 2, 6])
    theirs = gpytorch_twin(gp)(x)
    same_bag = torch.block_diag(torch.ones(2, 2), torch.ones(4, 4)).double()
    draws = draws_of(gp, x, "full", offsets=offsets)
    assert_moments(draws, theirs.mean, same_bag * theirs.covariance_matrix)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_samples", [1, 3, 8])
@pytest.mark.parametrize("scheme", SAMPLING_SCHEMES)
def test_a_bags_samples_do_not_depend_on_its_batch(scheme, num_samples, dtype):
    gp = random_gp(dtype=dtype)
    sizes = [3, 1, 37, 5]
    offsets = torch.tensor([0, *itertools.accumulate(sizes)])
    x = torch.rand(sum(sizes), 4, dtype=dtype)
    noise = RepeatableNoise(7)
    packed = draws_of(gp, x, scheme, num_samples=num_samples, offsets=offsets, noise=noise)
    for start, end in itertools.pairwise(offsets.tolist()):
        alone = draws_of(gp, x[start:end], scheme, num_samples=num_samples, noise=noise)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-10
        assert (packed[:, start:end] - alone).abs().max() < tolerance
    assert packed.dtype == dtype


@pytest.mark.parametrize("scheme", SAMPLING_SCHEMES)
def test_without_noise_every_sample_is_the_mean(gp, x, scheme):
    draws = draws_of(gp, x, scheme, num_samples=2, noise=ZeroNoise())
    assert torch.allclose(draws, gp.posterior(x).mean.expand(2, 6), atol=1e-12)


@pytest.mark.parametrize("scheme", SAMPLING_SCHEMES)
def test_samples_are_reparameterised(scheme):
    """The gradient of a sample is that of central differences, in every parameter."""
    gp = random_gp("rbf", num_inducing=2, dim=2)
    x = torch.rand(3, 2).double().requires_grad_()
    weights = torch.rand(2, 3).double()

    def value():
        noise = RepeatableNoise(1)
        return (weights * draws_of(gp, x, scheme, num_samples=2, noise=noise)).sum()

    value().backward()
    step = 1e-6
    for parameter in [*gp.parameters(), x]:
        assert parameter.grad is not None
        numeric = torch.zeros_like(parameter)
        for index in itertools.product(*map(range, parameter.shape)):
            with torch.no_grad():
                old = parameter[index].item()
                parameter[index] = old + step
                above = value().item()
                parameter[index] = old - step
                numeric[index] = (above - value().item()) / (2 * step)
                parameter[index] = old
        assert numeric.abs().max() > 1e-4
        assert torch.allclose(parameter.grad, numeric, atol=1e-5, rtol=1e-4)


def test_a_bag_too_large_for_full_is_drawn_through_the_inducing_points(gp, x, monkeypatch):
    monkeypatch.setattr(sampling, "MAX_JOINT_INSTANCES", 3)
    offsets = torch.tensor([0, 2, 6])
    noise = RepeatableNoise(0)
    with pytest.warns(UserWarning, match="more than 3 instances, too many for the exact joint"):
        draws = draws_of(gp, x, "full", num_samples=5, offsets=offsets, noise=noise)
    inducing = draws_of(gp, x, "inducing", num_samples=5, offsets=offsets, noise=noise)
    small = draws_of(gp, x[:2], "full", num_samples=5, noise=noise)
    assert torch.allclose(draws[:, 2:], inducing[:, 2:])
    assert torch.allclose(draws[:, :2], small)
    assert not torch.allclose(draws[:, :2], inducing[:, :2])


def test_a_bag_of_just_the_largest_size_does_not_warn(gp, x, monkeypatch):
    monkeypatch.setattr(sampling, "MAX_JOINT_INSTANCES", 6)
    assert draws_of(gp, x, "full", num_samples=5).isfinite().all()


@torch.no_grad()
def test_spread_of_a_bags_average_under_each_scheme():
    """Why the scheme matters: independent noise averages out over a bag, the others' do not."""
    gp = random_gp("rbf", num_inducing=4)
    x = torch.rand(400, 4).double()
    sd = gp.posterior(x).variance.sqrt().mean().item()
    spread = {
        scheme: draws_of(gp, x, scheme, num_samples=4000).mean(1).std().item()
        for scheme in SAMPLING_SCHEMES
    }
    exact = math.sqrt(gpytorch_twin(gp)(x).covariance_matrix.mean().item())
    assert spread["full"] == pytest.approx(exact, rel=0.06)
    assert spread["shared"] == pytest.approx(sd, rel=0.06)
    assert spread["independent"] < 2 * sd / math.sqrt(400)
    assert spread["inducing"] > 5 * spread["independent"]


@pytest.mark.parametrize("scheme", SAMPLING_SCHEMES)
def test_coinciding_instances_can_be_drawn(scheme):
    gp = random_gp(dtype=torch.float32)
    x = torch.rand(1, 4).expand(50, 4).clone()
    draws = draws_of(gp, x, scheme, num_samples=4)
    assert draws.isfinite().all()


@pytest.mark.parametrize("scheme", SAMPLING_SCHEMES)
def test_autocast_does_not_reach_the_process(scheme):
    gp = random_gp(dtype=torch.float32, num_inducing=20)
    x = torch.rand(30, 4)
    plain = draws_of(gp, x, scheme, num_samples=4, noise=RepeatableNoise(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = draws_of(gp, x, scheme, num_samples=4, noise=RepeatableNoise(0))
    assert torch.equal(plain, under)


def test_unknown_scheme_lists_the_known(gp, x):
    with pytest.raises(SettingsError, match=r"one of independent, shared, .*but got 'joint'"):
        draws_of(gp, x, "joint", num_samples=1)


def test_joint_samples_in_single_precision_of_a_nearly_singular_process():
    # In float32, K_XX - B'B of this process has eigenvalues below zero.
    torch.manual_seed(0)
    kernel = build_kernel("rbf")
    kernel.kernels[0].outputscale = 1000.0
    kernel.kernels[0].base_kernel.lengthscale = 3.0
    x = torch.rand(300, 4)
    gp = SparseGP(kernel, build_mean("constant", 4), x[:20], jitter=1e-4)
    f = draw(
        gp,
        x,
        Segments.of(torch.tensor([0, 300])),
        scheme="full",
        num_samples=8,
        noise=FreshNoise(),
    )
    assert torch.isfinite(f).all()
