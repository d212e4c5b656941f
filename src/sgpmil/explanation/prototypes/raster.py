"""Prototypes of the patches as an image of the slide."""

from dataclasses import dataclass
from math import gcd

import numpy as np

from sgpmil.errors import ExplanationError
from sgpmil.shapes import Float, Int

__all__ = ["NO_PATCH", "LabelMap", "label_map"]

_MOST_PAINTED = 50_000_000
"""Most pixels to paint over all patches, which bounds the time where they overlap heavily."""
_AT_ONCE = 2_000_000

NO_PATCH = -1
"""The value of a pixel that no patch covers."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelMap:
    """A raster of numbers, one a pixel, which are never averaged.

    Args:
        values: Number at each pixel's centre; `NO_PATCH` where no patch covers it.
        downsample: Side of a pixel in level-0 pixels.
        origin: Top-left corner (x, y) of the raster in level-0 pixels.
    """

    values: Int[np.ndarray, "h w"]
    downsample: float
    origin: tuple[int, int]

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top edge in level-0 pixels, y down."""
        height, width = self.values.shape
        x, y = map(float, self.origin)
        return x, x + width * self.downsample, y + height * self.downsample, y


def label_map(
    coords: Int[np.ndarray, "N 2"],
    side: int,
    labels: Int[np.ndarray, " N"],
    priority: Float[np.ndarray, " N"] | None = None,
    *,
    most_pixels: int = 4_000_000,
) -> LabelMap:
    """Paint patches with their numbers.

    The raster is exact where its pixels may be small enough that all patches begin and end
    between pixels; otherwise each pixel is sampled at its centre, and a patch is a whole number
    of pixels wide.

    Args:
        coords: Top-left corner (x, y) of each patch in level-0 pixels.
        side: Side of a patch in level-0 pixels.
        labels: Number of each patch.
        priority: Where patches overlap, the one of the largest priority lies on top; the last by
            default.
        most_pixels: About the most pixels of the raster.

    Raises:
        ExplanationError: There are no patches, or they have no size.

    Example:
        >>> label_map(np.array([[4, 0], [8, 2]]), 4, np.array([7, 3])).values
        array([[ 7,  7, -1, -1],
               [ 7,  7,  3,  3],
               [-1, -1,  3,  3]], dtype=int32)
    """
    if len(coords) == 0 or side < 1:
        raise ExplanationError(
            f"Expected patches with an area for a map, but got {len(coords)} of side {side}. "
            "Extract the bags with coordinates."
        )
    start = coords.min(axis=0)
    offset = (coords - start).astype(np.int64)
    across, down = (offset.max(axis=0) + side).tolist()
    step = gcd(side, int(np.gcd.reduce(offset, axis=None)))
    pixels = side // step  # of a patch's side
    fewer = side * (most_pixels / (across * down)) ** 0.5
    pixels = max(1, min(pixels, int(fewer), int((_MOST_PAINTED / len(coords)) ** 0.5)))
    downsample = side / pixels
    order = np.arange(len(labels)) if priority is None else np.argsort(priority, kind="stable")
    # The first pixel whose centre lies in the patch.
    first = np.ceil(offset[order] / downsample - 0.5).astype(np.int64)
    width, height = (first.max(axis=0) + pixels).tolist()
    values = np.full((height, width), NO_PATCH, dtype=np.int32)
    within = np.arange(pixels)
    numbers = labels[order]
    patches = max(1, _AT_ONCE // pixels**2)
    for begin in range(0, len(order), patches):
        piece = slice(begin, begin + patches)
        rows = first[piece, 1, None, None] + within[:, None]
        columns = first[piece, 0, None, None] + within
        # Of equal places, numpy keeps the last written.
        values[rows, columns] = numbers[piece, None, None]
    return LabelMap(values, downsample, (int(start[0]), int(start[1])))
