"""Settings that the tests share."""

import numpy as np

from sgpmil.phantoms import PhantomSettings
from sgpmil.phantoms.filling import Window
from sgpmil.phantoms.painter import Painter
from sgpmil.phantoms.stain import Paint

SMALL = PhantomSettings(size=(2000, 1500), tumour_share=0.1, pen_share=1.0, fold_share=1.0)

PARTS = {
    Paint.HOLLOW: Paint.EPITHELIUM,
    Paint.ADIPOCYTE: Paint.FAT,
    Paint.MUSCLE: Paint.STROMA,
    Paint.BLOOD: Paint.STROMA,
}


def tissue_kinds(scene, x, y, width, height):
    """The kind of tissue at each pixel of a window: hollows count as glands, vessels as stroma."""
    table = np.array([PARTS.get(paint, paint) for paint in Paint], dtype=np.uint8)
    return table[Painter(scene).paint(Window(x, y, width, height))]
