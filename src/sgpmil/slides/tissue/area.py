"""The tissue of a slide, and the outline of a mask."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sgpmil.shapes import Bool, Float
from sgpmil.slides.optional_part import require_package

if TYPE_CHECKING:
    from shapely import Geometry
else:
    Geometry = Any  # shapely is of an optional part, and is loaded when it is first needed

__all__ = ["Tissue", "outline"]


@dataclass(frozen=True, slots=True, eq=False)
class Tissue:
    """Where a slide has tissue.

    Args:
        area: A valid shapely Polygon or MultiPolygon in level-0 pixels; empty without tissue.
    """

    area: Geometry


def outline(
    mask: Bool[np.ndarray, "h w"],
    x_edges: Float[np.ndarray, " w_plus_1"],
    y_edges: Float[np.ndarray, " h_plus_1"],
) -> Geometry:
    """Give the area that the pixels of a mask cover, along the edges of the pixels.

    Args:
        mask: Which pixels are covered.
        x_edges: Left edge of each column, and the right edge of the last.
        y_edges: Upper edge of each row, and the lower edge of the last.

    Returns:
        A valid MultiPolygon with holes, whose area is exactly that of the pixels.

    Example:
        >>> edges = np.array([0.0, 4.0, 8.0])
        >>> outline(np.eye(2, dtype=bool), edges, edges).area
        32.0
    """
    require_package("shapely")
    require_package("cv2")
    import cv2
    import shapely

    # OpenCV walks along the centres of pixels. With every pixel doubled, the first of a pair
    # stands for its near edge and the second for its far edge: 2c and 2c + 1 become c and c + 1.
    doubled = np.repeat(np.repeat(mask.astype(np.uint8), 2, axis=0), 2, axis=1)
    contours, links = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    if not contours:
        return shapely.MultiPolygon()
    corners = (np.concatenate(contours).reshape(-1, 2) + 1) // 2
    points = np.stack([x_edges[corners[:, 0]], y_edges[corners[:, 1]]], axis=1)
    owner = np.repeat(np.arange(len(contours)), [len(contour) for contour in contours])
    rings = shapely.remove_repeated_points(shapely.linearrings(points, indices=owner))

    parent = np.asarray(links).reshape(-1, 4)[:, 3]
    holes: dict[int, list[Geometry]] = {}
    for ring, shell in zip(rings[parent >= 0], parent[parent >= 0].tolist(), strict=True):
        holes.setdefault(shell, []).append(ring)
    areas = np.array(
        [
            shapely.Polygon(rings[shell], holes.get(shell))
            for shell in np.flatnonzero(parent < 0).tolist()
        ]
    )
    # Where pixels touch only at a corner, a ring touches itself there.
    crossed = ~shapely.is_valid(areas)
    areas[crossed] = shapely.make_valid(areas[crossed])
    parts = shapely.get_parts(shapely.get_parts(areas))
    return shapely.MultiPolygon(list(parts[shapely.area(parts) > 0]))
