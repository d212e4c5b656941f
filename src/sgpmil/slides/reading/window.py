"""Windows that reach beyond an image."""

from collections.abc import Callable

import numpy as np

from sgpmil.shapes import UInt8

__all__ = ["clipped_window"]


def clipped_window(
    read: Callable[[int, int, int, int], UInt8[np.ndarray, "h w 3"]],
    window: tuple[int, int, int, int],
    size: tuple[int, int],
) -> UInt8[np.ndarray, "h w 3"]:
    """Read the part of a window that lies within an image; the rest is white.

    Args:
        read: Reads a window within the image: left, top, width, height.
        window: Left, top, width and height.
        size: Width and height of the image.
    """
    x, y, width, height = window
    left, right = max(x, 0), min(x + width, size[0])
    top, bottom = max(y, 0), min(y + height, size[1])
    if (left, right, top, bottom) == (x, x + width, y, y + height):
        return read(x, y, width, height)
    result = np.full((height, width, 3), 255, dtype=np.uint8)
    if left < right and top < bottom:
        result[top - y : bottom - y, left - x : right - x] = read(
            left, top, right - left, bottom - top
        )
    return result
