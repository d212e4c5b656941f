"""Organic outlines: blobs, ribbons and the outline of the tissue. Lengths are in microns."""

from itertools import pairwise

import numpy as np

from sgpmil.shapes import Float
from sgpmil.slides.optional_part import Geometry


def blob(
    rng: np.random.Generator,
    centre: tuple[float, float],
    radius: float,
    *,
    elongation: float = 1.0,
    roughness: float = 0.25,
    step: float = 5.0,
    decay: float = 1.5,
) -> Geometry:
    r"""Draw a closed outline around a centre.

    The logarithm of the radius is a random Fourier series, with amplitudes that fall as
    $k^{-\text{decay}}$: large lobes and a fine, ragged edge, and never a crossing.

    Args:
        rng: Random number generator.
        centre: Centre.
        radius: Typical radius.
        elongation: Length over width; the direction is drawn.
        roughness: Standard deviation of the logarithm of the radius.
        step: Distance between corners.
        decay: Rate at which the fine waves fade.

    Returns:
        A valid Polygon.
    """
    import shapely

    num_points = int(np.clip(2 * np.pi * radius * np.sqrt(elongation) / step, 16, 6000))
    waves = np.arange(2, max(3, num_points // 4))
    spectrum = np.zeros(num_points // 2 + 1, dtype=complex)
    amplitude = waves**-decay
    amplitude *= roughness / np.sqrt((amplitude**2).sum())
    phase = rng.normal(size=len(waves)) + 1j * rng.normal(size=len(waves))
    spectrum[waves] = phase * amplitude * num_points / 2
    stretch = np.exp(np.clip(np.fft.irfft(spectrum, num_points), -1.2, 1.2))
    angle = 2 * np.pi * np.arange(num_points) / num_points
    along = radius * stretch * np.cos(angle) * np.sqrt(elongation)
    across = radius * stretch * np.sin(angle) / np.sqrt(elongation)
    turn = rng.uniform(0, np.pi)
    x = centre[0] + along * np.cos(turn) - across * np.sin(turn)
    y = centre[1] + along * np.sin(turn) + across * np.cos(turn)
    return solid(shapely.Polygon(np.column_stack([x, y])))


def ribbon(
    rng: np.random.Generator,
    start: Float[np.ndarray, "2"],
    end: Float[np.ndarray, "2"],
    width: float,
    *,
    bend: float = 0.2,
    roughness: float = 0.12,
) -> Geometry:
    """Draw a bent band of about the same width from one place to another.

    Args:
        rng: Random number generator.
        start: Middle of one end.
        end: Middle of the other end.
        width: Typical width.
        bend: How far it bends aside, as a share of its length.
        roughness: Variation of its width.

    Returns:
        A valid Polygon.
    """
    import shapely

    along = end - start
    length = float(np.hypot(*along))
    t = np.linspace(0, 1, max(8, int(length / 12)))
    normal = np.array([-along[1], along[0]]) / max(length, 1e-9)
    waves, lumps = np.zeros_like(t), np.zeros_like(t)
    for k in range(1, 4):
        waves += rng.normal() / k * np.sin(k * np.pi * t + rng.uniform(0, np.pi))
    for k in range(2, 9):
        lumps += rng.normal() / np.sqrt(k) * np.sin(k * np.pi * t + rng.uniform(0, 2 * np.pi))
    middle = start + t[:, None] * along + (bend * length / 2 * waves)[:, None] * normal
    middle = middle + rng.normal(scale=0.004 * width, size=middle.shape)
    half = width / 2 * np.clip(1 + roughness * lumps, 0.4, 1.6)
    discs = shapely.buffer(shapely.points(middle), half, quad_segs=6)
    # The hulls of neighbouring discs, joined, are a band without gaps at its bends.
    hulls = [shapely.convex_hull(shapely.union(a, b)) for a, b in pairwise(discs)]
    return solid(shapely.union_all(hulls))


def solid(area: Geometry) -> Geometry:
    """Keep the valid, two-dimensional part of a geometry."""
    import shapely

    valid = area if shapely.is_valid(area) else shapely.buffer(area, 0)
    parts = [p for p in shapely.get_parts(valid) if p.geom_type == "Polygon" and p.area > 0]
    return parts[0] if len(parts) == 1 else shapely.MultiPolygon(parts)


_MARGIN = 0.05
_SMALLEST_PIECE = 2e4
"""Square microns."""


def draw_tissue(rng: np.random.Generator, extent: tuple[float, float]) -> Geometry:
    """Draw the tissue of a slide, with tears."""
    import shapely

    width, height = extent
    inner = shapely.box(
        _MARGIN * width, _MARGIN * height, (1 - _MARGIN) * width, (1 - _MARGIN) * height
    )
    kind = rng.choice(["one", "several", "cores"], p=[0.5, 0.3, 0.2])
    if kind == "one":
        pieces = [_piece(rng, inner)]
    elif kind == "several":
        pieces = [_piece(rng, cell) for cell in _split(rng, inner)]
    else:
        pieces = _cores(rng, inner)
    outline = shapely.union_all(pieces)
    outline = shapely.intersection(outline, inner)
    whole = solid(shapely.difference(outline, _tears(rng, outline)))
    kept = [part for part in shapely.get_parts(whole) if part.area >= _SMALLEST_PIECE]
    return shapely.MultiPolygon(kept or [shapely.get_parts(whole)[0]])


def _piece(rng: np.random.Generator, cell: Geometry) -> Geometry:
    """Draw a piece of tissue that fills a cell: lobes that have grown together."""
    import shapely

    x0, y0, x1, y1 = cell.bounds
    size = min(x1 - x0, y1 - y0) / 2
    lobes = [blob(rng, (0.0, 0.0), size, elongation=1.3, roughness=0.18, decay=1.75)]
    for _ in range(int(rng.integers(1, 4))):
        turn, distance = rng.uniform(0, 2 * np.pi), size * rng.uniform(0.5, 1.0)
        at = (distance * np.cos(turn), distance * np.sin(turn))
        part = size * rng.uniform(0.4, 0.75)
        lobes.append(blob(rng, at, part, elongation=1.4, roughness=0.2, decay=1.75))
    largest = max(shapely.get_parts(solid(shapely.union_all(lobes))), key=shapely.area)
    return _fitted(shapely.Polygon(largest.exterior), cell)


def _fitted(piece: Geometry, cell: Geometry) -> Geometry:
    """Stretch a piece, as little as needed, to fill a cell."""
    import shapely

    left, top, right, bottom = piece.bounds
    x0, y0, x1, y1 = cell.bounds
    scale = np.array([(x1 - x0) / (right - left), (y1 - y0) / (bottom - top)])
    # Its shape is kept within a third of the cell's, so that nothing is drawn out flat.
    scale = np.minimum(scale, 1.35 * scale.min())
    middle, goal = (
        np.array([(left + right) / 2, (top + bottom) / 2]),
        np.array([(x0 + x1) / 2, (y0 + y1) / 2]),
    )
    return shapely.transform(piece, lambda points: goal + (points - middle) * scale)


def _split(rng: np.random.Generator, area: Geometry) -> list[Geometry]:
    """Cut a rectangle into two or three cells with gaps between."""
    import shapely

    x0, y0, x1, y1 = area.bounds
    gap = 0.03 * max(x1 - x0, y1 - y0)
    if x1 - x0 >= y1 - y0:
        cut = x0 + rng.uniform(0.42, 0.6) * (x1 - x0)
        first = shapely.box(x0, y0, cut - gap, y1)
        second = shapely.box(cut + gap, y0, x1, y1)
    else:
        cut = y0 + rng.uniform(0.42, 0.6) * (y1 - y0)
        first, second = shapely.box(x0, y0, x1, cut - gap), shapely.box(x0, cut + gap, x1, y1)
    if rng.uniform() < 0.5:
        return [first, second]
    return [first, *_halves(second, gap)]


def _halves(area: Geometry, gap: float) -> list[Geometry]:
    import shapely

    x0, y0, x1, y1 = area.bounds
    middle = (y0 + y1) / 2
    return [shapely.box(x0, y0, x1, middle - gap), shapely.box(x0, middle + gap, x1, y1)]


def _cores(rng: np.random.Generator, area: Geometry) -> list[Geometry]:
    """Draw what a needle brings out: long, bent strips side by side."""
    x0, y0, x1, y1 = area.bounds
    count = int(rng.integers(2, 4))
    pitch = (y1 - y0) / count
    cores = []
    for number in range(count):
        y = y0 + (number + 0.5) * pitch
        thick = pitch * rng.uniform(0.5, 0.68)
        start = np.array([x0 + thick / 2, y + rng.uniform(-0.1, 0.1) * pitch])
        end = np.array([x1 - thick / 2, y + rng.uniform(-0.1, 0.1) * pitch])
        end[0] -= rng.uniform(0, 0.15) * (x1 - x0)
        cores.append(ribbon(rng, start, end, thick, bend=0.04, roughness=0.08))
    return cores


def _tears(rng: np.random.Generator, outline: Geometry) -> Geometry:
    """Draw holes where the section tore."""
    import shapely

    left, top, right, bottom = outline.bounds
    count = rng.poisson(2 + outline.area / 3e6)
    tears = [
        blob(
            rng,
            tuple(rng.uniform([left, top], [right, bottom])),
            rng.uniform(30, 110),
            elongation=rng.uniform(1, 5),
            roughness=0.25,
            step=4.0,
        )
        for _ in range(count)
    ]
    return shapely.union_all(tears) if tears else shapely.Polygon()
