"""What is neither tissue nor glass: pen marks, and black where nothing was scanned."""

import numpy as np

from sgpmil.shapes import Bool, Float

__all__ = ["find_ink"]

REACH = 64.0
"""How far the blurred edge of a stroke reaches, in microns."""

LEAST_AREA = 0.003
"""Least area of a stroke in mm²: a dark or vivid speck is a nucleus or pigment."""


def find_ink(image: Float[np.ndarray, "h w 3"], pixel: float) -> Bool[np.ndarray, "h w"]:
    r"""Find pen marks (blue, green, red, black) and black filling.

    Haematoxylin and eosin both absorb green most, so tissue is never bluer than it is purple:
    its red is at least its green. Blue and green ink have less red than green. Red ink absorbs
    green and blue alike and nearly wholly; eosin leaves more blue than green, and erythrocytes
    leave more of both. Black ink and black filling are dark without a colour.

    Of each kind a vivid core must be there; from it, paler pixels of the same kind are followed
    a short way, over the blurred edge of the stroke.

    Args:
        image: RGB from 0 to 255.
        pixel: Side of a pixel in microns.
    """
    red, green, blue = (np.ascontiguousarray(image[:, :, channel]) for channel in range(3))
    highest = np.maximum(image.max(axis=2), 1.0)
    saturation = 1 - image.min(axis=2) / highest
    purple = (red + blue) / 2 - green
    colder = (green - red) / highest

    is_blue = blue >= highest
    cold = (
        ((saturation > 0.35) & (colder > 0.12))
        | ((saturation > 0.40) & is_blue & (red < 1.1 * green))
        | ((saturation > 0.58) & is_blue & (red < 1.3 * green))
        | ((saturation > 0.15) & (green - np.maximum(red, blue) > 0.08 * highest))
    )
    is_red = (red >= highest) & (np.abs(green - blue) < 0.18 * red)
    vivid_red = is_red & (saturation > 0.72) & (red > 150)
    dark = (highest < 66) | ((highest < 140) & (purple < 0.08 * highest) & (saturation < 0.25))

    ink = _stroke(cold, (colder > 0.02) | (is_blue & (red < 1.1 * green)), pixel)
    ink |= _stroke(vivid_red, is_red & (np.abs(green - blue) < 0.2 * (red - green)), pixel)
    ink |= _stroke(dark, (purple < 8) & (saturation < 0.25), pixel)
    return ink


def _stroke(
    core: Bool[np.ndarray, "h w"], paler: Bool[np.ndarray, "h w"], pixel: float
) -> Bool[np.ndarray, "h w"]:
    import cv2

    _, labels, stats, _ = cv2.connectedComponentsWithStats(core.astype(np.uint8), connectivity=8)
    large = stats[:, cv2.CC_STAT_AREA] * pixel**2 >= LEAST_AREA * 1e6
    large[0] = False
    core = large[labels]
    if not core.any():
        return core
    radius = max(1, round(REACH / pixel))
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    near = cv2.dilate(core.astype(np.uint8), disc) > 0
    return core | (near & paler)
