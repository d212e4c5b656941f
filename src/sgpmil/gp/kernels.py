r"""Covariance functions of the attention's Gaussian process.

All are GPyTorch's: the stationary ones as $s\\,k(x, x') + c$ with a learned scale $s$,
constant $c$ and one lengthscale, each starting at $\\log 2$.
"""

import copy
from collections.abc import Callable

import gpytorch.kernels as gpk
import torch
from torch import Tensor

from sgpmil.errors import SettingsError
from sgpmil.shapes import Float

__all__ = ["KERNELS", "build_kernel", "set_lengthscale", "set_lengthscale_from_data"]

_MAX_INPUTS = 2000


def _scaled(kernel: gpk.Kernel) -> gpk.Kernel:
    return gpk.ScaleKernel(kernel) + gpk.ConstantKernel()


KERNELS: dict[str, Callable[[], gpk.Kernel]] = {
    "rbf": lambda: _scaled(gpk.RBFKernel()),
    "matern12": lambda: _scaled(gpk.MaternKernel(nu=0.5)),
    "matern32": lambda: _scaled(gpk.MaternKernel(nu=1.5)),
    "matern52": lambda: _scaled(gpk.MaternKernel(nu=2.5)),
    "linear": lambda: gpk.LinearKernel() + gpk.ConstantKernel(),
}


def build_kernel(kernel: str | gpk.Kernel) -> gpk.Kernel:
    """Return the kernel of a name, or a copy of the given one.

    A copy, because models that shared a kernel would train each other's parameters.

    Args:
        kernel: A key of `KERNELS`, or any GPyTorch kernel.

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
    return KERNELS[kernel]()


@torch.no_grad()
def set_lengthscale(kernel: gpk.Kernel, value: float) -> None:
    """Set every lengthscale of a kernel."""
    for part in kernel.modules():
        if isinstance(part, gpk.Kernel) and part.has_lengthscale:
            part.lengthscale = value


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
