"""How strongly each pixel is stained, compared with the glass of its slide."""

import math

import numpy as np

from sgpmil.shapes import Bool, Float

__all__ = ["staining", "staining_threshold"]

FEWEST_GLASS = 0.001
"""Share of the pixels that must look like glass for the slide to have any."""

FAINTEST, FAINT = 0.03, 0.07
"""Saturation below which nothing, and above which everything, is stained."""

_OFFSET = 0.01
_BINS = 255


def staining(
    image: Float[np.ndarray, "h w 3"], usable: Bool[np.ndarray, "h w"]
) -> tuple[Float[np.ndarray, "h w"], Bool[np.ndarray, "h w"]]:
    r"""Measure the staining of each pixel, and say which pixels look like glass.

    $$ s = \min\Bigl(1 - \frac{\min_c I_c}{\max_c I_c},\;
           1 - \frac{\min_c I_c / g_c}{\max_c I_c / g_c}\Bigr) $$

    with I the colour and g that of the glass: the saturation as it is, and as it would be if
    the glass were white. Shadows, dust and uneven light change I by one factor in all channels
    and so not s. Glass is bright and colourless or yellowish, and never more purple than that,
    as tissue is. Where no pixel looks like glass, all is tissue, and g is white.

    Args:
        image: RGB from 0 to 255.
        usable: Pixels that are neither ink nor filling.
    """
    brightest, darkest = image.max(axis=2), image.min(axis=2)
    red, green, blue = (image[:, :, channel] for channel in range(3))
    colour = brightest - darkest
    glass = usable & (brightest > 160) & ((red + blue) / 2 - green < 6)
    glass &= (colour < 20) | ((colour < 40) & (blue <= darkest))
    absolute = 1 - darkest / np.maximum(brightest, 1.0)
    if glass.sum() <= FEWEST_GLASS * usable.sum():
        return absolute, np.zeros_like(glass)
    glass &= brightest > np.percentile(brightest[glass], 98) - 30
    balanced = image / np.maximum(np.median(image[glass], axis=0), 1.0)
    relative = 1 - balanced.min(axis=2) / np.maximum(balanced.max(axis=2), 1e-3)
    return np.minimum(absolute, relative), glass


def staining_threshold(
    stain: Float[np.ndarray, "h w"],
    seen: Bool[np.ndarray, "h w"],
    glass: Bool[np.ndarray, "h w"],
) -> float:
    r"""Find the staining above which a pixel is tissue.

    Otsu's threshold of $\log(s + 0.01)$: on this scale pale and dark tissue are near each other
    and glass is far from both. It is held between what is never tissue (faint, or within six
    standard deviations of the glass) and what always is, so that a slide of nothing but glass,
    or nothing but tissue, is not split in two.

    Args:
        stain: Staining of each pixel.
        seen: Pixels that are neither ink nor filling.
        glass: Pixels that look like glass.
    """
    import cv2

    if not seen.any() or not glass.any():
        return FAINTEST
    of_glass = stain[glass]
    middle = float(np.median(of_glass))
    spread = 1.4826 * float(np.median(np.abs(of_glass - middle)))
    least = max(FAINTEST, middle + 6 * spread)

    low, high = math.log(_OFFSET), math.log(1 + _OFFSET)
    level = (np.log(stain[seen] + _OFFSET) - low) / (high - low) * _BINS
    split, _ = cv2.threshold(
        level.clip(0, _BINS).astype(np.uint8)[None], 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU
    )
    otsu = math.exp(low + (split + 1) / _BINS * (high - low)) - _OFFSET
    return min(max(otsu, least), max(FAINT, least))
