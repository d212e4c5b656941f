"""Levels of a TIFF pyramid, and their pixels, decoded tile by tile."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgpmil.errors import SlideError
from sgpmil.shapes import UInt8
from sgpmil.slides.reading.pixels import Colours, to_rgb
from sgpmil.slides.reading.slide import cut_short, level_downsample

MOST_TILE_PIXELS = 2**27
"""Pixels of the largest tile or strip that is decoded: 134 million."""

_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _SEPARATED, _YCBCR = 0, 1, 2, 3, 5, 6
_KINDS = {
    _WHITE_IS_ZERO: "inverted grey",
    _BLACK_IS_ZERO: "grey",
    _RGB: "rgb",
    _PALETTE: "palette",
    _SEPARATED: "cmyk",
    _YCBCR: "rgb",
}
_DECODED_TO_RGB = {6, 7, 33007, 34892, 50001, 50002, 52546}
"""Compressions (JPEG, WebP, JPEG XL) whose decoders turn YCbCr into RGB."""

_JPEG, _END_OF_JPEG = 7, b"\xff\xd9"
_ALPHA = {1: "premultiplied", 2: "straight"}


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
    """Return whether an image has the shape of another and is smaller."""
    if level.width >= full.width or level.height >= full.height:
        return False
    large, small = (full.width, full.height), (level.width, level.height)
    downsample = level_downsample(large, small)
    return all(abs(b - a / downsample) <= 1 for a, b in zip(large, small, strict=True))


class TileCache:
    """Cache of decoded tiles, which drops the least recently used first.

    Args:
        limit: Size in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._tiles: OrderedDict[Any, UInt8[np.ndarray, "h w 3"]] = OrderedDict()

    def get(self, key: Any) -> UInt8[np.ndarray, "h w 3"] | None:
        """Return a tile, or None if it is not in the cache."""
        tile = self._tiles.get(key)
        if tile is not None:
            self._tiles.move_to_end(key)
        return tile

    def put(self, key: Any, tile: UInt8[np.ndarray, "h w 3"]) -> None:
        """Add a tile, and drop the least recently used ones if the cache is full."""
        self._tiles[key] = tile
        self._bytes += tile.nbytes
        while self._bytes > self._limit and self._tiles:
            self._bytes -= self._tiles.popitem(last=False)[1].nbytes


class TiffPixels:
    """Pixels of a level. Only the tiles (or strips) that a window touches are decoded.

    Tiles that are missing in the file are white.

    Args:
        level: The level.
        cache: Cache of decoded tiles.
        where: Name of the file, for messages.
        bits: Used bits of a sample, if the file states them.

    Raises:
        SlideError: The pixels are stored in a way that is not read, or the file ends before them.
    """

    def __init__(
        self, level: TiffLevel, cache: TileCache, where: str, bits: int | None = None
    ) -> None:
        self._level = level
        self._cache = cache
        page = level.keyframe
        self._colours = _colours(level, bits, where)
        self.is_striped = not page.is_tiled
        self._tile_width = int(page.tilewidth if page.is_tiled else level.width)
        self._tile_height = int(page.tilelength if page.is_tiled else page.rowsperstrip)
        self._tile_height = min(self._tile_height, max(level.height, 1))
        self._across = math.ceil(level.width / self._tile_width)
        self._down = math.ceil(level.height / self._tile_height)
        self._planes = int(page.samplesperpixel) if int(page.planarconfig) == 2 else 1
        _check_length(level, where)
        # Pixels that lie in the file as they are need no decoding, not even a strip at a time.
        self._mapped: list[np.ndarray] | None = None
        if page.is_memmappable:
            self._mapped = [p.asarray(out="memmap", squeeze=False) for p in level.pages]
        elif self._tile_width * self._tile_height > MOST_TILE_PIXELS:
            raise SlideError(
                f"Expected tiles or strips of at most {MOST_TILE_PIXELS / 1e6:.0f} million pixels "
                f"in {where}, but got {self._tile_width} × {self._tile_height}. Save the slide "
                "as a tiled TIFF."
            )

    def window(self, x: int, y: int, width: int, height: int) -> UInt8[np.ndarray, "h w 3"]:
        """Read a window that lies within the level, in pixels of the level."""
        if self._mapped is not None:
            return self._mapped_window(self._mapped, x, y, width, height)
        result = np.empty((height, width, 3), dtype=np.uint8)
        for row in range(y // self._tile_height, (y + height - 1) // self._tile_height + 1):
            for column in range(x // self._tile_width, (x + width - 1) // self._tile_width + 1):
                tile = self._tile(row, column)
                left, top = column * self._tile_width, row * self._tile_height
                x0, x1 = max(x, left), min(x + width, left + self._tile_width)
                y0, y1 = max(y, top), min(y + height, top + self._tile_height)
                result[y0 - y : y1 - y, x0 - x : x1 - x] = tile[
                    y0 - top : y1 - top, x0 - left : x1 - left
                ]
        return result

    def _mapped_window(
        self, mapped: list[np.ndarray], x: int, y: int, width: int, height: int
    ) -> UInt8[np.ndarray, "h w 3"]:
        # Of each page: planes, depth, rows, columns, samples.
        parts = [plane[0, y : y + height, x : x + width] for page in mapped for plane in page[:]]
        samples = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
        return to_rgb(np.array(samples), self._colours)

    def _tile(self, row: int, column: int) -> UInt8[np.ndarray, "h w 3"]:
        key = (id(self), row, column)
        tile = self._cache.get(key)
        if tile is None:
            tile = self._decode(row * self._across + column)
            self._cache.put(key, tile)
        return tile

    def _decode(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        parts = []
        for page in self._level.pages:
            for plane in range(self._planes):
                part = _segment(page, plane * self._across * self._down + index)
                if part is None:
                    shape = (self._tile_height, self._tile_width, 3)
                    return np.full(shape, 255, dtype=np.uint8)
                parts.append(part)
        samples = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
        return to_rgb(samples, self._colours)


def _segment(page: Any, index: int) -> np.ndarray | None:
    """Decode a tile or strip of a page: rows, columns and samples; None where it is left out."""
    count = page.databytecounts[index]
    if count == 0:
        return None
    file = page.parent.filehandle
    file.seek(page.dataoffsets[index])
    data = file.read(count)
    if len(data) != count:
        raise OSError(f"the file ends {count - len(data)} bytes too early")
    if int(page.keyframe.compression) == _JPEG and data.rfind(_END_OF_JPEG) < 0:
        raise OSError("a JPEG tile is cut short")  # its decoder would fill up with grey
    options = {"jpegtables": page.jpegtables, "jpegheader": page.keyframe.jpegheader}
    decoded, _, _ = page.keyframe.decode(data, index, **options)
    return None if decoded is None else np.asarray(decoded[0])


def _check_length(level: TiffLevel, where: str) -> None:
    for page in level.pages:
        ends = [o + n for o, n in zip(page.dataoffsets, page.databytecounts, strict=False)]
        size = int(page.parent.filehandle.size)
        if ends and max(ends) > size:
            raise cut_short(max(ends), size, where)


def _colours(level: TiffLevel, bits: int | None, where: str) -> Colours:
    page = level.keyframe
    kind = _KINDS.get(int(page.photometric))
    if kind == "grey" and len(level.pages) == 3:
        kind = "rgb"
    if int(page.photometric) == _YCBCR and int(page.compression) not in _DECODED_TO_RGB:
        kind = None
    stored = None if page.dtype is None else np.dtype(page.dtype)
    is_whole = stored is not None and (stored.kind == "b" or stored in (np.uint8, np.uint16))
    samples = int(page.samplesperpixel) * len(level.pages)
    wanted = {"rgb": 3, "cmyk": 4}.get(kind or "", 1)
    if kind is None or not is_whole or samples < wanted or not isinstance(page.bitspersample, int):
        raise SlideError(
            f"Expected RGB, grey, CMYK or indexed colours of 8 or 16 bits in {where}, but got "
            f"{getattr(page.photometric, 'name', page.photometric)} of {samples} × {stored} "
            f"samples compressed as {getattr(page.compression, 'name', page.compression)}. "
            "Export the slide as RGB, 8 bits."
        )
    palette = None
    if kind == "palette":
        palette = (np.asarray(page.colormap).T // 257).astype(np.uint8)
    kinds = [_ALPHA.get(int(extra), "none") for extra in page.extrasamples]
    extra = next((place for place, name in enumerate(kinds) if name != "none"), None)
    used = int(page.bitspersample)
    return Colours(
        kind,  # type: ignore[arg-type]
        min(used, bits) if bits else used,
        "none" if extra is None else kinds[extra],  # type: ignore[arg-type]
        0 if extra is None else wanted + extra,
        palette,
    )
