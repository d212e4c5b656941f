"""Pixels of a scene.

A slide is drawn in blocks that start at its corner. Each block depends on the scene and its place
alone, and includes enough of its neighbourhood that nothing ends at its edges. A window is cut out
of the blocks it touches, so that a pixel never depends on the window.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from sgpmil.phantoms.cells import SEPTUM, Cells
from sgpmil.phantoms.filling import Layer, Window, layer_of
from sgpmil.phantoms.nuclei import largest_half
from sgpmil.phantoms.scene import Scene
from sgpmil.phantoms.stain import Paint, pigment_table
from sgpmil.phantoms.textures import PERIOD, grain_in, noise_in
from sgpmil.phantoms.weave import STRAND, Weave, weave_in
from sgpmil.shapes import Float, UInt8
from sgpmil.slides.optional_part import Geometry, require_package

_EOSIN, _EOSIN_FIBRE = pigment_table("eosin"), pigment_table("eosin_fibre")
_EOSIN_GRAIN, _EOSIN_TINT = pigment_table("eosin_grain"), pigment_table("eosin_tint")
_BLUE, _BLUE_GRAIN = pigment_table("blue"), pigment_table("blue_grain")
_BLUE_TINT = pigment_table("blue_tint")


class Painter:
    """Painter of any part of a scene.

    Args:
        scene: The scene.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.mpp = scene.settings.mpp
        self.tissue = self._layer([scene.tissue])
        self.layers = (
            (Paint.LYMPHOID, self._layer([scene.lymphocytes])),
            (Paint.FAT, self._layer([scene.fat])),
            (Paint.ADIPOCYTE, self._layer(scene.adipocytes)),
            (Paint.MUSCLE, self._layer([vessel.outline for vessel in scene.vessels])),
            (Paint.BLOOD, self._layer([vessel.hollow for vessel in scene.vessels])),
            (Paint.EPITHELIUM, self._layer([gland.outline for gland in scene.glands])),
            (Paint.HOLLOW, self._layer([gland.hollow for gland in scene.glands])),
            (Paint.TUMOUR, self._layer([scene.tumour])),
        )
        self.folds = self._layer([scene.folds])
        self.pen = [(self._layer([mark.outline]), mark.passes) for mark in scene.pen]
        self.blue, self.pink = scene.stain.tables()
        self.blur = scene.stain.blur / self.mpp
        # What lies beyond a block reaches into it by a nucleus, and by the scanner's blur.
        self.reach = int(np.ceil(3 * self.blur)) + 3
        self.margin = self.reach + largest_half(self.mpp) + 1
        rng = np.random.default_rng([scene.seed, 2])
        corners = [(int(x), int(y)) for x, y in rng.integers(PERIOD, size=(3, 2))]
        self.noise_shift, self.grain_shift, self.ink_shift = corners
        self.turn = float(rng.uniform(0, np.pi))
        self.seed = int(rng.integers(2**62))
        self.cells = Cells(scene, self.seed)
        colour = np.rint(scene.stain.background).astype(np.uint8)
        self.glass = np.broadcast_to(colour, (PERIOD, PERIOD, 3)).copy()

    def paint(self, window: Window) -> UInt8[np.ndarray, "h w"]:
        """Return the paint of each pixel of a window."""
        image = self.tissue.fill(window)
        for paint, layer in self.layers:
            if layer.touches(window):
                np.copyto(image, np.uint8(paint), where=layer.fill(window).view(bool))
        return image

    def block(self, window: Window) -> UInt8[np.ndarray, "h w 3"]:
        """Draw a window, which must not be larger than the textures."""
        import cv2

        noise = noise_in(window, self.noise_shift)
        inner, wide = window.grown(self.reach), window.grown(self.margin)
        painted = self.paint(wide) if self.tissue.touches(wide) else None
        dust = self.cells.dust(wide)
        inked = [(layer, passes) for layer, passes in self.pen if layer.touches(inner)]
        if (painted is None or not painted.any()) and dust is None and not inked:
            return cv2.add(noise, self.glass[: window.height, : window.width], dtype=cv2.CV_8U)
        if painted is not None and painted.any():
            image = self._tissue(painted, wide, inner)
        else:
            image = self.glass[: inner.height, : inner.width]
        if dust is not None:
            shadow = cv2.cvtColor(255 - _part(dust, wide, inner), cv2.COLOR_GRAY2RGB)
            image = cv2.multiply(image, shadow, scale=1 / 255)
        for layer, passes in inked:
            image = self._ink(image, layer, passes, inner)
        blurred = cv2.GaussianBlur(image, (0, 0), self.blur)
        return cv2.add(_part(blurred, inner, window), noise, dtype=cv2.CV_8U)

    def _layer(self, areas: Sequence[Geometry]) -> Layer:
        return layer_of([self.scene.in_pixels(area) for area in areas])

    def _tissue(
        self, painted: UInt8[np.ndarray, "h w"], wide: Window, inner: Window
    ) -> UInt8[np.ndarray, "h2 w2 3"]:
        """Stain a part of a window."""
        import cv2

        weave = weave_in(wide, self.mpp, self.seed, self.turn)
        nuclei = _part(self.cells.nuclei(painted, weave), wide, inner)
        red_cells = None
        if (painted == Paint.BLOOD).any():
            red_cells = _part(self.cells.red_cells(painted, wide), wide, inner)
        painted = np.ascontiguousarray(_part(painted, wide, inner))
        eosin, blue = self._stains(painted, weave, inner)
        np.maximum(blue, nuclei, out=blue)
        eosin *= 1 - 0.55 / 255 * nuclei
        if red_cells is not None:
            np.maximum(eosin, red_cells, out=eosin)
        if self.folds.touches(inner):
            double = cv2.GaussianBlur(self.folds.fill(inner).astype(np.float32), (5, 5), 1.2)
            blue *= 1 + 0.7 * double
            eosin *= 1 + 0.9 * double
        return cv2.multiply(
            cv2.applyColorMap(_bytes(blue), self.blue),
            cv2.applyColorMap(_bytes(eosin), self.pink),
            scale=1 / 255,
        )

    def _stains(
        self, painted: UInt8[np.ndarray, "h w"], weave: Weave, window: Window
    ) -> tuple[Float[np.ndarray, "h w"], Float[np.ndarray, "h w"]]:
        """Return the eosin and the haematoxylin of everything but cells."""
        import cv2

        strand = cv2.LUT(weave.fibres(window), STRAND)
        grain = grain_in(window, self.mpp, self.grain_shift)
        tint = weave.part(weave.tint, window)
        eosin = np.asarray(cv2.LUT(painted, _EOSIN), dtype=np.float32)
        eosin += cv2.LUT(painted, _EOSIN_FIBRE) * strand
        eosin += cv2.LUT(painted, _EOSIN_GRAIN) * grain
        eosin += cv2.LUT(painted, _EOSIN_TINT) * tint
        blue = np.asarray(cv2.LUT(painted, _BLUE), dtype=np.float32)
        blue += cv2.LUT(painted, _BLUE_GRAIN) * grain
        # Where stroma is loose it is bluish rather than pink.
        blue -= cv2.LUT(painted, _BLUE_TINT) * np.minimum(tint, 0.5)
        tumour = painted == Paint.TUMOUR
        if tumour.any():
            # Thin strands of stroma part a tumour into nests.
            apart = np.abs(weave.part(weave.nests, window)) / SEPTUM
            septa = tumour * np.clip(1.6 - apart, 0, 1)
            eosin += septa * (4 + 24 * strand)
            blue *= 1 - 0.8 * septa
        return eosin, blue

    def _ink(
        self,
        image: UInt8[np.ndarray, "h w 3"],
        layer: Layer,
        passes: tuple[float, float, float],
        window: Window,
    ) -> UInt8[np.ndarray, "h w 3"]:
        """Lay a stroke of a pen over a picture."""
        import cv2

        covered = cv2.GaussianBlur(layer.fill(window).astype(np.float32), (5, 5), 1.2)
        covered = covered * (0.86 + 0.05 * grain_in(window, self.mpp, self.ink_shift))
        through = 1 - covered[..., None] * (1 - np.array(passes, dtype=np.float32))
        return np.rint(image * through).astype(np.uint8)


def _bytes(values: Float[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
    return np.clip(values, 0, 255, out=values).astype(np.uint8)


def _part(
    image: UInt8[np.ndarray, "h w *C"], window: Window, part: Window
) -> UInt8[np.ndarray, "h2 w2 *C"]:
    """Cut a part of the window out of its picture."""
    top, left = part.y - window.y, part.x - window.x
    return image[top : top + part.height, left : left + part.width]


BLOCK = 512
"""Side of a block in pixels."""


def render(
    scene: Scene, x: int, y: int, width: int, height: int
) -> UInt8[np.ndarray, "{height} {width} 3"]:
    """Draw a window of a slide at level 0.

    Two windows agree bit by bit where they overlap.

    Args:
        scene: The slide.
        x: Left of the window in pixels; may lie beyond the slide, where there is glass.
        y: Top of the window.
        width: Width of the window.
        height: Height of the window.
    """
    require_package("cv2")
    image = np.empty((height, width, 3), dtype=np.uint8)
    for row in range(y // BLOCK, -(-(y + height) // BLOCK)):
        for column in range(x // BLOCK, -(-(x + width) // BLOCK)):
            left, top = column * BLOCK, row * BLOCK
            x0, x1 = max(x, left), min(x + width, left + BLOCK)
            y0, y1 = max(y, top), min(y + height, top + BLOCK)
            image[y0 - y : y1 - y, x0 - x : x1 - x] = _block(scene, column, row)[
                y0 - top : y1 - top, x0 - left : x1 - left
            ]
    return image


@lru_cache(maxsize=2)
def _painter(scene: Scene) -> Painter:
    return Painter(scene)


@lru_cache(maxsize=16)
def _block(scene: Scene, column: int, row: int) -> UInt8[np.ndarray, "h w 3"]:
    return _painter(scene).block(Window(column * BLOCK, row * BLOCK, BLOCK, BLOCK))
