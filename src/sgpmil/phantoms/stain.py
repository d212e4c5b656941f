r"""Haematoxylin and eosin on glass: concentrations become colours.

The law of Beer and Lambert: light through concentrations $c_s$ of stains $s$ is dimmed to
$I_0 \exp(-\sum_s c_s v_{s})$ in each colour, with $v_s$ the absorption of the stain. The product
over stains is a product of two tables, so that no exponential is taken of a pixel.
"""

from dataclasses import dataclass

import numpy as np

from sgpmil.shapes import Float, UInt8

__all__ = ["Stain", "draw_stain"]

_HAEMATOXYLIN = np.array([0.66, 0.69, 0.30])
_EOSIN = np.array([0.10, 0.94, 0.32])
_FULL = 2.3
"""Concentration at the value 255."""


@dataclass(frozen=True, slots=True)
class Stain:
    """How a slide was stained, cut and scanned.

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
        """Give the colour of each value of haematoxylin (on glass) and of eosin (on white)."""
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
