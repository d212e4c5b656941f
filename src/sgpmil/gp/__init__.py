"""The sparse Gaussian process, and nothing else.

- `kernels`: covariance functions by name, or any of GPyTorch's
- `means`: prior mean functions
- `cholesky`: the factor of K_ZZ, in float64
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
