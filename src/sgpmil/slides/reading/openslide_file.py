"""Slides that OpenSlide reads."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.errors import SlideError
from sgpmil.shapes import UInt8
from sgpmil.slides.optional_part import require_package
from sgpmil.slides.reading.resolution import plausible_mpp, positive_number
from sgpmil.slides.reading.slide import Level, Slide, reason, unreadable_pixels

MOST_TILE_PIXELS = 2**27
"""Pixels of the largest tile that is read: 134 million."""

_OPAQUE = 0xFF000000


class OpenSlideFile(Slide):
    """A slide in a format of OpenSlide.

    At levels above 0, OpenSlide shifts by parts of a pixel where x or y is no whole number of the
    level's pixels; what is read equals its `read_region` at the same place.

    Args:
        path: The file, or for DICOM the folder.
        file: The file that OpenSlide is to open, where that is another.

    Raises:
        SlideError: OpenSlide does not open the file.
    """

    def __init__(self, path: Path, file: Path | None = None) -> None:
        require_package("openslide")
        require_package("cv2")
        self._file = file or path
        self._handle = _open(self._file)
        properties = self._handle.properties
        _check_tiles(self._handle, self._file)
        levels = tuple(
            Level(int(width), int(height), float(downsample))
            for (width, height), downsample in zip(
                self._handle.level_dimensions, self._handle.level_downsamples, strict=True
            )
        )
        mpp = plausible_mpp(
            positive_number(properties.get("openslide.mpp-x")),
            positive_number(properties.get("openslide.mpp-y")),
        )
        objective = positive_number(properties.get("openslide.objective-power"))
        super().__init__(path, levels, mpp, objective)
        self._background = _colour(properties.get("openslide.background-color"))

    def close(self) -> None:
        """Close the file."""
        self._handle.close()

    def _read(
        self, x: int, y: int, width: int, height: int, level: int
    ) -> UInt8[np.ndarray, "h w 3"]:
        import cv2
        import openslide

        try:
            image = self._handle.read_region((x, y), level, (width, height))
        except openslide.OpenSlideError as error:
            # A handle answers every later call with its first error: take a new one, so that
            # the sound part of the slide can still be read.
            self._handle.close()
            self._handle = _open(self._file)
            raise unreadable_pixels(self.path, x, y, level, error) from error
        pixels = np.asarray(image)  # the one copy out of Pillow
        # Alpha is the last of four bytes, hence the highest of a little-endian word.
        if int(pixels.view("<u4").min()) >= _OPAQUE:
            return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGBA2RGB), dtype=np.uint8)
        return _on_background(pixels, self._background)


def _open(file: Path) -> Any:
    import openslide

    try:
        return openslide.OpenSlide(file)
    except (openslide.OpenSlideError, OSError) as error:
        raise SlideError(
            f"Expected a slide that OpenSlide reads in '{file}', but it does not open it "
            f"({reason(error)}). Check the file, or copy it again from its source."
        ) from error


def _check_tiles(handle: Any, file: Path) -> None:
    """Refuse tiles of absurd size: OpenSlide ends the whole process where memory runs out."""
    for level in range(handle.level_count):
        names = (f"openslide.level[{level}].tile-{side}" for side in ("width", "height"))
        width, height = (positive_number(handle.properties.get(name)) or 1.0 for name in names)
        if width * height > MOST_TILE_PIXELS:
            handle.close()
            raise SlideError(
                f"Expected tiles of at most {MOST_TILE_PIXELS / 1e6:.0f} million pixels in "
                f"'{file}', but got {width:.0f} × {height:.0f}. The file is damaged: copy it "
                "again from its source."
            )


def _colour(text: str | None) -> UInt8[np.ndarray, "3"]:
    found = re.fullmatch(r"#?([0-9a-fA-F]{6})", text or "")
    return np.frombuffer(bytes.fromhex(found[1] if found else "ffffff"), dtype=np.uint8)


def _on_background(
    pixels: UInt8[np.ndarray, "h w 4"], background: UInt8[np.ndarray, "3"]
) -> UInt8[np.ndarray, "h w 3"]:
    alpha = pixels[:, :, 3:].astype(np.uint16)
    # 255 · 255 + 127 fits 16 bits.
    mixed = pixels[:, :, :3] * alpha + background * (255 - alpha) + np.uint16(127)
    return (mixed // np.uint16(255)).astype(np.uint8)
