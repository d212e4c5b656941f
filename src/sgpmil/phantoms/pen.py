"""What someone drew on the glass with a pen."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sgpmil.phantoms.outlines import ribbon

if TYPE_CHECKING:
    from shapely import Geometry
else:
    Geometry = Any  # shapely is of an optional part, and is loaded when it is first needed

__all__ = ["PenMark", "draw_pen"]

_INKS = {
    "blue": (0.16, 0.26, 0.72),
    "green": (0.10, 0.55, 0.30),
    "black": (0.13, 0.13, 0.15),
    "red": (0.86, 0.10, 0.16),
}
"""Share of red, green and blue that a stroke lets through."""


@dataclass(frozen=True, slots=True, eq=False)
class PenMark:
    """A stroke of a pen.

    Args:
        outline: Its area in microns (a Polygon).
        ink: Name of its colour.
        passes: Share of red, green and blue that it lets through.
    """

    outline: Geometry
    ink: str
    passes: tuple[float, float, float]


def draw_pen(
    rng: np.random.Generator, tissue: Geometry, extent: tuple[float, float], share: float
) -> tuple[PenMark, ...]:
    """Draw strokes over the edge of the tissue and the glass beside it.

    Args:
        rng: Source of chance.
        tissue: The tissue.
        extent: Width and height of the slide in microns.
        share: Probability that there are any.
    """
    import shapely

    if rng.uniform() >= share:
        return ()
    ink = str(rng.choice(list(_INKS)))
    slide = shapely.box(0, 0, *extent)
    scale = min(extent)
    marks = []
    for _ in range(int(rng.integers(1, 3))):
        piece = max(shapely.get_parts(tissue), key=shapely.area)
        edge = piece.exterior
        place = rng.uniform()
        at, ahead = (
            shapely.get_coordinates(shapely.line_interpolate_point(edge, t % 1, normalized=True))[0]
            for t in (place, place + 0.02)
        )
        along = (ahead - at) / max(float(np.hypot(*(ahead - at))), 1e-9)
        length, width = scale * rng.uniform(0.15, 0.45), scale * rng.uniform(0.025, 0.05)
        away = np.array([along[1], -along[0]]) * width * rng.uniform(-0.3, 1.2)
        half = along * length / 2
        stroke = ribbon(rng, at + away - half, at + away + half, width, bend=0.12, roughness=0.1)
        seen = shapely.intersection(stroke, slide)
        if not seen.is_empty:
            marks.append(PenMark(seen, ink, _INKS[ink]))
    return tuple(marks)
