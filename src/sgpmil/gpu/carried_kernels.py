r"""Draws carried from inducing values to inputs through the default kernel, on a GPU, as a whole.

What `rbf`, `conditional` and a linear mean compute one after another takes one Triton kernel
forwards and three backwards. With points less the mean inducing point and
$D_{mi} = \tfrac12 \lVert z_m - x_i \rVert^2 / \ell^2$,

$$ E = e^{-D}, \qquad B = P (sE + c), \qquad
   r_i = \max(s + c + j - \lVert B_i \rVert^2,\, r_{\min}), \qquad
   f_{si} = B_i^\top v_s + r_i^{1/2} \epsilon_{si} + w^\top x_i + b. $$

Backwards, with $h_i = r_i^{-1/2} \sum_s \bar f_{si} \epsilon_{si}$ where $r_i > r_{\min}$, else 0,

$$ \bar B = V^\top \bar f - B \circ h, \qquad \bar K = P^\top \bar B, \qquad
   W = s E \circ \bar K, \qquad
   \bar x = (W^\top z - (W^\top 1) \circ x) / \ell^2 + w \textstyle\sum_s \bar f_s, $$

$$ \bar P = \bar B K^\top, \qquad \bar V = \bar f B^\top, \qquad
   \bar z = (W x - (W 1) \circ z) / \ell^2, \qquad
   \bar \ell = 2 \textstyle\sum W \circ D / \ell, $$

$$ \bar s = \textstyle\sum E \circ \bar K + \tfrac12 \sum h, \qquad
   \bar c = \textstyle\sum \bar K + \tfrac12 \sum h. $$

Nothing waits for the GPU, and sums are taken in an order that depends on the shapes alone.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from sgpmil.gpu.conditional import MIN_VARIANCE
from sgpmil.gpu.triton_package import available
from sgpmil.shapes import Float

__all__ = ["CarriedRBFDraw", "available", "fits"]

_PRECISION = "tf32x3"
"""Each product as three on the tensor cores, of numbers split in two; near single precision."""
_MOST_POINTS, _MOST_DIMS, _MOST_SAMPLES = 128, 128, 64


class _Tile(NamedTuple):
    """How a kernel is cut: inputs of a program, inducing points it takes at a time, warps.

    The stages are those of the loop over inducing points: more than one loads ahead.
    """

    rows: int
    chunk: int
    num_warps: int
    num_stages: int


# As many inputs as registers hold. Few inputs are spread over all multiprocessors; of many, larger
# tiles read the inducing points less often.
_DRAW, _DRAW_MANY = _Tile(16, 16, 4, 3), _Tile(64, 16, 4, 1)
_GRADIENT, _GRADIENT_MANY = _Tile(16, 16, 4, 3), _Tile(32, 32, 4, 1)
_MANY = 132 * 48
"""Inputs that small tiles cover with all multiprocessors of a large GPU at once."""
_WHOLE = 64
"""What is kept is of a multiple of it: of whole tiles, and of whole steps of the products."""
_MOST_PARTS = 128
_PART_ROWS, _PART_BLOCK = 32, 64
_SUMMED_ROWS, _SUMMED_COLUMNS = 64, 32


def fits(num_inducing: int, dim: int, num_samples: int) -> bool:
    """Tell whether the kernels hold a problem of that size; elsewhere the torch code is used.

    Example:
        >>> fits(80, 64, 30), fits(200, 64, 30)
        (True, False)
    """
    return num_inducing <= _MOST_POINTS and dim <= _MOST_DIMS and num_samples <= _MOST_SAMPLES


class CarriedRBFDraw(Function):
    """The draws; gradients reach all but the jitter and the noise."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "T G"],
        z: Float[Tensor, "M G"],
        inverse: Float[Tensor, "M M"],
        functions: Float[Tensor, "S M"],
        lengthscale: Float[Tensor, ""],
        scale: Float[Tensor, ""],
        constant: Float[Tensor, ""],
        jitter: float,
        mean_weight: Float[Tensor, " G"] | None,
        mean_bias: Float[Tensor, ""] | None,
        noise: Float[Tensor, "S T"],
    ) -> Float[Tensor, "S T"]:
        r"""Draw in single precision.

        Args:
            ctx: What backward is given.
            x: Inputs, in single or half precision.
            z: Inducing points.
            inverse: $P$, the inverse Cholesky factor of $K_{ZZ}$.
            functions: The draws $v_s$ of the whitened inducing values.
            lengthscale: $\ell$.
            scale: $s$.
            constant: $c$.
            jitter: $j$, which the prior variance is larger by.
            mean_weight: $w$; None (with `mean_bias`) leaves out the mean.
            mean_bias: $b$.
            noise: $\epsilon$.
        """
        from sgpmil.gpu.carried_programs import draw_program

        x, z, inverse = x.contiguous(), z.contiguous(), inverse.contiguous()
        functions, noise = functions.contiguous(), noise.contiguous()
        weight = None if mean_weight is None else mean_weight.contiguous()
        num_rows = len(x)
        stride = _quotient(num_rows, _WHOLE) * _WHOLE
        out = torch.empty_like(noise)
        exponents, projection = z.new_empty((2, len(z), stride))
        left = z.new_empty(stride)
        tile = _DRAW if num_rows <= _MANY else _DRAW_MANY
        with torch.cuda.device_of(x):
            draw_program[(stride // tile.rows,)](
                x,
                z,
                inverse,
                functions,
                lengthscale,
                scale,
                constant,
                weight,
                mean_bias,
                noise,
                out,
                exponents,
                projection,
                left,
                jitter,
                num_rows,
                num_rows,
                stride,
                **_sizes(z, functions),
                FLOOR=MIN_VARIANCE,
                LINEAR=weight is not None,
                ROWS=tile.rows,
                CHUNK=tile.chunk,
                num_warps=tile.num_warps,
                num_stages=tile.num_stages,
            )
        ctx.save_for_backward(
            x,
            z,
            inverse,
            functions,
            lengthscale,
            scale,
            constant,
            weight,
            noise,
            exponents,
            projection,
            left,
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "S T"]) -> tuple[Tensor | None, ...]:
        """Give the gradients, those of the parameters as parts of one tensor."""
        from sgpmil.gpu.carried_programs import (
            draw_gradient_program,
            products_program,
            sums_program,
        )

        x, z, inverse, functions, lengthscale, scale, constant, *others = ctx.saved_tensors
        weight, noise, exponents, projection, left = others
        grad = grad.contiguous()
        (M, G), S, num_rows, stride = z.shape, len(functions), len(x), exponents.shape[1]
        sizes = _sizes(z, functions)
        tile = _GRADIENT if num_rows <= _MANY else _GRADIENT_MANY
        num_tiles = stride // tile.rows
        rows_of_part = _quotient(_quotient(num_rows, _MOST_PARTS), _WHOLE) * _WHOLE
        num_parts = _quotient(num_rows, rows_of_part)
        widths = [M * M, M * G, S * M, 4, G]
        x_grad = torch.empty_like(x)
        projection_grad, exponents_grad = torch.empty_like(exponents), torch.empty_like(exponents)
        of_tiles = z.new_empty((num_tiles, 4 + G))
        of_parts = z.new_empty((num_parts, sum(widths)))
        out = z.new_empty(sum(widths))
        with torch.cuda.device_of(x):
            draw_gradient_program[(num_tiles,)](
                grad,
                x,
                z,
                inverse,
                functions,
                lengthscale,
                scale,
                weight,
                noise,
                exponents,
                projection,
                left,
                x_grad,
                projection_grad,
                exponents_grad,
                of_tiles,
                num_rows,
                num_rows,
                stride,
                **sizes,
                FLOOR=MIN_VARIANCE,
                LINEAR=weight is not None,
                ROWS=tile.rows,
                CHUNK=tile.chunk,
                num_warps=tile.num_warps,
                num_stages=tile.num_stages,
            )
            block = min(_PART_BLOCK, sizes["POINTS"])
            num_blocks = sizes["POINTS"] // block + _quotient(sizes["DIMS"], block) + 2
            products_program[(num_parts, num_blocks)](
                grad,
                x,
                z,
                lengthscale,
                scale,
                constant,
                exponents,
                projection,
                projection_grad,
                exponents_grad,
                of_tiles,
                of_parts,
                num_rows,
                rows_of_part,
                num_rows,
                stride,
                **sizes,
                ROWS=_PART_ROWS,
                TILE=tile.rows,
                TILES=_PART_ROWS,
                SHARES=_power_of_two(4 + G),
                BLOCK=block,
                num_warps=8,
                num_stages=2,
            )
            sums_program[(_quotient(len(out), _SUMMED_COLUMNS),)](
                of_parts,
                out,
                num_parts,
                WIDTH=len(out),
                ROWS=_SUMMED_ROWS,
                COLUMNS=_SUMMED_COLUMNS,
                num_warps=4,
            )
        of_inverse, of_z, of_functions, of_scalars, of_weight = out.split(widths)
        of_lengthscale, of_scale, of_constant, of_bias = of_scalars.unbind()
        return (
            x_grad,
            of_z.view(M, G),
            of_inverse.view(M, M),
            of_functions.view(S, M),
            of_lengthscale,
            of_scale,
            of_constant,
            None,
            None if weight is None else of_weight,
            None if weight is None else of_bias,
            None,
        )


def _sizes(z: Float[Tensor, "M G"], functions: Float[Tensor, "S M"]) -> dict[str, Any]:
    """Give what is known when a kernel is compiled: sizes, and those of tiles that hold them."""
    (num_inducing, dim), num_samples = z.shape, len(functions)
    return {
        "M": num_inducing,
        "G": dim,
        "S": num_samples,
        "POINTS": _power_of_two(num_inducing),
        "DIMS": _power_of_two(dim),
        "SAMPLES": _power_of_two(num_samples),
        "PRECISION": _PRECISION,
    }


def _quotient(number: int, size: int) -> int:
    """Round the quotient up.

    Example:
        >>> _quotient(5, 4)
        2
    """
    return -(-number // size)


def _power_of_two(number: int) -> int:
    """Round up to a power of two that the tensor cores take.

    Example:
        >>> _power_of_two(5), _power_of_two(80)
        (16, 128)
    """
    return max(16, 1 << (number - 1).bit_length())
