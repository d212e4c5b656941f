"""Layers between the features of instances and the embeddings that a model pools."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.gpu.relu import linear_relu
from sgpmil.gpu.rows import take_rows
from sgpmil.shapes import Float, Int

DIGIT_SIDE = 28
"""Side of an MNIST digit in pixels."""

MAX_DEVIATIONS = 5.0
"""Limit of standardised features: rare activations of a slide from another scanner can lie dozens
of standard deviations out, and would outweigh every other feature."""


class Standardise(nn.Module):
    """Shift and scale each feature to mean 0 and standard deviation 1 over training instances.

    Before `fit` it changes nothing.

    Encoders differ in scale by orders of magnitude, and initial weights tuned to one fail on
    another. The statistics are part of the model: prediction uses those of its training set.

    Args:
        dim: Number of features.
    """

    mean: Tensor
    scale: Tensor
    limit: Tensor

    is_done: bool = False
    """Whether features are standardised already; see `done_before`."""

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
        # A feature that is constant here is not scaled, so that it cannot blow up later.
        scale = torch.where(std > 1e-6 * values.abs().amax(0).clamp(min=1e-12), std, 1.0)
        self.mean.copy_(values.mean(0))
        self.scale.copy_(scale)
        self.limit.fill_(MAX_DEVIATIONS)

    @torch.no_grad()
    def take(
        self,
        matrix: Float[Tensor, "N D"],
        starts: Int[Tensor, " B"],
        segments: Segments,
        dtype: torch.dtype,
    ) -> Float[Tensor, "T D"]:
        """Gather the rows of some bags and standardise them, for use with `done_before`.

        Args:
            matrix: Features of all bags.
            starts: First row of each bag that is taken.
            segments: Division of these rows into bags.
            dtype: Number format of the result; see `sgpmil.models.precision.features_dtype`.
        """
        return take_rows(matrix, starts, segments, self.mean, self.scale, self.limit, dtype)

    @contextmanager
    def done_before(self) -> Iterator[None]:
        """Leave features as they are within the block: `take` has standardised them."""
        before, self.is_done = self.is_done, True
        try:
            yield
        finally:
            self.is_done = before

    def forward(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Standardise features, unless that was done before."""
        return features if self.is_done else self.standardised(features)

    def standardised(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Standardise features, in the precision of the model's weights."""
        found = features.to(self.mean.dtype) - self.mean
        if found.requires_grad:
            return (found / self.scale).clamp(-self.limit, self.limit)
        # In place: memory for each step would cost more time than the steps.
        return found.div_(self.scale).clamp_(-self.limit, self.limit)


class InstanceLinear(nn.Linear):
    """A linear layer of single instances, of which only `forward` is used.

    Where dense layers are computed in half precision, recorded steps keep a copy of its weights in
    half precision, and the model gets its features in half precision. So only such layers may
    take the features.
    """


def relu_layers(dims: Sequence[int]) -> nn.Sequential:
    """Stack linear layers of the given widths, each followed by a ReLU."""
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise(dims):
        layers += [InstanceLinear(width_in, width_out), nn.ReLU()]
    return _ReLULayers(*layers)


class _ReLULayers(nn.Sequential):
    """Linear layers and ReLUs in turn, computed together where that is faster."""

    def forward(self, features: Float[Tensor, "T D"]) -> Float[Tensor, "T H"]:
        for layer in self:
            if isinstance(layer, nn.Linear):
                features = linear_relu(features, layer.weight, layer.bias)
        return features


class DigitCNN(nn.Module):
    """The network that reads MNIST digits in the ABMIL paper: 784 pixels to 500 features."""

    in_dim = DIGIT_SIDE**2
    out_dim = 500

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, DIGIT_SIDE, DIGIT_SIDE)),
            nn.Conv2d(1, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(50 * 4 * 4, self.out_dim),
            nn.ReLU(),
        )

    def forward(self, pixels: Float[Tensor, "T D"]) -> Float[Tensor, "T E"]:
        """Encode images whose rows of pixels lie end to end."""
        if pixels.device.type != "cuda":
            return self.layers(pixels)
        # The channels of a pixel side by side, as a GPU multiplies them.
        images = pixels.unflatten(1, (DIGIT_SIDE, DIGIT_SIDE, 1)).permute(0, 3, 1, 2)
        for layer in list(self.layers)[1:]:
            images = layer(images)
        return images


ENCODERS: dict[str, Callable[[], DigitCNN] | None] = {"none": None, "digit-cnn": DigitCNN}
"""Networks that are trained in front of a model, for instances that are not embeddings yet."""


def build_encoder(name: str, in_dim: int) -> tuple[nn.Module, int]:
    """Build an encoder by name, and return the number of its features too.

    Raises:
        SettingsError: Instances do not have the number of features that it takes.
    """
    build = ENCODERS[name]
    if build is None:
        return nn.Identity(), in_dim
    encoder = build()
    if in_dim != encoder.in_dim:
        raise SettingsError(
            f"Expected instances of {encoder.in_dim} pixels for the encoder '{name}', "
            f"but got {in_dim} features."
        )
    return encoder, encoder.out_dim
