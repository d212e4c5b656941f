"""The tumour of a synthetic slide, of exactly the share that was asked for."""

from typing import TYPE_CHECKING, Any

import numpy as np

from sgpmil.phantoms.outlines import blob

if TYPE_CHECKING:
    from shapely import Geometry
else:
    Geometry = Any  # shapely is of an optional part, and is loaded when it is first needed

__all__ = ["draw_tumour"]

_HALVINGS = 24
_SMALLEST_ISLAND = 400.0
"""Square microns; smaller slivers are left where an island is cut by a tear of the tissue."""


def draw_tumour(rng: np.random.Generator, tissue: Geometry, share: float) -> Geometry:
    """Draw one to three foci, each an island with smaller ones around it.

    The islands are scaled about their foci until their area within the tissue is the share asked
    for.

    Args:
        rng: Source of chance.
        tissue: The tissue.
        share: Share of the tissue's area; 0 for no tumour.
    """
    import shapely

    foci = _foci(rng, tissue, int(rng.integers(1, 4)))
    drawn = [_focus(rng, at, rng.uniform(0.5, 1.0)) for at in foci]
    if share <= 0:
        return shapely.Polygon()
    goal = share * tissue.area

    def scaled(factor: float) -> Geometry:
        islands = [
            shapely.transform(focus, lambda points, at=at: at + factor * (points - at))
            for focus, at in zip(drawn, foci, strict=True)
        ]
        inside = shapely.get_parts(shapely.intersection(shapely.union_all(islands), tissue))
        return shapely.MultiPolygon(_large(inside))

    low, high = 0.0, np.sqrt(goal)
    while scaled(high).area < goal:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if scaled(middle).area < goal else (low, middle)
    return scaled(high)


def _large(parts: Any) -> Any:
    import shapely

    return [
        part
        for part in parts
        if part.geom_type == "Polygon" and shapely.area(part) >= _SMALLEST_ISLAND
    ]


def _foci(rng: np.random.Generator, tissue: Geometry, count: int) -> list[Any]:
    """Find places well inside the tissue."""
    import shapely

    left, top, right, bottom = tissue.bounds
    places = rng.uniform([left, top], [right, bottom], size=(200, 2))
    points = shapely.points(places)
    inside = shapely.contains(tissue, points)
    depth = np.where(inside, shapely.distance(tissue.boundary, points), 0.0)
    if not inside.any():
        return [shapely.get_coordinates(shapely.point_on_surface(tissue))[0]]
    deep = np.flatnonzero(depth >= np.quantile(depth[inside], 0.5))
    return list(places[rng.choice(deep, size=min(count, len(deep)), replace=False)])


def _focus(rng: np.random.Generator, at: Any, size: float) -> Geometry:
    """Draw an island and some smaller ones around it, about `size` large."""
    import shapely

    options = {"roughness": 0.28, "step": 0.01 * size, "decay": 1.3}
    parts = [blob(rng, (at[0], at[1]), size, elongation=rng.uniform(1, 1.6), **options)]
    for _ in range(int(rng.integers(0, 4))):
        turn, distance = rng.uniform(0, 2 * np.pi), size * rng.uniform(0.9, 1.7)
        place = (at[0] + distance * np.cos(turn), at[1] + distance * np.sin(turn))
        parts.append(blob(rng, place, size * rng.uniform(0.2, 0.4), **options))
    return shapely.union_all(parts)
