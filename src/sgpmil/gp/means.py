"""Prior mean functions of the attention's Gaussian process."""

from typing import Literal, get_args

import gpytorch.means as gpm
import torch

from sgpmil.errors import SettingsError

__all__ = ["MEANS", "MeanName", "build_mean"]

MeanName = Literal["linear", "constant"]
MEANS: tuple[str, ...] = get_args(MeanName)


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
