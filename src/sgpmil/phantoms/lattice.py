r"""Chance that depends on the place alone.

What is random in a picture must not depend on the window that is drawn. So it is no stream of
numbers but a function of the place: a hash of a lattice cell's indices, a smooth field between
such cells, or a texture that repeats itself and is laid out from the slide's corner.
"""

import numpy as np

from sgpmil.shapes import Float, Int

__all__ = ["draw", "smooth_field"]

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SPLINE_SD = np.float32(np.sqrt(1 / 3) * 0.4794)
"""Standard deviation of a field of uniform values after the cubic B-spline in two dimensions."""


def draw(
    seed: int, channel: int, i: Int[np.ndarray, "..."], j: Int[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Draw a number in [0, 1) for each lattice cell, always the same for the same cell.

    Args:
        seed: Seed of the slide.
        channel: Which of the numbers of a cell.
        i: Columns of the cells.
        j: Rows of the cells.

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
    """Give a smooth random field of mean 0 and standard deviation 1 on a grid of places.

    A cubic B-spline through uniform numbers on a lattice.

    Args:
        seed: Seed of the slide.
        channel: Which of the fields.
        spacing: Side of a lattice cell.
        x: Columns of the grid, in the units of `spacing`.
        y: Rows of the grid.
    """
    rows, row_weights = _spline(y / spacing)
    columns, column_weights = _spline(x / spacing)
    values = 2 * draw(seed, channel, columns[None, :], rows[:, None]) - 1
    return (row_weights @ values.astype(np.float32) @ column_weights.T) / _SPLINE_SD


def _spline(at: Float[np.ndarray, " K"]) -> tuple[Int[np.ndarray, " L"], Float[np.ndarray, "K L"]]:
    """Give the lattice indices that matter, and the weight of each at each place."""
    base = np.floor(at).astype(np.int64)
    first = int(base.min()) - 1
    indices = np.arange(first, int(base.max()) + 3)
    distance = np.abs(at[:, None] - indices[None, :])
    inner = 2 / 3 - distance**2 + distance**3 / 2
    outer = np.clip(2 - distance, 0, None) ** 3 / 6
    return indices, np.where(distance < 1, inner, outer).astype(np.float32)
