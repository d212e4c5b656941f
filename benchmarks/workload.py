"""The reference workload: bags of the sizes of a usual data set of slides, with random features."""

import numpy as np
import torch

from sgpmil.bags import BagDataset

__all__ = ["workload", "workload_sizes"]


def workload_sizes(num_bags: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    r"""Draw $\exp N(\log 2200, 0.6^2)$ instances a bag, from 200 to 12,000, times a scale."""
    drawn = np.exp(np.random.default_rng(seed).normal(np.log(2200), 0.6, num_bags))
    return np.maximum(1, np.rint(scale * np.clip(np.rint(drawn), 200, 12_000))).astype(int)


def workload(num_bags: int, *, in_dim: int = 1024, seed: int = 0, scale: float = 1.0) -> BagDataset:
    """Draw bags of two classes, alternately."""
    generator = torch.Generator().manual_seed(seed)
    sizes = workload_sizes(num_bags, seed, scale)
    features = [torch.randn(int(size), in_dim, generator=generator) for size in sizes]
    return BagDataset.from_arrays(
        features, [i % 2 for i in range(num_bags)], class_names=("no", "yes")
    )
