"""Positions of cells in a window, by the paint of each pixel."""

import numpy as np

from sgpmil.phantoms.anatomy import Ring
from sgpmil.phantoms.filling import Window, layer_of
from sgpmil.phantoms.nuclei import DIRECTIONS, album, largest_half, lattice_places, stamp
from sgpmil.phantoms.scene import Scene
from sgpmil.phantoms.stain import Paint
from sgpmil.phantoms.weave import Weave
from sgpmil.shapes import Float, Int, UInt8

SEPTUM = 0.13
"""Half of the width of the strands between a tumour's nests, in units of the weave's field."""
_COARSE = 8.0
"""Side of a pixel of the map of crowds, in microns."""


class Cells:
    """Cells of a scene.

    Args:
        scene: The scene.
        seed: Seed of the lattices.
    """

    def __init__(self, scene: Scene, seed: int) -> None:
        self.mpp = scene.settings.mpp
        self.seed = seed
        self.edge = largest_half(self.mpp)
        self.lining = _lining(scene.glands, np.random.default_rng([scene.seed, 4]))
        self.crowds = _crowds(scene)

    def nuclei(self, painted: UInt8[np.ndarray, "h w"], weave: Weave) -> UInt8[np.ndarray, "h w"]:
        """Draw the nuclei of a window: the concentration of haematoxylin in them."""
        canvas = self._canvas(painted.shape)
        present = np.bincount(painted.ravel(), minlength=len(Paint)) > 0
        if present[[Paint.STROMA, Paint.MUSCLE, Paint.FAT]].any():
            self._stroma(canvas, painted, weave)
        if present[[Paint.STROMA, Paint.LYMPHOID]].any():
            self._crowded(canvas, painted, weave)
        if present[Paint.TUMOUR]:
            column, row, chance = self._places(3, 12.1, painted, weave.window, Paint.TUMOUR)
            kept = (chance[0] < 0.84) & (np.abs(weave.nests[row, column]) > SEPTUM)
            self._lay("tumour", canvas, column[kept], row[kept], chance[:, kept])
        if present[Paint.EPITHELIUM]:
            self._glands(canvas, painted, weave)
        return self._without_edge(canvas)

    def red_cells(
        self, painted: UInt8[np.ndarray, "h w"], window: Window
    ) -> UInt8[np.ndarray, "h w"]:
        """Fill vessels with red cells: the concentration of eosin in them."""
        canvas = self._canvas(painted.shape)
        column, row, chance = self._places(5, 6.4, painted, window, Paint.BLOOD)
        kept = chance[0] < 0.7
        self._lay("red cell", canvas, column[kept], row[kept], chance[:, kept])
        return self._without_edge(canvas)

    def dust(self, window: Window) -> UInt8[np.ndarray, "h w"] | None:
        """Scatter dust over glass and tissue: how much it dims the light, of 255; None for none."""
        x, y, chance = lattice_places(self.seed, 6, 170.0, window.microns(self.mpp))
        kept = chance[0] < 0.22
        if not kept.any():
            return None
        canvas = self._canvas(window.shape)
        column, row = self._pixels(x[kept], y[kept], window)
        self._lay("dust", canvas, column, row, chance[:, kept])
        return self._without_edge(canvas)

    def _stroma(
        self, canvas: UInt8[np.ndarray, "H W"], painted: UInt8[np.ndarray, "h w"], weave: Weave
    ) -> None:
        """Lay fibroblasts along the fibres, and some lymphocytes among them."""
        paints = (Paint.STROMA, Paint.MUSCLE, Paint.FAT)
        column, row, chance = self._places(1, 10.0, painted, weave.window, *paints)
        busy = weave.cellular[row, column]
        density = np.where(painted[row, column] == Paint.FAT, 0.1, 0.40 + 0.26 * busy)
        kept = chance[0] < density
        column, row, chance, busy = column[kept], row[kept], chance[:, kept], busy[kept]
        is_round = chance[3] < 0.25 + 0.15 * busy
        self._lay("lymphocyte", canvas, column[is_round], row[is_round], chance[:, is_round])
        column, row, chance = column[~is_round], row[~is_round], chance[:, ~is_round]
        angle = weave.direction(column, row) + 0.5 * (chance[2] - 0.5)
        direction = np.floor(angle / np.pi * DIRECTIONS).astype(np.int64) % DIRECTIONS
        stamp(canvas, self.edge, album("fibroblast", self.mpp), column, row, direction, chance[1])

    def _crowded(
        self, canvas: UInt8[np.ndarray, "H W"], painted: UInt8[np.ndarray, "h w"], weave: Weave
    ) -> None:
        """Lay the lymphocytes of aggregates, which thin out around them."""
        paints = (Paint.LYMPHOID, Paint.STROMA)
        column, row, chance = self._places(2, 7.2, painted, weave.window, *paints)
        height, width = self.crowds.shape
        scale = self.mpp / _COARSE
        i = np.clip(((column + weave.window.x) * scale).astype(np.int64), 0, width - 1)
        j = np.clip(((row + weave.window.y) * scale).astype(np.int64), 0, height - 1)
        kept = chance[0] < self.crowds[j, i] * (0.92 / 255)
        self._lay("lymphocyte", canvas, column[kept], row[kept], chance[:, kept])

    def _glands(
        self, canvas: UInt8[np.ndarray, "H W"], painted: UInt8[np.ndarray, "h w"], weave: Weave
    ) -> None:
        """Lay a row of nuclei at the base of the epithelium, and some between it and the hollow."""
        window = weave.window
        column, row, chance = self._places(4, 8.0, painted, window, Paint.EPITHELIUM)
        kept = chance[0] < 0.34 + 0.16 * weave.cellular[row, column]
        self._lay("epithelial", canvas, column[kept], row[kept], chance[:, kept])
        left, top, right, bottom = window.microns(self.mpp)
        x, y, angle, variant = self.lining
        near = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        stamp(
            canvas,
            self.edge,
            album("epithelial", self.mpp),
            *self._pixels(x[near], y[near], window),
            np.floor(angle[near] / np.pi * DIRECTIONS).astype(np.int64) % DIRECTIONS,
            variant[near],
        )

    def _places(
        self,
        channel: int,
        spacing: float,
        painted: UInt8[np.ndarray, "h w"],
        window: Window,
        *paints: Paint,
    ) -> tuple[Int[np.ndarray, " K"], Int[np.ndarray, " K"], Float[np.ndarray, "4 K"]]:
        """Return the places of a lattice with one of these paints: column, row, chances."""
        x, y, chance = lattice_places(self.seed, channel, spacing, window.microns(self.mpp))
        column, row = self._pixels(x, y, window)
        wanted = np.zeros(len(Paint), dtype=bool)
        wanted[list(paints)] = True
        there = wanted[painted[row, column]]
        return column[there], row[there], chance[:, there]

    def _pixels(
        self, x: Float[np.ndarray, " K"], y: Float[np.ndarray, " K"], window: Window
    ) -> tuple[Int[np.ndarray, " K"], Int[np.ndarray, " K"]]:
        """Return column and row of places in a window."""
        column = np.floor(x / self.mpp).astype(np.int64) - window.x
        row = np.floor(y / self.mpp).astype(np.int64) - window.y
        # Rounding may put a place on the edge just beyond it.
        return np.clip(column, 0, window.width - 1), np.clip(row, 0, window.height - 1)

    def _lay(
        self,
        name: str,
        canvas: UInt8[np.ndarray, "H W"],
        column: Int[np.ndarray, " K"],
        row: Int[np.ndarray, " K"],
        chance: Float[np.ndarray, "4 K"],
    ) -> None:
        """Lay nuclei in any direction."""
        direction = (chance[2] * DIRECTIONS).astype(np.int64)
        stamp(canvas, self.edge, album(name, self.mpp), column, row, direction, chance[1])

    def _canvas(self, shape: tuple[int, ...]) -> UInt8[np.ndarray, "H W"]:
        return np.zeros((shape[0] + 2 * self.edge, shape[1] + 2 * self.edge), dtype=np.uint8)

    def _without_edge(self, canvas: UInt8[np.ndarray, "H W"]) -> UInt8[np.ndarray, "h w"]:
        return canvas[self.edge : -self.edge, self.edge : -self.edge]


def _crowds(scene: Scene) -> UInt8[np.ndarray, "h w"]:
    """Blur the aggregates of lymphocytes, whose edges are never sharp."""
    import cv2
    import shapely

    width, height = (int(np.ceil(length / _COARSE)) + 1 for length in scene.settings.extent)
    coarse = layer_of([shapely.transform(scene.lymphocytes, lambda points: points / _COARSE)])
    return cv2.GaussianBlur(
        coarse.fill(Window(0, 0, width, height)) * np.uint8(255), (0, 0), 14 / _COARSE
    )


def _lining(glands: tuple[Ring, ...], rng: np.random.Generator) -> Float[np.ndarray, "4 K"]:
    """Line glands with nuclei: x, y, the direction across the wall, and a chance."""
    import shapely

    found = [np.empty((4, 0))]
    for gland in glands:
        base = shapely.buffer(gland.outline, -rng.uniform(5.0, 6.5), quad_segs=4)
        for ring in (part.exterior for part in shapely.get_parts(base) if not part.is_empty):
            at = np.arange(0, ring.length, 5.2)
            at = at + rng.uniform(-1.2, 1.2, size=len(at))
            here, ahead = (
                shapely.get_coordinates(shapely.line_interpolate_point(ring, way % ring.length))
                for way in (at, at + 2.0)
            )
            tangent = ahead - here
            angle = np.arctan2(tangent[:, 1], tangent[:, 0]) + np.pi / 2
            side = 1.0 if shapely.is_ccw(ring) else -1.0
            depth = side * rng.uniform(-1.5, 3.2, size=len(at))
            x, y = here[:, 0] + depth * np.cos(angle), here[:, 1] + depth * np.sin(angle)
            angle = (angle + rng.normal(scale=0.2, size=len(at))) % np.pi
            found.append(np.stack([x, y, angle, rng.uniform(size=len(at))]))
    return np.concatenate(found, axis=1)
