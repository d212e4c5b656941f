"""Sources of the standard normal draws of a sampling scheme.

Training takes fresh noise. Prediction takes repeatable noise, the same for every bag, so that a
slide's prediction does not depend on which other slides share its batch.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sgpmil.bags.segments import Segments
from sgpmil.shapes import Float

_BLOCK = 16

_STREAM_STRIDE = 1_000_003
"""Distance of the seeds of two streams, so that small seeds of users do not meet."""

_MAX_CACHED = {"cpu": 2**20, "cuda": 2**25}
"""Largest number of draws that are cached for the next bag, which needs the same.

A CPU takes ten times as long to draw those of a million instances as a GPU to compute with them.
"""


@runtime_checkable
class Noise(Protocol):
    """A source of standard normal draws, shaped like `like` in dtype and device."""

    def per_instance(
        self, num_samples: int, segments: Segments, like: Float[Tensor, "..."]
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

    def stream(self, number: int) -> "Noise":
        """Return a source of other draws; the same number gives the same one."""
        ...


class FreshNoise:
    """Draws from torch's global generator."""

    def per_instance(
        self, num_samples: int, segments: Segments, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S T"]:
        """See `Noise`."""
        return self._draw((num_samples, segments.num_rows), like)

    def per_bag(
        self, num_samples: int, num_bags: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S B"]:
        """See `Noise`."""
        return self._draw((num_samples, num_bags), like)

    def per_function(
        self, num_samples: int, num_inducing: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S M"]:
        """See `Noise`."""
        return self._draw((num_samples, num_inducing), like)

    def stream(self, number: int) -> "Noise":
        """See `Noise`; draws differ each time anyway."""
        del number
        return self

    def _draw(self, shape: tuple[int, int], like: Tensor) -> Tensor:
        return torch.randn(shape, dtype=like.dtype, device=like.device)


class PartNoise(FreshNoise):
    """The part of a step's fresh draws that belongs to some of its bags.

    Processes that divide a step and have the same random state draw what one process draws.

    Args:
        sizes: Instances of each bag of the step.
        own: Positions of the bags that this process has, in order.
    """

    def __init__(self, sizes: Sequence[int], own: Sequence[int]) -> None:
        self.sizes = sizes
        self.own = own

    def per_instance(
        self, num_samples: int, segments: Segments, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S T"]:
        """See `Noise`."""
        draws = self._draw((num_samples, sum(self.sizes)), like).split(list(self.sizes), dim=1)
        return torch.cat([draws[position] for position in self.own], dim=1)

    def per_bag(
        self, num_samples: int, num_bags: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S B"]:
        """See `Noise`."""
        draws = self._draw((num_samples, len(self.sizes)), like)
        return draws[:, list(self.own)]


class ZeroNoise(FreshNoise):
    """No noise: every sample is the posterior mean."""

    def _draw(self, shape: tuple[int, int], like: Tensor) -> Tensor:
        return like.new_zeros(shape)


class PairedNoise:
    """Draws in pairs of opposite sign (antithetic sampling).

    What is linear in the noise cancels, so that a mean over samples is far more exact than over as
    many independent ones.

    Args:
        source: Source of the first draw of each pair.
    """

    def __init__(self, source: Noise) -> None:
        self.source = source

    def per_instance(
        self, num_samples: int, segments: Segments, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S T"]:
        """See `Noise`."""
        return _paired(self.source.per_instance(-(-num_samples // 2), segments, like), num_samples)

    def per_bag(
        self, num_samples: int, num_bags: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S B"]:
        """See `Noise`."""
        return _paired(self.source.per_bag(-(-num_samples // 2), num_bags, like), num_samples)

    def per_function(
        self, num_samples: int, num_inducing: int, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S M"]:
        """See `Noise`."""
        half = self.source.per_function(-(-num_samples // 2), num_inducing, like)
        return _paired(half, num_samples)

    def stream(self, number: int) -> Noise:
        """See `Noise`."""
        return PairedNoise(self.source.stream(number))


def _paired(half: Float[Tensor, "H T"], num_samples: int) -> Float[Tensor, "S T"]:
    return torch.cat([half, -half])[:num_samples]


class RepeatableNoise:
    """The same draws for every bag and every call.

    Args:
        seed: Seed of the draws.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def per_instance(
        self, num_samples: int, segments: Segments, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "S T"]:
        """See `Noise`; the k-th instance of each bag gets the same draws."""
        # A row for each instance, in whole blocks: torch draws normals 16 at a time and redraws an
        # incomplete block, so that otherwise a row would depend on the number of rows after it.
        # The number is rounded up, so that bags of similar size share the cached draws.
        largest = int(segments.offsets.diff().max())
        longest = max(_BLOCK, 2 ** (largest - 1).bit_length())
        draws = self._normal((longest, num_samples), like, stream=0)
        start = segments.bounds[segments.index]
        position = torch.arange(segments.num_rows, device=start.device) - start
        return draws.T.index_select(1, position.to(like.device))

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

    def stream(self, number: int) -> Noise:
        """See `Noise`."""
        return RepeatableNoise(self.seed + _STREAM_STRIDE * number)

    def _normal(self, shape: tuple[int, int], like: Tensor, *, stream: int) -> Tensor:
        few = shape[0] * shape[1] <= _MAX_CACHED.get(like.device.type, 0)
        draws = _cached_draws if few else _draws
        return draws(3 * self.seed + stream, shape, like.dtype, like.device)


def _draws(
    seed: int, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "R S"]:
    # On the CPU: a GPU's draws depend on how many are drawn at once.
    generator = torch.Generator().manual_seed(seed)
    # Cached draws must be usable where gradients are computed, too.
    with torch.inference_mode(False):
        drawn = torch.randn(shape, dtype=dtype, generator=generator).to(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # other streams may use them next
    return drawn


_cached_draws = lru_cache(maxsize=16)(_draws)
