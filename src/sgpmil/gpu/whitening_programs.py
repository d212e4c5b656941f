r"""What the GPU runs to whiten inducing values; Triton compiles it at the first launch.

Only to be imported where `sgpmil.gpu.triton_package.available`. One program does the whole of a
factorisation, so that nothing waits for another launch.

A block of rows of $P = L^{-1}$ follows from the blocks above it. With $P_<$ the rows above, $K_<$
the part of the block's rows of $K$ left of the diagonal and $K_=$ the part on it,

$$ W = K_< P_<^\top, \qquad P_= = \operatorname{chol}(K_= - W W^\top)^{-1}, \qquad
   \text{and the rows are} \quad (-P_= W P_<,\; P_=). $$

Only $P_=$ takes one step after another, a column each.
"""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["inner_gradient_program", "inverse_factor_program", "outer_gradient_program"]


@triton.jit
@no_type_check
def _picked(values: tl.tensor, chosen: tl.tensor, AXIS: tl.constexpr) -> tl.tensor:
    """Take the one chosen entry along an axis, bit by bit: those of the others are cleared."""
    bits = tl.where(chosen, values.to(tl.int64, bitcast=True), 0)
    return tl.sum(bits, AXIS).to(tl.float64, bitcast=True)


@triton.jit
@no_type_check
def _eliminated(matrix: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    r"""Give $D$ and the strict lower triangle of $X$ with $X A X^\top = D$, $X$ unit triangular.

    A column of A is of no more use once it is eliminated, and that is where the column of X
    starts: one matrix holds both, A at and right of the pivot's column and X left of it.
    """
    at = tl.arange(0, BLOCK)
    # Kept twice: the pivot, and what is divided by it, need not wait for the rest of A.
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


@triton.jit(do_not_specialize=["size", "num_attempts"])
@no_type_check
def inverse_factor_program(
    covariance: tl.tensor,
    inverse: tl.tensor,
    rounded: tl.tensor,
    size: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    num_attempts: tl.tensor,
    JITTER: tl.constexpr,  # a number would be passed in single precision
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Write the inverse factor in double precision and in that of `rounded`; one program.

    Where a pivot is not positive, all is done again with ten times the jitter, and in the end
    every entry is NaN. Of the covariance only the lower triangle is read.
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
            # The whole of the rows, zeros included, and then what is on the diagonal.
            inside = (rows < size)[:, None]
            to = rows[:, None] * size + wide[None, :]
            outside = inside & ((wide < first) | (wide >= first + BLOCK) & (wide < size))[None, :]
            tl.store(inverse + to, product, mask=outside)
            to = rows[:, None] * size + rows[None, :]
            tl.store(inverse + to, lower, mask=inside & (rows < size)[None, :])
            tl.debug_barrier()  # the next block reads what other threads have written
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


@triton.jit(do_not_specialize=["size"])
@no_type_check
def inner_gradient_program(
    gradient: tl.tensor,
    inverse: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
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


@triton.jit(do_not_specialize=["size"])
@no_type_check
def outer_gradient_program(
    inverse: tl.tensor,
    inner: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
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


@triton.jit
@no_type_check
def _rounded(values: tl.tensor, out: tl.tensor) -> tl.tensor:
    if out.dtype.element_ty.primitive_bitwidth == 16:  # there is no way from double to half
        values = values.to(tl.float32)
    return values.to(out.dtype.element_ty)
