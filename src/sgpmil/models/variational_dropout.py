r"""A linear layer whose weights are normal distributions: variational dropout.

Each weight has the posterior $w_{ji} \sim N(W_{ji}, \alpha_{ji} W_{ji}^2 + 10^{-8})$, the bias is
a number. The output of a row $x$ is then normal too,

$$ y_j \sim N\Big(\sum_i W_{ji} x_i + b_j,\; \sum_i x_i^2 (\alpha_{ji} W_{ji}^2 + 10^{-8})\Big), $$

and can be drawn in two ways of the same distribution for each row:

*locally*
    a draw for each output of each row, for training: its gradient varies least;
*as a function*
    a draw of the weights, the same for all rows, for prediction: what the instances of a bag do
    together is then uncertain as well, instead of averaging out over many instances.

The divergence from a log-uniform prior has no closed form; it is approximated by

$$ R = \sum_j \frac1I \sum_i \tfrac12 \log(1 + \alpha_{ji}^{-1})
   - k_1 \exp\big(-(k_2 + k_3 \log\alpha_{ji})^2\big). $$
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgpmil.shapes import Float

__all__ = ["VariationalLinear"]

_WEIGHT_STD = 0.01
_MIN_WEIGHT_VARIANCE = 1e-8
_MIN_VARIANCE = 1e-16
"""Floor of an output's variance, which is 0 where all inputs are: a square root's slope there is
infinite."""
_K1, _K2, _K3 = 0.6134, 0.2026, 0.7126


class VariationalLinear(nn.Module):
    """The layer; see the module's text for what it computes.

    Args:
        in_dim: Number of inputs.
        out_dim: Number of outputs.
        log_alpha: Where the logarithm of every weight's noise ratio starts.
    """

    def __init__(self, in_dim: int, out_dim: int, *, log_alpha: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(_WEIGHT_STD * torch.randn(out_dim, in_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.log_alpha = nn.Parameter(torch.full((out_dim, in_dim), log_alpha))

    def forward(
        self, x: Float[Tensor, "... I"], eps: Float[Tensor, "O I"] | None = None
    ) -> Float[Tensor, "... O"]:
        """Draw the outputs: locally, or from the weights that a standard normal `eps` gives."""
        return self.local(x) if eps is None else self.sampled(x, eps)

    def local(self, x: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        """Draw each output of each row afresh."""
        mean = F.linear(x, self.weight, self.bias)
        # Half precision cannot hold variances of weights this small.
        with torch.autocast(x.device.type, enabled=False):
            inputs = x.to(self.weight.dtype)
            variance = F.linear(inputs.square(), self.weight_variance())
            deviation = variance.clamp(min=_MIN_VARIANCE).sqrt()
            return mean + deviation * torch.randn_like(deviation)

    def sampled(
        self, x: Float[Tensor, "... I"], eps: Float[Tensor, "O I"]
    ) -> Float[Tensor, "... O"]:
        """Apply one draw of the weights to every row."""
        return F.linear(x, self.draw(eps), self.bias)

    def draw(self, eps: Float[Tensor, "*S O I"]) -> Float[Tensor, "*S O I"]:
        """Turn standard normal values into draws of the weights."""
        return self.weight + self.weight_variance().sqrt() * eps

    def weight_variance(self) -> Float[Tensor, "O I"]:
        r"""$\alpha W^2 + 10^{-8}$."""
        return self.log_alpha.exp() * self.weight.square() + _MIN_WEIGHT_VARIANCE

    def penalty(self) -> Float[Tensor, ""]:
        """The approximate divergence $R$ from the prior."""
        log_alpha = self.log_alpha
        # log(1 + 1/alpha), without alpha's overflow.
        bound = 0.5 * F.softplus(-log_alpha)
        correction = _K1 * (-(_K2 + _K3 * log_alpha).square()).exp()
        return (bound - correction).mean(1).sum()
