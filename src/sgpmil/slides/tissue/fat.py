"""Tissue that is mostly unstained: fat, of which only the thin walls of its cells are seen."""

import numpy as np

from sgpmil.shapes import Bool, Float

__all__ = ["find_fat"]

CELL = 80.0
"""About the diameter of a fat cell, in microns."""

LEAST_MEAN, LEAST_SPREAD = 0.008, 0.006
"""Least mean and standard deviation of the staining over a cell and its walls."""


def find_fat(
    stain: Float[np.ndarray, "h w"],
    stained: Bool[np.ndarray, "h w"],
    glass: Bool[np.ndarray, "h w"],
    pixel: float,
) -> Bool[np.ndarray, "h w"]:
    r"""Find where pale walls cross what would otherwise be glass.

    Over a window the size of a cell, the staining of what is not stained tissue has a mean and
    a standard deviation. Both are larger in fat than on glass; a tint of the glass raises the
    mean alone, and grey dust neither.

    Args:
        stain: Staining of each pixel.
        stained: Pixels that are stained tissue or ink.
        glass: Pixels that look like glass.
        pixel: Side of a pixel in microns.
    """
    import cv2

    width = 2 * round(CELL / pixel / 2) + 1
    if width < 3 or not glass.any():
        return np.zeros_like(stained)
    # An edge of tissue is blurred over two pixels, which are no walls.
    edge = cv2.dilate(stained.astype(np.uint8), np.ones((5, 5), np.uint8))
    free = (edge == 0).astype(np.float32)

    def mean(values: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"]:
        total: Float[np.ndarray, "h w"] = cv2.blur(values * free, (width, width))
        return total

    share = np.maximum(mean(np.ones_like(free)), 1 / width**2)
    middle = mean(stain) / share
    spread = np.sqrt(np.maximum(mean(stain**2) / share - middle**2, 0))
    usual_middle = float(np.median(middle[glass]))
    usual_spread = float(np.median(spread[glass]))
    return (
        (free > 0)
        & (share > 0.25)
        & (middle > max(LEAST_MEAN, 2 * usual_middle))
        & (spread > max(LEAST_SPREAD, 4 * usual_spread))
    )
