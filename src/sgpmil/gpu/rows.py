r"""Rows of resident bags, gathered and standardised for one step.

Row $i$ of bag $b$ of the batch is
$\operatorname{clamp}((x_{n} - \mu) / \sigma, -\ell, \ell)$ with $n = s_b + i$: the bag's first row
in the source is $s_b$. On a GPU one Triton program reads the source once and writes the batch once.
"""

from __future__ import annotations  # Triton is imported at the first launch

from typing import TYPE_CHECKING, no_type_check

import torch
from torch import Tensor

from sgpmil.bags.segments import Segments
from sgpmil.errors import BagError
from sgpmil.gpu.programs import ceil_div, power_of_two, program, runs_triton
from sgpmil.shapes import Float, Int

if TYPE_CHECKING:
    import triton.language as tl

_TILE = 4096
"""Entries that one program holds in registers."""
_WIDEST = 1024


@torch.no_grad()
def take_rows(
    source: Float[Tensor, "N D"],
    starts: Int[Tensor, " B"],
    segments: Segments,
    mean: Float[Tensor, " D"] | None,
    scale: Float[Tensor, " D"] | None,
    limit: Float[Tensor, ""] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "T D"]:
    """Gather the rows of some bags, standardised in single precision; no gradient flows.

    Args:
        source: Rows of all bags.
        starts: First row of each bag of the batch in the source.
        segments: Rows of the bags in the batch. The last one may be filler that reaches beyond
            the source: it repeats the source's last row there.
        mean: Mean of each feature; None (with `scale` and `limit`) copies the rows as they are.
        scale: Scale of each feature.
        limit: Largest absolute value that is kept; may be infinite.
        dtype: Number format of the result.

    Raises:
        BagError: There is a mean without a scale or a limit, or a scale without a mean.

    Example:
        >>> source = torch.tensor([[0.0], [1.0], [2.0]])
        >>> segments = Segments.of(torch.tensor([0, 1, 3]))
        >>> take_rows(source, torch.tensor([2, 0]), segments, None, None, None, torch.float32).T
        tensor([[2., 0., 1.]])
    """
    if (mean is None) != (scale is None) or (mean is not None and limit is None):
        raise BagError(
            "Expected the mean, the scale and the limit of the features together, "
            "but one of them is missing."
        )
    if runs_triton(source):
        return _launch(source, starts, segments, (mean, scale, limit), dtype)
    index = segments.index
    within = torch.arange(len(index), device=index.device) - segments.bounds[index]
    rows = source[(starts[index] + within).clamp(max=len(source) - 1)]
    if mean is None or scale is None or limit is None:
        return rows.to(dtype)
    return ((rows.float() - mean.float()) / scale.float()).clamp(-limit, limit).to(dtype)


def _launch(
    source: Tensor,
    starts: Tensor,
    segments: Segments,
    moments: tuple[Tensor | None, Tensor | None, Tensor | None],
    dtype: torch.dtype,
) -> Tensor:
    num_rows, width, num_bags = segments.num_rows, source.shape[1], len(segments)
    out = source.new_empty((num_rows, width), dtype=dtype)
    columns = min(power_of_two(width), _WIDEST)
    rows = _TILE // columns
    with torch.cuda.device_of(source):
        rows_program[(ceil_div(num_rows, rows), ceil_div(width, columns))](
            source,
            starts.contiguous(),
            segments.bounds,
            *(None if values is None else values.contiguous() for values in moments),
            out,
            len(source),
            num_rows,
            num_bags,
            width,
            *source.stride(),
            STEPS=num_bags.bit_length(),
            STANDARDISED=moments[0] is not None,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=8,
        )
    return out


@program()
@no_type_check
def bag_of(rows, bounds, num_bags, STEPS: tl.constexpr):
    """Find the bag of each row: its number is the count of bags that end at or before the row.

    `STEPS` is the number of binary digits of `num_bags`; the loop finds the count digit by digit.
    """
    count = rows * 0
    for digit in tl.static_range(STEPS):
        step = 1 << (STEPS - 1 - digit)
        end = tl.load(bounds + count + step, mask=count + step <= num_bags, other=0)
        counted = (count + step <= num_bags) & (end <= rows)
        count = tl.where(counted, count + step, count)
    return tl.minimum(count, num_bags - 1)  # also of rows beyond the last bag


@program(do_not_specialize=["num_source_rows", "num_rows", "num_bags"])
@no_type_check
def rows_program(
    source,
    starts,
    bounds,
    mean,
    scale,
    limit,
    out,
    num_source_rows,
    num_rows,
    num_bags,
    width,
    source_stride,
    column_stride,
    STEPS: tl.constexpr,
    STANDARDISED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
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
        # Rounds as torch's division does: Triton's own is some units in the last place off.
        x = tl.div_rn(x.to(tl.float32) - centre[None, :], spread[None, :])
        x = tl.clamp(x, -bound, bound, propagate_nan=tl.PropagateNan.ALL)
    if out.dtype.element_ty.primitive_bitwidth == 16:  # Triton cannot convert double to half
        x = x.to(tl.float32)
    to = out + rows[:, None] * width + columns[None, :]
    tl.store(to, x.to(out.dtype.element_ty), mask=inside)
