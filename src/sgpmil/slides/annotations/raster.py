"""Annotations as an image."""

import numpy as np

from sgpmil.shapes import Bool
from sgpmil.slides.annotations.mask import AnnotationMask
from sgpmil.slides.annotations.regions import Annotations
from sgpmil.slides.optional_part import require_package

__all__ = ["rasterise"]


def rasterise(
    annotations: Annotations | AnnotationMask, downsample: int, shape: tuple[int, int]
) -> Bool[np.ndarray, "h w"]:
    """Say of each pixel of a reduced slide whether its centre is positive.

    Args:
        annotations: What was drawn on the slide.
        downsample: Side of a pixel in level-0 pixels.
        shape: Rows and columns of the image.

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
