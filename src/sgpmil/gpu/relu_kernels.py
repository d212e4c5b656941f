r"""A linear layer followed by a ReLU, whose gradient takes one pass over the outputs on a GPU.

With $y = \max(xW^\top + b, 0)$ and $g = \bar y \cdot [y > 0]$,

$$ \bar x = g W, \qquad \bar W = g^\top x, \qquad \bar b = \sum_t g_t. $$

A Triton kernel writes $g$ and sums its columns as it goes. By itself torch reads $g$ once more for
the sum, and takes half as long for that as for the product of matrices. The sums are added in an
order that depends on the shapes alone, so that the same input gives the same result.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sgpmil.gpu.triton_package import available
from sgpmil.shapes import Float

__all__ = ["LinearReLU", "launch_relu_gradient", "linear_relu"]

_TILE = 4096
"""Entries that one program holds in registers."""
_WIDEST = 128
_PROGRAMS = 1056
"""Programs that keep a large GPU busy."""


def linear_relu(
    inputs: Float[Tensor, "*T I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"]
) -> Float[Tensor, "*T O"]:
    """Apply a linear layer and a ReLU, as `torch.nn.Linear` and `torch.nn.ReLU` would.

    Under autocast all is cast to its dtype, as they cast it.

    Args:
        inputs: Rows of features.
        weight: The layer's weight.
        bias: The layer's bias.

    Example:
        >>> linear_relu(torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0]]), torch.tensor([1.0]))
        tensor([[3.],
                [0.]])
    """
    if not (_on_kernels(inputs) and torch.is_grad_enabled()):
        return F.linear(inputs, weight, bias).relu_()
    kind = inputs.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        inputs, weight = _cast(inputs, dtype), _cast(weight, dtype)
    with torch.autocast(kind, enabled=False):
        out: Tensor = LinearReLU.apply(inputs.reshape(-1, inputs.shape[-1]), weight, bias)
    return out.reshape(*inputs.shape[:-1], len(weight))


class LinearReLU(Function):
    """What `linear_relu` does on a GPU; the bias may be more precise than the rest."""

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
        """Give the gradients that are asked for."""
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
    """Give the gradient before the ReLU, and sums of N parts of its rows in float32 or more.

    Args:
        outputs: What the ReLU gave, contiguous.
        grad: The gradient of that.
    """
    from sgpmil.gpu.relu_programs import relu_gradient_program

    num_rows, width = outputs.shape
    columns = min(1 << (width - 1).bit_length(), _WIDEST)
    rows = _TILE // columns
    num_blocks, num_columns = max(1, -(-num_rows // rows)), -(-width // columns)
    num_steps = max(1, -(-num_blocks * num_columns // _PROGRAMS))
    num_parts = -(-num_blocks // num_steps)
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


def _on_kernels(values: Tensor) -> bool:
    return values.device.type == "cuda" and available()
