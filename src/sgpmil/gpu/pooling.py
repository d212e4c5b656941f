r"""Softmax and weighted sums over the instances of packed bags.

On a GPU one Triton program computes each. Bag $b$ holds rows `bounds[b]` to `bounds[b + 1]`, and a
program reads the bounds on the device: nothing waits for the GPU, and a recorded CUDA graph follows
other bounds when it is replayed.
"""

from __future__ import annotations  # Triton is imported at the first launch

from typing import TYPE_CHECKING, Any, no_type_check

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from sgpmil.bags.segments import OneSegment, Segments
from sgpmil.gpu.programs import ceil_div, power_of_two, program, runs_triton
from sgpmil.gpu.rows import bag_of
from sgpmil.shapes import Float, Int

if TYPE_CHECKING:
    import triton.language as tl

_TILE = 4096
"""Entries that one program holds in registers."""
_PROGRAMS = 512
"""Programs that keep a large GPU busy."""
_MOST_PARTS = 64
_LEAST_PRODUCT = 16
"""Samples and columns from which sums are taken as products of matrices."""


def bag_softmax(values: Float[Tensor, "S T"], segments: Segments) -> Float[Tensor, "S T"]:
    """Take the softmax over the instances of each bag, in single precision at least.

    Example:
        >>> bag_softmax(torch.zeros(1, 3), Segments.of(torch.tensor([0, 2, 3])))
        tensor([[0.5000, 0.5000, 1.0000]])
    """
    # In half precision, instances would tie.
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if runs_triton(values):
        return SegmentSoftmax.apply(values, segments.bounds)
    if isinstance(segments, OneSegment):
        return values.softmax(1)
    index = segments.index
    floor = values.new_full((len(values), len(segments)), -torch.inf)
    peak = floor.scatter_reduce(1, index.expand_as(values), values.detach(), "amax")
    powers = (values - peak[:, index]).exp()
    return powers / bag_sum(powers, segments)[:, index]


def pool(
    weights: Float[Tensor, "S T"], embeddings: Float[Tensor, "T H"], segments: Segments
) -> Float[Tensor, "B S H"]:
    r"""Sum weighted embeddings over each bag, $z_{bs} = \sum_{i \in b} \tilde a_{si} h_i$.

    The result has the weights' precision, and single precision at least.

    Example:
        >>> h = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> pool(torch.ones(1, 2), h, Segments.of(torch.tensor([0, 2])))
        tensor([[[4., 6.]]])
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if runs_triton(weights):
        return SegmentPool.apply(weights, embeddings, segments.bounds)
    # One product for each bag: S×N×H is never formed.
    sizes = segments.lengths
    parts = zip(weights.split(sizes, dim=1), embeddings.to(weights.dtype).split(sizes), strict=True)
    return torch.stack([weight @ embedding for weight, embedding in parts])


def bag_sum(values: Float[Tensor, "S T"], segments: Segments) -> Float[Tensor, "S B"]:
    """Sum values over the instances of each bag.

    Example:
        >>> bag_sum(torch.ones(1, 3), Segments.of(torch.tensor([0, 2, 3])))
        tensor([[2., 1.]])
    """
    if runs_triton(values):  # to add by index is not deterministic on a GPU
        return pool(values, values.new_ones(values.shape[1], 1), segments)[:, :, 0].T
    if isinstance(segments, OneSegment):
        return values.sum(1, keepdim=True)
    total = values.new_zeros(len(values), len(segments))
    return total.index_add(1, segments.index, values)


class SegmentSoftmax(Function):
    r"""Softmax of each sample over the rows of each bag, $a_i = e^{v_i} / \sum_{j \in b} e^{v_j}$.

    Its gradient is $dv_i = a_i (da_i - \sum_{j \in b} a_j \, da_j)$. A bag without rows has no
    result.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Float[Tensor, "S T"], bounds: Int[Tensor, " _"]
    ) -> Float[Tensor, "S T"]:
        """Take the softmax of values in single or double precision."""
        num_samples, num_rows = values.shape
        out = values.new_empty(values.shape)
        ctx.rows = _rows_of_a_bag(num_rows, len(bounds) - 1)
        with torch.cuda.device_of(values):
            softmax_program[(len(bounds) - 1, num_samples)](
                values, bounds, out, *values.stride(), num_rows, ROWS=ctx.rows, num_warps=8
            )
        ctx.save_for_backward(out, bounds)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "S T"]) -> tuple[Float[Tensor, "S T"], None]:
        """Compute the gradient of the values."""
        softmax, bounds = ctx.saved_tensors
        num_samples, num_rows = softmax.shape
        out = torch.empty_like(softmax)
        with torch.cuda.device_of(softmax):
            softmax_gradient_program[(len(bounds) - 1, num_samples)](
                softmax, grad, bounds, out, num_rows, *grad.stride(), ROWS=ctx.rows, num_warps=8
            )
        return out, None


class SegmentPool(Function):
    r"""Weighted sums over the rows of each bag, $z_{bs} = \sum_{i \in b} w_{si} h_i$.

    The gradients are $dw_{si} = \langle dz_{bs}, h_i \rangle$ and $dh_i = \sum_s w_{si} \, dz_{bs}$
    for the bag $b$ of row $i$. Sums are taken in the weights' precision, whatever the embeddings'
    is. A bag without rows sums to zero.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weights: Float[Tensor, "S T"],
        embeddings: Float[Tensor, "T H"],
        bounds: Int[Tensor, " _"],
    ) -> Float[Tensor, "B S H"]:
        """Sum with weights in single or double precision."""
        num_bags, num_samples, (num_rows, width) = len(bounds) - 1, len(weights), embeddings.shape
        columns = min(power_of_two(width), 64)
        ctx.as_product = _as_product(num_samples, width, weights, embeddings)
        if ctx.as_product:
            samples, rows = min(power_of_two(num_samples), 64), 64
        else:
            samples = min(power_of_two(num_samples), 4)
            rows = _TILE // (columns * samples)
        blocks = (ceil_div(num_samples, samples), ceil_div(width, columns))
        # Where bags, samples and columns are few, several programs share a bag.
        num_parts = max(1, min(_PROGRAMS // (num_bags * blocks[0] * blocks[1]), _MOST_PARTS))
        num_parts = min(num_parts, max(1, num_rows // (num_bags * rows)))
        out = weights.new_empty((num_parts, num_bags, num_samples, width))
        with torch.cuda.device_of(weights):
            pool_program[(num_bags * num_parts, *blocks)](
                weights,
                embeddings,
                bounds,
                out,
                num_bags,
                num_samples,
                num_parts,
                width,
                *weights.stride(),
                *embeddings.stride(),
                SAMPLES=samples,
                ROWS=rows,
                COLUMNS=columns,
                AS_PRODUCT=ctx.as_product,
                num_warps=8,
            )
        ctx.save_for_backward(weights, embeddings, bounds)
        return out[0] if num_parts == 1 else out.sum(0)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Float[Tensor, "B S H"]
    ) -> tuple[Float[Tensor, "S T"] | None, Float[Tensor, "T H"] | None, None]:
        """Compute the gradients that are needed."""
        weights, embeddings, bounds = ctx.saved_tensors
        by_weights, by_embeddings, _ = ctx.needs_input_grad
        grad = grad.contiguous()
        (num_bags, num_samples, width), num_rows = grad.shape, len(embeddings)
        columns = min(power_of_two(width), 64 if ctx.as_product else 128)
        rows = min(_TILE // columns, 512)
        samples = min(power_of_two(num_samples), 64) if ctx.as_product else 1
        blocks = ceil_div(num_rows, rows), ceil_div(width, columns)
        sizes = num_rows, num_bags, num_samples, width
        tile = {
            "STEPS": num_bags.bit_length(),
            "SAMPLES": samples,
            "ROWS": rows,
            "COLUMNS": columns,
            "AS_PRODUCT": ctx.as_product,
            "num_warps": 4 if ctx.as_product else 8,
        }
        of_weights = weights.new_empty(weights.shape) if by_weights else None
        of_embeddings = embeddings.new_empty(embeddings.shape) if by_embeddings else None
        with torch.cuda.device_of(weights):
            if by_weights:
                strides = *embeddings.stride(), num_rows
                launch = pool_weights_gradient_program[(blocks[0], ceil_div(num_samples, samples))]
                launch(embeddings, grad, bounds, of_weights, *sizes, *strides, **tile)
            if by_embeddings:
                launch = pool_embeddings_gradient_program[blocks]
                launch(weights, grad, bounds, of_embeddings, *sizes, *weights.stride(), **tile)
        return of_weights, of_embeddings, None


def _as_product(num_samples: int, width: int, weights: Tensor, embeddings: Tensor) -> bool:
    """Return whether to sum by products of matrices: three of half the digits make a whole one."""
    is_single = weights.dtype == torch.float32 and embeddings.dtype != torch.float64
    return is_single and min(num_samples, width) >= _LEAST_PRODUCT


def _rows_of_a_bag(num_rows: int, num_bags: int) -> int:
    """Choose the rows that a program reads at once from the mean size of a bag."""
    mean = max(num_rows // max(num_bags, 1), 1)
    return next(rows for rows in (256, 1024, _TILE) if rows >= min(mean, _TILE))


@program(do_not_specialize=["stride_s", "out_stride_s"])
@no_type_check
def softmax_program(values, bounds, out, stride_s, stride_t, out_stride_s, ROWS: tl.constexpr):
    """Take the softmax over a bag; the grid counts bags and samples."""
    bag = tl.program_id(0)
    sample = tl.program_id(1).to(tl.int64)
    start, end = tl.load(bounds + bag), tl.load(bounds + bag + 1)
    offsets = tl.arange(0, ROWS)
    dtype = out.dtype.element_ty
    values += sample * stride_s
    out += sample * out_stride_s
    # Each lane keeps a peak and a sum relative to it; they are combined after the loop.
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


@program(do_not_specialize=["stride_s", "grad_stride_s"])
@no_type_check
def softmax_gradient_program(
    softmax, grad, bounds, out, stride_s, grad_stride_s, grad_stride_t, ROWS: tl.constexpr
):
    """Compute a (da - sum of a da) over a bag; the grid counts bags and samples."""
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


@program(do_not_specialize=["stride_s", "num_samples", "num_bags", "num_parts"])
@no_type_check
def pool_program(
    weights,
    embeddings,
    bounds,
    out,
    num_bags,
    num_samples,
    num_parts,
    width,
    stride_s,
    stride_t,
    embeddings_stride_t,
    embeddings_stride_h,
    SAMPLES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AS_PRODUCT: tl.constexpr,
):
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
    if AS_PRODUCT:
        total = tl.zeros([SAMPLES, COLUMNS], dtype)
    else:
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
        if AS_PRODUCT:
            total = tl.dot(w, h, total, input_precision="tf32x3")
        else:
            sums += w[:, :, None] * h[None, :, :]
    if not AS_PRODUCT:
        total = tl.sum(sums, axis=1)
    row_of_out = (part.to(tl.int64) * num_bags + bag) * num_samples + samples
    tl.store(
        out + row_of_out[:, None] * width + columns[None, :],
        total,
        mask=(samples < num_samples)[:, None] & (columns < width)[None, :],
    )


@program(do_not_specialize=["num_rows", "num_bags", "num_samples", "out_stride_s"])
@no_type_check
def pool_weights_gradient_program(
    embeddings,
    grad,
    bounds,
    out,
    num_rows,
    num_bags,
    num_samples,
    width,
    embeddings_stride_t,
    embeddings_stride_h,
    out_stride_s,
    STEPS: tl.constexpr,
    SAMPLES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AS_PRODUCT: tl.constexpr,
):
    """Compute the inner products of embeddings and their bag's gradient, for a block of rows.

    The grid counts blocks of rows and blocks of samples; without products, a block is one sample.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first_sample = tl.program_id(1).to(tl.int64) * SAMPLES
    within = rows < num_rows
    bag = bag_of(rows, bounds, num_bags, STEPS)
    dtype = out.dtype.element_ty
    if AS_PRODUCT:
        samples = first_sample + tl.arange(0, SAMPLES)
        products = tl.zeros([SAMPLES, ROWS], dtype)
    else:
        products = tl.zeros([ROWS, COLUMNS], dtype)
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
        if AS_PRODUCT:
            # Most blocks lie within one bag.
            for of_bag in range(tl.min(bag, axis=0), tl.max(bag, axis=0) + 1):
                dz = tl.load(
                    grad + (of_bag * num_samples + samples)[:, None] * width + columns[None, :],
                    mask=(samples < num_samples)[:, None] & (columns < width)[None, :],
                    other=0.0,
                )
                own = tl.where((bag == of_bag)[:, None], h, 0.0)
                products = tl.dot(dz, tl.trans(own), products, input_precision="tf32x3")
        else:
            dz_row = (bag * num_samples + first_sample) * width
            dz = tl.load(grad + dz_row[:, None] + columns[None, :], mask=inside, other=0.0)
            products += h * dz
    if AS_PRODUCT:
        to = out + samples[:, None] * out_stride_s + rows[None, :]
        tl.store(to, products, mask=(samples < num_samples)[:, None] & within[None, :])
    else:
        to = out + first_sample * out_stride_s + rows
        tl.store(to, tl.sum(products, axis=1), mask=within)


@program(do_not_specialize=["num_rows", "num_bags", "num_samples", "stride_s"])
@no_type_check
def pool_embeddings_gradient_program(
    weights,
    grad,
    bounds,
    out,
    num_rows,
    num_bags,
    num_samples,
    width,
    stride_s,
    stride_t,
    STEPS: tl.constexpr,
    SAMPLES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AS_PRODUCT: tl.constexpr,
):
    """Compute the weighted sum over samples of the bag's gradient, for a block of rows.

    The grid counts blocks of rows and blocks of columns.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = rows < num_rows
    inside = within[:, None] & (columns < width)[None, :]
    bag = bag_of(rows, bounds, num_bags, STEPS)
    sums = tl.zeros([ROWS, COLUMNS], grad.dtype.element_ty)
    if AS_PRODUCT:
        for first in range(0, num_samples, SAMPLES):
            samples = first + tl.arange(0, SAMPLES).to(tl.int64)
            w = tl.load(
                weights + rows[:, None] * stride_t + samples[None, :] * stride_s,
                mask=within[:, None] & (samples < num_samples)[None, :],
                other=0.0,
            )
            for of_bag in range(tl.min(bag, axis=0), tl.max(bag, axis=0) + 1):
                dz = tl.load(
                    grad + (of_bag * num_samples + samples)[:, None] * width + columns[None, :],
                    mask=(samples < num_samples)[:, None] & (columns < width)[None, :],
                    other=0.0,
                )
                own = tl.where((bag == of_bag)[:, None], w, 0.0)
                sums = tl.dot(own, dz, sums, input_precision="tf32x3")
    else:
        weights += rows * stride_t
        grad += (bag * num_samples * width)[:, None] + columns[None, :]
        for _ in range(num_samples):
            w = tl.load(weights, mask=within, other=0.0)
            sums += w[:, None] * tl.load(grad, mask=inside, other=0.0)
            weights += stride_s
            grad += width
    if out.dtype.element_ty.primitive_bitwidth == 16:  # Triton cannot convert double to half
        sums = sums.to(tl.float32)
    to = out + rows[:, None] * width + columns[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=inside)
