"""What the GPU runs for the gradient of a ReLU; Triton compiles it at the first launch.

Only to be imported where `sgpmil.gpu.triton_package.available`. No program writes what another
writes, so that results do not depend on the order in which programs run. Row numbers are 64-bit:
the product of a row number and a row's width exceeds 32 bits.
"""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["relu_gradient_program"]


@triton.jit(do_not_specialize=["num_rows", "num_steps"])
@no_type_check
def relu_gradient_program(
    outputs: tl.tensor,
    grad: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    num_rows: tl.tensor,
    width: tl.tensor,
    grad_stride_t: tl.tensor,
    grad_stride_o: tl.tensor,
    num_steps: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Pass the gradient on where the output is positive, and sum the columns of what is passed.

    Block (i, j) of the grid goes through `num_steps` blocks of rows of a block of columns, and
    writes their sum to row i of `sums`.
    """
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(0).to(tl.int64) * num_steps * ROWS
    known = (columns < width)[None, :]
    total = tl.zeros([ROWS, COLUMNS], sums.dtype.element_ty)
    for step in range(num_steps):
        rows = first + step * ROWS + tl.arange(0, ROWS)
        inside = (rows < num_rows)[:, None] & known
        at = rows[:, None] * width + columns[None, :]
        from_ = grad + rows[:, None] * grad_stride_t + columns[None, :] * grad_stride_o
        y = tl.load(outputs + at, mask=inside, other=0.0)
        dy = tl.load(from_, mask=inside, other=0.0)
        # As torch does: the gradient is stopped by outputs of zero, not by those that are NaN.
        passed = tl.where(y <= 0.0, 0.0, dy)
        tl.store(out + at, passed, mask=inside)
        total += passed.to(total.dtype)
    to = sums + tl.program_id(0).to(tl.int64) * width + columns
    tl.store(to, tl.sum(total, axis=0), mask=columns < width)
