"""TIFF slides read by tifffile: OME-TIFF, and files that OpenSlide refuses."""

import logging
import math
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sgpmil.errors import SlideError
from sgpmil.shapes import UInt8
from sgpmil.slides.optional_part import require_package
from sgpmil.slides.reading.pixels import clipped_window
from sgpmil.slides.reading.resolution import (
    Optics,
    mpp_of_density,
    positive_number,
    read_aperio,
    read_ome,
)
from sgpmil.slides.reading.slide import (
    Level,
    Slide,
    cut_short,
    level_downsample,
    reason,
    unreadable_pixels,
)
from sgpmil.slides.reading.tiff_pixels import TiffPixels, TileCache, find_levels

CACHE_BYTES = 2**26
"""Bytes of decoded tiles that an open slide keeps: 64 MiB."""

_FAILURES = (
    *(OSError, ValueError, RuntimeError, LookupError, TypeError),
    *(ArithmeticError, AttributeError, AssertionError, MemoryError, struct.error),
)
"""Errors of tifffile and its decoders on a damaged file."""

_UNITS = {2: "inch", 3: "cm"}


class TiffSlide(Slide):
    """A TIFF: one image, or a pyramid in pages of its own or in SubIFDs.

    Only the tiles, or strips, that a window touches are read and decoded. At levels above 0,
    windows begin at the nearest whole pixel of the level.

    Args:
        path: The file.

    Raises:
        SlideError: The file is no TIFF, is damaged, or has pixels that are no colours.
    """

    def __init__(self, path: Path) -> None:
        require_package("tifffile")
        require_package("imagecodecs")  # tifffile needs it for compressed files, and says so late
        import tifffile

        self._file = path.open("rb")  # tifffile would leave a damaged file open
        try:
            if path.suffix.lower() != ".ndpi":  # whose offsets are not those of the standard
                check_chain(self._file, f"'{path}'")
            with quiet_tifffile():
                self._tiff: Any = tifffile.TiffFile(self._file)
                _refuse_empty_first(self._tiff, path)
                found = find_levels(self._tiff, f"'{path}'")
                size = (found[0].width, found[0].height)
                optics = _optics(self._tiff, found[0].keyframe, size)
                cache = TileCache(CACHE_BYTES)
                self._pixels = tuple(
                    TiffPixels(level, cache, f"'{path}'", optics.bits) for level in found
                )
                levels = tuple(
                    Level(
                        level.width,
                        level.height,
                        level_downsample(size, (level.width, level.height)),
                    )
                    for level in found
                )
        except SlideError:
            self.close()
            raise
        except _FAILURES as error:
            self.close()
            raise SlideError(
                f"Expected a TIFF in '{path}', but it cannot be read ({reason(error)}). Copy it "
                "again from its source."
            ) from error
        super().__init__(path, levels, optics.mpp, optics.objective)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(
        self, x: int, y: int, width: int, height: int, level: int
    ) -> UInt8[np.ndarray, "h w 3"]:
        here = self.levels[level]
        try:
            return clipped_window(
                self._pixels[level].window,
                (_nearest(x / here.downsample), _nearest(y / here.downsample), width, height),
                (here.width, here.height),
            )
        except _FAILURES as error:
            raise unreadable_pixels(self.path, x, y, level, error) from error

    def _block(self, level: int) -> tuple[int, int]:
        across, down = super()._block(level)
        if not self._pixels[level].is_striped:
            return across, down
        width = self.levels[level].width  # a strip is decoded whole
        return width, max(1, across * down // width)


def _refuse_empty_first(tiff: Any, path: Path) -> None:
    """Refuse a file whose first page, the slide, has no pixels: another page is none."""
    first = next(iter(tiff.pages), None)
    if first is not None and min(first.imagewidth, first.imagelength) < 1:
        raise SlideError(
            f"Expected the slide on the first page of '{path}', but that page is "
            f"{first.imagewidth} × {first.imagelength} px. The file is damaged: copy it again from "
            "its source."
        )


def _nearest(position: float) -> int:
    return math.floor(position + 0.5)  # halves always round up, so that neighbours stay neighbours


def _optics(tiff: Any, page: Any, size: tuple[int, int]) -> Optics:
    if tiff.is_ome:
        return read_ome(tiff.ome_metadata or "", size)
    if page.description.startswith("Aperio"):
        return read_aperio(page.description)
    x, y = (_rational(page.tags.get(name)) for name in ("XResolution", "YResolution"))
    unit = _UNITS.get(int(page.resolutionunit), "")
    if tiff.is_imagej:
        unit = str((tiff.imagej_metadata or {}).get("unit", ""))
    return Optics(mpp_of_density(x, y, unit))


def _rational(tag: Any) -> float | None:
    if tag is None:
        return None
    try:
        top, bottom = tag.value
    except (TypeError, ValueError):
        return positive_number(tag.value)
    return positive_number(top / bottom) if bottom else None


@contextmanager
def quiet_tifffile() -> Iterator[None]:
    """Silence tifffile, whose failures become one sentence of ours."""
    logger = logging.getLogger("tifffile")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


_BIG_TIFF = 43


def check_chain(file: BufferedIOBase, where: str) -> None:
    """Refuse a TIFF whose pages lie partly beyond its end.

    Readers take such a file for one of fewer pages, hence of fewer levels.

    Raises:
        CutShortError: A page lies beyond the end.
    """
    file.seek(0, 2)
    size = file.tell()
    file.seek(0)
    order: Literal["little", "big"] = "little" if file.read(2) == b"II" else "big"

    def number(position: int, length: int) -> int:
        if position + length > size:
            raise cut_short(position + length, size, where)
        file.seek(position)
        return int.from_bytes(file.read(length), order)

    is_big = number(2, 2) == _BIG_TIFF
    count_bytes, tag_bytes, offset_bytes = (8, 20, 8) if is_big else (2, 12, 4)
    page = number(offset_bytes, offset_bytes)
    seen: set[int] = set()
    while page and page not in seen:
        seen.add(page)
        tags = page + count_bytes
        page = number(tags + tag_bytes * number(page, count_bytes), offset_bytes)
    file.seek(0)
