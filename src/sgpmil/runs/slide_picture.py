"""A slide to look at: the image made small, and what experts drew on it."""

from dataclasses import dataclass

import numpy as np

from sgpmil.shapes import Float, UInt8
from sgpmil.slides.annotations import AnnotationMask, Annotations
from sgpmil.slides.annotations.mask import mask_polygons

__all__ = ["SlidePicture", "outlines_of"]


@dataclass(frozen=True, slots=True, eq=False)
class SlidePicture:
    """What is known of how a slide looks.

    Args:
        pixels: The slide made small; None where there is no slide.
        size: Width and height of the slide in level-0 pixels; None where unknown.
        outlines: What experts drew on it: corners (x, y) in level-0 pixels.
        outlined: What that is.
        mpp: Microns a level-0 pixel; None where unknown.
    """

    pixels: UInt8[np.ndarray, "h w 3"] | None = None
    size: tuple[int, int] | None = None
    outlines: tuple[Float[np.ndarray, "_ 2"], ...] = ()
    outlined: str = "annotated"
    mpp: float | None = None


def outlines_of(
    drawn: Annotations | AnnotationMask,
) -> tuple[tuple[Float[np.ndarray, "_ 2"], ...], str]:
    """Give the rings of the positive regions, holes included, and what they are.

    Args:
        drawn: What experts drew on a slide.
    """
    regions = mask_polygons(drawn) if isinstance(drawn, AnnotationMask) else drawn
    rings: list[np.ndarray] = []
    for region in regions.positive:
        for part in getattr(region.polygon, "geoms", [region.polygon]):
            rings += [np.array(ring.coords)[:, :2] for ring in (part.exterior, *part.interiors)]
    name = regions.positive[0].name.lower() if regions.positive else ""
    return tuple(rings), name if name and name != "mask" else "annotated"
