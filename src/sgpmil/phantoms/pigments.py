"""What each part of the tissue takes up of the two stains.

Concentrations are given as values of 255 (see `stain`). A part has a level of each stain, and
says how strongly fibres, grain and slow changes over the slide show in it.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sgpmil.shapes import Float

__all__ = ["PIGMENTS", "Paint", "Pigment", "pigment_table"]


class Paint(IntEnum):
    """What a pixel is painted as."""

    GLASS = 0
    STROMA = 1
    EPITHELIUM = 2
    HOLLOW = 3
    LYMPHOID = 4
    FAT = 5
    ADIPOCYTE = 6
    MUSCLE = 7
    BLOOD = 8
    TUMOUR = 9


@dataclass(frozen=True, slots=True)
class Pigment:
    """What a part of the tissue takes up, apart from its nuclei.

    Args:
        eosin: Level of eosin.
        eosin_fibre: How strongly fibres show in it.
        eosin_grain: How strongly grain shows in it.
        eosin_tint: How much it changes over the slide.
        blue: Level of haematoxylin.
        blue_grain: How strongly grain shows in it.
        blue_tint: How much it changes over the slide.
    """

    eosin: float = 0.0
    eosin_fibre: float = 0.0
    eosin_grain: float = 0.0
    eosin_tint: float = 0.0
    blue: float = 0.0
    blue_grain: float = 0.0
    blue_tint: float = 0.0


# The mean colour of the tumour lies amid those of normal tissue: cells with large nuclei and pale
# cytoplasm take up, over a patch, what glands and inflamed stroma do.
PIGMENTS = {
    Paint.GLASS: Pigment(),
    Paint.STROMA: Pigment(62.0, 26.0, 5.0, 9.0, 7.0, 2.0, 9.0),
    Paint.EPITHELIUM: Pigment(58.0, 4.0, 12.0, 5.0, 28.0, 9.0),
    Paint.HOLLOW: Pigment(5.0, 0.0, 3.0, 0.0, 1.0),
    Paint.LYMPHOID: Pigment(40.0, 14.0, 9.0, 5.0, 16.0, 8.0, 5.0),
    Paint.FAT: Pigment(74.0, 12.0, 8.0, 0.0, 4.0),
    Paint.ADIPOCYTE: Pigment(1.0),
    Paint.MUSCLE: Pigment(88.0, 16.0, 6.0, 0.0, 7.0, 0.0, 3.0),
    Paint.BLOOD: Pigment(6.0),
    Paint.TUMOUR: Pigment(40.0, 6.0, 12.0, 6.0, 9.0, 7.0),
}


def pigment_table(name: str) -> Float[np.ndarray, "256"]:
    """Give one value of every paint as a table to look up.

    Args:
        name: Which value of a `Pigment`.

    Example:
        >>> float(pigment_table("eosin")[Paint.STROMA])
        62.0
    """
    table = np.zeros(256, dtype=np.float32)
    for paint, pigment in PIGMENTS.items():
        table[paint] = getattr(pigment, name)
    return table
