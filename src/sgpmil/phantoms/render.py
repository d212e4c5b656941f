"""Scenes become pixels.

A slide is drawn in blocks that are laid out from its corner, each from the scene and its place
alone, with enough of its neighbourhood that nothing ends at its edges. A window is cut out of the
blocks it touches: what a pixel shows never depends on the window.
"""

from enum import IntEnum
from functools import lru_cache

import numpy as np

from sgpmil.phantoms.painter import Painter
from sgpmil.phantoms.pigments import Paint
from sgpmil.phantoms.scene import Scene
from sgpmil.phantoms.windows import Window
from sgpmil.shapes import UInt8
from sgpmil.slides.optional_part import require_package

__all__ = ["BLOCK", "TissueClass", "render", "render_classes"]

BLOCK = 512
"""Side of a block in pixels."""


class TissueClass(IntEnum):
    """What a pixel of a phantom shows."""

    BACKGROUND = 0
    STROMA = 1
    GLAND = 2
    LYMPHOCYTES = 3
    FAT = 4
    TUMOUR = 5


_CLASS_OF_PAINT = {
    Paint.GLASS: TissueClass.BACKGROUND,
    Paint.STROMA: TissueClass.STROMA,
    Paint.EPITHELIUM: TissueClass.GLAND,
    Paint.HOLLOW: TissueClass.GLAND,
    Paint.LYMPHOID: TissueClass.LYMPHOCYTES,
    Paint.FAT: TissueClass.FAT,
    Paint.ADIPOCYTE: TissueClass.FAT,
    Paint.MUSCLE: TissueClass.STROMA,
    Paint.BLOOD: TissueClass.STROMA,
    Paint.TUMOUR: TissueClass.TUMOUR,
}


def render(
    scene: Scene, x: int, y: int, width: int, height: int
) -> UInt8[np.ndarray, "{height} {width} 3"]:
    """Draw a window of a slide at level 0.

    Two windows agree bit by bit where they overlap.

    Args:
        scene: The slide.
        x: Left of the window in pixels; may lie beyond the slide, which goes on there as glass.
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


def render_classes(
    scene: Scene, x: int, y: int, width: int, height: int
) -> UInt8[np.ndarray, "{height} {width}"]:
    """Say what each pixel of a window shows: the values of `TissueClass`.

    Hollows of glands count as gland, vessels as stroma. Folds and pen marks lie over these and
    are not told.

    Args:
        scene: The slide.
        x: Left of the window in pixels.
        y: Top of the window.
        width: Width of the window.
        height: Height of the window.
    """
    table = np.array([_CLASS_OF_PAINT[paint] for paint in Paint], dtype=np.uint8)
    return table[_painter(scene).paint(Window(x, y, width, height))]


@lru_cache(maxsize=2)
def _painter(scene: Scene) -> Painter:
    return Painter(scene)


@lru_cache(maxsize=16)
def _block(scene: Scene, column: int, row: int) -> UInt8[np.ndarray, "h w 3"]:
    return _painter(scene).block(Window(column * BLOCK, row * BLOCK, BLOCK, BLOCK))
