"""Where the inducing points start."""

from typing import Literal, get_args

import torch
from torch import Tensor

from sgpmil.errors import SettingsError
from sgpmil.shapes import Float

__all__ = ["INDUCING_STARTS", "InducingStart", "kmeans_points", "uniform_points"]

InducingStart = Literal["uniform", "kmeans"]
INDUCING_STARTS: tuple[str, ...] = get_args(InducingStart)


def uniform_points(num_points: int, dim: int) -> Float[Tensor, "M G"]:
    """Draw points uniformly in the unit cube, as published.

    The inputs are sigmoids and lie near the cube's middle, so most of these stay far from all.
    """
    return torch.rand(num_points, dim)


def kmeans_points(
    inputs: Float[Tensor, "T G"], num_points: int, *, seed: int = 0
) -> Float[Tensor, "M G"]:
    """Return the k-means centres of the inputs that training instances give.

    Args:
        inputs: Inputs of a sample of the training instances.
        num_points: Number of inducing points M. Where there are fewer distinct inputs than
            that, the centres are repeated with a little noise.
        seed: Seed of the clustering.
    """
    from sklearn.cluster import MiniBatchKMeans

    if num_points < 1:
        raise SettingsError(f"Expected at least one inducing point, but got {num_points}.")
    values = inputs.detach().cpu().double().numpy()
    distinct = len(torch.unique(inputs.detach(), dim=0))
    k = min(num_points, distinct)
    clusters = MiniBatchKMeans(k, random_state=seed, n_init=1, batch_size=4096).fit(values)
    centres = torch.from_numpy(clusters.cluster_centers_).to(inputs.dtype)
    if k < num_points:
        generator = torch.Generator().manual_seed(seed)
        again = torch.arange(num_points - k) % k
        spread = inputs.detach().std(dim=0, correction=0).cpu().clamp(min=1e-3)
        jitter = torch.randn(num_points - k, inputs.shape[1], generator=generator)
        centres = torch.cat([centres, centres[again] + 0.1 * spread * jitter.to(centres.dtype)])
    return centres.to(inputs.device)
