r"""Cholesky factors of covariance matrices that may be nearly singular, and their inverses.

The inverse factor $P = L^{-1}$ of $K + jI = LL^\top$ whitens inducing values. A factorisation's
derivative is usually computed by triangular solves, which on a GPU take longer than all the dense
layers of a bag. The inverse needs only products: with $\Phi$ the lower triangle of a matrix, its
diagonal halved, $dP = -\Phi(P\,dK\,P^\top)\,P$, and therefore

$$ \bar K = -\operatorname{sym}\big(P^\top\, \Phi(\bar P P^\top)\, P\big). $$

On a GPU one Triton program computes P, because the many small kernels of a factorisation and a
solve each take longer to start than to run. A block of rows of P follows from the blocks above it.
With $P_<$ the rows above, $K_<$ the part of the block's rows of $K$ left of the diagonal and $K_=$
the part on it,

$$ W = K_< P_<^\top, \qquad P_= = \operatorname{chol}(K_= - W W^\top)^{-1}, \qquad
   \text{and the rows are} \quad (-P_= W P_<,\; P_=). $$

Only $P_=$ is computed column after column.
"""

from __future__ import annotations  # Triton is imported at the first launch

from typing import TYPE_CHECKING, Any, no_type_check

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sgpmil.errors import TrainingError
from sgpmil.gpu.programs import ceil_div, power_of_two, program, runs_triton
from sgpmil.shapes import Float

if TYPE_CHECKING:
    import triton.language as tl

MAX_SIZE = 128
"""Rows that one Triton program holds; torch factorises larger matrices, and cannot be recorded."""
_BLOCK = 16
"""Rows that are eliminated at once, the fewest that a matrix product takes."""
_ATTEMPTS = 4
"""Number of jitters that are tried, each ten times the one before."""


def jittered_cholesky(
    covariance: Float[Tensor, "*B M M"], jitter: float
) -> Float[Tensor, "*B M M"]:
    r"""Factorise $K + jI = LL^\top$ in float64, whatever the dtype of K; several at once, too.

    Where that fails, the jitter is raised tenfold, up to a thousand times the given one. On a GPU
    all four are tried at once, so that the CPU need not wait for the GPU between them. The result
    is NaN there if all fail.

    Args:
        covariance: A symmetric positive semi-definite matrix $K$, or several.
        jitter: The value $j$ added to its diagonal.

    Raises:
        TrainingError: On the CPU, the matrix holds NaN, or is far from positive definite.

    Example:
        >>> jittered_cholesky(torch.ones(2, 2), 3.0)[0, 0]
        tensor(2., dtype=torch.float64)
    """
    matrix = covariance.double()
    identity = torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)
    if matrix.device.type != "cpu":
        return _factor_on_device(matrix, identity, jitter)
    for attempt in range(_ATTEMPTS):
        factor, info = torch.linalg.cholesky_ex(matrix + jitter * 10**attempt * identity)
        if not info.any().item():
            return factor
    raise TrainingError(
        "Expected a positive definite covariance of the Gaussian process, but its Cholesky "
        f"factorisation failed even with {jitter * 10 ** (_ATTEMPTS - 1):g} added to the diagonal: "
        "a kernel parameter or an inducing point is NaN or has run away. "
        "Lower the learning rate, or raise the jitter."
    )


def _factor_on_device(
    matrix: Float[Tensor, "*B M M"], identity: Float[Tensor, "M M"], jitter: float
) -> Float[Tensor, "*B M M"]:
    attempts = torch.arange(_ATTEMPTS, dtype=torch.float64, device=matrix.device)
    shifts = jitter * 10**attempts
    shifted = matrix + shifts.view(-1, *(1 for _ in matrix.shape)) * identity
    factors, info = torch.linalg.cholesky_ex(shifted)
    failures = (info != 0).long().cumprod(0).sum(0)  # before the first success
    if matrix.ndim > 2:
        chosen = failures.clamp(max=_ATTEMPTS - 1)[None, ..., None, None]
        found = factors.take_along_dim(chosen, 0).squeeze(0)
        return torch.where(failures[..., None, None] < _ATTEMPTS, found, torch.nan)
    factor = factors.index_select(0, failures.clamp(max=_ATTEMPTS - 1).view(1)).squeeze(0)
    return torch.where(failures < _ATTEMPTS, factor, torch.nan)


def inverse_factor(
    covariance: Float[Tensor, "M M"], jitter: float, dtype: torch.dtype | None = None
) -> Float[Tensor, "M M"]:
    r"""Compute $L^{-1}$ in float64, whatever the dtype of K; see `jittered_cholesky`.

    Args:
        covariance: A symmetric positive semi-definite matrix $K$.
        jitter: The value $j$ added to its diagonal.
        dtype: Number format of the result, float64 where it is None.

    Raises:
        TrainingError: On the CPU, the matrix holds NaN, or is far from positive definite; on a GPU
            the result is then NaN.

    Example:
        >>> inverse_factor(torch.ones(2, 2), 3.0)[0, 0]
        tensor(0.5000, dtype=torch.float64)
    """
    return _InverseFactor.apply(covariance, jitter, dtype or torch.float64)


class _InverseFactor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, covariance: Tensor, jitter: float, dtype: torch.dtype) -> Tensor:
        ctx.dtype = covariance.dtype
        if _fits(covariance):
            P, result = _launch_inverse(covariance, jitter, dtype)
        else:
            factor = jittered_cholesky(covariance, jitter)
            identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
            P = torch.linalg.solve_triangular(factor, identity, upper=False)
            result = P.to(dtype)
        ctx.save_for_backward(P)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        (P,) = ctx.saved_tensors
        if _fits(P):
            return _launch_gradient(P, gradient, ctx.dtype), None, None
        inner = (gradient.double() @ P.T).tril_()
        inner.diagonal().mul_(0.5)
        full = P.T @ inner @ P
        return (full + full.T).mul_(-0.5).to(ctx.dtype), None, None


def _launch_inverse(
    covariance: Float[Tensor, "M M"], jitter: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "M M"], Float[Tensor, "M M"]]:
    """Compute the inverse in float64 and in the given dtype, in one Triton program."""
    size = len(covariance)
    covariance = _single_or_double(covariance)
    inverse = covariance.new_empty((size, size), dtype=torch.float64)
    rounded = inverse if dtype == inverse.dtype else torch.empty_like(inverse, dtype=dtype)
    with torch.cuda.device_of(covariance):
        inverse_factor_program[(1,)](
            covariance,
            inverse,
            rounded,
            size,
            *covariance.stride(),
            _ATTEMPTS,
            JITTER=jitter,
            BLOCK=_BLOCK,
            WIDTH=power_of_two(size, _BLOCK),
            num_warps=4,
        )
    return inverse, rounded


def _launch_gradient(
    P: Float[Tensor, "M M"], gradient: Float[Tensor, "M M"], dtype: torch.dtype
) -> Float[Tensor, "M M"]:
    r"""Compute the gradient $\bar K$ of the contiguous inverse P, in two Triton programs."""
    size = len(P)
    gradient = _single_or_double(gradient)
    num_blocks = ceil_div(size, _BLOCK)
    tile = {"BLOCK": _BLOCK, "WIDTH": power_of_two(size, _BLOCK), "num_warps": 4}
    inner, out = torch.empty_like(P), torch.empty_like(P, dtype=dtype)
    with torch.cuda.device_of(P):
        inner_gradient_program[(num_blocks,)](gradient, P, inner, size, *gradient.stride(), **tile)
        outer_gradient_program[(num_blocks, num_blocks)](P, inner, out, size, **tile)
    return out


def _fits(matrix: Tensor) -> bool:
    return len(matrix) <= MAX_SIZE and runs_triton(matrix)


def _single_or_double(matrix: Tensor) -> Tensor:
    """Convert half precision, which Triton's products in double precision do not take."""
    return matrix.float() if matrix.itemsize < torch.float32.itemsize else matrix


@program()
@no_type_check
def _picked(values, chosen, AXIS: tl.constexpr):
    """Take the one chosen entry along an axis: the sum of its bits and zeros is exact."""
    bits = tl.where(chosen, values.to(tl.int64, bitcast=True), 0)
    return tl.sum(bits, AXIS).to(tl.float64, bitcast=True)


@program()
@no_type_check
def _eliminated(matrix, BLOCK: tl.constexpr):
    r"""Compute $D$ and the strict lower triangle of $X$ with $X A X^\top = D$, $X$ unit triangular.

    An eliminated column of A is not needed again, and the column of X takes its place: one matrix
    holds both, A from the pivot's column on and X to the left of it.
    """
    at = tl.arange(0, BLOCK)
    # The diagonal is kept a second time: the next pivot need not wait for the rest of A.
    pivots = _picked(matrix, at[:, None] == at[None, :], 1)
    for k in range(BLOCK):
        here = at == k
        column = _picked(matrix, here[None, :], 1)
        row = tl.where(here, 1.0, _picked(matrix, here[:, None], 0))
        reciprocal = 1.0 / _picked(pivots, here, 0)
        multiples = tl.where(at > k, column * reciprocal, 0.0)
        pivots -= multiples * column
        matrix = tl.where(here[None, :], 0.0, matrix) - multiples[:, None] * row[None, :]
    return pivots, matrix


@program(do_not_specialize=["size", "num_attempts"])
@no_type_check
def inverse_factor_program(
    covariance,
    inverse,
    rounded,
    size,
    stride_row,
    stride_column,
    num_attempts,
    JITTER: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Write the inverse factor in double precision and in that of `rounded`; one program.

    Where a pivot is not positive, the program starts again with ten times the jitter; if every
    attempt fails, all entries are NaN. It reads only the lower triangle of the covariance. The
    jitter is a constant, because an argument would be in single precision.
    """
    at = tl.arange(0, BLOCK)
    wide = tl.arange(0, WIDTH)
    diagonal = at[:, None] == at[None, :]
    above, beside = tl.maximum(at[:, None], at[None, :]), tl.minimum(at[:, None], at[None, :])
    shift = tl.full([], JITTER, tl.float64)
    attempt = 0
    num_failures = 1
    while (attempt < num_attempts) & (num_failures > 0):
        num_failures = 0
        for first in range(0, size, BLOCK):
            rows = first + at
            left = (rows < size)[:, None] & (wide < first)[None, :]
            from_ = covariance + rows[:, None] * stride_row + wide[None, :] * stride_column
            K = tl.load(from_, mask=left, other=0.0).to(tl.float64)
            from_ = covariance + (first + above) * stride_row + (first + beside) * stride_column
            schur = tl.load(from_, mask=first + above < size, other=0.0).to(tl.float64)
            # Rows beyond the last are those of the identity.
            schur += tl.where(diagonal, tl.where(rows < size, shift, 1.0)[:, None], 0.0)
            product = tl.zeros([BLOCK, WIDTH], tl.float64)  # W P above
            for before in range(0, first, BLOCK):
                P = tl.load(
                    inverse + (before + at)[:, None] * size + wide[None, :],
                    mask=(wide < size)[None, :],
                    other=0.0,
                )
                W = tl.dot(K, tl.trans(P), out_dtype=tl.float64)
                schur -= tl.dot(W, tl.trans(W), out_dtype=tl.float64)
                product += tl.dot(W, P, out_dtype=tl.float64)
            pivots, below = _eliminated(schur, BLOCK)
            num_failures += tl.sum(tl.where(pivots > 0.0, 0, 1), axis=0)
            lower = tl.where(at[:, None] > at[None, :], below, tl.where(diagonal, 1.0, 0.0))
            lower = lower / tl.sqrt(pivots)[:, None]
            product = -tl.dot(lower, product, out_dtype=tl.float64)
            # First the whole rows, zeros included, then the block on the diagonal.
            inside = (rows < size)[:, None]
            to = rows[:, None] * size + wide[None, :]
            outside = inside & ((wide < first) | (wide >= first + BLOCK) & (wide < size))[None, :]
            tl.store(inverse + to, product, mask=outside)
            to = rows[:, None] * size + rows[None, :]
            tl.store(inverse + to, lower, mask=inside & (rows < size)[None, :])
            tl.debug_barrier()  # the next block reads what other threads wrote
        shift *= 10.0
        attempt += 1
    for first in range(0, size, BLOCK):
        rows = first + at
        inside = (rows < size)[:, None] & (wide < size)[None, :]
        to = rows[:, None] * size + wide[None, :]
        P = tl.load(inverse + to, mask=inside, other=0.0)
        P = tl.where(num_failures == 0, P, float("nan"))
        tl.store(inverse + to, P, mask=inside)
        tl.store(rounded + to, _rounded(P, rounded), mask=inside)


@program(do_not_specialize=["size"])
@no_type_check
def inner_gradient_program(
    gradient,
    inverse,
    out,
    size,
    stride_row,
    stride_column,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    r"""Write a block of rows of $\Phi(\bar P P^\top) P$; the grid counts blocks."""
    at = tl.arange(0, BLOCK)
    wide = tl.arange(0, WIDTH)
    first = tl.program_id(0) * BLOCK
    rows = first + at
    inside = (rows < size)[:, None] & (wide < size)[None, :]
    from_ = gradient + rows[:, None] * stride_row + wide[None, :] * stride_column
    of_rows = tl.load(from_, mask=inside, other=0.0).to(tl.float64)
    product = tl.zeros([BLOCK, WIDTH], tl.float64)
    for before in range(0, first + 1, BLOCK):
        columns = before + at
        P = tl.load(
            inverse + columns[:, None] * size + wide[None, :],
            mask=(columns < size)[:, None] & (wide < size)[None, :],
            other=0.0,
        )
        phi = tl.dot(of_rows, tl.trans(P), out_dtype=tl.float64)
        below, on = rows[:, None] > columns[None, :], rows[:, None] == columns[None, :]
        phi = tl.where(below, phi, tl.where(on, 0.5 * phi, 0.0))
        product += tl.dot(phi, P, out_dtype=tl.float64)
    tl.store(out + rows[:, None] * size + wide[None, :], product, mask=inside)


@program(do_not_specialize=["size"])
@no_type_check
def outer_gradient_program(inverse, inner, out, size, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    r"""Write a block of $-\operatorname{sym}(P^\top Q)$; the grid counts blocks both ways."""
    wide = tl.arange(0, WIDTH)[:, None]
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    from_rows = wide * size + rows[None, :]
    from_columns = wide * size + columns[None, :]
    of_rows = (wide < size) & (rows < size)[None, :]
    of_columns = (wide < size) & (columns < size)[None, :]
    P = tl.load(inverse + from_rows, mask=of_rows, other=0.0)
    Q = tl.load(inner + from_columns, mask=of_columns, other=0.0)
    total = tl.dot(tl.trans(P), Q, out_dtype=tl.float64)
    Q = tl.load(inner + from_rows, mask=of_rows, other=0.0)
    P = tl.load(inverse + from_columns, mask=of_columns, other=0.0)
    total += tl.dot(tl.trans(Q), P, out_dtype=tl.float64)
    to = out + rows[:, None] * size + columns[None, :]
    inside = (rows < size)[:, None] & (columns < size)[None, :]
    tl.store(to, _rounded(-0.5 * total, out), mask=inside)


@program()
@no_type_check
def _rounded(values, out):
    if out.dtype.element_ty.primitive_bitwidth == 16:  # Triton cannot convert double to half
        values = values.to(tl.float32)
    return values.to(out.dtype.element_ty)
