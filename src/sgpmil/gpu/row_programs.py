"""What the GPU runs to fetch rows of bags; Triton compiles it at the first launch.

Only to be imported where `sgpmil.gpu.triton_package.available`. Row numbers are 64-bit: the
product of a row number and a row's width exceeds 32 bits.
"""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["bag_of", "rows_program"]


@triton.jit
@no_type_check
def bag_of(
    rows: tl.tensor, bounds: tl.tensor, num_bags: tl.tensor, STEPS: tl.constexpr
) -> tl.tensor:
    """Find the bag of each row: as many bags end at or before a row as its bag's number says.

    `STEPS` is the number of binary digits of `num_bags`; the count is found digit by digit.
    """
    count = rows * 0
    for digit in tl.static_range(STEPS):
        step = 1 << (STEPS - 1 - digit)
        end = tl.load(bounds + count + step, mask=count + step <= num_bags, other=0)
        counted = (count + step <= num_bags) & (end <= rows)
        count = tl.where(counted, count + step, count)
    return tl.minimum(count, num_bags - 1)  # a row beyond the last bag would read beyond it


@triton.jit(do_not_specialize=["num_source_rows", "num_rows", "num_bags"])
@no_type_check
def rows_program(
    source: tl.tensor,
    starts: tl.tensor,
    bounds: tl.tensor,
    mean: tl.tensor,
    scale: tl.tensor,
    limit: tl.tensor,
    out: tl.tensor,
    num_source_rows: tl.tensor,
    num_rows: tl.tensor,
    num_bags: tl.tensor,
    width: tl.tensor,
    source_stride: tl.tensor,
    column_stride: tl.tensor,
    STEPS: tl.constexpr,
    STANDARDISED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Write a block of rows and columns; block (i, j) of the grid writes block (i, j) of `out`."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    bag = bag_of(rows, bounds, num_bags, STEPS)
    within = rows < num_rows
    first = tl.load(starts + bag, mask=within, other=0)
    taken = first + rows - tl.load(bounds + bag, mask=within, other=0)
    taken = tl.minimum(taken, num_source_rows - 1)
    inside = within[:, None] & (columns < width)[None, :]
    from_ = source + taken[:, None] * source_stride + columns[None, :] * column_stride
    x = tl.load(from_, mask=inside, other=0.0)
    if STANDARDISED:
        known = columns < width
        centre = tl.load(mean + columns, mask=known, other=0.0).to(tl.float32)
        spread = tl.load(scale + columns, mask=known, other=1.0).to(tl.float32)
        bound = tl.load(limit).to(tl.float32)
        # Rounded as torch's division is: Triton's own is some units in the last place off.
        x = tl.div_rn(x.to(tl.float32) - centre[None, :], spread[None, :])
        x = tl.clamp(x, -bound, bound, propagate_nan=tl.PropagateNan.ALL)
    if out.dtype.element_ty.primitive_bitwidth == 16:  # there is no way from double to half
        x = x.to(tl.float32)
    to = out + rows[:, None] * width + columns[None, :]
    tl.store(to, x.to(out.dtype.element_ty), mask=inside)
