"""Positive share and label of each patch."""

import numpy as np

from sgpmil.errors import AnnotationError
from sgpmil.shapes import Float, Int
from sgpmil.slides.annotations.mask import AnnotationMask
from sgpmil.slides.annotations.regions import Annotations
from sgpmil.slides.optional_part import Geometry, require_package

TOLERANCE = 1e-9
"""Rounding error allowed below `min_coverage`."""

_MOST_CORNERS, _MOST_CUTS = 256, 16


def patch_coverage(
    coords: Int[np.ndarray, "N 2"], patch_size: int, annotations: Annotations | AnnotationMask
) -> Float[np.ndarray, " N"]:
    r"""Return the positive share of each patch's footprint.

    $$ \gamma_k = \frac{|Q_k \cap P|}{|Q_k|}, \qquad
       Q_k = [x_k, x_k + s) \times [y_k, y_k + s) $$

    with P the union of the positive regions. The areas are exact: of polygons by their
    intersection, of masks by the integral image, whose bilinear interpolation is the exact
    integral of an image that is constant within its pixels.

    Args:
        coords: Top-left corner (x, y) of each patch in level-0 pixels.
        patch_size: Side s of a patch in level-0 pixels.
        annotations: Annotations of the slide.

    Raises:
        AnnotationError: The patches have no size, or begin beyond the end of the mask.

    Example:
        >>> from shapely import box
        >>> from sgpmil.slides.annotations.regions import Region
        >>> drawn = Annotations((Region(box(0, 0, 3, 8), "tumour"),))
        >>> patch_coverage(np.array([[0, 0], [2, 0], [4, 0]]), 2, drawn)
        array([1. , 0.5, 0. ])
    """
    _check_size(patch_size)
    if isinstance(annotations, AnnotationMask):
        return _mask_coverage(coords, patch_size, annotations)
    return _polygon_coverage(coords, patch_size, annotations.positive_area())


def patch_labels(
    coords: Int[np.ndarray, "N 2"],
    patch_size: int,
    annotations: Annotations | AnnotationMask,
    min_coverage: float = 0.5,
) -> Int[np.ndarray, " N"]:
    r"""Label patches: 1 is positive, 0 negative and -1 unknown.

    A patch is positive where $\gamma_k \ge \gamma_{\min}$, or $\gamma_k > 0$ for
    $\gamma_{\min} = 0$ (see `patch_coverage`). The others are negative; where tissue outside
    every region is unknown, only those that negative regions cover in the same sense are.

    Args:
        coords: Top-left corner (x, y) of each patch in level-0 pixels.
        patch_size: Side of a patch in level-0 pixels.
        annotations: Annotations of the slide.
        min_coverage: Least share $\gamma_{\min}$ of a patch; 0 means any overlap.

    Raises:
        AnnotationError: `min_coverage` is not a share, the patches have no size, or they begin
            beyond the end of the mask.
    """
    if not 0 <= min_coverage <= 1:
        raise AnnotationError(
            f"Expected a least coverage between 0 and 1, but got {min_coverage}. Use 0.5."
        )

    def is_covered(coverage: Float[np.ndarray, " N"]) -> np.ndarray:
        return coverage > 0 if min_coverage == 0 else coverage >= min_coverage - TOLERANCE

    positive = is_covered(patch_coverage(coords, patch_size, annotations))
    labels = positive.astype(np.int64)
    if isinstance(annotations, Annotations) and annotations.unannotated == "unknown":
        coverage = _polygon_coverage(coords, patch_size, annotations.negative_area())
        labels[~positive & ~is_covered(coverage)] = -1
    return labels


def _polygon_coverage(
    coords: Int[np.ndarray, "N 2"], patch_size: int, area: Geometry
) -> Float[np.ndarray, " N"]:
    require_package("shapely")
    import shapely

    covered = np.zeros(len(coords))
    if len(coords) == 0 or area.is_empty:
        return covered
    x, y = coords[:, 0], coords[:, 1]
    squares = shapely.box(x, y, x + patch_size, y + patch_size)
    pieces = _cut(area)
    piece, square = shapely.STRtree(squares).query(pieces, predicate="intersects")
    inside = shapely.contains_properly(pieces[piece], squares[square])
    np.add.at(covered, square[inside], float(patch_size) ** 2)
    piece, square = piece[~inside], square[~inside]
    shared = shapely.area(shapely.intersection(pieces[piece], squares[square]))
    np.add.at(covered, square, shared)
    return np.clip(covered / float(patch_size) ** 2, 0.0, 1.0)


def _cut(area: Geometry) -> np.ndarray:
    """Cut an area into quarters until none has many corners.

    Otherwise each patch on an outline of thousands of corners would visit all of them.
    """
    import shapely

    pieces = shapely.get_parts(area)
    for _ in range(_MOST_CUTS):
        large = shapely.get_num_coordinates(pieces) > _MOST_CORNERS
        if not large.any():
            break
        left, top, right, bottom = shapely.bounds(pieces[large]).T[:, :, None]
        middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
        quarters = shapely.box(
            np.hstack([left, middle_x, left, middle_x]),
            np.hstack([top, top, middle_y, middle_y]),
            np.hstack([middle_x, right, middle_x, right]),
            np.hstack([middle_y, middle_y, bottom, bottom]),
        )
        cut = shapely.get_parts(shapely.intersection(pieces[large][:, None], quarters).ravel())
        pieces = np.concatenate([pieces[~large], cut[shapely.area(cut) > 0]])
    shapely.prepare(pieces)
    return np.asarray(pieces)


def _mask_coverage(
    coords: Int[np.ndarray, "N 2"], patch_size: int, mask: AnnotationMask
) -> Float[np.ndarray, " N"]:
    width, height = mask.slide_size
    beyond = (coords[:, 0] >= width) | (coords[:, 1] >= height)
    if beyond.any():
        x, y = coords[beyond][0].tolist()
        raise AnnotationError(
            f"Expected patches within the mask, {width:.0f} × {height:.0f} level-0 pixels, but "
            f"got one at ({x}, {y}). Give the mask's downsample, or the slide's size."
        )
    rows, columns = mask.pixels.shape
    count = np.int32 if mask.pixels.size < 2**31 else np.int64
    integral = np.zeros((rows + 1, columns + 1), dtype=count)
    np.cumsum(mask.pixels, axis=0, dtype=count, out=integral[1:, 1:])
    np.cumsum(integral, axis=1, out=integral)

    def below(x: Float[np.ndarray, " N"], y: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Integrate from the origin to a point."""
        x, y = np.clip(x, 0, columns), np.clip(y, 0, rows)
        i = np.minimum(x.astype(np.int64), columns - 1)
        j = np.minimum(y.astype(np.int64), rows - 1)
        u, v = x - i, y - j
        upper = (1 - u) * integral[j, i] + u * integral[j, i + 1]
        lower = (1 - u) * integral[j + 1, i] + u * integral[j + 1, i + 1]
        return np.asarray((1 - v) * upper + v * lower)

    left, top = coords[:, 0] / mask.downsample, coords[:, 1] / mask.downsample
    side = patch_size / mask.downsample
    right, bottom = left + side, top + side
    covered = below(right, bottom) - below(left, bottom) - below(right, top) + below(left, top)
    # Differences of large sums are inexact. No coverage must be exactly 0 for "any overlap".
    covered = np.where(covered < 1e-6, 0.0, covered)
    return np.clip(covered / side**2, 0.0, 1.0)


def _check_size(patch_size: int) -> None:
    if patch_size <= 0:
        raise AnnotationError(
            f"Expected patches with a side above 0, but got {patch_size}. "
            "Extract the bags with the patch size."
        )
