"""Images made smaller, each pixel the mean over its area."""

import numpy as np

from sgpmil.shapes import UInt8
from sgpmil.slides.optional_part import require_package

__all__ = ["resize"]


def resize(
    image: UInt8[np.ndarray, "h w 3"], width: int, height: int
) -> UInt8[np.ndarray, "height width 3"]:
    r"""Resize an image by area averaging; one of the right size is returned as it is.

    With $s$ source pixels a result pixel, result pixel $i$ is the mean of the source over
    $[is, (i+1)s)$, a source pixel that is partly within counting by its part. This is the only
    choice that keeps the mean intensity exactly, does not alias and does not ring at nuclear
    borders. OpenCV's ``INTER_AREA`` weighs parts of pixels; Pillow's ``BOX`` counts a source
    pixel wholly or not at all, which is the same for whole $s$ only and errs by tens of grey
    levels at $s = 1.5$. Enlarging (a target finer than the slide by rounding) is bilinear.

    Args:
        image: The image.
        width: Width of the result in pixels.
        height: Height of the result in pixels.
    """
    before = (image.shape[1], image.shape[0])
    if before == (width, height):
        return image
    require_package("cv2")
    import cv2

    enlarged = width > before[0] or height > before[1]
    how = cv2.INTER_LINEAR if enlarged else cv2.INTER_AREA
    return np.asarray(cv2.resize(image, (width, height), interpolation=how), dtype=np.uint8)
