"""Random fields and textures that depend on the place alone.

A pixel must not depend on the window that is drawn. So randomness is not a stream of numbers but a
function of the place: a hash of a lattice cell's indices, a smooth field between such cells, or a
periodic texture that starts at the slide's corner.
"""

from functools import lru_cache

import numpy as np

from sgpmil.phantoms.filling import Window
from sgpmil.shapes import Float, Int, UInt8

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SPLINE_SD = np.float32(np.sqrt(1 / 3) * 0.4794)
"""Standard deviation of a field of uniform values after the cubic B-spline in two dimensions."""


def draw(
    seed: int, channel: int, i: Int[np.ndarray, "..."], j: Int[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Draw a number in [0, 1) for each lattice cell, always the same for the same cell.

    Example:
        >>> a = draw(0, 0, np.arange(4), np.zeros(4, int))
        >>> bool((a[2:] == draw(0, 0, np.arange(2, 4), np.zeros(2, int))).all())
        True
    """
    start = (seed * 0x5851F42D4C957F2D + channel * 0x14057B7EF767814F) % 2**64
    state = np.full(np.broadcast_shapes(i.shape, j.shape), start, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for index in (i, j):
            state = (state ^ index.astype(np.int64).astype(np.uint64)) * _MIX[0]
            state = (state ^ (state >> np.uint64(30))) * _MIX[1]
            state = (state ^ (state >> np.uint64(27))) * _MIX[2]
            state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def smooth_field(
    seed: int,
    channel: int,
    spacing: float,
    x: Float[np.ndarray, " w"],
    y: Float[np.ndarray, " h"],
) -> Float[np.ndarray, "h w"]:
    """Return a smooth random field of mean 0 and standard deviation 1 on a grid of places.

    A cubic B-spline through uniform numbers on a lattice.

    Args:
        seed: Seed of the slide.
        channel: Index of the field.
        spacing: Side of a lattice cell.
        x: Columns of the grid, in the units of `spacing`.
        y: Rows of the grid.
    """
    rows, row_weights = _spline(y / spacing)
    columns, column_weights = _spline(x / spacing)
    values = 2 * draw(seed, channel, columns[None, :], rows[:, None]) - 1
    return (row_weights @ values.astype(np.float32) @ column_weights.T) / _SPLINE_SD


def _spline(at: Float[np.ndarray, " K"]) -> tuple[Int[np.ndarray, " L"], Float[np.ndarray, "K L"]]:
    """Return the relevant lattice indices, and the weight of each at each place."""
    base = np.floor(at).astype(np.int64)
    first = int(base.min()) - 1
    indices = np.arange(first, int(base.max()) + 3)
    distance = np.abs(at[:, None] - indices[None, :])
    inner = 2 / 3 - distance**2 + distance**3 / 2
    outer = np.clip(2 - distance, 0, None) ** 3 / 6
    return indices, np.where(distance < 1, inner, outer).astype(np.float32)


PERIOD = 1024
"""Side of a texture in pixels, and of the largest window."""
SPREAD = 42.0
"""Standard deviation of a texture around its mean of 128."""


@lru_cache(maxsize=4)
def fibres(mpp: float) -> UInt8[np.ndarray, "P P"]:
    """Draw collagen: fibres along x, a few microns thick, in bundles."""
    thin = _filtered(1, 14.0 / mpp, 0.7 / mpp)
    thick = _filtered(2, 30.0 / mpp, 2.2 / mpp)
    cloudy = _filtered(6, 18.0 / mpp, 12.0 / mpp)
    return _bytes(thin + 0.9 * thick + 0.5 * cloudy)


@lru_cache(maxsize=4)
def grain(mpp: float) -> UInt8[np.ndarray, "P P"]:
    """Draw cytoplasm: cloudy, with fine grain."""
    return _bytes(_filtered(3, 0.8 / mpp, 0.8 / mpp) + 0.9 * _filtered(4, 3.5 / mpp, 3.5 / mpp))


def grain_in(window: Window, mpp: float, shift: tuple[int, int]) -> Float[np.ndarray, "h w"]:
    """Cut a window out of the grain, in standard deviations.

    Args:
        window: The window; not larger than the period.
        mpp: Microns per pixel.
        shift: Position of the slide's corner in the texture.
    """
    return (_cut(_tiled_grain(mpp), window, shift).astype(np.float32) - 128) * (1 / SPREAD)


def noise_in(window: Window, shift: tuple[int, int]) -> np.ndarray:
    """Cut a window out of the noise of a sensor, a grey level or two strong (int8, three colours).

    Args:
        window: The window; not larger than the period.
        shift: Position of the slide's corner in the texture.
    """
    return _cut(_tiled_noise(), window, shift)


@lru_cache(maxsize=4)
def _tiled_grain(mpp: float) -> UInt8[np.ndarray, "Q Q"]:
    return np.tile(grain(mpp), (2, 2))


@lru_cache(maxsize=1)
def _tiled_noise() -> np.ndarray:
    noise = np.random.default_rng(5).normal(0, 1.6, size=(PERIOD, PERIOD, 3))
    return np.tile(np.rint(noise).astype(np.int8), (2, 2, 1))


def _cut(tiled: np.ndarray, window: Window, shift: tuple[int, int]) -> np.ndarray:
    # The texture is held four times over, so that any window is a plain slice of it.
    left, top = (window.x + shift[0]) % PERIOD, (window.y + shift[1]) % PERIOD
    return tiled[top : top + window.height, left : left + window.width]


def _filtered(seed: int, along: float, across: float) -> Float[np.ndarray, "P P"]:
    """Blur noise by a Gaussian, around the edges, to standard deviation 1."""
    noise = np.random.default_rng(seed).normal(size=(PERIOD, PERIOD))
    row, column = np.fft.fftfreq(PERIOD)[:, None], np.fft.rfftfreq(PERIOD)[None, :]
    keep = np.exp(-2 * np.pi**2 * ((across * row) ** 2 + (along * column) ** 2))
    keep[0, 0] = 0.0
    blurred = np.fft.irfft2(np.fft.rfft2(noise) * keep, s=(PERIOD, PERIOD))
    return blurred / blurred.std()


def _bytes(texture: Float[np.ndarray, "P P"]) -> UInt8[np.ndarray, "P P"]:
    return np.rint(128 + SPREAD * texture / texture.std()).clip(0, 255).astype(np.uint8)
