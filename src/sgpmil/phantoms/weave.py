"""The weave of a slide: slow changes over it, and the fibres that follow them."""

from dataclasses import dataclass

import numpy as np

from sgpmil.phantoms.filling import Window
from sgpmil.phantoms.textures import PERIOD, SPREAD, fibres, smooth_field
from sgpmil.shapes import Float, Int, UInt8

_STEP = 8
"""Smooth fields are computed at every eighth pixel, and interpolated between."""
_BEND = 75.0
"""Sideways bend of fibres, in microns per standard deviation."""


def _strand() -> Float[np.ndarray, "256"]:
    # Collagen is dense on one side of its range, and torn into white clefts on the other.
    value = (np.arange(256) - 128) / SPREAD
    torn = np.where(value < -1.0, 2.0 * (value + 1.0) - 1.0, value)
    return np.clip(torn, -2.2, 1.8).astype(np.float32)


STRAND = _strand()
"""Eosin that fibres add, by the value of their texture."""


@dataclass(frozen=True, slots=True, eq=False)
class Weave:
    """Smooth fields over a window, of standard deviation 1.

    Args:
        window: The window.
        mpp: Microns per pixel.
        turn: Direction of the slide's fibres before they are bent.
        along: Bends fibres along themselves.
        across: Bends fibres aside.
        tint: Dense and pink, or loose and bluish.
        cellular: Many cells or few.
        nests: Its zeros are the strands between a tumour's nests.
    """

    window: Window
    mpp: float
    turn: float
    along: Float[np.ndarray, "h w"]
    across: Float[np.ndarray, "h w"]
    tint: Float[np.ndarray, "h w"]
    cellular: Float[np.ndarray, "h w"]
    nests: Float[np.ndarray, "h w"]

    def fibres(self, inner: Window) -> UInt8[np.ndarray, "h2 w2"]:
        """Lay fibres along the bent grid."""
        import cv2

        cos, sin, bend = np.cos(self.turn), np.sin(self.turn), _BEND / self.mpp
        column = np.arange(inner.x, inner.x + inner.width, dtype=np.float64)
        row = np.arange(inner.y, inner.y + inner.height, dtype=np.float64)
        u = _sum(cos * column, sin * row) + bend * self.part(self.along, inner)
        v = _sum(-sin * column, cos * row) + bend * self.part(self.across, inner)
        texture = fibres(self.mpp)
        return cv2.remap(texture, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)

    def part(self, field: Float[np.ndarray, "h w"], inner: Window) -> Float[np.ndarray, "h2 w2"]:
        """Cut a part of the window out of a field."""
        top, left = inner.y - self.window.y, inner.x - self.window.x
        return field[top : top + inner.height, left : left + inner.width]

    def direction(
        self, column: Int[np.ndarray, " K"], row: Int[np.ndarray, " K"]
    ) -> Float[np.ndarray, " K"]:
        """Return the angle of the fibres at places of the window."""
        height, width = self.window.shape
        left, right = np.maximum(column - 4, 0), np.minimum(column + 4, width - 1)
        top, bottom = np.maximum(row - 4, 0), np.minimum(row + 4, height - 1)
        rise = self.across[row, right] - self.across[row, left]
        fall = self.across[bottom, column] - self.across[top, column]
        bend = _BEND / self.mpp
        # Fibres run at a right angle to the gradient of the bent grid's rows.
        dx = -np.sin(self.turn) + bend * rise / (right - left)
        dy = np.cos(self.turn) + bend * fall / (bottom - top)
        return np.arctan2(dy, dx) + np.pi / 2


def weave_in(window: Window, mpp: float, seed: int, turn: float) -> Weave:
    """Compute the weave of a window."""
    import cv2

    # On a lattice that is laid out from the slide's corner, and a cell larger than the window.
    first_x, first_y = window.x // _STEP - 1, window.y // _STEP - 1
    last_x = (window.x + window.width) // _STEP + 2
    last_y = (window.y + window.height) // _STEP + 2
    columns = (np.arange(first_x, last_x) + 0.5) * _STEP * mpp
    rows = (np.arange(first_y, last_y) + 0.5) * _STEP * mpp
    top, left = window.y - first_y * _STEP, window.x - first_x * _STEP

    def field(*waves: tuple[int, float, float]) -> Float[np.ndarray, "h w"]:
        coarse = sum(
            weight * smooth_field(seed, channel, spacing, columns, rows)
            for channel, spacing, weight in waves
        )
        fine = cv2.resize(np.asarray(coarse, dtype=np.float32), None, fx=_STEP, fy=_STEP)
        return fine[top : top + window.height, left : left + window.width]

    return Weave(
        window,
        mpp,
        turn,
        along=field((1, 180.0, 1.0), (6, 45.0, 0.16)),
        across=field((0, 210.0, 1.0), (5, 52.0, 0.16)),
        tint=field((2, 230.0, 1.0)),
        cellular=field((3, 240.0, 1.0)),
        nests=field((4, 75.0, 1.0)),
    )


def _sum(column: Float[np.ndarray, " w"], row: Float[np.ndarray, " h"]) -> Float[np.ndarray, "h w"]:
    """Add coordinates, less whole periods, which single precision would not hold."""
    first, other = (np.floor(values[0] / PERIOD) * PERIOD for values in (column, row))
    return (row - other).astype(np.float32)[:, None] + (column - first).astype(np.float32)[None, :]
