"""Anatomy of synthetic tissue: glands, lymphocytes, fat, vessels, folds and tumour, in microns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgpmil.phantoms.outlines import blob, ribbon, solid
from sgpmil.phantoms.textures import smooth_field
from sgpmil.shapes import Float
from sgpmil.slides.optional_part import Geometry

_GRID = 20.0
"""Microns between the places at which a field of clusters is computed."""


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """A wall around a hollow: a gland or a vessel.

    Args:
        outline: The wall's outer outline (a Polygon).
        hollow: What it encloses (a Polygon or MultiPolygon, maybe empty).
    """

    outline: Geometry
    hollow: Geometry


def _scatter(
    rng: np.random.Generator, area: Geometry, spacing: float, jitter: float = 0.3
) -> Float[np.ndarray, "K 2"]:
    """Scatter places over an area that keep some distance: a shaken hexagonal lattice."""
    import shapely

    if area.is_empty:
        return np.empty((0, 2))
    left, top, right, bottom = area.bounds
    rows = np.arange(top, bottom + spacing, spacing * np.sqrt(3) / 2)
    columns = np.arange(left - spacing, right + spacing, spacing)
    x, y = np.meshgrid(columns, rows)
    x = x + np.where(np.arange(len(rows)) % 2, spacing / 2, 0.0)[:, None]
    places = np.stack([x, y], axis=-1).reshape(-1, 2)
    places = places + rng.uniform(-jitter, jitter, size=places.shape) * spacing
    shapely.prepare(area)
    return places[shapely.contains_xy(area, places)]


def _clusters(
    rng: np.random.Generator, places: Float[np.ndarray, "K 2"], spacing: float
) -> Float[np.ndarray, " K"]:
    """Return a smooth field at places, by which structures form clusters."""
    seed = int(rng.integers(2**31))
    if not len(places):
        return np.empty(0)
    corner = places.min(axis=0)
    column, row = ((places - corner) / _GRID).astype(np.int64).T
    x, y = (
        start + _GRID * np.arange(last + 1)
        for start, last in zip(corner, (column.max(), row.max()), strict=True)
    )
    return smooth_field(seed, 0, spacing, x, y)[row, column].astype(np.float64)


def draw_glands(rng: np.random.Generator, room: Geometry) -> tuple[Ring, ...]:
    """Draw glands in fields: epithelium around a hollow, in all sizes."""
    import shapely

    places = _scatter(rng, shapely.buffer(room, -32), 100.0, 0.13)
    kept = places[_clusters(rng, places, 420.0) > rng.uniform(-1.0, 0.0)]
    drawn = [
        blob(
            rng,
            (x, y),
            rng.uniform(32, 47),
            elongation=rng.uniform(1.0, 1.5),
            roughness=0.13,
            step=4.0,
            decay=2.2,
        )
        for x, y in kept
    ]
    glands: list[Ring] = []
    for outline in _apart(drawn, room, 3.0):
        wall = rng.uniform(16, 30)
        hollow = shapely.buffer(shapely.buffer(outline, -wall - 5, quad_segs=6), 5, quad_segs=6)
        glands.append(Ring(outline, solid(shapely.simplify(hollow, 0.3))))
    return tuple(glands)


def draw_vessels(
    rng: np.random.Generator, room: Geometry, glands: Sequence[Ring]
) -> tuple[Ring, ...]:
    """Draw blood vessels: a wall of muscle around blood."""
    import shapely

    places = _scatter(rng, shapely.buffer(room, -30), 400.0, 0.45)
    drawn = [
        blob(rng, (x, y), r, elongation=rng.uniform(1, 2.2), roughness=0.1, step=3.0, decay=2.2)
        for (x, y), r in zip(places, rng.gamma(6, 4, size=len(places)) + 8, strict=True)
    ]
    vessels = []
    tree = shapely.STRtree([gland.outline for gland in glands])
    for outline in _apart(drawn, room, 6.0):
        if len(tree.query(outline, predicate="dwithin", distance=6.0)):
            continue
        wall = rng.uniform(0.2, 0.4) * np.sqrt(outline.area / np.pi)
        vessels.append(Ring(outline, solid(shapely.buffer(outline, -wall))))
    return tuple(vessels)


def draw_aggregates(rng: np.random.Generator, tissue: Geometry, room: Geometry) -> Geometry:
    """Draw aggregates of lymphocytes."""
    import shapely

    places = _scatter(rng, tissue, 520.0, 0.45)
    drawn = [
        blob(
            rng,
            (x, y),
            rng.gamma(9, 8) + 30,
            elongation=rng.uniform(1, 2),
            roughness=0.22,
            step=4.0,
        )
        for x, y in places
        if rng.uniform() < 0.6
    ]
    return solid(shapely.intersection(shapely.union_all(drawn), room))


def draw_fat(rng: np.random.Generator, tissue: Geometry, share: float = 0.04) -> Geometry:
    """Draw regions of fat near the edge of the tissue."""
    import shapely

    rim = shapely.difference(shapely.buffer(tissue, -60), shapely.buffer(tissue, -420))
    places = rng.permutation(_scatter(rng, solid(rim), 300.0, 0.4))
    goal, drawn = share * tissue.area * rng.uniform(0.3, 1.5), []
    area = 0.0
    for x, y in places:
        if area > goal:
            break
        radius = rng.uniform(70, 160)
        drawn.append(blob(rng, (x, y), radius, elongation=rng.uniform(1, 1.8), roughness=0.2))
        area += np.pi * radius**2
    return solid(shapely.intersection(shapely.union_all(drawn), shapely.buffer(tissue, -25)))


def draw_adipocytes(rng: np.random.Generator, fat: Geometry) -> tuple[Geometry, ...]:
    """Fill fat with its cells: bubbles that press each other flat, with thin walls between."""
    import shapely

    cells: list[Geometry] = []
    for part in shapely.get_parts(fat):
        places = _scatter(rng, shapely.buffer(part, 40), 52.0, 0.28)
        if len(places) < 3:
            continue
        for cell in shapely.get_parts(shapely.voronoi_polygons(shapely.multipoints(places))):
            wall = rng.uniform(1.2, 2.6)
            inside = shapely.intersection(cell, part)
            bubble = shapely.buffer(shapely.buffer(inside, -wall - 7, quad_segs=5), 7, quad_segs=5)
            cells += [p for p in shapely.get_parts(solid(bubble)) if p.area > 60]
    return tuple(cells)


def draw_folds(rng: np.random.Generator, tissue: Geometry, share: float) -> Geometry:
    """Draw folds across the tissue."""
    import shapely

    lucky = rng.uniform() < share
    count = int(rng.integers(1, 4))
    drawn = []
    for _ in range(count):
        x, y = shapely.get_coordinates(shapely.point_on_surface(tissue))[0]
        left, top, right, bottom = tissue.bounds
        near = rng.uniform([left, top], [right, bottom])
        length, turn = rng.uniform(250, 900), rng.uniform(0, np.pi)
        half = length / 2 * np.array([np.cos(turn), np.sin(turn)])
        middle = 0.6 * near + 0.4 * np.array([x, y])
        width = rng.uniform(14, 34)
        drawn.append(ribbon(rng, middle - half, middle + half, width, bend=0.25, roughness=0.3))
    folds = shapely.intersection(shapely.union_all(drawn), tissue) if lucky else shapely.Polygon()
    return solid(folds)


def _apart(drawn: Sequence[Geometry], room: Geometry, gap: float) -> list[Geometry]:
    """Keep what lies in the room and does not touch what was kept before."""
    import shapely

    if not drawn:
        return []
    outlines = np.array(drawn, dtype=object)
    shapely.prepare(room)
    outlines = outlines[shapely.contains(room, outlines)]
    tree = shapely.STRtree(outlines)
    first, second = tree.query(outlines, predicate="dwithin", distance=gap)
    gone = np.zeros(len(outlines), dtype=bool)
    for a, b in sorted(zip(first.tolist(), second.tolist(), strict=True)):
        if a < b and not gone[a]:
            gone[b] = True
    return list(outlines[~gone])


_HALVINGS = 24
_SMALLEST_ISLAND = 400.0
"""Square microns; smaller slivers are left where an island is cut by a tear of the tissue."""


def draw_tumour(rng: np.random.Generator, tissue: Geometry, share: float) -> Geometry:
    """Draw one to three foci, each an island with smaller ones around it.

    The islands are scaled about their foci until their area within the tissue is the share asked
    for.
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
