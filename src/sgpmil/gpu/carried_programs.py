"""What the GPU runs to carry draws to inputs and back; Triton compiles it at the first launch.

Only to be imported where `sgpmil.gpu.triton_package.available`. No program writes what another
writes, and sums over programs are taken in a fixed order, so that the same input gives the same
result. A tile has the inputs as its rows; what is kept between programs has them as its columns,
`stride` of them, which is a multiple of every tile: there the columns beyond the last input hold
finite numbers, whose gradients are zero.
"""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["draw_gradient_program", "draw_program", "products_program", "sums_program"]


@triton.jit
@no_type_check
def _centre(
    z: tl.tensor, dims: tl.tensor, M: tl.constexpr, G: tl.constexpr, POINTS: tl.constexpr
) -> tl.tensor:
    """Give the mean inducing point: what is small before it is squared is more exact."""
    points = tl.arange(0, POINTS)
    inside = (points < M)[:, None] & (dims < G)[None, :]
    return tl.sum(tl.load(z + points[:, None] * G + dims[None, :], mask=inside, other=0.0), 0) / M


@triton.jit
@no_type_check
def _centred(
    values: tl.tensor,
    rows: tl.tensor,
    dims: tl.tensor,
    centre: tl.tensor,
    within: tl.tensor,
    G: tl.constexpr,
) -> tl.tensor:
    """Load points less the centre; what is no point, and no input, is zero."""
    inside = within[:, None] & (dims < G)[None, :]
    loaded = tl.load(values + rows[:, None] * G + dims[None, :], mask=inside, other=0.0)
    return tl.where(inside, loaded.to(tl.float32) - centre[None, :], 0.0)


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def draw_program(
    x: tl.tensor,
    z: tl.tensor,
    inverse: tl.tensor,
    functions: tl.tensor,
    lengthscale: tl.tensor,
    scale: tl.tensor,
    constant: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    noise: tl.tensor,
    out: tl.tensor,
    exponents: tl.tensor,
    projection: tl.tensor,
    left: tl.tensor,
    jitter: tl.tensor,
    num_rows: tl.tensor,
    out_stride: tl.tensor,
    stride: tl.tensor,
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
) -> None:
    """Draw at a tile of inputs; keeps the exponents, the projection and the variance left."""
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


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def draw_gradient_program(
    grad: tl.tensor,
    x: tl.tensor,
    z: tl.tensor,
    inverse: tl.tensor,
    functions: tl.tensor,
    lengthscale: tl.tensor,
    scale: tl.tensor,
    weight: tl.tensor,
    noise: tl.tensor,
    exponents: tl.tensor,
    projection: tl.tensor,
    left: tl.tensor,
    x_grad: tl.tensor,
    projection_grad: tl.tensor,
    exponents_grad: tl.tensor,
    partials: tl.tensor,
    num_rows: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
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
) -> None:
    """Give the gradients at a tile of inputs.

    Those of the inputs, of the projection and of the negated exponents are whole; `partials` takes
    the tile's share in those of the lengthscale, scale, constant, bias and weight, side by side.
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
    # Twice the gradient of r; at its floor it does not move.
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


@triton.jit(do_not_specialize=["num_rows", "rows_of_part"])
@no_type_check
def products_program(
    grad: tl.tensor,
    x: tl.tensor,
    z: tl.tensor,
    lengthscale: tl.tensor,
    scale: tl.tensor,
    constant: tl.tensor,
    exponents: tl.tensor,
    projection: tl.tensor,
    projection_grad: tl.tensor,
    exponents_grad: tl.tensor,
    of_tiles: tl.tensor,
    partials: tl.tensor,
    num_rows: tl.tensor,
    rows_of_part: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
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
) -> None:
    """Sum over a part of the inputs, of whole tiles.

    Side by side in `partials` are the gradients of the inverse factor, the inducing points and the
    functions, which are products, and the sums of the tiles' shares. The grid counts parts, and
    blocks of columns: the inverse factor's, the inducing points', one each for the others.
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


@triton.jit
@no_type_check
def _of_points(
    values: tl.tensor, points: tl.tensor, rows: tl.tensor, stride: tl.tensor, M: tl.constexpr
) -> tl.tensor:
    """Load what is kept of some inducing points and inputs."""
    place = points.to(tl.int64)[:, None] * stride + rows[None, :]
    return tl.load(values + place, mask=(points < M)[:, None], other=0.0)


@triton.jit
@no_type_check
def _store(
    out: tl.tensor,
    values: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Store a block of a matrix."""
    inside = (rows < HEIGHT)[:, None] & (columns < WIDTH)[None, :]
    tl.store(out + rows[:, None] * WIDTH + columns[None, :], values, mask=inside)


@triton.jit(do_not_specialize=["num_parts"])
@no_type_check
def sums_program(
    partials: tl.tensor,
    out: tl.tensor,
    num_parts: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Sum over the parts, a block of columns at a time."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = _sum_rows(partials, 0, num_parts, columns, WIDTH, ROWS)
    tl.store(out + columns, sums, mask=columns < WIDTH)


@triton.jit
@no_type_check
def _sum_rows(
    values: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    columns: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """Sum some columns of a matrix over some of its rows."""
    sums = tl.zeros([ROWS, columns.shape[0]], tl.float32)
    for first in range(start, end, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < end)[:, None] & (columns < WIDTH)[None, :]
        place = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        sums += tl.load(values + place, mask=inside, other=0.0)
    return tl.sum(sums, 0)
