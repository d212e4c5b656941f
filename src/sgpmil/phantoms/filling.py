"""Areas as pixels: a pixel belongs to an area if its centre lies inside.

OpenCV's polygons include every pixel that their outline touches, so that they are up to a pixel
larger than the area. Here a pixel counts exactly if its centre is inside, in every window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sgpmil.shapes import Bool, Float, Int, UInt8
from sgpmil.slides.optional_part import Geometry


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of level-0 pixels.

    Args:
        x: Left.
        y: Top.
        width: Width.
        height: Height.
    """

    x: int
    y: int
    width: int
    height: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.height, self.width

    def grown(self, margin: int) -> "Window":
        """Add a margin on every side.

        Example:
            >>> Window(0, 0, 4, 4).grown(1)
            Window(x=-1, y=-1, width=6, height=6)
        """
        return Window(
            self.x - margin, self.y - margin, self.width + 2 * margin, self.height + 2 * margin
        )

    def microns(self, mpp: float) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom in microns."""
        return (
            self.x * mpp,
            self.y * mpp,
            (self.x + self.width) * mpp,
            (self.y + self.height) * mpp,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Disjoint areas, ready to be filled.

    Args:
        edges: x, y of both ends of every edge, in pixels, ring by ring.
        starts: First edge of each ring, and the number of edges.
        bounds: Left, top, right and bottom of each ring.
    """

    edges: Float[np.ndarray, "E 4"]
    starts: Int[np.ndarray, " R_plus_1"]
    bounds: Float[np.ndarray, "R 4"]

    def touches(self, window: Window) -> bool:
        """Return whether a ring's bounds meet the window."""
        return bool(self._near(window).any())

    def fill(self, window: Window) -> UInt8[np.ndarray, "h w"]:
        """Return for each pixel of a window whether its centre is inside: 1 or 0.

        Example:
            >>> from shapely import box
            >>> layer_of([box(0.4, 0, 2.6, 1)]).fill(Window(0, 0, 4, 2))
            array([[1, 1, 1, 0],
                   [0, 0, 0, 0]], dtype=uint8)
        """
        image = np.zeros((window.height, window.width + 1), dtype=np.uint8)
        row, column = self._cuts(window)
        if not len(row):
            return image[:, :-1]
        # Inside begins and ends at every cut of a row: even-odd, so that holes are left out.
        np.bitwise_xor.at(image, (row, column), np.uint8(1))
        inner = column[(column > 0) & (column < window.width)]
        if not len(inner):
            image[:] = image[:, :1]
            return image[:, :-1]
        top, bottom = int(row.min()), int(row.max()) + 1
        left, right = int(inner.min()), int(inner.max()) + 1
        # Nothing changes left and right of the cuts, so only the part between is run through.
        part = image[top:bottom]
        part[:, 1:left] = part[:, :1]
        part[:, left] ^= part[:, 0]
        np.bitwise_xor.accumulate(part[:, left:right], axis=1, out=part[:, left:right])
        part[:, right:] = part[:, right - 1 : right]
        return image[:, :-1]

    def _cuts(self, window: Window) -> tuple[Int[np.ndarray, " K"], Int[np.ndarray, " K"]]:
        """Find where edges cut the middle lines of rows: row, and first column right of it."""
        near = np.flatnonzero(self._near(window))
        if not len(near):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        edges = np.concatenate([self.edges[self.starts[r] : self.starts[r + 1]] for r in near])
        x0, y0, x1, y1 = edges.T
        top, bottom = window.y, window.y + window.height
        # An edge cuts the rows whose middle lies between its ends, the upper end included.
        first = np.clip(np.ceil(np.minimum(y0, y1) - 0.5), top, bottom).astype(np.int64)
        last = np.clip(np.ceil(np.maximum(y0, y1) - 0.5), top, bottom).astype(np.int64)
        count = last - first
        edge = np.repeat(np.arange(len(edges)), count)
        row = first[edge] + np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count)
        slope = (x1 - x0)[edge] / (y1 - y0)[edge]
        cut = x0[edge] + (row + 0.5 - y0[edge]) * slope
        column = np.clip(np.ceil(cut - 0.5) - window.x, 0, window.width).astype(np.int64)
        return row - window.y, column

    def _near(self, window: Window) -> Bool[np.ndarray, " R"]:
        left, top, right, bottom = self.bounds.T
        across = (left < window.x + window.width) & (right > window.x)
        return across & (top < window.y + window.height) & (bottom > window.y)


def layer_of(areas: Sequence[Geometry]) -> Layer:
    """Prepare disjoint areas for filling.

    Args:
        areas: Polygons or MultiPolygons in pixels that do not overlap.
    """
    import shapely

    polygons = shapely.get_parts(np.array(list(areas), dtype=object))
    rings = shapely.get_rings(polygons[~shapely.is_empty(polygons)])
    points = [shapely.get_coordinates(ring) for ring in rings]
    pieces = [np.hstack([corners[:-1], corners[1:]]) for corners in points]
    return Layer(
        np.concatenate([np.empty((0, 4)), *pieces]),
        np.cumsum([0, *map(len, pieces)]),
        shapely.bounds(rings).reshape(-1, 4),
    )
