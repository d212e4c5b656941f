"""What the GPU runs to normalise and pool packed bags; Triton compiles it at the first launch.

Only to be imported where `sgpmil.gpu.triton_package.available`. No program writes what another
writes, so that results do not depend on the order in which programs run. Row numbers are 64-bit:
the product of a row number and a row's width exceeds 32 bits.
"""

from typing import no_type_check

import triton
import triton.language as tl

from sgpmil.gpu.row_programs import bag_of

__all__ = [
    "pool_embeddings_gradient_program",
    "pool_program",
    "pool_weights_gradient_program",
    "softmax_gradient_program",
    "softmax_program",
]


@triton.jit(do_not_specialize=["stride_s", "out_stride_s"])
@no_type_check
def softmax_program(
    values: tl.tensor,
    bounds: tl.tensor,
    out: tl.tensor,
    stride_s: tl.tensor,
    stride_t: tl.tensor,
    out_stride_s: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    """Take the softmax over a bag; the grid counts bags and samples."""
    bag = tl.program_id(0)
    sample = tl.program_id(1).to(tl.int64)
    start, end = tl.load(bounds + bag), tl.load(bounds + bag + 1)
    offsets = tl.arange(0, ROWS)
    dtype = out.dtype.element_ty
    values += sample * stride_s
    out += sample * out_stride_s
    # Each lane keeps its own peak and its own sum relative to that; they meet after the loop.
    peaks = tl.full([ROWS], float("-inf"), dtype)
    sums = tl.zeros([ROWS], dtype)
    for first in range(start, end, ROWS):
        rows = first + offsets
        x = tl.load(values + rows * stride_t, mask=rows < end, other=float("-inf"))
        raised = tl.maximum(peaks, x)
        level = tl.where(raised == float("-inf"), 0.0, raised)  # -inf - -inf is NaN
        sums = sums * tl.exp(peaks - level) + tl.exp(x - level)
        peaks = raised
    peak = tl.max(peaks, axis=0)
    total = tl.sum(sums * tl.exp(peaks - tl.where(peak == float("-inf"), 0.0, peak)), axis=0)
    for first in range(start, end, ROWS):
        rows = first + offsets
        x = tl.load(values + rows * stride_t, mask=rows < end, other=float("-inf"))
        tl.store(out + rows, tl.exp(x - peak) / total, mask=rows < end)


@triton.jit(do_not_specialize=["stride_s", "grad_stride_s"])
@no_type_check
def softmax_gradient_program(
    softmax: tl.tensor,
    grad: tl.tensor,
    bounds: tl.tensor,
    out: tl.tensor,
    stride_s: tl.tensor,
    grad_stride_s: tl.tensor,
    grad_stride_t: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    """Give a (da - sum of a da) over a bag; the grid counts bags and samples."""
    bag = tl.program_id(0)
    sample = tl.program_id(1).to(tl.int64)
    start, end = tl.load(bounds + bag), tl.load(bounds + bag + 1)
    offsets = tl.arange(0, ROWS)
    softmax += sample * stride_s
    out += sample * stride_s
    grad += sample * grad_stride_s
    dots = tl.zeros([ROWS], out.dtype.element_ty)
    for first in range(start, end, ROWS):
        rows = first + offsets
        a = tl.load(softmax + rows, mask=rows < end, other=0.0)
        dots += a * tl.load(grad + rows * grad_stride_t, mask=rows < end, other=0.0)
    dot = tl.sum(dots, axis=0)
    for first in range(start, end, ROWS):
        rows = first + offsets
        a = tl.load(softmax + rows, mask=rows < end, other=0.0)
        da = tl.load(grad + rows * grad_stride_t, mask=rows < end, other=0.0)
        tl.store(out + rows, a * (da - dot), mask=rows < end)


@triton.jit(do_not_specialize=["stride_s", "num_samples", "num_bags", "num_parts"])
@no_type_check
def pool_program(
    weights: tl.tensor,
    embeddings: tl.tensor,
    bounds: tl.tensor,
    out: tl.tensor,
    num_bags: tl.tensor,
    num_samples: tl.tensor,
    num_parts: tl.tensor,
    width: tl.tensor,
    stride_s: tl.tensor,
    stride_t: tl.tensor,
    embeddings_stride_t: tl.tensor,
    embeddings_stride_h: tl.tensor,
    SAMPLES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Sum every `num_parts`-th block of rows of a bag.

    The grid counts parts of bags, blocks of samples and blocks of columns.
    """
    bag = tl.program_id(0) // num_parts
    part = tl.program_id(0) % num_parts
    samples = tl.program_id(1).to(tl.int64) * SAMPLES + tl.arange(0, SAMPLES)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    start, end = tl.load(bounds + bag), tl.load(bounds + bag + 1)
    offsets = tl.arange(0, ROWS)
    dtype = out.dtype.element_ty
    sums = tl.zeros([SAMPLES, ROWS, COLUMNS], dtype)
    for first in range(start + part * ROWS, end, num_parts * ROWS):
        rows = first + offsets
        w = tl.load(
            weights + samples[:, None] * stride_s + rows[None, :] * stride_t,
            mask=(samples < num_samples)[:, None] & (rows < end)[None, :],
            other=0.0,
        )
        h = tl.load(
            embeddings
            + rows[:, None] * embeddings_stride_t
            + columns[None, :] * embeddings_stride_h,
            mask=(rows < end)[:, None] & (columns < width)[None, :],
            other=0.0,
        ).to(dtype)
        sums += w[:, :, None] * h[None, :, :]
    total = tl.sum(sums, axis=1)
    row_of_out = (part.to(tl.int64) * num_bags + bag) * num_samples + samples
    tl.store(
        out + row_of_out[:, None] * width + columns[None, :],
        total,
        mask=(samples < num_samples)[:, None] & (columns < width)[None, :],
    )


@triton.jit(do_not_specialize=["num_rows", "num_bags", "num_samples", "out_stride_s"])
@no_type_check
def pool_weights_gradient_program(
    embeddings: tl.tensor,
    grad: tl.tensor,
    bounds: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    num_bags: tl.tensor,
    num_samples: tl.tensor,
    width: tl.tensor,
    embeddings_stride_t: tl.tensor,
    embeddings_stride_h: tl.tensor,
    out_stride_s: tl.tensor,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Give the inner products of embeddings and their bag's gradient, for a block of rows.

    The grid counts blocks of rows and samples.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    sample = tl.program_id(1).to(tl.int64)
    within = rows < num_rows
    bag = bag_of(rows, bounds, num_bags, STEPS)
    dtype = out.dtype.element_ty
    products = tl.zeros([ROWS, COLUMNS], dtype)
    dz_row = (bag * num_samples + sample) * width
    for first in range(0, width, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = within[:, None] & (columns < width)[None, :]
        h = tl.load(
            embeddings
            + rows[:, None] * embeddings_stride_t
            + columns[None, :] * embeddings_stride_h,
            mask=inside,
            other=0.0,
        ).to(dtype)
        dz = tl.load(grad + dz_row[:, None] + columns[None, :], mask=inside, other=0.0)
        products += h * dz
    tl.store(out + sample * out_stride_s + rows, tl.sum(products, axis=1), mask=within)


@triton.jit(do_not_specialize=["num_rows", "num_bags", "num_samples", "stride_s"])
@no_type_check
def pool_embeddings_gradient_program(
    weights: tl.tensor,
    grad: tl.tensor,
    bounds: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    num_bags: tl.tensor,
    num_samples: tl.tensor,
    width: tl.tensor,
    stride_s: tl.tensor,
    stride_t: tl.tensor,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Give the weighted sum over samples of the bag's gradient, for a block of rows.

    The grid counts blocks of rows and blocks of columns.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = rows < num_rows
    inside = within[:, None] & (columns < width)[None, :]
    bag = bag_of(rows, bounds, num_bags, STEPS)
    sums = tl.zeros([ROWS, COLUMNS], grad.dtype.element_ty)
    weights += rows * stride_t
    grad += (bag * num_samples * width)[:, None] + columns[None, :]
    for _ in range(num_samples):
        w = tl.load(weights, mask=within, other=0.0)
        sums += w[:, None] * tl.load(grad, mask=inside, other=0.0)
        weights += stride_s
        grad += width
    if out.dtype.element_ty.primitive_bitwidth == 16:  # there is no way from double to half
        sums = sums.to(tl.float32)
    to = out + rows[:, None] * width + columns[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=inside)
