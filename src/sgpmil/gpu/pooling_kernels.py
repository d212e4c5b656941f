r"""Softmax and pooling over packed bags in one Triton kernel each, for a GPU.

Bag $b$ holds rows `bounds[b]` to `bounds[b + 1]`, read where the rows are: nothing waits for the
GPU, and a recorded CUDA graph follows other bounds when it is replayed. The sums of a bag are taken
in an order that depends on the shapes and bounds alone, so that the same input gives the same
result.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from sgpmil.gpu.triton_package import available
from sgpmil.shapes import Float, Int

__all__ = ["SegmentPool", "SegmentSoftmax", "available"]

_TILE = 4096
"""Entries that one program holds in registers."""
_PROGRAMS = 512
"""Programs that keep a large GPU busy."""
_MOST_PARTS = 64


class SegmentSoftmax(Function):
    r"""Softmax of each sample over the rows of each bag, $a_i = e^{v_i} / \sum_{j \in b} e^{v_j}$.

    Its gradient is $dv_i = a_i (da_i - \sum_{j \in b} a_j \, da_j)$. A bag without rows is left
    alone.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Float[Tensor, "S T"], bounds: Int[Tensor, " _"]
    ) -> Float[Tensor, "S T"]:
        """Take the softmax of values in single or double precision."""
        from sgpmil.gpu.pooling_programs import softmax_program

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
        """Give the gradient of the values."""
        from sgpmil.gpu.pooling_programs import softmax_gradient_program

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
        from sgpmil.gpu.pooling_programs import pool_program

        num_bags, num_samples, (num_rows, width) = len(bounds) - 1, len(weights), embeddings.shape
        columns = min(_power_of_two(width), 64)
        samples = min(_power_of_two(num_samples), 4)
        rows = _TILE // (columns * samples)
        blocks = (-(-num_samples // samples), -(-width // columns))
        # Few bags, samples and columns: several programs share a bag, and their sums are added.
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
                num_warps=8,
            )
        ctx.save_for_backward(weights, embeddings, bounds)
        return out[0] if num_parts == 1 else out.sum(0)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Float[Tensor, "B S H"]
    ) -> tuple[Float[Tensor, "S T"] | None, Float[Tensor, "T H"] | None, None]:
        """Give the gradients that are asked for."""
        weights, embeddings, bounds = ctx.saved_tensors
        grad = grad.contiguous()
        by_weights, by_embeddings, _ = ctx.needs_input_grad
        with torch.cuda.device_of(weights):
            return (
                _weights_gradient(weights, embeddings, bounds, grad) if by_weights else None,
                _embeddings_gradient(weights, embeddings, bounds, grad) if by_embeddings else None,
                None,
            )


def _weights_gradient(
    weights: Float[Tensor, "S T"],
    embeddings: Float[Tensor, "T H"],
    bounds: Int[Tensor, " _"],
    grad: Float[Tensor, "B S H"],
) -> Float[Tensor, "S T"]:
    from sgpmil.gpu.pooling_programs import pool_weights_gradient_program

    num_bags, num_samples, width = grad.shape
    num_rows = len(embeddings)
    out = weights.new_empty(weights.shape)
    rows, columns = _tile(width)
    pool_weights_gradient_program[(-(-num_rows // rows), num_samples)](
        embeddings,
        grad,
        bounds,
        out,
        num_rows,
        num_bags,
        num_samples,
        width,
        *embeddings.stride(),
        num_rows,
        STEPS=num_bags.bit_length(),
        ROWS=rows,
        COLUMNS=columns,
        num_warps=8,
    )
    return out


def _embeddings_gradient(
    weights: Float[Tensor, "S T"],
    embeddings: Float[Tensor, "T H"],
    bounds: Int[Tensor, " _"],
    grad: Float[Tensor, "B S H"],
) -> Float[Tensor, "T H"]:
    from sgpmil.gpu.pooling_programs import pool_embeddings_gradient_program

    num_bags, num_samples, width = grad.shape
    num_rows = len(embeddings)
    out = embeddings.new_empty(embeddings.shape)
    rows, columns = _tile(width)
    pool_embeddings_gradient_program[(-(-num_rows // rows), -(-width // columns))](
        weights,
        grad,
        bounds,
        out,
        num_rows,
        num_bags,
        num_samples,
        width,
        *weights.stride(),
        STEPS=num_bags.bit_length(),
        ROWS=rows,
        COLUMNS=columns,
        num_warps=8,
    )
    return out


def _rows_of_a_bag(num_rows: int, num_bags: int) -> int:
    """Choose the rows that a program reads at once from the mean size of a bag."""
    mean = max(num_rows // max(num_bags, 1), 1)
    return next(rows for rows in (256, 1024, _TILE) if rows >= min(mean, _TILE))


def _tile(width: int) -> tuple[int, int]:
    """Choose the rows and columns of a program for embeddings of some width."""
    columns = min(_power_of_two(width), 128)
    return min(_TILE // columns, 512), columns


def _power_of_two(number: int) -> int:
    """Round up to a power of two.

    Example:
        >>> _power_of_two(5)
        8
    """
    return 1 << (number - 1).bit_length()
