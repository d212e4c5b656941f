"""The reference workload: bags of the sizes of a usual data set of slides, with random features."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import SettingsError
from sgpmil.shapes import Int

__all__ = ["Workload", "bag_sizes", "random_dataset"]


@dataclass(frozen=True)
class Workload:
    """How many bags, and how large.

    Args:
        train_bags: Bags to train on.
        test_bags: Bags to predict.
        in_dim: Number of features of an instance.
        scale: Factor of the bags' sizes.
        seed: Seed of sizes and features.

    Raises:
        SettingsError: A number is not positive.
    """

    train_bags: int = 270
    test_bags: int = 129
    in_dim: int = 1024
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, lowest in (("train_bags", 2), ("test_bags", 1), ("in_dim", 1)):
            if getattr(self, name) < lowest:
                raise SettingsError(f"Expected {name} >= {lowest}, but got {getattr(self, name)}.")
        if not 0 < self.scale <= 100:
            raise SettingsError(f"Expected scale above 0 and up to 100, but got {self.scale}.")

    def train(self) -> BagDataset:
        """Draw the bags to train on."""
        sizes = bag_sizes(self.train_bags, self.seed, self.scale)
        return random_dataset(sizes, self.in_dim, self.seed)

    def test(self) -> BagDataset:
        """Draw the bags to predict."""
        sizes = bag_sizes(self.test_bags, self.seed + 1, self.scale)
        return random_dataset(sizes, self.in_dim, self.seed + 1)


def bag_sizes(num_bags: int, seed: int, scale: float = 1.0) -> Int[np.ndarray, " B"]:
    r"""Draw $\exp N(\log 2200, 0.6^2)$ instances a bag, cut off at 200 and 12,000, times a scale.

    Args:
        num_bags: Number of bags B.
        seed: Seed.
        scale: The scale.

    Example:
        >>> int(bag_sizes(270, 0).sum())
        694241
    """
    normal = torch.randn(num_bags, generator=torch.Generator().manual_seed(seed))
    sizes = (math.log(2200) + 0.6 * normal).exp().int().clamp(200, 12_000)
    return np.maximum(1, np.rint(scale * sizes.numpy())).astype(np.int64)


def random_dataset(sizes: Int[np.ndarray, " B"], in_dim: int, seed: int) -> BagDataset:
    """Draw bags of two classes, alternately, whose features are noise.

    Args:
        sizes: Number of instances of each bag.
        in_dim: Number of features.
        seed: Seed.
    """
    generator = torch.Generator().manual_seed(seed)
    features = [torch.randn(int(size), in_dim, generator=generator) for size in sizes]
    labels = [i % 2 for i in range(len(sizes))]
    return BagDataset.from_arrays(features, labels, class_names=("no", "yes"))
