"""The sparse Gaussian process.

- `prior`: kernels and mean functions by name, or any kernel of GPyTorch
- `sparse`: `SparseGP`, its whitened marginals and KL divergence; starts of the inducing points
- `sampling`: four ways to draw from the posterior of a bag
- `noise`: sources of the standard normal draws
"""

from sgpmil.gp.noise import FreshNoise, Noise, RepeatableNoise, ZeroNoise
from sgpmil.gp.prior import KERNELS, MEANS, build_kernel, build_mean
from sgpmil.gp.sampling import SAMPLING_SCHEMES, SamplingScheme, draw
from sgpmil.gp.sparse import Posterior, SparseGP

__all__ = [
    "KERNELS",
    "MEANS",
    "SAMPLING_SCHEMES",
    "FreshNoise",
    "Noise",
    "Posterior",
    "RepeatableNoise",
    "SamplingScheme",
    "SparseGP",
    "ZeroNoise",
    "build_kernel",
    "build_mean",
    "draw",
]
