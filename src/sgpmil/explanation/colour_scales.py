"""Colour scales of the maps, as data: figures and the viewer colour a score alike."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sgpmil.explanation.map_layers import LayerKind, MapLimits
from sgpmil.shapes import Float, UInt8

_REDS = "fff5f0 fee0d2 fcbba1 fc9272 fb6a4a ef3b2c cb181d a50f15 67000d"
_BLUES = "f7fbff deebf7 c6dbef 9ecae1 6baed6 4292c6 2171b5 08519c 08306b"
_GREENS = "f7fcf5 e5f5e0 c7e9c0 a1d99b 74c476 41ab5d 238b45 006d2c 00441b"
_PURPLE_ORANGE = "2d004b 542788 8073ac b2abd2 d8daeb f7f7f7 fee0b6 fdb863 e08214 b35806 7f3b08"

_LEAST_NOVELTY_END = 2.0
"""Least upper end of the colours of novelty, which begin at 1."""


@dataclass(frozen=True, slots=True)
class ColourScale:
    """Colours from the lowest to the highest score, mixed evenly between some of them.

    Args:
        name: Name in matplotlib.
        anchors: The colours, evenly spaced, as "#rrggbb" (ColorBrewer's schemes).
    """

    name: str
    anchors: tuple[str, ...]

    def table(self, num: int = 256) -> UInt8[np.ndarray, "num 3"]:
        """Give evenly spaced colours as red, green and blue."""
        known = np.array([_channels(anchor) for anchor in self.anchors], dtype=np.float64)
        at = np.linspace(0, len(known) - 1, num)
        mixed = np.stack([np.interp(at, np.arange(len(known)), c) for c in known.T], axis=1)
        return np.rint(mixed).astype(np.uint8)


def _scale(name: str, anchors: str) -> ColourScale:
    return ColourScale(name, tuple(f"#{anchor}" for anchor in anchors.split()))


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


COLOUR_SCALES: Mapping[LayerKind, ColourScale] = {
    "attention": _scale("Reds", _REDS),
    "attention_std": _scale("Blues", _BLUES),
    "evidence": _scale("PuOr_r", _PURPLE_ORANGE),
    "evidence_std": _scale("Blues", _BLUES),
    "single": _scale("PuOr_r", _PURPLE_ORANGE),
    "single_std": _scale("Blues", _BLUES),
    "novelty": _scale("Greens", _GREENS),
}
"""Colours of each kind of layer."""


def colour_range(
    kind: LayerKind, limits: MapLimits | None, *, is_signed: bool
) -> tuple[float, float]:
    """Give the scores at the two ends of the colours.

    Args:
        kind: Kind of layer.
        limits: Limits on the absolute scale; None on a scale that is relative to the slide.
        is_signed: Whether the sign of the score has a meaning.
    """
    end = 1.0 if limits is None else limits.of(kind)
    if kind == "novelty" and limits is not None:
        # Ordinary patches stay pale, so that a slide without novel ones is.
        return 1.0, max(_LEAST_NOVELTY_END, end)
    return (-end if is_signed else 0.0), end


def scaled_to_range(
    values: Float[np.ndarray, "*shape"], ends: tuple[float, float]
) -> Float[np.ndarray, "*shape"]:
    """Put scores between 0 and 1, the ends of the colours; NaN stays NaN.

    Example:
        >>> scaled_to_range(np.array([-3.0, 0.0, 1.0, np.nan]), (-1.0, 1.0))
        array([0. , 0.5, 1. , nan])
    """
    low, high = ends
    return np.clip((values - low) / (high - low), 0.0, 1.0)
