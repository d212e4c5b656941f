"""From an encoder's features to the embeddings that a model pools."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sgpmil.gpu.relu_kernels import linear_relu
from sgpmil.shapes import Float

__all__ = ["MAX_DEVIATIONS", "Standardise", "relu_layers"]

MAX_DEVIATIONS = 5.0
"""Where standardised features are cut off: rare activations of a slide from another scanner can
lie dozens of standard deviations out, and would drown every other feature."""


class Standardise(nn.Module):
    """Shift and scale each feature to mean 0 and standard deviation 1 over training instances.

    Until it is fitted it changes nothing.

    Encoders differ in scale by orders of magnitude; a start tuned to one fails on another. The
    statistics are part of the model, so that prediction uses those of its training set.

    Args:
        dim: Number of features.
    """

    mean: Tensor
    scale: Tensor
    limit: Tensor

    is_done: bool = False
    """Whether the features that come are standardised already (see `done_before`)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        self.register_buffer("limit", torch.tensor(torch.inf))

    @torch.no_grad()
    def fit(self, features: Float[Tensor, "T D"]) -> None:
        """Take mean and scale from a sample of training instances."""
        values = features.double()
        std = values.std(dim=0, correction=0)
        # A feature that is constant here tells nothing; left alone it cannot blow up later.
        scale = torch.where(std > 1e-6 * values.abs().amax(0).clamp(min=1e-12), std, 1.0)
        self.mean.copy_(values.mean(0))
        self.scale.copy_(scale)
        self.limit.fill_(MAX_DEVIATIONS)

    @contextmanager
    def done_before(self) -> Iterator[None]:
        """Take features as they are while the block runs: they were standardised when gathered."""
        before, self.is_done = self.is_done, True
        try:
            yield
        finally:
            self.is_done = before

    def forward(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Standardise."""
        if self.is_done:
            return features
        found = features - self.mean
        if found.requires_grad:
            return (found / self.scale).clamp(-self.limit, self.limit)
        # Of no other use: memory for each step would cost more than the steps.
        return found.div_(self.scale).clamp_(-self.limit, self.limit)


def relu_layers(dims: Sequence[int]) -> nn.Sequential:
    """Stack linear layers of the given widths, each followed by a ReLU."""
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise(dims):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return _ReLULayers(*layers)


class _ReLULayers(nn.Sequential):
    """Linear layers and ReLUs by turns, computed together where that is faster."""

    def forward(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T H"]:
        for layer in self:
            if isinstance(layer, nn.Linear):
                features = linear_relu(features, layer.weight, layer.bias)
        return features
