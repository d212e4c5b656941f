"""Rings as they were drawn become valid areas."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sgpmil.shapes import Float
from sgpmil.slides.optional_part import require_package

if TYPE_CHECKING:
    from shapely import Geometry
else:
    Geometry = Any  # shapely is of an optional part, and is loaded when it is first needed

__all__ = ["area_of_rings"]

_FEWEST_POINTS = 3


def area_of_rings(
    shell: Float[np.ndarray, "K 2"], holes: Sequence[Float[np.ndarray, "_ 2"]] = ()
) -> Geometry | None:
    """Make a valid area of drawn rings.

    A line that crosses itself encloses everything it goes around, once or more often: both
    lobes of a figure of eight, and the middle of a pentagram. (The even-odd rule would make a
    hole of the middle.)

    Args:
        shell: Corners of the outer ring, closed or not.
        holes: Corners of the rings that are cut out; those without an area are passed over.

    Returns:
        A Polygon or MultiPolygon; None where fewer than three points or no area is left.

    Example:
        >>> area_of_rings(np.array([[0.0, 0.0], [2.0, 2.0], [2.0, 0.0], [0.0, 2.0]])).area
        2.0
    """
    require_package("shapely")
    import shapely

    area = _ring(shell)
    if area is None:
        return None
    cut_out = [hole for hole in map(_ring, holes) if hole is not None]
    if cut_out:
        area = shapely.difference(area, shapely.union_all(cut_out))
    return None if area.is_empty else area


def _ring(points: Float[np.ndarray, "K 2"]) -> Geometry | None:
    import shapely

    if len(np.unique(points, axis=0)) < _FEWEST_POINTS:
        return None
    valid = shapely.make_valid(shapely.Polygon(points), method="structure", keep_collapsed=False)
    parts = shapely.get_parts(valid)
    parts = parts[shapely.area(parts) > 0]
    return shapely.union_all(parts) if len(parts) else None
