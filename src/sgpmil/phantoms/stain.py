r"""Haematoxylin and eosin: their colours, and their uptake by each part of the tissue.

By the law of Beer and Lambert, concentrations $c_s$ of stains $s$ dim light to
$I_0 \exp(-\sum_s c_s v_{s})$ in each colour, where $v_s$ is the absorption of the stain. The
product over stains is a product of two tables, so that no exponential is computed for a pixel.

Concentrations are values from 0 to 255. Each part of the tissue has a level of each stain, and a
strength of fibres, grain and slow changes over the slide.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sgpmil.shapes import Float, UInt8

_HAEMATOXYLIN = np.array([0.66, 0.69, 0.30])
_EOSIN = np.array([0.10, 0.94, 0.32])
_FULL = 2.3
"""Concentration at the value 255."""


@dataclass(frozen=True, slots=True)
class Stain:
    """Stain and scanner of a slide.

    Args:
        haematoxylin: Absorption of red, green and blue by the stain of the nuclei.
        eosin: Absorption by the stain of everything else.
        background: Colour of the empty glass.
        blur: Standard deviation of the scanner's blur in microns.
    """

    haematoxylin: tuple[float, float, float]
    eosin: tuple[float, float, float]
    background: tuple[float, float, float]
    blur: float

    def tables(self) -> tuple[UInt8[np.ndarray, "256 1 3"], UInt8[np.ndarray, "256 1 3"]]:
        """Return the colour of each value of haematoxylin (on glass) and of eosin (on white)."""
        value = np.arange(256)[:, None] / 255 * _FULL
        glass = np.array(self.background)
        blue = glass * np.exp(-value * np.array(self.haematoxylin))
        pink = 255 * np.exp(-value * np.array(self.eosin))
        return _bytes(blue), _bytes(pink)


def _bytes(colours: Float[np.ndarray, "256 3"]) -> UInt8[np.ndarray, "256 1 3"]:
    return np.rint(colours).clip(0, 255).astype(np.uint8)[:, None, :]


def draw_stain(rng: np.random.Generator) -> Stain:
    """Draw the stain of a slide: no two laboratories, and no two days, are alike."""

    def vary(vector: Float[np.ndarray, "3"], spread: float) -> tuple[float, float, float]:
        turned = np.clip(vector + rng.normal(scale=spread, size=3), 0.02, None)
        turned = turned / np.linalg.norm(turned) * np.exp(rng.normal(scale=0.13))
        return (float(turned[0]), float(turned[1]), float(turned[2]))

    bright = rng.uniform(236, 248)
    tint = rng.uniform(-2.0, 2.0, size=3)
    return Stain(
        vary(_HAEMATOXYLIN, 0.035),
        vary(_EOSIN, 0.045),
        (float(bright + tint[0]), float(bright - 1 + tint[1]), float(bright + tint[2])),
        float(rng.uniform(0.3, 0.5)),
    )


class Paint(IntEnum):
    """Kind of tissue that a pixel shows."""

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
    """Stains that a part of the tissue takes up, apart from its nuclei.

    Args:
        eosin: Level of eosin.
        eosin_fibre: Contrast of fibres in it.
        eosin_grain: Contrast of grain in it.
        eosin_tint: Variation over the slide.
        blue: Level of haematoxylin.
        blue_grain: Contrast of grain in it.
        blue_tint: Variation over the slide.
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
    """Return one value of every paint as a lookup table.

    Example:
        >>> float(pigment_table("eosin")[Paint.STROMA])
        62.0
    """
    table = np.zeros(256, dtype=np.float32)
    for paint, pigment in PIGMENTS.items():
        table[paint] = getattr(pigment, name)
    return table
