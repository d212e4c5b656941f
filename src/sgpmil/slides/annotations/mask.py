"""Masks: rasters of the positive area of a slide."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.errors import AnnotationError, damage_as
from sgpmil.shapes import Bool, Float, Int
from sgpmil.slides.annotations.region_files import regular_file
from sgpmil.slides.annotations.regions import Annotations, Region
from sgpmil.slides.optional_part import require_package
from sgpmil.slides.reading.tiff_file import quiet_tifffile

MOST_PIXELS = 2**25
"""Pixels of the largest level of a pyramid that is read: 33 million."""
_MOST_BYTES = 2**30
"""Bytes of a mask without such a level, and of one of its tiles."""

_MOST_SIDES = 2**18
"""Sides of the outlines of a mask: some seconds of work."""
_MOST_OUTLINES = 2**13
"""Areas of a mask that do not touch, but at corners."""


@dataclass(frozen=True, slots=True, eq=False)
class AnnotationMask:
    """Positive pixels of a reduced slide.

    Args:
        pixels: Whether each pixel is positive, a row an image row.
        downsample: Side of a pixel in level-0 pixels.
    """

    pixels: Bool[np.ndarray, "h w"]
    downsample: float

    @property
    def is_positive(self) -> bool:
        """Return whether any area is positive."""
        return bool(self.pixels.any())

    @property
    def slide_size(self) -> tuple[float, float]:
        """Width and height in level-0 pixels."""
        height, width = self.pixels.shape
        return width * self.downsample, height * self.downsample


def read_mask(
    path: str | os.PathLike[str],
    *,
    downsample: float | None = None,
    slide_size: tuple[int, int] | None = None,
    positive_values: tuple[int, ...] = (),
) -> AnnotationMask:
    """Read a mask from a TIFF: one image, or a pyramid.

    Of a pyramid, the largest level of at most 33 million pixels is read; the masks of CAMELYON16
    are then 32 times smaller than the slide.

    Args:
        path: File to read.
        downsample: Side of a pixel of the largest level in level-0 pixels of the slide. By
            default it follows from `slide_size`, else it is 1: the mask is as large as the slide.
        slide_size: Width and height of the slide in level-0 pixels.
        positive_values: Values that are positive; by default all above 0.

    Raises:
        AnnotationError: The file is missing, damaged or no mask, or has not the slide's shape.
    """
    require_package("tifffile")
    require_package("imagecodecs")  # tifffile needs it for compressed files, and says so late
    file = regular_file(path)
    where = f"'{file}'"
    with damage_as(AnnotationError, "a mask as TIFF", file, "Save it again."):
        largest, image = _read_tiff(file)
    if image.ndim == 3 and image.shape[2] in (3, 4):
        image = image[:, :, :3].max(axis=2)  # less an alpha channel
    if image.ndim != 2 or image.size == 0:
        raise AnnotationError(
            f"Expected a mask of one channel in {where}, but got an image of shape {image.shape}. "
            "Save the mask as a greyscale TIFF."
        )
    if downsample is None:
        downsample = 1.0 if slide_size is None else _ratio(slide_size, largest, where)
    width, height = image.shape[1], image.shape[0]
    within = _ratio(largest, (width, height), where)
    positive = np.isin(image, positive_values) if positive_values else image > 0
    return AnnotationMask(positive, float(downsample) * within)


def mask_polygons(mask: AnnotationMask) -> Annotations:
    """Turn a mask into the outlines of its pixels.

    Raises:
        AnnotationError: There are more than 260,000 sides or 8,192 areas, as noise has.

    Example:
        >>> mask_polygons(AnnotationMask(np.eye(2, dtype=bool), 4.0)).positive_area().area
        32.0
    """
    require_package("shapely")
    import shapely

    if not mask.is_positive:
        return Annotations(())
    faces = shapely.get_parts(shapely.polygonize(shapely.linestrings(_sides(mask.pixels))))
    x, y = shapely.get_coordinates(shapely.point_on_surface(faces)).astype(np.int64).T
    inside = faces[mask.pixels[y, x]]  # the others are holes
    if len(inside) > _MOST_OUTLINES:
        raise AnnotationError(
            f"Expected a mask of at most {_MOST_OUTLINES} areas, but it has {len(inside)}, "
            "as noise has. Save the mask smaller, or remove its specks."
        )
    area = shapely.transform(shapely.multipolygons(inside), lambda xy: xy * mask.downsample)
    return Annotations((Region(area, "mask"),))


def _sides(pixels: Bool[np.ndarray, "h w"]) -> Float[np.ndarray, "S 2 2"]:
    """Return the sides of the outlines of pixels, from corner to corner: far fewer than pixels."""
    framed = np.pad(pixels, 1)
    below = framed[1:, 1:-1] != framed[:-1, 1:-1]  # whether an edge is above each pixel
    beside = framed[1:-1, 1:] != framed[1:-1, :-1]
    upper, lower = framed[:-1], framed[1:]
    along = (upper[:, :-1] == upper[:, 1:]) & (lower[:, :-1] == lower[:, 1:])
    down = (upper[:, :-1] == lower[:, :-1]) & (upper[:, 1:] == lower[:, 1:])
    corners = ~(along | down)
    count = 2 * int(corners.sum())  # at most: a corner ends two sides, or four
    if count > _MOST_SIDES:
        raise AnnotationError(
            f"Expected a mask whose outlines have at most {_MOST_SIDES} sides, but it has up to "
            f"{count}, as noise has. Save the mask smaller, or remove its specks."
        )
    row, left, right = _stretches(below, corners)
    column, top, bottom = _stretches(beside.T, corners.T)
    ends = [(left, row, right, row), (column, top, column, bottom)]
    sides = np.concatenate([np.stack(one, axis=1) for one in ends])
    return sides.reshape(-1, 2, 2).astype(np.float64)


def _stretches(
    edges: Bool[np.ndarray, "L N"], corners: Bool[np.ndarray, "L M"]
) -> tuple[Int[np.ndarray, " S"], Int[np.ndarray, " S"], Int[np.ndarray, " S"]]:
    """Return line, beginning and end of the stretches of edges between corners."""
    framed = np.pad(edges, ((0, 0), (1, 1)))
    line, start = np.nonzero(framed[:, 1:] & (corners | ~framed[:, :-1]))
    _, end = np.nonzero(framed[:, :-1] & (corners | ~framed[:, 1:]))
    return line, start, end


def _read_tiff(file: Path) -> tuple[tuple[int, int], np.ndarray]:
    """Return width and height of the largest level, and the pixels of the level that is read."""
    import tifffile

    with quiet_tifffile(), tifffile.TiffFile(file) as content:
        levels: list[Any] = list(content.series[0].levels)
        small = [level for level in levels if math.prod(level.shape[:2]) <= MOST_PIXELS]
        shape, chosen = levels[0].shape, small[0] if small else levels[-1]
        page = chosen.keyframe
        tile = math.prod(page.chunks) * page.dtype.itemsize if page.dtype is not None else 0
        if max(chosen.nbytes, tile) > _MOST_BYTES:
            raise AnnotationError(
                f"Expected a mask of at most {_MOST_BYTES // 2**20} MiB in '{file}', or a pyramid "
                f"with such a level, but got one of {max(chosen.nbytes, tile) // 2**20} MiB. Save "
                "it as a pyramid, or smaller."
            )
        image = np.asarray(chosen.asarray())
    return (int(shape[1]), int(shape[0])), image


def _ratio(large: tuple[int, int], small: tuple[int, int], where: str) -> float:
    """Return how many times smaller an image is: a power of two if rounding allows one."""
    by_side = [a / b for a, b in zip(large, small, strict=True)]
    mean = sum(by_side) / 2
    power = 2.0 ** round(math.log2(mean))
    if all(abs(b - a / power) < 1 for a, b in zip(large, small, strict=True)):
        return power
    if any(abs(b - a / mean) > 1 for a, b in zip(large, small, strict=True)):
        raise AnnotationError(
            f"Expected a mask of the slide's shape, {large[0]} × {large[1]} made smaller, but got "
            f"{small[0]} × {small[1]} in {where}. Check that the mask is of this slide."
        )
    return mean


def rasterise(
    annotations: Annotations | AnnotationMask, downsample: int, shape: tuple[int, int]
) -> Bool[np.ndarray, "h w"]:
    """Return for each pixel of a reduced slide whether its centre is positive.

    Example:
        >>> from shapely import box
        >>> from sgpmil.slides.annotations.regions import Region
        >>> drawn = Annotations((Region(box(0, 0, 10, 4)),))
        >>> rasterise(drawn, 4, (2, 3)).astype(int)
        array([[1, 1, 0],
               [0, 0, 0]])
    """
    image = np.zeros(shape, dtype=bool)
    if isinstance(annotations, AnnotationMask):
        rows, columns = (
            ((np.arange(count) + 0.5) * downsample / annotations.downsample).astype(np.int64)
            for count in shape
        )
        height, width = annotations.pixels.shape
        rows, columns = rows[rows < height], columns[columns < width]
        image[: len(rows), : len(columns)] = annotations.pixels[np.ix_(rows, columns)]
        return image
    require_package("shapely")
    import shapely

    for part in shapely.get_parts(annotations.positive_area()):
        left, top, right, bottom = part.bounds
        first_row, first_column = max(0, int(top // downsample)), max(0, int(left // downsample))
        window = image[
            first_row : int(bottom // downsample) + 1, first_column : int(right // downsample) + 1
        ]
        y = (first_row + np.arange(window.shape[0]) + 0.5) * downsample
        x = (first_column + np.arange(window.shape[1]) + 0.5) * downsample
        shapely.prepare(part)
        window |= shapely.contains_xy(part, *np.meshgrid(x, y))
    return image
