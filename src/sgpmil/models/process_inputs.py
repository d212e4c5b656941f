r"""Inputs of the attention's Gaussian process.

With ``inputs="sigmoid"`` they are $g_i = \sigma(W h_i + b)$, as published. With
``inputs="standardised"`` they are $u_i = W h_i + b$, standardised over the inducing patches, and
beside them $P$ principal components $V^\top x_i$ of the standardised features, which training does
not move:

$$ g_i = \Big[ \frac{u_i - \bar u}{\sqrt{2G}\, \mathrm{sd}(u)},\;
   \sqrt{w}\, \frac{V^\top x_i}{\sqrt{2 \sum_p \mathrm{var}(V_p^\top x)}} \Big]. $$

The mean square distance of two patches is 1 in either part (times $w$), throughout training. The
second part keeps patches apart that are unlike each other, whatever the network learns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sgpmil.shapes import Float

_LEAST_SD = 1e-4
"""Its square is added to a variance, so that an input that patches share cannot blow up."""


@dataclass(frozen=True, slots=True)
class InputFrame:
    """Shift and scale that standardise the learned inputs; none for sigmoids.

    Args:
        shift: Subtracted.
        scale: Multiplied.
    """

    shift: Float[Tensor, " G"] | None = None
    scale: Float[Tensor, " G"] | None = None

    @staticmethod
    def over(projected: Float[Tensor, "M G"]) -> "InputFrame":
        """Standardise over patches."""
        # An input a row: a GPU takes means of rows in a fraction of the time of columns.
        values = projected.T.contiguous()
        mean = values.mean(1, keepdim=True)
        variance = (values - mean).square().mean(1) + _LEAST_SD**2
        return InputFrame(mean.squeeze(1), (2 * projected.shape[1] * variance).rsqrt())

    def __call__(self, projected: Float[Tensor, "T G"]) -> Float[Tensor, "T G"]:
        """Standardise projections."""
        if self.shift is None or self.scale is None:
            return projected.sigmoid()
        return (projected.to(self.shift.dtype) - self.shift) * self.scale

    def project(self, embeddings: Float[Tensor, "T H"], layer: nn.Linear) -> Float[Tensor, "T G"]:
        """Project embeddings, and standardise the projections.

        To standardise the weights of the layer gives the same, and takes no pass over the
        instances.
        """
        if self.shift is None or self.scale is None:
            return self(layer(embeddings))
        weight = layer.weight * self.scale.unsqueeze(1)
        return nn.functional.linear(embeddings, weight, (layer.bias - self.shift) * self.scale)


def preserved_components(
    standardised: Float[Tensor, "T D"], num_components: int
) -> Float[Tensor, "D P"]:
    """Return principal components, scaled so that the mean square distance of instances is 1."""
    values = standardised.double()
    covariance = torch.cov(values.T, correction=0).reshape(values.shape[1], -1)
    variances, vectors = torch.linalg.eigh(covariance)
    total = 2 * variances[-num_components:].sum().clamp(min=torch.finfo(torch.float32).tiny)
    return (vectors[:, -num_components:].flip(1) / total.sqrt()).to(standardised.dtype)
