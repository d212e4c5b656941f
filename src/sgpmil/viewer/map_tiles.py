"""Tiles of maps: scores and prototypes of patches as colours, at any zoom."""

from io import BytesIO

import numpy as np

from sgpmil.explanation.colour_scales import ColourScale, scaled_to_range
from sgpmil.explanation.maps import NO_PATCH, score_map
from sgpmil.shapes import Float, Int, UInt8
from sgpmil.viewer.pyramid import Pyramid
from sgpmil.viewer.scored_slide import ScoredSlide

MAP_TILE = 256
_COLOURS = 255
"""Colours of a tile; one more number of its palette is transparent."""
_FAINTEST, _FULL = 0.2, 0.35
"""Opacity of a score that says nothing, and the share of the scale from which all is opaque."""
_MOST_AT_ONCE = 2_000_000
_CANVAS, _PATCH, _EDGE = (236, 238, 241), (250, 250, 250), (196, 202, 210)
"""Colours of an empty canvas, of the patches on it, and of their edges."""


def map_pyramid(size: tuple[int, int]) -> Pyramid:
    """Return the tiles of a map over a slide of some size; they do not overlap."""
    return Pyramid(*size, MAP_TILE, 0)


def score_tile(
    slide: ScoredSlide,
    values: Float[np.ndarray, " N"],
    pyramid: Pyramid,
    level: int,
    column: int,
    row: int,
) -> Float[np.ndarray, "h w"] | None:
    """Lay the scores of patches on a tile, as `score_map` lays them on the whole slide.

    Returns:
        The score of each pixel, NaN where there is no patch; None where there is no such tile.
    """
    box = pyramid.box(level, column, row)
    if box is None:
        return None
    x, y, width, height = box
    cell = pyramid.downsample(level)
    place = x * cell, y * cell, (x + width) * cell, (y + height) * cell
    # Beyond the slide there is nothing.
    place = *place[:2], min(place[2], pyramid.width), min(place[3], pyramid.height)
    found = slide.within(*place)
    found = found[np.isfinite(values[found])]
    if not len(found):
        return np.full((height, width), np.nan, dtype=np.float32)
    corner = np.array(place[:2])
    return score_map(
        slide.coords[found] - corner,
        slide.side,
        values[found],
        slide_size=(place[2] - place[0], place[3] - place[1]),
        downsample=float(cell),
    ).values


def label_tile(
    slide: ScoredSlide,
    labels: Int[np.ndarray, " N"],
    priority: Float[np.ndarray, " N"],
    pyramid: Pyramid,
    level: int,
    column: int,
    row: int,
) -> Int[np.ndarray, "h w"] | None:
    """Lay numbers of patches on a tile: at each pixel's centre, the patch of largest priority.

    A patch smaller than a pixel is one pixel.

    Returns:
        The number of each pixel, `NO_PATCH` where there is no patch; None where there is no tile.
    """
    box = pyramid.box(level, column, row)
    if box is None:
        return None
    x, y, width, height = box
    cell = pyramid.downsample(level)
    result = np.full((height, width), NO_PATCH, dtype=np.int32)
    found = slide.within(x * cell, y * cell, (x + width) * cell, (y + height) * cell)
    found = found[np.argsort(priority[found], kind="stable")]
    corners = slide.coords[found] / cell - np.array([x, y])
    first = np.ceil(corners - 0.5).astype(np.int64)
    last = np.maximum(first + 1, np.ceil(corners + slide.side / cell - 0.5).astype(np.int64))
    first, last = np.clip(first, 0, None), np.minimum(last, np.array([width, height]))
    span = int((last - first).max(initial=1))
    step = max(1, _MOST_AT_ONCE // span**2)
    within = np.arange(span)
    for begin in range(0, len(found), step):
        part = slice(begin, begin + step)
        rows = first[part, 1, None, None] + within[:, None]
        columns = first[part, 0, None, None] + within
        rows, columns = np.broadcast_arrays(rows, columns)
        inside = (rows < last[part, 1, None, None]) & (columns < last[part, 0, None, None])
        numbers = np.broadcast_to(labels[found[part], None, None], inside.shape)
        # Of equal places, numpy keeps the last written.
        result[rows[inside], columns[inside]] = numbers[inside]
    return result


def coloured_png(
    values: Float[np.ndarray, "h w"],
    scale: ColourScale,
    ends: tuple[float, float],
    *,
    is_signed: bool = False,
    fades: bool = False,
) -> bytes:
    """Encode scores as a PNG of the scale's colours; NaN is transparent.

    Args:
        values: The scores.
        scale: The colours.
        ends: Scores at the ends of the colours.
        is_signed: Whether the scores that say nothing are in the middle of the scale.
        fades: Whether the slide shows through scores that say little, which are pale: they would
            bleach the tissue, so that what has no score stood out.
    """
    share = scaled_to_range(values.astype(np.float64), ends)
    known = ~np.isnan(share)
    numbers = np.zeros(values.shape, dtype=np.uint8)
    numbers[known] = 1 + np.rint(share[known] * (_COLOURS - 1)).astype(np.uint8)
    size = np.linspace(0.0, 1.0, _COLOURS)
    size = np.abs(2 * size - 1) if is_signed else size
    shown = np.clip(_FAINTEST + (1 - _FAINTEST) * size / _FULL, 0, 1) if fades else size * 0 + 1
    return _palette_png(numbers, scale.table(_COLOURS), np.rint(255 * shown).astype(np.uint8))


def label_png(labels: Int[np.ndarray, "h w"], colours: dict[int, str]) -> bytes:
    """Encode numbers of prototypes as a PNG of their colours; no patch is transparent."""
    distinct = sorted(set(colours.values()))[:_COLOURS]
    rank = {colour: number for number, colour in enumerate(distinct, start=1)}
    table = np.zeros(max([*colours, 0]) + 2, dtype=np.uint8)
    for number, colour in colours.items():
        table[number] = rank.get(colour, 0)
    # NO_PATCH is -1, the last of the table: transparent.
    palette = np.array([tuple(bytes.fromhex(c[1:])) for c in distinct], dtype=np.uint8)
    return _palette_png(table[labels], palette.reshape(-1, 3))


def canvas_tile(
    slide: ScoredSlide, pyramid: Pyramid, level: int, column: int, row: int
) -> UInt8[np.ndarray, "h w 3"] | None:
    """Draw the patches of a slide without an image: light squares with edges, where they fit."""
    box = pyramid.box(level, column, row)
    if box is None:
        return None
    x, y, width, height = box
    cell = pyramid.downsample(level)
    numbers = np.zeros(slide.num_patches, dtype=np.int64)
    covered = label_tile(slide, numbers, numbers.astype(float), pyramid, level, column, row)
    pixels = np.full((height, width, 3), _CANVAS, dtype=np.uint8)
    if covered is None:
        return None
    pixels[covered != NO_PATCH] = _PATCH
    if slide.side / cell < 8:
        return pixels
    found = slide.within(x * cell, y * cell, (x + width) * cell, (y + height) * cell)
    for left, top in (slide.coords[found] / cell - np.array([x, y])).tolist():
        right, bottom = left + slide.side / cell, top + slide.side / cell
        rows = slice(max(0, round(top)), max(0, round(bottom)))
        columns = slice(max(0, round(left)), max(0, round(right)))
        for edge in (round(left), round(right) - 1):
            if 0 <= edge < width:
                pixels[rows, edge] = _EDGE
        for edge in (round(top), round(bottom) - 1):
            if 0 <= edge < height:
                pixels[edge, columns] = _EDGE
    return pixels


def _palette_png(
    numbers: UInt8[np.ndarray, "h w"],
    palette: UInt8[np.ndarray, "K 3"],
    opacity: UInt8[np.ndarray, " K"] | None = None,
) -> bytes:
    """Encode numbers of colours from 1, which are opaque unless told; 0 is transparent."""
    from PIL import Image

    image = Image.fromarray(numbers).convert("L")
    image.putpalette([0, 0, 0, *palette.reshape(-1).tolist()])
    content = BytesIO()
    transparency = bytes([0]) if opacity is None else bytes([0, *opacity.tolist()])
    image.save(content, "PNG", transparency=transparency, compress_level=1)
    return content.getvalue()
