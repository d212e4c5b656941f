"""Where the standard normal draws of a sampling scheme come from.

Training takes fresh noise. Prediction takes repeatable noise, the same for every bag, so that a
slide's prediction does not depend on which other slides share its batch.
"""

from typing import Protocol

import torch
from torch import Tensor

from sgpmil.shapes import Float, Int

__all__ = ["FreshNoise", "Noise", "RepeatableNoise", "ZeroNoise"]


class Noise(Protocol):
    """A source of standard normal draws, shaped like `like` in dtype and device."""

    def per_instance(
        self, num_samples: int, offsets: Int[Tensor, " _"], like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S T"]:
        """Draw one value per sample and instance."""
        ...

    def per_bag(
        self, num_samples: int, num_bags: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S B"]:
        """Draw one value per sample and bag."""
        ...

    def per_function(
        self, num_samples: int, num_inducing: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S M"]:
        """Draw one vector per sampled function, common to all bags."""
        ...


class FreshNoise:
    """Draws from torch's global generator."""

    def per_instance(
        self, num_samples: int, offsets: Int[Tensor, " _"], like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S T"]:
        """See `Noise`."""
        return _normal((num_samples, int(offsets[-1])), like)

    def per_bag(
        self, num_samples: int, num_bags: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S B"]:
        """See `Noise`."""
        return _normal((num_samples, num_bags), like)

    def per_function(
        self, num_samples: int, num_inducing: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S M"]:
        """See `Noise`."""
        return _normal((num_samples, num_inducing), like)


class RepeatableNoise:
    """The same draws for every bag and every call.

    Args:
        seed: Seed of the draws.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def per_instance(
        self, num_samples: int, offsets: Int[Tensor, " _"], like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S T"]:
        """See `Noise`; the k-th instance of each bag gets the same draws."""
        sizes = offsets.diff()
        # One row an instance: a row does not depend on how many follow it.
        rows = _normal((int(sizes.max()), num_samples), like, self._generator(like, 0))
        position = torch.cat([torch.arange(int(size), device=like.device) for size in sizes])
        return rows[position].T

    def per_bag(
        self, num_samples: int, num_bags: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S B"]:
        """See `Noise`."""
        draws = _normal((num_samples, 1), like, self._generator(like, 1))
        return draws.expand(num_samples, num_bags)

    def per_function(
        self, num_samples: int, num_inducing: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S M"]:
        """See `Noise`."""
        return _normal((num_samples, num_inducing), like, self._generator(like, 2))

    def _generator(self, like: Tensor, stream: int) -> torch.Generator:
        return torch.Generator(like.device).manual_seed(3 * self.seed + stream)


class ZeroNoise:
    """No noise: every sample is the posterior mean."""

    def per_instance(
        self, num_samples: int, offsets: Int[Tensor, " _"], like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S T"]:
        """See `Noise`."""
        return like.new_zeros(num_samples, int(offsets[-1]))

    def per_bag(
        self, num_samples: int, num_bags: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S B"]:
        """See `Noise`."""
        return like.new_zeros(num_samples, num_bags)

    def per_function(
        self, num_samples: int, num_inducing: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S M"]:
        """See `Noise`."""
        return like.new_zeros(num_samples, num_inducing)


def _normal(
    shape: tuple[int, int], like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
