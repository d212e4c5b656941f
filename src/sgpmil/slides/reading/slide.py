"""Slides: pyramids of pixels, of which windows are read."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from sgpmil.errors import SlideError
from sgpmil.shapes import UInt8
from sgpmil.slides.reading.pixels import resize

_SPEAKING = (OSError, ValueError, RuntimeError, MemoryError, SyntaxError)


class CutShortError(SlideError):
    """A file ends before what it says it holds."""


def cut_short(needed: int, found: int, where: str) -> CutShortError:
    """Return the error of a file that is cut short."""
    return CutShortError(
        f"Expected at least {needed:,} bytes in {where}, but got {found:,}: the file is cut short. "
        "Copy it again from its source."
    )


def reason(error: Exception) -> str:
    """Return in a few words why a library could not read a file.

    Example:
        >>> reason(OSError("truncated file.")), reason(ZeroDivisionError("division by zero"))
        ('truncated file', 'its structure is damaged')
    """
    # Other errors are about internals of the library, which a damaged file has confused.
    by_openslide = type(error).__module__.startswith("openslide")
    text = str(error) if isinstance(error, _SPEAKING) or by_openslide else ""
    return text.split("\n")[0].rstrip(". ") or "its structure is damaged"


def unreadable_pixels(path: Path, x: int, y: int, level: int, error: Exception) -> SlideError:
    """Return the error of a part of a slide that cannot be read."""
    return SlideError(
        f"Expected pixels at x = {x}, y = {y} of level {level} in '{path}', but they cannot be "
        f"read ({reason(error)}). The file is damaged: copy it again from its source."
    )


_ROUNDING = 0.01
"""Tolerance of a level's downsample. The sizes of levels are rounded to whole pixels, so that a
level made four times smaller has a downsample of 4.0003."""

_BLOCK = 4096
"""Side of the windows from which thumbnails are made, in pixels: 64 MiB of RGBA each."""


@dataclass(frozen=True, slots=True)
class Level:
    """A slide at one resolution.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        downsample: Side of a pixel in level-0 pixels.
    """

    width: int
    height: int
    downsample: float


class Slide(ABC):
    r"""A slide file that is open for reading.

    All positions are level-0 pixels, x to the right and y down. What lies outside the image, and
    what is transparent in it, is white (or the background colour that the file states). A slide
    is used by one thread of one process: workers open their own. Its `slide_id` is the name of the
    file without its last suffix, or the whole name of a folder.

    Args:
        path: The file.
        levels: The resolutions, the largest first.
        mpp: Microns per level-0 pixel, if the file states it.
        objective: Power of the objective, if the file states it.
    """

    def __init__(
        self, path: Path, levels: tuple[Level, ...], mpp: float | None, objective: float | None
    ) -> None:
        self.path = path
        self.slide_id = path.name if path.is_dir() else path.stem
        self.levels = levels
        self.mpp = mpp
        self.objective = objective

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in level-0 pixels."""
        return self.levels[0].width, self.levels[0].height

    def read(
        self, x: int, y: int, width: int, height: int, *, level: int = 0
    ) -> UInt8[np.ndarray, "h w 3"]:
        """Read a window, whole or partly outside the image too.

        Raises:
            SlideError: There is no such level or size, or the file is damaged there.
        """
        if width < 1 or height < 1:
            raise SlideError(
                f"Expected a window of at least 1 × 1 px, but got {width} × {height} "
                f"('{self.path}'). Ask for a larger one."
            )
        if not 0 <= level < len(self.levels):
            raise SlideError(
                f"Expected a level from 0 to {len(self.levels) - 1}, but got {level} "
                f"('{self.path}'). Ask for one that the slide has."
            )
        return self._read(x, y, width, height, level)

    def read_patch(self, x: int, y: int, side: int, size: int) -> UInt8[np.ndarray, "size size 3"]:
        r"""Read a square at the resolution asked.

        A result pixel is $d = \mathrm{side}/\mathrm{size}$ level-0 pixels wide. The coarsest level
        is read whose downsample $\delta \le d$ (within 1 %, for rounding), so no detail is
        invented and none is missed; its $n = \mathrm{side}/\delta$ pixels are then averaged over
        the area of each result pixel. Where $n = \mathrm{size}$ the pixels are the file's own.

        Raises:
            SlideError: The square has no area, or the file is damaged there.
        """
        if side < 1 or size < 1:
            raise SlideError(
                f"Expected a patch of at least 1 px, but got a side of {side} level-0 px as "
                f"{size} px ('{self.path}'). Ask for a larger one."
            )
        level = self.level_for(side / size)
        pixels = max(1, round(side / self.levels[level].downsample))
        return resize(self._read(x, y, pixels, pixels, level), size, size)

    def level_for(self, downsample: float) -> int:
        """Return the number of the coarsest level that is at least as fine as asked."""
        limit = downsample * (1 + _ROUNDING)
        fine = (number for number, level in enumerate(self.levels) if level.downsample <= limit)
        return max(fine, default=0)

    def thumbnail(self, longest: int) -> UInt8[np.ndarray, "h w 3"]:
        """Read the whole slide made smaller, by area averaging.

        It is read a block at a time, so that a slide of one huge level needs little memory.

        Args:
            longest: Longer side of the result in pixels, or the slide's where that is less.

        Raises:
            SlideError: `longest` is not positive, or the file is damaged.
        """
        if longest < 1:
            raise SlideError(
                f"Expected a thumbnail of at least 1 px, but got {longest} ('{self.path}'). "
                "Ask for a larger one."
            )
        shrink = max(1.0, max(self.size) / longest)
        width, height = (max(1, round(side / shrink)) for side in self.size)
        number = self.level_for(shrink)
        level = self.levels[number]
        result = np.empty((height, width, 3), dtype=np.uint8)
        across, down = self._block(number)
        columns = _edges(width, level.width, across)
        rows = _edges(height, level.height, down)
        for top, bottom in pairwise(rows):
            for left, right in pairwise(columns):
                # Blocks begin at whole pixels of the level: at most half of one is lost.
                x, end_x = (_scaled(edge, level.width, width) for edge in (left, right))
                y, end_y = (_scaled(edge, level.height, height) for edge in (top, bottom))
                block = self._read(
                    round(x * level.downsample),
                    round(y * level.downsample),
                    max(1, end_x - x),
                    max(1, end_y - y),
                    number,
                )
                result[top:bottom, left:right] = resize(block, right - left, bottom - top)
        return result

    @abstractmethod
    def close(self) -> None:
        """Close the file; nothing can be read afterwards."""

    @abstractmethod
    def _read(
        self, x: int, y: int, width: int, height: int, level: int
    ) -> UInt8[np.ndarray, "h w 3"]:
        """Read a window that was checked."""

    def _block(self, level: int) -> tuple[int, int]:
        """Width and height of the windows in which a whole level is best read."""
        return _BLOCK, _BLOCK

    def __enter__(self) -> "Slide":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        width, height = self.size
        return f"<{type(self).__name__} '{self.path}' {width} × {height}>"


def level_downsample(full: tuple[int, int], reduced: tuple[int, int]) -> float:
    """Return how many times smaller a level is.

    It is a power of two, or else a whole number, where rounding allows one.

    Example:
        >>> level_downsample((4443, 3567), (2221, 1783))
        2.0
        >>> level_downsample((300, 200), (200, 133))
        1.5018796992481203
    """
    ratios = [large / small for large, small in zip(full, reduced, strict=True)]
    mean = sum(ratios) / 2
    for likely in (2.0 ** round(math.log2(mean)), float(max(1, round(mean)))):
        if all(abs(b - a / likely) < 1 for a, b in zip(full, reduced, strict=True)):
            return likely
    return mean


def _edges(size: int, read: int, block: int) -> list[int]:
    """Cut a side of a thumbnail into parts, each made of at most about `block` pixels."""
    step = max(1, math.floor(block * size / read))
    return [*range(0, size, step), size]


def _scaled(edge: int, read: int, size: int) -> int:
    return round(edge * read / size)
