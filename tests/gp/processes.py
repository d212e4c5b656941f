"""Random processes, and GPyTorch's own as their oracle."""

import copy

import gpytorch
import gpytorch.kernels as gpk
import torch
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

from sgpmil.gp.prior import KERNELS, build_kernel, build_mean
from sgpmil.gp.sparse import SparseGP

USER_KERNELS = {
    "rq": lambda: gpk.ScaleKernel(gpk.RQKernel()),
    "ard": lambda: gpk.ScaleKernel(gpk.RBFKernel(ard_num_dims=4)),
    "product": lambda: gpk.RBFKernel(active_dims=(0, 1)) * gpk.MaternKernel(nu=1.5),
    "polynomial": lambda: gpk.PolynomialKernel(power=2),
}
ALL_KERNELS = [*KERNELS, *USER_KERNELS]


def random_gp(
    kernel="rbf", mean="linear", *, num_inducing=7, dim=4, jitter=1e-4, dtype=torch.float64, seed=0
) -> SparseGP:
    """Build a process with nothing left at a symmetric or special value."""
    torch.manual_seed(seed)
    build = USER_KERNELS[kernel]() if kernel in USER_KERNELS else build_kernel(kernel)
    gp = SparseGP(build, build_mean(mean, dim), torch.rand(num_inducing, dim), jitter=jitter)
    gp.to(dtype)
    with torch.no_grad():
        for parameter in gp.kernel.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for parameter in gp.mean.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        gp.variational.variational_mean.normal_()
        # The upper triangle is rubbish, which must be ignored; a diagonal entry is negative.
        gp.variational.chol_variational_covar.copy_(
            0.4 * torch.eye(num_inducing) + 0.3 * torch.randn(num_inducing, num_inducing)
        )
        gp.variational.chol_variational_covar[1, 1] = -0.6
    return gp


class _Oracle(gpytorch.models.ApproximateGP):
    def __init__(self, gp: SparseGP) -> None:
        q = CholeskyVariationalDistribution(len(gp.inducing_points))
        points = gp.inducing_points.detach().clone()
        super().__init__(VariationalStrategy(self, points, q, jitter_val=gp.jitter))
        self.mean_module = copy.deepcopy(gp.mean)
        self.covar_module = copy.deepcopy(gp.kernel)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_twin(gp: SparseGP) -> gpytorch.models.ApproximateGP:
    """Build GPyTorch's own model with the same parameters, in evaluation mode."""
    twin = _Oracle(gp).to(gp.inducing_points.dtype)
    strategy = twin.variational_strategy
    strategy._variational_distribution.load_state_dict(gp.variational.state_dict())
    strategy.variational_params_initialized.fill_(1)
    return twin.eval()
