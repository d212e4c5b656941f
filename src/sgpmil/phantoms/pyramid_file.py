"""Slide files of scenes: pyramidal TIFFs that OpenSlide and other readers open.

The slide is drawn strip by strip. Each strip goes into the file at once and, made smaller, into a
hidden file for each coarser level; these follow when the finest level is done. So memory holds one
strip, whatever the slide's size.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from sgpmil.bags.files import atomic_path
from sgpmil.phantoms.painter import BLOCK, render
from sgpmil.phantoms.scene import Scene
from sgpmil.shapes import UInt8
from sgpmil.slides.optional_part import require_package

PACKAGES = ("shapely", "cv2", "tifffile", "imagecodecs")
"""Optional packages that writing a slide needs."""

_TILE = 256
_STEP = 4
"""Each level is this many times smaller than the one before, as scanners write them."""
_LONGEST = 2048
"""The pyramid ends when the longest side is shorter than this."""
_MICRONS_PER_CM = 1e4


def level_sizes(size: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Return width and height of each level of a slide.

    Example:
        >>> level_sizes((8001, 6000))
        ((8001, 6000), (2000, 1500))
    """
    sizes = [size]
    while max(sizes[-1]) >= _LONGEST and min(sizes[-1]) >= _STEP:
        width, height = sizes[-1]
        sizes.append((width // _STEP, height // _STEP))
    return tuple(sizes)


def write_phantom(
    path: str | os.PathLike[str], scene: Scene, *, on_rows: Callable[[int], None] | None = None
) -> None:
    """Write a slide: BigTIFF, a page a level, JPEG tiles, with its microns per pixel.

    The file appears under its name when it is whole.

    Args:
        path: File to write (.tiff).
        scene: Scene to draw.
        on_rows: Called with the number of level-0 rows after each strip; what it raises ends the
            writing and leaves nothing behind.

    Raises:
        OSError: The file cannot be written.
    """
    for package in PACKAGES:
        require_package(package)
    import tifffile

    sizes = level_sizes(scene.settings.size)
    with atomic_path(path) as temporary, ExitStack() as stack:
        # On the disk of the slide, for it may be large; gone with the last handle to it.
        folder = Path(path).parent
        reduced = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in sizes[1:]]
        file = stack.enter_context(tifffile.TiffWriter(temporary, bigtiff=True))
        strips = _drawn(scene, sizes, reduced, on_rows or (lambda _: None))
        _write_level(file, scene, sizes[0], strips, 0)
        for level, raw in enumerate(reduced, start=1):
            _write_level(file, scene, sizes[level], _read(raw, sizes[level]), level)


def _write_level(
    file: Any, scene: Scene, size: tuple[int, int], strips: Iterator[np.ndarray], level: int
) -> None:
    """Write the tiles of a level, from strips of whole rows of tiles."""
    width, height = size
    pixels_per_cm = _MICRONS_PER_CM / (scene.settings.mpp * scene.settings.size[0] / width)
    file.write(
        _tiles(strips),
        shape=(height, width, 3),
        dtype=np.uint8,
        photometric="rgb",
        tile=(_TILE, _TILE),
        compression="jpeg",
        compressionargs={"level": scene.settings.quality},
        resolution=(pixels_per_cm, pixels_per_cm),
        resolutionunit="CENTIMETER",
        subfiletype=1 if level else 0,
        metadata=None,
        description=f"sgpmil phantom, seed {scene.seed}" if level == 0 else None,
        software=False,
        maxworkers=1,
    )


def _tiles(strips: Iterator[np.ndarray]) -> Iterator[UInt8[np.ndarray, "t t 3"]]:
    for strip in strips:
        height, width = strip.shape[:2]
        for y in range(0, height, _TILE):
            for x in range(0, width, _TILE):
                tile = strip[y : y + _TILE, x : x + _TILE]
                missing = _TILE - tile.shape[0], _TILE - tile.shape[1]
                if any(missing):
                    # The slide's edge is repeated, which JPEG compresses better than black.
                    tile = np.pad(tile, ((0, missing[0]), (0, missing[1]), (0, 0)), mode="edge")
                yield np.ascontiguousarray(tile)


def _drawn(
    scene: Scene,
    sizes: Sequence[tuple[int, int]],
    reduced: Sequence[IO[bytes]],
    on_rows: Callable[[int], None],
) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
    """Draw strip after strip, and put each, made smaller, into the files of the other levels."""
    import cv2

    width, height = sizes[0]
    waiting: list[np.ndarray] = [np.empty((0, size[0], 3), np.uint8) for size in sizes]
    for y in range(0, height, BLOCK):
        drawn = strip = render(scene, 0, y, width, min(BLOCK, height - y))
        for level, raw in enumerate(reduced, start=1):
            # A strip's height need not be a multiple of the step: its rest waits for the next one.
            if len(waiting[level - 1]):
                strip = np.concatenate([waiting[level - 1], strip])
            columns, rows = sizes[level][0], strip.shape[0] // _STEP
            waiting[level - 1] = strip[rows * _STEP :].copy()
            if not rows:
                break
            strip = cv2.resize(
                strip[: rows * _STEP, : columns * _STEP],
                (columns, rows),
                interpolation=cv2.INTER_AREA,
            )
            raw.write(np.ascontiguousarray(strip).data)
        on_rows(min(BLOCK, height - y))
        # Last, for nothing is asked for after the last tile.
        yield drawn


def _read(raw: IO[bytes], size: tuple[int, int]) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
    """Read a level back in strips of a row of tiles."""
    width, height = size
    raw.seek(0)
    for y in range(0, height, _TILE):
        rows = min(_TILE, height - y)
        strip = np.frombuffer(raw.read(rows * width * 3), dtype=np.uint8)
        yield strip.reshape(rows, width, 3)
