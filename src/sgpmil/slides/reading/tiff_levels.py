"""The levels of a pyramid in a TIFF, wherever the file keeps them."""

import math
from dataclasses import dataclass
from typing import Any

from sgpmil.errors import SlideError
from sgpmil.slides.reading.slide import level_downsample

__all__ = ["TiffLevel", "find_levels"]

_CHANNELS = 3
"""Channels in pages of their own that are taken for red, green and blue."""


@dataclass(frozen=True, slots=True, eq=False)
class TiffLevel:
    """A level of a pyramid.

    Args:
        pages: The page that holds it, or the pages of red, green and blue.
        width: Width in pixels.
        height: Height in pixels.
    """

    pages: tuple[Any, ...]
    width: int
    height: int

    @property
    def keyframe(self) -> Any:
        """The page that says how the pixels of all are stored."""
        return self.pages[0].keyframe


def find_levels(tiff: Any, where: str) -> tuple[TiffLevel, ...]:
    """Find the levels of the largest image in a TIFF, the largest first.

    Levels are in SubIFDs of the largest page, or in pages that are marked as reduced and have its
    shape. Labels, overviews and other images are left out.

    Args:
        tiff: The file, opened by tifffile.
        where: Name of the file, for messages.

    Raises:
        SlideError: There is no image, or it is a stack or has channels that are no colours.
    """
    images = [series for series in tiff.series if _size(series) > (0, 0)]
    if not images:
        raise SlideError(
            f"Expected an image in {where}, but there is none. Check the file, or copy it again "
            "from its source."
        )
    largest = max(images, key=lambda series: math.prod(_size(series)))
    levels = [_level(series, where) for series in largest.levels]
    first = levels[0]
    if largest.kind != "ome":
        # tifffile knows pyramids of one constant factor; scanners also write 1, 4, 16, 32.
        for series in images:
            page = series.keyframe
            if series is largest or not page.is_reduced or series.axes != largest.axes:
                continue
            level = _level(series, where)
            if _is_smaller(first, level):
                levels.append(level)
    # Two pages of one size are the same level twice.
    by_size = {(level.width, level.height): level for level in reversed(levels)}
    return tuple(sorted(by_size.values(), key=lambda level: -level.width))


def _level(series: Any, where: str) -> TiffLevel:
    pages = tuple(page for page in series.pages if page is not None)
    sizes = dict(zip(series.axes, series.shape, strict=True))
    extra = {axis: size for axis, size in sizes.items() if axis not in "XYS"}
    alone = not extra and len(pages) == 1
    channels = extra == {"C": _CHANNELS} and len(pages) == _CHANNELS and "S" not in series.axes
    if not (alone or channels) or len(pages) != len(series.pages):
        stack = ", ".join(f"{axis}: {size}" for axis, size in sizes.items())
        raise SlideError(
            f"Expected one image of red, green and blue in {where}, but got a stack ({stack}). "
            "Export one plane in colour."
        )
    return TiffLevel(pages, *_size(series))


def _size(series: Any) -> tuple[int, int]:
    """Width and height; zeros where the series is no image."""
    sizes = dict(zip(series.axes, series.shape, strict=True))
    size = int(sizes.get("X", 0)), int(sizes.get("Y", 0))
    return size if min(size) > 0 else (0, 0)


def _is_smaller(full: TiffLevel, level: TiffLevel) -> bool:
    """Say whether an image may be another made smaller: whether it has its shape."""
    if level.width >= full.width or level.height >= full.height:
        return False
    large, small = (full.width, full.height), (level.width, level.height)
    downsample = level_downsample(large, small)
    return all(abs(b - a / downsample) <= 1 for a, b in zip(large, small, strict=True))
