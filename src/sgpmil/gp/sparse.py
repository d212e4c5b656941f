r"""The sparse variational Gaussian process, whitened.

With inducing inputs $Z$, $L = \mathrm{chol}(K_{ZZ} + jI)$ and $B = L^{-1} K_{ZX}$, the inducing
values are $u = \mu(Z) + L v$ with $q(v) = N(m, S)$, $S = L_S L_S^\top$, and

$$ q(f_i) = N\big(\mu(x_i) + B_i^\top m,\;
   k(x_i, x_i) + j - \lVert B_i \rVert^2 + \lVert L_S^\top B_i \rVert^2\big). $$

Kernels, means and the variational distribution are GPyTorch's. The step from them to marginals
is ours because it is the hot path: the M×M factor is taken in float64, everything that grows with
the number of instances is a matrix product in the compute dtype, and no N×N matrix appears.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import gpytorch.kernels as gpk
import gpytorch.means as gpm
import torch
from gpytorch.variational import CholeskyVariationalDistribution
from torch import Tensor, nn

from sgpmil.errors import SettingsError
from sgpmil.gp.linear_part import LinearPart
from sgpmil.gp.prior import Covariance, ScaledRBF, covariance_of, linear_terms
from sgpmil.gpu.carried_draws import MIN_VARIANCE, carried_draw, carried_rbf_draw
from sgpmil.gpu.cholesky import inverse_factor, jittered_cholesky
from sgpmil.shapes import Float, Int

InducingStart = Literal["uniform", "kmeans"]
INDUCING_STARTS: tuple[str, ...] = get_args(InducingStart)

_LEAST_WHITENED_VARIANCE = 1e-4
"""Floor of the variances of q(v) after a move: rounding leaves those of nearly known values 0."""


@dataclass(frozen=True, slots=True)
class Whitening:
    r"""Terms that do not depend on the inputs.

    Args:
        points: The inducing inputs $Z$.
        covariance: The kernel at the present values of its parameters.
        inverse: $L^{-1}$, which whitens inducing values.
    """

    points: Float[Tensor, "M G"]
    covariance: Covariance
    inverse: Float[Tensor, "M M"]


@dataclass(frozen=True, slots=True)
class Posterior:
    r"""Terms of the posterior of $f$ at T inputs.

    Args:
        prior_mean: $\mu(x_i)$.
        prior_variance: $k(x_i, x_i) + j$.
        projection: $B = L^{-1} K_{ZX}$.
        whitened_mean: $m$.
        whitened_factor: $L_S$, lower triangular.
        linear: Mean and variance of the linear part, where the process has one; its prior variance
            is in `prior_variance`.
        linear_prior: That prior variance.
    """

    prior_mean: Float[Tensor, " T"]
    prior_variance: Float[Tensor, " T"]
    projection: Float[Tensor, "M T"]
    whitened_mean: Float[Tensor, " M"]
    whitened_factor: Float[Tensor, "M M"]
    linear: tuple[Float[Tensor, " T"], Float[Tensor, " T"]] | None = None
    linear_prior: Float[Tensor, " T"] | None = None

    @property
    def mean(self) -> Float[Tensor, " T"]:
        r"""$\mu(x_i) + B_i^\top m$, and the mean of the linear part."""
        found = self.prior_mean + self.carried_mean
        return found if self.linear is None else found + self.linear[0]

    @property
    def carried_mean(self) -> Float[Tensor, " T"]:
        r"""$B_i^\top m$: the part of the mean that the inducing values carry."""
        return self.whitened_mean @ self.projection

    @property
    def variance(self) -> Float[Tensor, " T"]:
        r"""$k(x_i, x_i) + j - \lVert B_i\rVert^2 + \lVert L_S^\top B_i\rVert^2$.

        With a linear part, its variance is added.
        """
        explained = (self.whitened_factor.T @ self.projection).square().sum(0)
        found = (self._kernel_variance - self._reduction + explained).clamp(min=MIN_VARIANCE)
        return found if self.linear is None else found + self.linear[1]

    @property
    def residual_variance(self) -> Float[Tensor, " T"]:
        r"""$k(x_i, x_i) + j - \lVert B_i\rVert^2$, given the inducing values."""
        return (self._kernel_variance - self._reduction).clamp(min=MIN_VARIANCE)

    @property
    def _kernel_variance(self) -> Float[Tensor, " T"]:
        if self.linear_prior is None:
            return self.prior_variance
        return self.prior_variance - self.linear_prior

    @property
    def _reduction(self) -> Float[Tensor, " T"]:
        return self.projection.square().sum(0)


class SparseGP(nn.Module):
    """A sparse Gaussian process with M inducing points.

    Args:
        kernel: A GPyTorch kernel.
        mean: A GPyTorch mean function.
        inducing_points: Initial inducing inputs, which are learned; or their number M, where
            `whitening` is given them each time.
        jitter: Value added to the diagonals of the kernel matrices.
        linear: A linear part of the process, if any.
    """

    inducing_points: nn.Parameter | None

    def __init__(
        self,
        kernel: gpk.Kernel,
        mean: gpm.Mean,
        inducing_points: Float[Tensor, "M G"] | int,
        *,
        jitter: float = 1e-4,
        linear: LinearPart | None = None,
    ) -> None:
        super().__init__()
        self.linear = linear
        self.kernel = kernel
        self.mean = mean
        self.jitter = jitter
        if isinstance(inducing_points, int):
            num_inducing = inducing_points
            self.register_parameter("inducing_points", None)
        else:
            num_inducing = len(inducing_points)
            self.inducing_points = nn.Parameter(inducing_points.clone())
        self.variational = CholeskyVariationalDistribution(num_inducing)
        # GPyTorch does so at the first call of the distribution, which is never called here.
        nn.init.normal_(self.variational.variational_mean, std=1e-3)

    @property
    def points(self) -> Float[Tensor, "M G"]:
        """The inducing points, where they are the process's own."""
        if self.inducing_points is None:
            raise ValueError("Expected inducing points of the process's own, but it has none.")
        return self.inducing_points

    @property
    def whitened_mean(self) -> Float[Tensor, " M"]:
        """The mean $m$ of q(v)."""
        return self.variational.variational_mean

    @property
    def whitened_factor(self) -> Float[Tensor, "M M"]:
        """The lower triangular factor $L_S$ of the covariance of q(v)."""
        return self.variational.chol_variational_covar.tril()

    def whitening(self, points: Float[Tensor, "M G"] | None = None) -> Whitening:
        """Compute the terms that do not depend on the inputs.

        Args:
            points: The inducing inputs; the process's own where not given.
        """
        found = self.points if points is None else points
        covariance = covariance_of(self.kernel)
        with torch.autocast(found.device.type, enabled=False):
            Z = found.to(self.whitened_mean.dtype)
            Kzz = covariance.between(Z, Z)
            return Whitening(Z, covariance, inverse_factor(Kzz, self.jitter, Kzz.dtype))

    def posterior(
        self, inputs: Float[Tensor, "T G"], whitening: Whitening | None = None
    ) -> Posterior:
        """Condition on the inducing points at the given inputs.

        Args:
            inputs: The inputs.
            whitening: Result of `whitening`, where it is used more than once.
        """
        given = self.whitening() if whitening is None else whitening
        # Half precision would lose the difference of nearly equal variances.
        with torch.autocast(inputs.device.type, enabled=False):
            x = inputs.to(given.points.dtype)
            Kzx = given.covariance.between(given.points, x)
            variance = given.covariance.variance(x) + self.jitter
            linear_prior = None if self.linear is None else self.linear.prior_variance(x)
            return Posterior(
                prior_mean=self.mean(x),
                prior_variance=variance if linear_prior is None else variance + linear_prior,
                projection=given.inverse @ Kzx,  # L⁻¹ K_ZX
                whitened_mean=self.whitened_mean,
                whitened_factor=self.whitened_factor,
                linear=None if self.linear is None else self.linear.moments(x),
                linear_prior=linear_prior,
            )

    def carry(
        self,
        inputs: Float[Tensor, "T G"],
        functions: Float[Tensor, "S M"],
        noise: Float[Tensor, "S T"],
        whitening: Whitening,
    ) -> Float[Tensor, "S T"]:
        r"""Carry draws of the whitened inducing values to inputs.

        $$ f_{si} = \mu(x_i) + B_i^\top v_s + (k(x_i, x_i) + j - \lVert B_i\rVert^2)^{1/2}
           \epsilon_{si} $$
        """
        Z, P, k = whitening.points, whitening.inverse, whitening.covariance
        w, b = linear_terms(self.mean)
        with torch.autocast(inputs.device.type, enabled=False):
            if isinstance(k, ScaledRBF):
                theta = k.lengthscale, k.scale, k.constant, self.jitter
                drawn = carried_rbf_draw(inputs, Z, P, functions, *theta, w, b, noise)
                if w is not None:
                    return drawn  # with its mean
                x = inputs.to(Z.dtype)
            else:
                x = inputs.to(Z.dtype)
                variance = k.variance(x) + self.jitter
                drawn = carried_draw(k.between(Z, x), P, functions, variance, noise)
            return self.mean(x) + drawn

    def joint_covariance(
        self, inputs: Float[Tensor, "N G"], whitening: Whitening | None = None
    ) -> Float[Tensor, "N N"]:
        r"""The exact covariance $K_{XX} + jI + B^\top (S - I) B$ of $q(f)$, in float64.

        It leaves out a linear part, whose covariance is `LinearPart.covariance`.

        Everything is in float64, the kernel included: in single precision the difference
        $K_{XX} - B^\top B$ of a trained process is not positive definite.
        """
        given = self.whitening() if whitening is None else whitening
        with torch.autocast(inputs.device.type, enabled=False):
            x, z = inputs.double(), given.points.double()
            Lz = jittered_cholesky(self._kernel_in_double(z, z), self.jitter)
            B = torch.linalg.solve_triangular(Lz, self._kernel_in_double(z, x), upper=False)
            SB = self.whitened_factor.double().T @ B
            noise = self.jitter * torch.eye(len(x), dtype=x.dtype, device=x.device)
            return self._kernel_in_double(x, x) + noise + SB.T @ SB - B.T @ B

    def _kernel_in_double(
        self, one: Float[Tensor, "A G"], other: Float[Tensor, "C G"]
    ) -> Float[Tensor, "A C"]:
        kernel = _DenseKernel(self.kernel)
        parameters = {name: value.double() for name, value in kernel.named_parameters()}
        return torch.func.functional_call(kernel, parameters, (one, other))

    @torch.no_grad()
    def move(self, seen: Float[Tensor, "M G"], whitening: Whitening, moved: Whitening) -> None:
        r"""Move $q(v)$ to other inducing points, so that it says there what it said before.

        With the posterior's mean $\mu + a$ and covariance $C$ at the new points, and their factor
        $L'$, the whitened values have $m' = L'^{-1} a$ and $S' = L'^{-1} C L'^{-\top}$.

        Args:
            seen: The new points as the process saw them up to now.
            whitening: The process up to now.
            moved: The process with the new points, which may change how it sees inputs.
        """
        before = self.posterior(seen, whitening)
        covariance = self.joint_covariance(seen, whitening)
        factor = jittered_cholesky(
            self._kernel_in_double(moved.points.double(), moved.points.double()), self.jitter
        )
        logits = before.carried_mean.double().unsqueeze(1)
        mean = torch.linalg.solve_triangular(factor, logits, upper=False).squeeze(1)
        half = torch.linalg.solve_triangular(factor, covariance, upper=False)
        whole = torch.linalg.solve_triangular(factor, half.T, upper=False)
        values, vectors = torch.linalg.eigh((whole + whole.T) / 2)
        whole = (vectors * values.clamp(min=_LEAST_WHITENED_VARIANCE)) @ vectors.T
        self.variational.variational_mean.copy_(mean)
        self.variational.chol_variational_covar.copy_(torch.linalg.cholesky(whole))

    def kl(self) -> Float[Tensor, ""]:
        r"""The divergence of $q(v)$ from its prior $N(0, I)$, and that of a linear part.

        $$ \mathrm{KL} = \tfrac12\big(\mathrm{tr} S + m^\top m - M - \log\det S\big) $$
        """
        m, Ls = self.whitened_mean, self.whitened_factor
        # abs: nothing keeps the diagonal of L_S positive.
        log_det = 2 * Ls.diagonal().abs().log().sum()
        found = 0.5 * (Ls.square().sum() + m @ m - len(m) - log_det)
        return found if self.linear is None else found + self.linear.kl()


class _DenseKernel(nn.Module):
    """A kernel as a module whose call evaluates it, for `torch.func.functional_call`."""

    def __init__(self, kernel: gpk.Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(
        self, one: Float[Tensor, "A G"], other: Float[Tensor, "C G"]
    ) -> Float[Tensor, "A C"]:
        return self.kernel(one, other).to_dense()


def uniform_points(num_points: int, dim: int) -> Float[Tensor, "M G"]:
    """Draw points uniformly in the unit cube, as published.

    The inputs are sigmoids and lie near the cube's middle, so most of these points stay far from
    all inputs.
    """
    return torch.rand(num_points, dim)


def kmeans_points(
    inputs: Float[Tensor, "T G"], num_points: int, *, seed: int = 0
) -> Float[Tensor, "M G"]:
    """Return the k-means centres of inputs.

    Args:
        inputs: Inputs of a sample of the training instances.
        num_points: Number of inducing points M. Where there are fewer distinct inputs than
            that, the centres are repeated with a little noise.
        seed: Seed of the clustering.
    """
    from sklearn.cluster import MiniBatchKMeans

    if num_points < 1:
        raise SettingsError(f"Expected at least one inducing point, but got {num_points}.")
    values = inputs.detach().cpu().double().numpy()
    k = min(num_points, _num_distinct(inputs))
    clusters = MiniBatchKMeans(k, random_state=seed, n_init=1, batch_size=4096).fit(values)
    centres = torch.from_numpy(clusters.cluster_centers_).to(inputs.dtype)
    if k < num_points:
        generator = torch.Generator().manual_seed(seed)
        again = torch.arange(num_points - k) % k
        spread = inputs.detach().std(dim=0, correction=0).cpu().clamp(min=1e-3)
        jitter = torch.randn(num_points - k, inputs.shape[1], generator=generator)
        centres = torch.cat([centres, centres[again] + 0.1 * spread * jitter.to(centres.dtype)])
    return centres.to(inputs.device)


def medoids(inputs: Float[Tensor, "T G"], num_points: int, *, seed: int = 0) -> Int[Tensor, " M"]:
    """Return the rows of inputs that stand for all: those nearest to their k-means centres.

    Where there are fewer distinct rows than asked for, rows are repeated.

    Args:
        inputs: Inputs of a sample of instances.
        num_points: Number of rows M.
        seed: Seed of the clustering.
    """
    from sklearn.cluster import KMeans

    values = inputs.detach().cpu().double()
    k = min(num_points, _num_distinct(inputs))
    clusters = KMeans(k, random_state=seed, n_init=1, max_iter=20).fit(values.numpy())
    order = torch.cdist(torch.from_numpy(clusters.cluster_centers_), values).argsort(dim=1)
    taken: dict[int, None] = {}
    for row in order.tolist():
        taken.setdefault(next((i for i in row if i not in taken), row[0]))
    found = torch.tensor(list(taken))
    return found[torch.arange(num_points) % len(found)]


def _num_distinct(inputs: Float[Tensor, "T G"]) -> int:
    return len(torch.unique(inputs.detach(), dim=0))
