"""PNG and JPEG images as slides of one level."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.errors import SlideError
from sgpmil.shapes import UInt8
from sgpmil.slides.optional_part import require_package
from sgpmil.slides.reading.pixels import Colours, clipped_window, to_rgb
from sgpmil.slides.reading.resolution import mpp_of_density
from sgpmil.slides.reading.slide import Level, Slide, reason

MOST_PIXELS = 2**27
"""Pixels of the largest image that is read: 134 million, or 400 MB once decoded."""

_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")
"""Modes in which Pillow holds grey of 16 bits."""


class ImageSlide(Slide):
    """A PNG or JPEG, held in memory whole, its pixels as they are stored.

    Args:
        path: The file.

    Raises:
        SlideError: The file is damaged, or has too many pixels.
    """

    def __init__(self, path: Path) -> None:
        require_package("PIL")
        require_package("cv2")
        from PIL import Image

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow warns of sizes; the limit is ours
                with Image.open(path, formats=("PNG", "JPEG")) as image:
                    if image.width * image.height > MOST_PIXELS:
                        raise _too_large(path, f"{image.width} × {image.height}")
                    mpp = _mpp(image)
                    self._pixels = _rgb(image)
        except Image.DecompressionBombError as error:
            raise _too_large(path, "many more") from error
        except (OSError, ValueError, SyntaxError, EOFError, LookupError) as error:
            raise SlideError(
                f"Expected a PNG or JPEG in '{path}', but it cannot be read ({reason(error)}). "
                "Copy it again from its source."
            ) from error
        height, width = self._pixels.shape[:2]
        super().__init__(path, (Level(width, height, 1.0),), mpp, None)

    def close(self) -> None:
        """Forget the pixels."""
        self._pixels = self._pixels[:0]

    def _read(
        self, x: int, y: int, width: int, height: int, level: int
    ) -> UInt8[np.ndarray, "h w 3"]:
        return clipped_window(self._window, (x, y, width, height), self.size)

    def _window(self, x: int, y: int, width: int, height: int) -> UInt8[np.ndarray, "h w 3"]:
        return self._pixels[y : y + height, x : x + width].copy()


def _too_large(path: Path, found: str) -> SlideError:
    return SlideError(
        f"Expected a PNG or JPEG of at most {MOST_PIXELS / 1e6:.0f} million pixels, but got "
        f"{found} in '{path}'. Convert it to a tiled TIFF, which is read piece by piece."
    )


def _mpp(image: Any) -> float | None:
    density = image.info.get("dpi")
    if not density:
        return None
    return mpp_of_density(float(density[0]), float(density[1]), "inch")


def _rgb(image: Any) -> UInt8[np.ndarray, "h w 3"]:
    if image.mode in _SIXTEEN_BITS:
        samples = np.clip(np.asarray(image), 0, 2**16 - 1).astype(np.uint16)
        return to_rgb(samples[:, :, None], Colours("grey", 16))
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        return to_rgb(np.asarray(image.convert("RGBA")), Colours("rgb", alpha="straight"))
    return np.array(image.convert("RGB"), dtype=np.uint8)
