"""The sparse Gaussian process, and nothing else.

- `kernels`: covariance functions by name, or any of GPyTorch's
- `means`: prior mean functions
- `rbf`: the default kernel by hand, any other by GPyTorch
- `cholesky`, `whitening`: the factor of K_ZZ and its inverse, in float64
- `conditional`: draws carried by those of the inducing values
- `carried_kernels`, `carried_programs`, `whitening_programs`: the same on a GPU
- `side_stream`, `streams`: what a GPU does beside other work
- `sparse`: `SparseGP`, its whitened marginals and KL divergence
- `sampling`: four ways to draw from the posterior of a bag
- `noise`: where the standard normal draws come from
- `inducing`: where the inducing points start
"""

from sgpmil.gp.kernels import KERNELS, build_kernel
from sgpmil.gp.means import MEANS, build_mean
from sgpmil.gp.noise import FreshNoise, Noise, RepeatableNoise, ZeroNoise
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
