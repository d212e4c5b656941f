"""The Cholesky factor of a covariance matrix that may be nearly singular."""

import torch
from torch import Tensor

from sgpmil.errors import TrainingError
from sgpmil.shapes import Float

__all__ = ["ATTEMPTS", "jittered_cholesky"]

ATTEMPTS = 4
"""Jitters that are tried, each ten times the one before."""


def jittered_cholesky(covariance: Float[Tensor, "M M"], jitter: float) -> Float[Tensor, "M M"]:
    r"""Factorise $K + jI = LL^\top$ in float64, whatever the dtype of K.

    Where that fails, the jitter is raised tenfold, up to a thousand times the given one. On a GPU
    all of these are tried at once, and the result is NaN where none will do: to ask which one
    would make it wait.

    Args:
        covariance: A symmetric positive semi-definite matrix $K$.
        jitter: The value $j$ added to its diagonal.

    Raises:
        TrainingError: On the CPU, the matrix holds NaN, or is far from positive definite.

    Example:
        >>> jittered_cholesky(torch.ones(2, 2), 3.0)[0, 0]
        tensor(2., dtype=torch.float64)
    """
    matrix = covariance.double()
    identity = torch.eye(len(matrix), dtype=torch.float64, device=matrix.device)
    if matrix.device.type != "cpu":
        return _without_waiting(matrix, identity, jitter)
    for attempt in range(ATTEMPTS):
        factor, info = torch.linalg.cholesky_ex(matrix + jitter * 10**attempt * identity)
        if not info.item():
            return factor
    raise TrainingError(
        "Expected a positive definite covariance of the Gaussian process, but its Cholesky "
        f"factorisation failed even with {jitter * 10 ** (ATTEMPTS - 1):g} added to the diagonal: "
        "a kernel parameter or an inducing point is NaN or has run away. "
        "Lower the learning rate, or raise the jitter."
    )


def _without_waiting(
    matrix: Float[Tensor, "M M"], identity: Float[Tensor, "M M"], jitter: float
) -> Float[Tensor, "M M"]:
    attempts = torch.arange(ATTEMPTS, dtype=torch.float64, device=matrix.device)
    shifts = jitter * 10**attempts
    factors, info = torch.linalg.cholesky_ex(matrix + shifts.view(-1, 1, 1) * identity)
    failures = (info != 0).long().cumprod(0).sum()  # before the first success
    factor = factors.index_select(0, failures.clamp(max=ATTEMPTS - 1).view(1)).squeeze(0)
    return torch.where(failures < ATTEMPTS, factor, torch.nan)
