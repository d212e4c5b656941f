r"""Prior of the attention's Gaussian process: kernels and mean functions.

All are GPyTorch's. The stationary kernels are $s\,k(x, x') + c$ with a learned scale $s$, constant
$c$ and one lengthscale, each starting at $\log 2$. The default kernel,

$$ k(z, x) = s \exp\big(-\tfrac12 \lVert z - x \rVert^2 / \ell^2\big) + c, $$

is evaluated by `sgpmil.gpu.carried_draws` with the parameters of GPyTorch's kernel, as is
``rbf-alone``, which has no constant: a softmax over a bag ignores what all its instances share.
GPyTorch evaluates any other.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import gpytorch.kernels as gpk
import gpytorch.means as gpm
import torch
from torch import Tensor

from sgpmil.errors import SettingsError
from sgpmil.gpu.carried_draws import rbf_covariance
from sgpmil.shapes import Float

MeanName = Literal["linear", "constant"]
MEANS: tuple[str, ...] = get_args(MeanName)

_MAX_INPUTS = 2000


def _scaled(kernel: gpk.Kernel) -> gpk.Kernel:
    return gpk.ScaleKernel(kernel) + gpk.ConstantKernel()


KERNELS: dict[str, Callable[[], gpk.Kernel]] = {
    "rbf": lambda: _scaled(gpk.RBFKernel()),
    "rbf-alone": lambda: gpk.ScaleKernel(gpk.RBFKernel()),
    "matern12": lambda: _scaled(gpk.MaternKernel(nu=0.5)),
    "matern32": lambda: _scaled(gpk.MaternKernel(nu=1.5)),
    "matern52": lambda: _scaled(gpk.MaternKernel(nu=2.5)),
    "linear": lambda: gpk.LinearKernel() + gpk.ConstantKernel(),
}


def build_kernel(kernel: str | gpk.Kernel) -> gpk.Kernel:
    """Return the kernel of a name, or a copy of the given one.

    A copy, because models that shared a kernel would train each other's parameters.

    Raises:
        SettingsError: No kernel has that name.
    """
    if isinstance(kernel, gpk.Kernel):
        return copy.deepcopy(kernel)
    if kernel not in KERNELS:
        raise SettingsError(
            f"Expected kernel to be one of {', '.join(KERNELS)} or a GPyTorch kernel, "
            f"but got '{kernel}'."
        )
    # Its constraints are compared when they are made, also where a model is built on meta.
    with torch.device("cpu"):
        return KERNELS[kernel]()


@torch.no_grad()
def set_lengthscale(kernel: gpk.Kernel, value: float) -> None:
    """Set every lengthscale of a kernel."""
    for part in kernel.modules():
        if isinstance(part, gpk.Kernel) and part.has_lengthscale:
            with torch.device("cpu"):
                part.lengthscale = value


@torch.no_grad()
def set_outputscale(kernel: gpk.Kernel, value: float) -> None:
    """Set every scale $s$ of a kernel."""
    for part in kernel.modules():
        if isinstance(part, gpk.ScaleKernel):
            with torch.device("cpu"):
                part.outputscale = value


@torch.no_grad()
def set_lengthscale_from_data(kernel: gpk.Kernel, inputs: Float[Tensor, "T G"]) -> None:
    """Set every lengthscale to the median distance between inputs.

    A single input leaves them as they are.
    """
    step = -(-len(inputs) // _MAX_INPUTS)
    distances = torch.pdist(inputs[::step].double())
    if not len(distances):
        return
    set_lengthscale(kernel, float(distances.median().clamp(min=1e-3)))


def build_mean(
    name: str, input_dim: int, *, scale: float = 1.0, bias: float | None = None
) -> gpm.Mean:
    r"""Build a mean function $\mu(x) = w^\top x + b$, or $\mu(x) = b$.

    Args:
        name: ``linear`` or ``constant``.
        input_dim: Number of inputs.
        scale: Standard deviation of the initial $w$ and $b$ of a linear mean (published: 1).
        bias: Initial $b$; None draws it (linear) or starts it at 0 (constant).

    Raises:
        SettingsError: No mean function has that name.
    """
    if name == "linear":
        mean = gpm.LinearMean(input_dim)
        with torch.no_grad():
            mean.weights.mul_(scale)
            mean.bias.mul_(scale)
            if bias is not None:
                mean.bias.fill_(bias)
        return mean
    if name == "constant":
        mean = gpm.ConstantMean()
        mean.initialize(constant=bias or 0.0)
        return mean
    raise SettingsError(f"Expected mean to be one of {', '.join(MEANS)}, but got '{name}'.")


def linear_terms(
    mean: gpm.Mean,
) -> tuple[Float[Tensor, " G"], Float[Tensor, ""]] | tuple[None, None]:
    """Return $w$ and $b$ of a linear mean; None for both of any other mean."""
    if type(mean) is not gpm.LinearMean or mean.bias is None:
        return None, None
    return mean.weights.reshape(-1), mean.bias.reshape(())


@runtime_checkable
class Covariance(Protocol):
    """A kernel at the present values of its parameters."""

    def between(self, z: Float[Tensor, "M G"], x: Float[Tensor, "T G"]) -> Float[Tensor, "M T"]:
        """Compute the covariance of every pair."""
        ...

    def variance(self, x: Float[Tensor, "T G"]) -> Float[Tensor, " T"]:
        """Compute the variance of every point."""
        ...


def covariance_of(kernel: gpk.Kernel) -> Covariance:
    """Read the parameters of a kernel once, for all that is computed with their present values."""
    return ScaledRBF.of(kernel) or OtherKernel(kernel)


@dataclass(frozen=True, slots=True)
class OtherKernel:
    """Any kernel, evaluated by GPyTorch.

    Args:
        kernel: The kernel.
    """

    kernel: gpk.Kernel

    def between(self, z: Float[Tensor, "M G"], x: Float[Tensor, "T G"]) -> Float[Tensor, "M T"]:
        """See `Covariance`."""
        return self.kernel(z, x).to_dense()

    def variance(self, x: Float[Tensor, "T G"]) -> Float[Tensor, " T"]:
        """See `Covariance`."""
        return self.kernel(x, diag=True)


@dataclass(frozen=True, slots=True)
class ScaledRBF:
    r"""The default kernel.

    Args:
        lengthscale: $\ell$.
        scale: $s$.
        constant: $c$.
    """

    lengthscale: Float[Tensor, ""]
    scale: Float[Tensor, ""]
    constant: Float[Tensor, ""]

    @staticmethod
    def of(kernel: gpk.Kernel) -> "ScaledRBF | None":
        """Read the parameters of a GPyTorch kernel; None where it is another kernel."""
        parts = list(kernel.kernels) if type(kernel) is gpk.AdditiveKernel else [kernel]
        scaled, *constants = parts
        if type(scaled) is not gpk.ScaleKernel or len(constants) > 1:
            return None
        if any(type(constant) is not gpk.ConstantKernel for constant in constants):
            return None
        rbf = scaled.base_kernel
        simple = all(part.active_dims is None for part in (*parts, rbf, kernel))
        if type(rbf) is not gpk.RBFKernel or rbf.lengthscale.numel() != 1 or not simple:
            return None
        scale = scaled.outputscale.reshape(())
        constant = constants[0].constant.reshape(()) if constants else torch.zeros_like(scale)
        return ScaledRBF(rbf.lengthscale.reshape(()), scale, constant)

    def between(self, z: Float[Tensor, "M G"], x: Float[Tensor, "T G"]) -> Float[Tensor, "M T"]:
        """See `Covariance`."""
        return rbf_covariance(z, x, self.lengthscale, self.scale, self.constant)

    def variance(self, x: Float[Tensor, "T G"]) -> Float[Tensor, " T"]:
        """See `Covariance`."""
        return (self.scale + self.constant).expand(x.shape[0])
