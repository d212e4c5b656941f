"""Pixels of images: RGB on white, windows beyond the edge, and resizing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sgpmil.shapes import UInt8
from sgpmil.slides.optional_part import require_package

Kind = Literal["grey", "inverted grey", "rgb", "cmyk", "palette"]
Alpha = Literal["none", "straight", "premultiplied"]
_COUNT = {"grey": 1, "inverted grey": 1, "rgb": 3, "cmyk": 4, "palette": 1}


@dataclass(frozen=True, slots=True, eq=False)
class Colours:
    """Meaning of the samples of a pixel.

    Args:
        kind: Kind of the first samples; in `inverted grey` 0 is white.
        bits: Used bits of a sample.
        alpha: Kind of opacity; `none` without opacity.
        alpha_sample: Number of the opacity's sample.
        palette: Colours by index, 8 bits a sample.
    """

    kind: Kind
    bits: int = 8
    alpha: Alpha = "none"
    alpha_sample: int = 3
    palette: UInt8[np.ndarray, "k 3"] | None = None

    @property
    def samples(self) -> int:
        """Samples of a pixel that carry its colour."""
        return _COUNT[self.kind]


def to_rgb(samples: np.ndarray, colours: Colours) -> UInt8[np.ndarray, "h w 3"]:
    r"""Turn samples into RGB, 8 bits a sample, on white.

    Samples of $b$ bits are scaled by $255/(2^b-1)$ and rounded. With cyan, magenta, yellow and
    black, red is $(1-c)(1-k)$ and so on. A colour $v$ of opacity $\alpha$ becomes
    $\alpha v + 1 - \alpha$, or $v + 1 - \alpha$ where it was multiplied by $\alpha$ already.

    Args:
        samples: Rows, columns and samples, unsigned integers.
        colours: Their meaning.
    """
    used = samples[:, :, : colours.samples]
    if colours.palette is not None:
        last = len(colours.palette) - 1
        rgb = colours.palette[np.minimum(used[:, :, 0], last)]
    else:
        rgb = _to_8_bits(used, colours.bits)
        if colours.kind == "inverted grey":
            rgb = 255 - rgb
        if colours.kind == "cmyk":
            rgb = _over_255((255 - rgb[:, :, :3]) * (255 - rgb[:, :, 3:]).astype(np.uint16))
        elif colours.kind != "rgb":
            rgb = np.repeat(rgb, 3, axis=2)
    if colours.alpha == "none":
        return np.ascontiguousarray(rgb)
    place = colours.alpha_sample
    alpha = _to_8_bits(samples[:, :, place : place + 1], colours.bits).astype(np.uint16)
    if colours.alpha == "premultiplied":
        return np.minimum(rgb + (255 - alpha), 255).astype(np.uint8)
    return _over_255(rgb * alpha + 255 * (255 - alpha))


def _to_8_bits(samples: np.ndarray, bits: int) -> UInt8[np.ndarray, "h w s"]:
    if bits == 8 and samples.dtype == np.uint8:
        return samples
    most = 2**bits - 1
    # Values beyond the stated bits are white; otherwise they would wrap to black.
    scaled = np.minimum(samples, most).astype(np.uint32) * 255 + most // 2
    return (scaled // most).astype(np.uint8)


def _over_255(product: np.ndarray) -> UInt8[np.ndarray, "h w s"]:
    # 255 · 255 + 127 fits 16 bits.
    return ((product.astype(np.uint16) + 127) // 255).astype(np.uint8)


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
    """
    before = (image.shape[1], image.shape[0])
    if before == (width, height):
        return image
    require_package("cv2")
    import cv2

    enlarged = width > before[0] or height > before[1]
    how = cv2.INTER_LINEAR if enlarged else cv2.INTER_AREA
    return np.asarray(cv2.resize(image, (width, height), interpolation=how), dtype=np.uint8)
