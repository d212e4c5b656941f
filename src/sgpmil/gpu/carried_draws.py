r"""Draws of f at inputs, carried there from draws of the inducing values.

With $B = P K_{ZX}$, whitened inducing values $v_s$, prior variances $p$ and the prior mean $\mu$,

$$ f_{si} = \mu(x_i) + B_i^\top v_s + r_i^{1/2} \epsilon_{si}, \qquad
   r_i = \max(p_i - \lVert B_i \rVert^2,\, r_{\min}). $$

The default kernel is a scaled RBF with a constant. With points less the mean inducing point and
$D_{mi} = \tfrac12 \lVert z_m - x_i \rVert^2 / \ell^2$,

$$ E = e^{-D}, \qquad K_{ZX} = sE + c, \qquad p_i = s + c + j. $$

Backwards, with $h_i = r_i^{-1/2} \sum_s \bar f_{si} \epsilon_{si}$ where $r_i > r_{\min}$, else 0,

$$ \bar B = V^\top \bar f - B \circ h, \qquad \bar K = P^\top \bar B, \qquad
   W = s E \circ \bar K, \qquad
   \bar x = (W^\top z - (W^\top 1) \circ x) / \ell^2 + w \textstyle\sum_s \bar f_s, $$

$$ \bar P = \bar B K^\top, \qquad \bar V = \bar f B^\top, \qquad
   \bar z = (W x - (W 1) \circ z) / \ell^2, \qquad
   \bar \ell = 2 \textstyle\sum W \circ D / \ell, $$

$$ \bar s = \textstyle\sum E \circ \bar K + \tfrac12 \sum h, \qquad
   \bar c = \textstyle\sum \bar K + \tfrac12 \sum h. $$

Both directions are written by hand. In torch that takes a third of the passes over the M×T matrix
that GPyTorch and autograd take, and does not ask the device whether z and x are equal. On a GPU one
Triton program computes all of it forwards, with a linear mean $\mu(x) = w^\top x + b$, and three
backwards. Nothing waits for the GPU.
"""

from __future__ import annotations  # Triton is imported at the first launch

from typing import TYPE_CHECKING, Any, NamedTuple, no_type_check

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from sgpmil.gpu.programs import ceil_div, power_of_two, program, runs_triton
from sgpmil.shapes import Float

if TYPE_CHECKING:
    import triton.language as tl

MIN_VARIANCE = 1e-6
"""Floor of a variance before its square root, whose slope at 0 is infinite."""
_PRECISION = "tf32x3"
"""Each product is three on the tensor cores, of numbers split in two: near single precision."""
_MOST_POINTS, _MOST_DIMS, _MOST_SAMPLES = 128, 128, 64
_LEAST = 16
"""Smallest size of a product on the tensor cores."""


class _Tile(NamedTuple):
    """Tile of a program.

    Args:
        rows: Inputs of a program.
        chunk: Inducing points that it takes at a time.
        num_warps: Warps of a program.
        num_stages: Stages of the loop over inducing points; with more than one it loads ahead.
    """

    rows: int
    chunk: int
    num_warps: int
    num_stages: int

    def constants(self, *, is_linear: bool) -> dict[str, Any]:
        """Return what a program for this tile is compiled with."""
        return {
            "FLOOR": MIN_VARIANCE,
            "LINEAR": is_linear,
            "ROWS": self.rows,
            "CHUNK": self.chunk,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


# As many inputs as registers hold. Small tiles spread few inputs over all multiprocessors; for many
# inputs, large tiles read the inducing points less often.
_DRAW, _DRAW_MANY = _Tile(16, 16, 4, 3), _Tile(64, 16, 4, 1)
_GRADIENT, _GRADIENT_MANY = _Tile(16, 16, 4, 3), _Tile(32, 32, 4, 1)
_MANY = 132 * 48
"""Number of inputs that small tiles spread over all multiprocessors of a large GPU at once."""
_WHOLE = 64
"""Tensors that are kept have a multiple of so many columns: whole tiles, and whole steps of the
products. Columns beyond the last input hold finite numbers, whose gradients are zero."""
_MOST_PARTS = 128
_PART_ROWS, _PART_BLOCK = 32, 64
_SUMMED_ROWS, _SUMMED_COLUMNS = 64, 32


def carried_rbf_draw(
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
    r"""Draw f at inputs under the scaled RBF kernel with a constant.

    Args:
        x: Inputs, which may be in half precision.
        z: Inducing points.
        inverse: $P$, the inverse Cholesky factor of $K_{ZZ}$.
        functions: Draws $v_s$ of the whitened inducing values.
        lengthscale: $\ell$.
        scale: $s$.
        constant: $c$.
        jitter: $j$, which is added to the prior variance; without gradient.
        mean_weight: $w$; None (with `mean_bias`) leaves out the mean.
        mean_bias: $b$.
        noise: $\epsilon$, without gradient.
    """
    if z.dtype == torch.float32 and runs_triton(x) and _fits(len(z), x.shape[1], len(functions)):
        kernel = lengthscale, scale, constant
        mean = mean_weight, mean_bias
        return CarriedRBFDraw.apply(x, z, inverse, functions, *kernel, jitter, *mean, noise)
    x = x.to(z.dtype)
    variance = (scale + constant).expand(x.shape[0]) + jitter
    Kzx = rbf_covariance(z, x, lengthscale, scale, constant)
    drawn = carried_draw(Kzx, inverse, functions, variance, noise)
    if mean_weight is None or mean_bias is None:
        return drawn
    # As GPyTorch's linear mean computes it.
    return (x @ mean_weight.unsqueeze(1)).squeeze(1) + mean_bias + drawn


def carried_draw(
    covariance: Float[Tensor, "M T"],
    inverse: Float[Tensor, "M M"],
    values: Float[Tensor, "S M"],
    variance: Float[Tensor, " T"],
    noise: Float[Tensor, "S T"],
) -> Float[Tensor, "S T"]:
    r"""Draw f less its prior mean at inputs, under any kernel.

    Args:
        covariance: $K_{ZX}$.
        inverse: $P$, the inverse Cholesky factor of $K_{ZZ}$.
        values: Draws $v_s$ of the whitened inducing values.
        variance: $p$, the prior variances.
        noise: $\epsilon$, without gradient.
    """
    return _CarriedDraw.apply(covariance, inverse, values, variance, noise)


class _CarriedDraw(Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        covariance, inverse, values, variance, noise = given
        B = inverse @ covariance
        left = (variance - torch.linalg.vecdot(B, B, dim=0)).clamp_(min=MIN_VARIANCE)
        ctx.save_for_backward(covariance, inverse, values, noise, B, left)
        return torch.addcmul(values @ B, noise, left.sqrt())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        covariance, inverse, values, noise, B, left = ctx.saved_tensors
        # The gradient of √r; where r is at its floor it is constant.
        d_root = torch.linalg.vecdot(gradient, noise, dim=0)
        d_left = d_root * left.rsqrt() * (left > MIN_VARIANCE)  # twice the gradient of r
        d_B = (values.T @ gradient).addcmul_(B, d_left, value=-1)
        return inverse.T @ d_B, d_B @ covariance.T, gradient @ B.T, d_left.mul_(0.5), None


def rbf_covariance(
    z: Float[Tensor, "M G"],
    x: Float[Tensor, "T G"],
    lengthscale: Float[Tensor, ""],
    scale: Float[Tensor, ""],
    constant: Float[Tensor, ""],
) -> Float[Tensor, "M T"]:
    """Compute the covariance of every pair of points."""
    return _RBFCovariance.apply(z, x, lengthscale, scale, constant)


class _RBFCovariance(Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        z, x, lengthscale, scale, constant = given
        # Distances do not change; numbers that are small before they are squared are more exact.
        centre = z.mean(0)
        z_scaled, x_scaled = (z - centre) / lengthscale, (x - centre) / lengthscale
        z_half, x_half = _half_square(z_scaled), _half_square(x_scaled)
        exponent = torch.addmm(z_half.unsqueeze(1), z_scaled, x_scaled.T, beta=-1)
        E = exponent.sub_(x_half).exp_()
        ctx.save_for_backward(z_scaled, x_scaled, lengthscale, scale, E)
        return torch.addcmul(constant, E, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        z, x, lengthscale, scale, E = ctx.saved_tensors
        W = gradient * E
        d_scale = W.sum()
        W.mul_(scale)
        d_x = torch.addcmul(W.T @ z, W.sum(0).unsqueeze(1), x, value=-1)
        d_z = torch.addcmul(W @ x, W.sum(1).unsqueeze(1), z, value=-1)
        # The scaled points shrink as the lengthscale grows.
        along = torch.dot(d_x.flatten(), x.flatten()) + torch.dot(d_z.flatten(), z.flatten())
        return (
            d_z.div_(lengthscale),
            d_x.div_(lengthscale),
            -along / lengthscale,
            d_scale,
            gradient.sum(),
        )


def _half_square(points: Float[Tensor, "T G"]) -> Float[Tensor, " T"]:
    return torch.linalg.vecdot(points, points).mul_(0.5)


def _fits(num_inducing: int, dim: int, num_samples: int) -> bool:
    """Return whether the programs hold a problem of that size.

    Example:
        >>> _fits(80, 64, 30), _fits(200, 64, 30)
        (True, False)
    """
    return num_inducing <= _MOST_POINTS and dim <= _MOST_DIMS and num_samples <= _MOST_SAMPLES


class CarriedRBFDraw(Function):
    """`carried_rbf_draw` in Triton programs; gradients reach all but the jitter and the noise."""

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
        """Draw in single precision; see `carried_rbf_draw`."""
        x, z, inverse = x.contiguous(), z.contiguous(), inverse.contiguous()
        functions, noise = functions.contiguous(), noise.contiguous()
        weight = None if mean_weight is None else mean_weight.contiguous()
        num_rows = len(x)
        stride = ceil_div(num_rows, _WHOLE) * _WHOLE
        out = torch.empty_like(noise)
        exponents, projection = z.new_empty((2, len(z), stride))
        left = z.new_empty(stride)
        given = x, z, inverse, functions, lengthscale, scale, constant
        kept = exponents, projection, left
        tile = _DRAW if num_rows <= _MANY else _DRAW_MANY
        with torch.cuda.device_of(x):
            draw_program[(stride // tile.rows,)](
                *given,
                weight,
                mean_bias,
                noise,
                out,
                *kept,
                jitter,
                num_rows,
                num_rows,
                stride,
                **_sizes(z, functions),
                **tile.constants(is_linear=weight is not None),
            )
        ctx.save_for_backward(*given, weight, noise, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "S T"]) -> tuple[Tensor | None, ...]:
        """Compute the gradients; those of the parameters are parts of one tensor."""
        x, z, inverse, functions, lengthscale, scale, constant, *others = ctx.saved_tensors
        weight, noise, exponents, projection, left = others
        grad = grad.contiguous()
        (M, G), S, num_rows, stride = z.shape, len(functions), len(x), exponents.shape[1]
        sizes = _sizes(z, functions)
        tile = _GRADIENT if num_rows <= _MANY else _GRADIENT_MANY
        num_tiles = stride // tile.rows
        rows_of_part = ceil_div(ceil_div(num_rows, _MOST_PARTS), _WHOLE) * _WHOLE
        num_parts = ceil_div(num_rows, rows_of_part)
        widths = [M * M, M * G, S * M, 4, G]
        x_grad = torch.empty_like(x)
        kept_grads = torch.empty_like(projection), torch.empty_like(exponents)
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
                *kept_grads,
                of_tiles,
                num_rows,
                num_rows,
                stride,
                **sizes,
                **tile.constants(is_linear=weight is not None),
            )
            block = min(_PART_BLOCK, sizes["POINTS"])
            num_blocks = sizes["POINTS"] // block + ceil_div(sizes["DIMS"], block) + 2
            products_program[(num_parts, num_blocks)](
                grad,
                x,
                z,
                lengthscale,
                scale,
                constant,
                exponents,
                projection,
                *kept_grads,
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
                SHARES=power_of_two(4 + G, _LEAST),
                BLOCK=block,
                num_warps=8,
                num_stages=2,
            )
            cut = {"WIDTH": len(out), "ROWS": _SUMMED_ROWS, "COLUMNS": _SUMMED_COLUMNS}
            num_blocks = ceil_div(len(out), _SUMMED_COLUMNS)
            sums_program[(num_blocks,)](of_parts, out, num_parts, **cut, num_warps=4)
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
    """Return the constants of the programs: sizes, and sizes of the tiles that hold them."""
    (num_inducing, dim), num_samples = z.shape, len(functions)
    return {
        "M": num_inducing,
        "G": dim,
        "S": num_samples,
        "POINTS": power_of_two(num_inducing, _LEAST),
        "DIMS": power_of_two(dim, _LEAST),
        "SAMPLES": power_of_two(num_samples, _LEAST),
        "PRECISION": _PRECISION,
    }


@program()
@no_type_check
def _centre(z, dims, M: tl.constexpr, G: tl.constexpr, POINTS: tl.constexpr):
    """Compute the mean inducing point: numbers that are small when squared are more exact."""
    points = tl.arange(0, POINTS)
    inside = (points < M)[:, None] & (dims < G)[None, :]
    return tl.sum(tl.load(z + points[:, None] * G + dims[None, :], mask=inside, other=0.0), 0) / M


@program()
@no_type_check
def _centred(values, rows, dims, centre, within, G: tl.constexpr):
    """Load points less the centre, with zeros outside."""
    inside = within[:, None] & (dims < G)[None, :]
    loaded = tl.load(values + rows[:, None] * G + dims[None, :], mask=inside, other=0.0)
    return tl.where(inside, loaded.to(tl.float32) - centre[None, :], 0.0)


@program(do_not_specialize=["num_rows"])
@no_type_check
def draw_program(
    x,
    z,
    inverse,
    functions,
    lengthscale,
    scale,
    constant,
    weight,
    bias,
    noise,
    out,
    exponents,
    projection,
    left,
    jitter,
    num_rows,
    out_stride,
    stride,
    M: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    FLOOR: tl.constexpr,
    LINEAR: tl.constexpr,
    ROWS: tl.constexpr,
    POINTS: tl.constexpr,
    DIMS: tl.constexpr,
    SAMPLES: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Draw at a tile of inputs, and keep the exponents, the projection and the variance left."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    within = rows < num_rows
    points, dims = tl.arange(0, POINTS), tl.arange(0, DIMS)
    s, c, ell = tl.load(scale), tl.load(constant), tl.load(lengthscale)
    centre = _centre(z, dims, M, G, POINTS)
    centred = _centred(x, rows, dims, centre, within, G)
    half = 0.5 * tl.sum(centred * centred, 1)
    B = tl.zeros([ROWS, POINTS], tl.float32)
    for first in range(0, M, CHUNK):
        chunk = first + tl.arange(0, CHUNK)
        some = _centred(z, chunk, dims, centre, chunk < M, G)
        inner = tl.dot(centred, tl.trans(some), input_precision=PRECISION)
        some_half = 0.5 * tl.sum(some * some, 1)
        exponent = (half[:, None] + some_half[None, :] - inner) / (ell * ell)
        place = exponents + chunk.to(tl.int64)[None, :] * stride + rows[:, None]
        tl.store(place, exponent, mask=(chunk < M)[None, :])
        K = tl.where((chunk < M)[None, :], s * tl.exp(-exponent) + c, 0.0)
        P = tl.load(
            inverse + points[None, :] * M + chunk[:, None],
            mask=(points < M)[None, :] & (chunk < M)[:, None],
            other=0.0,
        )
        B = tl.dot(K, P, B, input_precision=PRECISION)
    place = projection + points.to(tl.int64)[None, :] * stride + rows[:, None]
    tl.store(place, B, mask=(points < M)[None, :])
    r = tl.maximum(s + c + jitter - tl.sum(B * B, 1), FLOOR)
    tl.store(left + rows, r)
    samples = tl.arange(0, SAMPLES)
    V = tl.load(
        functions + samples[None, :] * M + points[:, None],
        mask=(samples < S)[None, :] & (points < M)[:, None],
        other=0.0,
    )
    drawn = tl.dot(B, V, input_precision=PRECISION)
    inside = within[:, None] & (samples < S)[None, :]
    place = samples.to(tl.int64)[None, :] * out_stride + rows[:, None]
    drawn += tl.sqrt_rn(r)[:, None] * tl.load(noise + place, mask=inside, other=0.0)
    if LINEAR:
        w = tl.load(weight + dims, mask=dims < G, other=0.0)
        mean = tl.sum((centred + centre[None, :]) * w[None, :], 1) + tl.load(bias)
        drawn += mean[:, None]
    tl.store(out + place, drawn, mask=inside)


@program(do_not_specialize=["num_rows"])
@no_type_check
def draw_gradient_program(
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
    partials,
    num_rows,
    grad_stride,
    stride,
    M: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    FLOOR: tl.constexpr,
    LINEAR: tl.constexpr,
    ROWS: tl.constexpr,
    POINTS: tl.constexpr,
    DIMS: tl.constexpr,
    SAMPLES: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute the gradients at a tile of inputs.

    Those of the inputs, of the projection and of the negated exponents are complete. `partials`
    takes the tile's share in those of the lengthscale, scale, constant, bias and weight.
    """
    tile = tl.program_id(0).to(tl.int64)
    rows = tile * ROWS + tl.arange(0, ROWS)
    within = rows < num_rows
    points, dims, samples = tl.arange(0, POINTS), tl.arange(0, DIMS), tl.arange(0, SAMPLES)
    s, ell = tl.load(scale), tl.load(lengthscale)
    inside = within[:, None] & (samples < S)[None, :]
    place = samples.to(tl.int64)[None, :] * grad_stride + rows[:, None]
    df = tl.load(grad + place, mask=inside, other=0.0)
    d_root = tl.sum(df * tl.load(noise + place, mask=inside, other=0.0), 1)
    d_mean = tl.sum(df, 1)
    r = tl.load(left + rows)
    # Twice the gradient of r, which is constant at its floor.
    d_left = tl.where(r > FLOOR, d_root / tl.sqrt_rn(r), 0.0)
    V = tl.load(
        functions + samples[:, None] * M + points[None, :],
        mask=(samples < S)[:, None] & (points < M)[None, :],
        other=0.0,
    )
    known = (points < M)[None, :]
    place = points.to(tl.int64)[None, :] * stride + rows[:, None]
    B = tl.load(projection + place, mask=known, other=0.0)
    dB = tl.dot(df, V, input_precision=PRECISION) - B * d_left[:, None]
    tl.store(projection_grad + place, dB, mask=known)
    centre = _centre(z, dims, M, G, POINTS)
    dx = tl.zeros([ROWS, DIMS], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    along = tl.zeros([ROWS], tl.float32)
    d_scale = tl.zeros([ROWS], tl.float32)
    d_constant = tl.zeros([ROWS], tl.float32)
    for first in range(0, M, CHUNK):
        chunk = first + tl.arange(0, CHUNK)
        P = tl.load(
            inverse + points[:, None] * M + chunk[None, :],
            mask=(points < M)[:, None] & (chunk < M)[None, :],
            other=0.0,
        )
        dK = tl.dot(dB, P, input_precision=PRECISION)
        some_known = (chunk < M)[None, :]
        of_chunk = chunk.to(tl.int64)[None, :] * stride + rows[:, None]
        exponent = tl.load(exponents + of_chunk, mask=some_known, other=0.0)
        by_scale = dK * tl.exp(-exponent)
        W = s * by_scale
        tl.store(exponents_grad + of_chunk, W, mask=some_known)
        some = _centred(z, chunk, dims, centre, chunk < M, G)
        dx = tl.dot(W, some, dx, input_precision=PRECISION)
        total += tl.sum(W, 1)
        along += tl.sum(W * exponent, 1)
        d_scale += tl.sum(by_scale, 1)
        d_constant += tl.sum(dK, 1)
    centred = _centred(x, rows, dims, centre, within, G)
    dx = (dx - total[:, None] * centred) / (ell * ell)
    partials += tile * (G + 4)
    if LINEAR:
        w = tl.load(weight + dims, mask=dims < G, other=0.0)
        dx += d_mean[:, None] * w[None, :]
        d_weight = tl.sum(d_mean[:, None] * (centred + centre[None, :]), 0)
        tl.store(partials + 4 + dims, d_weight, mask=dims < G)
    else:
        tl.store(partials + 4 + dims, tl.zeros([DIMS], tl.float32), mask=dims < G)
    place = x_grad + rows[:, None] * G + dims[None, :]
    tl.store(place, dx.to(x_grad.dtype.element_ty), mask=within[:, None] & (dims < G)[None, :])
    d_variance = 0.5 * tl.sum(d_left)
    tl.store(partials, 2.0 * tl.sum(along) / ell)
    tl.store(partials + 1, tl.sum(d_scale) + d_variance)
    tl.store(partials + 2, tl.sum(d_constant) + d_variance)
    tl.store(partials + 3, tl.sum(d_mean))


@program(do_not_specialize=["num_rows", "rows_of_part"])
@no_type_check
def products_program(
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
    partials,
    num_rows,
    rows_of_part,
    grad_stride,
    stride,
    M: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    ROWS: tl.constexpr,
    POINTS: tl.constexpr,
    DIMS: tl.constexpr,
    SAMPLES: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum over a part of the inputs, of whole tiles.

    `partials` takes the gradients of the inverse factor, the inducing points and the functions,
    which are products, and the sums of the tiles' shares. The grid counts parts, and blocks of
    columns: those of the inverse factor, those of the inducing points, one each for the others.
    """
    part = tl.program_id(0).to(tl.int64)
    start = part * rows_of_part
    end = tl.minimum(start + rows_of_part, num_rows)
    block = tl.program_id(1)
    points = tl.arange(0, POINTS)
    out = partials + part * (M * M + M * G + S * M + G + 4)
    if block < POINTS // BLOCK:
        s, c = tl.load(scale), tl.load(constant)
        columns = block * BLOCK + tl.arange(0, BLOCK)
        dP = tl.zeros([POINTS, BLOCK], tl.float32)
        for first in range(start, end, ROWS):
            rows = first + tl.arange(0, ROWS)
            dB = _of_points(projection_grad, points, rows, stride, M)
            K = s * tl.exp(-_of_points(exponents, columns, rows, stride, M)) + c
            dP = tl.dot(dB, tl.trans(K), dP, input_precision=PRECISION)
        _store(out, dP, points, columns, M, M)
    elif block < POINTS // BLOCK + tl.cdiv(DIMS, BLOCK):
        dims = (block - POINTS // BLOCK) * BLOCK + tl.arange(0, BLOCK)
        ell = tl.load(lengthscale)
        centre = _centre(z, dims, M, G, POINTS)
        total = tl.zeros([POINTS], tl.float32)
        dz = tl.zeros([POINTS, BLOCK], tl.float32)
        for first in range(start, end, ROWS):
            rows = first + tl.arange(0, ROWS)
            W = _of_points(exponents_grad, points, rows, stride, M)
            centred = _centred(x, rows, dims, centre, rows < num_rows, G)
            dz = tl.dot(W, centred, dz, input_precision=PRECISION)
            total += tl.sum(W, 1)
        dz = (dz - total[:, None] * _centred(z, points, dims, centre, points < M, G)) / (ell * ell)
        _store(out + M * M, dz, points, dims, M, G)
    elif block == POINTS // BLOCK + tl.cdiv(DIMS, BLOCK):
        samples = tl.arange(0, SAMPLES)
        dV = tl.zeros([SAMPLES, POINTS], tl.float32)
        for first in range(start, end, ROWS):
            rows = first + tl.arange(0, ROWS)
            inside = (samples < S)[:, None] & (rows < num_rows)[None, :]
            place = samples.to(tl.int64)[:, None] * grad_stride + rows[None, :]
            df = tl.load(grad + place, mask=inside, other=0.0)
            B = _of_points(projection, points, rows, stride, M)
            dV = tl.dot(df, tl.trans(B), dV, input_precision=PRECISION)
        _store(out + M * M + M * G, dV, samples, points, S, M)
    else:
        columns = tl.arange(0, SHARES)
        shares = _sum_rows(of_tiles, start // TILE, tl.cdiv(end, TILE), columns, G + 4, TILES)
        tl.store(out + M * M + M * G + S * M + columns, shares, mask=columns < G + 4)


@program()
@no_type_check
def _of_points(values, points, rows, stride, M: tl.constexpr):
    """Load kept values of some inducing points and inputs."""
    place = points.to(tl.int64)[:, None] * stride + rows[None, :]
    return tl.load(values + place, mask=(points < M)[:, None], other=0.0)


@program()
@no_type_check
def _store(out, values, rows, columns, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Store a block of a matrix."""
    inside = (rows < HEIGHT)[:, None] & (columns < WIDTH)[None, :]
    tl.store(out + rows[:, None] * WIDTH + columns[None, :], values, mask=inside)


@program(do_not_specialize=["num_parts"])
@no_type_check
def sums_program(
    partials, out, num_parts, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Sum over the parts, a block of columns at a time."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = _sum_rows(partials, 0, num_parts, columns, WIDTH, ROWS)
    tl.store(out + columns, sums, mask=columns < WIDTH)


@program()
@no_type_check
def _sum_rows(values, start, end, columns, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Sum some columns of a matrix over some of its rows."""
    sums = tl.zeros([ROWS, columns.shape[0]], tl.float32)
    for first in range(start, end, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < end)[:, None] & (columns < WIDTH)[None, :]
        place = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        sums += tl.load(values + place, mask=inside, other=0.0)
    return tl.sum(sums, 0)
