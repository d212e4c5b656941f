r"""A linear layer followed by a ReLU, whose gradient takes one pass over the outputs on a GPU.

With $y = \max(xW^\top + b, 0)$ and $g = \bar y \cdot [y > 0]$,

$$ \bar x = g W, \qquad \bar W = g^\top x, \qquad \bar b = \sum_t g_t. $$

A Triton program writes $g$ and sums its columns in the same pass. torch would read $g$ once more
for the sum, which takes half as long as the product of the matrices.
"""

from __future__ import annotations  # Triton is imported at the first launch

from typing import TYPE_CHECKING, Any, no_type_check

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sgpmil.gpu.programs import ceil_div, power_of_two, program, runs_triton
from sgpmil.shapes import Float

if TYPE_CHECKING:
    import triton.language as tl

_TILE = 4096
"""Entries that one program holds in registers."""
_WIDEST = 128
_PROGRAMS = 1056
"""Programs that keep a large GPU busy."""


def linear_relu(
    inputs: Float[Tensor, "*T I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"]
) -> Float[Tensor, "*T O"]:
    """Apply a linear layer and a ReLU, as `torch.nn.Linear` and `torch.nn.ReLU` do.

    Under autocast it casts to the same dtype as they do.

    Example:
        >>> linear_relu(torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0]]), torch.tensor([1.0]))
        tensor([[3.],
                [0.]])
    """
    if not (runs_triton(inputs) and torch.is_grad_enabled()):
        return F.linear(inputs, weight, bias).relu_()
    kind = inputs.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        inputs, weight = _cast(inputs, dtype), _cast(weight, dtype)
    with torch.autocast(kind, enabled=False):
        out: Tensor = LinearReLU.apply(inputs.reshape(-1, inputs.shape[-1]), weight, bias)
    return out.reshape(*inputs.shape[:-1], len(weight))


class LinearReLU(Function):
    """The layer and the ReLU on a GPU; the bias may be more precise than the rest."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Float[Tensor, "T I"],
        weight: Float[Tensor, "O I"],
        bias: Float[Tensor, " O"],
    ) -> Float[Tensor, "T O"]:
        """Apply the layer and the ReLU."""
        out = F.linear(inputs, weight, bias.to(weight.dtype)).relu_()
        ctx.save_for_backward(inputs, weight, out)
        ctx.bias_dtype = bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Float[Tensor, "T O"]
    ) -> tuple[
        Float[Tensor, "T I"] | None, Float[Tensor, "O I"] | None, Float[Tensor, " O"] | None
    ]:
        """Compute the gradients that are needed."""
        inputs, weight, out = ctx.saved_tensors
        by_inputs, by_weight, by_bias = ctx.needs_input_grad
        passed, sums = launch_relu_gradient(out, grad)
        return (
            passed @ weight if by_inputs else None,
            passed.T @ inputs if by_weight else None,
            sums.sum(0).to(ctx.bias_dtype) if by_bias else None,
        )


def launch_relu_gradient(
    outputs: Float[Tensor, "T O"], grad: Float[Tensor, "T O"]
) -> tuple[Float[Tensor, "T O"], Float[Tensor, "N O"]]:
    """Compute the gradient before the ReLU, and sums of N parts of its rows in float32 or more."""
    num_rows, width = outputs.shape
    columns = min(power_of_two(width), _WIDEST)
    rows = _TILE // columns
    num_blocks, num_columns = max(1, ceil_div(num_rows, rows)), ceil_div(width, columns)
    num_steps = max(1, ceil_div(num_blocks * num_columns, _PROGRAMS))
    num_parts = ceil_div(num_blocks, num_steps)
    passed = torch.empty_like(outputs)
    precise = torch.float64 if outputs.dtype == torch.float64 else torch.float32
    sums = outputs.new_empty((num_parts, width), dtype=precise)
    with torch.cuda.device_of(outputs):
        relu_gradient_program[(num_parts, num_columns)](
            outputs,
            grad,
            passed,
            sums,
            num_rows,
            width,
            *grad.stride(),
            num_steps,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=8,
        )
    return passed, sums


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    # Autocast leaves double precision alone.
    return value if value.dtype == torch.float64 else value.to(dtype)


@program(do_not_specialize=["num_rows", "num_steps"])
@no_type_check
def relu_gradient_program(
    outputs,
    grad,
    out,
    sums,
    num_rows,
    width,
    grad_stride_t,
    grad_stride_o,
    num_steps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Pass the gradient on where the output is positive, and sum the columns of the result.

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
        # Like torch: outputs of zero stop the gradient, outputs that are NaN do not.
        passed = tl.where(y <= 0.0, 0.0, dy)
        tl.store(out + at, passed, mask=inside)
        total += passed.to(total.dtype)
    to = sums + tl.program_id(0).to(tl.int64) * width + columns
    tl.store(to, tl.sum(total, axis=0), mask=columns < width)
