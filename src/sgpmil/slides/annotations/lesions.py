r"""Connected lesions of a slide.

CAMELYON16 evaluates on a mask of its own: regions less than 75 µm apart are one lesion, holes
are filled, a hit within 37.5 µm of a region counts, and lesions whose major axis, so enlarged,
is below 275 µm are isolated tumour cells, which count neither as found nor as missed. That is
`find_lesions(annotations, merge_distance=75 / mpp, min_diameter=275 / mpp)`, with mpp the side
of a level-0 pixel in µm (0.243 in CAMELYON16).
"""

from dataclasses import dataclass

import numpy as np

from sgpmil.errors import AnnotationError
from sgpmil.shapes import Bool, Float, Int
from sgpmil.slides.annotations.mask import AnnotationMask, mask_polygons
from sgpmil.slides.annotations.regions import Annotations
from sgpmil.slides.optional_part import Geometry, require_package

NO_LESION = -1
"""The lesion of a point that lies in none."""


@dataclass(frozen=True, slots=True, eq=False)
class Lesions:
    """The lesions of one slide.

    Args:
        outlines: Area of each lesion (shapely Polygons) in level-0 pixels.
        counted: Whether each is large enough to count.
    """

    outlines: tuple[Geometry, ...]
    counted: Bool[np.ndarray, " L"]

    @property
    def num_counted(self) -> int:
        """Number of lesions that count."""
        return int(self.counted.sum())

    def hits(self, points: Float[np.ndarray, "K 2"]) -> Int[np.ndarray, " K"]:
        """Find the lesion that each point (x, y) lies in, or `NO_LESION`.

        Args:
            points: Points in level-0 pixels; one on the outline is inside.
        """
        found = np.full(len(points), NO_LESION)
        if not self.outlines or len(points) == 0:
            return found
        import shapely

        tree = shapely.STRtree(list(self.outlines))
        point, lesion = tree.query(shapely.points(points), predicate="intersects")
        found[point] = lesion
        return found


def find_lesions(
    annotations: Annotations | AnnotationMask,
    *,
    merge_distance: float = 0.0,
    min_diameter: float = 0.0,
) -> Lesions:
    """Find the connected lesions, with their holes filled.

    Args:
        annotations: Annotations of the slide.
        merge_distance: Regions nearer than this are one lesion; each lesion grows by half of it
            all around.
        min_diameter: Lesions whose major axis (see `major_axis`), so grown, is below this do not
            count.

    Raises:
        AnnotationError: A distance is negative.
    """
    require_package("shapely")
    import shapely

    if merge_distance < 0 or min_diameter < 0:
        raise AnnotationError(
            f"Expected distances of at least 0 for lesions, but got {merge_distance} and "
            f"{min_diameter}. Use 0 to leave the regions as they are."
        )
    drawn = mask_polygons(annotations) if isinstance(annotations, AnnotationMask) else annotations
    area = drawn.positive_area()
    if merge_distance > 0:
        # Part by part: the outlines of thousands of parts at once would cross one another.
        grown = shapely.buffer(shapely.get_parts(area), merge_distance / 2)
        area = shapely.union_all(grown)
    shells = shapely.polygons(shapely.get_exterior_ring(shapely.get_parts(area)))
    # Filling a hole may swallow an island in it: unite once more.
    outlines = tuple(shapely.get_parts(shapely.union_all(shells)))
    counted = np.array([major_axis(outline) >= min_diameter for outline in outlines], dtype=bool)
    return Lesions(outlines, counted)


def major_axis(outline: Geometry) -> float:
    r"""Return the major axis of the ellipse with the same second moments as an area.

    $$ d = 4 \sqrt{\lambda_{\max}(\Sigma)}, \qquad
       \Sigma = \frac{1}{|A|} \int_A (r - \bar r)(r - \bar r)^\top \, dr $$

    For an ellipse it is its longest diameter. The integrals are sums over the sides of the
    polygon (Green's theorem).

    Example:
        >>> from shapely import box
        >>> round(major_axis(box(0, 0, 3, 1)), 6)  # 4 · 3 / √12
        3.464102
    """
    import shapely

    ring = shapely.get_coordinates(outline.exterior)
    # Around a corner of its own: far from the origin the moments would cancel.
    points = ring - ring[0]
    x, y, x2, y2 = points[:-1, 0], points[:-1, 1], points[1:, 0], points[1:, 1]
    cross = x * y2 - x2 * y
    area = cross.sum() / 2
    mean_x, mean_y = (cross * (x + x2)).sum() / 6 / area, (cross * (y + y2)).sum() / 6 / area
    xx = (cross * (x * x + x * x2 + x2 * x2)).sum() / 12 / area - mean_x**2
    yy = (cross * (y * y + y * y2 + y2 * y2)).sum() / 12 / area - mean_y**2
    xy = (cross * (x * y2 + 2 * x * y + 2 * x2 * y2 + x2 * y)).sum() / 24 / area - mean_x * mean_y
    largest = (xx + yy) / 2 + float(np.hypot((xx - yy) / 2, xy))
    return float(4 * np.sqrt(max(0.0, largest)))
