"""Where the standard normal draws of a sampling scheme come from.

Training takes fresh noise. Prediction takes repeatable noise, the same for every bag, so that a
slide's prediction does not depend on which other slides share its batch.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sgpmil.shapes import Float, Int

__all__ = ["FreshNoise", "Noise", "RepeatableNoise", "ZeroNoise"]

_BLOCK = 16


@runtime_checkable
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
        # One row an instance, in whole blocks: torch draws normals 16 at a time and redraws an
        # incomplete block, so that otherwise a row would depend on how many follow it.
        longest = -(-int(sizes.max()) // _BLOCK) * _BLOCK
        rows = self._normal((longest, num_samples), like, stream=0)
        start = offsets[:-1].repeat_interleave(sizes)
        position = torch.arange(int(offsets[-1])) - start
        return rows[position.to(like.device, non_blocking=True)].T

    def per_bag(
        self, num_samples: int, num_bags: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S B"]:
        """See `Noise`."""
        draws = self._normal((num_samples, 1), like, stream=1)
        return draws.expand(num_samples, num_bags)

    def per_function(
        self, num_samples: int, num_inducing: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S M"]:
        """See `Noise`."""
        return self._normal((num_samples, num_inducing), like, stream=2)

    def _normal(self, shape: tuple[int, int], like: Tensor, *, stream: int) -> Tensor:
        # On the CPU: a GPU's draws depend on how many are drawn at once.
        generator = torch.Generator().manual_seed(3 * self.seed + stream)
        return torch.randn(shape, dtype=like.dtype, generator=generator).to(like.device)


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


def _normal(shape: tuple[int, int], like: Tensor) -> Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.device)
