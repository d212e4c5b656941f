import copy

import gpytorch.kernels as gpk
import pytest
import torch
from sklearn.datasets import make_blobs
from torch.distributions import MultivariateNormal, kl_divergence

from sgpmil.errors import SettingsError, TrainingError
from sgpmil.gp.prior import KERNELS, MEANS
from sgpmil.gp.sparse import SparseGP, kmeans_points, medoids, uniform_points
from sgpmil.gpu.carried_draws import MIN_VARIANCE

from .processes import ALL_KERNELS, gpytorch_twin, random_gp


@pytest.mark.parametrize("jitter", [1e-4, 1e-3])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", ALL_KERNELS)
def test_marginals_are_gpytorchs(kernel, mean, jitter):
    gp = random_gp(kernel, mean, jitter=jitter)
    x = torch.rand(23, 4).double()
    ours, theirs = gp.posterior(x), gpytorch_twin(gp)(x)
    assert (ours.mean - theirs.mean).abs().max() < 1e-9
    assert (ours.variance - theirs.variance).abs().max() < 1e-9


@pytest.mark.parametrize("kernel", ALL_KERNELS)
def test_joint_covariance_is_gpytorchs(kernel):
    gp = random_gp(kernel)
    x = torch.rand(11, 4).double()
    posterior = gp.posterior(x)
    ours = gp.joint_covariance(x)
    theirs = gpytorch_twin(gp)(x).covariance_matrix
    # GPyTorch leaves a distance of 1e-8 between an instance and itself, which matern12 shows.
    assert (ours - theirs).abs().max() < 1e-7
    assert torch.allclose(ours.diagonal(), posterior.variance, atol=1e-7)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", ALL_KERNELS)
def test_gradients_are_gpytorchs(kernel, mean):
    gp = random_gp(kernel, mean)
    twin = gpytorch_twin(gp)
    x = torch.rand(9, 4).double()
    ours, theirs = gp.posterior(x), twin(x)
    weights = torch.rand(2, 9).double()
    (weights[0] @ ours.mean + weights[1] @ ours.variance).backward()
    (weights[0] @ theirs.mean + weights[1] @ theirs.variance).backward()
    strategy = twin.variational_strategy
    q = strategy._variational_distribution
    pairs = [
        (gp.inducing_points, strategy.inducing_points),
        (gp.variational.variational_mean, q.variational_mean),
        (gp.variational.chol_variational_covar, q.chol_variational_covar),
        *zip(gp.kernel.parameters(), twin.covar_module.parameters(), strict=True),
        *zip(gp.mean.parameters(), twin.mean_module.parameters(), strict=True),
    ]
    for mine, other in pairs:
        assert torch.allclose(mine.grad, other.grad, atol=1e-7, rtol=1e-6)


def test_unwhitened_form_of_the_paper():
    r"""$q(f)$ from $u = \mu(Z) + Lv$ by the textbook formula with an explicit inverse."""
    gp = random_gp("rbf")
    x = torch.rand(6, 4).double()
    with torch.no_grad():
        z = gp.inducing_points
        Kzz = gp.kernel(z).to_dense() + gp.jitter * torch.eye(7).double()
        Kxz = gp.kernel(x, z).to_dense()
        L = torch.linalg.cholesky(Kzz)
        m_u = gp.mean(z) + L @ gp.whitened_mean
        S_u = L @ gp.whitened_factor @ gp.whitened_factor.T @ L.T
        A = Kxz @ torch.linalg.inv(Kzz)
        mean = gp.mean(x) + A @ (m_u - gp.mean(z))
        Kxx = gp.kernel(x).to_dense() + gp.jitter * torch.eye(6).double()
        covariance = Kxx + A @ (S_u - Kzz) @ A.T
        posterior = gp.posterior(x)
    assert torch.allclose(posterior.mean, mean, atol=1e-8)
    assert torch.allclose(posterior.variance, covariance.diagonal(), atol=1e-8)
    assert torch.allclose(posterior.residual_variance, (Kxx - A @ Kzz @ A.T).diagonal(), atol=1e-8)


def test_kl_is_that_of_torch_and_gpytorch():
    gp = random_gp(num_inducing=9)
    q = MultivariateNormal(
        gp.whitened_mean, covariance_matrix=gp.whitened_factor @ gp.whitened_factor.T
    )
    prior = MultivariateNormal(torch.zeros(9).double(), torch.eye(9).double())
    assert gp.kl().item() == pytest.approx(kl_divergence(q, prior).item(), abs=1e-9)
    with torch.no_grad():  # GPyTorch's own takes the factor's diagonal to be positive
        gp.variational.chol_variational_covar[range(9), range(9)] = torch.rand(9).double() + 0.1
    theirs = gpytorch_twin(gp).variational_strategy.kl_divergence()
    assert gp.kl().item() == pytest.approx(theirs.item(), abs=1e-9)


def test_kl_of_the_prior_is_zero():
    gp = random_gp()
    with torch.no_grad():
        gp.variational.variational_mean.zero_()
        gp.variational.chol_variational_covar.copy_(torch.eye(7))
    assert gp.kl().item() == pytest.approx(0, abs=1e-12)


def test_upper_triangle_of_the_free_factor_has_no_say():
    gp = random_gp()
    x = torch.rand(5, 4).double()
    before = gp.posterior(x).variance, gp.kl()
    with torch.no_grad():
        gp.variational.chol_variational_covar.add_(torch.full((7, 7), 5.0).triu(1))
    assert torch.equal(gp.posterior(x).variance, before[0])
    assert torch.equal(gp.kl(), before[1])


def test_starts_as_gpytorchs_distribution_does():
    torch.manual_seed(0)
    gp = SparseGP(gpk.RBFKernel(), random_gp().mean, torch.rand(2000, 2))
    assert torch.equal(gp.whitened_factor, torch.eye(2000))
    assert gp.whitened_mean.std().item() == pytest.approx(1e-3, rel=0.1)


def smooth(gp, lengthscale):
    for part in gp.kernel.modules():
        if isinstance(part, gpk.Kernel) and part.has_lengthscale:
            part.lengthscale = lengthscale
    return gp


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "linear"])
@pytest.mark.parametrize(("lengthscale", "tolerance"), [(0.5, 2e-3), (500.0, 5e-3)])
def test_float32_is_near_float64(kernel, lengthscale, tolerance):
    """At 500 all of K_ZZ's 40 eigenvalues but a few are the jitter."""
    gp = smooth(random_gp(kernel, num_inducing=40, dtype=torch.float32), lengthscale)
    x = torch.rand(200, 4)
    exact = copy.deepcopy(gp).double().posterior(x.double())
    single = gp.posterior(x)
    assert single.mean.dtype == torch.float32
    assert (single.mean - exact.mean).abs().max() < tolerance
    assert ((single.variance - exact.variance) / exact.variance).abs().max() < tolerance
    assert single.variance.min() >= MIN_VARIANCE


def test_nearly_singular_covariance_is_gpytorchs_in_float64():
    gp = smooth(random_gp("rbf", num_inducing=40), 500.0)
    assert torch.linalg.cond(gp.kernel(gp.inducing_points).to_dense()) > 1e12
    x = torch.rand(50, 4).double()
    ours, theirs = gp.posterior(x), gpytorch_twin(gp)(x)
    assert (ours.mean - theirs.mean).abs().max() < 1e-6
    assert (ours.variance - theirs.variance).abs().max() < 1e-6


def test_coinciding_inducing_points():
    gp = random_gp(num_inducing=6)
    with torch.no_grad():
        gp.inducing_points.copy_(gp.inducing_points[:1].expand(6, 4).clone())
    x = torch.rand(5, 4).double()
    theirs = gpytorch_twin(gp)(x)
    assert torch.allclose(gp.posterior(x).mean, theirs.mean, atol=1e-7)


class Indefinite(gpk.RBFKernel):
    """A kernel whose matrices have the eigenvalue -0.005 in place of their smallest."""

    def forward(self, x1, x2, diag=False, **params):
        value = super().forward(x1, x2, diag=diag, **params)
        if diag or x1.shape != x2.shape:
            return value
        eigenvalues, vectors = torch.linalg.eigh(value)
        shift = -0.005 - eigenvalues[0]
        return value + shift * vectors[:, :1] @ vectors[:, :1].T


def test_escalated_jitter_reaches_the_marginals():
    gp = SparseGP(Indefinite(), random_gp().mean, torch.rand(5, 4).double(), jitter=1e-4).double()
    x = torch.rand(3, 4).double()
    with torch.no_grad():
        Kzz = gp.kernel(gp.inducing_points).to_dense() + 1e-2 * torch.eye(5).double()
        expected = (
            torch.linalg.cholesky(Kzz).inverse() @ gp.kernel(gp.inducing_points, x).to_dense()
        )
        assert torch.allclose(gp.posterior(x).projection, expected, atol=1e-9)


def test_nan_kernel_is_a_training_error():
    gp = random_gp()
    with torch.no_grad():
        gp.kernel.kernels[0].raw_outputscale.fill_(torch.nan)
    with pytest.raises(TrainingError, match="NaN or has run away"):
        gp.posterior(torch.rand(3, 4).double())


def test_variance_has_a_floor_with_a_finite_slope():
    gp = random_gp(jitter=1e-12, num_inducing=3)
    with torch.no_grad():
        gp.variational.chol_variational_covar.zero_()
    posterior = gp.posterior(gp.inducing_points.detach())  # nothing is left unsaid there
    assert torch.equal(posterior.variance, torch.full((3,), MIN_VARIANCE, dtype=torch.float64))
    posterior.variance.sqrt().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in gp.parameters())


def test_half_precision_inputs_and_autocast_leave_the_process_in_float32():
    gp = random_gp(dtype=torch.float32)
    x = torch.rand(9, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = gp.posterior(x)
    assert torch.equal(under.projection, gp.posterior(x.float()).projection)
    assert under.projection.dtype == torch.float32


def test_uniform_points_fill_the_unit_cube():
    torch.manual_seed(0)
    points = uniform_points(4000, 2)
    assert points.min() >= 0
    assert points.max() <= 1
    # A mean of 4000 uniform values has standard error 1 / sqrt(12 · 4000) = 0.0046.
    assert torch.allclose(points.mean(0), torch.full((2,), 0.5), atol=5 * 0.0046)
    assert torch.allclose(points.var(0), torch.full((2,), 1 / 12), atol=0.01)


def test_kmeans_finds_the_centres_of_separate_clusters():
    truth = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    values, _ = make_blobs(400, centers=truth.numpy(), cluster_std=0.1, random_state=0)
    points = kmeans_points(torch.from_numpy(values), 4, seed=1)
    nearest = torch.cdist(truth.double(), points).min(dim=1).values
    assert nearest.max() < 0.1
    assert points.dtype == torch.float64


def test_kmeans_is_deterministic_and_follows_its_seed():
    inputs = torch.rand(300, 3, generator=torch.Generator().manual_seed(0))
    first = kmeans_points(inputs, 9, seed=3)
    torch.manual_seed(99)
    assert torch.equal(first, kmeans_points(inputs, 9, seed=3))
    assert not torch.equal(first, kmeans_points(inputs, 9, seed=4))
    assert first.dtype == torch.float32


@pytest.mark.parametrize("distinct", [1, 2, 3])
def test_fewer_distinct_inputs_than_points(distinct):
    corners = torch.tensor([[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]])[:distinct]
    inputs = corners.repeat(20, 1)
    points = kmeans_points(inputs, 8, seed=0)
    assert points.shape == (8, 2)
    # Every distinct input is a point, the others are near one, and no two coincide.
    assert torch.cdist(corners, points).min(dim=1).values.max() < 1e-6
    assert torch.cdist(points, corners).min(dim=1).values.max() < 0.3
    assert torch.pdist(points).min() > 0
    assert torch.equal(points, kmeans_points(inputs, 8, seed=0))


def test_one_instance():
    points = kmeans_points(torch.tensor([[0.3, 0.6]]), 3)
    assert torch.allclose(points[0], torch.tensor([0.3, 0.6]))
    assert points.isfinite().all()


def test_no_points_are_refused():
    with pytest.raises(SettingsError, match="at least one inducing point, but got 0"):
        kmeans_points(torch.rand(3, 2), 0)


@pytest.mark.parametrize("kernel", ["rbf", "rbf-alone", "matern32"])
def test_a_moved_process_says_at_its_new_points_what_it_said_before(kernel):
    gp = random_gp(kernel, num_inducing=6)
    # S is at most the prior, as after training: otherwise nothing floors its whitened variances.
    with torch.no_grad():
        gp.variational.chol_variational_covar.mul_(0.5)
    before = gpytorch_twin(gp)
    points = torch.rand(6, 4).double() * 1.3
    old, new = gp.whitening(), gp.whitening(points)
    expected = before(points)
    gp.move(points, old, new)
    with torch.no_grad():
        gp.inducing_points.copy_(points)
    # q(u) = N(mean + L m, L S L'), with everything taken from the definition.
    K = gp.kernel(points).to_dense() + gp.jitter * torch.eye(6).double()
    L = torch.linalg.cholesky(K)
    mean = gp.mean(points) + L @ gp.whitened_mean
    half = L @ gp.whitened_factor
    assert torch.allclose(mean, expected.mean, atol=1e-8)
    assert torch.allclose(half @ half.T, expected.covariance_matrix, atol=2e-3)


def test_a_process_moved_to_its_own_points_in_another_order_does_not_change():
    gp = random_gp("rbf-alone", num_inducing=6)
    x = torch.rand(20, 4).double()
    mean, variance = gp.posterior(x).mean, gp.posterior(x).variance
    order = torch.tensor([3, 1, 0, 5, 2, 4])
    points = gp.points.detach()[order]
    gp.move(points, gp.whitening(), gp.whitening(points))
    after = gp.posterior(x, gp.whitening(points))
    # The jitter is part of the inducing values, and of the process elsewhere it is not.
    assert torch.allclose(after.mean, mean, atol=1e-3)
    assert torch.allclose(after.variance, variance, atol=2e-3)


def test_medoids_are_one_row_of_each_cluster():
    inputs, cluster = make_blobs(300, centers=7, n_features=3, cluster_std=0.1, random_state=3)
    rows = medoids(torch.tensor(inputs), 7, seed=1)
    assert sorted(cluster[rows].tolist()) == list(range(7))
    for row in rows:
        own = inputs[cluster == cluster[row]]
        distance = ((own - own.mean(0)) ** 2).sum(1)
        assert ((inputs[row] - own.mean(0)) ** 2).sum() == pytest.approx(distance.min())


def test_medoids_of_few_rows_repeat():
    rows = medoids(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), 5, seed=0)
    assert len(rows) == 5
    assert {0} < set(rows.tolist()) <= {0, 1, 2}


def test_a_process_without_points_of_its_own_is_given_them():
    gp = random_gp("rbf")
    other = SparseGP(gp.kernel, gp.mean, 7, jitter=gp.jitter).double()
    other.variational.load_state_dict(gp.variational.state_dict())
    x = torch.rand(9, 4).double()
    assert "inducing_points" not in other.state_dict()
    found = other.posterior(x, other.whitening(gp.points))
    assert torch.equal(found.mean, gp.posterior(x).mean)
    with pytest.raises(ValueError, match="none"):
        other.posterior(x)
